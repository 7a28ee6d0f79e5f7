"""Which rows to write: the documents of a window, newest version each, against what is held. Pure.

One way for live commits, backfill and repair, for both stores (R17, R21). Called by `indexer.store.lmdb`
and `tests.memory_store`.
"""
