"""Leases: a page token's promise that its snapshot is still there, taken before the token is given.

Theory of operation
===================
What costs is a kept snapshot, not a token: a snapshot is kept once, however many tokens, holds and clients
refer to it, until some time after the last use of any of them. References are *firm* or *idle*. Firm are
holds, tails that run, and pages behind a first one; idle is what was only promised: most scans are never
asked for a second page, and most tails that ended are never resumed.

Nobody's use costs anybody else. A client (`Client`) may have so many snapshots of each kind firm; one more is
refused with 429. What is idle makes room, of whoever has most of it first, and a quarter of the places is
never firm: so a first page always has room. When all other places are firm, who has most of them gives up the
oldest for somebody who has fewer, else it is 503.

Every slice that a token names keeps the snapshot (a restart loses it). Most leases come with the read itself
(`ReadPaging.lease_ms`); `HoldRegistry.keep` takes the others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from indexer.scan.peer.messages import HOLDER, LeaseRequest, ReadRequest
from indexer.view import NodeView
from keytide.errors import RetryableError
from keytide.settings.scans import ScanSettings

TAIL: Final = "tail-"
"""How the ids of tails' holds begin."""
REFERENCES: Final = 16
"""A client may have so many times as many holds as snapshots: each takes some hundred bytes."""

BETWEEN_CALLS_MS: Final = 10_000
"""How long a read that slices could not finish in one call keeps the snapshot for its next, which comes at
once."""

LONGEST_LEASE_S: Final = 3_600
"""Where no setting says otherwise."""

_Key = tuple[int, str]
"""(snapshot number, holder: id of the hold, or the client's pages)."""


class TooManyLeasesError(RetryableError):
    """A client keeps as many snapshots as it may (429), or all clients together do (503)."""

    problem_type = "too-many-leases"
    status = 503


@dataclass(slots=True)
class _Lease:
    """A reference to a kept snapshot: whose, on which slices, until when, and whether it is firm."""

    client: str
    kind: str
    until: int = 0
    firm: bool = False
    slices: set[int] = field(default_factory=set)


def longest_lease_s(settings: ScanSettings) -> int:
    """A node keeps no snapshot for longer after its last use."""
    return max(settings.max_hold_s, settings.lease_s, settings.tail_lease_s)


def lease_of(request: ReadRequest) -> LeaseRequest:
    """What keeps the snapshot that is read, in all slices of the request."""
    span, moment, paging = request.span, request.consistency, request.paging
    return LeaseRequest(
        span.index,
        moment.number,
        moment.incarnation,
        span.slices,
        paging.lease_ms,
        paging.in_use,
        paging.hold,
        paging.client,
    )


class Leases(Protocol):
    """Where who reads slices takes leases: a node's `LeaseRegistry`, or what a scan process knows of it."""

    def keep(self, asked: LeaseRequest, now: int) -> list[int]:
        """See `LeaseRegistry.keep`."""
        ...

    def lasting(self, index: str, number: int, hold: str, now: int) -> Collection[int]:
        """See `LeaseRegistry.lasting`."""
        ...

    def give_back(self, index: str, number: int, hold: str, now: int) -> None:
        """See `LeaseRegistry.give_back`."""
        ...


