"""The demo's own eyes for places: they see right answers as right, by other arithmetic than the product's."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise

import pytest

from deploy.demo import airports, flights
from deploy.demo.nearby import (
    ARRIVALS_NEAR,
    BOSTON,
    DENVER,
    NEAREST,
    NEAREST_AIRPORTS,
    WITHIN_M,
    NewestValues,
    SpatialAnswer,
    SpatialQuestion,
    unlike,
)
from deploy.demo.oracle import differences, expected_rows
from deploy.demo.spheroid import metres_between
from keytide.geometry import distance, point

NOT_PLACED = {"BQN", "SJU", "STT", "PSE"}
SPHERE_SHARE = 0.006
"""How far distances on a sphere may be from those on the spheroid."""


@pytest.fixture(scope="module")
def arrived() -> NewestValues:
    """The first flights, as they are in the end."""
    return {change.id: change.value for change in flights.updates(flights.load(2_000))}


@pytest.fixture(scope="module")
def places() -> NewestValues:
    return {change.id: change.value for change in airports.documents()}


def test_distances_are_those_of_the_spheroid() -> None:
    degree = math.pi / 180
    assert metres_between(0, 0, 1, 0) == pytest.approx(6_378_137 * degree, abs=1e-3)
    assert metres_between(0, 0, 0, 90) == pytest.approx(10_001_965.729, abs=1e-3)  # a quarter of a meridian
    assert metres_between(5, 5, 5, 5) == 0.0
    with pytest.raises(ValueError, match="across the globe"):
        metres_between(0, 0, 179.9, 0.1)
    for lon, lat in _around():
        ours = distance(point(lon, lat, "geographic"), point(*DENVER, "geographic"))
        assert metres_between(lon, lat, *DENVER) == pytest.approx(ours, abs=1e-2)


def _around() -> Iterator[tuple[float, float]]:
    yield from ((lon, lat) for lon in range(-170, 60, 10) for lat in range(-30, 80, 9))


def test_flights_have_the_place_of_their_destination(arrived: NewestValues) -> None:
    documents = [json.loads(value) for value in arrived.values()]
    without = {one["destination"] for one in documents if "place" not in one}
    assert without
    assert without <= NOT_PLACED
    for one in documents[:50]:
        assert one.get("place") == airports.points().get(one["destination"])


def test_nothing_lies_where_a_sphere_would_tell_otherwise(
    arrived: NewestValues, places: NewestValues
) -> None:
    """So answers do not hang on how exactly distances are computed."""
    reached = {
        (document["place"]["coordinates"][0], document["place"]["coordinates"][1])
        for document in map(json.loads, arrived.values())
        if "place" in document
    }
    off = [abs(metres_between(lon, lat, *BOSTON) - WITHIN_M) for lon, lat in reached]
    assert min(off) > SPHERE_SHARE * WITHIN_M
    documents = map(json.loads, places.values())
    apart = sorted(metres_between(one["lon"], one["lat"], *DENVER) for one in documents)[: NEAREST + 1]
    assert all(after > before * (1 + SPHERE_SHARE) for before, after in pairwise(apart))


@pytest.mark.parametrize("question", [ARRIVALS_NEAR, NEAREST_AIRPORTS])
def test_wrong_answers_are_seen(
    question: SpatialQuestion, arrived: NewestValues, places: NewestValues
) -> None:
    state = places if question is NEAREST_AIRPORTS else arrived
    right = question.expected(state)
    assert len(right) >= NEAREST
    answer = SpatialAnswer(question, "now", 1, {}, right)
    assert unlike(answer, state) == []
    for wrong in (right[1:], [*right[:-1], [*right[-1][:-1], right[-1][-1] + 1]], right[::-1]):
        assert unlike(SpatialAnswer(question, "now", 1, {}, wrong), state)


def test_an_index_without_an_order_is_compared_without(arrived: NewestValues) -> None:
    rows = expected_rows("by_place", arrived)
    assert 0 < len(rows) < len(expected_rows("arrivals", arrived))
    assert differences("by_place", arrived, rows[::-1]) == []
    assert differences("arrivals", arrived, expected_rows("arrivals", arrived)[::-1])
    moved = [([{"type": "Point", "coordinates": [0, 0]}], rows[0][1]), *rows[1:]]
    assert len(differences("by_place", arrived, moved)) == 2
