"""Streams: the same rows as pages have, in both forms, under every selection; what a reader that is slow,
stops or goes away costs; how streams that cannot be finished end."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.gather.reads import Reads
from indexer.scan.gather.service import ScanService
from indexer.scan.request.request import ScanRequest
from indexer.scan.stream import merge as streaming_merge
from indexer.scan.stream.arrow import ERROR_KEY, MEDIA_TYPE
from indexer.scan.stream.ndjson import MEDIA_TYPE as NDJSON
from indexer.scan.stream.streams import Streams
from indexer.store.fold.worker import FoldWorker
from indexer.view import StoreDamagedError
from keytide.collation import encode_key
from keytide.errors import KeytideError
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.settings.settings import ScanSettings, load_settings
from tests import share
from tests.unit.scan_world import Doc, FakeSnapshot, World, stores
from tests.unit.test_api import SCAN, serving
from tests.waiting import slowness, wait_for

CITY = "CREATE INDEX by_city ON users (city, n DESC) INCLUDE (x) PARTITION BY HASH(id) WITH (slices=4)"
CITIES = ["Aachen", "Bonn", "Boston", "Bergen", "Zürich", None, 7, 7.5, "\0"]


async def nobody_leaves() -> None:
    await asyncio.Event().wait()


async def streamed(shared: Reads, request: ScanRequest, form: str = NDJSON) -> bytes:
    """A whole stream of `by_city`."""
    streams = Streams(shared)
    stream = await streams.open("by_city", request, form, nobody_leaves)
    made = [stream.form.begin()]
    try:
        while (piece := await stream.next()) is not None:
            made.append(piece)
        return b"".join([*made, stream.form.end()])
    finally:
        await stream.close()


async def paged(service: ScanService, request: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of a scan, page by page."""
    wanted = request.get("limit")
    found: list[dict[str, Any]] = []
    page: str | None = None
    while wanted is None or len(found) < wanted:
        size = 7 if wanted is None else min(7, wanted - len(found))
        asked = {**request, "limit": size} if page is None else {"page": page}
        answer = json.loads((await service.scan("by_city", scan_request(asked), nobody_leaves)).body)
        found += answer["rows"]
        page = answer["page"]
        if page is None:
            break
    return found if wanted is None else found[:wanted]


def scan_request(members: dict[str, Any]) -> ScanRequest:
    return msgspec.convert(members, ScanRequest)


def lines(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


def leased(world: World) -> int:
    """How many snapshots of slices are leased to somebody."""
    return sum(any(until > now_ms() for until in one.leases.values()) for one in world.held())


@pytest.fixture
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch.setattr)


def shrink(change: Callable[[Any, str, Any], None]) -> None:
    """Rounds of a few rows, so that every stream has many of them."""
    change(streaming_merge, "FIRST_ROWS", 2)
    change(streaming_merge, "ROUND_ROWS", 16)
    change(streaming_merge, "LEAST_ROWS", 1)


DOCS = st.lists(
    st.tuples(
        st.sampled_from(CITIES), st.integers(0, 3), st.sampled_from([b"{}", b'{"x":1}', b'{"x":null}'])
    ),
    max_size=30,
).flatmap(
    lambda rows: st.integers(1, 4).map(  # several times the same with other ids: many rows for little input
        lambda times: [
            Doc([city, n], f"u{at}-{time}", x)
            for at, (city, n, x) in enumerate(rows)
            for time in range(times)
        ]
    )
)
SELECTIONS = st.one_of(
    st.just({}),
    st.sampled_from(CITIES).map(lambda city: {"equals": [city]}),
    st.just({"low": ["B"], "high": ["C"], "inclusion": "low"}),
    st.just({"spans": [{"prefix": "Bo"}, {"equals": [7]}, {"low": ["Bonn"], "high": ["Bz"]}]}),
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda some: {"slices": some}),
    st.just({"equals": [[]]}),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "reverse": st.booleans(),
        "limit": st.integers(1, 40),
        "offset": st.integers(0, 30),
        "consistency": st.just("tip"),
    },
)
SHAPES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"distinct": True}),
    st.just({}),
    st.just({"columns": ["id"]}),
    st.just({"columns": ["key", "id"]}),
)


