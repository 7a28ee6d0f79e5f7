"""Queries: from SELECT to the reading of one index. Pure.

    parse    text -> Select, with conditions in a normal form
    plan     Select and an index -> spans, or why not; all indexes -> the best plan, or the CREATE INDEX that
    would serve

Imported by `indexer.scan` and `streaming.source.core`; imports `keytide.definition` and `keytide.collation`.
The meaning of every expression is `keytide.definition.semantics`'; what is said here about values
(`plan.regions`, `plan.implication`) follows from it and must change with it.

Errors: those of `keytide.definition`, and `NoIndexError` (problem type `no-index`).
"""
