"""Files beside and below LMDB: the pages of its own files, checksums of them, the filter of ids, scratch
files of rows that are sorted.

On the disks of running clusters, but for the scratch files: a change needs a new tag and a reader for the old
one. Imported by `indexer.store.lmdb`, `indexer.store.fold` and `indexer.store.integrity`. This file imports
nothing, so that the fold worker stays small.
"""
