"""Which snapshot number is read, which spans of which slices, and what keeps them: directory, selection,
tokens, leases; readiness, when an index cannot be scanned yet, and agreement, when the newest snapshot does
not do.

Second on the way of a scan. `errors`, `selection` and `tokens` are pure. Called by `indexer.scan.gather`,
`indexer.scan.stream`, `indexer.scan.query` and `indexer.scan.tail`.
"""