@settings(max_examples=share.examples(100), deadline=None)
@given(DOCS, SELECTIONS, OPTIONS, SHAPES, st.sampled_from([1 << 20, 200]))
def test_streams_have_the_rows_of_pages(
    docs: list[Doc], selection: dict[str, Any], options: dict[str, Any], shape: dict[str, Any], size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch.setattr)
        world = World(CITY, node_count=2)
        world.commit(3, {"by_city": docs})
        asked = {**selection, **options, **shape}

        async def check() -> None:
            configured = ScanSettings.model_validate({"stream_block_bytes": max(1024, size)})
            service = world.services(configured)["n0"]
            rows = await paged(service, asked)
            request = scan_request(asked)
            assert lines(await streamed(service.shared, request)) == rows
            types = {"city": "json", "n": "json", "x": "json"}
            if shape.get("columns") == ["id"]:
                types = {}
            elif shape:
                types.pop("x")
            arrow = scan_request({**asked, "types": types})
            table = pa.ipc.open_stream(await streamed(service.shared, arrow, MEDIA_TYPE)).read_all()
            assert table.num_rows == len(rows)
            if "id" in table.column_names:
                assert table.column("id").to_pylist() == [row["id"] for row in rows]
            if "city" in table.column_names:
                found = zip(table.column("city").to_pylist(), table.column("n").to_pylist(), strict=True)
                assert [[json.loads(a), json.loads(b)] for a, b in found] == [row["key"] for row in rows]
            if not options.get("limit") and not options.get("offset"):
                unordered = lines(await streamed(service.shared, scan_request({**asked, "order": "any"})))
                assert sorted(map(str, unordered)) == sorted(map(str, rows))

        asyncio.run(check())
        assert leased(world) == 0 or options.get("consistency") != "tip"


def test_streams_of_a_real_store_with_long_keys(tmp_path: Path) -> None:
    """More keys than a block of the store has, some longer than LMDB takes."""
    docs = [
        Doc([("x" * 600 if at % 7 == 0 else "") + f"k{at % 50}", at], f"d{at}", b"{}") for at in range(3000)
    ]
    with closing(FoldWorker()) as folds, stores("lmdb", tmp_path, folds) as keep:
        world = World(CITY, node_count=2)
        world.keep = keep
        world.commit(3, {"by_city": docs})

        async def check() -> None:
            configured = ScanSettings.model_validate({"stream_block_bytes": 20_000})
            service = world.services(configured)["n0"]
            for asked in ({}, {"reverse": True}, {"low": ["xx"]}, {"distinct": True}, {"slices": [1]}):
                answer = await service.scan("by_city", scan_request({**asked, "limit": 5000}), nobody_leaves)
                rows = json.loads(answer.body)["rows"]
                assert lines(await streamed(service.shared, scan_request(asked))) == rows
                arrow = await streamed(service.shared, scan_request(asked), MEDIA_TYPE)
                table = pa.ipc.open_stream(arrow).read_all()
                assert table.column("city").to_pylist() == [row["key"][0] for row in rows]

        asyncio.run(check())


@pytest.mark.usefixtures("small_rounds")
def test_a_stream_holds_its_snapshot_and_gives_it_back() -> None:
    world = World(CITY, node_count=2)
    world.commit(3, {"by_city": [Doc([f"c{at:03}", at], f"u{at}", b"{}") for at in range(200)]})

    async def check() -> None:
        shared = world.services()["n0"].shared
        streams = Streams(shared)
        stream = await streams.open("by_city", ScanRequest(), NDJSON, nobody_leaves)
        assert stream.head["Keytide-Snapshot"] == "3"
        assert json.loads(stream.head["Keytide-Timestamp"])["0"] == {"offset": 3, "epoch": -1}
        first = await stream.next()
        for number in range(4, 10):  # the ring of every slice moves on
            world.commit(number, {"by_city": []})
        assert leased(world) == 4
        rest = [piece async for piece in pieces(stream)]
        assert len(lines(b"".join([first or b"", *rest]))) == 200
        assert leased(world) == 4
        await stream.close()
        assert leased(world) == 0

    asyncio.run(check())


async def pieces(stream: Any) -> Any:
    while (piece := await stream.next()) is not None:
        yield piece


