"""Real scan processes before a node in this process, with slices on LMDB stores that commit and fold all the
time: what they answer, and what it costs when one is killed or stands still."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from indexer.hosting.node import ServingNode
from indexer.hosting.slice_runner import SliceKey
from indexer.hosting.snapshots import SnapshotRing
from indexer.scan_processes.passing import Passed
from indexer.scan_processes.supervisor import ScanProcesses
from indexer.scan_processes.telling import Telling
from indexer.serve.api import create_app
from indexer.serve.one_write import OneWriteProtocol
from indexer.store.fold.worker import FoldWorker
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import MIB, StoreSettings
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import (
    ClusterRecord,
    IndexRecord,
    KeyspaceRecord,
    NodeRecord,
    Record,
    encode_record,
    record_key,
)
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.serving.listener import reserve
from keytide.serving.server import server_of
from keytide.settings.settings import load_settings
from keytide.wire.messages import Message, Published, StabilityTimestamp, encode
from tests.live_node import KEYSPACE, SECRET
from tests.store_kit import Version, lmdb_store, segments, state
from tests.unit.certificates import Authority
from tests.unit.scan_world import Doc, definition_of, sliced
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DOCUMENTS = 40
SETTINGS = StoreSettings(
    base_map_bytes=256 * MIB, delta_map_bytes=256 * MIB, reserve_bytes=MIB, fsync=False, filter_bits=1 << 12
)
SCAN = "/v1/indexes/by_turn/scan"
COUNT = "/v1/indexes/by_turn/count"


class Node:
    """A node whose every commit gives each of its documents the commit's number as key."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.view = ServingNode("n0")
        self.telling = Telling()
        self.view.watch = self.telling.watch
        self._folds = FoldWorker()
        self.stores: dict[SliceKey, LmdbSliceStore] = {}
        self.rings: dict[SliceKey, SnapshotRing] = {}
        self.definition = definition_of("CREATE INDEX by_turn ON users (turn, n) WITH (slices=2)")
        settings = load_settings()
        security = settings.security
        tls = bool(security.tls_certificate)
        reserved, self.url = reserve("the test's node", "127.0.0.1", 0, tls=tls, setting="port")
        self._show_catalog()
        for number in range(self.definition.slices):
            key = ("by_turn-1", number)
            self.stores[key] = lmdb_store(folder / str(number), self._folds, SETTINGS)
            self.rings[key] = SnapshotRing(4)
        self.view.show_slices(self.rings.items())
        self.registry = CollectorRegistry()
        self.processes = ScanProcesses(processes, "n0", reserved, folder, self.telling, self.registry)
        application = Passed(create_app(self.view, settings, self.registry))
        self._server = server_of(
            application,
            settings.http,
            security.model_copy(update={"tls_certificate": "", "tls_key": ""}),
            OneWriteProtocol,
        )
        self._serving = threading.Thread(
            target=lambda: self._server.run(sockets=[self.processes.listener]), name="server"
        )
        self.number = self.folded = 0
        self._stop = threading.Event()
        self._writing = threading.Thread(target=self._write, name="writer")
        self.failed: BaseException | None = None

    def _show_catalog(self) -> None:
        catalog = Catalog()
        placement = [["n0"]] * self.definition.slices
        records: tuple[Record, ...] = (
            ClusterRecord("c", SECRET, 0),
            KeyspaceRecord(KEYSPACE, "t", 1, 1),
            NodeRecord("n0", self.url, 0),
            IndexRecord("by_turn-1", self.definition, "READY", 1, placement, "b1", 0),
        )
        for record in records:
            catalog.apply(record_key(record), encode_record(record), catalog.offset)
        self.view.show_catalog(catalog)
        self.telling.dictionary(catalog)

    def open(self) -> None:
        self._serving.start()
        self.processes.open(self._failed)
        assert self.processes.wait_serving()
        self._writing.start()

    def _failed(self, error: BaseException) -> None:
        self.failed = error

    def close(self) -> None:
        self._stop.set()
        self._writing.join()
        self.processes.close()
        self._server.should_exit = True
        self._serving.join()
        for ring in self.rings.values():
            ring.close()
        for store in self.stores.values():
            store.close()
        self._folds.close()
        assert self.failed is None

    def pids(self) -> list[int]:
        """Of the processes that answer."""
        return [one.child.pid for one in self.processes._processes if one.told.serving]

    def readers(self) -> set[int]:
        """Processes with read transactions on levels that are read now."""
        found: set[int] = set()
        for ring in self.rings.values():
            levels = _Levels()
            ring.show(levels)
            found |= levels.pids
        return found

    def figure(self, name: str) -> float:
        """One of the metrics, without labels or with them as they stand."""
        page = generate_latest(self.processes.totals).decode()
        (value,) = (line.split()[-1] for line in page.splitlines() if line.startswith(f"{name} "))
        return float(value)

    def _write(self) -> None:
        try:
            while not self._stop.wait(0.02):
                self._commit(self.number + 1)
        except BaseException as error:  # (told when it is closed)
            self.failed = error
            raise

    def _commit(self, number: int) -> None:
        offset = number * DOCUMENTS
        versions: list[list[Version]] = [[] for _ in self.stores]
        for at in range(DOCUMENTS):
            document = Doc([number, at], f"u{at:02}", None)
            docid = document.id.encode()
            for one, rows in enumerate(sliced(self.definition, [document])):  # (each slice hears all)
                entries = tuple((key.removesuffix(docid), value) for key, value in rows)
                versions[one].append(Version(docid, 0, offset - DOCUMENTS + at, entries=entries))
        self._hear(number, StabilityTimestamp(KEYSPACE, 1, 0, Timestamp.of({0: offset}), now_ms(), now_ms()))
        for (_, one), store in self.stores.items():
            store.apply(segments(versions[one]), state(number, p0=offset))
            self.rings["by_turn-1", one].add(store.snapshot(), number, now_ms())
            if store.folding:
                self.folded += store.finish_fold() is not None
            elif (number + one) % 7 == 0:
                store.start_fold()
        for ring in self.rings.values():
            ring.publish(number, now_ms())
            ring.expire(now_ms())
        self._hear(number, Published(KEYSPACE, 1, 0, {"by_turn-1": number}))
        self.number = number

    def _hear(self, number: int, message: Message) -> None:
        if isinstance(message, StabilityTimestamp):
            self.view.control.stamped(number, message)
        elif isinstance(message, Published) and self.view.control.publish(message):
            self.view.changed()
        self.telling.control(number, encode(message))


