"""UNIQUE indexes: which suspicions a timestamp settles, whether a build may end, what operators are told
(R35). Pure.

Used by `stability` (ends of sources) and `builds`.
"""