def test_a_stream_of_a_held_snapshot_leaves_the_hold_to_its_reader() -> None:
    world = World(CITY, node_count=2)
    world.commit(3, {"by_city": [Doc(["a", 1], "u1", b"{}")]})
    with (
        serving(world.views["n0"], load_settings()) as one,
        serving(world.views["n1"], load_settings()) as two,
    ):
        for view in world.views.values():
            view.urls = {"n0": one, "n1": two}
        held = httpx.post(f"{one}/v1/indexes/by_city/snapshots", json={}).json()["at"]
        for number in range(4, 10):
            world.commit(number, {"by_city": []})
        for _ in range(2):
            answer = httpx.post(one + SCAN, json={"at": held}, headers={"Accept": NDJSON})
            assert [row["id"] for row in lines(answer.content)] == ["u1"]
        httpx.delete(f"{one}/v1/indexes/by_city/snapshots", params={"at": held})
        answer = httpx.post(one + SCAN, json={"at": held}, headers={"Accept": NDJSON})
        assert (answer.status_code, answer.json()["type"]) == (410, "snapshot-gone")


@pytest.mark.parametrize(
    ("asked", "status", "kind"),
    [
        ({"page": "x"}, 422, "invalid-request"),
        ({"types": {"city": "text"}}, 422, "invalid-request"),
        ({"explain": True}, 422, "invalid-request"),
        ({"order": "any", "limit": 3}, 422, "invalid-request"),
        ({"order": "up"}, 422, "invalid-request"),
        ({"equals": [1, 2, 3]}, 422, None),
        ({"session": "no"}, 422, "invalid-token"),
        ({"offset": 1_000_001}, 422, "offset-too-large"),
    ],
)
def test_errors_before_the_first_row_are_answers(
    asked: dict[str, Any], status: int, kind: str | None
) -> None:
    world = World(CITY, node_count=1)
    world.commit(3, {"by_city": []})
    with serving(world.views["n0"], load_settings()) as url:
        answer = httpx.post(url + SCAN, json=asked, headers={"Accept": NDJSON})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert kind in (None, answer.json()["type"])
        arrow = httpx.post(url + SCAN, json={"types": {"nn": "text"}}, headers={"Accept": MEDIA_TYPE})
        assert (arrow.status_code, arrow.json()["type"]) == (422, "unknown-column")
        unknown = httpx.post(url + "/v1/indexes/no/scan", json={}, headers={"Accept": NDJSON})
        assert (unknown.status_code, unknown.json()["type"]) == (404, "unknown-index")


def test_an_integer_that_no_json_reader_takes_ends_a_stream_with_what_to_do() -> None:
    world = World(CITY, node_count=1)
    world.commit(3, {"by_city": [Doc([10**5000, 1], "u1", b"{}"), Doc([1, 1], "u2", b"{}")]})
    with serving(world.views["n0"], load_settings()) as url:
        problem = lines(broken(url, NDJSON))[-1]["error"]
        assert (problem["type"], problem["status"]) == ("too-many-digits", 422)
        assert error_of(broken(url, MEDIA_TYPE))["type"] == "too-many-digits"
        answer = httpx.post(url + SCAN, json={})
        assert (answer.status_code, answer.json()["type"]) == (422, "too-many-digits")
        assert "columns" in answer.json()["next_step"]
        ids = httpx.post(url + SCAN, json={"columns": ["id"]}).json()["rows"]
        assert [row["id"] for row in ids] == ["u2", "u1"]
        wait_for(lambda: leased(world) == 0)


# --- readers that are slow, stop, or go away ----------------------------------


class Generated(FakeSnapshot):
    """A slice's part of a large index, worked out as it is read; counts what was read."""

    size = 0
    taken = 0

    def key(self, at: int) -> bytes:
        return encode_key([f"key-{at:08}", 0], (False, True)) + f"user-{at:08}".encode()

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        assert (high, start_after) == (None, None)
        if reverse:  # types are inferred from the last row, too
            assert limit is not None
            yield [(self.key(self.size - 1 - at), b"") for at in range(limit)]
            return
        first = int(low[5:13]) + 1 if len(low) > 1 else 0
        last = self.size if limit is None else min(self.size, first + limit)
        for start in range(first, last, 1024):
            block = [(self.key(at), b"") for at in range(start, min(last, start + 1024))]
            self.taken += len(block)
            yield block


