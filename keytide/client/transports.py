"""The two shells: they carry flows out, one by waiting, one with asyncio. What connections do they leave to
`with_urllib3` and `with_aiohttp`, or to `with_httpx`. Each is loaded when it is needed."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from keytide.client.protocol.answers import MisuseError, problem
from keytide.client.protocol.calls import (
    Clock,
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
from keytide.client.protocol.reaching import Origin
from keytide.errors import KeytideError
from keytide.http.bearer import bearer
from keytide.http.tls import AUTHORITY_VARIABLE, trusted

if TYPE_CHECKING:
    import httpx

ResultT = TypeVar("ResultT")


class Connections(Protocol):
    """What the shell that waits asks of connections."""

    @property
    def closed(self) -> bool: ...

    def call(self, call: HttpCall, seconds: float) -> HttpReply | NoReply: ...

    def read(self, body: Any) -> bytes | NoReply: ...

    def leave(self, body: Any) -> None: ...

    def close(self) -> None: ...


class AwaitedConnections(Protocol):
    """What the shell on an event loop asks of them."""

    @property
    def closed(self) -> bool: ...

    async def call(self, call: HttpCall, seconds: float) -> HttpReply | NoReply: ...

    async def read(self, body: Any) -> bytes | NoReply: ...

    async def leave(self, body: Any) -> None: ...

    async def close(self) -> None: ...


class BaseShell:
    """Carries flows out, but for the waiting.

    Args:
        core: what the flows share.
        connections: to nodes, of the shell's way to wait.
        sleep: takes seconds.
        answer_s: how long nothing may come back at most, whatever a request asks for; None for no such limit.
    """

    def __init__(
        self,
        core: Core,
        connections: Connections | AwaitedConnections,
        sleep: Callable[[float], Any],
        answer_s: float | None = None,
    ) -> None:
        self.core = core
        self._connections = connections
        self._sleep = sleep
        self._answer_s = answer_s

    def _do(self, step: Step) -> Any:
        """What a step comes to; of all but `Clock`, on an event loop, what is to be awaited for it."""
        match step:
            case HttpCall():
                if self._connections.closed:
                    raise MisuseError("the client is closed", next_step="make another one")
                limit = step.seconds if self._answer_s is None else min(self._answer_s, step.seconds)
                return self._connections.call(step, limit)
            case Read(body):
                return self._connections.read(body)
            case Close(body):
                return self._connections.leave(body)
            case Clock():
                return time.monotonic()
            case Disconnect():
                return self._connections.close()
            case RetryPause(seconds):
                return self._sleep(seconds)


class Shell(BaseShell):
    """Carries flows out, for a program that waits."""

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


class AsyncShell(BaseShell):
    """Carries flows out on an event loop."""

    async def run(self, flow: Flow[ResultT]) -> ResultT:
        """The flow's result."""
        outcome: Outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                result: ResultT = end.value
                return result
            done = self._do(step)
            outcome = done if isinstance(step, Clock) else await done


def connections(
    urls: Sequence[str], token: str, transport: httpx.BaseTransport | None, tls_authority: str
) -> Connections:
    """For a program that waits.

    Args:
        token: API token, "" for none.
        transport: of httpx, to reach nodes by; None for urllib3, which goes by no proxy.
    """
    if transport is None and not _behind_proxy(urls):
        from keytide.client.with_urllib3 import Urllib3Connections

        return Urllib3Connections(*_reached(urls, bearer(token), tls_authority))
    from keytide.client.with_httpx import HttpxConnections

    return HttpxConnections(bearer(token), tls_authority, transport)


def awaited_connections(
    urls: Sequence[str], token: str, transport: httpx.AsyncBaseTransport | None, tls_authority: str
) -> AwaitedConnections:
    """For an event loop, with aiohttp in urllib3's place. See `connections`."""
    if transport is None and not _behind_proxy(urls):
        from keytide.client.with_aiohttp import AiohttpConnections

        return AiohttpConnections(*_reached(urls, bearer(token), tls_authority))
    from keytide.client.with_httpx import AsyncHttpxConnections

    return AsyncHttpxConnections(bearer(token), tls_authority, transport)


class AnsweredRequest(Protocol):
    """A response of httpx, as far as `problem_error` looks at it."""

    @property
    def status_code(self) -> int: ...

    @property
    def content(self) -> bytes: ...

    @property
    def reason_phrase(self) -> str: ...


def problem_error(response: AnsweredRequest) -> KeytideError:
    """The error in a response of httpx, for clients of other servers of Keytide."""
    return problem(response.status_code, response.content, response.reason_phrase)


def _reached(
    urls: Sequence[str], headers: Mapping[str, str], authority: str
) -> tuple[dict[str, Origin], ssl.SSLContext | None]:
    """Where nodes are, and what is trusted: read only if one of them serves TLS, or an authority is named."""
    origins = {url: Origin.of(url, headers) for url in urls}
    wanted = authority or os.environ.get(AUTHORITY_VARIABLE) or any(one.secure for one in origins.values())
    return origins, trusted(authority) if wanted else None


def _behind_proxy(urls: Sequence[str]) -> bool:
    """Whether the environment names a proxy for one of the nodes."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return False
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    parts = [urlsplit(url) for url in urls]
    return any(
        (one.scheme in proxies or "all" in proxies) and not proxy_bypass(one.netloc.rpartition("@")[2])
        for one in parts
    )
