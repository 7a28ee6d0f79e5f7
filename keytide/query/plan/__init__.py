"""From a `Select` and an index to the spans that answer it, or the reason why this index cannot; and from all
indexes to the best plan. Pure.

Called by `indexer.scan.query`, EXPLAIN too. A span too wide is slow, a span too narrow is wrong: what is said
of values here follows from `keytide.definition.semantics`.
"""
