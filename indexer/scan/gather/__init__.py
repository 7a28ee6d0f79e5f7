"""Slices wherever they lie, as one stream in key order: scatter, merge, page by page; held snapshots.

Fourth on the way of a scan. `service` and `reads` are the way from top to bottom; start there. `aggregates`
puts together what `indexer.scan.aggregate` has worked out in each slice. Called by `indexer.scan.http`,
`indexer.scan.stream`, `indexer.scan.query` and `indexer.scan.tail`.
"""
