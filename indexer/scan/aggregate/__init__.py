"""Counts, sums, extremes by group: partial ones from each slice, near the data. Pure.

They are put together by `indexer.scan.gather.aggregates`. A new function begins with its name in
`keytide.query.parse.expressions`, and goes by `slice`, `columns` (many values at once) and `accumulators` to
that. Called by `indexer.scan.tasks` in each slice; imported by `indexer.scan.gather` and
`indexer.scan.query`.
"""
