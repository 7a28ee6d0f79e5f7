"""Entries as readers see them: rows of JSON, columns of Arrow. Pure.

Called by `gather`, `stream`, `query` and `tail`.
"""
