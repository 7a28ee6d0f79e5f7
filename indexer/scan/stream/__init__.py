"""Scans as one long answer: blocks of all slices in key order, as lines of JSON or in Arrow's form, to
readers that may be slow.

Uses `plan` and `gather`; what a slice gives is a task (`block`). Called by `indexer.scan.http`.
"""
