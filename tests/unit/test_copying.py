"""Copies of slices from node to node: what is asked and answered, what goes wrong on the way, and the thread
that fills."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from indexer.copying import source as source_module
from indexer.copying.messages import (
    COPY_PATH,
    ChunkRefusedError,
    CopyChunk,
    CopyRequest,
    CopyUnknownError,
    GenerationGoneError,
    pack_chunk,
    pack_request,
    pack_rows,
    read_chunk,
    read_request,
)
from indexer.copying.rate_limit import LATE_S, RateLimit
from indexer.copying.source import IDLE_MS, MOST_EXPORTS, CopySources
from indexer.copying.target import CopyTarget
from indexer.hosting.filling import CopyFiller, FillProgress
from indexer.ingest import copy_worker as worker_module
from indexer.ingest.copy_worker import CopyWorker
from indexer.scan.peer.messages import MalformedRequestError
from indexer.serve.api import create_app
from indexer.serve.copies import CopyEndpoint
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, Counts, Row, SliceStore, StoreDamagedError, StoreExport
from indexer.store.lmdb.copying import LmdbSliceFilling
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import (
    ClusterRecord,
    IndexRecord,
    KeyspaceRecord,
    Record,
    RollbackRecord,
    encode_record,
    record_key,
)
from keytide.errors import InvariantViolationError, RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.settings.settings import load_settings
from tests import share
from tests.live_node import LiveNode
from tests.memory_store.copying import MemorySliceFilling
from tests.memory_store.store import MemorySliceStore
from tests.posts import post_to
from tests.store_kit import SMALL, Version, exported, key, lmdb_store, segments, state
from tests.unit.scan_world import SECRET, definition_of, of_the_cluster
from tests.waiting import wait_for

INDEX = "by_city-1"
COPY = CopyRecord("c1", INDEX, 0, "n1", "n0", 0, 0, 0)
FIRST = CopyRequest("c1", INDEX, 0, "", "forward", b"")


def catalog_of(*records: Record) -> Catalog:
    definition = definition_of("CREATE INDEX by_city ON users (city) WITH (slices=2)")
    index = IndexRecord(INDEX, definition, "READY", 1, [["n0"], ["n0"]], "b1", 0)
    catalog = Catalog()
    for record in (ClusterRecord("c", SECRET, 0), KeyspaceRecord("users", "t", 1, 1), index, *records):
        catalog.apply(record_key(record), encode_record(record), catalog.offset)
    return catalog


def versions(first: int, count: int) -> list[Version]:
    return [
        Version(b"d%03d" % (n % 50), 0, n, entries=((key(f"k{n:04}"), b""),))
        for n in range(first, first + count)
    ]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows each."""
    monkeypatch.setattr(source_module, "CHUNK_BYTES", 100)