def large_world(size: int) -> tuple[World, list[Generated]]:
    """Two slices with `size` rows each, of one key each in both."""
    world = World("CREATE INDEX by_city ON users (city, n DESC) WITH (slices=2)", node_count=1)
    world.commit(3, {"by_city": []})
    made = []
    for number, one in enumerate(world.views["n0"].slices.values()):
        snapshot = Generated(3, 0, Timestamp.of({0: 3, 1: 3}), [])
        snapshot.size = size
        snapshot.key = lambda at, number=number: (  # type: ignore[method-assign,misc]
            encode_key([f"key-{at:08}", 0], (False, True)) + f"user-{number}".encode()
        )
        one.snapshots[3] = one.tip = snapshot
        made.append(snapshot)
    return world, made


def settled(value: Callable[[], int], seconds: float = 1.0) -> int:
    """The value once it has not changed for a while."""
    seen, since = value(), time.monotonic()
    limit = since + 30
    while time.monotonic() - since < seconds:
        assert time.monotonic() < limit, "never settles"
        time.sleep(0.02)
        if value() != seen:
            seen, since = value(), time.monotonic()
    return seen


def ask_for_a_stream(url: str, form: str) -> socket.socket:
    """A connection on which a stream comes; nothing is read from it."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    request = (
        f"POST {SCAN} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: {form}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    connection.sendall(request.encode())
    return connection


@pytest.mark.slow
@pytest.mark.parametrize(("form", "rows"), [(NDJSON, 200_000), (MEDIA_TYPE, 1_000_000)])
def test_a_slow_reader_holds_up_the_slices_and_takes_no_memory(form: str, rows: int) -> None:
    world, slices = large_world(rows // 2)
    process = psutil.Process()
    with serving(world.views["n0"], load_settings()) as url:
        with ask_for_a_stream(url, form) as connection:
            wait_for(lambda: slices[0].taken > 0)
            read = settled(lambda: sum(one.taken for one in slices))
            # The first round, the one that was sent, the one that waits behind it, the one read ahead.
            assert read <= 4 * streaming_merge.ROUND_ROWS
            before, most = process.memory_info().rss, 0
            received = bytearray()
            size = 0
            while data := connection.recv(1 << 16):
                size += len(data)
                received = (received + data)[-200:]
                if size % (1 << 20) < len(data):
                    most = max(most, process.memory_info().rss)
                if received.endswith(b"0\r\n\r\n"):
                    break
            assert received.endswith(b"0\r\n\r\n"), "the stream is whole"
            assert size > 25 * rows
            assert rows <= sum(one.taken for one in slices) <= rows + 8, "and the ends, to infer types"
            assert most - before < 96 << 20, "memory grew with what was read"
        wait_for(lambda: leased(world) == 0)


def test_a_reader_that_goes_away_frees_its_snapshot() -> None:
    world, slices = large_world(300_000)
    with serving(world.views["n0"], load_settings(scan={"max_streams": 1})) as url:
        for _ in range(3):  # each gives its place to the next
            connection = ask_for_a_stream(url, NDJSON)
            wait_for(lambda: leased(world) == 2)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            busy = httpx.post(url + SCAN, json={}, headers={"Accept": NDJSON})
            assert (busy.status_code, busy.json()["type"]) == (503, "too-many-streams")
            connection.close()
            wait_for(lambda: leased(world) == 0)
            wait_for(lambda: all(one.readers == 0 for one in slices))
        assert sum(one.taken for one in slices) < 600_000


def test_a_reader_that_takes_nothing_is_let_go() -> None:
    world, _ = large_world(300_000)
    configured = load_settings(scan={"stream_stall_s": 0.3})
    with serving(world.views["n0"], configured) as url, ask_for_a_stream(url, NDJSON):
        wait_for(lambda: leased(world) == 2)
        wait_for(lambda: leased(world) == 0)


@pytest.mark.slow
def test_a_slow_reader_keeps_its_snapshot_beyond_the_lease() -> None:
    world, _ = large_world(80_000)
    lease_s = round(4 * slowness())
    settings = load_settings(scan={"lease_s": lease_s, "first_lease_s": lease_s})
    with serving(world.views["n0"], settings) as url:
        with ask_for_a_stream(url, NDJSON) as connection:
            wait_for(lambda: leased(world) == 2)
            [lease] = world.held()[0].leases.values()
            wait_for(lambda: now_ms() > lease + 500)
            assert leased(world) == 2
            while not connection.recv(1 << 20).endswith(b"0\r\n\r\n"):
                pass
        wait_for(lambda: leased(world) == 0)


# --- streams that cannot be finished --------------------------------------------


def broken(url: str, form: str, asked: dict[str, Any] | None = None) -> bytes:
    """What comes of a stream that is broken off."""
    received = b""
    with httpx.stream("POST", url + SCAN, json=asked or {}, headers={"Accept": form}) as answer:
        assert answer.status_code == 200
        chunks = answer.iter_bytes()
        try:
            while True:
                received += next(chunks)
        except httpx.RemoteProtocolError:
            return received
        except StopIteration:
            pytest.fail("the stream was not broken off")


def error_of(stream: bytes) -> dict[str, Any]:
    """The problem in the last message of an Arrow stream without an end mark."""
    reader = pa.ipc.open_stream(stream)
    while True:
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        if metadata and ERROR_KEY.encode() in metadata:
            assert batch.num_rows == 0
            problem: dict[str, Any] = json.loads(metadata[ERROR_KEY.encode()])
            return problem


@pytest.mark.usefixtures("small_rounds")
def test_a_value_that_does_not_fit_breaks_the_stream_and_names_its_column() -> None:
    world = World("CREATE INDEX by_city ON users (city, n) WITH (slices=1)", node_count=1)
    docs = [Doc([f"c{at:03}", at], f"u{at}") for at in range(1000)]
    world.commit(3, {"by_city": [*docs, Doc(["d", "text"], "u")]})
    with serving(world.views["n0"], load_settings()) as url:
        received = broken(url, MEDIA_TYPE)
        assert not received.endswith(b"\xff\xff\xff\xff\0\0\0\0")
        problem = error_of(received)
        assert (problem["type"], problem["column"]) == ("type-changed", "n")
        assert "types" in problem["next_step"]
        asked = {"types": {"n": "json"}}
        whole = httpx.post(url + SCAN, json=asked, headers={"Accept": MEDIA_TYPE}).content
        assert whole.endswith(b"\xff\xff\xff\xff\0\0\0\0")
        table = pa.ipc.open_stream(whole).read_all()
        assert table.column("n").to_pylist()[-2:] == ["999", '"text"']
        wait_for(lambda: leased(world) == 0)


@pytest.mark.parametrize("form", [NDJSON, MEDIA_TYPE])
def test_a_snapshot_that_is_lost_while_it_is_streamed(form: str) -> None:
    world, slices = large_world(20_000)

    def lose(at: int) -> bytes:
        if at == 9_000:
            world.views["n0"].slices["by_city-1", 1].restart()
        return encode_key([f"key-{at:08}", 0], (False, True)) + b"user-0"

    slices[0].key = lose  # type: ignore[method-assign]
    with serving(world.views["n0"], load_settings()) as url:
        received = broken(url, form)
        problem = lines(received)[-1]["error"] if form == NDJSON else error_of(received)
        assert problem["type"] == "snapshot-gone"
        wait_for(lambda: leased(world) == 0)


def test_damage_that_is_met_in_mid_stream() -> None:
    world, slices = large_world(20_000)

    def damaged(at: int) -> bytes:
        if at == 9_000:
            raise StoreDamagedError("a page is not what it was")
        return encode_key([f"key-{at:08}", 0], (False, True)) + b"user-0"

    slices[0].key = damaged  # type: ignore[method-assign]
    with serving(world.views["n0"], load_settings()) as url:
        last = lines(broken(url, NDJSON))[-1]
        assert last["error"]["type"] == "snapshot-gone"
        assert "a page is not what it was" in last["error"]["detail"]
        assert world.views["n0"].damaged


@pytest.mark.usefixtures("small_rounds")
def test_rows_that_cannot_be_are_found_out_by_their_slice() -> None:
    world = World("CREATE INDEX by_city ON users (city) WITH (slices=1)", node_count=1)
    world.commit(3, {"by_city": [Doc([f"c{at:03}"], f"u{at}") for at in range(100)]})
    [snapshot] = world.views["n0"].slices["by_city-1", 0].snapshots.values()
    snapshot.entries[90] = (snapshot.entries[90][0] + b"\xff\xfe", b"")
    for form in (NDJSON, MEDIA_TYPE):

        async def check(form: str = form) -> None:
            with pytest.raises(KeytideError) as caught:
                await streamed(world.services()["n0"].shared, ScanRequest(), form)
            assert caught.value.problem_type == "snapshot-gone"

        asyncio.run(check())
        assert world.views["n0"].doubted
        world.views["n0"].slices["by_city-1", 0].snapshots[3] = snapshot
        world.views["n0"].troubles.clear()
