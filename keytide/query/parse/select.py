"""A query as plain immutable data: `Select`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from keytide.definition.expression import Comparison, Expression, Node, Predicate, Unnest, walk
from keytide.query.parse.expressions import AggregateCall


class Output(msgspec.Struct, frozen=True):
    """A column of the answer."""

    name: str
    value: Expression | AggregateCall


class Ordering(msgspec.Struct, frozen=True):
    """One part of ORDER BY."""

    value: Expression | AggregateCall
    descending: bool = False


def operands(items: Iterable[Output | Ordering]) -> list[Expression]:
    """The expressions in columns and orderings, those in aggregates among them."""
    values = [one.value for one in items]
    found = [one.operand if isinstance(one, AggregateCall) else one for one in values]
    return [one for one in found if one is not None]


class Select(msgspec.Struct, frozen=True):
    """A query.

    Attributes:
        text: as it was written.
        outputs: its columns; empty for `*`, which is all that the chosen index holds.
        where: its condition but for `member`.
        member: `UNNEST(path) = literal`, for `literal = ANY(path)`.
        group_by: what rows are grouped by; every non-constant output is one of them or an aggregate.
        grouped: whether rows are groups (GROUP BY, DISTINCT or aggregates).
        limit: None for all rows.
        explain: the plan is asked for, not the rows.
    """

    text: str
    keyspace: str
    outputs: tuple[Output, ...]
    where: Predicate | None = None
    member: Comparison | None = None
    group_by: tuple[Expression, ...] = ()
    grouped: bool = False
    order_by: tuple[Ordering, ...] = ()
    limit: int | None = None
    offset: int = 0
    explain: bool = False

    @property
    def unnest(self) -> Unnest | None:
        """The array whose elements are rows, if there is one."""
        for node in self.nodes():
            for below in walk(node):
                if isinstance(below, Unnest):
                    return below
        return None

    @property
    def values(self) -> tuple[Expression, ...]:
        """The expressions behind SELECT, GROUP BY and ORDER BY."""
        return (*operands(self.outputs), *self.group_by, *operands(self.order_by))

    def nodes(self) -> list[Node]:
        """Everything that it says of documents, but for `member`."""
        return [*self.values, *([self.where] if self.where is not None else [])]
