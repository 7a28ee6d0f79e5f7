"""Entries as readers see them: rows of JSON, columns of Arrow. Pure.

Called by `indexer.scan.gather`, `indexer.scan.stream`, `indexer.scan.query` and `indexer.scan.tail`.
"""
