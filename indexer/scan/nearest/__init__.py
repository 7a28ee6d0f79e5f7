"""The nearest of a spatial index: the search around a place (`search`; `here` is its short way), and the scan
that asks for them by REST (`rows`). Queries ask the search as well (`indexer.scan.query.rows`)."""
