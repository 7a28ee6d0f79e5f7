"""What a search for the nearest holds in bytes: an entry may be as long as a document."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from indexer.scan.gather.gather import gather
from indexer.scan.plan.radii import Radii
from tests.unit.scan_world import Doc, World
from tests.unit.test_api import Endpoint, problem
from tests.unit.test_spatial_reads import dot

PATH = "/v1/indexes/by_place/scan"
STATEMENT = "CREATE INDEX by_place ON users USING spatial (place) INCLUDE (n) WITH (slices=2, srid=4326)"


def world(documents: int = 400, large: int = 2_000) -> World:
    made = World(STATEMENT, node_count=1)
    columns = json.dumps({"n": "x" * large}).encode()
    made.commit(
        1, {"by_place": [Doc([dot(at / 100, at / 100)], f"d{at:03}", columns) for at in range(documents)]}
    )
    return made


def near(limit: int) -> dict[str, Any]:
    return {"near": {"point": [0.0, 0.0], "limit": limit}}


def test_the_nearest_are_bounded_in_bytes() -> None:
    with Endpoint(world(), max_query_bytes=300_000) as endpoint:
        refused = problem(endpoint.post(PATH, **near(200)), 422, "too-many-rows")
        assert "take more than 300,000 bytes" in refused["detail"]
        assert "scan.max_query_bytes" in refused["next_step"]
        found = endpoint.post(PATH, **near(130)).json()["rows"]
    assert [row["id"] for row in found] == [f"d{at:03}" for at in range(130)]


@pytest.mark.parametrize("large", [10, 2_000])
def test_they_are_read_as_many_at_once_as_are_some_bytes(large: int) -> None:
    read = list[int]()

    async def gathers(*arguments: Any) -> Any:
        page = await gather(*arguments)
        read.append(sum(len(key) + len(value) for key, value in page.entries))
        return page

    search = "indexer.scan.nearest.search"
    with (
        mock.patch(f"{search}.gather", gathers),
        mock.patch(f"{search}.ROW_LIMIT", 10),
        Endpoint(world(large=large), stream_block_bytes=50_000) as endpoint,
    ):
        found = endpoint.post(PATH, **near(300)).json()["rows"]
    assert [row["id"] for row in found] == [f"d{at:03}" for at in range(300)]
    assert max(read) <= 55_000


def test_what_lies_farther_away_may_be_too_large() -> None:
    """A guess that was too far meets large entries before the nearest: it is narrowed, not refused."""
    made = World(STATEMENT, node_count=1)
    large, small = (json.dumps({"n": "x" * size}).encode() for size in (5_000, 10))
    far = [Doc([dot(at / 100 - 3, -3.0)], f"f{at:03}", large) for at in range(150)]
    made.commit(1, {"by_place": [*far, *(Doc([dot(at / 100, 0.0)], f"d{at:03}", small) for at in range(50))]})
    search = "indexer.scan.nearest.search"
    with (
        mock.patch(f"{search}.ROW_LIMIT", 10),
        mock.patch(f"{search}.nearest_here", return_value=None),
        mock.patch("indexer.scan.nearest.rows.nearest_here", return_value=None),
        mock.patch.object(Radii, "first", return_value=1_000_000.0),
        Endpoint(made, max_query_bytes=150_000) as endpoint,
    ):
        answer = endpoint.post(PATH, **near(50))
    assert answer.status_code == 200, answer.text
    assert [row["id"] for row in answer.json()["rows"]] == [f"d{at:03}" for at in range(50)]
