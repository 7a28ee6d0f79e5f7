"""The two shells: they carry flows out with httpx, one by waiting, one with asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx

from keytide.client.protocol.answers import MisuseError, problem
from keytide.client.protocol.calls import (
    ANSWER_S,
    Close,
    Disconnect,
    Flow,
    HttpCall,
    HttpReply,
    NoReply,
    Outcome,
    Read,
    RetryPause,
    Step,
)
from keytide.client.protocol.flows import Core
from keytide.errors import KeytideError
from keytide.http.bearer import bearer
from keytide.http.tls import trusted

ResultT = TypeVar("ResultT")
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60.0)
"""Unused connections are kept for less long than servers keep them (`http.idle_timeout_s`)."""
_BROKEN = (httpx.HTTPError, httpx.StreamError)


class Shell:
    """Carries flows out, for a program that waits.

    Args:
        core: what the flows share.
        token: API token, "" for none.
        sleep: takes seconds.
        answer_s: how long nothing may come back at most, whatever a request asks for; None for no such limit.
    """

    def __init__(
        self,
        core: Core,
        token: str,
        transport: httpx.BaseTransport | None,
        sleep: Callable[[float], None],
        answer_s: float | None = None,
        tls_authority: str = "",
    ) -> None:
        self.core = core
        self._answer_s = answer_s
        self._http = httpx.Client(
            headers=bearer(token), transport=transport, verify=trusted(tls_authority), limits=_LIMITS
        )
        self._sleep = sleep

    def run(self, flow: Flow[ResultT]) -> ResultT:
        """The flow's result."""
        outcome: Outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                result: ResultT = end.value
                return result
            outcome = self._do(step)

    def _do(self, step: Step) -> Outcome:
        match step:
            case HttpCall():
                return self._call(step)
            case Read(body):
                return _read(body)
            case Close((response, _)):
                response.close()
            case Disconnect():
                self._http.close()
            case RetryPause(seconds):
                self._sleep(seconds)
        return None

    def _call(self, call: HttpCall) -> HttpReply | NoReply:
        if self._http.is_closed:
            raise _closed()
        try:
            response = self._http.send(_request(self._http, call, self._answer_s), stream=True)
            if _stays_open(response, call):
                return _reply(response, call, (response, response.iter_bytes()))
            try:
                response.read()
            finally:
                response.close()
        except httpx.HTTPError as error:
            return _failure(error, _seconds(call, self._answer_s))
        return _reply(response, call)


def _read(body: tuple[httpx.Response, Iterator[bytes]]) -> bytes | NoReply:
    response, chunks = body
    try:
        return next(filter(None, chunks), b"")
    except _BROKEN as error:
        response.close()
        return _failure(error)
    except BaseException:
        response.close()
        raise


class AsyncShell:
    """Carries flows out on an event loop. See `Shell`."""

    def __init__(
        self,
        core: Core,
        token: str,
        transport: httpx.AsyncBaseTransport | None,
        sleep: Callable[[float], Awaitable[None]],
        answer_s: float | None = None,
        tls_authority: str = "",
    ) -> None:
        self.core = core
        self._answer_s = answer_s
        self._http = httpx.AsyncClient(
            headers=bearer(token), transport=transport, verify=trusted(tls_authority), limits=_LIMITS
        )
        self._sleep = sleep

    async def run(self, flow: Flow[ResultT]) -> ResultT:
        """The flow's result."""
        outcome: Outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                result: ResultT = end.value
                return result
            outcome = await self._do(step)

    async def _do(self, step: Step) -> Outcome:
        match step:
            case HttpCall():
                return await self._call(step)
            case Read(body):
                return await _read_async(body)
            case Close((response, chunks)):
                await chunks.aclose()
                await response.aclose()
            case Disconnect():
                await self._http.aclose()
            case RetryPause(seconds):
                await self._sleep(seconds)
        return None

    async def _call(self, call: HttpCall) -> HttpReply | NoReply:
        if self._http.is_closed:
            raise _closed()
        try:
            response = await self._http.send(_request(self._http, call, self._answer_s), stream=True)
            if _stays_open(response, call):
                return _reply(response, call, (response, response.aiter_bytes()))
            try:
                await response.aread()
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            return _failure(error, _seconds(call, self._answer_s))
        return _reply(response, call)


async def _read_async(body: tuple[httpx.Response, AsyncGenerator[bytes, None]]) -> bytes | NoReply:
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


def _request(http: httpx.Client | httpx.AsyncClient, call: HttpCall, answer_s: float | None) -> httpx.Request:
    seconds = _seconds(call, answer_s)
    timeout = httpx.Timeout(seconds, connect=min(ANSWER_S, seconds))
    return http.build_request(
        call.method, call.url, content=call.content, headers=dict(call.headers), timeout=timeout
    )


def _seconds(call: HttpCall, answer_s: float | None) -> float:
    return call.seconds if answer_s is None else min(answer_s, call.seconds)


def _stays_open(response: httpx.Response, call: HttpCall) -> bool:
    return call.stream and response.status_code == 200


def _reply(response: httpx.Response, call: HttpCall, body: Any = None) -> HttpReply:
    """An answer, whose body was read unless it is given as `body`."""
    content = response.content if body is None else b""
    return HttpReply(call.url, response.status_code, response.headers, content, response.reason_phrase, body)


def _failure(error: Exception, seconds: float | None = None) -> NoReply:
    """Why there is no answer; `seconds` were waited for one."""
    if isinstance(error, httpx.PoolTimeout):
        return NoReply(type(error).__name__, busy=True)
    if isinstance(error, httpx.TimeoutException):
        waited = "" if seconds is None else f", {seconds:g} s"
        return NoReply(f"{type(error).__name__}{waited}", slow=True)
    return NoReply(str(error) or type(error).__name__)


def problem_error(response: httpx.Response) -> KeytideError:
    """The error in a response, for clients of other servers of Keytide."""
    return problem(response.status_code, response.content, response.reason_phrase)


def _closed() -> MisuseError:
    return MisuseError("the client is closed", next_step="make another one")
