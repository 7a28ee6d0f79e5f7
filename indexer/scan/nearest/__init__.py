"""The nearest of a spatial index: the search around a place (`search`; `here` is its short way), and the scan
that asks for them by REST (`rows`). Called by `indexer.scan.http.endpoint` and `indexer.scan.query.rows`, as
queries ask the search as well."""
