"""More slices by itself: when the leader carries out, for an index with auto_split, the statement that helps
a hot slice. Pure.

Theory of operation
===================
`coordinator.core.slice_loads` says which slices are hot, `coordinator.statements.advice` what helps. Where a
slice has been hot for long enough, by what is written to it or what it holds, its node is asked which values
are written there (`AskWritten`), and the statement that is advised then is carried out as if a user had given
it, if it parts the slice or makes more of them. No other statement is: copies, another partitioning and other
splits of the same number have a price that only people can weigh. Nor is one where one value has most of what
is written, or where nobody knows whether one has, for equal values are not parted.

It must not be done twice, run away, or go on where it does not help. So nothing is done while another layout
of the index is there, failed ones included (people look at those); while the keyspace is examined; while a
slice is rebuilt; for a while after the last time; when the index has as many slices as are made by
themselves. The number only grows: nothing is merged by itself. The last time is in the records of both
layouts, written in one transaction with the new layout, so the next leader knows of it, and a layout that is
cancelled is not begun anew at once. Where what the slice had is hot again in the new layout, with nearly as
large a share of the whole, parting it has not helped, and is not tried again.

How long a slice has been hot is counted by one leader: the next one begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.core.events import WrittenTold
from coordinator.core.instructions import AskWritten, Instruction, Note
from coordinator.core.slice_loads import STAYS, Hot, Measure, SliceLoads
from coordinator.core.source_status import SourceStatus
from coordinator.statements.advice import LEAST_SAMPLED, advice, most_written, partition_of
from coordinator.statements.partitions import repartitioned, splits_of
from coordinator.statements.replacing import alter
from keytide.catalog.auto_split import AutoSplit
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord, NodeRecord
from keytide.definition.statement import AlterIndex, SplitPartition, parse_statement
from keytide.errors import CallerError
from keytide.wire.index_lists import WrittenSlice

PARTED: Final[tuple[Measure, ...]] = ("writes", "entries")
"""What a slice may have too much of that is parted. (Copies share reads.)"""
HELPED: Final = 0.8
"""Parting a slice has helped where what it had is hot again with at most so much of its share before."""
ASKED: Final = 4
"""Slices of an index whose nodes are asked at a look."""


@dataclass(frozen=True, slots=True)
class AutoSplitLimits:
    """When an index gets more slices by itself.

    Attributes:
        look_ms: between two looks.
        after_ms: so long a slice has been hot.
        pause_ms: from one time to the next.
        slices: an index gets no more than these.
    """

    look_ms: int = 30_000
    after_ms: int = 300_000
    pause_ms: int = 3_600_000
    slices: int = 64


class AutoSplits:
    """The indexes with auto_split.

    Args:
        loads: which slices are hot.

    Attributes:
        waiting: index id -> what is done, or waited for, where it has hot slices, in words.
    """

    def __init__(self, builds: Builds, loads: SliceLoads, limits: AutoSplitLimits) -> None:
        self.waiting: dict[str, str] = {}
        self._builds = builds
        self._loads = loads
        self._limits = limits
        self._looked_at: int | None = None
        self._since: dict[tuple[str, int, Measure], int] = {}
        self._said: dict[tuple[str, int], str] = {}
        """(index id, slice) -> why it was not parted when its node had told."""

    def tick(self, now: int) -> list[Instruction]:
        """Look, when it is time (ms) to: which nodes are asked."""
        if self._looked_at is not None and now - self._looked_at < self._limits.look_ms:
            return []
        self._looked_at = now
        self.waiting, before, self._since = {}, self._since, {}
        out: list[Instruction] = []
        for index in self._builds.registry.dictionary.catalog.indexes():
            if not self._chosen(index) or index.keyspace in self._builds.registry.halted:
                continue  # (what was counted before a rollback counts no longer)
            for hot in self._hot(index):
                key = index.id, hot.slice, hot.measure
                self._since[key] = before.get(key, now)
            out += self._next(index, now)
        self._said = {key: text for key, text in self._said.items() if key[0] in self.waiting}
        return out

    def told(self, event: WrittenTold, source: SourceStatus | None) -> list[Instruction]:
        """A node was asked what is written to a slice: carry out what helps, if it is to be.

        Args:
            source: of the index's keyspace, as last seen.
        """
        index = self._builds.registry.dictionary.catalog.index(event.index)
        if index is None or not self._chosen(index) or self._in_the_way(index, event.now):
            return []
        hot = next((one for one in self._due(index, event.now) if one.slice == event.slice), None)
        if hot is None:
            return []
        found = what_parts(index, hot, event.written, self._limits.slices)
        if not isinstance(found, str):
            try:
                return self._carry_out(index, hot, found, source, event.now)
            except CallerError as error:
                found = error.message
        self._said[index.id, hot.slice] = f"slice {hot.slice}: {found}"
        self.waiting[index.id] = self._words(index, event.now)
        return []

    def _chosen(self, index: IndexRecord) -> bool:
        catalog = self._builds.registry.dictionary.catalog
        return index.definition.splits_itself and index.state == "READY" and catalog.bears_name(index)

    def _hot(self, index: IndexRecord) -> list[Hot]:
        """The slices that may be parted, the hottest first."""
        found = [one for one in self._loads.hot(index) if one.measure in PARTED]
        return sorted(found, key=lambda one: (-share_of_load(index, one), one.slice))

    def _due(self, index: IndexRecord, now: int) -> list[Hot]:
        """Those that have been hot for long enough, and get too much now, too (one is told of for some time
        after a burst); not by what was before a rollback."""
        rollbacks = self._builds.registry.dictionary.catalog.rollbacks(index.keyspace)
        least = now - self._limits.after_ms
        if rollbacks and rollbacks[-1].at > least:
            return []
        return [
            one
            for one in self._hot(index)
            if one.value > STAYS * one.others
            and self._since.get((index.id, one.slice, one.measure), now) <= least
        ]

    def _next(self, index: IndexRecord, now: int) -> list[Instruction]:
        """What is done for an index at a look."""
        if not self._hot(index):
            return []
        out: list[Instruction] = []
        if not self._in_the_way(index, now):
            for number in dict.fromkeys(one.slice for one in self._due(index, now)[:ASKED]):
                out += self._ask(index, number)
        self.waiting[index.id] = self._words(index, now)
        return out

    def _words(self, index: IndexRecord, now: int) -> str:
        if why := self._in_the_way(index, now):
            return why
        due = self._due(index, now)
        if not due:
            after = self._limits.after_ms // 1000
            return f"waits until a slice has been hot for {after} s (setting coordinator.auto_split_after_s)"
        said = [text for one in due if (text := self._said.get((index.id, one.slice)))]
        return "; ".join(dict.fromkeys(said)) or "its node is asked what is written to the slice"

    def _in_the_way(self, index: IndexRecord, now: int) -> str:
        """Why nothing is done for an index now, in words; "" when it may be."""
        registry, limits = self._builds.registry, self._limits
        if index.keyspace in registry.halted:
            return "waits until the history of its source is examined"
        others = [one for one in registry.dictionary.catalog.layouts(index.name) if one.id != index.id]
        if any(one.state == "FAILED" for one in others):
            return "waits until its new layout, which has FAILED, is replaced or dropped"
        if others:
            return "waits until it has one layout again"
        if registry.active(index) is not None or registry.rebuilds(index.id):
            return "waits until its slices are rebuilt"
        if index.slices >= limits.slices:
            return (
                f"does nothing: it has {index.slices} slices, and {limits.slices} are made by themselves "
                "(setting coordinator.auto_split_slices)"
            )
        if isinstance(index.auto_split, AutoSplit) and now - index.auto_split.at < limits.pause_ms:
            pause = limits.pause_ms // 1000
            return f"waits until {pause} s after the last time (setting coordinator.auto_split_pause_s)"
        return ""

    def _ask(self, index: IndexRecord, number: int) -> list[Instruction]:
        catalog = self._builds.registry.dictionary.catalog
        for name in index.placement[number]:
            heard, record = self._builds.nodes.by_id.get(name), catalog.records.get(f"node/{name}")
            if heard is not None and heard.live and isinstance(record, NodeRecord) and record.url:
                return [AskWritten(index.id, number, record.url, catalog.secret)]
        return []

    def _carry_out(
        self,
        index: IndexRecord,
        hot: Hot,
        statement: AlterIndex | SplitPartition,
        source: SourceStatus | None,
        now: int,
    ) -> list[Instruction]:
        """Raises as `alter`."""
        dictionary = self._builds.registry.dictionary
        text, new, _, out = alter(self._builds, statement, source, now)
        mark = AutoSplit(
            now, new.id, _heirs(index, new, hot, statement), hot.measure, share_of_load(index, hot)
        )
        dictionary.put(replace(index, auto_split=mark))
        dictionary.put(replace(dictionary.catalog.index(new.id) or new, auto_split=mark))
        self.waiting[index.id] = self._words(index, now)
        number = partition_of(index, hot.slice)
        did = f"partition {number} is split" if isinstance(statement, SplitPartition) else "more slices"
        after = self._limits.after_ms // 1000
        why = f"slice {hot.slice} of {index.name} has been hot for {after} s or longer ({hot.words})"
        return [*out, Note("info", "auto-split", index.name, f"{why}: {did} by auto_split; {text}")]


def share_of_load(index: IndexRecord, hot: Hot) -> float:
    """What a slice has of all that the index has, between 0 and 1."""
    whole = hot.value + hot.others * (index.slices - 1)
    return hot.value / whole if whole > 0 else 0.0


def what_parts(
    index: IndexRecord, hot: Hot, written: WrittenSlice | None, most: int
) -> AlterIndex | SplitPartition | str:
    """The statement that parts a hot slice, or makes more slices; in words, why there is none.

    Args:
        written: what its node has told; None when it told nothing.
        most: slices that the index may have.
    """
    if written is None:
        return "its node does not say what is written to it"
    if not written.known:
        return "entries do not say by which value they came here, so one may have most of the load"
    if most_written(written) is not None:
        found = advice(index, hot, written, most)
        return (
            f"one value has most of what is written to it, so what helps is for you to decide: {found.text}"
        )
    if len(written.before) + len(written.listed) < LEAST_SAMPLED:
        return "too little is written to it to say whether one value has most of the load"
    last = index.auto_split
    if (
        isinstance(last, AutoSplit)
        and (last.layout, last.measure) == (index.id, hot.measure)
        and (not last.slices or hot.slice in last.slices)
        and share_of_load(index, hot) > HELPED * last.share
    ):
        return (
            f"it has {share_of_load(index, hot):.0%} of the load, and had {last.share:.0%} before it was "
            "parted the last time: that does not help"
        )
    found = advice(index, hot, written, most)
    statement = parse_statement(found.statement) if found.statement is not None else None
    match statement:
        case SplitPartition():
            if (made := repartitioned(index, statement).slices) > most:
                return f"to split it would make {made} slices, and {most} are made by themselves"
            return statement
        case AlterIndex(slices=int(slices)) if slices > index.slices:
            return statement
        case AlterIndex(partitions=int(partitions)) if partitions > index.definition.partitions:
            return statement
    return f"what helps is for you to decide: {found.text}"


def _heirs(
    old: IndexRecord, new: IndexRecord, hot: Hot, statement: AlterIndex | SplitPartition
) -> tuple[int, ...]:
    """The slices of a new layout that have what a slice of the old one had; none when any may."""
    if isinstance(statement, AlterIndex):
        return ()
    splits, number = splits_of(old), partition_of(old, hot.slice)
    low = splits[number - 1] if number else b""
    high = splits[number] if number < len(splits) else None
    return tuple(Partitioning.of(new.definition).slices_of_values(low, high))
