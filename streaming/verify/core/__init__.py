"""Judging what slices hold against what the source has: versions as columns, the classes of differences.
Pure.

Called by `streaming.verify` and `streaming.repair`.
"""
