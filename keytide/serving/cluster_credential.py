"""The credential by which the parts of one cluster ask its nodes (`/internal/v1/*`): nodes and gateways for
slices, the coordinator for lists, Spark's drivers for digests. API tokens do not open these routes.

It is an HMAC of the time, in periods of an hour, under the secret of the cluster, which all of them read from
`metadata`: there with or without API tokens, of no use on another cluster, and another one every hour,
without anybody's doing. A node takes that of its own hour and of the ones beside it, so clocks may be an hour
apart, and what somebody saw on the wire is worth something for two hours at most.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import Final

PERIOD_MS: Final = 3_600_000
_SCHEME: Final = b"Keytide-Cluster "
_PURPOSE: Final = b"keytide internal requests, hour "


def credential(secret: str, now: int) -> str:
    """The value of the header `Authorization`.

    Args:
        secret: of the cluster (`ClusterRecord.secret`).
        now: milliseconds.
    """
    return _of(secret, now // PERIOD_MS).decode()


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
