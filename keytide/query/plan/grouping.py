"""What the rows of a grouped query are grouped by, and whether they then come in its order. Pure.

Groups come in the order of what they are grouped by. An ORDER BY of such expressions only, in one direction,
is that order when they are grouped by in its order first.
"""

from __future__ import annotations

from dataclasses import dataclass

from keytide.definition.expression import Expression, identity
from keytide.query.parse.expressions import AggregateCall
from keytide.query.parse.normal import is_constant
from keytide.query.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Grouping:
    """How groups are made.

    Attributes:
        by: in this order.
        reverse: in descending order.
        ordered: they come in the query's order then; else they are sorted.
    """

    by: tuple[Expression, ...]
    reverse: bool
    ordered: bool


def grouping(plan: Plan) -> Grouping:
    """How the groups of a plan are made."""
    group_by = plan.select.group_by
    order = [
        one for one in plan.order_by if isinstance(one.value, AggregateCall) or not is_constant(one.value)
    ]
    first = [one.value for one in order if not isinstance(one.value, AggregateCall)]
    ways = {one.descending for one in order}
    if len(first) < len(order) or len(ways) > 1:
        return Grouping(group_by, False, False)
    arranged = {identity(one): one for one in [*first, *group_by]}
    return Grouping(tuple(arranged.values()), True in ways, True)
