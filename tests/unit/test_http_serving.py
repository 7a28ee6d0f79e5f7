"""Requests that do not come: half a head, half a body, nothing at all, too many at once. On a real server,
with short limits."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from deploy.process import free_ports
from indexer.serve.one_write import OneWriteProtocol
from keytide.process import metrics
from keytide.serving.gate import Need, RequestGate
from keytide.serving.listener import allow_handles
from keytide.serving.server import PatientProtocol, Server, server_of
from keytide.settings.settings import HttpSettings, SecuritySettings, load_settings
from tests.fuzz.http import HttpFuzz
from tests.live_node import LiveNode
from tests.serving import running
from tests.waiting import wait_for

LIMIT_S = 20.0
HEAD = b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"


class App:
    """Reads the body, waits on request, answers 200."""

    def __init__(self) -> None:
        self.asked, self.go_on = 0, threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            more = message.get("more_body", False)
        if scope["path"] == "/slow":
            self.asked += 1
            await asyncio.to_thread(self.go_on.wait, LIMIT_S)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def serving(app: Any, protocol: type[PatientProtocol] = PatientProtocol, **limits: float) -> Iterator[int]:
    """The port of a server with short limits."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    made = HttpSettings.model_validate({"head_timeout_s": 0.5, "body_timeout_s": 1.0} | limits)
    server = server_of(app, made, SecuritySettings(), protocol, loop="uvloop", lifespan="off")
    with running(server, listener) as port:
        yield port


class Clock:
    """In place of the server's: it stands still but for the moments that tell who was first. Nobody is late
    because the machine is busy."""

    def __init__(self) -> None:
        self._now, self._asked, self._looks = 1_000.0, 0, 0

    def monotonic(self) -> float:
        self._asked += 1
        return self._now + self._asked / 1e9

    def passes(self, seconds: float) -> None:
        """So much time goes by, and servers look who is late."""
        self._now += seconds
        before = self._looks
        wait_for(lambda: self._looks > before + 1)

    def looking(self, close_late: Callable[[Server, float], None]) -> Callable[[Server, float], None]:
        """The same, noted."""

        def look(server: Server, now: float) -> None:
            close_late(server, now)
            self._looks += 1

        return look


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("keytide.serving.server.time", made)
    monkeypatch.setattr(Server, "close_late", made.looking(Server.close_late))
    return made


def ended(connection: socket.socket) -> bool:
    """Whether the server has closed it, within the limit of the test."""
    connection.settimeout(LIMIT_S)
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def ask(port: int, path: str = "/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("protocol", [PatientProtocol, OneWriteProtocol])
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Half",
        b"\r\n\r\n",
        HEAD,
        HEAD + b"half",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost",
    ],
)
def test_a_request_that_does_not_come_ends_the_connection(
    sent: bytes, protocol: type[PatientProtocol]
) -> None:
    with (
        serving(App(), protocol, head_timeout_s=0.1, body_timeout_s=0.2) as port,
        socket.create_connection(("127.0.0.1", port)) as half,
    ):
        half.sendall(sent)
        assert ended(half)


def test_a_body_that_drips_ends_too() -> None:
    with serving(App(), body_timeout_s=0.3) as port, socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(HEAD.replace(b"100", b"100000"))
        half.settimeout(0.05)
        wait_for(lambda: not _drips(half))


def _drips(half: socket.socket) -> bool:
    """Send a little more; whether the connection is open."""
    try:
        half.sendall(b"x")
        return half.recv(10) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_hundred_half_open_requests_go_and_others_are_answered(clock: Clock) -> None:
    with serving(App()) as port:
        halves = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for at, half in enumerate(halves):
            half.sendall(HEAD if at % 2 else b"GET / HT")
        assert ask(port) == 200
        clock.passes(1.5)
        assert all(map(ended, halves))
        for half in halves:
            half.close()


