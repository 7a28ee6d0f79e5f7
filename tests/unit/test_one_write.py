"""The head of an answer goes out with its body, or at the end of the turn."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from contextlib import closing
from typing import Any

import uvicorn

from indexer.serve.one_write import OneWriteProtocol, _HeadKeeper
from tests.serving import running

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_head_and_body_are_one_write_and_a_head_alone_does_not_wait() -> None:
    async def run() -> None:
        transport = Transport()
        keeper = _HeadKeeper(transport, asyncio.get_running_loop())  # type: ignore[arg-type]
        keeper.write(HEAD)
        assert transport.written == []
        keeper.write(b"{}")
        keeper.write(b"more")
        assert transport.written == [HEAD + b"{}", b"more"]
        await asyncio.sleep(0)
        assert len(transport.written) == 2
        keeper.write(HEAD)  # a stream that has nothing to say yet
        await asyncio.sleep(0)
        assert transport.written[2:] == [HEAD]
        keeper.write(HEAD)
        assert not keeper.is_closing()
        keeper.close()
        assert transport.written[3:] == [HEAD]
        assert transport.closed

    asyncio.run(run())


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """`/slow` says its head at once and its body when told; others at once."""
    if scope["type"] != "http":
        return
    headers = [(b"content-length", b"4")]
    if scope["path"] == "/empty":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["path"] == "/slow":
        await asyncio.to_thread(TOLD.wait, 20)
    await send({"type": "http.response.body", "body": b"body"})


TOLD = threading.Event()


def test_a_real_server_answers_so() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(answer, http=OneWriteProtocol, loop="uvloop", lifespan="off", log_level="error")
    connection = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=20)
    with running(uvicorn.Server(config), listener), closing(connection):
        for _ in range(2):  # the same connection
            connection.request("GET", "/quick")
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"body")
        connection.request("GET", "/empty")
        response = connection.getresponse()
        assert (response.status, response.read()) == (204, b"")
        connection.request("GET", "/slow")
        began = time.monotonic()
        response = connection.getresponse()  # the head is there before the body
        assert time.monotonic() - began < 10
        TOLD.set()
        assert response.read() == b"body"
