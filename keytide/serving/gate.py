"""What every request passes before a server reads any of it, on the coordinator, nodes and gateways alike.

Theory of operation
===================
`RequestGate` is the outermost piece of each ASGI application. In this order:

1. *Foreign pages.* A browser sends a page's requests to whatever address the page names. What is not GET or
   HEAD is refused when its header `Origin` is not that of the server (`Host`) or of `security.origins`, or
   when `Sec-Fetch-Site` says `cross-site`: with tokens or without.
2. *Who asks.* The application's `needs` says by method and path which scope, or the cluster's own credential,
   opens a route. Nothing of the body is read before.
3. *The kind of body.* MessagePack between the parts of a cluster, JSON elsewhere; what `curl -d` sends when
   it is told no type counts as JSON, but not from a browser (`Origin`), whose forms have it too.
4. *The body*, as a whole, up to a limit, whether its length is told or not. The application finds it there.
5. *Whose turn it is* (`keytide.serving.turns`), but for routes that nothing opens: whether a process lives is
   told, however much is asked.

A refusal is a problem document. What is left of a refused body is thrown away as it comes, for as long as
`http.body_timeout_s` (`keytide.serving.server`); before that a connection that ends with its answer is not
closed, for the client's system would throw away an answer to what nobody reads any more. A client that goes
away in the middle is a line in the log.

It is on the way of every scan: it costs some microseconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, Final, Literal

from fastapi import FastAPI
from starlette.requests import Request

from keytide.errors import CallerError, KeytideError, RetryableError
from keytide.http.node_protocol import MESSAGE, opens
from keytide.process.clock import wall_ms
from keytide.serving.problems import of_error
from keytide.serving.security import Guard, NotAllowedError, TokenScope
from keytide.serving.turns import OverloadedError, Turns
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

Need = TokenScope | Literal["cluster"] | None
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_JSON: Final = b"application/json"
_FORM: Final = b"application/x-www-form-urlencoded"
_BODY_TOO_LARGE: Final = "no key and no statement is that long; the limit is http.max_body_bytes"
_MESSAGE_TOO_LARGE: Final = (
    "ask for fewer slices at a time, with shorter keys, or raise http.max_message_bytes of the server that "
    "refuses it"
)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class ForeignPageError(CallerError):
    """A page of another origin asks for more than to read."""

    problem_type = "foreign-origin"
    status = 403


class WrongTypeError(CallerError):
    """A body of a type that the route does not take."""

    problem_type = "unsupported-media-type"
    status = 415


class TooLargeError(CallerError):
    """A body above the limit.

    Attributes:
        read: all of it was read.
    """

    problem_type = "request-too-large"
    status = 413
    read = False


class _GoneError(Exception):
    """The client went away before it had sent its request."""


class RequestGate:
    """An ASGI application in front of another.

    Args:
        app: the other.
        settings: of the process.
        needs: (method, path) -> what opens it; None for nothing.
        secret: of the cluster, "" while it is not known.
        refused: told of the type of each refusal.
    """

    def __init__(
        self,
        app: Application,
        settings: Settings,
        needs: Callable[[str, str], Need],
        secret: Callable[[], str] = lambda: "",
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._app = app
        self._guard = Guard(settings.security)
        self._tokens = bool(settings.security.tokens)
        self._origins = frozenset(one.lower() for one in settings.security.origins)
        self._http = settings.http
        self._needs = needs
        self._turns = Turns(settings.http.max_waiting)
        self._secret = secret
        self._refused = refused

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        need = self._needs(scope["method"], scope["path"])
        try:
            body = await self._admit(scope, receive, need)
        except KeytideError as error:
            self._refused(error.problem_type)
            unread = not (isinstance(error, TooLargeError) and error.read)
            await of_error(error)(
                scope, receive, _then_rest(receive, send) if unread and _ends(scope) else send
            )
            return
        except _GoneError:
            client = scope.get("client") or ("?", 0)
            log.info(
                "%s went away in the middle of its %s %s", client[0], scope["method"], scope["path"][:200]
            )
            return
        await self._pass(scope, receive if body is None else _Whole(body, receive), send, need)

    async def _pass(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, need: Need) -> None:
        """Let a request in when its turn comes. One that is cancelled meanwhile is so because the server
        stops and will not wait any longer: whoever asked is told that, and nothing is wrong with the
        request."""
        begun = False

        async def send_on(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            if need is not None:
                if need == "cluster":
                    await self._turns.take_for_cluster()
                else:
                    await self._turns.take(lambda: client_of(scope, tokens=self._tokens))
            await self._app(scope, receive, send_on)
        except OverloadedError as error:
            self._refused(error.problem_type)
            await of_error(error)(scope, receive, send)
        except asyncio.CancelledError:
            log.info("%s %s was not answered: this process stops", scope["method"], scope["path"][:200])
            if not begun:
                await of_error(_stopping())(scope, receive, send)

    async def _admit(self, scope: MutableMapping[str, Any], receive: Receive, need: Need) -> bytes | None:
        """The body of a request that may pass; None when there is none.

        Raises:
            KeytideError: it may not.
            _GoneError: the client went away.
        """
        headers: dict[bytes, bytes] = dict(scope["headers"])
        method = scope["method"]
        reads = method in ("GET", "HEAD")
        if not reads:
            self._check_origin(headers)
        if need == "cluster":
            self._check_cluster(headers)
        elif need is not None:
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            self._guard.require(authorization, need, headers.get(b"host", b"").decode("latin-1"))
        if reads:
            return None
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        if need == "cluster":
            _check_message(headers)
        elif has_body:
            _check_json(scope, headers)
        if not has_body:
            return None
        if need == "cluster":
            return await _whole(headers, receive, self._http.max_message_bytes, _MESSAGE_TOO_LARGE)
        return await _whole(headers, receive, self._http.max_body_bytes, _BODY_TOO_LARGE)

    def _check_origin(self, headers: dict[bytes, bytes]) -> None:
        origin = headers.get(b"origin")
        if origin is None and headers.get(b"sec-fetch-site") != b"cross-site":
            return
        shown = "another site" if origin is None else origin.decode("latin-1").lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if headers.get(b"sec-fetch-site") != b"cross-site" and (
            shown in self._origins or is_of_host(shown, host)
        ):
            return
        raise ForeignPageError(
            f"a page of {shown[:200]} asks for this, and only pages of this server ({host[:200]}) may do "
            "more than read",
            next_step="ask from outside of a browser; behind a proxy that changes the header Host, name what "
            "people see in security.origins",
        )

    def _check_cluster(self, headers: dict[bytes, bytes]) -> None:
        secret = self._secret()
        if not secret:
            raise RetryableError(
                "the node is starting", problem_type="starting", next_step="try again in a moment"
            )
        if not opens(headers.get(b"authorization", b""), secret, wall_ms()):
            raise NotAllowedError(
                "this is for the parts of this cluster, which have a credential of their own",
                next_step="use the routes below /v1; between parts of a cluster see that the clocks are "
                "right and that all run the same release",
            )


class GatedApplication(FastAPI):
    """Requests pass the gate, and what is behind it, before anything of the framework looks at them.

    Attributes:
        gate: what leads to `framework`.
    """

    gate: Application

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self.gate(scope, receive, send)

    async def framework(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """The framework's part: what nobody before it answers, and the server's beginning and end."""
        await super().__call__(scope, receive, send)


def client_of(scope: Mapping[str, Any], *, tokens: bool) -> str:
    """Who asks, as shares go: a digest of the token, or else the address.

    Args:
        tokens: whether there are any. What a request calls one is its own invention else.
    """
    if tokens:
        for name, value in reversed(scope["headers"]):  # the last one is that which was looked at
            if name == b"authorization":
                return _digest(value.partition(b" ")[2].strip())
    address = scope.get("client")
    return address[0] if address else ""


@lru_cache(maxsize=1024)
def _digest(credential: bytes) -> str:
    return hashlib.sha256(credential).hexdigest()[:16]


def is_of_host(origin: str, host: str) -> bool:
    """Whether an `Origin` is the server that a request was sent to, by its header `Host`; both in lower case.

    The scheme is not compared: behind a proxy it may be another one.
    """
    scheme, separator, place = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    if not separator or default is None or not host:
        return False
    return place.removesuffix(default) == host.removesuffix(default)


def _check_message(headers: dict[bytes, bytes]) -> None:
    given = headers.get(b"content-type", b"").decode("latin-1")
    if given != MESSAGE:
        raise WrongTypeError(
            f"the parts of a cluster send {MESSAGE}, not {given[:200] or 'a body of no type'}",
            next_step="use the routes below /v1",
        )


def _check_json(scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
    """See that a body is JSON, and have the application see that, too."""
    given = headers.get(b"content-type", b"")
    kind = given.partition(b";")[0].strip().lower()
    if kind == _JSON:
        return
    if kind and (kind != _FORM or b"origin" in headers):
        raise WrongTypeError(
            f"this takes application/json, not {given[:200].decode('latin-1')}",
            next_step="send the header Content-Type: application/json",
        )
    scope["headers"] = [one for one in scope["headers"] if one[0] != b"content-type"]
    scope["headers"].append((b"content-type", _JSON))


async def _whole(headers: dict[bytes, bytes], receive: Receive, limit: int, next_step: str) -> bytes:
    """The body.

    Args:
        limit: bytes.
        next_step: what to do about a longer one; names the setting that the limit is.

    Raises:
        TooLargeError: it is, or says so.
        _GoneError: the client went away.
    """
    told = headers.get(b"content-length", b"0")
    if not told.isdigit() or int(told) > limit:
        raise _too_large(limit, next_step)
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _GoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        more = message.get("more_body", False)
        if size > limit:
            error = _too_large(limit, next_step)
            error.read = not more
            raise error
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int, next_step: str) -> TooLargeError:
    return TooLargeError(f"the request is larger than {limit} bytes", next_step=next_step)


def _ends(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request's connection is to be closed behind its answer."""
    said = dict(scope["headers"]).get(b"connection", b"").lower().split(b",")
    return scope.get("http_version") == "1.0" or b"close" in [one.strip() for one in said]


def _then_rest(receive: Receive, send: Send) -> Send:
    """Sends an answer at once, and ends it when what is left of the request's body was thrown away."""

    async def send_on(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        more = True
        while more:
            thrown = await receive()
            more = thrown["type"] == "http.request" and thrown.get("more_body", False)
        await send({"type": "http.response.body", "body": b""})

    return send_on


class _Whole:
    """Gives a body that was read, then what comes after it (that the client has gone)."""

    __slots__ = ("_given", "_receive", "body")

    def __init__(self, body: bytes, receive: Receive) -> None:
        self.body, self._receive, self._given = body, receive, False

    async def __call__(self) -> Message:
        if self._given:
            return await self._receive()
        self._given = True
        return {"type": "http.request", "body": self.body, "more_body": False}


async def body_of(request: Request) -> bytes:
    """The body of a request: at once, if it has come through a gate as it is. Raises as `Request.body`."""
    receive = request.receive
    return receive.body if isinstance(receive, _Whole) else await request.body()


def _stopping() -> RetryableError:
    return RetryableError(
        "this process stops, and has not answered in time; a change may still take effect",
        problem_type="stopping",
        next_step="try again in a moment; look first whether a change took effect",
    )
