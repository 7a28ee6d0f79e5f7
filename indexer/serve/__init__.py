"""An indexer node or gateway as a process: the HTTP application, the wiring, health, who answers clients, and
what other services ask of a node's slices.

The composition root of the package: it may import all of `indexer`, and nothing of `indexer` but `__main__`
imports it. Imported by `indexer.__main__` and `deploy.commands` only.
"""
