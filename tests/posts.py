"""How nodes are reached in tests: by a function that answers requests of httpx, in place of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx

from keytide.http.blocking_nodes import BlockingPost
from keytide.http.node_protocol import NoAnswerError


def post_to(handle: Callable[[httpx.Request], httpx.Response]) -> BlockingPost:
    """For a `BlockingNodeClient`."""

    def post(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            answer = handle(httpx.Request("POST", url, content=body, headers=dict(headers)))
        except httpx.TransportError as error:
            raise NoAnswerError(str(error)) from error
        return answer.status_code, answer.content

    return post