@dataclass
class Source:
    """A node with one slice, as those who copy it see it."""

    store: SliceStore = field(default_factory=lambda: MemorySliceStore(Applied(), check=True))
    catalog: Catalog = field(default_factory=lambda: catalog_of(COPY))
    open: bool = True
    number: int = 0
    exports: list[StoreExport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sources = CopySources(self._export, lambda: self.catalog, "n0")

    def _export(self, index: str, slice_number: int) -> StoreExport | None:
        assert (index, slice_number) == (INDEX, 0)
        if not self.open:
            return None
        self.exports.append(self.store.export())
        return self.exports[-1]

    def fold(self, count: int = 30) -> None:
        """New versions, made durable."""
        self.number += 1
        offset = self.store.applied.timestamp.offset(0)
        self.store.apply(segments(versions(offset, count)), state(self.number, p0=offset + count))
        assert self.store.start_fold()
        assert self.store.finish_fold(30) is not None

    def answer(self, request: CopyRequest, now: int = 0) -> bytes:
        """As over the wire."""
        return self.sources.answer(read_request(pack_request(request)), now)

    def closed(self, export: StoreExport) -> bool:
        try:
            export.rows("forward", b"", 1)
        except RetryableError as error:
            return error.problem_type == "snapshot-closed"
        return False


@pytest.fixture
def source() -> Source:
    made = Source()
    made.fold()
    return made


def fill(source: Source, target: CopyTarget) -> None:
    while not target.done:
        target.take(source.answer(target.request()))


# --- what goes right --------------------------------------------------------------------------------------


def test_a_copy_is_filled_chunk_by_chunk(source: Source) -> None:
    filling = MemorySliceFilling()
    target = CopyTarget(COPY, filling)
    assert target.request() == FIRST
    asked = []
    while not target.done:
        asked.append(target.request())
        target.take(source.answer(asked[-1]))
    export = source.store.export()
    assert (target.rows, target.rows_total) == (export.rows_total, export.rows_total)
    assert len(asked) > 10
    assert {request.generation for request in asked[1:]} == {export.generation}
    copy = MemorySliceStore.filled(filling)
    assert exported(copy.export()) == exported(export)
    assert (copy.applied, copy.counts) == (export.applied, export.counts)
    assert len(source.exports) == 1


def test_a_copy_of_nothing_is_a_copy() -> None:
    source, filling = Source(), MemorySliceFilling()
    target = CopyTarget(COPY, filling)
    target.take(source.answer(target.request()))
    assert (target.done, target.rows, target.rows_total) == (True, 0, 0)


def test_what_is_folded_meanwhile_does_not_show(source: Source) -> None:
    filling = MemorySliceFilling()
    target, applied = CopyTarget(COPY, filling), source.store.applied
    for _ in range(4):
        target.take(source.answer(target.request()))
        source.fold()
    fill(source, target)
    assert MemorySliceStore.filled(filling).applied == applied


# --- the source -------------------------------------------------------------------------------------------


def test_no_byte_is_given_before_the_record_is_known(source: Source) -> None:
    others: list[tuple[Record, ...]] = [
        (),
        (msgspec.structs.replace(COPY, source="n2"),),
        (msgspec.structs.replace(COPY, slice=1),),
        (msgspec.structs.replace(COPY, index="other-1"),),
        (msgspec.structs.replace(COPY, id="c2"),),
    ]
    for records in others:
        source.catalog = catalog_of(*records)
        with pytest.raises(CopyUnknownError):
            source.answer(FIRST)
    assert source.exports == []
    source.catalog = catalog_of(COPY)
    source.answer(FIRST)


def test_an_export_ends_with_its_record(source: Source) -> None:
    source.answer(FIRST)
    source.sources.expire(0)
    assert not source.closed(source.exports[0])
    source.catalog = catalog_of(msgspec.structs.replace(COPY, source="n2"))
    source.sources.expire(0)
    assert source.closed(source.exports[0])
    with pytest.raises(CopyUnknownError):
        source.answer(FIRST)


def test_an_export_that_nobody_asks_for_is_closed_and_named_again_while_nothing_changes(
    source: Source,
) -> None:
    target = CopyTarget(COPY, MemorySliceFilling())
    target.take(source.answer(target.request(), 0))
    target.take(source.answer(target.request(), IDLE_MS - 1))
    source.sources.expire(2 * IDLE_MS - 2)
    assert not source.closed(source.exports[0])
    source.sources.expire(2 * IDLE_MS - 1)
    assert source.closed(source.exports[0])
    target.take(source.answer(target.request(), 3 * IDLE_MS))
    source.fold()
    with pytest.raises(GenerationGoneError):
        source.answer(target.request(), 5 * IDLE_MS)
    assert all(map(source.closed, source.exports))
    target.gone()
    assert target.request() == FIRST
    fill(source, target)


def test_the_last_answer_can_be_asked_for_again(source: Source) -> None:
    target = CopyTarget(COPY, MemorySliceFilling())
    while (body := source.answer(target.request())) and not read_chunk(target.request(), body)[0].done:
        target.take(body)
        source.fold()
    target.take(source.answer(target.request()))
    assert target.done


def test_exports_are_few(source: Source) -> None:
    records = [msgspec.structs.replace(COPY, id=f"c{n}") for n in range(MOST_EXPORTS + 1)]
    source.catalog = catalog_of(*records)
    asks = [msgspec.structs.replace(FIRST, copy=record.id) for record in records]
    for ask in asks[:-1]:
        source.answer(ask)
    with pytest.raises(RetryableError) as caught:
        source.answer(asks[-1])
    assert caught.value.problem_type == "copies-busy"
    source.catalog = catalog_of(*records[1:])
    source.answer(asks[-1])
    source.sources.close()
    assert all(map(source.closed, source.exports))


def rollback(*, holds: bool, incarnation: int = 1) -> RollbackRecord:
    cut = state(p0=30 if holds else 10).timestamp
    return RollbackRecord("users", incarnation, 0, cut, "t", "truncated", 0)


@pytest.mark.parametrize("why", ["away", "building", "void"])
def test_a_slice_that_is_not_in_order_is_not_copied(source: Source, why: str) -> None:
    if why == "away":
        source.open = False
    elif why == "building":
        source.store = MemorySliceStore(Applied(building=True))
    else:
        source.catalog = catalog_of(
            COPY, KeyspaceRecord("users", "t", 1, 1, incarnation=1), rollback(holds=False)
        )
    with pytest.raises(RetryableError) as caught:
        source.answer(FIRST)
    assert caught.value.problem_type == "index-not-ready"
    assert all(map(source.closed, source.exports))


def test_a_rollback_ends_the_exports_that_it_takes_back(source: Source) -> None:
    target = CopyTarget(COPY, MemorySliceFilling())
    target.take(source.answer(target.request()))
    keyspace = KeyspaceRecord("users", "t", 1, 1, incarnation=1)
    source.catalog = catalog_of(COPY, keyspace, rollback(holds=True))
    target.take(source.answer(target.request()))
    source.catalog = catalog_of(COPY, keyspace, rollback(holds=False))
    source.sources.expire(0)
    assert source.closed(source.exports[0])


def test_a_store_that_is_closed_or_damaged_ends_its_export(source: Source) -> None:
    source.answer(FIRST)
    source.store.close()
    with pytest.raises(RetryableError) as caught:
        source.answer(FIRST)
    assert caught.value.problem_type == "snapshot-closed"
    assert source.sources.exports == []


# --- what is no answer ------------------------------------------------------------------------------------


def chunk_of(given: list[Row], **others: Any) -> CopyChunk:
    fields: dict[str, Any] = {
        "generation": "g",
        "applied": Applied(),
        "counts": Counts(),
        "rows_total": 9,
        "table": "long",
        "rows": pack_rows(given),
        "done": not given,
    }
    return CopyChunk(**{**fields, **others})


ASKED = CopyRequest("c1", INDEX, 0, "g", "long", b"m")
WELL = chunk_of([(b"n", b"1"), (b"o", b"")])
REFUSED = {
    "another generation": chunk_of([(b"n", b"1")], generation="h"),
    "no generation": chunk_of([(b"n", b"1")], generation=""),
    "not behind": chunk_of([(b"m", b"1")]),
    "out of order": chunk_of([(b"o", b"1"), (b"n", b"1")]),
    "twice": chunk_of([(b"n", b"1"), (b"n", b"1")]),
    "an earlier table": chunk_of([(b"n", b"1")], table="forward"),
    "no key": chunk_of([(b"", b"1")], table="back"),
    "a key that is too long": chunk_of([(b"n" * 512, b"1")]),
    "no rows, and not done": chunk_of([], done=False),
    "done, and rows": chunk_of([(b"n", b"1")], done=True),
    "rows that are none": chunk_of([], rows=b"\xc1", done=False),
    "rows of something else": chunk_of([], rows=msgspec.msgpack.encode([["n", 1]]), done=False),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_an_answer_is_refused_and_changes_nothing(why: str) -> None:
    filling = MemorySliceFilling()
    filling.begin("g")
    filling.put("long", [(b"m", b"1")])
    target = CopyTarget(COPY, filling)
    assert target.request() == ASKED
    with pytest.raises(ChunkRefusedError):
        target.take(pack_chunk(ASKED, REFUSED[why]))
    assert (filling.place, filling.rows, filling.finished) == (("long", b"m"), 1, False)
    target.take(pack_chunk(ASKED, WELL))
    assert (filling.place, target.rows, target.rows_total) == (("long", b"o"), 3, 9)


def test_every_byte_of_an_answer_counts() -> None:
    body = pack_chunk(ASKED, WELL)
    assert read_chunk(ASKED, body)[1] == [(b"n", b"1"), (b"o", b"")]
    for at in range(len(body)):
        for flip in (1, 0x80):
            spoiled = body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :]
            with pytest.raises(ChunkRefusedError):
                read_chunk(ASKED, spoiled)
        with pytest.raises(ChunkRefusedError):
            read_chunk(ASKED, body[:at])


def test_an_answer_to_another_request_is_refused() -> None:
    body = pack_chunk(ASKED, WELL)
    for others in (
        {"copy": "c2"},
        {"index": "other-1"},
        {"slice": 1},
        {"generation": ""},
        {"table": "forward"},
        {"after": b"l"},
    ):
        with pytest.raises(ChunkRefusedError):
            read_chunk(msgspec.structs.replace(ASKED, **others), body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({**msgspec.to_builtins(FIRST), "table": "meta"}),
        msgspec.msgpack.encode({**msgspec.to_builtins(FIRST), "slice": -1}),
        msgspec.msgpack.encode({**msgspec.structs.asdict(FIRST), "after": b"x" * 512}),
        msgspec.msgpack.encode({"copy": "c1"}),
    ],
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        read_request(body)


def test_rows_that_are_not_those_that_were_counted_are_fetched_again(source: Source) -> None:
    filling = MemorySliceFilling()
    target = CopyTarget(COPY, filling)
    target.take(source.answer(target.request()))
    request = target.request()
    wrong = chunk_of([], generation=request.generation, counts=Counts(entries=99))
    with pytest.raises(StoreDamagedError):
        target.take(pack_chunk(request, wrong))
    assert target.request() == FIRST
    fill(source, target)
    assert exported(MemorySliceStore.filled(filling).export()) == exported(source.store.export())


# --- any history ------------------------------------------------------------------------------------------

STEPS = (
    "ask",
    "ask",
    "ask",
    "ask",
    "drop",
    "late",
    "twice",
    "kill",
    "fold",
    "back",
    "restart",
    "idle",
    "other",
)


@settings(max_examples=share.examples(300), deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=60), seed=st.integers(0, 9))
def test_a_copy_is_one_commit_whatever_happens(steps: list[str], seed: int) -> None:
    """Answers are lost, late or come twice; the target is killed; the source folds, steps back, is started
    again, forgets, or another copy of the slice takes its place."""
    source, filling, now = Source(), MemorySliceFilling(), 0
    commits: list[Any] = []

    def note() -> None:
        commits.append((source.store.durable, exported(source.store.export())))

    note()
    source.fold(seed * 10 + 1)
    note()
    target, sent = CopyTarget(COPY, filling), list[bytes]()

    def ask() -> bytes | None:
        try:
            sent.append(source.answer(target.request(), now))
        except GenerationGoneError:
            target.gone()
            return None
        except RetryableError as error:
            if error.problem_type != "snapshot-closed":
                raise
            return None
        return sent[-1]

    for step in [*steps, *["ask"] * 200]:
        if target.done:
            break
        match step:
            case "ask" if (body := ask()) is not None:
                target.take(body)
            case "drop":
                ask()
            case "late" | "twice" if sent:
                body, before = sent[-1] if step == "twice" else sent[len(sent) // 2], filling.rows
                try:
                    target.take(body)
                except ChunkRefusedError:
                    assert filling.rows == before
            case "kill":
                target = CopyTarget(COPY, filling)
            case "fold":
                source.fold(7)
            case "back":
                source.store.step_back(lambda applied: applied.number < source.store.durable.number)
            case "restart" if isinstance(source.store, MemorySliceStore):
                source.store.close()
                source.store = source.store.reopened()
            case "idle":
                now += IDLE_MS
                source.sources.expire(now)
            case "other" if isinstance(source.store, MemorySliceStore):
                source.store = source.store.reopened()
                source.sources.close()
            case _:
                pass
        note()
    assert target.done
    copy = MemorySliceStore.filled(filling)
    copy.check_mirror()
    assert (copy.applied, exported(copy.export())) in commits


# --- the worker -------------------------------------------------------------------------------------------


class Wire:
    """Between two nodes: requests go to a source, or to a whole node; what goes wrong is set by hand.

    Attributes:
        asked: requests.
        sizes: copy -> bytes of each answer.
        requests: that came.
    """

    def __init__(self, source: Source | TestClient) -> None:
        self.source = source
        self.asked = 0
        self.sizes = defaultdict[str, list[int]](list)
        self.requests: list[CopyRequest] = []
        self.down = False
        self.spoil = 0
        self.hold = threading.Event()
        self.hold.set()
        self.lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            self.requests.append(read_request(request.content))
            self.asked += 1
        self.hold.wait(30)
        if self.down:
            raise httpx.ConnectError("refused")
        if isinstance(self.source, TestClient):
            headers = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
            answer = self.source.post(request.url.path, content=request.content, headers=headers)
            status, body = answer.status_code, answer.content
        else:
            try:
                with self.lock:  # (as in a node)
                    status, body = 200, self.source.answer(read_request(request.content))
            except RetryableError as error:
                status, body = error.status, msgspec.json.encode(error.problem())
        if self.spoil:
            self.spoil -= 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.sizes[read_request(request.content).copy].append(len(body))
        return httpx.Response(status, content=body)


Make = Callable[..., CopyWorker]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(worker_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(worker_module, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(worker_module, "DAMAGED_PAUSE_S", 0.01)
    made: list[CopyWorker] = []

    def worker(
        wire: Wire, open_filling: Any = None, rate: int = 0, urls: Any = None, count: Any = int
    ) -> CopyWorker:
        urls = {"n0": "http://127.0.0.1:1"} if urls is None else urls
        client = BlockingNodeClient("", post_to(wire))
        fillings: dict[Path, MemorySliceFilling] = {}
        memory = lambda folder: fillings.setdefault(folder, MemorySliceFilling())  # noqa: E731
        one = CopyWorker(lambda: catalog_of(COPY), urls.get, client, open_filling or memory, rate, count)
        made.append(one)
        return one

    yield worker
    for one in made:
        one.check()
        assert one.close(10)


def failed_with(worker: CopyWorker, family: type[Exception]) -> bool:
    """Whether one of its threads has ended with such an error."""
    try:
        worker.check()
    except family:
        return True
    return False


def test_the_worker_fills_a_copy_from_a_node_that_the_node_then_opens(
    make: Make, tmp_path: Path, folds: FoldWorker
) -> None:
    node = LiveNode(tmp_path / "n0")
    with TestClient(create_app(node.view, load_settings(), CollectorRegistry())) as client:
        thread = make(Wire(client), lambda folder: LmdbSliceFilling(folder, SMALL))
        worker: CopyFiller = thread
        for record in node.catalog.copies()[:2]:
            folder = tmp_path / f"filling-{record.id}"
            assert worker.look(record.id) == FillProgress()
            worker.begin(record, folder)
            progress = wait_for(lambda record=record: (p := worker.look(record.id)).done and p)  # type: ignore[misc]
            source = node.stores[record.index, record.slice]
            export = source.export()
            assert progress == FillProgress(export.rows_total, export.rows_total, "", True)
            worker.leave(record.id)
            copy = lmdb_store(folder, folds)
            assert exported(copy.export()) == exported(export)
            assert (copy.applied, copy.counts) == (export.applied, export.counts)
            export.close()
            copy.close()
        third = node.catalog.copies()[2]
        worker.begin(msgspec.structs.replace(third, source="n0"), tmp_path / "third")
        wait_for(lambda: "copy-unknown" in worker.look(third.id).error)
        assert thread.close(10)
        answer = client.post(COPY_PATH, content=b"\xc1", headers=of_the_cluster())
        assert (answer.status_code, answer.json()["type"]) == (422, "invalid-request")
        assert client.post(COPY_PATH, content=pack_request(FIRST)).status_code == 401
    node.check()
    node.close()


def test_a_damaged_slice_is_reported_by_who_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = LiveNode(tmp_path / "n0")

    def damaged(*_: object) -> list[Row]:
        raise StoreDamagedError("a page is wrong")

    monkeypatch.setattr("indexer.store.lmdb.copying.LmdbExport.rows", damaged)
    with TestClient(create_app(node.view, load_settings(), CollectorRegistry())) as client:
        for problem in ("store-damaged", "index-not-ready"):
            answer = client.post(COPY_PATH, content=pack_request(FIRST), headers=of_the_cluster())
            assert (answer.status_code, answer.json()["type"]) == (503, problem)
    assert node.rings[INDEX, 0].damage == "a page is wrong"
    node.close()


def test_the_worker_says_what_it_waits_for_and_goes_on(make: Make, source: Source, tmp_path: Path) -> None:
    urls: dict[str, str] = {}
    wire = Wire(source)
    worker = make(wire, urls=urls)
    wire.down, source.open = True, False
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: worker.look("c1").error == "node n0 is not known to be running")
    urls["n0"] = "http://127.0.0.1:1"
    wait_for(lambda: worker.look("c1").error == "node n0 cannot be asked: refused")
    wire.down = False
    wait_for(lambda: "index-not-ready" in worker.look("c1").error)
    wire.spoil, source.open = 3, True
    wait_for(lambda: worker.look("c1").done)
    assert worker.look("c1").error == ""


def test_the_worker_begins_again_when_the_generation_is_gone(
    make: Make, source: Source, tmp_path: Path
) -> None:
    wire, filling = Wire(source), MemorySliceFilling()
    worker = make(wire, lambda _: filling)
    filling.begin("of an opening that is over")
    filling.put("forward", [(b"x", b"")])
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: worker.look("c1").done)
    assert exported(MemorySliceStore.filled(filling).export()) == exported(source.store.export())


def test_another_source_takes_over_and_a_copy_that_is_left_is_touched_no_more(
    make: Make, source: Source, tmp_path: Path
) -> None:
    wire, filling = Wire(source), MemorySliceFilling()
    urls = {"n0": "http://127.0.0.1:1", "n2": "http://127.0.0.1:2"}
    worker = make(wire, lambda _: filling, urls=urls)
    wire.hold.clear()
    worker.begin(COPY, tmp_path / "f")
    worker.begin(msgspec.structs.replace(COPY, id="c2"), tmp_path / "g")
    wait_for(lambda: wire.asked == 2)
    worker.leave("c2")
    other = msgspec.structs.replace(COPY, source="n2")
    source.catalog = catalog_of(other)
    source.sources = CopySources(source._export, lambda: source.catalog, "n2")
    worker.begin(other, tmp_path / "f")
    wire.hold.set()
    wait_for(lambda: worker.look("c1").done)
    worker.leave("c1")
    wire.hold.clear()
    asked, filling.finished = wire.asked, False
    filling.begin("")
    worker.begin(other, tmp_path / "f")
    wait_for(lambda: wire.asked > asked)
    worker.leave("c1")
    wire.hold.set()
    assert worker.look("c1") == FillProgress()
    time.sleep(0.1)
    assert (filling.rows, wire.asked) == (0, asked + 1)


def test_the_rate_is_held(make: Make, source: Source, tmp_path: Path) -> None:
    counted: list[int] = []
    began, wire = time.monotonic(), Wire(source)
    worker = make(wire, rate=20_000, count=counted.append)
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: worker.look("c1").done)
    assert counted == wire.sizes["c1"]
    assert time.monotonic() - began > 0.9 * sum(wire.sizes["c1"][:-1]) / 20_000 > 0.1


