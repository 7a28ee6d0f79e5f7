"""Which snapshot number is read, which spans of which slices, and what holds them: agreement, selection,
tokens, leases, holds.

Second on the way of a scan. `choose`, `selection` and `tokens` are pure.
"""