def test_what_is_being_answered_is_left_alone_however_long_it_takes(clock: Clock) -> None:
    app = App()
    with serving(app, head_timeout_s=0.1, body_timeout_s=0.1) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", "/slow")
        wait_for(lambda: app.asked == 1)
        clock.passes(0.6)
        app.go_on.set()
        assert connection.getresponse().status == 200
        connection.close()


def test_a_kept_connection_is_patient_for_each_request_anew(clock: Clock) -> None:
    with serving(App(), head_timeout_s=0.5, body_timeout_s=0.5) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        for _ in range(4):
            connection.putrequest("POST", "/")
            connection.putheader("Content-Length", "2")
            clock.passes(0.4)
            connection.endheaders(b"{")
            clock.passes(0.4)
            connection.send(b"}")
            assert connection.getresponse().read() == b"ok"
        connection.close()


@pytest.mark.parametrize("owing", [True, False])
def test_a_full_server_lets_those_go_that_owe_it_a_request(owing: bool) -> None:
    app = App()
    with serving(app, max_connections=5, head_timeout_s=60.0, body_timeout_s=60.0) as port:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        for one in held:
            one.sendall(b"GET /sl" if owing else b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        if owing:
            assert ask(port) == 200
            gone, _, _ = select.select(held, [], [], LIMIT_S)  # (the loop reads them in an order of its own)
            assert len(gone) == 1, "one that owes a request has made room"
            assert ended(gone[0])
        else:
            wait_for(lambda: app.asked == 5)
            assert _refused(port)
            app.go_on.set()
            for one in held:
                one.settimeout(LIMIT_S)
                assert one.recv(100).startswith(b"HTTP/1.1 200")
        for one in held:
            one.close()


@pytest.mark.usefixtures("clock")
def test_a_full_server_lets_the_one_go_that_was_asked_nothing_for_longest() -> None:
    """Connections are kept for long between two requests: not those that others need."""
    with serving(App(), max_connections=5, idle_timeout_s=600) as port:
        held = [http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S) for _ in range(5)]
        for one in [*held, held[0]]:
            one.request("GET", "/")
            assert one.getresponse().read() is not None
        assert ask(port) == 200
        gone, _, _ = select.select([one.sock for one in held], [], [], LIMIT_S)
        assert gone == [held[1].sock]
        held[0].request("GET", "/")
        assert held[0].getresponse().status == 200
        for one in held:
            one.close()


@pytest.mark.usefixtures("clock")
def test_newcomers_that_come_together_take_the_places_of_idle_connections() -> None:
    """Each owes its request at first: they must not take the place of one another."""
    with serving(App(), max_connections=8, idle_timeout_s=600, head_timeout_s=60.0) as port:
        idle = [http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S) for _ in range(8)]
        for one in idle:
            one.request("GET", "/")
            one.getresponse().read()
        new = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
        wait_for(lambda: len(select.select([one.sock for one in idle], [], [], 0.1)[0]) == 6)
        for newcomer in new:
            newcomer.settimeout(LIMIT_S)
            newcomer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert newcomer.recv(100).startswith(b"HTTP/1.1 200")
            newcomer.close()
        for one in idle:
            one.close()


def test_a_connection_is_kept_between_two_requests_for_as_long_as_is_said() -> None:
    with serving(App(), idle_timeout_s=1) as port:
        one = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        one.request("GET", "/")
        one.getresponse().read()
        began = time.monotonic()
        assert select.select([one.sock], [], [], LIMIT_S)[0]
        assert time.monotonic() - began > 0.9
        one.close()


def _refused(port: int, path: str = "/") -> bool:
    try:
        assert ask(port, path) == 200
    except (ConnectionError, http.client.HTTPException):
        return True
    return False


def test_a_refused_upload_is_answered_and_its_rest_is_thrown_away() -> None:
    """300 MB without a token: 401, and no more memory than before."""

    def needs(_: str, __: str) -> Need:
        return "admin"

    settings = load_settings(security={"tokens": {"rules": ["admin"]}})
    with serving(RequestGate(App(), settings, needs), body_timeout_s=LIMIT_S) as port:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        piece = b"x" * 65_536
        connection.request("POST", "/v1/statements", body=(piece for _ in range(4_800)), encode_chunked=True)
        assert connection.getresponse().status == 401
        connection.close()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 50_000, f"{grown} KiB"