@pytest.mark.parametrize("asking_s", [0.0, 0.003, 0.02])
@pytest.mark.parametrize("late_s", [0.0, 0.002])
def test_a_rate_is_kept_to_by_who_shares_it_however_long_an_answer_takes(
    asking_s: float, late_s: float
) -> None:
    """Two that ask for 1 MB each, and rest, at 50 MB/s: no more than that after any time, and what it is at
    the end."""
    limit, size, now, taken = RateLimit(50_000_000), 1_000_000, 100.0, 0
    next_ask = [now, now]
    while now < 110.0:
        who = next_ask.index(min(next_ask))
        asked = next_ask[who]
        now = asked + asking_s
        limit.take(size, asked)
        taken += size
        next_ask[who] = max(limit.due, now) + late_s
        assert taken - 2 * size <= 50_000_000 * (now - 100.0 + LATE_S)
    assert taken == pytest.approx(500_000_000, rel=0.02)


def test_a_slow_copy_asks_for_little_at_once(make: Make, source: Source, tmp_path: Path) -> None:
    """Of its rate, and not more than the source gives; and a request without a wish is that of the release
    before, whose checksums know of none."""
    assert RateLimit(0).chunk_bytes > source_module.CHUNK_BYTES
    assert RateLimit(1).chunk_bytes == 64 * 1024
    assert RateLimit(8_000_000).chunk_bytes == 2_000_000
    wished = msgspec.structs.replace(FIRST, most_bytes=70)
    assert msgspec.msgpack.decode(pack_request(wished))["most_bytes"] == 70
    assert "most_bytes" not in msgspec.msgpack.decode(pack_request(FIRST))
    few, most = (len(read_chunk(FIRST, source.answer(one))[1]) for one in (wished, FIRST))
    assert (
        0
        < few
        < most
        == len(read_chunk(FIRST, source.answer(msgspec.structs.replace(FIRST, most_bytes=1 << 20)))[1])
    )
    wire = Wire(source)
    worker = make(wire, rate=20_000)
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: wire.asked > 1)
    assert {request.most_bytes for request in wire.requests} == {64 * 1024}


