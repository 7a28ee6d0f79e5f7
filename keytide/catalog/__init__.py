"""The system dictionary as typed records, what of a keyspace's past still holds, and in which slice of its
index an entry lies. Pure.

Imported by `coordinator`, whose leader writes them, and by `projector`, `indexer` and `streaming`, who read
them. Records are kept for ever: a new field goes to the end of its struct, with a default.
"""
