"""Blocks of many slices as one stream of blocks, with one block of every slice read ahead.

Theory of operation
===================
Every slice has a buffer. A round asks all nodes at once for the next block of each slice whose buffer has
run low, and goes on while the reader of the stream takes what was merged before. Then what lies at or before
the *frontier* (the nearest last key of any slice that has more) is final, and is merged. With keys spread
evenly over the slices, a round brings as much as was taken; when one slice has all the rows, the whole
allowance of a round is its own. Nothing is read while the reader does not come for more, so memory is bounded
by two rounds: about twice `round_bytes`, whatever the rows are like, and some for Python's objects.

The first round is small: it brings the first row soon, tells how large rows are, and is the sample that
types are inferred from.

In any order (`ordered=False`) blocks are passed on as they come, and nothing is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from indexer.scan.gather.gather import examine
from indexer.scan.gather.holds import SnapshotHold
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import SliceAnswers, Target, ask, requests_of
from indexer.scan.peer.messages import TIP, Entry
from indexer.scan.plan.selection import Selection
from indexer.scan.stream.block import TASK, BlockWanted, EntryBlock, decode_block, encode_wanted
from keytide.errors import invariant
from keytide.model.byte_columns import EntryColumns, ascending, joined_entries, order_of

FIRST_ROWS: Final = 256
"""Rows of each slice in the first round."""
ROUND_ROWS: Final = 65_536
"""Rows of a round, over all slices: enough that what is paid per round does not count."""
GROWTH: Final = 8
"""How much more rows a round has than the one before, at most: until it is known how large they are."""
LEAST_ROWS: Final = 64
"""Rows of a slice in a round, at least: one of less is not worth its request."""


@dataclass(slots=True)
class _BlockSource:
    """One slice: what it gave and was not taken yet, and behind which key it goes on."""

    slice: int
    after: bytes = b""
    entries: EntryColumns = field(default_factory=lambda: EntryColumns.of([]))
    more: bool = True

    @property
    def rows(self) -> int:
        """How many it has in its buffer."""
        return self.entries.rows

    @property
    def last(self) -> bytes:
        """The last key in its buffer."""
        return self.entries.keys.at(self.rows - 1)


class BlockReader:
    """Reads a selection at a held snapshot to its end, block by block, for one task. Close it in any case.

    Args:
        shared: of this node's endpoint.
        held: the snapshot; given back with the reader if it is its own.
        selection: what to read.
        timeout_s: longest wait for a node, per round.
        round_bytes: of keys and values that a round brings, about.
        include: whether included columns are wanted.

    Attributes:
        stamp: the snapshot; its timestamp is whole from the first round on.
    """

    def __init__(
        self,
        shared: Reads,
        held: SnapshotHold,
        selection: Selection,
        timeout_s: float,
        round_bytes: int,
        *,
        include: bool = True,
        reverse: bool = False,
        ordered: bool = True,
        limit: int | None = None,
        offset: int = 0,
    ) -> None:
        self.held = held
        self.stamp = held.stamp
        self._shared = shared
        self._selection = selection
        self._timeout_s = timeout_s
        self._round_bytes = round_bytes
        self._include = include
        self._reverse = reverse
        # The same key may come from several slices: of distinct ones, and of a tip that moves meanwhile.
        self._doubles = selection.distinct or held.stamp.number == TIP
        self._ordered = (ordered or self._doubles) and len(selection.slices) > 1
        self._left = limit
        self._skip = offset
        self._rows = FIRST_ROWS * max(1, len(selection.slices))
        self._row_bytes = 64.0
        self._sources = [_BlockSource(number) for number in selection.slices]
        self._ahead: asyncio.Task[None] | None = None
        self._last = b""

    async def begin(self) -> None:
        """Read the first round.

        Raises:
            SnapshotGoneError, KeytideError: as `HoldRegistry.read`.
        """
        await self._round(self._sources)

    def sample(self, rows: int) -> list[Entry]:
        """The first `rows` of every slice that are there, before they are taken."""
        return [
            entry
            for source in self._sources
            for entry in source.entries.part(0, min(rows, source.rows)).items()
        ]

    async def next(self) -> EntryBlock | None:
        """The next rows, at least one; None at the end. Its `reached` is the key that comes before them.

        Raises:
            SnapshotGoneError, KeytideError: as `HoldRegistry.read`.
            InvariantViolationError: the slices of one snapshot contradict each other.
        """
        while self._left != 0:
            await self._settle()
            starving = [source for source in self._sources if source.more and not source.rows]
            if starving:
                await self._round(starving)
                continue
            if not any(source.rows for source in self._sources):
                return None
            parts = self._take()
            self._read_ahead()
            block = await self._shared.local.threads.run(self._merged, parts)
            if block.entries.rows:
                return block
        return None

    async def examine(self, block: EntryBlock) -> None:
        """Have the slices look at what they gave, when a block that `next` has given cannot be read.

        Raises:
            SnapshotGoneError: a slice holds what nothing can have written.
        """

        async def work(target: Target) -> SliceAnswers:
            await examine(target, self._shared.nodes, block.reached, self._reverse, block.examined)
            return SliceAnswers()

        await self._shared.holds.read(self.held, self._selection, self._timeout_s, work)

    async def close(self) -> None:
        """Read no more, and give the snapshot back."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
            self._ahead = None
        if self.held.own:
            await self._shared.holds.give_back(self.held, self._timeout_s)

    # --- rounds -----------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait for what is being read ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead

    def _read_ahead(self) -> None:
        """Begin to read for the slices whose buffers have run low."""
        low = self._rows // (2 * max(1, len(self._sources)))
        hungry = [source for source in self._sources if source.more and source.rows <= low]
        if hungry and self._left != 0:
            self._ahead = asyncio.ensure_future(self._round(hungry))

    async def _round(self, hungry: Sequence[_BlockSource]) -> None:
        """Read the next block of each of these slices."""
        buffered = sum(source.rows for source in self._sources)
        room = min(self._rows, int(self._round_bytes / self._row_bytes))
        share = max(LEAST_ROWS, max(room - buffered, room // 8) // max(1, len(hungry)))
        if self._left is not None:
            share = min(share, self._left + self._skip + len(self._sources))
        by_slice = {source.slice: source for source in hungry}
        after = {number: source.after for number, source in by_slice.items()}
        wanted = encode_wanted(
            BlockWanted(self._round_bytes // max(1, len(by_slice)), self._include, columns=True)
        )
        some = replace(self._selection, slices=tuple(by_slice))

        async def work(target: Target) -> SliceAnswers:
            asked = SliceAnswers()
            requests = requests_of(
                target, target.nodes, after, reverse=self._reverse, limit=share, task=TASK, body=wanted
            )
            await ask(target, self._shared.nodes, requests, asked)
            return asked

        agreed = await self._shared.holds.read(self.held, some, self._timeout_s, work)
        self.stamp = agreed.stamp
        sampled = size = 0
        for number, source in by_slice.items():
            block = decode_block(agreed.gathered.replies[number].result, agreed.target.node_of(number))
            source.entries = joined_entries([source.entries, block.entries])
            source.more, source.after = block.more, block.reached
            sampled += block.entries.rows
            size += block.entries.size
        if sampled:
            self._row_bytes = max(16.0, size / sampled)
        self._rows = min(ROUND_ROWS, self._rows * GROWTH)

    # --- merging ----------------------------------------------------------------

    def _take(self) -> list[EntryColumns]:
        """What is final, out of the buffers."""
        open_ends = [source.last for source in self._sources if source.more and self._ordered]
        frontier = (max(open_ends) if self._reverse else min(open_ends)) if open_ends else None
        parts: list[EntryColumns] = []
        for source in self._sources:
            entries, cut = source.entries, source.rows
            if frontier is not None:
                cut = entries.keys.before(frontier, reverse=self._reverse, equal=True)
            if cut:
                parts.append(entries.part(0, cut))
                source.entries = entries.part(cut, entries.rows)
        return parts

    def _merged(self, parts: Sequence[EntryColumns]) -> EntryBlock:
        """The parts as one block, without what is to be left out. Any thread."""
        entries = joined_entries(parts)
        if self._doubles:
            entries = self._once(entries)
        elif self._ordered:
            if len(parts) > 1:
                rows, steps = order_of(entries.keys)
                in_order = steps is None
                entries = entries.take(rows[::-1] if self._reverse else rows)
            else:
                in_order = ascending(entries.keys, reverse=self._reverse)
            first = entries.keys.at(0)
            if self._last:
                in_order &= first < self._last if self._reverse else first > self._last
            invariant(in_order, "Untorn", "an entry came twice, or out of order, from one snapshot's slices")
        before, self._last, given = self._last, entries.keys.at(entries.rows - 1), entries.rows
        if self._skip:
            left_out = min(self._skip, entries.rows)
            self._skip -= left_out
            entries = entries.part(left_out, entries.rows)
        if self._left is not None:
            entries = entries.part(0, min(self._left, entries.rows))
            self._left -= entries.rows
        return EntryBlock(entries, reached=before, examined=given)

    def _once(self, entries: EntryColumns) -> EntryColumns:
        """The entries in order, of each key the first one."""
        rows = entries.items()
        if self._ordered:
            rows.sort(reverse=self._reverse)
        return EntryColumns.of(list(dict(reversed(rows)).items())[::-1])
