"""Keys of a UNIQUE index that several documents of a slice have: suspects, and where they are looked for.
Pure.

Told by `indexer.hosting`; which suspects are violations the coordinator decides (R35).
"""
