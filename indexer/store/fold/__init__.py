"""Merging a frozen delta into its base in a process beside the node, durably and with the way back (undo
files).

`worker` is what a node holds; `process` is what runs. A fold of a process that was replaced never moves a
base. Called by `indexer.store.lmdb.folding`; the worker is made by `indexer.ingest.loop`.
"""
