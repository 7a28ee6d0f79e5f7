"""From a query to the reading of one index: `choose`.

Theory of operation
===================
Every READY index of the keyspace is looked at by itself (`plan_on`). It serves a query when

* it has the rows: an entry per document, or per element of the array that the query unnests. `x = ANY(tags)`
  is read as UNNEST(tags) = x on an index that has UNNEST(tags) as a key part: a document has one entry at
  most for one element, so it gives one row at most;
* it has all of them: its WHERE follows from the query's (`implication`), and so does that the leading key,
  without which documents are left out, is not missing (unless it is `include_missing`);
* it holds all that the query says of them (`keytide.definition.binding`). Keytide stores no documents.

The spans are made from the condition (`boxes`), the rest of it is the residual filter. Of several indexes
that serve, the one is taken that reads the fewest entries by estimate (`estimate`), then one whose order is
the query's, then one that has an order, then the one that asks the fewest slices, has the fewest key parts,
comes first by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

from keytide.catalog.partitioning import Partitioning
from keytide.definition.binding import Binding, NotHeldError
from keytide.definition.expression import (
    Call,
    Comparison,
    DistanceTo,
    DocumentId,
    Expression,
    IsMissing,
    Literal,
    Not,
    Path,
    Predicate,
    Unnest,
    children,
    identity,
    same,
)
from keytide.definition.index import IndexDefinition
from keytide.definition.render import render_expression, render_predicate
from keytide.query.parse.expressions import AggregateCall, column_name
from keytide.query.parse.normal import TRUE, conjunction, conjuncts, is_constant, normal
from keytide.query.parse.select import Ordering, Output, Select, operands
from keytide.query.plan.boxes import IndexSpans, reading
from keytide.query.plan.estimate import estimated
from keytide.query.plan.grouping import grouping, runs_backwards
from keytide.query.plan.implication import implies
from keytide.query.plan.intervals import MISSING_ONLY, touches
from keytide.query.plan.regions import region
from keytide.query.plan.slices import slices_asked
from keytide.query.plan.spatial import farthest, is_measured, reading_of_places

_WITHOUT_ORDER: Final = 2
"""As much as entries cost more where an order is missed. Also the sizes of two indexes with the same entries
are counted at two moments, and their difference is not to decide."""
_NEAREST: Final = 8
"""Entries that are read for each row of the nearest."""


_PREDICATES: Final = get_args(Predicate)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An index that may serve.

    Attributes:
        entries: how many it has, None when that is not known here.
        trouble: why it cannot be read now, "" when it can.
        splits: of its record (`keytide.catalog.partitioning`).
        id: of its record: slices and spans of a plan are those of this layout; "" where nothing is read.
    """

    name: str
    definition: IndexDefinition
    entries: int | None = None
    trouble: str = ""
    splits: tuple[bytes, ...] = ()
    id: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an index does not serve a query."""

    index: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How a query is answered from one index.

    Attributes:
        outputs: the columns, of `*` too; what the index does not hold and the condition fixes is a literal.
        order_by: likewise.
        reading: spans and what they were made from.
        slices: the slices that can hold rows, ascending.
        filter: what is to be tested of each entry; None for nothing.
        ordered: whether entries, or the groups made of them, come in the query's order, so that reading stops
            at LIMIT; else rows are sorted, and all groups are made first.
        reverse: entries are read in descending order.
        entries: how many entries are read, by estimate.
        nearest: the distance that the rows are the least of, found by looking ever farther around; None where
            that is not what is asked.
        reach: how far that may be at most.
    """

    select: Select
    index: Candidate
    outputs: tuple[Output, ...]
    order_by: tuple[Ordering, ...]
    reading: IndexSpans
    slices: tuple[int, ...]
    filter: Predicate | None
    ordered: bool
    reverse: bool
    entries: float
    nearest: DistanceTo | None = None
    reach: float = math.inf

    @property
    def misses_order(self) -> bool:
        """Whether an index with an order of keys reads the same entries with less work: keys stand in front
        of entries, equal ones side by side, and where they begin and end is known."""
        looks_up = self.reading.bounded and not self.select.grouped
        return not self.index.definition.structure.ordered and not looks_up

    @property
    def rank(self) -> tuple[float, bool, bool, int, int, str]:
        """What plans are compared by; the least is taken."""
        index = self.index
        return (
            self.entries * (_WITHOUT_ORDER if self.misses_order else 1),
            not self.ordered,
            self.misses_order,
            len(self.slices),
            len(index.definition.keys),
            index.name,
        )

    @property
    def partitions(self) -> list[int]:
        """Those that its slices belong to, ascending."""
        rule = Partitioning.of(self.index.definition, self.index.splits)
        return sorted({rule.partition_of_slice(number) for number in self.slices})

    @property
    def in_order(self) -> int:
        """How the order of slices is that of the keys in them: 1 the same, -1 the other way round, 0 none."""
        definition = self.index.definition
        rule = Partitioning.of(definition, self.index.splits)
        return rule.in_order if definition.structure.ordered and definition.partition_part == 0 else 0

    @property
    def aggregates(self) -> tuple[AggregateCall, ...]:
        """The aggregates that the outputs and the order need, each once."""
        items = [*(one.value for one in self.outputs), *(one.value for one in self.order_by)]
        return tuple({column_name(one): one for one in items if isinstance(one, AggregateCall)}.values())


