"""The decisions of work over whole topics: what a micro-batch covers, sorted runs, sizes, rates, splits.
Pure.

Used by drivers and tasks, and by the simulation.
"""
