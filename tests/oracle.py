"""The independent oracle of the end-to-end tests: reads the source topic up to a scan's timestamp and says,
in plain Python, what an index must hold there. It shares no code with Keytide: kafka-python, `json`, and an
order of values written another way.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any

from kafka import KafkaConsumer, TopicPartition

MISSING = object()
"""In place of a key part that the document does not have."""

Keys = Callable[[dict[str, Any], str], Iterable[list[Any]]]
"""(document, id) -> the keys of its entries; none when the index leaves it out."""
Row = tuple[list[Any], str]


class Source:
    """A topic as its records say: reads on when asked for more, and keeps what it has read.

    Args:
        bootstrap, topic: where.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        self._places: list[TopicPartition] = []
        self._records: dict[int, list[tuple[int, int, bytes, bytes | None]]] = {}
        self._told: Mapping[int, int] = {}
        self._newest: dict[bytes, tuple[tuple[int, int, int], bytes | None]] = {}
        self._apart = True

    def close(self) -> None:
        self._consumer.close()

    def newest(self, offsets: Mapping[int, int]) -> dict[bytes, bytes | None]:
        """The newest value of every id below `offsets` (next offset of each partition). What was told is kept
        and gone on from: readers ask again and again, ever further on."""
        self._read(offsets)
        further = all(offsets.get(partition, 0) >= end for partition, end in self._told.items())
        if not (further and self._apart and self._go_on(offsets)):
            self._told, self._newest = {}, {}
            self._apart = self._go_on(offsets)
        return {key: value for key, (_, value) in self._newest.items()}

    def _go_on(self, offsets: Mapping[int, int]) -> bool:
        """Take what has come since; whether no id has records in two partitions, whose order would matter."""
        newest, apart = self._newest, True
        for partition, records in sorted(self._records.items()):
            begin = bisect_left(records, self._told.get(partition, 0), key=itemgetter(0))
            for offset, time, key, value in islice(records, begin, None):
                if offset >= offsets.get(partition, 0):
                    break
                version = (time, partition, offset)
                known = newest.get(key)
                own = known is None or known[0][1] == partition
                if known is None or own or known[0] <= version:
                    newest[key] = (version, value)
                apart = apart and own
        self._told = dict(offsets)
        return apart

    def _read(self, offsets: Mapping[int, int]) -> None:
        """Read on until every partition is read up to `offsets`."""
        wanted = {TopicPartition(self._topic, p): end for p, end in offsets.items() if end > 0}
        new = [place for place in wanted if place not in self._places]
        if new:
            at = {place: self._consumer.position(place) for place in self._places}
            self._places += new
            self._consumer.assign(self._places)
            for place, position in at.items():
                self._consumer.seek(place, position)
        while any(self._consumer.position(place) < end for place, end in wanted.items()):
            for place, records in self._consumer.poll(timeout_ms=500, max_records=10_000).items():
                kept = self._records.setdefault(place.partition, [])
                kept += [(r.offset, r.timestamp, r.key, r.value) for r in records if r.key is not None]


def rows_of(state: Mapping[bytes, bytes | None], keys: Keys, descending: Iterable[bool] = ()) -> list[Row]:
    """All rows of an index over the newest values, in its order."""
    rows: list[Row] = []
    for raw_id, value in state.items():
        if value is None or not 1 <= len(raw_id) <= 250:
            continue
        try:
            id_ = raw_id.decode()
            document = json.loads(value.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            rows += [(key, id_) for key in keys(document, id_)]
    directions = list(descending)
    rows.sort(key=lambda row: row[1].encode())
    for at in reversed(range(max((len(key) for key, _ in rows), default=0))):
        rows.sort(key=lambda row: sort_key(row[0][at]), reverse=at < len(directions) and directions[at])
    return rows


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def sort_key(value: Any) -> tuple[Any, ...]:
    """What Python sorts as missing < null < false < true < number < string < array < object. (It compares
    integers with floats as the numbers that they are, and strings by their code points.)"""
    if value is MISSING:
        return (0,)
    if value is None:
        return (1,)
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, list):
        return (5, [sort_key(part) for part in value])
    if isinstance(value, dict):
        names = sorted(value)
        return (6, len(value), names, [sort_key(value[name]) for name in names])
    return (4, value) if isinstance(value, str) else (3, value)


def compare(a: Any, b: Any) -> int:
    """-1, 0 or 1 by that order."""
    key_a, key_b = sort_key(a), sort_key(b)
    return (key_a > key_b) - (key_a < key_b)


def shown(rows: Iterable[Row]) -> list[tuple[list[Any], str]]:
    """Rows as a reader gets them: a missing part is None."""
    return [([None if part is MISSING else part for part in key], id_) for key, id_ in rows]


def difference(expected: list[Row], found: list[Row]) -> str:
    """In words, what differs; empty when both are the same rows in the same order."""
    want, have = shown(expected), list(found)
    if want == have:
        return ""
    texts_want, texts_have = {repr(row) for row in want}, {repr(row) for row in have}
    missing, extra = sorted(texts_want - texts_have), sorted(texts_have - texts_want)
    if not missing and not extra:
        return f"same rows, other order or number ({len(want)} expected, {len(have)} found)"
    return f"missing {len(missing)}: {missing[:3]}; extra {len(extra)}: {extra[:3]}"
