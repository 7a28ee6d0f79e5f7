"""Which slices get much more than the others of their index. Pure.

Theory of operation
===================
Nodes tell of every copy how many entries were written to it and how often scans have taken hold of it since
it was opened; two looks at that, some time apart, give a rate. Every copy of a slice has the same written to
it, and each its own reads. A rate counts where the copy was LIVE at both looks: one that catches up writes
as fast as it can.

A slice is *over* when its writes, its reads or its entries are more than 3 times the mean of the others of
its index, and above a floor: below that nothing is gained by doing anything. (Of the others: with itself in
the mean, no slice of two or three could ever be.) It is told of when it has been over at four looks in a row,
and no longer when it was not at four looks in a row; there the bar is lower, two times and half the floor, so
that one that lies near the limit stays what it is. Where a slice of the index cannot be judged, for a node
that holds it is silent or has just begun, nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from coordinator.core.instructions import Instruction, Note
from coordinator.core.nodes import HeardNodes
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.wire.messages import SliceStatus

Measure = Literal["writes", "reads", "entries"]
"""What a slice may have more of than the others: writes/s, reads/s, entries that it holds."""
MEASURES: Final[tuple[Measure, ...]] = get_args(Measure)
LOOKS: Final = 4
BEGINS: Final = 3.0
"""So many times the mean of the others."""
STAYS: Final = 2.0


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """When a slice is told of.

    Attributes:
        look_ms: between two looks.
        rate: writes/s, or reads/s, below which none is.
        entries: below which none is.
    """

    look_ms: int = 30_000
    rate: float = 100.0
    entries: int = 1_000_000

    def floor(self, measure: Measure) -> float:
        return self.entries if measure == "entries" else self.rate


class SliceLoad(NamedTuple):
    """Of one slice, at the last look; None where it cannot be told."""

    writes: float | None
    reads: float | None
    entries: int | None


_UNKNOWN: Final = SliceLoad(None, None, None)


class Hot(NamedTuple):
    """A slice that gets much more than the others, or holds much more.

    Attributes:
        value: of the slice: per second, or entries.
        others: the mean of the others.
    """

    slice: int
    measure: Measure
    value: float
    others: float

    @property
    def words(self) -> str:
        """What there is to say of it."""
        others = f"{self.others:,.0f}"
        match self.measure:
            case "writes":
                return f"{self.value:,.0f} entries/s are written to it, {others} to others of its index"
            case "reads":
                return f"scans read it {self.value:,.0f} times/s, others of its index {others}"
            case "entries":
                return f"it holds {self.value:,.0f} entries, others of its index {others}"


class _Seen(NamedTuple):
    """What was told of a copy at a look. One that was opened anew since counts from 0."""

    copy: str
    started_at: int
    at: int
    writes: int
    reads: int


class SliceLoads:
    """The slices of all READY indexes.

    Args:
        nodes: what they say.

    Attributes:
        loads: by index id, of each slice.
    """

    def __init__(self, nodes: HeardNodes, limits: LoadLimits) -> None:
        self.loads: dict[str, list[SliceLoad]] = {}
        self._nodes = nodes
        self._limits = limits
        self._looked_at: int | None = None
        self._seen: dict[tuple[str, str, int], _Seen] = {}
        self._streaks: dict[tuple[str, int, Measure], int] = {}
        self._hot: dict[tuple[str, Measure], set[int]] = {}

    def of(self, index: IndexRecord) -> list[SliceLoad]:
        """The slices of an index as it is now: one that was built anew since may have others."""
        known = self.loads.get(index.id, [])
        return known if len(known) == len(index.placement) else [_UNKNOWN] * len(index.placement)

    def hot(self, index: IndexRecord) -> list[Hot]:
        """The slices of an index that are told of, with what was last seen."""
        loads = self.loads.get(index.id, [])
        found: list[Hot] = []
        if len(loads) != len(index.placement):
            return found
        for measure in MEASURES:
            values = [getattr(one, measure) or 0 for one in loads]
            told = self._hot.get((index.id, measure), set())
            for number in sorted(told):
                found.append(Hot(number, measure, values[number], mean_of_others(values, number)))
        return sorted(found, key=lambda one: one.slice)

    def tick(self, catalog: Catalog, now: int) -> list[Instruction]:
        """Look, when it is time (ms) to; events of slices that are told of since, or no longer."""
        if self._looked_at is not None and now - self._looked_at < self._limits.look_ms:
            return []
        self._looked_at = now
        before, self._seen = self._seen, {}
        ready = [one for one in catalog.indexes() if one.state == "READY" and not one.replaced_by]
        self.loads = {one.id: self._look(one, before) for one in ready}
        known = {one.id: one.slices for one in ready}
        self._streaks = {key: n for key, n in self._streaks.items() if key[1] < known.get(key[0], 0)}
        self._hot = {key: slices for key, slices in self._hot.items() if key[0] in known}
        return [note for index in ready for note in self._judge(index)]

    def _look(self, index: IndexRecord, before: dict[tuple[str, str, int], _Seen]) -> list[SliceLoad]:
        loads: list[SliceLoad] = []
        for number, names in enumerate(index.placement):
            writes: list[float] = []
            reads: list[float] = []
            entries: list[int] = []
            for name in names:
                status = self._status(index, number, name)
                if status is None:
                    continue
                entries.append(status.entries)
                heard = self._nodes.by_id[name]
                key = name, index.id, number
                seen = _Seen(
                    status.copy, heard.heartbeat.started_at, heard.heard_at, status.writes, status.reads
                )
                last = before.get(key)
                if status.writes >= 0:
                    self._seen[key] = seen
                if last is not None and (rates := _rates(last, seen)) is not None:
                    writes.append(rates[0])
                    reads.append(rates[1])
            whole = len(reads) == len(names)
            loads.append(
                SliceLoad(
                    max(writes, default=None), sum(reads) if whole else None, max(entries, default=None)
                )
            )
        return loads

    def _status(self, index: IndexRecord, number: int, name: str) -> SliceStatus | None:
        """What a node says of a copy that counts; None unless it is LIVE."""
        node = self._nodes.by_id.get(name)
        status = node.slice(index.id, number) if node is not None and node.live else None
        if status is None or status.state != "LIVE" or status.copy != index.copy_of(number, name):
            return None
        return status

    def _judge(self, index: IndexRecord) -> list[Instruction]:
        notes: list[Instruction] = []
        for measure in MEASURES:
            told = self._hot.setdefault((index.id, measure), set())
            known = [getattr(one, measure) for one in self.loads[index.id]]
            told &= set(range(len(known)))
            values: list[float] = [one for one in known if one is not None]
            if len(values) < len(known) or not values:
                continue
            over = over_others(values, self._limits.floor(measure), told)
            for number in range(len(values)):
                key = (index.id, number, measure)
                self._streaks[key] = (
                    self._streaks.get(key, 0) + 1 if (number in over) != (number in told) else 0
                )
                if self._streaks[key] < LOOKS:
                    continue
                self._streaks[key] = 0
                told ^= {number}
                hot = Hot(number, measure, values[number], mean_of_others(values, number))
                what = f"slice {number} of {index.name}"
                if number in told:
                    notes.append(Note("warning", "slice-hot", index.name, f"{what} is hot: {hot.words}"))
                else:
                    text = f"{what} is no longer hot: {hot.words}"
                    notes.append(Note("info", "slice-not-hot", index.name, text))
        return notes


def over_others(values: Sequence[float], floor: float, told: Collection[int]) -> set[int]:
    """Which of some slices have much more than the others.

    Args:
        values: of each slice.
        floor: below it none has.
        told: those that are told of: they have as long as they are above a lower bar.
    """
    return {
        number
        for number, value in enumerate(values)
        if len(values) > 1
        and value > (floor / 2 if number in told else floor)
        and value > (STAYS if number in told else BEGINS) * mean_of_others(values, number)
    }


def mean_of_others(values: Sequence[float], number: int) -> float:
    """Of all but one; 0 when there are no others."""
    return (sum(values) - values[number]) / (len(values) - 1) if len(values) > 1 else 0.0


def _rates(last: _Seen, seen: _Seen) -> tuple[float, float] | None:
    """(writes/s, reads/s) from one look to the next; None when it is not the same copy, opened once, or
    nothing was heard since."""
    same = (last.copy, last.started_at) == (seen.copy, seen.started_at)
    writes, reads, ms = seen.writes - last.writes, seen.reads - last.reads, seen.at - last.at
    if not same or min(writes, reads) < 0 or ms <= 0:
        return None
    return writes * 1000 / ms, reads * 1000 / ms
