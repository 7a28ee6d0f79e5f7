"""What the rows of a grouped query are grouped by, and whether they then come in its order. Pure.

Groups come in the order of what they are grouped by. An ORDER BY of such expressions only, in one direction,
is that order when they are grouped by in its order first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keytide.definition.binding import Binding
from keytide.definition.expression import Expression, identity
from keytide.definition.index import IndexDefinition
from keytide.query.parse.expressions import AggregateCall
from keytide.query.parse.normal import is_constant
from keytide.query.parse.select import Ordering, Select


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


def grouping(select: Select, order_by: Sequence[Ordering]) -> Grouping:
    """How the groups of a query are made.

    Args:
        order_by: of its plan.
    """
    order = [one for one in order_by if isinstance(one.value, AggregateCall) or not is_constant(one.value)]
    first = [one.value for one in order if not isinstance(one.value, AggregateCall)]
    ways = {one.descending for one in order}
    if len(first) < len(order) or len(ways) > 1:
        return Grouping(select.group_by, False, False)
    arranged = {identity(one): one for one in [*first, *select.group_by]}
    return Grouping(tuple(arranged.values()), True in ways, True)


def runs_backwards(groups: Sequence[Expression], definition: IndexDefinition, reverse: bool) -> bool | None:
    """Whether an index is read backwards to meet groups in the order that is asked for; None when it must be
    read whole, for its order is another one, or none.

    Args:
        groups: what is grouped by, in this order.
        reverse: groups are asked for in descending order.
    """
    if not definition.structure.ordered:
        return None
    binding = Binding(definition)
    ordinals = [binding.part(node) for node in groups]
    directions = {definition.keys[at].descending for at in range(len(ordinals)) if at < len(definition.keys)}
    if ordinals != list(range(len(ordinals))) or len(directions) != 1:
        return None
    return directions.pop() != reverse