def test_what_lies_behind_is_asked_for_while_the_disk_is_waited_for(
    make: Make, source: Source, tmp_path: Path
) -> None:
    """One answer waits for the disk, one has come, and no more are asked for."""
    held, filling = threading.Event(), MemorySliceFilling()
    put = filling.put

    def slow(table: Any, rows: Any) -> None:
        held.wait(20)
        put(table, rows)

    filling.put = slow  # type: ignore[method-assign]
    wire = Wire(source)
    worker = make(wire, lambda _: filling)
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: wire.asked == 2)
    time.sleep(0.05)
    assert (wire.asked, worker.look("c1").rows) == (2, 0)
    held.set()
    wait_for(lambda: worker.look("c1").done)
    assert exported(MemorySliceStore.filled(filling).export()) == exported(source.store.export())


def test_a_copy_whose_rows_were_not_those_that_were_counted_is_filled_again(
    make: Make, source: Source, tmp_path: Path
) -> None:
    """Not at once, and what was wrong is told until it is whole."""
    filling, told = MemorySliceFilling(), list[str]()
    put = filling.put

    def lossy(table: Any, rows: Any) -> None:
        told.append(worker.look("c1").error)
        put(table, rows if len(told) > 1 else rows[:-1])

    filling.put = lossy  # type: ignore[method-assign]
    wire = Wire(source)
    worker = make(wire, lambda _: filling)
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: worker.look("c1").done)
    assert exported(MemorySliceStore.filled(filling).export()) == exported(source.store.export())
    assert sum(not request.generation for request in wire.requests) == 2
    chunks = len(told) // 2
    assert [bool(error) for error in told] == [False] * chunks + [True] * chunks
    assert worker.look("c1").error == ""


