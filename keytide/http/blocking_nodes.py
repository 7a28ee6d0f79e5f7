"""Asking nodes from threads (`node_protocol`): with urllib3, for programs that have no event loop.

Copies are what is large here: an answer of 2 MiB takes 1 ms of the processor with it, and 10 with httpx,
which reads it in Python, 64 KiB at a time (measured; nobody else of the process gets on meanwhile).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import urllib3

from keytide.http.node_protocol import NoAnswerError, RefusedError, headers_of
from keytide.http.tls import trusted
from keytide.process.clock import wall_ms

LIMIT_S: Final = 60.0
"""How long nothing may come back."""
_NODES: Final = 64
"""That connections are kept to."""
_KEPT: Final = 16
"""Connections to each: a driver reads eight slices at once, and renews what it holds."""

BlockingPost = Callable[[str, bytes, Mapping[str, str]], tuple[int, bytes]]
"""(url, body, headers) -> status and body of the answer. Raises `NoAnswerError`."""


class BlockingNodeClient:
    """Asks nodes, from any thread. Close it.

    Args:
        authority: who signs the nodes' certificates (`security.tls_authority`).
        post: how nodes are reached (tests have a way of their own).
        limit_s: how long nothing may come back.
    """

    def __init__(self, authority: str, post: BlockingPost | None = None, limit_s: float = LIMIT_S) -> None:
        self._authority = authority
        self._pool = urllib3.PoolManager(_NODES, maxsize=_KEPT, timeout=limit_s, retries=False)
        self._post = post or self._reach

    def ask(self, url: str, body: bytes, secret: str) -> bytes:
        """The body of a node's answer; `secret` is that of the cluster.

        Raises:
            NoAnswerError: it cannot be asked.
            RefusedError: it answered with something else.
        """
        status, answer = self._post(url, body, headers_of(secret, wall_ms()))
        if status != 200:
            raise RefusedError(status, answer)
        return answer

    def close(self) -> None:
        """Close the connections that are kept."""
        self._pool.clear()

    def _reach(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if url.startswith("https:"):  # (to read whom one trusts takes longer than a small build may)
            self._pool.connection_pool_kw.setdefault("ssl_context", trusted(self._authority))
        try:
            answer = self._pool.request("POST", url, body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswerError(str(error)) from error
        return answer.status, answer.data
