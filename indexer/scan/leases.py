"""Leases: a page token's promise that its snapshot is still there, taken before the token is given.

Theory of operation
===================
What costs is a kept snapshot, not a token, so tokens of one snapshot share its lease, which runs until some
time after the last use of any of them. Most scans are never asked for a second page, so a snapshot that has
only given first pages is *idle*: when more snapshots are kept than the limit, the oldest idle ones go (their
tokens are then `snapshot-gone`). Snapshots that later pages were read from go only when their time is over;
if nothing but these is left, a new token is refused.

A *held* snapshot has a lease of its own under its id, which is given back, or runs out some time after the
hold's last use; it counts as much as a snapshot that pages are read from.

Every slice that a token names keeps the snapshot (a restart loses it). Most leases come with the read itself
(`ReadRequest.lease_ms`); `keep_everywhere` takes the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from indexer.scan.reading import HOLDER, TIP, LeaseRequest, Nodes
from indexer.scan.scatter import SnapshotMissingError, Target
from indexer.view import NodeView
from keytide.errors import RetryableError

BETWEEN_CALLS_MS: Final = 10_000
"""How long a read that slices could not finish in one call keeps the snapshot for its next, which comes at
once."""

LONGEST_LEASE_S: Final = 3_600
"""Where no setting says otherwise."""

_Key = tuple[int, str]
"""(snapshot number, id of the hold or "")."""


class TooManyLeasesError(RetryableError):
    """More paged scans are under way than the node keeps snapshots for."""

    problem_type = "too-many-leases"
    status = 503


@dataclass(slots=True)
class _Lease:
    """A kept snapshot: on which slices, until when, and whether later pages were read from it."""

    until: int
    in_use: bool = False
    slices: set[int] = field(default_factory=set)


class LeaseBook:
    """The leases of one node.

    Args:
        view: the node.
        limit: snapshots of one index that may be kept at once.
        longest_s: nothing is kept for longer after its last use, whoever asks for it: what other nodes ask,
            anybody can who may read.
    """

    def __init__(self, view: NodeView, limit: int, longest_s: int = LONGEST_LEASE_S) -> None:
        self._view = view
        self._limit = limit
        self._longest_ms = longest_s * 1000
        self._by_index: dict[str, dict[_Key, _Lease]] = {}

    def keep(
        self,
        index: str,
        number: int,
        slices: Sequence[int],
        lease_ms: int,
        *,
        in_use: bool,
        now: int,
        hold: str = "",
    ) -> list[int]:
        """Keep a snapshot in some slices for at least `lease_ms`; returns those that do not hold it.

        Args:
            in_use: a later page was read from it.
            now: milliseconds.
            hold: id of the hold that this is for, "" for page tokens.

        Raises:
            TooManyLeasesError: the limit is reached, and all snapshots that are kept are in use.
        """
        leases = self._by_index.get(index)
        if leases is None:
            self._forget_indexes(now)
            leases = self._by_index[index] = {}
        lease_ms = min(lease_ms, self._longest_ms)
        lease = leases.get((number, hold))
        if lease is None:
            if len(leases) >= self._limit:
                self._make_room(index, leases, now)
            lease = leases[number, hold] = _Lease(0)
        lease.in_use |= in_use or bool(hold)
        if lease.until - now >= lease_ms and lease.slices.issuperset(slices):
            return []
        # A tenth longer than is promised, so that not every token renews the lease.
        lease.until = max(lease.until, now + lease_ms + lease_ms // 10)
        # A slice that another read has asked for keeps the snapshot as long.
        wanted = lease.slices.union(slices)
        holder = hold or HOLDER
        held = {one for one in wanted if self._view.lease(index, one, number, holder, lease.until)}
        lease.slices = held
        return [one for one in slices if one not in held]

    def holds(self, index: str, number: int, hold: str, slices: Iterable[int], now: int) -> bool:
        """Whether a hold lasts, and is on these slices."""
        lease = self._by_index.get(index, {}).get((number, hold))
        return lease is not None and lease.until > now and lease.slices.issuperset(slices)

    def give_back(self, index: str, number: int, hold: str, now: int) -> None:
        """Let go of what a hold keeps; of one that is not known, nothing."""
        lease = self._by_index.get(index, {}).pop((number, hold), None)
        for one in lease.slices if lease is not None else ():
            self._view.lease(index, one, number, hold, now)

    def _make_room(self, index: str, leases: dict[_Key, _Lease], now: int) -> None:
        """Forget what has run out; let go of the oldest idle snapshots until one more may be kept."""
        for key in [key for key, lease in leases.items() if lease.until <= now]:
            del leases[key]
        idle = sorted(key for key, lease in leases.items() if not lease.in_use)
        surplus = len(leases) + 1 - self._limit
        if surplus > len(idle):
            raise TooManyLeasesError(
                f"node {self._view.node_id} keeps {len(leases)} snapshots for scans under way",
                next_step="try again, ask for larger pages, give held snapshots back, or raise "
                "scan.max_leases",
            )
        for key in idle[: max(0, surplus)]:
            for one in leases.pop(key).slices:
                self._view.lease(index, one, key[0], HOLDER, now)

    def _forget_indexes(self, now: int) -> None:
        """Forget indexes whose leases have run out: they may be dropped."""
        for index, leases in list(self._by_index.items()):
            if all(lease.until <= now for lease in leases.values()):
                del self._by_index[index]


async def keep_everywhere(target: Target, nodes: Nodes, held: Iterable[int]) -> None:
    """Keep the target's snapshot on every slice that is not `held` already.

    Raises:
        SnapshotMissingError: a slice does not have it.
        RetryableError: a node does not answer, or keeps too many.
    """
    if target.number == TIP:
        return
    wanted = target.by_node(sorted(target.nodes.keys() - set(held)))
    replies = await asyncio.gather(
        *(
            nodes.lease(
                node,
                LeaseRequest(
                    target.index,
                    target.number,
                    target.incarnation,
                    slices,
                    target.lease_ms,
                    target.in_use,
                    target.hold,
                ),
                target.timeout_s,
            )
            for node, slices in wanted.items()
        )
    )
    for node, reply in zip(wanted, replies, strict=True):
        if reply.missing:
            raise SnapshotMissingError(reply.missing[0], node, -1)