@pytest.fixture(scope="module", params=[PatientProtocol, OneWriteProtocol])
def guarded(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that wants the token `rules`."""
    settings = load_settings(security={"tokens": {"rules": ["admin"]}})
    gate = RequestGate(App(), settings, lambda _, __: "admin")
    with serving(gate, request.param, body_timeout_s=LIMIT_S) as port:
        yield port


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("length", [0, 100, 1 << 20, (1 << 20) + 1, 8 << 20])
@pytest.mark.parametrize("token", ["rules", "none"])
def test_a_refused_upload_whose_connection_ends_with_it_is_answered(
    length: int, version: str, token: str, guarded: int
) -> None:
    """As urllib asks: it sends all, then reads. Closed in the middle, the connection would take the answer
    with it."""
    refused = 413 if length > load_settings().http.max_body_bytes else 200
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", guarded)) as connection:
            connection.sendall(
                f"POST /v1/x HTTP/{version}\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                f"Authorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n".encode()
            )
            connection.sendall(b" " * length)
            connection.settimeout(LIMIT_S)
            with connection.makefile("rb") as answer:
                told = answer.read()
        assert int(told.split()[1]) == (refused if token == "rules" else 401), told
        assert told.endswith((b"}", b"ok"))


def test_an_upload_that_is_broken_off_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with serving(RequestGate(App(), load_settings(), lambda _, __: None)) as port:
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(HEAD + b"half")
        wait_for(lambda: "went away" in caplog.text)
    told = [one for one in caplog.records if one.name != "asyncio"]
    assert [one.getMessage() for one in told] == ["127.0.0.1 went away in the middle of its POST /v1/x"]


@pytest.mark.parametrize("seed", range(2))
def test_no_bytes_harm_the_server(tmp_path: Path, seed: int) -> None:
    node = LiveNode(tmp_path)
    try:
        with HttpFuzz(node, seed) as fuzz:
            fuzz.run(60)
            assert {"401", "400", "403", "dropped", "closed"} <= set(fuzz.answers)
        node.check()
    finally:
        node.close()


def test_half_a_request_for_metrics_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "keytide.process.metrics")
    (port,) = free_ports()
    server = metrics.serve(port, registry=CollectorRegistry(), patience_s=0.2)
    assert server is not None
    try:
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(b"GET /metr")
            assert ended(half)
        wait_for(lambda: not _refused(port, "/metrics"))
        wait_for(lambda: "failed: timed out" in caplog.text)
        assert "Traceback" not in caplog.text
    finally:
        server.shutdown()
        server.server_close()


def test_a_process_may_have_as_many_handles_as_its_connections_take() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allow_handles(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == (
            min(hard, 10 + 4_096) if hard != resource.RLIM_INFINITY else 10 + 4_096
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_that_stops_says_so_to_whom_it_still_owes_an_answer() -> None:
    """It does not answer 500, which is a bug and not to be tried again."""

    async def waits_for_ever(scope: Any, _receive: Any, _send: Any) -> None:
        assert scope["type"] == "http"
        began.set()
        await asyncio.Event().wait()

    began = threading.Event()
    gate = RequestGate(waits_for_ever, load_settings(), lambda *_: None)
    with serving(gate) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", "/v1/x")
        assert began.wait(LIMIT_S)
    answer = connection.getresponse()
    problem = json.loads(answer.read())
    assert (answer.status, problem["type"]) == (503, "stopping")
    assert "try again" in problem["next_step"]


@pytest.mark.parametrize("protocol", [PatientProtocol, OneWriteProtocol])
def test_a_crowd_is_refused_some_and_who_asks_once_is_answered(protocol: type[PatientProtocol]) -> None:
    """A hundred requests of one reader, and one of another, that come while the process is at something."""
    busy, go_on = threading.Event(), threading.Event()

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/first":
            busy.set()
            assert go_on.wait(LIMIT_S)  # nobody else on the loop
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def connected() -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        opened.callback(connection.close)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        return connection

    def ask_for(path: str, connection: http.client.HTTPConnection, token: str = "many") -> None:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})

    tokens = {"tokens": {"many": ["read"], "one": ["read"]}}
    settings = load_settings(security=tokens, http={"max_waiting": 20})
    refused: list[str] = []
    gate = RequestGate(
        app, settings, lambda _, path: "read" if path != "/healthz" else None, refused=refused.append
    )
    with serving(gate, protocol, head_timeout_s=LIMIT_S) as port, ExitStack() as opened:
        first, one, alive = connected(), connected(), connected()
        crowd = [connected() for _ in range(100)]
        ask_for("/v1/first", first)
        assert busy.wait(LIMIT_S)
        for connection in crowd:
            ask_for("/v1/x", connection)
        ask_for("/v1/x", one, "one")
        ask_for("/healthz", alive)
        go_on.set()
        assert [connection.getresponse().status for connection in (first, one, alive)] == [200] * 3
        answers = [connection.getresponse() for connection in crowd]
        told = [(answer.status, answer.read()) for answer in answers]
        problems = [json.loads(document) for status, document in told if status != 200]
        assert len(problems) == len(refused) > 20
        assert {(problem["type"], problem["status"]) for problem in problems} == {("overloaded", 503)}
        assert {answer.headers["Retry-After"] for answer in answers if answer.status == 503} == {"1"}
        ask_for("/v1/x", crowd[0])
        assert crowd[0].getresponse().status == 200


@pytest.mark.parametrize("protocol", [PatientProtocol, OneWriteProtocol])
@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ", b"a" * 10_000),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n" * 1_000),
        (b"GET /", b"a" * 10_000),
        (b"\r\n", b"\r\n" * 5_000),
    ],
    ids=["one header", "headers", "path", "nothing"],
)
def test_a_head_without_end_is_refused_at_once(
    begun: bytes, piece: bytes, protocol: type[PatientProtocol]
) -> None:
    """It costs its server the copying of all that came before, again with each piece."""
    with serving(App(), protocol, head_timeout_s=1_000) as port:
        said = _told(port, begun, piece, 2_000_000)
        assert said is None or b" 431 " in said
        assert ask(port) == 200


@pytest.mark.parametrize(
    ("begun", "piece"),
    [(b"0\r\nX-A: ", b"a" * 10_000), (b"0\r\n", b"X-A: b\r\n" * 1_000), (b"5;", b"a" * 10_000)],
    ids=["one trailer", "trailers", "extension of a chunk"],
)
def test_what_is_between_the_parts_of_a_body_has_an_end(begun: bytes, piece: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(App(), body_timeout_s=1_000) as port:
        _told(port, head + begun, piece, 2_000_000)
        assert ask(port) == 200


def test_a_body_of_tiny_chunks_is_none_of_these() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with (
        serving(App(), body_timeout_s=LIMIT_S) as port,
        socket.create_connection(("127.0.0.1", port)) as one,
    ):
        one.sendall(head + b"1\r\na\r\n" * 200_000 + b"0\r\n\r\n")
        assert one.recv(20).startswith(b"HTTP/1.1 200")


def _told(port: int, begun: bytes, piece: bytes, most: int) -> bytes | None:
    """What the server says when it closes a connection on which a request goes on and on; None when it was
    closed before that could be read.

    Raises:
        AssertionError: it has taken `most` bytes.
    """
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as one:
        try:
            one.sendall(begun)
            for _ in range(most // len(piece)):
                one.sendall(piece)
                if select.select([one], [], [], 0)[0]:
                    return one.recv(65_536) or None
            one.settimeout(LIMIT_S)
            said = one.recv(65_536)
        except ConnectionError:
            return None
        except TimeoutError:
            raise AssertionError(f"{most} bytes were taken") from None
        return said or None
