"""What the source says: every record once, kept as what each kind of index makes of it, and compared with
answers at their timestamps."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from tests.chaos.shapes import Entry, Shape, entries_of, skipped_of
from tests.chaos.truncating import Cut
from tests.oracle import MISSING, compare

WINDOW_S = 180.0
"""For how long records are kept one by one: an answer with an older timestamp cannot be compared."""
Offsets = Mapping[int, int]
Places = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Row:
    """One row, as expected or as answered; `text` is the key and the included columns in full."""

    key: list[Any]
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What a scan asked for.

    Attributes:
        request: its members in the request.
        keeps: whether an entry with this first key part is selected.
        limit: rows at most.
        distance: of the first key part, where the nearest are asked for.
    """

    request: dict[str, Any] = field(default_factory=dict)
    keeps: Callable[[Any], bool] | None = None
    reverse: bool = False
    limit: int | None = None
    distance: Callable[[Any], float] | None = None


@dataclass(frozen=True, slots=True)
class _Version:
    offset: int
    time: int
    seen: float
    id: str
    rows: dict[str, list[Row]]
    skipped: frozenset[str]


Lines = set[tuple[int, int]]
"""Of a skip ledger: (partition, offset)."""


class TooOldError(Exception):
    """The timestamp lies before what is still kept record by record, or on a branch of history that was
    lost."""


def row_text(key: list[Any], include: Mapping[str, Any]) -> str:
    """Everything of a row but its id, so that equal texts are equal rows."""
    parts = ["missing" if part is MISSING else repr(part) for part in key]
    return f"[{', '.join(parts)}] {dict(sorted(include.items()))}"


