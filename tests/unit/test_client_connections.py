"""Both clients on real connections: kept ones, time-outs, cancellation, streams, limits, threads, forks."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast, get_args

import pytest

from keytide.client import AsyncClient, Client, MisuseError
from keytide.errors import CallerError, KeytideError, RetryableError
from tests.unit.raw_node import (
    LIMIT_S,
    MOMENT,
    STREAM_HEAD,
    Asked,
    Kind,
    RawNode,
    Reaction,
    answer,
    calling,
    chunked,
    counted,
)

both = pytest.mark.parametrize("kind", get_args(Kind))


@contextmanager
def collecting() -> Iterator[Callable[[], object]]:
    """What collects the cycles that were made within, and no others: all that tests before have left would
    take seconds on a busy machine, in which a lock is held."""
    gc.disable()
    try:
        yield partial(gc.collect, 0)
    finally:
        gc.enable()


def always(content: bytes) -> Callable[[Asked, socket.socket], bytes]:
    return lambda _, __: content


# --- kept connections -------------------------------------------------------------------------------------


@both
def test_connections_are_kept_and_the_head_is_the_same_of_both(kind: Kind) -> None:
    with RawNode(always(counted(3))) as node, calling(kind, node.url + "/below", token="secret") as caller:
        assert [caller.count(), caller.count(), caller.count()] == [3, 3, 3]
        assert [(one.connection, one.number) for one in node.asked] == [(0, 0), (0, 1), (0, 2)]
        first, *lines = node.asked[0].head.split("\r\n")
        assert first == "POST /below/v1/indexes/i/count HTTP/1.1"
        assert sorted(line.lower() for line in lines) == [
            "accept-encoding: identity",
            "authorization: bearer secret",
            "content-length: 2",
            "content-type: application/json",
            f"host: 127.0.0.1:{node.port}",
            "user-agent: keytide",
        ]
        assert node.bodies()[1] == {"session": "s7"}


@both
def test_a_kept_connection_that_was_closed_meanwhile_costs_nothing(kind: Kind) -> None:
    with RawNode(always(counted(3))) as node, calling(kind, node.url, retries=0) as caller:
        caller.count()
        node.cut()
        assert caller.count() == 3
        assert [one.connection for one in node.asked] == [0, 1]
        assert caller.pauses == []


@both
def test_a_kept_connection_that_is_closed_in_the_moment_of_a_request_is_replaced_once(kind: Kind) -> None:
    """The request is sent again, on a new connection; where that ends as well, it is a failure."""

    def closing(asked: Asked, _: socket.socket) -> bytes | None:
        return counted(asked.connection) if asked.number == 0 and asked.connection < 2 else None

    with RawNode(closing) as node, calling(kind, node.url, retries=0) as caller:
        assert [caller.count(), caller.count()] == [0, 1]
        assert [(one.connection, one.number) for one in node.asked] == [(0, 0), (0, 1), (1, 0)]
        with pytest.raises(RetryableError, match=r"(?i)disconnected|closed connection without"):
            caller.count()
        assert [(one.connection, one.number) for one in node.asked[3:]] == [(1, 1), (2, 0)]
        assert caller.pauses == []


@both
def test_an_answer_that_has_begun_is_not_asked_for_again_unseen(kind: Kind) -> None:
    def half(asked: Asked, made: socket.socket) -> bytes | None:
        if asked.number == 0:
            return counted(1)
        made.sendall(counted(2)[:-3])
        return None

    with RawNode(half) as node, calling(kind, node.url, retries=0) as caller:
        caller.count()
        with pytest.raises(RetryableError, match=r"(?i)not completed|incomplete|not enough data") as caught:
            caller.count()
        assert caught.value.problem_type == "node-unavailable"
        assert len(node.asked) == 2


@both
def test_what_a_node_says_unasked_is_no_answer(kind: Kind) -> None:
    """As what stands before a node may say, before it closes a connection that nobody uses."""
    late = answer(b"", status="408 Request Timeout")

    def saying(asked: Asked, made: socket.socket) -> bytes | None:
        if asked.connection == 0:
            made.sendall(counted(1))
            made.sendall(late)
            return None
        return counted(2)

    with RawNode(saying) as node, calling(kind, node.url, retries=0) as caller:
        assert caller.count() == 1
        caller.wait(asyncio.sleep(0.1)) if kind == "async" else time.sleep(0.1)
        assert [caller.count(), caller.count()] == [2, 2]
        assert caller.pauses == []


def test_an_answer_too_many_is_not_taken_for_that_to_the_next_request() -> None:
    """By urllib3, which looks before it asks; aiohttp's connections are not looked at."""
    said = threading.Event()

    def saying(asked: Asked, made: socket.socket) -> bytes:
        if asked.connection == 0:
            made.sendall(counted(1))
            go_on.wait(LIMIT_S)
            made.sendall(counted(99))
            said.set()
        return counted(2)

    go_on = threading.Event()
    with RawNode(saying) as node, calling("sync", node.url, retries=0) as caller:
        assert caller.count() == 1
        go_on.set()
        assert said.wait(LIMIT_S)
        assert caller.count() == 2


