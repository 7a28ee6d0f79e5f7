"""The independent oracle of the end-to-end tests: reads the source topic up to a scan's timestamp and says,
in plain Python, what an index must hold there. It shares no code with Keytide: kafka-python, `json`, and an
order of values written another way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cmp_to_key
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

    def close(self) -> None:
        self._consumer.close()

    def newest(self, offsets: Mapping[int, int]) -> dict[bytes, bytes | None]:
        """The newest value of every id below `offsets` (next offset of each partition)."""
        self._read(offsets)
        newest: dict[bytes, tuple[tuple[int, int, int], bytes | None]] = {}
        for partition, records in sorted(self._records.items()):
            for offset, time, key, value in records:
                if offset >= offsets.get(partition, 0):
                    break
                version = (time, partition, offset)
                known = newest.get(key)
                if known is None or known[0] <= version or known[0][1] == partition:
                    newest[key] = (version, value)
        return {key: value for key, (_, value) in newest.items()}

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

    def order(a: Row, b: Row) -> int:
        for at, (x, y) in enumerate(zip(a[0], b[0], strict=True)):
            result = compare(x, y)
            if result:
                return -result if at < len(directions) and directions[at] else result
        return (a[1].encode() > b[1].encode()) - (a[1].encode() < b[1].encode())

    rows.sort(key=cmp_to_key(order))
    return rows


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def compare(a: Any, b: Any) -> int:
    """-1, 0 or 1 by the order missing < null < false < true < number < string < array < object."""
    rank_a, rank_b = _rank(a), _rank(b)
    if rank_a != rank_b:
        return -1 if rank_a < rank_b else 1
    if isinstance(a, list):
        for x, y in zip(a, b, strict=False):
            result = compare(x, y)
            if result:
                return result
        return (len(a) > len(b)) - (len(a) < len(b))
    if isinstance(a, dict):
        if len(a) != len(b):
            return -1 if len(a) < len(b) else 1
        names_a, names_b = sorted(a, key=_points), sorted(b, key=_points)
        if names_a != names_b:
            return -1 if [_points(n) for n in names_a] < [_points(n) for n in names_b] else 1
        return next((r for r in (compare(a[name], b[name]) for name in names_a) if r), 0)
    if isinstance(a, str):
        return (_points(a) > _points(b)) - (_points(a) < _points(b))
    if rank_a == 4:
        return (Fraction(a) > Fraction(b)) - (Fraction(a) < Fraction(b))
    return 0


def _points(text: str) -> list[int]:
    return [ord(character) for character in text]


def _rank(value: Any) -> int:
    if value is MISSING:
        return 0
    if value is None:
        return 1
    if value is False:
        return 2
    if value is True:
        return 3
    return {int: 4, float: 4, str: 5, list: 6, dict: 7}[type(value)]


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
