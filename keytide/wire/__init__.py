"""Every message that travels through Keytide's own topics or between its processes, and its columns. Pure.

Imported by all services: `projector`, `indexer`, `coordinator`, `streaming`. Messages lie in queues of
running clusters and are read by the release before and after: add fields at the end, with defaults, or a new
version.
"""
