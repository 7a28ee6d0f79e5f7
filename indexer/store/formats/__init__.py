"""Bytes on disk: records of the back index and the skip ledger, rows of the long table, a slice's
state. Pure.

On the disks of running clusters: a change needs a new tag and a reader for the old one.
Imported by `indexer.store.lmdb`, `indexer.store.resolve`, `indexer.store.fold` and `indexer.store.integrity`.
"""
