"""The groups of a query: aggregates are worked out by the slices (`indexer.scan.gather.aggregates`), put
in the query's order here.

Where groups come in the query's order (`keytide.query.plan.grouping`), LIMIT and OFFSET are the slices' too.
Any other order is made here, of all groups, which `scan.max_groups` and
`scan.max_query_bytes` bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from indexer.scan.aggregate.request import AggregationPlan as Aggregation
from indexer.scan.aggregate.request import planned
from indexer.scan.gather.aggregates import (
    AggregateTimeoutError,
    GroupRow,
    Wanted,
    aggregate,
    limits_of,
    rows,
)
from indexer.scan.gather.growing import Aggregated
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import Target
from indexer.scan.peer.messages import OutOfTimeError
from keytide.collation import Value, encode_part, to_json_value
from keytide.definition.binding import Binding
from keytide.definition.expression import Expression, identity
from keytide.query.parse.expressions import AggregateCall, column_name
from keytide.query.parse.normal import is_constant
from keytide.query.plan.grouping import grouping
from keytide.query.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows of an answer.

    Attributes:
        ignored: aggregate -> how many values it left out, as they are of no type that it takes.
    """

    rows: list[list[Any]]
    ignored: dict[str, int]


class GroupReader:
    """Reads the groups of one plan."""

    def __init__(self, plan: Plan, shared: Reads) -> None:
        self._plan = plan
        self._shared = shared
        self._limits = limits_of(shared.settings)
        select = plan.select
        self._binding = Binding(plan.index.definition)
        made = grouping(select, plan.order_by)
        group_by, reverse, ordered = made.by, made.reverse, made.ordered
        end = None if select.limit is None else select.offset + select.limit
        pushed = ordered and end is not None and 0 < end <= self._limits.count
        self._sorted = not ordered
        self._cut = slice(0, None) if pushed else slice(select.offset, end)
        self._wanted = Wanted(reverse, select.limit, select.offset) if pushed else Wanted(reverse)
        functions = [(one.function, one.operand, one.distinct, column_name(one)) for one in plan.aggregates]
        self.aggregation: Aggregation = planned(group_by, functions, self._binding)
        self._group = {identity(one): at for at, one in enumerate(group_by)}
        self._function = {one.name: at for at, one in enumerate(self.aggregation.functions)}

    async def work(self, target: Target) -> Aggregated:
        """The `work` of `Reads.read`.

        Raises:
            OutOfTimeError: it takes longer than the target's time.
            KeytideError: as `aggregate`.
        """
        try:
            return await aggregate(
                target,
                self._shared.nodes,
                self.aggregation,
                self._plan.index.definition,
                self._wanted,
                limits=self._limits,
                threads=self._shared.local.threads,
            )
        except AggregateTimeoutError as error:
            raise OutOfTimeError(error.message, next_step=error.next_step) from error

    def rows(self, found: Aggregated) -> GroupRows:
        """The rows of the answer. Any thread.

        Raises:
            NotIndexableError: a value that has no place in the order.
        """
        groups, _ = rows(found, self.aggregation, self._wanted)
        if self._sorted:
            groups.sort(key=self._place)  # stable: groups of one place stay in the order of their keys
        groups = groups[self._cut]
        columns = [one.value for one in self._plan.outputs]
        ignored: dict[str, int] = {}
        for group in groups:
            for function, count in zip(self.aggregation.functions, group.ignored, strict=True):
                if count:
                    ignored[function.name] = ignored.get(function.name, 0) + count
        return GroupRows(
            [[to_json_value(self._value(column, group)) for column in columns] for group in groups], ignored
        )

    def _place(self, group: GroupRow) -> bytes:
        """What a group is sorted by."""
        return b"".join(
            encode_part(self._value(one.value, group), one.descending) for one in self._plan.order_by
        )

    def _value(self, column: Expression | AggregateCall, group: GroupRow) -> Value:
        if isinstance(column, AggregateCall):
            return group.values[self._function[column_name(column)]]
        if is_constant(column):
            return self._binding.value(column)((), "", {})
        return group.key[self._group[identity(column)]]
