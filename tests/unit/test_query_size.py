"""What a query that sorts holds in bytes, and reads at once: a row may be as long as a document."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest

from indexer.scan.gather.gather import gather
from indexer.scan.query.rows import TooManyRowsError, size_of
from tests.unit.scan_world import Doc, World
from tests.unit.test_query_service import Ask, run

LARGE = 2_000
BY_CITY = "CREATE INDEX by_city ON users (city) INCLUDE (name, n, deep) WITH (slices=2)"
QUERY = "FROM users WHERE city > 'A' ORDER BY name"


def world(documents: int = 300, large: int = LARGE) -> World:
    made = World(BY_CITY)
    made.commit(
        1,
        {
            "by_city": [
                Doc(
                    [f"Austin {at}"],
                    f"u{at:04}",
                    msgspec.json.encode({"name": name, "n": at, "deep": {"a": [name]}}),
                )
                for at in range(documents)
                for name in [f"{at * 7 % documents:04}" + "x" * large]
            ]
        },
    )
    return made


@pytest.mark.parametrize("row", ["name", "deep"])
def test_what_a_node_sorts_is_bounded_in_bytes(row: str) -> None:
    async def work(ask: Ask, _: World) -> None:
        for text in (f"SELECT {row} AS it {QUERY}", f"SELECT {row} AS it {QUERY} LIMIT 290"):
            with pytest.raises(TooManyRowsError, match="take more than 300,000 bytes") as caught:
                await ask(text)
            assert "scan.max_query_bytes" in caught.value.next_step
        # As many rows go by, and few are held.
        found = await ask(f"SELECT {row} AS it, n {QUERY} LIMIT 20")
        assert [n * 7 % 300 for _, n in found["rows"]] == list(range(20))

    run(work, world(), max_query_bytes=300_000)


def test_rows_are_weighed_as_they_are_shown() -> None:
    """Not with the included columns that they leave out."""

    async def work(ask: Ask, _: World) -> None:
        found = await ask("SELECT n FROM users WHERE city > 'A' ORDER BY n DESC")
        assert found["rows"] == [[n] for n in range(299, -1, -1)]

    run(work, world(), max_query_bytes=100_000)


@pytest.mark.parametrize("large", [10, LARGE, 20_000])
def test_rows_are_read_as_many_at_once_as_are_some_bytes(large: int) -> None:
    read = list[int]()

    async def gathers(*arguments: Any) -> Any:
        page = await gather(*arguments)
        read.append(sum(len(key) + len(value) for key, value in page.entries))
        return page

    async def work(ask: Ask, _: World) -> None:
        assert len((await ask(f"SELECT n {QUERY}, n LIMIT 500"))["rows"]) == 500

    rows = "indexer.scan.query.rows"
    with mock.patch(f"{rows}.gather", gathers), mock.patch(f"{rows}.FIRST_BLOCK", 2):
        run(work, world(500, large), stream_block_bytes=100_000)
    assert max(read) <= 110_000
    assert len(read) <= 6 + sum(read) / 50_000, "and not by less"


@pytest.mark.parametrize(
    ("value", "size"),
    [(None, 8), (2.5, 8), ("abc", 11), ([], 8), (["ab", [1]], 34), ({"key": {"a": "b"}}, 8 + 3 + 8 + 1 + 9)],
)
def test_a_row_is_weighed_with_all_that_is_in_it(value: Any, size: int) -> None:
    assert size_of(value) == size
    deep: Any = value
    for _ in range(5_000):
        deep = [deep]
    assert size_of(deep) == size + 5_000 * 8
