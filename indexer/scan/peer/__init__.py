"""What one node asks another (and itself): messages, and whether one can have been meant so. Pure.

Spoken between nodes of neighbouring releases: fields are added at the end, with defaults.
Imported by `indexer.scan.gather` (asks) and `indexer.scan.local` (answers), and by whoever else asks slices:
`indexer.validation`, `indexer.copying`.
"""
