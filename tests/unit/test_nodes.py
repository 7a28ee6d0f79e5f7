"""How the parts of a cluster ask nodes: what is sent, what is tried again, what an answer means, and what a
node, the coordinator and a driver make of it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from unittest import mock

import aiohttp
import httpx
import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from coordinator.http import list_routes
from coordinator.http.leader_access import LeaderAccess
from coordinator.http.list_routes import add_lists
from coordinator.http.problems import add_error_handlers
from coordinator.process.service import CoordinatorService
from indexer.scan.gather.peers import LEASE_PATH, Peers
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import HistoryAheadError, LeaseReply, LeaseRequest, OutOfTimeError
from keytide.catalog.records import NodeRecord
from keytide.errors import RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.node_protocol import MESSAGE, NoAnswerError, NodeUnavailableError, RefusedError, opens
from keytide.http.nodes import NodeClient
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms, wall_ms
from keytide.serving.server import server_of
from keytide.settings.settings import SecuritySettings, load_settings
from keytide.wire import digests
from keytide.wire.index_lists import LISTS_PATH, ListPage, ask_decoder
from keytide.wire.index_lists import encoder as list_encoder
from streaming.slices.pins import Pin, PinLostError
from streaming.verify.slices import SliceClient
from tests.browser.scene import NODES, busy_day
from tests.posts import post_to
from tests.serving import running
from tests.unit.certificates import Authority
from tests.unit.scan_world import SECRET, World

LIMIT_S = 20.0
URL = "http://n1.example/internal/v1/x"
Answer = tuple[int, bytes] | Exception
Told = tuple[type[RetryableError], str, int, str, str]
"""Class, problem type, status, message, next step."""
MISSING = msgspec.msgpack.encode(LeaseReply([3]))


def problem(status: int, kind: str, **more: str) -> tuple[int, bytes]:
    return status, json.dumps({"type": kind, "status": status, "detail": "why", **more}).encode()


class Node:
    """Gives its answers one after the other, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, bytes, Mapping[str, str], float]] = []

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], s: float) -> tuple[int, bytes]:
        self.asked.append((url, body, headers, s))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def transport(self, request: httpx.Request) -> httpx.Response:
        (answer,) = self._answers
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer[0], content=answer[1])


def ask(node: Node) -> bytes:
    return asyncio.run(NodeClient(post=node.post).ask(URL, b"question", SECRET, 2.0))


# --- both clients -----------------------------------------------------------------------------------------


def test_a_request_shows_the_credential_and_says_what_it_is() -> None:
    node = Node((200, b"yes"))
    assert ask(node) == b"yes"
    ((url, body, headers, limit),) = node.asked
    assert (url, body, limit) == (URL, b"question", 2.0)
    assert headers["Content-Type"] == MESSAGE
    assert opens(headers["Authorization"].encode(), SECRET, wall_ms())
    assert len(headers) == 2


def test_a_kept_connection_that_was_closed_is_tried_once_more_and_nothing_else_is() -> None:
    gone = aiohttp.ServerDisconnectedError()
    node = Node(gone, (200, b"yes"))
    assert ask(node) == b"yes"
    assert node.asked[0] == node.asked[1]
    for failure, told, times in (
        (gone, NoAnswerError, 2),
        (aiohttp.ClientPayloadError("half of it"), NoAnswerError, 1),
        (TimeoutError(), TimeoutError, 1),
        (aiohttp.ServerTimeoutError(), TimeoutError, 1),
    ):
        node = Node(failure)
        with pytest.raises(told):
            ask(node)
        assert len(node.asked) == times, failure


def blocking(answer: Answer) -> bytes:
    client = BlockingNodeClient("", post_to(Node(answer).transport))
    try:
        return client.ask(URL, b"question", SECRET)
    finally:
        client.close()


@pytest.mark.parametrize("way", [lambda answer: ask(Node(answer)), blocking], ids=["loop", "threads"])
def test_what_an_answer_means(way: Callable[[Answer], bytes]) -> None:
    assert way((200, b"\x93\x01")) == b"\x93\x01"
    with pytest.raises(RefusedError) as caught:
        way(problem(503, "history-ahead", next_step="wait"))
    refused = caught.value
    assert (refused.status, refused.type, refused.detail) == (503, "history-ahead", "why")
    assert (refused.next_step, str(refused)) == ("wait", "answered 503 history-ahead: why")
    for body, text in (
        (b"<p>\xff", "<p>\ufffd"),
        (b"[]", "[]"),
        (b'{"a":1}', '{"a":1}'),
        (b"x" * 300, "x" * 200),
    ):
        with pytest.raises(RefusedError) as caught:
            way((502, body))
        assert (caught.value.type, str(caught.value)) == ("", f"answered 502: {text}")