class LeaseRegistry:
    """The leases of one node.

    Args:
        view: the node.
        limit: snapshots of one index that may be kept at once.
        longest_s: nothing is kept for longer after its last use, whoever asks for it: what other nodes ask,
            anybody can who may read.
        per_client: of them that one client may have firm, of each kind.
    """

    def __init__(
        self, view: NodeView, limit: int, longest_s: int = LONGEST_LEASE_S, per_client: int = 100
    ) -> None:
        self._view = view
        self._firm_limit = max(1, limit - max(1, limit // 4))
        self._limit = max(limit, self._firm_limit + 1)
        self._per_client = min(per_client, self._firm_limit)
        self._longest_ms = longest_s * 1000
        self._by_index: dict[str, dict[_Key, _Lease]] = {}

    def keep(self, asked: LeaseRequest, now: int) -> list[int]:
        """Keep a snapshot in some slices at least as long as is asked; returns those that do not hold it.
        What is idle makes room for others from now on.

        Args:
            asked: of an incarnation that the history holds, which is not looked at here.
            now: milliseconds.

        Raises:
            TooManyLeasesError: the client's limit is reached, or that of all.
        """
        index, number, slices = asked.index, asked.number, asked.slices
        leases = self._by_index.get(index)
        if leases is None:
            self._forget_indexes(now)
            leases = self._by_index[index] = {}
        lease_ms = min(asked.lease_ms, self._longest_ms)
        holder = asked.hold or HOLDER + asked.client
        lease = leases.get((number, holder))
        if asked.idle:
            if lease is not None:
                lease.firm = False
            return []
        firm = asked.in_use or bool(asked.hold)
        if lease is None or (firm and not lease.firm):
            self._forget(leases, now)
            made = lease or _Lease(asked.client, _kind(asked.hold))
            if firm:
                self._admit(index, leases, number, made, now)
            self._make_room(index, leases, number, now)
            lease = leases[number, holder] = made
        lease.firm |= firm
        if lease.until - now >= lease_ms and lease.slices.issuperset(slices):
            return []
        # A tenth longer than is promised, so that not every token renews the lease.
        lease.until = max(lease.until, now + lease_ms + lease_ms // 10)
        # A slice that another read has asked for keeps the snapshot as long.
        wanted = lease.slices.union(slices)
        held = {one for one in wanted if self._view.lease(index, one, number, holder, lease.until)}
        lease.slices = held
        return [one for one in slices if one not in held]

    def lasting(self, index: str, number: int, hold: str, now: int) -> Collection[int]:
        """The slices that a hold lasts on: none when it has run out, or was given back."""
        lease = self._by_index.get(index, {}).get((number, hold))
        return lease.slices if lease is not None and lease.until > now else ()

    def give_back(self, index: str, number: int, hold: str, now: int) -> None:
        """Let go of what a hold keeps; of one that is not known, nothing."""
        lease = self._by_index.get(index, {}).pop((number, hold), None)
        for one in lease.slices if lease is not None else ():
            self._view.lease(index, one, number, hold, now)

    # --- who may keep what ------------------------------------------------------

    def _admit(self, index: str, leases: dict[_Key, _Lease], number: int, asked: _Lease, now: int) -> None:
        """Raise `TooManyLeasesError` unless a client may have one more firm snapshot of a kind."""
        firm = [(key[0], lease) for key, lease in leases.items() if lease.firm]
        own = [(n, one) for n, one in firm if (one.client, one.kind) == (asked.client, asked.kind)]
        numbers = {n for n, _ in own}
        more = number not in numbers
        if (more and len(numbers) >= self._per_client) or len(own) >= REFERENCES * self._per_client:
            raise TooManyLeasesError(
                f"this client keeps {len(numbers)} snapshots for {asked.kind} on node {self._view.node_id}",
                status=429,
                next_step="end scans and tails, give held snapshots back, or raise scan.max_client_leases",
                retry_after_s=max(1, -((now - min(one.until for _, one in own)) // 1000)),
            )
        if number in {n for n, _ in firm} or len({n for n, _ in firm}) < self._firm_limit:
            return
        by_client: dict[str, set[int]] = {}
        for n, lease in firm:
            by_client.setdefault(lease.client, set()).add(n)
        greedy = max(sorted(by_client), key=lambda one: len(by_client[one]))
        if len(by_client[greedy]) <= len(by_client.get(asked.client, ())) + 1:
            raise TooManyLeasesError(
                f"node {self._view.node_id} keeps {self._firm_limit} snapshots for scans under way",
                next_step="try again, give held snapshots back, or raise scan.max_leases",
                retry_after_s=max(1, -((now - min(one.until for _, one in firm)) // 1000)),
            )
        alone = [n for n in by_client[greedy] if all(one.client == greedy for m, one in firm if m == n)]
        self._drop(index, leases, min(alone or by_client[greedy]), now)

    def _make_room(self, index: str, leases: dict[_Key, _Lease], number: int, now: int) -> None:
        """Let go of idle snapshots until another one may be kept: first those of the client with most."""
        while number not in (kept := {n for n, _ in leases}) and len(kept) >= self._limit:
            firm = {n for (n, _), lease in leases.items() if lease.firm}
            by_client: dict[str, set[int]] = {}
            for (n, _), lease in leases.items():
                if n not in firm:
                    by_client.setdefault(lease.client, set()).add(n)
            most = max(sorted(by_client), key=lambda one: len(by_client[one]))
            self._drop(index, leases, min(by_client[most]), now)

    def _drop(self, index: str, leases: dict[_Key, _Lease], number: int, now: int) -> None:
        """Let go of a snapshot, whoever refers to it."""
        for key in [key for key in leases if key[0] == number]:
            for one in leases.pop(key).slices:
                self._view.lease(index, one, number, key[1], now)

    def _forget(self, leases: dict[_Key, _Lease], now: int) -> None:
        """Forget what has run out."""
        for key in [key for key, lease in leases.items() if lease.until <= now]:
            del leases[key]

    def _forget_indexes(self, now: int) -> None:
        """Forget indexes whose leases have run out: they may be dropped."""
        for index, leases in list(self._by_index.items()):
            if all(lease.until <= now for lease in leases.values()):
                del self._by_index[index]


def _kind(hold: str) -> str:
    """What a reference is for, in words."""
    if not hold:
        return "pages"
    return "tails" if hold.startswith(TAIL) else "holds"
