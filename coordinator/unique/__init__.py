"""UNIQUE indexes: which suspicions a timestamp settles, whether a build may end, what operators are told
(R35). Pure.

Called by `coordinator.stability` (ends of sources) and `coordinator.builds`.
"""
