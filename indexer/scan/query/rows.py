"""The rows of a query: entries read as its plan says, to the values of its columns.

Theory of operation
===================
When entries come in the query's order, rows are pages of a scan: filter, offset and limit are the slices'.
When they do not, every entry of the spans is read, block by block, and sorted here; with LIMIT only as many
rows are kept as it can need. A row's place is the encoding of what it is ordered by (`keytide.collation`,
with DESC inverted), then its entry key, so that the order is that of an index, and the same every time.

Rows are weighed as they are made, by what is shown of them: each may be as long as a document. As many are
read at once as are some bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final

from indexer.scan.aggregate.columns import EntryReader
from indexer.scan.gather.blocks import next_block
from indexer.scan.gather.gather import examine, gather
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import SliceAnswers, Target
from indexer.scan.gather.service import UNREADABLE
from indexer.scan.gather.story import add_answers
from indexer.scan.local.entry_bytes import bytes_of
from indexer.scan.local.reader import INLINE_ROWS
from indexer.scan.local.tasks import Pace
from indexer.scan.nearest.search import nearest
from indexer.scan.peer.messages import Entry, OutOfTimeError
from keytide.collation import encode_part, to_json_value
from keytide.definition.binding import Binding, Needs
from keytide.definition.expression import DistanceTo, Node, walk
from keytide.definition.index import IndexDefinition
from keytide.definition.spatial.meaning import geometry_literal
from keytide.errors import CallerError
from keytide.geometry import CELL_BYTES
from keytide.query.parse.expressions import AggregateCall
from keytide.query.plan.plan import Plan

DISTANCE_ROWS: Final = 20
"""A distance from a point takes as long as so many rows; one from a shape as its positions make it."""
SORT_BLOCK: Final = 2_000
"""Entries that are read at once to be sorted, over all slices, or `scan.stream_block_bytes` of them. They are
merged on the event loop: a millisecond."""
FIRST_BLOCK: Final = 256
"""Entries that are read at first: how large they are is seen then."""
_VALUE: Final = 8
"""Bytes that any value counts for, beside those of its text."""

PlacedRow = tuple[bytes, bytes, list[Any], int]
"""A row with its place: what it is ordered by, its entry key, its values; and its bytes."""


def _by_id(one: PlacedRow) -> tuple[bytes, bytes]:
    """A row of a spatial index has its place by its document: its entry is another one by what is read."""
    return one[0], one[1][CELL_BYTES:]


def _weight(node: Node) -> int:
    """Of what is worked out for a row."""
    if not isinstance(node, DistanceTo):
        return 1
    return DISTANCE_ROWS if geometry_literal(node.place).is_point else INLINE_ROWS


class TooManyRowsError(CallerError):
    """More rows are to be sorted than a node holds, or larger ones."""

    problem_type = "too-many-rows"
    status = 422


@dataclass(slots=True)
class Sorted(SliceAnswers):
    """The rows that were read to be sorted.

    Attributes:
        rows: at the end, those of the answer in their order.
    """

    rows: list[list[Any]] = field(default_factory=list)


class OutputMaker:
    """Makes the rows of one plan.

    Args:
        plan: not of groups.

    Attributes:
        weight: how many rows without distances a row takes as long as.
    """

    def __init__(self, plan: Plan) -> None:
        definition: IndexDefinition = plan.index.definition
        binding = Binding(definition)
        outputs = [one.value for one in plan.outputs if not isinstance(one.value, AggregateCall)]
        order = (
            [] if plan.ordered else [one for one in plan.order_by if not isinstance(one.value, AggregateCall)]
        )
        self._outputs = [binding.value(one) for one in outputs]
        self._order = [(binding.value(one.value), one.descending) for one in order]  # type: ignore[arg-type]
        self.weight = max((_weight(node) for one in outputs for node in walk(one)), default=1)
        needs = Needs()
        for value in [*outputs, *(one.value for one in order)]:
            needs |= binding.needs(value)  # type: ignore[arg-type]
        self._reader = EntryReader(definition, needs)

    def rows(self, entries: Sequence[Entry]) -> list[list[Any]]:
        """The values of each entry's row; what is MISSING is null."""
        read = self._reader.read([key for key, _ in entries], [value for _, value in entries])
        outputs = self._outputs
        return [[to_json_value(value(*one)) for value in outputs] for one in read]

    def placed(self, entries: Sequence[Entry], pace: Pace) -> list[PlacedRow]:
        """The rows with what they are sorted by.

        Raises:
            NotIndexableError: a value that has no place in the order.
        """
        outputs, order = self._outputs, self._order
        made: list[PlacedRow] = []
        for part in pace.parts(entries):
            read = self._reader.read([key for key, _ in part], [value for _, value in part])
            for one, (key, _) in zip(read, part, strict=True):
                place = b"".join(encode_part(value(*one), descending) for value, descending in order)
                row = [to_json_value(value(*one)) for value in outputs]
                made.append((place, key, row, len(place) + len(key) + size_of(row)))
        return made


