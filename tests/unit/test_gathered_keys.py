"""Keys that are gathered to be left out, or counted: as many at once as are some bytes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from indexer.scan.gather.scatter import ask
from tests.unit.scan_world import Doc, World
from tests.unit.test_api import Endpoint

GATHER = "indexer.scan.gather.gather"


@pytest.mark.parametrize("long", [10, 1_000])
@pytest.mark.parametrize("what", ["offset", "count"])
def test_long_keys_are_gathered_in_smaller_blocks(what: str, long: int) -> None:
    statement = "CREATE INDEX i ON users (a, b) PARTITION BY HASH(id) WITH (slices=2)"
    made = World(statement, node_count=1)
    made.commit(1, {"i": [Doc([f"{at:03}" + "x" * long, 1], f"u{at:03}") for at in range(400)]})
    read = list[int]()

    async def asks(*arguments: Any) -> Any:
        replies = await ask(*arguments)
        read.append(sum(len(key) for one in replies for key, _ in one.entries))
        return replies

    with (
        mock.patch(f"{GATHER}.ask", asks),
        mock.patch(f"{GATHER}.FIRST_KEYS", 4),
        mock.patch(f"{GATHER}.KEY_BYTES", 20_000),
        Endpoint(made) as endpoint,
    ):
        if what == "count":
            counted = endpoint.post("/v1/indexes/i/count", distinct=True)
            assert counted.json()["count"] == 400
        else:
            page = endpoint.post("/v1/indexes/i/scan", offset=390, limit=5).json()
            assert [row["id"] for row in page["rows"]] == [f"u{at}" for at in range(390, 395)]
    assert max(read) <= 60_000  # (shares of slices are larger than even)
    assert len(read) <= 6 + sum(read) / 10_000, "and not by less"
