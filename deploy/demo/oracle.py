"""What each index must hold at a moment: an independent reader of the topic, written without Keytide's code.

It reads the topic with kafka-python, keeps the newest value of every flight below the scan's timestamp, and
computes the rows with plain Python. A check is a comparison of whole lists: every row, in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition

ExpectedRow = tuple[list[Any], str]
"""(key parts, document id)"""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One index in plain Python.

    Attributes:
        keys: a document's keys, none when the index leaves it out.
        order: sort key of a row that gives the index's order, or (of one that has none) some order.
        ordered: whether the index has an order.
    """

    keys: Callable[[dict[str, Any]], Iterable[list[Any]]]
    order: Callable[[ExpectedRow], Any]
    ordered: bool = True


class _Descending:
    """Sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(other.value == self.value)

    __hash__ = None  # type: ignore[assignment]


def _arrivals(flight: dict[str, Any]) -> Iterable[list[Any]]:
    if flight["status"] == "arrived":
        yield [flight["destination"], flight["arrival"]]


def _late(flight: dict[str, Any]) -> Iterable[list[Any]]:
    if flight.get("departure_delay", 0) >= 120:
        yield [flight["departure_delay"], flight["carrier"]]


def _by_airport(flight: dict[str, Any]) -> Iterable[list[Any]]:
    for airport in sorted(set(flight["airports"])):
        yield [airport, flight["status"]]


def _by_place(flight: dict[str, Any]) -> Iterable[list[Any]]:
    if flight["status"] == "arrived" and "place" in flight:
        yield [flight["place"]]


EXPECTED: dict[str, Expectation] = {
    "arrivals": Expectation(_arrivals, lambda row: (row[0][0], _Descending(row[0][1]), row[1])),
    "long_delays": Expectation(_late, lambda row: (_Descending(row[0][0]), row[0][1], row[1])),
    "by_airport": Expectation(_by_airport, lambda row: (row[0][0], row[0][1], row[1])),
    "by_place": Expectation(_by_place, lambda row: row[1], ordered=False),
}


def read_versions(
    bootstrap: str, topic: str, moments: list[Mapping[int, int]], tell: Callable[[int], None]
) -> list[dict[str, bytes]]:
    """The newest value of every flight at each of several moments, in one read of the topic.

    Args:
        moments: partition -> next offset (exclusive), each at or past the one before it.
    """
    states: list[dict[str, bytes]] = [{} for _ in moments]
    last = moments[-1]
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_bytes=64 * 1024 * 1024,
        max_partition_fetch_bytes=16 * 1024 * 1024,
    )
    places = {TopicPartition(topic, partition): offset for partition, offset in last.items() if offset > 0}
    consumer.assign(list(places))
    read = 0
    while any(consumer.position(place) < end for place, end in places.items()):
        for place, records in consumer.poll(timeout_ms=1_000, max_records=20_000).items():
            read += len(records)
            for record in records:
                key = record.key.decode()
                for state, moment in zip(states, moments, strict=True):
                    if record.offset < moment.get(place.partition, 0):
                        state[key] = record.value
        tell(read)
    consumer.close()
    return states


def expected_rows(index: str, state: Mapping[str, bytes]) -> list[ExpectedRow]:
    """All rows of an index, in its order."""
    expectation = EXPECTED[index]
    rows: list[ExpectedRow] = []
    for id_, value in state.items():
        if value is not None:
            rows += ((key, id_) for key in expectation.keys(json.loads(value)))
    rows.sort(key=expectation.order)
    return rows


def differences(index: str, state: Mapping[str, bytes], found: list[ExpectedRow]) -> list[str]:
    """In words, what differs (at most ten) between an index and the newest documents; empty when both are the
    same rows, in the same order where the index has one."""
    expected, expectation = expected_rows(index, state), EXPECTED[index]
    if not expectation.ordered:
        found = sorted(found, key=expectation.order)
    if expected == found:
        return []
    want, have = set(map(json.dumps, expected)), set(map(json.dumps, found))
    said = [f"missing {text}" for text in sorted(want - have)[:5]] + [
        f"extra {text}" for text in sorted(have - want)[:5]
    ]
    return said or ["the same rows in another order"]
