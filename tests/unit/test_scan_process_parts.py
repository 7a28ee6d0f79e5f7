"""The parts of scan processes one by one: leases that are remembered, the channel, metrics, the address."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from indexer.scan.peer.messages import LeaseRequest
from indexer.scan_processes.channel import WAITING, Channel, read
from indexer.scan_processes.core.leases import REMEMBERED, GrantedLeases
from indexer.scan_processes.core.messages import Alive, ControlRecord, Ping, Sample, told_decoder
from indexer.scan_processes.metrics import ProcessTotals
from indexer.scan_processes.pages import samples_of
from indexer.scan_processes.passing import HalfAnsweredError, NodeSilentError, Passed, Passing
from keytide.errors import ConfigurationError
from keytide.serving.listener import listen, listen_beside, reserve
from tests.waiting import wait_for

LEASE = 10_000
LONGER = 11_000


def asked(number: int) -> LeaseRequest:
    return LeaseRequest("i", number, 0, [0, 1], LEASE, False, client="ann")


def kept(leases: GrantedLeases, now: int, **more: Any) -> list[int]:
    return leases.keep(replace(asked(5), **more), now)


def test_a_lease_is_good_for_further_tokens_for_a_tenth_of_its_time() -> None:
    leases = GrantedLeases()
    assert kept(leases, 0) == [0, 1]
    leases.granted(asked(5), [0], 0, LONGER)
    assert kept(leases, 0) == [1]
    leases.granted(asked(5), [1], 500, 500 + LONGER)
    assert kept(leases, 1_000) == []
    assert kept(leases, 1_001) == [0, 1], "the first one of them promises no more than that"


@pytest.mark.parametrize("other", [{"client": "bob"}, {"number": 6}, {"in_use": True}])
def test_a_lease_is_nobody_elses(other: dict[str, Any]) -> None:
    leases = GrantedLeases()
    leases.granted(asked(5), [0, 1], 0, LONGER)
    assert kept(leases, 0) == []
    assert kept(leases, 0, **other) == [0, 1]


def test_leases_that_are_remembered_are_bounded() -> None:
    leases = GrantedLeases()
    for number in range(REMEMBERED + 1):
        leases.granted(asked(number), [0, 1], 0, LONGER)
    assert kept(leases, 0, number=0) == [0, 1]
    assert kept(leases, 0, number=1) == []


def ends() -> tuple[Channel, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours), theirs


def _flush(channel: Channel) -> None:
    def gone() -> bool:
        channel.flush()
        return not channel.waits

    wait_for(gone, "all has gone", 30)


def _is(descriptor: int, folder: Path) -> bool:
    """Whether a descriptor is of a folder: of what is closed the number may be used again."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except OSError:
        return False


def test_messages_come_whole_and_in_order_with_the_folders_that_were_meant(tmp_path: Path) -> None:
    channel, theirs = ends()
    folder = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "here").write_text("it is")
    long = ControlRecord(7, os.urandom(3_000_000))
    telling = [Ping(), long, Ping()]
    for one, folders in zip(telling, ([], [folder], []), strict=True):
        channel.tell(one, folders)
    assert channel.waits, "so much does not go at once"
    flushing = threading.Thread(target=_flush, args=(channel,))
    flushing.start()
    heard, came = [], []
    for message, given in read(theirs, threading.Event()):
        heard.append(told_decoder.decode(message))
        came += given
        if len(heard) == 3:
            break
    assert heard == telling
    flushing.join()
    assert came == [folder] or not _is(folder, tmp_path), "it is closed where it went from"
    assert os.listdir(came[0]) == ["here"]
    os.close(came[0])
    theirs.close()
    channel.tell(Ping())
    assert channel.broken
    channel.close()


def test_who_reads_nothing_costs_no_wait_and_bounded_memory() -> None:
    channel, theirs = ends()
    for _ in range(WAITING + 2_000):
        channel.tell(Ping())
    assert "unread" in channel.broken
    assert not channel.waits
    channel.close()
    theirs.close()


def test_metrics_are_those_of_all_processes_and_never_go_back() -> None:
    def counted(scans: int) -> CollectorRegistry:
        registry = CollectorRegistry()
        seconds = Histogram("keytide_scan_seconds", "t", ["index"], buckets=(1,), registry=registry)
        Counter("keytide_scan_rows", "t", registry=registry).inc(scans)
        for _ in range(scans):
            seconds.labels("by_city").observe(0.5)
        return registry

    def alive(scans: int) -> Alive:
        return Alive(True, scans, 1, 2, [], samples_of(counted(scans)))

    living = [(alive(3), True), (alive(4), False)]
    totals = ProcessTotals(counted(1), lambda: living)

    def shown() -> dict[str, float]:
        lines = generate_latest(totals).decode().splitlines()
        return {name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines if one[0] != "#")}

    first = shown()
    assert first["keytide_scan_rows_total"] == 8
    assert first['keytide_scan_seconds_count{index="by_city"}'] == 8
    assert first['keytide_scan_seconds_bucket{index="by_city",le="1.0"}'] == 8
    assert first['keytide_scan_process_snapshots_total{outcome="pinned"}'] == 7
    assert first["keytide_scan_process_passed_on_total"] == 4
    assert first["keytide_scan_processes_serving"] == 1
    totals.ended(living.pop()[0])
    second = shown()
    assert second.pop("keytide_scan_process_ends_total") == 1
    assert first.pop("keytide_scan_process_ends_total") == 0
    assert second == first


