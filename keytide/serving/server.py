"""The HTTP server of the coordinator, nodes and gateways: uvicorn's, with patience that ends.

Theory of operation
===================
uvicorn waits for the rest of a request for ever. `PatientProtocol` notes since when a connection owes its
server something: the head of a request (from its first byte; on a new connection, from the beginning) or the
body (from the end of the head; also of a request that was refused, whose body is thrown away). Once a second
the server closes those that owe it for longer than the settings allow. Noting costs less than a timer for
each request would. Between requests uvicorn's own timer closes a connection; while a request is being
answered nothing here does.

When there are as many connections as may be, a new one takes the place of one that has owed something for
more than a second (the longest first), else of the one that was asked nothing for longest, else of one that
owes something; when all are being answered, the new one is closed. So neither half-open connections nor those
that are kept for later keep out those that ask, also when many come at once: each owes its request at first.

The parser under uvicorn joins the pieces of a header (a trailer of a chunked body, too) as they come, each
time all of them: one long header would take the event loop from everybody. So what is no body is counted, and
a request with too much of it is refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from operator import itemgetter
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keytide.errors import CallerError
from keytide.http.tls import ServedCertificate, trusted
from keytide.serving.listener import allow_handles
from keytide.settings.settings import HttpSettings, SecuritySettings

log = logging.getLogger(__name__)

_TICKS: Final = 10
"""Of uvicorn's main loop, one every tenth of a second, between two looks at all connections."""
_PROMPT_S: Final = 1.0
"""Whoever owes something for no longer may be about to send it."""
_FRAMING: Final = 16
"""Bytes around each byte of a body that are no fault: chunks of one byte have five."""
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-type: application/problem+json\r\ncontent-length: %d\r\n\r\n%s"
)


class ServerConfig(uvicorn.Config):
    """uvicorn's, with our settings.

    Attributes:
        limits: of its connections.
        certificate: None without TLS.
    """

    limits: HttpSettings
    certificate: ServedCertificate | None = None

    def load(self) -> None:
        super().load()
        if self.ssl is not None:
            self.ssl.minimum_version = ssl.TLSVersion.TLSv1_2


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's, which knows since when it is owed something.

    Attributes:
        owed_since: monotonic clock, seconds; None when nothing is owed. (The loop's own clock has
            milliseconds: in one of them ten connections are served, and who was first is not to be told.)
        owes_body: it is the body of a request, and not its head.
        idle_since: the same clock when its last answer was over; None when it is asked something, or
            owes it.
    """

    owed_since: float | None = None
    idle_since: float | None = None
    owes_body = False
    _limits: HttpSettings | None = None
    _framing = 0
    """Bytes of this request that are no body, but for those of the read that it began in."""
    _body = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._owe()
        self._limits = getattr(self.config, "limits", None)
        if self._limits is not None and len(self.connections) > self._limits.max_connections:
            _make_room(self)

    def data_received(self, data: bytes) -> None:
        self._framing += len(data)
        super().data_received(data)
        limits = self._limits
        if limits is not None and self._framing > limits.max_head_bytes + _FRAMING * self._body:
            self._refuse(limits.max_head_bytes)
        elif self.owed_since is None and self._idle() and self.timeout_keep_alive_task is None:
            self._owe()  # bytes that begin no request, in place of the silence that uvicorn's timer ends

    def on_message_begin(self) -> None:
        self._owe()
        self._framing = self._body = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._owe()
        self.owes_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing -= len(body)
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.owed_since = None
        self._framing = self._body = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and self.owed_since is None:
            self.idle_since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self.owed_since = self.idle_since = None
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing of requests for WebSockets: none are served."""

    def _owe(self) -> None:
        self.owed_since = time.monotonic()
        self.idle_since, self.owes_body = None, False

    def _idle(self) -> bool:
        """Whether no answer is on its way."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def _refuse(self, limit: int) -> None:
        """Close the connection, and say why where no answer is on its way."""
        if self.owes_body or not self._idle():
            self.give_up()
            return
        self.owed_since = None
        told = CallerError(
            f"the head of the request is larger than {limit} bytes",
            problem_type="head-too-large",
            status=431,
            next_step="send what is long in a body; the limit is http.max_head_bytes",
        )
        document = json.dumps(told.problem()).encode()
        self.transport.write(_TOO_LARGE % (len(document), document))
        self.transport.close()

    def give_up(self) -> None:
        """Close the connection, whatever was sent; an answer that is on its way is lost."""
        self.owed_since = self.idle_since = None
        self.transport.abort()


def _make_room(new: PatientProtocol) -> None:
    """Close the connection that can be done without most; the new one itself when there is none."""
    others = [one for one in new.connections if isinstance(one, PatientProtocol) and one is not new]
    owing = [(one.owed_since, one) for one in others if one.owed_since is not None]
    idle = [(one.idle_since, one) for one in others if one.idle_since is not None]
    late = [one for one in owing if one[0] < time.monotonic() - _PROMPT_S]
    _, oldest = min(late or idle or owing, key=itemgetter(0), default=(0.0, new))
    oldest.give_up()


class Server(uvicorn.Server):
    """uvicorn's, which closes connections that owe it something for too long; it shows renewed
    certificates."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config)
        self._limits = config.limits
        self._certificate = config.certificate

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self.close_late(time.monotonic())
            if self._certificate is not None and self.config.ssl is not None:
                self._certificate.renew(self.config.ssl)
        return await super().on_tick(counter)

    def close_late(self, now: float) -> None:
        """Close the connections that are late.

        Args:
            now: monotonic clock, seconds.
        """
        limits = self._limits
        late = [
            one
            for one in self.server_state.connections
            if isinstance(one, PatientProtocol)
            and one.owed_since is not None
            and now - one.owed_since > (limits.body_timeout_s if one.owes_body else limits.head_timeout_s)
        ]
        for one in late:
            one.give_up()
        if late:
            log.info("%d connections were closed: their requests did not come in time", len(late))


def server_of(
    app: Any,
    http: HttpSettings,
    security: SecuritySettings,
    protocol: type[PatientProtocol] = PatientProtocol,
    **others: Any,
) -> Server:
    """A server of an ASGI application, with TLS as the settings say.

    Args:
        others: further arguments of `uvicorn.Config`.

    Raises:
        ConfigurationError: TLS cannot be served with what the settings name.
    """
    own = security.tls_certificate
    if security.tls_authority:
        trusted(security.tls_authority)  # read now: a mistake is told at the start
    certificate = ServedCertificate(own, security.tls_key) if own else None
    config = ServerConfig(
        app,
        http=protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=http.idle_timeout_s,
        ssl_certfile=security.tls_certificate or None,
        ssl_keyfile=security.tls_key or None,
        **others,
    )
    config.limits, config.certificate = http, certificate
    allow_handles(http.max_connections)
    return Server(config)