class Truth:
    """One source topic. Safe to use from several threads.

    Args:
        bootstrap, topic: where.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._consumer = self._connect()
        self._losing = threading.Event()
        self._lock = threading.Lock()
        self._places: list[TopicPartition] = []
        self._below: dict[int, dict[str, _Version]] = {}
        self._folded: dict[int, int] = {}
        self._tail: dict[int, list[_Version]] = {}
        self._partings: list[tuple[int, int, int]] = []
        self._skipped: dict[str, Lines] = {}
        self.records = 0

    def close(self) -> None:
        with self._lock:
            self._consumer.close()

    def _connect(self) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )

    @contextmanager
    def cutting(self, partition: int, lost: Callable[[], Cut]) -> Iterator[Cut]:
        """The source loses its end in a partition.

        Args:
            lost: makes it lose it; the broker stands still.

        The block brings the broker back: what is written from then on has a newer leader epoch, and is read
        when the block is over.
        """
        self._losing.set()
        with self._lock:
            self._losing.clear()
            cut = lost()
            tail = self._tail.setdefault(partition, [])
            if self._folded.get(partition, 0) > cut.end:
                raise ValueError(f"what {self.topic}[{partition}] has lost is folded already")
            self._partings.append((partition, cut.end, cut.epoch))
            del tail[bisect_left(tail, cut.end, key=lambda one: one.offset) :]
            for lines in self._skipped.values():
                lines -= {(at, offset) for at, offset in lines if at == partition and offset >= cut.end}
            at = {place: self._consumer.position(place) for place in self._places}
            place = TopicPartition(self.topic, partition)
            if place in at:
                at[place] = min(at[place], cut.end)
            yield cut
            self._consumer.close(timeout_ms=1_000)
            self._consumer = self._connect()
            self._consumer.assign(self._places)
            for place, position in at.items():
                self._consumer.seek(place, position)

    def rows(self, shape: Shape, places: Places) -> list[Row]:
        """All rows of an index of this kind at a timestamp, in no order.

        Args:
            places: (next offset, leader epoch) of each partition.

        Raises:
            TooOldError: the timestamp is too far back.
        """
        offsets = {partition: offset for partition, (offset, _) in places.items()}
        with self._lock:
            for partition, end, epoch in self._partings:
                if places.get(partition, (0, 0))[0] > end and places[partition][1] <= epoch:
                    raise TooOldError(f"{self.topic}[{partition}] at {places[partition]}, which was lost")
            self._read(offsets)
            newest = self._newest(offsets)
        return [row for _, version in newest for row in version.rows.get(shape.name, ())]

    def ledger(self, shape: Shape) -> tuple[Lines, Lines]:
        """The lines that the ledger of an index of this kind must have at the end of the source for what is
        no geometry, those of the newest versions; and those that it may have, of all that there were."""
        with self._lock:
            places = [
                TopicPartition(self.topic, p) for p in self._consumer.partitions_for_topic(self.topic) or ()
            ]
            ends = {place.partition: end for place, end in self._consumer.end_offsets(places).items()}
            self._read(ends)
            newest = self._newest(ends)
            may = set(self._skipped.get(shape.name, ()))
        return {(p, version.offset) for p, version in newest if shape.name in version.skipped}, may

    def _newest(self, offsets: Offsets) -> list[tuple[int, _Version]]:
        """(partition, version) of each document.

        Raises:
            TooOldError: they lie too far back.
        """
        newest: dict[str, tuple[tuple[int, int, int], _Version]] = {}
        for partition, tail in self._tail.items():
            end = offsets.get(partition, 0)
            if end < self._folded.get(partition, 0):
                raise TooOldError(f"{self.topic}[{partition}] at {end}")
            own = dict(self._below.get(partition, {}))
            for version in tail[: bisect_left(tail, end, key=lambda one: one.offset)]:
                own[version.id] = version
            for id_, version in own.items():
                place = (version.time, partition, version.offset)
                if id_ not in newest or newest[id_][0] < place:
                    newest[id_] = (place, version)
        return [(place[1], version) for place, version in newest.values()]

    def _read(self, offsets: Offsets) -> None:
        wanted = {TopicPartition(self.topic, p): end for p, end in offsets.items() if end > 0}
        new = [place for place in wanted if place not in self._places]
        if new:
            at = {place: self._consumer.position(place) for place in self._places}
            self._places += new
            self._consumer.assign(self._places)
            for place, position in at.items():
                self._consumer.seek(place, position)
        while any(self._consumer.position(place) < end for place, end in wanted.items()):
            if self._losing.is_set():
                raise TooOldError(f"{self.topic} is losing records")
            for place, records in self._consumer.poll(timeout_ms=500, max_records=5_000).items():
                tail = self._tail.setdefault(place.partition, [])
                now = time.monotonic()
                for record in records:
                    self.records += 1
                    if record.key is None:
                        continue
                    tail.append(version := _version(record, now))
                    for name in version.skipped:
                        self._skipped.setdefault(name, set()).add((place.partition, version.offset))
        self._fold()

    def _fold(self) -> None:
        """Keep of old records only the newest of each document."""
        before = time.monotonic() - WINDOW_S
        for partition, tail in self._tail.items():
            if len(tail) < 2_000 or tail[len(tail) // 2].seen > before:
                continue
            below = self._below.setdefault(partition, {})
            cut = len(tail) // 2
            for version in tail[:cut]:
                below[version.id] = version
            self._folded[partition] = tail[cut].offset
            del tail[:cut]


def _version(record: Any, now: float) -> _Version:
    id_ = record.key.decode(errors="surrogateescape")
    found = entries_of(record.key, record.value)
    rows = {name: [_row(entry, id_) for entry in entries] for name, entries in found.items()}
    skipped = skipped_of(record.key, record.value)
    return _Version(record.offset, record.timestamp, now, id_, rows, skipped)


def _row(entry: Entry, id_: str) -> Row:
    return Row(entry[0], id_, row_text(*entry))


def order(a: Row, b: Row, shape: Shape, reverse: bool) -> int:
    """-1, 0 or 1 as `a` stands before, at or behind `b` in an answer."""
    result = 0
    for at, (x, y) in enumerate(zip(a.key, b.key, strict=True)):
        result = compare(x, y)
        if result:
            result = -result if at < len(shape.descending) and shape.descending[at] else result
            break
    result = result or (a.id.encode() > b.id.encode()) - (a.id.encode() < b.id.encode())
    return -result if reverse else result


def difference(
    expected: Sequence[Row], found: Sequence[Row], shape: Shape, selection: Selection
) -> list[str]:
    """What is wrong with an answer, a line each; nothing when it is right in every row and in its order."""
    if selection.keeps is not None:
        expected = [row for row in expected if selection.keeps(row.key[0])]
    if selection.distance is not None:
        return _unlike_nearest(expected, found, selection.distance, selection.limit)
    want = {(row.id, row.text) for row in expected}
    have = [(row.id, row.text) for row in found]
    wrong = [f"extra: {row}" for row in sorted(set(have) - want)]
    if len(set(have)) != len(have):
        wrong.append(f"{len(have) - len(set(have))} rows come twice")
    for a, b in pairwise(found) if shape.ordered else ():
        if order(a, b, shape, selection.reverse) >= 0:
            wrong.append(f"out of order: {(a.id, a.text)} before {(b.id, b.text)}")
            break
    limit = len(expected) if selection.limit is None else min(selection.limit, len(expected))
    if len(found) != limit:
        wrong.append(f"{len(found)} rows, {limit} expected")
    held = set(have)
    for row in expected:
        beyond = selection.limit is not None and len(found) > 0
        if shape.ordered:
            beyond = beyond and order(row, found[-1], shape, selection.reverse) > 0
        if (row.id, row.text) not in held and not beyond:
            wrong.append(f"missing: {(row.id, row.text)}")
    return wrong


def _unlike_nearest(
    expected: Sequence[Row], found: Sequence[Row], distance: Callable[[Any], float], limit: int | None
) -> list[str]:
    """The same of the nearest, which come nearest first; of those that are as far away, any."""
    have = {(row.id, row.text) for row in found}
    wrong = [f"extra: {row}" for row in sorted(have - {(row.id, row.text) for row in expected})]
    if len(have) != len(found):
        wrong.append(f"{len(found) - len(have)} rows come twice")
    away = sorted(distance(row.key[0]) for row in expected)[:limit]
    shown = [distance(row.key[0]) for row in found]
    if len(away) != len(shown):
        wrong.append(f"{len(shown)} rows, {len(away)} expected")
    elif not all(
        math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-2) for one, two in zip(away, shown, strict=True)
    ):
        wrong.append(f"distances {shown}, expected {away}")
    return wrong


def ledger_difference(must: Lines, may: Lines, found: Lines) -> list[str]:
    """What is wrong with the lines of a ledger, a line each."""
    missing = [f"not in the ledger: offset {offset} of partition {p}" for p, offset in sorted(must - found)]
    extra = [
        f"in the ledger without reason: offset {offset} of partition {p}" for p, offset in sorted(found - may)
    ]
    return missing + extra


def story(bootstrap: str, topic: str, id_: str, limit: int = 40) -> list[str]:
    """Everything that the source says of one document, read anew: its last versions, a line each."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level="read_committed"
    )
    try:
        places = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
        ends = consumer.end_offsets(places)
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        lines: list[str] = []
        while any(consumer.position(place) < ends[place] for place in places):
            for place, records in consumer.poll(timeout_ms=500, max_records=10_000).items():
                for record in records:
                    if record.key is not None and record.key.decode(errors="surrogateescape") == id_:
                        value = "deleted" if record.value is None else repr(record.value[:300])
                        lines.append(f"{place.partition}[{record.offset}] time {record.timestamp}: {value}")
        return lines[-limit:]
    finally:
        consumer.close()
