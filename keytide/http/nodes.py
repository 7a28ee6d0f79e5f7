"""Asking nodes from an event loop, over one pool of kept-alive connections (`node_protocol`)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import aiohttp

from keytide.http.node_protocol import NoAnswerError, RefusedError, headers_of
from keytide.http.tls import trusted
from keytide.process.clock import wall_ms

IDLE_S: Final = 60.0
"""How long an unused connection is kept: less than `http.idle_timeout_s`, after which a server closes it."""

CONNECTIONS: Final = 128
"""To one node at once; who comes later waits for one of them. There is no limit over all nodes: those that
wait for a node which stands still would keep everybody from the others."""

Post = Callable[[str, bytes, Mapping[str, str], float], Awaitable[tuple[int, bytes]]]
"""Sends (URL, body, headers, limit in s) and brings (status, body), or raises as aiohttp does."""


class NodeClient:
    """Asks nodes, on one event loop. Close it.

    Args:
        authority: who signs the nodes' certificates (`security.tls_authority`).
        post: how nodes are reached (tests have one of their own).
    """

    def __init__(self, authority: str = "", post: Post | None = None) -> None:
        self._authority = authority
        self._post = post or self._by_session
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, url: str, body: bytes, secret: str, timeout_s: float) -> bytes:
        """The body of a node's answer; `secret` is that of the cluster.

        Raises:
            TimeoutError: it did not answer in time.
            NoAnswerError: it cannot be asked.
            RefusedError: it answered with something else.
        """
        headers = headers_of(secret, wall_ms())
        try:
            try:
                status, answer = await self._post(url, body, headers, timeout_s)
            except aiohttp.ServerDisconnectedError:  # a kept connection to a node that has restarted
                status, answer = await self._post(url, body, headers, timeout_s)
        except TimeoutError:  # some of aiohttp's own are both
            raise
        except aiohttp.ClientError as error:
            raise NoAnswerError(str(error)) from error
        if status != 200:
            raise RefusedError(status, answer)
        return answer

    async def _by_session(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, limit_per_host=CONNECTIONS, keepalive_timeout=IDLE_S)
            self._session = aiohttp.ClientSession(connector=connector)
        async with self._session.post(
            url,
            data=body,
            headers=headers,
            # (aiohttp would put off the end of 5 s and more to the clock's next whole second)
            timeout=aiohttp.ClientTimeout(total=timeout_s, ceil_threshold=math.inf),
            ssl=trusted(self._authority) if url.startswith("https:") else True,
        ) as response:
            return response.status, await response.read()