def test_a_copy_that_is_counted_wrongly_by_its_source_is_not_filled_on_and_on(
    make: Make, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "DAMAGED_PAUSE_S", 0.1)
    filling = MemorySliceFilling()

    def finish(*_: object) -> None:
        raise StoreDamagedError("rows are missing")

    monkeypatch.setattr(MemorySliceFilling, "finish", finish)
    wire = Wire(source)
    worker = make(wire, lambda _: filling)
    worker.begin(COPY, tmp_path / "f")
    began = time.monotonic()
    wait_for(lambda: sum(not request.generation for request in wire.requests) == 4)
    assert time.monotonic() - began > 0.1 + 0.2 + 0.4
    assert worker.look("c1").error == "rows are missing"


def test_what_the_disk_says_comes_before_what_the_source_says(source: Source, tmp_path: Path) -> None:
    """A bug that a put has found ends the process, also when nobody answers any more."""
    filling, wire = MemorySliceFilling(), Wire(source)

    def put(table: Any, rows: Any) -> None:
        wire.down = True
        wait_for(lambda: wire.asked > 1)
        raise InvariantViolationError("Mirror", f"{len(rows)} rows of {table} are out of order")

    filling.put = put  # type: ignore[method-assign]
    client = BlockingNodeClient("", post_to(wire))
    worker = CopyWorker(
        lambda: source.catalog, lambda _: "http://127.0.0.1:1", client, lambda _: filling, 0, int
    )
    worker.begin(COPY, tmp_path / "f")

    wait_for(lambda: failed_with(worker, InvariantViolationError))
    assert worker.close(10)