@both
def test_a_time_out_that_answers_the_request_itself_is_told(kind: Kind) -> None:
    content = answer(b"", status="408 Request Timeout")
    with RawNode(always(content)) as node, calling(kind, node.url, retries=0) as caller:
        with pytest.raises(CallerError, match="Request Timeout"):
            caller.count()
        assert len(node.asked) == 1


@both
def test_who_says_that_it_closes_is_not_asked_there_again(kind: Kind) -> None:
    content = answer(json.dumps({**MOMENT, "count": 1}).encode(), "Connection: close")
    with RawNode(always(content)) as node, calling(kind, node.url) as caller:
        caller.count()
        caller.count()
        assert [one.connection for one in node.asked] == [0, 1]
        assert node.ended.wait(LIMIT_S), "and it is not left open"


def test_connections_are_not_kept_for_as_long_as_nodes_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On event loops; urllib3 keeps them until their node ends them."""
    monkeypatch.setattr("keytide.client.with_aiohttp.KEPT_S", 0.05)
    with RawNode(always(counted(1))) as node, calling("async", node.url) as caller:
        caller.count()
        caller.wait(asyncio.sleep(0.2))
        caller.count()
        assert [one.connection for one in node.asked] == [0, 1]


# --- time-outs and cancellation ---------------------------------------------------------------------------


@both
def test_a_silent_node_is_given_up_in_time_and_its_connection_with_it(kind: Kind) -> None:
    def silent(asked: Asked, made: socket.socket) -> bytes | None:
        if asked.connection == 0:
            made.sendall(b"HTTP/1.1 200 OK\r\ncontent-le")
            made.settimeout(LIMIT_S)
            assert made.recv(1) == b"", "the client ends it"
            node.ended.set()
            return None
        return counted(2)

    with RawNode(silent) as node, calling(kind, node.url) as caller:
        began = time.monotonic()
        with (
            caller.giving_up_after(0.3),
            pytest.raises(
                RetryableError, match=r"did not answer in time \(nothing came for 0\.3 s\)"
            ) as caught,
        ):
            caller.count()
        assert 0.25 < time.monotonic() - began < LIMIT_S / 2
        assert caught.value.status == 504
        assert node.ended.wait(LIMIT_S)
        assert caller.count() == 2
        assert caller.pauses == []


@both
def test_each_request_has_its_own_limit_on_a_kept_connection(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keytide.client.protocol.requests.ANSWER_S", 0.2)
    times = iter([0.0, 1.2, LIMIT_S])

    def slow(asked: Asked, _: socket.socket) -> bytes:
        over.wait(next(times))
        return counted(asked.number)

    over = threading.Event()
    with RawNode(slow) as node, calling(kind, node.url, retries=0) as caller:
        assert caller.count(timeout_ms=800) == 0
        assert caller.count(timeout_ms=10_000) == 1, "longer than the first one's"
        with pytest.raises(RetryableError, match=r"nothing came for 0\.3 s"):
            caller.count(timeout_ms=100)
        over.set()
        assert node.connections == 1


@both
def test_the_limit_is_for_silence_and_not_for_the_whole(kind: Kind) -> None:
    whole = counted(5)

    def slow(_: Asked, made: socket.socket) -> bytes:
        for at in range(3):
            made.sendall(whole[at : at + 1])
            threading.Event().wait(0.4)
        return whole[3:]

    with RawNode(slow) as node, calling(kind, node.url, answer_s=1.0, retries=0) as caller:
        assert caller.count() == 5


@both
def test_a_node_that_lets_nobody_in_is_given_up_in_time(kind: Kind) -> None:
    """Its queue of connections is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        place = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(place)
        try:
            with calling(kind, f"http://127.0.0.1:{place[1]}", answer_s=0.3) as caller:
                with pytest.raises(RetryableError, match=r"no connection within 0\.3 s") as caught:
                    caller.count()
                assert caught.value.status == 504
        finally:
            for one in waiting:
                one.close()