def test_threads_are_told_why_there_is_no_answer() -> None:
    for failure in (httpx.ConnectError("down"), httpx.ReadTimeout("down")):
        with pytest.raises(NoAnswerError, match="down"):
            blocking(failure)


# --- what each makes of it --------------------------------------------------------------------------------


def lease(*answers: Answer, timeout_s: float = 2.0) -> LeaseReply:
    """What one node hears from another."""
    world = World("CREATE INDEX i ON users (city) WITH (slices=1)")
    here, node = world.views["n0"], Node(*answers)
    here.urls = {"n1": "http://n1.example"}
    local = LocalReader(here, 10)
    try:
        peers = Peers(here, local, NodeClient(post=node.post))
        return asyncio.run(peers.lease("n1", LeaseRequest("i", 1, 0, [0], 5, False), timeout_s))
    finally:
        local.close()
        assert {url for url, *_ in node.asked} == {"http://n1.example" + LEASE_PATH}


def test_a_node_passes_on_what_another_answers() -> None:
    assert lease((200, MISSING)) == LeaseReply([3])
    see = "try again, or see `keytide node list`"
    answers: list[tuple[Answer, Told]] = [
        (
            problem(503, "history-ahead"),
            (HistoryAheadError, "history-ahead", 503, "node n1: why", ""),
        ),
        (
            problem(504, "query-timeout", next_step="more"),
            (OutOfTimeError, "query-timeout", 504, "node n1: why", "more"),
        ),
        (problem(429, "busy"), (RetryableError, "busy", 429, "node n1: why", "")),
        (
            problem(401, "not-allowed", next_step="look"),
            (NodeUnavailableError, "node-unavailable", 503, "node n1 answered 401 not-allowed: why", "look"),
        ),
        (
            (503, b"nonsense"),
            (NodeUnavailableError, "node-unavailable", 503, "node n1 answered 503: nonsense", see),
        ),
        (
            aiohttp.ClientConnectionError("refused"),
            (NodeUnavailableError, "node-unavailable", 503, "node n1 cannot be asked: refused", see),
        ),
        (
            TimeoutError(),
            (NodeUnavailableError, "node-unavailable", 504, "node n1 did not answer within 2.0 s", see),
        ),
    ]
    for answer, told in answers:
        with pytest.raises(RetryableError) as caught:
            lease(answer)
        error = caught.value
        assert (type(error), error.problem_type, error.status, error.message, error.next_step) == told
        assert error.extra == ({"node": "n1"} if told[0] is NodeUnavailableError else {})
    with pytest.raises(NodeUnavailableError, match="node n1 cannot be asked: "):
        lease((200, b"\xc1"))
    with pytest.raises(OutOfTimeError, match="time ran out 50 ms after node n1 was asked"):
        lease(TimeoutError(), timeout_s=0.05)


@contextmanager
def lists(*answers: Answer) -> Iterator[tuple[TestClient, Node]]:
    """The coordinator's lists, over nodes that give these answers."""
    app, node = FastAPI(), Node(*answers)
    add_error_handlers(app)
    access = LeaderAccess(cast(CoordinatorService, busy_day()))
    add_lists(app, access, NodeClient(post=node.post))
    with TestClient(app) as client:
        yield client, node


def test_the_coordinator_asks_each_node_for_its_page() -> None:
    with lists((200, list_encoder.encode(ListPage()))) as (client, node):
        page = client.get("/v1/indexes/by_carrier/skipped", params={"limit": 7})
        assert (page.status_code, page.json()["lines"]) == (200, [])
        limit_s = float(load_settings().coordinator.request_timeout_s)
        assert len(node.asked) == len(NODES)
        for url, body, _, timeout_s in node.asked:
            assert (url.endswith(LISTS_PATH), timeout_s) == (True, limit_s)
            assert (ask_decoder.decode(body).what, ask_decoder.decode(body).limit) == ("skipped", 7)