def test_a_copy_gives_way_when_the_loop_comes_late(tmp_path: Path) -> None:
    """Its answer is there, and waits as scans do, and some times as long."""
    node = LiveNode(tmp_path / "n0")

    async def took() -> float:
        endpoint, ask = CopyEndpoint(node.view), pack_request(FIRST)
        await endpoint.answer(ask)
        answering = asyncio.create_task(endpoint.answer(ask))
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - the loop is busy, for much longer than the answer takes
        began = time.monotonic()
        await answering
        took = time.monotonic() - began
        await endpoint.close()
        return took

    assert asyncio.run(took()) > 0.2
    node.close()


def test_a_rate_is_not_saved_up() -> None:
    limit = RateLimit(1_000_000)
    limit.take(1_000, 10.0)
    limit.take(1_000, 70.0)
    assert limit.due > 70.0


def test_a_copy_has_its_own_rate_or_its_part_of_the_nodes(make: Make, source: Source, tmp_path: Path) -> None:
    """A node at 20 kB/s: two copies take twice as long, and one with a rate of its own does not wait."""
    records = [msgspec.structs.replace(COPY, id=f"c{n}", rate=1 << 40 if n == 2 else 0) for n in range(3)]
    source.catalog = catalog_of(*records)
    wire = Wire(source)
    worker = make(wire, rate=20_000)
    began = time.monotonic()
    for record in records:
        worker.begin(record, tmp_path / record.id)
    wait_for(lambda: worker.look("c2").done)
    assert not any(worker.look(id_).done for id_ in ("c0", "c1"))
    wait_for(lambda: worker.look("c0").done and worker.look("c1").done)
    shared = sum(wire.sizes["c0"][:-1]) + sum(wire.sizes["c1"][:-1])
    assert time.monotonic() - began > 0.9 * shared / 20_000 > 0.2


