"""Files beside and below LMDB: the pages of its own files, checksums of them, the filter of ids.

On the disks of running clusters: a change needs a new tag and a reader for the old one. This file imports
nothing, so that the fold worker stays small.
"""
