"""Where nodes are reached, within which bounds, and what it is called when they are not: what all ways of
connecting share. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from keytide.client.protocol.calls import HttpCall, NoReply
from keytide.errors import CallerError

CONNECTIONS: Final = 100
"""In use at once, of one client; who comes later waits for one of them."""
KEPT_S: Final = 60.0
"""Unused connections are kept for at most: less than servers keep them (`http.idle_timeout_s`)."""
_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[\w.~!$&'()*+,;=-]++|[0-9a-f:.]++(%[\w.~-]++)?", re.ASCII)
_IN_PATH: Final = "/%:@!$&'()*+,;=~-._"
"""What stays in the path of an address as it is."""


class Origin(msgspec.Struct, frozen=True):
    """Where the requests for a node go.

    Attributes:
        secure: whether it serves TLS.
        path: what the node's own paths are put behind, "" for nothing.
        headers: that all requests have.
    """

    host: str
    port: int
    secure: bool
    path: str
    headers: dict[str, str]

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str]) -> Origin:
        """Of an address that `NodeAddresses` has looked at.

        Args:
            headers: of all requests. A name and password in the address take the place of their credential.

        Raises:
            CallerError: no host has such a name.
        """
        parts = urlsplit(url)
        name = parts.hostname or ""
        try:
            host = name.encode("idna").decode("ascii")  # ASCII stays, as far as a host may have that name
        except UnicodeError as error:
            raise CallerError(f"{url!r} names no host: {error}", next_step="correct the address") from error
        if _HOST.fullmatch(host) is None:
            raise CallerError(f"{url!r} names no host", next_step="correct the address")
        sent = {"User-Agent": "keytide", "Accept-Encoding": "identity", **headers}
        if parts.username or parts.password:
            pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
            sent["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        path = quote(parts.path, safe=_IN_PATH)
        return cls(host, parts.port or _PORTS[parts.scheme], parts.scheme == "https", path, sent)

    @property
    def url(self) -> str:
        """Without the path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "https" if self.secure else "http"
        return f"{scheme}://{host}" if self.port == _PORTS[scheme] else f"{scheme}://{host}:{self.port}"


def headers_for(call: HttpCall, always: Mapping[str, str]) -> dict[str, str]:
    """All headers of a request.

    Raises:
        CallerError: a header cannot hold what it is to say.
    """
    for value in call.headers.values():
        if not value.isascii() or "\n" in value or "\r" in value:
            raise CallerError(
                "a token holds characters that no token has: only ASCII in one line can be sent",
                problem_type="bad-token",
                next_step="give it as the node gave it",
            )
    return {**always, **call.headers}


def silent(seconds: float) -> NoReply:
    """For a node that accepted a connection, and of which nothing came for so long."""
    return NoReply(f"nothing came for {seconds:g} s", slow=True)


def unreachable(seconds: float) -> NoReply:
    """For a node to which there is no connection after so long."""
    return NoReply(f"no connection within {seconds:g} s", slow=True)


def failed(error: BaseException) -> NoReply:
    """For a connection that could not be made, or broke."""
    return NoReply(str(error) or type(error).__name__)


def closed() -> NoReply:
    """When the client was closed while a node was asked."""
    return NoReply("the client was closed")


def all_busy() -> NoReply:
    """When all of the client's connections are in use."""
    return NoReply("all connections are in use", busy=True)
