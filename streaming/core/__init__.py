"""The decisions of work over whole topics: what a micro-batch covers, sorted runs, sizes, rates, splits.
Pure.

Called by `streaming.drivers`, `streaming.backfill`, `streaming.stages` and `streaming.verify`, and by the
simulation.
"""
