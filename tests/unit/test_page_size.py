"""Pages are bounded in bytes: each row may be as long as a document. Whoever reads on misses nothing,
whatever the nodes know of the bound."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from indexer.scan.gather.gather import gather
from indexer.scan.gather.merging import SliceCursor, share_of
from indexer.scan.gather.service import ScanService
from indexer.scan.local.entry_bytes import bytes_of, reaching
from indexer.scan.local.joint import LARGE_MS
from indexer.scan.peer.messages import (
    JointPage,
    JointRead,
    LaterReadMessage,
    ReadMessage,
    encoder,
    read_decoder,
)
from indexer.scan.query import rows
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.request import HoldRequest, ScanRequest
from indexer.store.fold.worker import FoldWorker
from indexer.store.joint import LOOKED_AT_BYTES
from indexer.store.lmdb.levels import View
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import ScanSettings
from tests.unit.scan_world import DirectNodes, Doc, FakeJoint, FakeSnapshot, World, older_decoder, stores
from tests.unit.test_scan_local import IN_SPANS, OneSlice
from tests.unit.test_store_large_values import CountingCursor
from tests.unit.test_validation_scan import Bench

LARGE = 20_000
ROOM = 100_000
BY_CITY = "CREATE INDEX by_city ON users (city) INCLUDE (n, text) WITH (slices=4)"


def documents(count: int, large: int = LARGE) -> list[Doc]:
    return [
        Doc([f"c{at:04}"], f"d{at:04}", msgspec.json.encode({"n": at, "text": "x" * large}))
        for at in range(count)
    ]


def world(count: int = 60, large: int = LARGE, **more: Any) -> World:
    made = World(BY_CITY, **more)
    made.commit(1, {"by_city": documents(count, large)})
    return made


async def never() -> None:
    await asyncio.Event().wait()


def run(
    work: Callable[[list[ScanService]], Coroutine[Any, Any, None]], made: World, room: int = ROOM
) -> None:
    async def main() -> None:
        await work(list(made.services(ScanSettings.model_validate({"max_page_bytes": room})).values()))

    asyncio.run(main())


async def pages(services: list[ScanService], **request: Any) -> list[dict[str, Any]]:
    """All pages of a scan, from one node after the other, but for an empty one at the end: a slice that has
    given what there is room for does not know what follows."""
    found: list[dict[str, Any]] = []
    asked = ScanRequest(**request)
    while not found or found[-1]["page"] is not None:
        service = services[len(found) % len(services)]
        found.append(json.loads((await service.scan("by_city", asked, never)).body))
        asked = ScanRequest(page=found[-1]["page"])
    return found if found[-1]["rows"] else found[:-1]


def later(made: World) -> None:
    """Two newer snapshots: nobody keeps the first but those who lease it."""
    for number in (2, 3):
        made.commit(number, {"by_city": [Doc(["later"], f"d{number}")]})


def ids(answers: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for answer in answers for row in answer["rows"]]


# --- one slice --------------------------------------------------------------------------------------------


def test_how_many_entries_come_to_a_size() -> None:
    entries = [(b"12", b"345"), (b"1", b""), (b"", b"1234")]
    assert bytes_of(entries) == 10
    assert [reaching(entries, size) for size in (1, 5, 6, 7, 10, 11, 99)] == [1, 1, 2, 3, 3, 3, 3]
    assert (bytes_of([]), reaching([], 5)) == (0, 0)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize(("room", "given"), [(1, 1), (2, 1), (3, 2), (7, 4), (18, 9), (19, 9), (0, 9)])
def test_a_slice_gives_no_more_than_there_is_room_for(
    room: int, given: int, skip: int, reverse: bool
) -> None:
    """Keys are of two bytes."""
    node, found, after, more = OneSlice(), list[bytes](), b"", True
    while more:
        (reply,) = node.read(100, after, kind=LaterReadMessage, room=room, reverse=reverse, skip=skip).slices
        more, after = reply.more, reply.reached or (reply.entries[-1][0] if reply.entries else after)
        assert len(reply.entries) <= given
        assert reply.entries or not more
        found += [key for key, _ in reply.entries]
        skip = 0
    wanted = IN_SPANS[::-1] if reverse else IN_SPANS
    assert found in (wanted, wanted[1:])


def test_values_that_are_not_given_need_no_room_and_are_not_held() -> None:
    """Of entries that are left out for an offset keys are given."""
    node = OneSlice()
    entries = [(b"%02d" % at, bytes(LARGE)) for at in range(20)]
    node.view.slices["i-1", 0].add(FakeSnapshot(6, 0, Timestamp(), entries), -1)
    whole: dict[str, Any] = {"number": 6, "spans": [(b"", None)], "kind": LaterReadMessage}
    (reply,) = node.read(100, room=30, keys_only=True, **whole).slices
    assert reply.entries == [(key, b"") for key, _ in entries[:15]]
    (reply,) = node.read(100, room=30, **whole).slices
    assert reply.entries == entries[:1]


@pytest.mark.parametrize("reverse", [False, True])
def test_no_more_is_copied_of_a_store_than_a_page_and_a_block(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    copied, cursor = [0], View.cursor
    monkeypatch.setattr(View, "cursor", lambda view, table: CountingCursor(cursor(view, table), copied))

    async def work(services: list[ScanService]) -> None:
        copied[0] = 0
        request = ScanRequest(limit=1_000, reverse=reverse)
        answer = json.loads((await services[0].scan("by_city", request, never)).body)
        assert len(answer["rows"]) == ROOM // LARGE
        assert copied[0] < 4 * (ROOM + 20 * LARGE)

    made = World(BY_CITY, node_count=1)
    with stores("lmdb", tmp_path, folds) as keep:
        made.keep = keep
        made.commit(1, {"by_city": documents(500)})
        run(work, made)


# --- messages ---------------------------------------------------------------------------------------------


def test_a_release_that_does_not_know_the_bound_reads_the_rest() -> None:
    plain = ReadMessage("i", 5, 1, [0], [(b"", None)], [b""], False, 101)
    request = plain.request()
    bounded = msgspec.structs.replace(request, paging=msgspec.structs.replace(request.paging, room=7))
    sent = encoder.encode(ReadMessage.of(bounded))
    assert read_decoder.decode(sent).request() == bounded
    assert older_decoder.decode(sent).request() == request
    assert encoder.encode(ReadMessage.of(request)) == encoder.encode(plain)
    keyed = msgspec.structs.replace(
        bounded, shape=msgspec.structs.replace(request.shape, keys=frozenset({b"k"}))
    )
    assert read_decoder.decode(encoder.encode(ReadMessage.of(keyed))).request() == keyed


def test_what_is_no_room_is_refused() -> None:
    message = LaterReadMessage("i", 5, 1, [0], [(b"", None)], [b""], False, 101, room=-1)
    with pytest.raises(msgspec.ValidationError):
        read_decoder.decode(encoder.encode(message))


# --- several slices ---------------------------------------------------------------------------------------


def test_what_slices_may_give_adds_up_to_little_more_than_two_pages() -> None:
    sources = [SliceCursor(at, b"") for at in range(4)]
    assert share_of(1_000, 0, sources, 4) == 250
    assert share_of(1_000, 900, sources, 1) == 100
    for source in sources[1:]:
        source.entries = [(b"", bytes(400))]
    assert share_of(1_000, 100, sources, 1) == 700, "what others hold is not in the way of one that has all"
    for source in sources[1:]:
        source.entries = [(b"", bytes(700))]
    assert share_of(1_000, 100, sources, 1) == 1_000 // 16, "yet it is not read in drops"


@pytest.mark.parametrize("older", [(), ("n1",), ("n0", "n1")])
@pytest.mark.parametrize(
    "more", [{}, {"offset": 7}, {"distinct": True}, {"low": ["c0010"], "high": ["c0055"]}]
)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("consistency", ["stable", "tip"])
def test_pages_of_large_rows_end_early_and_leave_nothing_out(
    older: tuple[str, ...], more: dict[str, Any], reverse: bool, consistency: Any
) -> None:
    made = world()

    async def work(services: list[ScanService]) -> None:
        for nodes in made.nodes.values():
            nodes.older = set(older)
        request = {"reverse": reverse, "consistency": consistency, **more}
        found = await pages(services, limit=1_000, **request)
        each = [row["key"] for answer in found for row in answer["rows"]]
        wanted = [[f"c{at:04}"] for at in (range(10, 56) if "low" in more else range(60))]
        wanted = (wanted[::-1] if reverse else wanted)[more.get("offset", 0) :]
        assert each == wanted
        if not more.get("distinct"):
            assert [len(answer["rows"]) for answer in found[:-1]] == [ROOM // LARGE] * (len(found) - 1)
        assert {answer["snapshot"] for answer in found} == {None if consistency == "tip" else 1}

    run(work, made)


def test_a_row_larger_than_the_bound_is_a_page() -> None:
    async def work(services: list[ScanService]) -> None:
        found = await pages(services, limit=3)
        assert [len(answer["rows"]) for answer in found] == [1] * 60
        assert ids(found) == [f"d{at:04}" for at in range(60)]

    run(work, world(), room=1_024)


def test_small_rows_are_asked_for_as_ever() -> None:
    """One round of even shares, and full pages."""
    made = world(large=10)

    async def work(services: list[ScanService]) -> None:
        answer = json.loads((await services[0].scan("by_city", ScanRequest(limit=40), never)).body)
        assert len(answer["rows"]) == 40
        assert len(made.nodes["n0"].reads) == 2

    run(work, made)


def test_pages_keep_their_snapshot_and_their_session() -> None:
    made = world()

    async def work(services: list[ScanService]) -> None:
        first = json.loads((await services[0].scan("by_city", ScanRequest(limit=9), never)).body)
        assert len(first["rows"]) == ROOM // LARGE
        later(made)
        found = [first]
        while found[-1]["page"] is not None:
            request = ScanRequest(page=found[-1]["page"], session=found[-1]["session"])
            found.append(json.loads((await services[len(found) % 2].scan("by_city", request, never)).body))
        assert ids(found) == [f"d{at:04}" for at in range(60)]

    run(work, made)


def test_pages_of_a_held_snapshot_end_early_too() -> None:
    made = world()

    async def work(services: list[ScanService]) -> None:
        held = json.loads((await services[0].hold("by_city", HoldRequest(), never)).body)
        later(made)
        found = await pages(services, at=held["at"], limit=30)
        assert ids(found) == [f"d{at:04}" for at in range(60)]
        assert len(found) == 60 * LARGE // ROOM

    run(work, made)


@pytest.mark.parametrize("room", [ROOM, 1_024, 2 * LOOKED_AT_BYTES])
def test_what_is_read_as_one_is_bounded_too(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than some megabytes is not read as one, nor soon tried again of the same snapshot."""
    large = room > LOOKED_AT_BYTES
    made = world(60, 400_000 if large else LARGE, node_count=1)
    clock = [1_000_000]
    made.now = lambda: clock[0]
    read, tried, first = list[JointPage | None](), [0], FakeJoint.first

    def first_here(nodes: DirectNodes, asked: JointRead) -> JointPage | None:
        read.append(nodes.readers[nodes.here].first(asked))
        return read[-1]

    def counted(joint: FakeJoint, *how: Any) -> Any:
        tried[0] += 1
        return first(joint, *how)

    monkeypatch.setattr(DirectNodes, "first_here", first_here)
    monkeypatch.setattr(FakeJoint, "first", counted)

    async def work(services: list[ScanService]) -> None:
        found = await pages(services, limit=50)
        assert ids(found) == [f"d{at:04}" for at in range(60)]
        assert len(found) == (2 if large else 60 * LARGE // ROOM if room == ROOM else 60)
        assert tried[0] == (1 if large else len(read))
        clock[0] += LARGE_MS
        await services[0].scan("by_city", ScanRequest(limit=50), never)
        assert tried[0] == (2 if large else len(read))

    run(work, made, room)
    assert {page is None for page in read} == {large}


# --- validated pages --------------------------------------------------------------------------------------


def test_validated_pages_end_early_and_go_on() -> None:
    people = {f"p{at:02}": {"city": f"c{at:02}", "text": "x" * LARGE} for at in range(20)}
    bench = Bench("CREATE INDEX by_city ON users (city) INCLUDE (text) WITH (slices=4)", documents=people)
    bench.primary.documents_by_id.update(p03=None)

    async def work() -> None:
        services = list(bench.services(max_page_bytes=ROOM).values())
        found, asked = list[dict[str, Any]](), ScanRequest(validate=True)
        while not found or found[-1]["page"] is not None:
            service = services[len(found) % len(services)]
            found.append(json.loads((await service.scan("by_city", asked, never)).body))
            asked = ScanRequest(page=found[-1]["page"])
        assert ids(found) == [one for one in people if one != "p03"]
        assert [one["validation"]["valid"] + one["validation"]["stale"] for one in found[:4]] == [5] * 4

    asyncio.run(work())


# --- queries ----------------------------------------------------------------------------------------------


async def query_pages(
    services: list[ScanService], sql: str, made: World, **more: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    asked = QueryRequest(sql=sql, **more)
    while not found or found[-1]["page"] is not None:
        service = QueryService(services[len(found) % len(services)].shared)
        found.append(json.loads((await service.answer(asked, never)).body))
        if len(found) == 1:
            later(made)
        asked = QueryRequest(sql=sql, page=found[-1]["page"])
    return found


@pytest.mark.parametrize("older", [(), ("n0", "n1")])
@pytest.mark.parametrize("limit", [1, 5, 6, 23, 60, 1_000, None])
@pytest.mark.parametrize("offset", [0, 4])
def test_a_query_gives_its_limit_on_as_many_pages_as_it_takes(
    limit: int | None, offset: int, older: tuple[str, ...]
) -> None:
    """Also where all rows were to be on one page, for which no snapshot is kept as a rule."""
    made = world()

    async def work(services: list[ScanService]) -> None:
        for nodes in made.nodes.values():
            nodes.older = set(older)
        sql = "SELECT n, text FROM users WHERE city > 'A' ORDER BY city DESC"
        sql += "" if limit is None else f" LIMIT {limit}"
        found = await query_pages(services, f"{sql} OFFSET {offset}", made)
        rows = [row[0] for answer in found for row in answer["rows"]]
        assert rows == list(range(59, -1, -1))[offset:][:limit]
        assert max(len(answer["rows"]) for answer in found) <= ROOM // LARGE
        assert {answer["snapshot"] for answer in found} == {1}

    run(work, made)


def test_a_query_that_is_one_page_keeps_no_snapshot() -> None:
    made = world(large=10)

    async def work(services: list[ScanService]) -> None:
        found = await query_pages(services, "SELECT n FROM users WHERE city > 'A' LIMIT 50", made)
        assert [len(answer["rows"]) for answer in found] == [50]
        assert not any(nodes.leases for nodes in made.nodes.values())
        assert not any(one.leases for one in made.held())

    run(work, made)


def test_what_is_sorted_is_read_in_blocks_of_bytes_from_the_first_on() -> None:
    """How large rows are is not known before some were read."""
    made = world(200)

    async def work() -> None:
        limits = ScanSettings.model_validate({"stream_block_bytes": ROOM})
        services = list(made.services(limits).values())
        sql = "SELECT n FROM users WHERE city > 'A' ORDER BY n DESC LIMIT 10"
        found = await query_pages(services, sql, made)
        assert [row[0] for row in found[0]["rows"]] == list(range(199, 189, -1))
        assert max(one.paging.room for nodes in made.nodes.values() for _, one in nodes.reads) <= ROOM

    asyncio.run(work())


@pytest.mark.parametrize("node_count", [1, 2])
def test_what_is_sorted_keeps_its_snapshot_from_one_block_to_the_next(
    node_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where blocks that are read as one end by their bytes."""
    made = world(200, node_count=node_count)
    read, joint = list[int](), list[bool]()

    def first_here(nodes: DirectNodes, asked: JointRead) -> JointPage | None:
        page = nodes.readers[nodes.here].first(asked)
        joint.append(page is not None)
        return page

    async def gathered(*how: Any) -> Any:
        if len(read) == 1:
            later(made)
        page = await gather(*how)
        read.append(len(page.entries))
        return page

    monkeypatch.setattr(DirectNodes, "first_here", first_here)
    monkeypatch.setattr(rows, "gather", gathered)

    async def work() -> None:
        limits = ScanSettings.model_validate({"stream_block_bytes": ROOM})
        query = QueryService(next(iter(made.services(limits).values())).shared)
        sql = "SELECT n FROM users WHERE city > 'A' ORDER BY n DESC"
        answer = json.loads((await query.answer(QueryRequest(sql=sql), never)).body)
        assert [row[0] for row in answer["rows"]] == list(range(199, -1, -1))
        assert answer["snapshot"] == 1

    asyncio.run(work())
    assert any(joint) == (node_count == 1)
    assert len(read) > 1
