"""Judging what slices hold against what the source has: versions as columns, the classes of differences.
Pure.

Used by verification and repair.
"""