def asked_of(select: Select) -> Predicate:
    """All that a query's condition says, in normal form."""
    where = TRUE if select.where is None else normal(select.where)
    return where if select.member is None else conjunction([select.member, where])


def plans(select: Select, candidates: Sequence[Candidate]) -> tuple[list[Plan], list[Refusal]]:
    """What each index of the query's keyspace can do: the plans, the best first, and the refusals."""
    condition = asked_of(select)
    found: list[Plan] = []
    refusals: list[Refusal] = []
    for candidate in candidates:
        if candidate.definition.keyspace != select.keyspace:
            continue
        one = plan_on(select, candidate, condition)
        if isinstance(one, Plan):
            found.append(one)
        else:
            refusals.append(one)
    return sorted(found, key=lambda one: one.rank), refusals


def plan_on(select: Select, candidate: Candidate, condition: Predicate | None = None) -> Plan | Refusal:
    """How one index answers a query, or why it does not.

    Args:
        condition: `asked_of(select)`, when it is known already.
    """
    condition = asked_of(select) if condition is None else condition
    definition = candidate.definition
    binding = Binding(definition)
    reason = candidate.trouble or _other_rows(select, definition, binding)
    if reason:
        return Refusal(candidate.name, reason)
    unnest = definition.unnest
    if unnest is not None and definition.include_missing:  # it also has documents without elements
        condition = conjunction([*conjuncts(condition), Not(IsMissing(unnest))])
    given = TRUE if definition.where is None else normal(definition.where)
    leading = definition.keys[0].expression
    if definition.where is not None and not implies(condition, given):
        return Refusal(
            candidate.name,
            f"its WHERE, {render_predicate(definition.where)}, does not follow from the query's",
        )
    if not definition.include_missing and may_be_missing(condition, leading):
        return Refusal(
            candidate.name,
            f"it leaves out documents without {render_expression(leading)}, and the query does not "
            f"({render_expression(leading)} IS NOT MISSING would)",
        )
    parts = [part.expression for part in definition.keys]
    structure = definition.structure
    nearest = _nearest(select, definition)
    read = (
        reading_of_places(condition, leading, structure, definition.system, nearest)
        if structure.has_places
        else reading(condition, parts, structure)
    )
    if isinstance(read, str):
        return Refusal(candidate.name, f"it is USING {structure.name}: it {read}")
    sorts = structure.ordered or read.keys or read.bounded or nearest is not None or select.limit == 0
    if read.spans and select.order_by and not (sorts or select.grouped):
        first, does = select.order_by[0], "sorts found keys only"
        if structure.has_places and is_measured(first.value, leading, definition.system):
            does = "finds the nearest, " + ("not the farthest" if first.descending else "with a LIMIT only")
        return Refusal(candidate.name, f"it is USING {structure.name}: it has no order, and {does}")
    # All entries are true of these.
    assured = [given] if definition.include_missing else [given, Not(IsMissing(leading))]
    rest = [one for one in read.rest if not any(known != TRUE and implies(known, one) for known in assured)]
    outputs, order_by = _fixed(select, definition, binding, condition)
    lacking = _lacking(binding, [*operands([*outputs, *order_by]), *select.group_by, *rest])
    if lacking:
        return Refusal(candidate.name, f"it does not hold {lacking}")
    ordered, reverse = False, False
    if select.grouped:
        made = grouping(select, order_by)
        ordered = made.ordered and runs_backwards(made.by, definition, made.reverse) is not None
    elif structure.ordered or all(_has_one_value(condition, one.value) for one in order_by):
        ordered, reverse = _order(order_by, definition, condition)
    filter_ = conjunction(rest)
    entries = estimated(select, read, definition, candidate.entries, len(rest) if ordered else None)
    return Plan(
        select,
        candidate,
        outputs,
        order_by,
        read,
        slices_asked(condition, candidate.definition, candidate.splits, read.spans) if read.spans else (),
        None if filter_ == TRUE else filter_,
        ordered,
        reverse,
        min(entries, _NEAREST * (select.limit or 0)) if nearest is not None else entries,
        nearest,
        math.inf if nearest is None else farthest(condition, nearest),
    )


def _nearest(select: Select, definition: IndexDefinition) -> DistanceTo | None:
    """The distance that the query's rows are the least of, if the index finds those by itself."""
    if not definition.structure_type.has_places or select.grouped or not select.limit or not select.order_by:
        return None
    first = select.order_by[0]
    measured = is_measured(first.value, definition.keys[0].expression, definition.system)
    return first.value if measured and not first.descending else None  # type: ignore[return-value]