def test_the_coordinator_tells_which_node_it_misses() -> None:
    cannot = r"node node-\d, which holds slices of the index, cannot be asked: "
    see = "try again, or see `keytide node list`"
    for answer, kind, detail, next_step in (
        (problem(422, "invalid-request"), "invalid-request", r"node node-\d: why", "try again"),
        (problem(504, "busy", next_step="wait"), "busy", r"node node-\d: why", "wait"),
        (problem(503, "busy", detail=""), "busy", r"node node-\d: 503", "try again"),
        ((502, b"nonsense"), "node-unavailable", cannot + "it answered 502", see),
        ((200, b"\xc1"), "node-unavailable", cannot + ".+", see),
        (TimeoutError(), "node-unavailable", cannot + "it did not answer in time", see),
        (aiohttp.ClientError("refused"), "node-unavailable", cannot + "refused", see),
    ):
        with lists(answer) as (client, _):
            told = client.get("/v1/indexes/by_carrier/violations").json()
        assert (told["type"], told["status"], told["next_step"]) == (kind, 503, next_step)
        assert re.fullmatch(detail, told["detail"]), told


def test_a_node_that_stands_still_is_not_waited_for_and_one_that_is_slow_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command gives up on the coordinator long before the coordinator would on a node."""
    monkeypatch.setattr(list_routes, "LOOK_S", 0.05)
    scene, answered = busy_day(), list_encoder.encode(ListPage())

    async def post(url: str, body: bytes, headers: Mapping[str, str], s: float) -> tuple[int, bytes]:
        await asyncio.sleep(0.3 if scene.leader.stability.nodes.by_id[NODES[0]].live else LIMIT_S)
        return 200, answered

    app = FastAPI()
    add_error_handlers(app)
    add_lists(app, LeaderAccess(cast(CoordinatorService, scene)), NodeClient(post=post))
    with TestClient(app) as client:
        assert client.get("/v1/indexes/by_carrier/skipped").status_code == 200
        scene.pulsed_at = now_ms() + 60_000  # no heartbeat comes any more
        scene.leader.stability.nodes.by_id[NODES[0]].live = False
        began = time.monotonic()
        told = client.get("/v1/indexes/by_carrier/skipped").json()
    assert time.monotonic() - began < LIMIT_S / 2
    assert told["type"] == "node-unavailable"
    assert told["detail"].startswith(f"node {NODES[0]}, which holds slices of the index, cannot be asked: it")
    assert told["detail"].endswith("it does not answer, and is not live")
    assert told["next_step"] == "try again, or see `keytide node list`"


@contextmanager
def served(answer: bytes) -> Iterator[str]:
    """Who answers every connection with these bytes and closes it, or for b"" says nothing; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        taken: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])
                    if answer:
                        asked = b""
                        while not asked.endswith(b"question") and (more := taken[-1].recv(1 << 16)):
                            asked += more
                        taken[-1].sendall(answer)
                        taken.pop().close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in taken:
                one.close()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nyes", "yes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nye", "IncompleteRead"),
        (b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        (b"nonsense\r\n\r\n", "nonsense"),
        (b"", "timed out"),
    ],
)
def test_what_comes_over_a_connection_of_a_thread(answer: bytes, told: str) -> None:
    client = BlockingNodeClient("", limit_s=0.5)
    with served(answer) as url:
        if told == "yes":
            assert client.ask(url, b"question", SECRET) == b"yes"
            assert client.ask(url, b"question", SECRET) == b"yes", "over another connection"
        else:
            with pytest.raises((NoAnswerError, RefusedError), match=told):
                client.ask(url, b"question", SECRET)
    with pytest.raises(NoAnswerError, match="refused"):
        client.ask(url, b"question", SECRET)
    with pytest.raises(NoAnswerError):
        client.ask("http:///", b"question", SECRET)
    client.close()


def test_a_driver_tells_which_node_it_misses() -> None:
    """And asks once more when a connection broke, and never otherwise."""
    world = World("CREATE INDEX i ON users (city) WITH (slices=1)", node_count=1)
    pin = Pin(7, 0, Timestamp(), "h", {(world.index("i").id, 0): "n0"})
    times: list[str] = []

    def digests_of(answer: Answer) -> Any:
        def handle(request: httpx.Request) -> httpx.Response:
            times.append(request.url.path)
            return Node(answer).transport(request)

        nodes = BlockingNodeClient("", post_to(handle))
        slices = SliceClient(lambda: world.catalog, [world.index("i").id], nodes)
        try:
            return list(slices.digests(pin, 0, {}))
        finally:
            slices.close()

    with pytest.raises(RetryableError, match="node n0 is not known"):
        digests_of((200, b""))
    world.record(NodeRecord("n0", "http://n0.example", 0))
    for answer, family, message, asked in (
        (httpx.ConnectError("down"), NodeUnavailableError, "node n0 cannot be asked: down", 2),
        (problem(503, "snapshot-not-held"), PinLostError, "node n0 answered 503 snapshot-not-held: why", 1),
        (problem(503, "busy"), RetryableError, "node n0 answered 503 busy: why", 1),
        (problem(401, "not-allowed"), RetryableError, "node n0 answered 401 not-allowed: why", 1),
        ((502, b"nonsense"), RetryableError, "node n0 answered 502: nonsense", 1),
        ((200, b"\xc1"), RetryableError, "node n0 answers with something else: .+", 1),
        ((200, digests.encode(digests.PinAnswer([]))), RetryableError, "node n0 answers another question", 1),
    ):
        times.clear()
        with pytest.raises(RetryableError) as caught:
            digests_of(answer)
        assert (type(caught.value), len(times)) == (family, asked)
        assert re.fullmatch(message, caught.value.message), caught.value.message


