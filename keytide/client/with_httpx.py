"""Connections by httpx, for clients that are given a transport of it, or whose nodes lie behind a proxy that
the environment names (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`).

All others are reached by urllib3 and aiohttp (`with_urllib3`, `with_aiohttp`), which take less of a
processor. This is loaded only when it is needed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Final

import httpx

from keytide.client.protocol.calls import ANSWER_S, HttpCall, HttpReply, NoReply
from keytide.client.protocol.reaching import CONNECTIONS, KEPT_S, all_busy, failed, headers_for
from keytide.http.tls import trusted

_LIMITS: Final = httpx.Limits(
    max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=KEPT_S
)
_BROKEN: Final = (httpx.HTTPError, httpx.StreamError)


class HttpxConnections:
    """As `Urllib3Connections`, by httpx."""

    def __init__(
        self, headers: Mapping[str, str], authority: str, transport: httpx.BaseTransport | None
    ) -> None:
        self._http = httpx.Client(
            headers=dict(headers), transport=transport, verify=trusted(authority), limits=_LIMITS
        )

    @property
    def closed(self) -> bool:
        return self._http.is_closed

    def call(self, call: HttpCall, seconds: float) -> HttpReply | NoReply:
        try:
            response = self._http.send(_request(self._http, call, seconds), stream=True)
            if _stays_open(response, call):
                return _reply(response, call, (response, response.iter_bytes()))
            try:
                response.read()
            finally:
                response.close()
        except httpx.HTTPError as error:
            return _failure(error, seconds)
        return _reply(response, call)

    def read(self, body: tuple[httpx.Response, Iterator[bytes]]) -> bytes | NoReply:
        response, chunks = body
        try:
            return next(filter(None, chunks), b"")
        except _BROKEN as error:
            response.close()
            return _failure(error)
        except BaseException:
            response.close()
            raise

    def leave(self, body: tuple[httpx.Response, Iterator[bytes]]) -> None:
        body[0].close()

    def close(self) -> None:
        self._http.close()


class AsyncHttpxConnections:
    """As `AiohttpConnections`, by httpx."""

    def __init__(
        self, headers: Mapping[str, str], authority: str, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._http = httpx.AsyncClient(
            headers=dict(headers), transport=transport, verify=trusted(authority), limits=_LIMITS
        )

    @property
    def closed(self) -> bool:
        return self._http.is_closed

    async def call(self, call: HttpCall, seconds: float) -> HttpReply | NoReply:
        try:
            response = await self._http.send(_request(self._http, call, seconds), stream=True)
            if _stays_open(response, call):
                return _reply(response, call, (response, response.aiter_bytes()))
            try:
                await response.aread()
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            return _failure(error, seconds)
        return _reply(response, call)

    async def read(self, body: tuple[httpx.Response, AsyncGenerator[bytes, None]]) -> bytes | NoReply:
        response, chunks = body
        try:
            async for chunk in chunks:
                if chunk:
                    return chunk
        except _BROKEN as error:
            await response.aclose()
            return _failure(error)
        except BaseException:
            await response.aclose()
            raise
        return b""

    async def leave(self, body: tuple[httpx.Response, AsyncGenerator[bytes, None]]) -> None:
        response, chunks = body
        await chunks.aclose()
        await response.aclose()

    async def close(self) -> None:
        await self._http.aclose()


def _request(http: httpx.Client | httpx.AsyncClient, call: HttpCall, seconds: float) -> httpx.Request:
    timeout = httpx.Timeout(seconds, connect=min(ANSWER_S, seconds))
    return http.build_request(
        call.method,
        call.node + call.path,
        content=call.content,
        headers=headers_for(call, {}),
        timeout=timeout,
    )


def _stays_open(response: httpx.Response, call: HttpCall) -> bool:
    return call.stream and response.status_code == 200


def _reply(response: httpx.Response, call: HttpCall, body: Any = None) -> HttpReply:
    """An answer, whose body was read unless it is given as `body`."""
    content = response.content if body is None else b""
    return HttpReply(call.node, response.status_code, response.headers, content, response.reason_phrase, body)


def _failure(error: Exception, seconds: float | None = None) -> NoReply:
    """Why there is no answer; `seconds` were waited for one."""
    if isinstance(error, httpx.PoolTimeout):
        return all_busy()
    if isinstance(error, httpx.TimeoutException):
        waited = "" if seconds is None else f", {seconds:g} s"
        return NoReply(f"{type(error).__name__}{waited}", slow=True)
    return failed(error)
