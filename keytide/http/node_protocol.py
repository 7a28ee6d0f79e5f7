"""How the parts of a cluster ask its nodes (`/internal/v1/*`), without any I/O: nodes and gateways for
slices, the coordinator for lists, Spark's drivers for digests. What is asked, and in which bytes, is theirs;
here is what a request shows, and what an answer means. `nodes` and `blocking_nodes` carry it out.

The credential is an HMAC of the time, in periods of an hour, under the secret of the cluster, which all of
them read from `metadata`: there with or without API tokens (which do not open these routes), of no use on
another cluster, and another one every hour, without anybody's doing. A node takes that of its own hour and of
the ones beside it, so clocks may be an hour apart, and what somebody saw on the wire is worth something for
two hours at most.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import Final

import msgspec

from keytide.errors import UNDECODABLE, RetryableError

MESSAGE: Final = "application/msgpack"
"""What the parts of a cluster send each other."""
TRY_AGAIN: Final = "try again, or see `keytide node list`"
"""What to do about a node that is away."""
PERIOD_MS: Final = 3_600_000
_SCHEME: Final = b"Keytide-Cluster "
_PURPOSE: Final = b"keytide internal requests, hour "


class NodeUnavailableError(RetryableError):
    """A node that holds slices of the index does not answer. Nodes say its id in `extra` as `node`."""

    problem_type = "node-unavailable"


class NoAnswerError(Exception):
    """A node cannot be asked; the message says why. Whoever asks makes an error of it that says what for."""


class RefusedError(Exception):
    """A node has answered with something else than what it was asked for. Its text reads on from the node's
    name. Whoever asks makes an error of it that says what for.

    Attributes:
        status: of HTTP.
        type, detail, next_step: as its problem document has them; `type` is "" when it has sent none.
    """

    def __init__(self, status: int, body: bytes) -> None:
        try:
            problem = msgspec.json.decode(body, type=_Problem)
            super().__init__(f"answered {status} {problem.type}: {problem.detail}")
        except UNDECODABLE:
            problem = _Problem("")
            super().__init__(f"answered {status}: {body[:200].decode(errors='replace')}")
        self.status = status
        self.type, self.detail, self.next_step = problem.type, problem.detail, problem.next_step


class _Problem(msgspec.Struct):
    """What is used of a problem document."""

    type: str
    detail: str = ""
    next_step: str = ""


def headers_of(secret: str, now: int) -> dict[str, str]:
    """The headers of a request: the credential, and what the body is.

    Args:
        secret: of the cluster (`Catalog.secret`).
        now: milliseconds.
    """
    return {"Authorization": _of(secret, now // PERIOD_MS).decode(), "Content-Type": MESSAGE}


def opens(authorization: bytes, secret: str, now: int) -> bool:
    """Whether a header's value is the credential of a cluster; never without a secret."""
    if not secret:
        return False
    period = now // PERIOD_MS
    found = [hmac.compare_digest(authorization, _of(secret, at)) for at in (period, period - 1, period + 1)]
    return any(found)


@lru_cache(maxsize=16)
def _of(secret: str, period: int) -> bytes:
    digest = hmac.digest(bytes.fromhex(secret), _PURPOSE + str(period).encode(), "sha256")
    return _SCHEME + digest.hex().encode()