def test_a_task_that_is_cancelled_ends_its_connection() -> None:
    came = threading.Event()

    def waiting(asked: Asked, made: socket.socket) -> bytes | None:
        if asked.connection == 1:
            return counted(2)
        if asked.number == 0:
            return counted(1)
        came.set()
        made.settimeout(LIMIT_S)
        assert made.recv(1) == b""
        node.ended.set()
        return None

    async def main() -> None:
        async with AsyncClient(node.url, retries=0) as client:
            await client.count("i")
            task = asyncio.ensure_future(client.count("i"))
            await asyncio.to_thread(came.wait, LIMIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(node.ended.wait, LIMIT_S)
            assert (await client.count("i")).count == 2

    with RawNode(waiting) as node:
        asyncio.run(main())


# --- answers ----------------------------------------------------------------------------------------------


@both
def test_big_answers(kind: Kind) -> None:
    rows = [{"key": [f"k{at}"], "id": f"u{at}", "include": {"text": "x" * 200}} for at in range(20_000)]
    content = json.dumps({**MOMENT, "rows": rows, "page": None}).encode()
    assert len(content) > 4_000_000
    pieces = [content[at : at + 99_999] for at in range(0, len(content), 99_999)]
    forms = [
        answer(content),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(*pieces),
        b"HTTP/1.1 200 OK\r\n\r\n" + content,
    ]

    def react(_: Asked, made: socket.socket) -> bytes | None:
        form = forms.pop(0)
        if forms:
            return form
        made.sendall(form)
        return None  # the end of the connection is the answer's

    with RawNode(react) as node, calling(kind, node.url, retries=0) as caller:
        for _ in range(3):
            page = caller.wait(caller.client.page("i"))
            assert [row.id for row in page.rows] == [f"u{at}" for at in range(20_000)]
        assert node.connections == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of aiohttp, of a body of 30 MB
def test_a_connection_that_took_only_a_part_of_its_request_is_not_kept() -> None:
    """Its node answered before it had read all: what is left of the request stands before the next one."""

    def early() -> None:
        for status in ("413 Content Too Large", "200 OK"):
            made, _ = listener.accept()
            held.append(made)
            made.recv(1_000)
            made.sendall(answer(json.dumps({**MOMENT, "count": 3}).encode(), status=status))

    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=early, daemon=True)
        thread.start()
        with calling("async", f"http://127.0.0.1:{listener.getsockname()[1]}", answer_s=LIMIT_S) as caller:
            with pytest.raises(KeytideError):
                caller.count(session="x" * 30_000_000)
            assert caller.count() == 3
        thread.join(LIMIT_S)
        for one in held:
            one.close()