def size_of(value: Any) -> int:
    """Bytes of a value of JSON, about: those of all text in it, and some for each value."""
    size, left = 0, [value]
    while left:
        one = left.pop()
        size += _VALUE
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            size += sum(map(len, one))
            left += one.values()
    return size


async def sorted_rows(target: Target, shared: Reads, plan: Plan, maker: OutputMaker) -> Sorted:
    """Read all entries of a target, and sort their rows: the `work` of `Reads.read`.

    Raises:
        TooManyRowsError: more than `scan.max_sort_rows`, or `scan.max_query_bytes` of them, are to be held.
        OutOfTimeError: it takes longer than the target's time.
        SnapshotMissingError, RetryableError: as `service.page_of`.
    """
    most, most_bytes = shared.settings.max_sort_rows, shared.settings.max_query_bytes
    select = plan.select
    wanted = None if select.limit is None else select.limit + select.offset
    if plan.nearest is not None and wanted is not None and wanted <= most:
        further = len(plan.order_by) > 1
        around = await nearest(target, shared, plan.nearest, wanted, plan.reach, ties=further)
        entries = [entry for _, entry in around.entries]
        placed = await shared.local.threads.run(maker.placed, entries, shared.local.threads.pace)
        placed = sorted(placed, key=_by_id) if further else placed
        found = Sorted(rows=[row for _, _, row, _ in placed[select.offset : wanted]])
        add_answers(found, around)
        return found
    bound = most if wanted is None or wanted > most else wanted
    result = Sorted()
    held: list[PlacedRow] = []
    after, more, size, block = b"", bool(target.nodes), 0, FIRST_BLOCK
    threads, at_once = shared.local.threads, shared.settings.stream_block_bytes
    while more:
        if monotonic() > target.until:
            raise OutOfTimeError(
                f"{sum(result.read.values())} entries were read in {target.timeout_s:.1f} s to be sorted, "
                "and there are more",
                next_step="allow more with timeout_ms, or ask in the order of an index",
            )
        now = replace(target, timeout_s=target.left_s, in_use=target.in_use or bool(after))
        try:
            page = await gather(now, shared.nodes, after, False, block, 0, at_once)
            await shared.holds.keep_for_more(now, page)
            placed = await threads.run(maker.placed, page.entries, threads.pace)
        except UNREADABLE:
            await examine(now, shared.nodes, after, False, block)
            raise
        add_answers(result, page)
        read = bytes_of(page.entries)
        block = next_block(block, len(page.entries), read, SORT_BLOCK, at_once)
        held += placed
        size += sum(row[3] for row in placed)
        if wanted is not None and wanted <= most:
            if len(held) > 2 * bound + SORT_BLOCK or size > most_bytes:
                held = await threads.run(heapq.nsmallest, bound, held)
                size = sum(row[3] for row in held)
        elif len(held) > bound:
            raise TooManyRowsError(
                f"more than {most} rows are to be sorted (scan.max_sort_rows)",
                next_step="add a LIMIT, narrow the condition, or ask in the order of an index; EXPLAIN tells "
                "what is sorted",
            )
        if size > most_bytes:
            raise TooManyRowsError(
                f"the rows that are to be sorted take more than {most_bytes:,} bytes",
                next_step="add a LIMIT or a smaller one, select less of each row, narrow the condition, or "
                "raise scan.max_query_bytes",
            )
        after, more = page.reached, page.more
    held = await threads.run(sorted, held)
    result.rows = [row for _, _, row, _ in held[select.offset : wanted]]
    return result
