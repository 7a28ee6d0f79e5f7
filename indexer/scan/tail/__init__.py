"""The changes of a selection from snapshot to snapshot, as server-sent events.

Each moment that is told is held on every slice; what changed in one is a task (`changes`).
Called by `indexer.scan.http.routes`.
"""
