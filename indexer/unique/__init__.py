"""Keys of a UNIQUE index that several documents of a slice have: suspects, and where they are looked for.
Pure.

Told by `indexer.hosting`; asked by `indexer.digests`. Which suspects are violations the coordinator decides
(R35).
"""
