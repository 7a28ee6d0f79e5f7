"""Asking nodes from threads (`node_protocol`): with httpx, for programs that have no event loop."""

from __future__ import annotations

from typing import Final

import httpx

from keytide.http.node_protocol import NoAnswerError, RefusedError, headers_of
from keytide.http.tls import trusted
from keytide.process.clock import wall_ms

LIMIT_S: Final = 60.0
"""How long nothing may come back."""


class BlockingNodeClient:
    """Asks nodes, from any thread. Close it.

    Args:
        authority: who signs the nodes' certificates (`security.tls_authority`).
        transport: how nodes are reached (tests have one of their own).
        limit_s: how long nothing may come back.
    """

    def __init__(
        self, authority: str, transport: httpx.BaseTransport | None = None, limit_s: float = LIMIT_S
    ) -> None:
        self._http = httpx.Client(timeout=limit_s, transport=transport, verify=trusted(authority))
        self.close = self._http.close

    def ask(self, url: str, body: bytes, secret: str) -> bytes:
        """The body of a node's answer; `secret` is that of the cluster.

        Raises:
            NoAnswerError: it cannot be asked.
            RefusedError: it answered with something else.
        """
        try:
            response = self._http.post(url, content=body, headers=headers_of(secret, wall_ms()))
        except httpx.TransportError as error:
            raise NoAnswerError(str(error)) from error
        if response.status_code != 200:
            raise RefusedError(response.status_code, response.content)
        return response.content
