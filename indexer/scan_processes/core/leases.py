"""Leases that the node has given, as a scan process remembers them.

A page token promises that its snapshot is held, so the node is asked before one is given. But a lease is for
a snapshot and a client, not for a token (`indexer.scan.plan.leases`), and is asked for a tenth longer than is
promised: in that tenth tokens are given without another word. So the node is asked about once for each number
that is published and each client, however many pages are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from indexer.scan.peer.messages import LeaseRequest

REMEMBERED: Final = 4_096
"""Leases; then those that were given first are forgotten, and asked for again."""

_Key = tuple[str, int, str, bool]
"""(index, number, client, whether it is in use)."""


def longer(lease_ms: int) -> int:
    """For how long the node is asked to keep what is promised for `lease_ms`."""
    return lease_ms + lease_ms // 10


def _key(asked: LeaseRequest) -> _Key:
    return asked.index, asked.number, asked.client, asked.in_use


class GrantedLeases:
    """What the node keeps, for whom, and until when (`indexer.scan.plan.leases.Leases`). Event loop only.

    Of holds nothing is known here: whoever reads one is passed on.
    """

    def __init__(self) -> None:
        self._granted: dict[_Key, tuple[int, frozenset[int]]] = {}

    def keep(self, asked: LeaseRequest, now: int) -> list[int]:
        """The slices of which it is not known that they keep a snapshot for another `lease_ms`."""
        until, kept = self._granted.get(_key(asked), (0, frozenset()))
        return [one for one in asked.slices if one not in kept or until - now < asked.lease_ms]

    def lasting(self, index: str, number: int, hold: str, now: int) -> Collection[int]:
        """Not known."""
        return ()

    def give_back(self, index: str, number: int, hold: str, now: int) -> None:
        """Nothing is had."""

    def granted(self, asked: LeaseRequest, slices: Sequence[int], now: int, until: int) -> None:
        """The node was asked at `now`, and keeps it in these slices at least `until` then (ms).

        Args:
            asked: for as long as is promised.
        """
        key = _key(asked)
        known, kept = self._granted.pop(key, (0, frozenset()))
        if known > now and known - now >= asked.lease_ms:
            until, kept = min(known, until), kept.union(slices)  # those of another read as well
        else:
            kept = frozenset(slices)
        while len(self._granted) >= REMEMBERED:
            del self._granted[next(iter(self._granted))]
        self._granted[key] = (until, kept)
