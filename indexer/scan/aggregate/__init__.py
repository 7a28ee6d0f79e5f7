"""Counts, sums, extremes by group: partial ones from each slice, near the data, put together here.

`request`, `columns`, `slice`, `accumulators` and `task` are pure; a new function begins with its name in
`keytide.query.parse.expressions`, and goes by `slice` and `accumulators` to `aggregates`.
"""