def _other_rows(select: Select, definition: IndexDefinition, binding: Binding) -> str:
    """Why the index has not the query's rows, "" when it has."""
    wanted = select.unnest if select.member is None else select.member.left
    unnest = definition.unnest
    if wanted is None:
        if unnest is None:
            return ""
        array = render_expression(unnest.operand)
        return f"it has an entry for each element of {array}, and the query asks for one row per document"
    if unnest is None or not same(unnest, wanted):
        return f"it has no entry for each element: {render_expression(wanted)} is not in its key"
    if binding.part(wanted) is None:
        return f"it has an entry for each distinct key, not for each {render_expression(wanted)}"
    return ""


def may_be_missing(condition: Predicate, expression: Expression) -> bool:
    """Whether an expression can be MISSING in a document for which the condition is true."""
    return not _never_missing(expression) and touches(region(condition, expression).intervals, MISSING_ONLY)


def _never_missing(node: Expression) -> bool:
    """Whether it is never MISSING where rows come from (an element to unnest is there)."""
    if isinstance(node, DocumentId | Literal | Unnest) or (
        isinstance(node, Call) and node.function == "coalesce"
    ):
        return True
    return not isinstance(node, Path) and all(_never_missing(one) for one in children(node))  # type: ignore[arg-type]


def _fixed(
    select: Select, definition: IndexDefinition, binding: Binding, condition: Predicate
) -> tuple[tuple[Output, ...], tuple[Ordering, ...]]:
    """The outputs and the order, with what the index does not hold as the literal that the condition fixes
    it to. (Strings and booleans only: 5 may have been written as 5.0.)"""
    fixed = {
        identity(one.left): one.right
        for one in conjuncts(condition)
        if isinstance(one, Comparison) and one.operator == "=" and isinstance(one.right, Literal)
        if isinstance(one.right.value, str | bool)
    }

    def held(value: Expression | AggregateCall) -> Expression | AggregateCall:
        if isinstance(value, AggregateCall) or select.grouped or binding.serves(value):
            return value
        return fixed.get(identity(value), value)

    outputs = select.outputs or _everything(definition)
    return (
        tuple(Output(one.name, held(one.value)) for one in outputs),
        tuple(Ordering(held(one.value), one.descending) for one in select.order_by),
    )


def _everything(definition: IndexDefinition) -> tuple[Output, ...]:
    """What `*` stands for: the document id, the key parts, the included columns."""
    held: list[Expression] = [
        DocumentId(),
        *(part.expression for part in definition.keys),
        *definition.include,
    ]
    return tuple(Output(column_name(one), one) for one in {identity(one): one for one in held}.values())


def _lacking(binding: Binding, nodes: Sequence[Expression | Predicate]) -> str:
    """What the index does not hold of all that, "" for nothing."""
    lacking: dict[str, None] = {}
    for node in nodes:
        if not binding.serves(node):
            try:
                _bind(binding, node)
            except NotHeldError as error:
                lacking[str(error.extra["expression"])] = None
    return ", ".join(lacking)


def _bind(binding: Binding, node: Expression | Predicate) -> None:
    if isinstance(node, _PREDICATES):
        binding.test(node)
    else:
        binding.value(node)  # type: ignore[arg-type]


def _order(
    order_by: Sequence[Ordering], definition: IndexDefinition, condition: Predicate
) -> tuple[bool, bool]:
    """Whether entries come in the query's order, and whether that is the descending one.

    A part that can have one value only does not matter to the order, wherever it stands.
    """
    parts = definition.keys
    at = 0
    reverse: bool | None = None
    passed: set[bytes] = set()
    for item in order_by:
        value = item.value
        if isinstance(value, AggregateCall) or identity(value) in passed or _has_one_value(condition, value):
            continue
        while at < len(parts) and not same(parts[at].expression, value):
            if not _single(condition, parts[at].expression):
                return False, False
            at += 1
        last = at == len(parts)
        if last and not isinstance(value, DocumentId):
            return False, False
        descends = item.descending if last else item.descending != parts[at].descending
        if reverse not in (None, descends):
            return False, False
        reverse = descends
        if last:  # the document id is the last of an entry: nothing is left to order by
            break
        passed.add(identity(value))
        at += 1
    return True, bool(reverse)


def _has_one_value(condition: Predicate, value: Expression | AggregateCall) -> bool:
    """Whether that is the same of all entries, so that any order is its order."""
    return isinstance(value, AggregateCall) or is_constant(value) or _single(condition, value)


def _single(condition: Predicate, expression: Expression) -> bool:
    """Whether the condition leaves an expression one value."""
    intervals = region(condition, expression).intervals
    return len(intervals) == 1 and intervals[0].is_point
