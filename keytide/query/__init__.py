"""Queries: from SELECT to the reading of one index. Pure.

    parse    text -> Select, with conditions in a normal form
    plan     Select and an index -> spans, or why not; all indexes -> the best plan, or the CREATE INDEX that
    would serve

May be imported by `indexer.scan` and the command; imports `keytide.definition` and `keytide.collation`. The
meaning of every expression is `keytide.definition.semantics`'; what is said here about values
(`plan.regions`, `plan.implication`) follows from it and must change with it.

Errors: those of `keytide.definition`, and `NoIndexError` (problem type `no-index`).
"""

from keytide.query.parse.expressions import AggregateCall, column_name
from keytide.query.parse.normal import is_constant
from keytide.query.parse.select import Ordering, Output, Select
from keytide.query.parse.statement import parse_query
from keytide.query.plan.choose import NoIndexError, choose, described
from keytide.query.plan.grouping import Grouping, grouping
from keytide.query.plan.plan import Candidate, Plan, Refusal, plan_on

__all__ = [
    "AggregateCall",
    "Candidate",
    "Grouping",
    "NoIndexError",
    "Ordering",
    "Output",
    "Plan",
    "Refusal",
    "Select",
    "choose",
    "column_name",
    "described",
    "grouping",
    "is_constant",
    "parse_query",
    "plan_on",
]
