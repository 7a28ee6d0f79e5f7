"""The store of a slice on disk: a durable base, at most one frozen delta and the delta that commits go to,
each an LMDB environment.

Rows are read by LMDB's cursors (`merge`), or, of who reads much, from its pages (`leaves`).

Reached through `indexer.store.interface`. Imported by those who make stores: `indexer.hosting`,
`indexer.ingest`, `indexer.scan_processes`. What is written here is on the disks of running clusters.
"""