def test_what_only_scan_processes_have_counted_is_shown() -> None:
    registry = CollectorRegistry()
    Counter("keytide_scan_errors", "t", ["type"], registry=registry)
    sample = Sample("keytide_scan_errors_total", {"type": "unknown-index"}, 2.0)
    totals = ProcessTotals(registry, lambda: [(Alive(True, 0, 0, 0, [], [sample]), True)])
    assert b'keytide_scan_errors_total{type="unknown-index"} 2.0' in generate_latest(totals)


def test_an_address_is_kept_for_scan_processes_and_nobody_else() -> None:
    kept, url = reserve("a node", "127.0.0.1", 0, tls=False, setting="indexer.port")
    port = kept.getsockname()[1]
    assert url == f"http://127.0.0.1:{port}"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    for way in (reserve, listen):
        with pytest.raises(ConfigurationError, match="in use"):
            way("another", "127.0.0.1", port, tls=False, setting="indexer.port")
    with kept, listen_beside("127.0.0.1", port), listen_beside("127.0.0.1", port):
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("told", "client"), [(b"10.0.0.7 4711", ("10.0.0.7", 4711)), (b"::1 80", ("::1", 80)), (b"", None)]
)
def test_the_node_knows_who_asked_a_scan_process(told: bytes, client: Any) -> None:
    seen: list[Any] = []

    async def application(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append((scope["client"], scope["headers"]))

    headers = [(b"accept", b"*/*"), (b"keytide-client", told)]
    scope = {"type": "http", "client": None, "headers": headers}
    asyncio.run(Passed(application)(scope, None, None))  # type: ignore[arg-type]
    assert seen == [(client, [(b"accept", b"*/*")])]


class Asked:
    """A request to a scan process, as its server hands it over, and what came of it."""

    def __init__(self, body: bytes = b"") -> None:
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/a b",
            "raw_path": b"/v1/a%20b",
            "query_string": b"x=%2F",
            "headers": [(b"host", b"h:1"), (b"connection", b"close"), (b"x-own", b"1")],
            "client": ("10.0.0.7", 4711),
        }
        self.sent: list[Any] = []
        self.came = asyncio.Event()
        self.left = asyncio.Event()
        self._messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> Any:
        if self._messages:
            return self._messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.came.set()


class Answering:
    """A node's socket: hears one request, says something, and goes on when it is told."""

    def __init__(self, folder: Path, *said: bytes) -> None:
        self.way = str(folder / "scan.sock")
        self._said = said
        self.heard = b""
        self.onward = asyncio.Event()
        self.gone = asyncio.Event()

    async def __aenter__(self) -> Answering:
        self._server = await asyncio.start_unix_server(self._serve, self.way)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard = await reader.readuntil(b"\r\n\r\n")
        first, *others = self._said
        writer.write(first)
        waiting = asyncio.ensure_future(reader.read())
        onward = asyncio.ensure_future(self.onward.wait())
        await asyncio.wait({waiting, onward}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            self.gone.set()
        for one in others:
            writer.write(one)
        writer.close()
        for task in (waiting, onward):
            task.cancel()


HEAD = b"HTTP/1.1 200 OK\r\nserver: s\r\nx-node: y\r\ntransfer-encoding: chunked\r\n\r\n"


def test_a_request_goes_on_as_it_came_and_its_stream_comes_back_as_it_comes(tmp_path: Path) -> None:
    async def run() -> None:
        async with Answering(tmp_path, HEAD + b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n") as node:
            asked, passing = Asked(b"body"), Passing(node.way)
            passed = asyncio.ensure_future(passing.on(asked.scope, asked.receive, asked.send))
            while len(asked.sent) < 2:
                asked.came.clear()
                await asked.came.wait()
            assert asked.sent[0]["headers"] == [(b"x-node", b"y")]
            assert asked.sent[1]["body"] == b"one", "nothing waits for the end"
            node.onward.set()
            await passed
            await passing.close()
        assert b"".join(one.get("body", b"") for one in asked.sent) == b"onetwo"
        head = node.heard.decode().split("\r\n")
        assert head[0] == "POST /v1/a%20b?x=%2F HTTP/1.1"
        assert {"host: h:1", "x-own: 1", "keytide-client: 10.0.0.7 4711"} <= set(head)
        assert not any(one.startswith("connection") for one in head)

    asyncio.run(run())


def test_a_client_that_goes_away_is_gone_for_the_node_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with Answering(tmp_path, HEAD) as node:
            asked, passing = Asked(), Passing(node.way)
            passed = asyncio.ensure_future(passing.on(asked.scope, asked.receive, asked.send))
            await asked.came.wait()
            asked.left.set()
            await passed
            await asyncio.wait_for(node.gone.wait(), 30)
            await passing.close()

    asyncio.run(run())


def test_half_an_answer_is_none_and_a_node_that_is_away_is_told_of(tmp_path: Path) -> None:
    async def run() -> None:
        async with Answering(tmp_path, HEAD + b"5\r\nhello\r\n") as node:
            asked, passing = Asked(), Passing(node.way)
            node.onward.set()
            with pytest.raises(HalfAnsweredError):
                await passing.on(asked.scope, asked.receive, asked.send)
            assert asked.sent[-1]["more_body"], "the end of it was not told"
        os.unlink(node.way)
        with pytest.raises(NodeSilentError):
            await passing.on(asked.scope, Asked().receive, asked.send)
        await passing.close()

    asyncio.run(run())
