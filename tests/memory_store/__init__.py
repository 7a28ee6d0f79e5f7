"""The store of a slice in dictionaries: the simulation's, and the second opinion of the conformance suite.

Must do whatever `indexer.store.interface` says, as naively as it can be said.
"""