@pytest.mark.parametrize(("node", "slow"), [(0, 1), (1, 0)])
def test_another_rate_is_taken_in_the_middle_of_a_rest(
    make: Make, source: Source, tmp_path: Path, node: int, slow: int
) -> None:
    """At 1 byte/s a chunk is rested for minutes. The copy goes on with what it has."""
    wire, filling, opened = Wire(source), MemorySliceFilling(), list[Path]()

    def open_filling(folder: Path) -> MemorySliceFilling:
        opened.append(folder)
        return filling

    worker = make(wire, open_filling, rate=node)
    record = msgspec.structs.replace(COPY, rate=slow)
    worker.begin(record, tmp_path / "f")
    wait_for(lambda: worker.look("c1").rows)
    time.sleep(0.05)
    assert (wire.asked, worker.look("c1").error) == (1, "")
    generation, began = filling.generation, time.monotonic()
    worker.begin(msgspec.structs.replace(record, rate=1 << 40 if node else 0), tmp_path / "f")
    wait_for(lambda: worker.look("c1").done)
    assert time.monotonic() - began < 5
    assert (filling.generation, len(opened)) == (generation, 1)
    assert len(source.exports) == 1
    assert exported(MemorySliceStore.filled(filling).export()) == exported(source.store.export())


def test_a_rate_is_lowered_while_a_copy_is_filled(make: Make, source: Source, tmp_path: Path) -> None:
    wire = Wire(source)
    worker = make(wire)
    wire.hold.clear()
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: wire.asked)
    worker.begin(msgspec.structs.replace(COPY, rate=1), tmp_path / "f")
    wire.hold.set()
    wait_for(lambda: worker.look("c1").rows)
    time.sleep(0.1)
    assert (wire.asked, worker.look("c1").done) == (1, False)
    worker.leave("c1")
    assert worker.close(5), "a rest holds up nothing"


