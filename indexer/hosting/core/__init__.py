"""What a node makes of the coordinator's words, and what it says of its slices. Pure.

Called by `indexer.hosting` and the simulation.
"""
