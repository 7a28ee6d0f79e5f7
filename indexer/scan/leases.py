"""Leases: a page token's promise that its snapshot is still there, taken before the token is given.

Every slice that a token names keeps the snapshot until some time after the token's last use (settled
question in the protocol; a restart loses it, then the next page is 410). Most leases come with the read
itself (`ReadRequest.lease`); here the others are taken, and given back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from typing import Final

from indexer.scan.gather import SnapshotMissingError, Target
from indexer.scan.reading import TIP, LeaseRequest, Nodes
from keytide.errors import RetryableError

log = logging.getLogger(__name__)

GRACE_MS: Final = 5_000
"""How long a snapshot is kept after the last page was given, so that a reader who lost it may ask again."""


def new_lease() -> str:
    """A name that no other lease has."""
    return secrets.token_urlsafe(9)


class Leases:
    """Takes and gives back leases on all nodes of a scan."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._ending: set[asyncio.Task[None]] = set()

    async def take(self, target: Target, held: Iterable[int]) -> None:
        """Keep the snapshot on every slice of the target that is not `held` already.

        Raises:
            SnapshotMissingError: a slice does not have it.
            RetryableError: a node does not answer, or has too many leases.
        """
        if target.number == TIP:
            return
        wanted = target.by_node(sorted(target.nodes.keys() - set(held)))
        replies = await asyncio.gather(
            *(
                self._nodes.lease(node, _request(target, slices, target.lease_ms), target.timeout_s)
                for node, slices in wanted.items()
            )
        )
        for node, reply in zip(wanted, replies, strict=True):
            if reply.missing:
                raise SnapshotMissingError(reply.missing[0], node, -1)

    def end(self, target: Target, lease_ms: int) -> None:
        """Shorten the target's leases, in the background; what cannot be reached runs out by itself.

        Args:
            lease_ms: how much longer: `GRACE_MS` after a last page, 0 when no token was given.
        """
        if target.number == TIP or not target.lease:
            return
        for node, slices in target.by_node().items():
            task = asyncio.ensure_future(
                self._end(node, _request(target, slices, lease_ms), target.timeout_s)
            )
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self, node: str, request: LeaseRequest, timeout_s: float) -> None:
        try:
            await self._nodes.lease(node, request, timeout_s)
        except RetryableError as error:
            log.debug("lease %s on node %s runs out by itself: %s", request.lease, node, error)


def _request(target: Target, slices: list[int], lease_ms: int) -> LeaseRequest:
    return LeaseRequest(target.index, target.number, target.incarnation, slices, target.lease, lease_ms)
