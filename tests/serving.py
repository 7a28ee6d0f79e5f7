"""Servers in a thread of the test, which end with it.

uvicorn looks ten times a second whether it is to end, and ours once in ten looks for requests that are late
(`keytide.serving.server`): most of what a test with a server of its own would wait for. Here they look often.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

import uvicorn

LIMIT_S: Final = 30.0
_LOOK_S: Final = 0.01


@contextmanager
def running(server: uvicorn.Server, listener: socket.socket) -> Iterator[int]:
    """The port of a server that runs on a listening socket."""

    async def main_loop() -> None:
        looks = 0
        while not await server.on_tick(looks):
            looks += 1
            await asyncio.sleep(_LOOK_S)

    with patch.object(server, "main_loop", main_loop):
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)
            assert not thread.is_alive()