@both
def test_a_host_of_several_addresses_is_reached_by_one_that_answers(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both_of_it(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        found = [known(one, port, *args, **more)[0] for one in ("127.0.0.2", "127.0.0.1")]
        return found if host == "two.example" else known(host, port, *args, **more)

    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", both_of_it)
    with RawNode(always(counted(4))) as node, socket.socket() as listener:
        listener.bind(("127.0.0.2", node.port))
        listener.listen(0)  # and lets nobody in: its queue is full
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        try:
            with calling(kind, f"http://two.example:{node.port}", retries=0, answer_s=1.5) as caller:
                assert caller.count() == 4
        finally:
            for one in waiting:
                one.close()


@both
def test_errors_have_their_words(kind: Kind) -> None:
    document = json.dumps({"type": "unknown-index", "status": 404, "detail": "no index i"}).encode()
    forms = [
        answer(document, status="404 Not Found"),
        answer(b"", status="405 Method Not Allowed"),
        answer(b"", "Location: http://elsewhere.example/", status="307 Temporary Redirect"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ]
    with RawNode(lambda _, __: forms.pop(0)) as node, calling(kind, node.url, retries=0) as caller:
        with pytest.raises(CallerError, match="no index i") as caught:
            caller.count()
        assert (caught.value.problem_type, caught.value.status) == ("unknown-index", 404)
        with pytest.raises(CallerError, match="Method Not Allowed"):
            caller.count()
        with pytest.raises(CallerError, match="Temporary Redirect"):
            caller.count()
        assert node.connections == 1
        with pytest.raises(RetryableError, match=r"(?i)SSH|bad status|invalid"):
            caller.count()


@both
def test_a_node_that_is_not_there(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with calling(kind, url, retries=1) as caller:
        with pytest.raises(RetryableError, match=r"Errno 111") as caught:
            caller.count()
        assert caught.value.problem_type == "node-unavailable"
        assert caller.pauses == [0.05]
        with pytest.raises(CallerError, match="token"):
            caller.next(caller.client.tail("i", resume="t7\r\nHost: other.example"))


# --- streams ----------------------------------------------------------------------------------------------


@both
def test_streams_come_bit_by_bit_and_leave_their_connection(kind: Kind) -> None:
    """Also one that is whole in a moment."""
    go_on = threading.Event()

    def react(asked: Asked, made: socket.socket) -> bytes:
        if asked.number:
            return STREAM_HEAD + chunked(b'{"id":"c"}\n')
        made.sendall(STREAM_HEAD + chunked(b'{"id":"a"}\n{"id"', end=False))
        assert go_on.wait(LIMIT_S)
        return chunked(b':"b"}\n')

    with RawNode(react) as node, calling(kind, node.url, retries=0) as caller:
        lines = caller.client.scan("i").ndjson()
        assert caller.next(lines) == b'{"id":"a"}\n'
        go_on.set()
        assert caller.next(lines) == b'{"id":"b"}\n'
        for _ in range(2):
            with pytest.raises((StopIteration, StopAsyncIteration)):
                caller.next(lines)
        assert caller.next(caller.client.scan("i").ndjson()) == b'{"id":"c"}\n'
        assert node.connections == 1


@both
def test_a_stream_ends_when_the_caller_goes_away(kind: Kind) -> None:
    """And no more of it is read than has to be: what nobody takes is not piled up here."""
    line = b'{"id":"' + b"x" * 65_000 + b'"}\n'
    sent, most = 0, 3_000  # of which the buffers of the machine take some 500

    def endless(asked: Asked, made: socket.socket) -> bytes | None:
        nonlocal sent
        if asked.connection:
            return counted(1)
        made.sendall(STREAM_HEAD)
        made.settimeout(0.5)
        try:
            while sent < most:
                made.sendall(chunked(line, end=False))
                sent += 1
        except TimeoutError:
            pass
        stalled.set()
        made.settimeout(LIMIT_S)
        try:
            while True:
                made.sendall(line)
        except ConnectionError:
            gone.set()
        return None

    stalled, gone = threading.Event(), threading.Event()
    with RawNode(endless) as node, calling(kind, node.url, retries=0) as caller:
        lines = caller.client.scan("i").ndjson()
        caller.next(lines)
        if kind == "async":  # the loop reads on while it runs, up to a bound
            caller.wait(_turning(stalled))
        assert stalled.wait(LIMIT_S)
        assert sent < most
        caller.end(lines)
        assert gone.wait(LIMIT_S)
        assert caller.count() == 1


@both
def test_a_stream_that_was_not_taken_for_a_while_goes_on(kind: Kind) -> None:
    """Reading stops at a bound, and goes on when someone takes."""
    lines = [f"{at}".encode() * 10_000 + b"\n" for at in range(1_000, 2_000)]

    def react(_: Asked, made: socket.socket) -> bytes:
        made.sendall(STREAM_HEAD)
        for at in range(0, 1_000, 10):
            made.sendall(chunked(*lines[at : at + 10], end=False))
        return chunked()

    with RawNode(react) as node, calling(kind, node.url, retries=0, answer_s=1.0) as caller:
        stream = caller.client.scan("i").ndjson()
        found = [caller.next(stream)]
        caller.wait(asyncio.sleep(1.5)) if kind == "async" else time.sleep(1.5)
        while True:
            try:
                found.append(caller.next(stream))
            except (StopIteration, StopAsyncIteration):
                break
        assert b"".join(found) == b"".join(lines)


async def _turning(until: threading.Event) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not until.is_set():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # for what came before that


@both
def test_a_stream_that_breaks_off_or_stands_still_is_an_error(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def react(asked: Asked, made: socket.socket) -> bytes | None:
        made.sendall(STREAM_HEAD + chunked(b'{"id":"a"}\n', end=False))
        if asked.connection == 0:
            return None
        made.settimeout(LIMIT_S)
        assert made.recv(1) == b""
        return None

    with RawNode(react) as node, calling(kind, node.url, retries=0, answer_s=1.0) as caller:
        for why in (r"(?i)not completed|incomplete|not enough data", r"nothing came for 1 s"):
            lines = caller.client.scan("i").ndjson()
            assert caller.next(lines) == b'{"id":"a"}\n'
            with pytest.raises(RetryableError, match=why) as caught:
                caller.next(lines)
            assert caught.value.problem_type == "stream-broken"


@both
def test_no_more_connections_than_may_be(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("with_urllib3", "with_aiohttp"):
        monkeypatch.setattr(f"keytide.client.{module}.CONNECTIONS", 2)

    def react(asked: Asked, _: socket.socket) -> bytes:
        return (
            STREAM_HEAD + chunked(b'{"id":"a"}\n', end=False) if asked.path.endswith("scan") else counted(4)
        )

    with RawNode(react) as node, calling(kind, node.url, retries=0) as caller:
        streams = [caller.client.scan("i").ndjson() for _ in range(2)]
        for one in streams:
            caller.next(one)
        with caller.giving_up_after(0.3), pytest.raises(RetryableError) as caught:
            caller.count()
        assert caught.value.problem_type == "client-busy"
        assert node.connections == 2
        caller.end(streams[0])
        assert caller.count() == 4
        caller.end(streams[1])


@both
def test_streams_that_nobody_holds_any_more_are_left(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    def react(asked: Asked, made: socket.socket) -> bytes | None:
        if not asked.path.partition("?")[0].endswith("tail"):
            return counted(1)
        made.sendall(STREAM_HEAD + chunked(b'data: {"snapshot":7}\n\n', end=False))
        made.settimeout(LIMIT_S)
        if made.recv(1) == b"":
            ended.release()
        return None

    for place in ("with_urllib3", "with_aiohttp"):
        monkeypatch.setattr(f"keytide.client.{place}.CONNECTIONS", 2)
    ended = threading.Semaphore(0)
    with (
        RawNode(react) as node,
        calling(kind, node.url, retries=0, answer_s=1.0) as caller,
        collecting() as collect,
    ):
        for _ in range(3):
            assert caller.next(caller.client.tail("i")).snapshot == 7
            collect()
            if kind == "async":
                caller.wait(asyncio.sleep(0.01))
            assert ended.acquire(timeout=LIMIT_S)
        assert caller.count() == 1


def test_a_generator_that_is_collected_while_connections_are_looked_at_does_not_wait_for_itself() -> None:
    def react(asked: Asked, _: socket.socket) -> bytes:
        if asked.path.endswith("scan"):
            return STREAM_HEAD + chunked(b'{"id":"a"}\n', end=False)
        return counted(1)

    def work() -> None:
        held: list[Any] = [client.scan("i").ndjson()]
        next(held[0])
        held.append(held)
        del held
        with connections._lock:
            collect()

    with RawNode(react) as node:
        client = Client(node.url, retries=0)
        connections = cast(Any, client)._shell._connections
        thread = threading.Thread(target=work, daemon=True)
        with collecting() as collect:
            thread.start()
            thread.join(LIMIT_S / 4)
        assert not thread.is_alive()
        assert node.ended.wait(LIMIT_S)
        client.close()


@both
def test_a_client_that_is_closed_ends_its_streams(kind: Kind) -> None:
    def react(_: Asked, made: socket.socket) -> bytes | None:
        made.sendall(STREAM_HEAD + chunked(b'{"id":"a"}\n', end=False))
        made.settimeout(LIMIT_S)
        assert made.recv(1) == b""
        node.ended.set()
        return None

    with RawNode(react) as node, calling(kind, node.url, retries=0) as caller:
        lines = caller.client.scan("i").ndjson()
        caller.next(lines)
        caller.wait(caller.client.close())
        assert node.ended.wait(LIMIT_S)
        with pytest.raises(RetryableError, match="closed"):
            caller.next(lines)
        with pytest.raises(MisuseError, match="closed"):
            caller.count()


def test_a_client_that_is_closed_by_another_thread_wakes_who_waits() -> None:
    told: list[BaseException] = []

    def react(_: Asked, made: socket.socket) -> bytes | None:
        made.sendall(STREAM_HEAD + chunked(b'{"id":"a"}\n', end=False))
        waiting.set()
        made.settimeout(LIMIT_S)
        assert made.recv(1) == b""
        return None

    def read() -> None:
        try:
            list(client.scan("i").ndjson())
        except KeytideError as error:  # the stream's, or that of a client that is closed
            told.append(error)

    waiting = threading.Event()
    with RawNode(react) as node, Client(node.url, retries=0) as client:
        thread = threading.Thread(target=read)
        thread.start()
        assert waiting.wait(LIMIT_S)
        client.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert len(told) == 1


# --- threads, loops, forks --------------------------------------------------------------------------------


def test_threads_have_their_own_answers_and_share_connections() -> None:
    def echo(asked: Asked, _: socket.socket) -> bytes:
        return counted(json.loads(asked.body)["limit"])

    wrong: list[Any] = []

    def work(client: Client, first: int) -> None:
        for at in range(first, first + 40):
            found = client.count("i", limit=at)  # type: ignore[call-arg]
            if found.count != at:
                wrong.append((at, found))

    with RawNode(echo) as node, Client(node.url) as client:
        threads = [threading.Thread(target=work, args=(client, 100 * n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert wrong == []
        assert len(node.asked) == 320
        assert node.connections <= 8


def test_tasks_have_their_own_answers_and_share_connections() -> None:
    def echo(asked: Asked, _: socket.socket) -> bytes:
        return counted(json.loads(asked.body)["limit"])

    async def main() -> None:
        async with AsyncClient(node.url) as client:
            for _ in range(10):
                found = await asyncio.gather(*(client.count("i", limit=at) for at in range(16)))  # type: ignore[call-arg]
                assert [one.count for one in found] == list(range(16))
        assert node.connections <= 16

    with RawNode(echo) as node:
        asyncio.run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the connections of the loop that is no more
def test_a_client_goes_on_on_another_event_loop() -> None:
    async def main(client: AsyncClient) -> None:
        assert (await client.count("i")).count == 1
        await client.count("i")

    with RawNode(always(counted(1))) as node, collecting() as collect:
        client = AsyncClient(node.url, retries=0)
        asyncio.run(main(client))
        asyncio.run(main(client))
        asyncio.run(client.close())
        assert [one.connection for one in node.asked] == [0, 0, 1, 1]
        del client
        collect()


def ending_stream(counts: int) -> tuple[Reaction, threading.Event]:
    """A node whose streams have a second line, and an end, once it was asked for so many counts, or the event
    is set."""
    asked_for = itertools.count(1)

    def react(asked: Asked, made: socket.socket) -> bytes:
        if not asked.path.endswith("scan"):
            if next(asked_for) == counts:
                go_on.set()
            return counted(1)
        made.sendall(STREAM_HEAD + chunked(b'{"id":"a"}\n', end=False))
        assert go_on.wait(LIMIT_S)
        return chunked(b'{"id":"b"}\n')

    go_on = threading.Event()
    return react, go_on


FORKING = """
import os, sys, warnings
from keytide import Client

with Client(sys.argv[1], retries=0) as client:
    assert client.count("i").count == 1
    stream = client.scan("i").ndjson()
    next(stream)
    assert client.count("i").count == 1
    child = os.fork()
    assert client.count("i").count == 1
    if child == 0:
        stream.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.count("i").count == 1
    assert next(stream) == b'{"id":"b"}\\n'
"""


def test_a_child_makes_connections_of_its_own() -> None:
    """And leaves those of its parent alone, a stream among them."""
    react, _ = ending_stream(5)
    with RawNode(react) as node:
        ran = subprocess.run(
            [sys.executable, "-c", FORKING, node.url],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        # one that is kept, which the stream takes; the parent's second, and the child's
        assert node.connections == 3
        by = [[one.number for one in node.asked if one.connection == at] for at in range(3)]
        assert list(map(len, by)) == [2, 3, 1]


FORKING_ON_A_LOOP = """
import asyncio, os, sys, threading
from keytide import AsyncClient

def in_child():
    assert asyncio.run(client.count("i")).count == 1
    asyncio.run(client.close())
    os._exit(0)

async def main():
    assert (await client.count("i")).count == 1
    stream = client.scan("i").ndjson()
    await anext(stream)
    assert (await client.count("i")).count == 1
    child = os.fork()
    if child == 0:
        thread = threading.Thread(target=in_child)  # on which no loop runs
        thread.start()
        thread.join()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (await client.count("i")).count == 1
    assert await anext(stream) == b'{"id":"b"}\\n'
    await client.close()

client = AsyncClient(sys.argv[1], retries=0, answer_s=5.0)
asyncio.run(main())
"""


def test_a_child_leaves_the_connections_of_the_loop_of_its_parent_alone() -> None:
    react, all_asked = ending_stream(4)
    with RawNode(react) as node:
        ran = subprocess.run(
            [sys.executable, "-c", FORKING_ON_A_LOOP, node.url],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        all_asked.set()
        assert ran.returncode == 0, ran.stderr
        assert [one.connection for one in node.asked] == [0, 0, 1, 2, 1]


CLOSING_IN_A_CHILD = """
import os, sys, threading
from keytide import Client

def read():
    found.extend(client.scan("i").ndjson())

found = []
client = Client(sys.argv[1], retries=0)
assert client.count("i").count == 1
thread = threading.Thread(target=read)
thread.start()
while not client._shell._connections._streams:
    pass
child = os.fork()
if child == 0:
    client.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client.count("i").count == 1
thread.join(20)
assert b"".join(found) == b'{"id":"a"}\\n{"id":"b"}\\n', found
"""


def test_a_child_that_closes_its_client_leaves_who_reads_in_the_parent_alone() -> None:
    react, all_asked = ending_stream(2)
    with RawNode(react) as node:
        ran = subprocess.run(
            [sys.executable, "-c", CLOSING_IN_A_CHILD, node.url],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        all_asked.set()
        assert ran.returncode == 0, ran.stderr


def test_a_request_that_another_loop_overtook_leaves_it_no_connection() -> None:
    def react(asked: Asked, _: socket.socket) -> bytes:
        if asked.connection == 0:
            assert overtaken.wait(LIMIT_S)
        return counted(asked.connection)

    overtaken = threading.Event()
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    with RawNode(react) as node:
        client = AsyncClient(node.url, retries=0, answer_s=LIMIT_S)
        waiting = first.create_task(client.count("i"))
        first.run_until_complete(_until(lambda: node.asked))
        assert second.run_until_complete(client.count("i")).count == 1
        overtaken.set()
        assert first.run_until_complete(waiting).count == 0
        assert second.run_until_complete(client.count("i")).count == 1
        second.run_until_complete(client.close())
        first.run_until_complete(asyncio.sleep(0))
    first.close()
    second.close()


async def _until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


# --- what comes before a node -----------------------------------------------------------------------------


@both
def test_a_proxy_of_the_environment_is_asked(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with RawNode(always(counted(9))) as proxy, RawNode(always(counted(1))) as node:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with calling(kind, "http://node.example:8093") as caller:
            assert caller.count() == 9
        assert proxy.asked[0].path == "http://node.example:8093/v1/indexes/i/count"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with calling(kind, node.url) as caller:
            assert caller.count() == 1


@both
def test_a_name_and_password_in_the_address(kind: Kind) -> None:
    with RawNode(always(counted(9))) as node:
        address = node.url.replace("//", "//me:p%40ss@")
        with calling(kind, address, token="secret") as caller:
            caller.count()
        assert node.asked[0].header("authorization") == "Basic bWU6cEBzcw=="
        assert node.asked[0].header("host") == f"127.0.0.1:{node.port}"


@pytest.mark.parametrize(
    ("done", "loaded"),
    [("", []), ("Client('http://127.0.0.1')", ["urllib3"]), ("AsyncClient('http://127.0.0.1')", ["aiohttp"])],
)
def test_a_client_loads_no_other_client_of_http(done: str, loaded: list[str]) -> None:
    code = (
        f"import sys; from keytide import Client, AsyncClient; {done}\n"
        "print(sorted({'httpx', 'aiohttp', 'urllib3', 'pyarrow'} & sys.modules.keys()))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert ran.stdout.strip() == str(loaded)


@both
def test_cookies_are_not_kept(kind: Kind) -> None:
    content = answer(json.dumps({**MOMENT, "count": 1}).encode(), "Set-Cookie: a=b; Path=/")
    with RawNode(always(content)) as node, calling(kind, node.url) as caller:
        caller.count()
        caller.count()
        assert node.asked[1].header("cookie") is None


@both
def test_heads_may_be_large(kind: Kind) -> None:
    """A stream's names the next offset of each source partition in one header: 64 KiB with `http.client`."""
    size = 65_000 if kind == "sync" else 900_000
    head = STREAM_HEAD[:-2] + b"keytide-offsets: " + b"x" * size + b"\r\n\r\n"
    with RawNode(always(head + chunked(b'{"id":"a"}\n'))) as node, calling(kind, node.url) as caller:
        assert caller.next(caller.client.scan("i").ndjson()) == b'{"id":"a"}\n'
    with (
        RawNode(always(head.replace(b"x" * size, b"x" * 1_100_000))) as node,
        calling(kind, node.url, retries=0) as caller,
        pytest.raises(RetryableError, match=r"(?i)more than|header"),
    ):
        caller.next(caller.client.scan("i").ndjson())
