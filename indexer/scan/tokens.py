"""Session and page tokens: MessagePack, signed with the cluster's secret, base64url. Pure.

Opaque to readers and useless on another cluster. A session token says for each keyspace which snapshot its
holder has seen; a page token names everything that the next page needs, so that a page is answered by any
node from the same snapshot.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TypeVar

import msgspec

from keytide.errors import CallerError

_SIGNATURE_BYTES = 12


class SessionToken(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Keyspace -> (snapshot number, incarnation) that the holder has seen."""

    seen: dict[str, tuple[int, int]]


class PageToken(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Where a scan goes on.

    Attributes:
        index: index id.
        number, incarnation: the snapshot that all pages come from.
        spans: (low, high) entry-key spans of the whole scan.
        after: entry key of the last row given; the next page begins behind it in the scan's direction.
        lease: names the lease that keeps the snapshot.
        session: the session token that every page repeats.
    """

    index: str
    number: int
    incarnation: int
    spans: list[tuple[bytes, bytes | None]]
    after: bytes
    reverse: bool
    limit: int
    columns: list[str] | None
    lease: str
    session: str


TokenT = TypeVar("TokenT", SessionToken, PageToken)
_encoder = msgspec.msgpack.Encoder()


class InvalidTokenError(CallerError):
    """Not a token of this cluster."""

    problem_type = "invalid-token"
    status = 422


def sign(token: SessionToken | PageToken, secret: bytes) -> str:
    """The token as the string that readers hold."""
    body = _encoder.encode(token)
    return base64.urlsafe_b64encode(_signature(body, secret) + body).decode().rstrip("=")


def verify(text: str, kind: type[TokenT], secret: bytes) -> TokenT:
    """The token in `text`.

    Raises:
        InvalidTokenError: forged, damaged, of another kind or of another cluster.
    """
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if hmac.compare_digest(signature, _signature(body, secret)):
            return msgspec.msgpack.decode(body, type=kind)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        pass
    raise InvalidTokenError(
        "the token was not made by this cluster, or is damaged",
        next_step="leave the token out to start a new session or scan",
    )


def _signature(body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256")[:_SIGNATURE_BYTES]
