"""Is a base what was written? Checksums of pages at opening, comparison of a base with itself, and that
forward entries and back index mirror one another.

Asked before a base is opened and now and then of open ones. Finding damage makes a slice LOST, never a scan
wrong. Called by `indexer.store.lmdb` and `indexer.hosting`.
"""