def test_a_source_that_is_silent_holds_up_no_other_copy(make: Make, source: Source, tmp_path: Path) -> None:
    other = msgspec.structs.replace(COPY, id="c2")
    source.catalog = catalog_of(COPY, other)
    silent, answers = Wire(source), Wire(source)
    silent.hold.clear()
    urls = {"n0": "http://127.0.0.1:1"}
    worker = make(lambda request: (answers if b"c2" in request.content else silent)(request), urls=urls)
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: silent.asked)
    worker.begin(other, tmp_path / "g")
    wait_for(lambda: worker.look("c2").done)
    assert worker.look("c1") == FillProgress()
    silent.hold.set()
    wait_for(lambda: worker.look("c1").done)


def test_a_copy_begins_when_nobody_is_at_work_in_its_folder_any_more(
    make: Make, source: Source, tmp_path: Path
) -> None:
    at_work: list[str] = []

    class Alone(MemorySliceFilling):
        def __init__(self) -> None:
            super().__init__()
            at_work.append("")

        def begin(self, generation: str) -> None:
            MemorySliceFilling.__init__(self)
            self.generation = generation

        def close(self) -> None:
            at_work.pop()

    def alone(_: Path) -> MemorySliceFilling:
        assert not at_work
        return Alone()

    wire, other = Wire(source), msgspec.structs.replace(COPY, id="c2")
    worker = make(wire, alone)
    wire.hold.clear()
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: wire.asked)
    worker.leave("c1")
    source.catalog = catalog_of(other)
    worker.begin(other, tmp_path / "f")
    wait_for(lambda: "the copy that was filled here before" in worker.look("c2").error)
    assert (wire.asked, len(at_work)) == (1, 1)
    wire.hold.set()
    wait_for(lambda: worker.look("c2").done)


def test_a_full_disk_is_waited_for(make: Make, source: Source, tmp_path: Path) -> None:
    class Full(MemorySliceFilling):
        full = True

        def put(self, *arguments: Any) -> None:
            if Full.full:
                raise RetryableError("no room", problem_type="disk-full")
            super().put(*arguments)

    filling = Full()
    worker = make(Wire(source), lambda _: filling)
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: worker.look("c1").error == "no room")
    Full.full = False
    wait_for(lambda: worker.look("c1").done)


def test_the_disk_of_a_copy_that_is_left_may_be_deleted_at_once(
    make: Make, source: Source, tmp_path: Path
) -> None:
    class Deleted(MemorySliceFilling):
        def put(self, *_: Any) -> None:
            worker.leave("c1")
            raise FileNotFoundError("data.mdb")

    worker = make(Wire(source), lambda _: Deleted())
    worker.begin(COPY, tmp_path / "f")
    wait_for(lambda: worker.look("c1") == FillProgress())
    time.sleep(0.05)
    worker.check()


def test_a_bug_ends_the_worker_and_is_told(source: Source, tmp_path: Path) -> None:
    def broken(_: Path) -> MemorySliceFilling:
        raise ZeroDivisionError

    client = BlockingNodeClient("", post_to(Wire(source)))
    worker = CopyWorker(lambda: source.catalog, lambda _: None, client, broken, 0, int)
    worker.begin(COPY, tmp_path / "f")

    wait_for(lambda: failed_with(worker, ZeroDivisionError))
    assert worker.close(10)
