"""Questions of places, as users would write them, and in plain Python what their answers must be."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deploy.demo.spheroid import metres_between
from keytide.client import Client

NewestValues = Mapping[str, bytes]
"""The newest value of every document."""

BOSTON: Final = (-71.0589, 42.3601)
WITHIN_M: Final = 500_000
DENVER: Final = (-104.9903, 39.7392)
NEAREST: Final = 5
_TOLERANCE_M: Final = 0.01
AIRPORTS_INDEX: Final = "airports_by_place"
AIRPORTS_STATEMENT: Final = f"""CREATE INDEX {AIRPORTS_INDEX} ON airports USING spatial (POINT(lon, lat))
    INCLUDE (name) WITH (slices=2)"""


@dataclass(frozen=True, slots=True)
class SpatialQuestion:
    """A SELECT.

    Attributes:
        columns: what they are called in the demo's table.
        expected: the documents of the keyspace -> the rows.
    """

    keyspace: str
    title: str
    sql: str
    columns: tuple[str, ...]
    expected: Callable[[NewestValues], list[list[Any]]]


@dataclass(slots=True)
class SpatialAnswer:
    """What a question was answered.

    Attributes:
        offsets: source partition -> next offset.
    """

    question: SpatialQuestion
    moment: str
    snapshot: int | None
    offsets: dict[int, int]
    rows: list[list[Any]]


def _arrivals_near_boston(state: NewestValues) -> list[list[Any]]:
    near: dict[tuple[float, float], bool] = {}
    found: Counter[str] = Counter()
    for value in state.values():
        flight = json.loads(value)
        if flight.get("status") != "arrived" or "place" not in flight:
            continue
        lon, lat = flight["place"]["coordinates"]
        if (lon, lat) not in near:
            near[lon, lat] = metres_between(lon, lat, *BOSTON) <= WITHIN_M
        found[flight["destination"]] += near[lon, lat]
    some = [[airport, count] for airport, count in found.items() if count]
    return sorted(some, key=lambda row: (-row[1], row[0]))


def _nearest_to_denver(state: NewestValues) -> list[list[Any]]:
    airports = {id_: json.loads(value) for id_, value in state.items()}
    rows = [
        [id_, one["name"], metres_between(one["lon"], one["lat"], *DENVER)] for id_, one in airports.items()
    ]
    return sorted(rows, key=lambda row: (row[2], row[0]))[:NEAREST]


ARRIVALS_NEAR: Final = SpatialQuestion(
    "flights",
    "arrivals within 500 km of Boston",
    f"""SELECT destination, COUNT(*) AS arrivals FROM flights
    WHERE status = 'arrived' AND ST_DWithin(place, ST_Point({BOSTON[0]}, {BOSTON[1]}), {WITHIN_M})
    GROUP BY destination ORDER BY arrivals DESC, destination""",
    ("at", "arrivals"),
    _arrivals_near_boston,
)
NEAREST_AIRPORTS: Final = SpatialQuestion(
    "airports",
    "the five airports that are nearest to Denver's capitol",
    f"""SELECT id, name, ST_Distance(POINT(lon, lat), ST_Point({DENVER[0]}, {DENVER[1]})) AS metres
    FROM airports ORDER BY metres LIMIT {NEAREST}""",
    ("airport", "name", "metres"),
    _nearest_to_denver,
)


def ask(client: Client, question: SpatialQuestion, moment: str, **demands: Any) -> SpatialAnswer:
    """Ask a node."""
    answer = client.query(question.sql, **demands)
    rows = answer.to_list()
    offsets = {int(partition): place["offset"] for partition, place in answer.timestamp.items()}
    return SpatialAnswer(question, moment, answer.snapshot, offsets, rows)


def unlike(answer: SpatialAnswer, state: NewestValues) -> list[str]:
    """In words, what differs between an answer and the documents at its moment; nothing when it is right."""
    wanted = answer.question.expected(state)
    if len(wanted) == len(answer.rows) and all(map(_same, wanted, answer.rows)):
        return []
    return [f"answered {answer.rows}", f"expected {wanted}"]


def _same(wanted: list[Any], found: list[Any]) -> bool:
    return len(wanted) == len(found) and all(
        math.isclose(one, other, rel_tol=0, abs_tol=_TOLERANCE_M) if isinstance(one, float) else one == other
        for one, other in zip(wanted, found, strict=True)
    )
