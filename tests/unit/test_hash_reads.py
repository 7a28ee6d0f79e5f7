"""Look-ups of whole keys take the short way of a read: at once, without a lease that nobody needs, and with
nothing made ready for them. Only what collides, or is looked for in the whole index, takes the long one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest

from indexer.scan.gather import failover
from indexer.scan.local import filtering
from indexer.scan.local.reader import INLINE_ROWS
from indexer.scan.peer.messages import LaterReadMessage, ReadMessage, ReadRequest, encoder, read_decoder
from indexer.scan.plan.tokens import KeyedPageToken, PageToken, sign, verify
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.request import CountRequest, ScanRequest
from keytide.collation import encode_key
from keytide.model.timestamp import Timestamp
from keytide.query.plan.boxes import MAX_SPANS
from keytide.settings.http import MAX_BODY_BYTES
from tests.structure_kit import digests_of
from tests.unit.scan_world import Doc, FakeSnapshot, World
from tests.unit.test_api import Endpoint, problem

BY_URL = "CREATE INDEX by_url ON users USING hash (url) INCLUDE (n) WITH (slices=2)"
LONG = "x" * 100_000


async def never() -> None:
    await asyncio.Event().wait()


def docs(*keys: str, each: int = 3) -> list[Doc]:
    return [
        Doc([key], f"d{place:03}{at}", b'{"n":%d}' % at)
        for place, key in enumerate(keys)
        for at in range(each)
    ]


class Asked:
    """A cluster of one node, and in which threads its snapshots are read."""

    def __init__(self, documents: list[Doc]) -> None:
        self.world = World(BY_URL, node_count=1)
        self.threads: list[threading.Thread] = []
        noted = self.threads

        class Noting(FakeSnapshot):
            def rows(self, *arguments: Any, **named: Any) -> Iterator[Any]:
                noted.append(threading.current_thread())
                return super().rows(*arguments, **named)

        def keep(number: int, incarnation: int, timestamp: Timestamp, entries: Any) -> FakeSnapshot:
            return Noting(number, incarnation, timestamp, entries)

        self.world.keep = keep
        self.world.commit(1, {"by_url": documents})

    def run(self, work: Callable[[Any, Any], Coroutine[Any, Any, Any]]) -> Any:
        """What `work` gives, of the scan service and the query service."""

        async def main() -> Any:
            service = self.world.services()["n0"]
            return await work(service, QueryService(service.shared))

        return asyncio.run(main())

    def scan(self, **asked: Any) -> dict[str, Any]:
        async def work(service: Any, _: Any) -> Any:
            return json.loads((await service.scan("by_url", ScanRequest(**asked), never)).body)

        return self.run(work)  # type: ignore[no-any-return]

    def query(self, sql: str, **asked: Any) -> dict[str, Any]:
        async def work(_: Any, queries: Any) -> Any:
            return json.loads((await queries.answer(QueryRequest(sql=sql, **asked), never)).body)

        return self.run(work)  # type: ignore[no-any-return]

    @property
    def reads(self) -> list[ReadRequest]:
        return [request for _, request in self.world.nodes["n0"].reads]

    @property
    def at_once(self) -> bool:
        assert self.threads
        return all(one is threading.main_thread() for one in self.threads)


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["id"] if isinstance(row, dict) else row[0] for row in answer["rows"]]


def test_a_key_is_looked_up_at_once() -> None:
    asked = Asked(docs("a", "b", "c"))
    assert ids(asked.scan(equals=["b"], limit=10)) == ["d0010", "d0011", "d0012"]
    assert asked.at_once
    (read,) = asked.reads
    assert (read.shape.keys, read.shape.filter) == (frozenset([encode_key(["b"])]), b"")
    assert failover._is_short(read), "it is hedged like any other page"


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_entries_of_other_keys_with_its_digest_are_looked_at_in_a_thread(limit: int) -> None:
    with digests_of(0):
        asked = Asked(docs(*"abcdefgh"))
        found: list[str] = []
        answer = asked.scan(equals=["g"], limit=limit)
        assert not asked.at_once
        while True:
            found += ids(answer)
            if answer["page"] is None:
                break
            answer = asked.scan(page=answer["page"])
    assert found == ["d0060", "d0061", "d0062"]
    assert all(snapshot.readers == 0 for snapshot in asked.world.held())


@pytest.mark.parametrize(
    ("key", "limit", "at_once"),
    [
        ("a", INLINE_ROWS, False),
        ("a", 100, True),
        ("u" * 2_000, 1_000, True),
        (LONG, 15, True),
        (LONG, 1_000, False),
    ],
)
def test_what_takes_long_is_read_in_a_thread(key: str, limit: int, at_once: bool) -> None:
    asked = Asked(docs(key))
    assert len(ids(asked.scan(equals=[key], limit=limit))) == 3
    assert asked.at_once is at_once


def listed(count: int) -> str:
    return ", ".join(f"'k{at}'" for at in range(count))


@pytest.mark.parametrize("count", [2, MAX_SPANS + 1])
def test_a_query_with_a_limit_takes_no_lease_for_keys_that_are_sought(count: int) -> None:
    asked = Asked(docs("k1", "other"))
    answer = asked.query(f"SELECT id FROM users WHERE url IN ({listed(count)}) LIMIT 2")
    assert len(answer["rows"]) == 2
    sought = count <= MAX_SPANS
    reads = [read for read in asked.reads if read.shape.keys]
    assert {read.paging.lease_ms == 0 for read in reads} == {sought}
    assert {failover._is_short(read) for read in reads} == {sought}, (
        "more than spans: the whole index is read"
    )


def test_keys_make_nothing_ready_and_leave_the_filters_of_others_alone() -> None:
    asked = Asked(docs(*(f"k{at}" for at in range(80))))
    with mock.patch.object(filtering, "entry_test", wraps=filtering.entry_test) as made:

        async def work(service: Any, queries: Any) -> None:
            for at in range(80):
                await service.scan("by_url", ScanRequest(equals=[f"k{at}"]), never)
            assert made.call_count == 0
            for at in range(80):
                sql = f"SELECT id FROM users WHERE url = 'k{at}' AND n > 0"
                answer = json.loads((await queries.answer(QueryRequest(sql=sql), never)).body)
                assert len(answer["rows"]) == 2
            assert made.call_count == 1, "their filter is one"

        asked.run(work)


def test_keys_are_compared_as_bytes() -> None:
    """No value is made of what is only compared, however many keys there are."""
    asked = Asked(docs("k1", "k2", "other"))
    some = listed(MAX_SPANS + 1)
    with (
        mock.patch.object(filtering, "decode_key", side_effect=AssertionError("decoded")),
        mock.patch("indexer.scan.aggregate.columns.decode_key", side_effect=AssertionError("decoded")),
    ):

        async def work(service: Any, queries: Any) -> None:
            answer = await queries.answer(
                QueryRequest(sql=f"SELECT COUNT(*) FROM users WHERE url IN ({some})"), never
            )
            assert json.loads(answer.body)["rows"] == [[6]]
            answer = await queries.answer(
                QueryRequest(sql=f"SELECT id FROM users WHERE url IN ({some}) ORDER BY id"), never
            )
            assert len(json.loads(answer.body)["rows"]) == 6
            answer = await service.count("by_url", CountRequest(equals=["k2"]), never)
            assert json.loads(answer.body)["count"] == 3

        asked.run(work)


# --- what is sent, and page tokens ------------------------------------------------------------------------


def test_keys_are_sent_in_a_message_of_their_own() -> None:
    plain = ReadMessage("i", 5, 1, [0], [(b"", None)], [b""], False, 101, within_ms=2_900)
    sought = frozenset([b"\x30a", b"\x30b"])
    request = plain.request()
    keyed = ReadMessage.of(
        msgspec.structs.replace(request, shape=msgspec.structs.replace(request.shape, keys=sought))
    )
    assert type(keyed) is LaterReadMessage
    request = read_decoder.decode(encoder.encode(keyed)).request()
    assert request.shape.keys == sought
    of_before = read_decoder.decode(encoder.encode(plain)).request()
    assert (of_before.shape.keys, type(ReadMessage.of(of_before))) == (frozenset(), ReadMessage)


def test_tokens_without_keys_are_what_they_were() -> None:
    plain = PageToken("i1", 7, 0, 0, [(b"", None)], [("n1", [1])], b"k", False, 5, None, {})
    read = verify(sign(plain, b"s"), KeyedPageToken, b"s")
    assert read.keys == frozenset()
    assert sign(KeyedPageToken.of(read, read.keys), b"s") == sign(plain, b"s")
    keyed = verify(sign(KeyedPageToken.of(plain, frozenset([b"x"])), b"s"), KeyedPageToken, b"s")
    assert keyed.keys == {b"x"}


@pytest.mark.parametrize("size", [48_000, 590_000, 770_000, 790_000, 1_000_000])
def test_a_page_token_that_is_given_can_be_sent_back(size: int) -> None:
    key = "k" * size
    asked = Asked(docs(key, "other"))
    with Endpoint(asked.world) as endpoint:
        path = "/v1/indexes/by_url/scan"
        whole = endpoint.post(path, equals=[key], limit=10, columns=["id"])
        assert ids(whole.json()) == ["d0000", "d0001", "d0002"]
        first = endpoint.post(path, equals=[key], limit=2, columns=["id"])
        if size > MAX_BODY_BYTES * 3 // 4:
            refused = problem(first, 422, "page-token-too-large")
            assert "stream" in refused["next_step"]
            assert "http.max_body_bytes" in refused["detail"]
        else:
            page, session = first.json()["page"], first.json()["session"]
            second = endpoint.post(path, page=page, session=session)
            assert ids(first.json()) + ids(second.json()) == ids(whole.json())
        streamed = endpoint.request(
            "POST",
            path,
            content=json.dumps({"equals": [key], "columns": ["id"]}),
            headers={"Accept": "application/x-ndjson"},
        )
        lines = map(json.loads, streamed.text.splitlines())
        assert [line["id"] for line in lines if "id" in line] == ids(whole.json())


def test_the_token_of_a_query_does_not_repeat_its_keys() -> None:
    keys = [f"k{at}" + "y" * 100 for at in range(400)]
    asked = Asked(docs(*keys, each=1))
    some = ", ".join(f"'{key}'" for key in keys)
    answer = asked.query(f"SELECT id FROM users WHERE url IN ({some})", limit=399)
    assert len(answer["page"]) < 2 * len(some) + 40 * len(keys)
    found = ids(answer) + ids(asked.query("", page=answer["page"]))
    assert sorted(found) == sorted(f"d{at:03}0" for at in range(400))