# --- real connections -------------------------------------------------------------------------------------


@contextmanager
def answering(security: SecuritySettings | None = None) -> Iterator[tuple[str, set[tuple[str, int]]]]:
    """A server that answers `yes` on a port of its own: where, and who has connected."""
    callers: set[tuple[str, int]] = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        callers.add(scope["client"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"yes"})

    listener = socket.create_server(("127.0.0.1", 0))
    server = server_of(
        app, load_settings().http, security or SecuritySettings(), loop="uvloop", lifespan="off"
    )
    with running(server, listener) as port:
        yield f"{'https' if security is not None else 'http'}://127.0.0.1:{port}", callers


def test_a_node_is_waited_for_as_long_as_is_said_and_no_longer() -> None:
    """A request that says itself which node has not answered must end before the request is cut off."""

    async def waits() -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        limit_s = 7.5 - now % 1  # ends half a second before the clock's next whole second
        ends: list[float] = []
        call_at = loop.call_at

        def noted(when: float, *call: Any, **context: Any) -> asyncio.TimerHandle:
            ends.append(when)
            return call_at(when, *call, **context)

        nodes = NodeClient()
        with socket.create_server(("127.0.0.1", 0)) as silent, mock.patch.object(loop, "call_at", noted):
            asked = asyncio.ensure_future(
                nodes.ask(f"http://127.0.0.1:{silent.getsockname()[1]}", b"", SECRET, limit_s)
            )
            await asyncio.sleep(0.05)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await nodes.close()
        late = [end for end in ends if end > now + 5]
        assert late
        assert all(abs(end - now - limit_s) < 0.25 for end in late), (now, limit_s, ends)

    asyncio.run(waits())


def test_connections_are_kept_and_a_cluster_may_go_over_to_tls(tmp_path: Path) -> None:
    """A node that was asked without it is trusted by the named authority all the same once it has it."""
    authority = Authority.made(tmp_path / "ca")
    authority.sign(tmp_path / "tls.crt", tmp_path / "tls.key")
    security = SecuritySettings(tls_certificate=str(tmp_path / "tls.crt"), tls_key=str(tmp_path / "tls.key"))

    async def ask_all(*urls: str) -> None:
        nodes = NodeClient(str(authority.certificate))
        try:
            for url in urls:
                assert await nodes.ask(url, b"", SECRET, LIMIT_S) == b"yes"
        finally:
            await nodes.close()

    def ask_all_from_a_thread(*urls: str) -> None:
        nodes = BlockingNodeClient(str(authority.certificate), limit_s=LIMIT_S)
        try:
            for url in urls:
                assert nodes.ask(url, b"", SECRET) == b"yes"
        finally:
            nodes.close()

    with answering() as (plain, callers), answering(security) as (secure, secure_callers):
        asyncio.run(ask_all(plain, plain, secure, secure))
        assert (len(callers), len(secure_callers)) == (1, 1)
        ask_all_from_a_thread(plain, plain, secure, secure)
        assert (len(callers), len(secure_callers)) == (2, 2)
        stranger = BlockingNodeClient("", limit_s=LIMIT_S)
        with pytest.raises(NoAnswerError, match="CERTIFICATE_VERIFY"):
            stranger.ask(secure, b"", SECRET)
        stranger.close()
        strangers = NodeClient()

        async def ask_a_stranger() -> None:
            try:
                await strangers.ask(secure, b"", SECRET, LIMIT_S)
            finally:
                await strangers.close()

        with pytest.raises(NoAnswerError, match="CERTIFICATE_VERIFY"):
            asyncio.run(ask_a_stranger())
