"""Queries: from SELECT to the reading of one index. Pure.

    expressions  aggregates, `= ANY` and other things that definitions do not have
    select       a query as data
    long_lists   text -> tokens, without thousands of constants
    statement    text -> Select (`parse_query`)
    normal       conditions in a normal form, NOT pushed down
    intervals    sets of values as intervals of encoded key parts
    regions      the values that a condition leaves an expression
    implication  whether one condition follows from another
    boxes        condition -> spans of an index's keys
    plan         query and index -> plan, or why not
    grouping     what groups are made by, and their order
    suggest      the CREATE INDEX that would serve
    choose       the best plan, and how EXPLAIN shows it

May be imported by `indexer.scan` and the command; imports `keytide.definition` and `keytide.collation`. The
meaning of every expression is `keytide.definition.semantics`'; what is said here about values (`regions`,
`implication`) follows from it and must change with it.

Errors: those of `keytide.definition`, and `NoIndexError` (problem type `no-index`).
"""

from keytide.query.parse.expressions import Aggregate, column_name
from keytide.query.parse.normal import is_constant
from keytide.query.parse.select import Ordering, Output, Select
from keytide.query.parse.statement import parse_query
from keytide.query.plan.choose import NoIndexError, choose, described
from keytide.query.plan.grouping import Grouping, grouping
from keytide.query.plan.plan import Candidate, Plan, Refusal, plan_on

__all__ = [
    "Aggregate",
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