class _Levels:
    """Gathers who reads the levels of a ring."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def begun(self) -> None: ...

    def kept(self, _: int, snapshot: Any) -> None:
        for level, _ in snapshot.commits():
            lines = level.environment.readers().splitlines()[1:]
            self.pids |= {int(line.split()[0]) for line in lines}

    def dropped(self, _: int) -> None: ...

    def closed(self) -> None: ...


class Reader:
    """A client that keeps its connection, and connects anew when that is lost."""

    def __init__(self, url: str, authority: str = "", token: str = "") -> None:
        self._place = urlsplit(url).netloc
        self._trusted = ssl.create_default_context(cafile=authority) if authority else None
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        self._connection: http.client.HTTPConnection | None = None
        self.lost = 0

    def ask(self, path: str = SCAN, **body: Any) -> dict[str, Any]:
        while True:
            try:
                return self._asked(path, body)
            except (OSError, http.client.HTTPException):
                self.lost += 1
                self.close()

    def _asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._connection is None:
            self._connection = (
                http.client.HTTPConnection(self._place, timeout=30)
                if self._trusted is None
                else http.client.HTTPSConnection(self._place, timeout=30, context=self._trusted)
            )
        self._connection.request("POST", path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def check(self, limit: int = 100, session: str | None = None) -> tuple[int, str]:
        """A whole scan, in pages: all documents, all of them as of its snapshot; that, and its session."""
        answer = self.ask(limit=limit, session=session)
        number, rows = answer["snapshot"], answer["rows"]
        while answer["page"]:
            answer = self.ask(page=answer["page"])
            assert answer["snapshot"] == number
            rows += answer["rows"]
        assert [row["key"] for row in rows] == [[number, at] for at in range(DOCUMENTS)], number
        return number, answer["session"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("node"), 2)
    made.open()
    try:
        wait_for(lambda: len(made.pids()) == 2, "both answer", 60)
        yield made
    finally:
        made.close()


@pytest.fixture
def reader(node: Node) -> Iterator[Reader]:
    made = Reader(node.url)
    yield made
    made.close()


def test_pages_are_of_one_number_while_slices_commit_and_fold(node: Node) -> None:
    began, folded = node.number, node.folded
    pages, passed = (
        node.figure("keytide_scan_rows_total"),
        node.figure("keytide_scan_process_passed_on_total"),
    )
    readers = [Reader(node.url) for _ in range(8)]
    seen = [(0, "")] * len(readers)
    scans = 0
    while node.folded < folded + 6 or node.number < began + 60 or scans < 200:
        for at, one in enumerate(readers):
            number, session = one.check(limit=100 if at % 2 else 15, session=seen[at][1] or None)
            assert number >= seen[at][0], "a session has seen a newer one"
            seen[at] = (number, session)
            scans += 1
    wait_for(
        lambda: node.figure("keytide_scan_rows_total") >= pages + scans * DOCUMENTS, "pages are counted", 10
    )
    passed = node.figure("keytide_scan_process_passed_on_total") - passed
    assert passed < scans, "most pages are answered where they come in"
    assert sum(ring.reads for ring in node.rings.values()) > scans
    for one in readers:
        assert one.lost == 0
        one.close()


def test_a_page_token_holds_its_snapshot_whichever_process_gets_it(node: Node, reader: Reader) -> None:
    first = reader.ask(limit=15)
    wait_for(lambda: node.number > first["snapshot"] + 10, "the ring has gone on", 30)
    for _ in range(6):
        other = Reader(node.url)
        following = other.ask(page=first["page"])
        other.close()
        assert following["snapshot"] == first["snapshot"]
        assert [row["key"][1] for row in following["rows"]] == list(range(15, 30))


def test_counts_and_pages_that_sift_are_answered_where_they_come_in(node: Node, reader: Reader) -> None:
    """All of it is right, and little is passed on: a process may be too late for a snapshot."""
    passed, asked = node.figure("keytide_scan_process_passed_on_total"), 0
    for _ in range(20):
        assert reader.ask(COUNT)["count"] == DOCUMENTS
        shown = reader.ask(limit=5, offset=3)
        assert [row["key"][1] for row in shown["rows"]] == [3, 4, 5, 6, 7]
        number = shown["snapshot"]
        session = {"session": shown["session"]}
        counted = reader.ask(COUNT, low=[number, 10], high=[number, 19], **session)
        assert counted["count"] in (0, 10), "of that snapshot, or of a newer one"
        later = reader.ask(distinct=True, limit=DOCUMENTS, **session)
        assert [row["key"][1] for row in later["rows"]] == list(range(DOCUMENTS))
        assert later["snapshot"] >= number
        reader.close()  # so that both processes are asked
        asked += 4
    told = [one.told for one in node.processes._processes]
    wait_for(
        lambda: all(
            one.told is not known for one, known in zip(node.processes._processes, told, strict=True)
        ),
        "all have told since",
        30,
    )
    assert node.figure("keytide_scan_process_passed_on_total") - passed < asked / 2


def test_what_is_no_snapshot_that_is_pinned_is_answered_by_the_node(node: Node, reader: Reader) -> None:
    shown = reader.ask(limit=5, offset=3)
    assert len(shown["rows"]) == 5
    newest = reader.ask(consistency="tip")["rows"]  # (no cut: a document may be seen at two places, or none)
    assert newest
    assert all(row["key"][0] >= shown["snapshot"] for row in newest)
    held = reader.ask("/v1/indexes/by_turn/snapshots")
    assert reader.ask(at=held["at"])["snapshot"] == held["snapshot"]


def test_one_that_is_killed_frees_what_it_kept_and_another_takes_its_place(node: Node) -> None:
    readers = [Reader(node.url) for _ in range(8)]
    for one in readers:
        one.check()
    killed, other = wait_for(lambda: len(node.pids()) == 2 and node.pids(), "both answer", 60)
    wait_for(lambda: killed in node.readers(), "it reads", 10)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: killed not in node.readers(), "what it kept is free", 5)
    for one in readers:
        one.check()
        one.check(limit=15)
    assert other in node.pids()
    wait_for(lambda: len(node.pids()) == 2, "another one answers", 60)
    assert killed not in node.pids()
    for one in readers:
        one.close()


def test_one_that_stands_still_costs_commits_nothing_is_told_of_and_ended(node: Node) -> None:
    wait_for(lambda: len(node.pids()) == 2, "both answer", 60)
    stopped = node.pids()[0]
    psutil.Process(stopped).suspend()
    before = node.number
    reasons = wait_for(node.processes.reasons, "it is told of", 10)
    assert [one.subject for one in reasons] == [f"scan process {stopped}"]
    wait_for(lambda: not psutil.pid_exists(stopped), "it is ended", 30)
    assert node.number - before > 20, "commits have waited"
    wait_for(lambda: len(node.pids()) == 2 and not node.processes.reasons(), "another one answers", 60)
    assert stopped not in node.readers()
    reader = Reader(node.url)
    for _ in range(10):
        reader.check(limit=15)
    reader.close()


def test_they_serve_by_tls_and_ask_for_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority.made(tmp_path / "authority")
    certificate, key = tmp_path / "node.crt", tmp_path / "node.key"
    authority.sign(certificate, key)
    token = "one-that-is-long-enough"
    for name, value in {
        "TLS_CERTIFICATE": str(certificate),
        "TLS_KEY": str(key),
        "TLS_AUTHORITY": str(authority.certificate),
        "TOKENS": json.dumps({token: ["read"]}),
    }.items():
        monkeypatch.setenv(f"KEYTIDE_SECURITY__{name}", value)
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", 1)
    node.open()
    try:
        assert node.url.startswith("https:")
        reader = Reader(node.url, str(authority.certificate), token)
        for _ in range(3):
            reader.check(limit=15)
        assert reader.ask("/v1/indexes/by_turn/count")["count"] == DOCUMENTS
        reader.close()
        for wrong in ("", "another-token-of-somebody"):
            stranger = Reader(node.url, str(authority.certificate), wrong)
            with pytest.raises(AssertionError, match=r"token"):
                stranger.ask()
            stranger.close()
    finally:
        node.close()
