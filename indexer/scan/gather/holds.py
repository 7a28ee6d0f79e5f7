"""Held snapshots: one moment that many reads share.

Theory of operation
===================
A hold is taken on every slice that it is for, under an id of its own (`leases`), and lasts for `lease_ms`
after its last use; whoever has its token reads exactly that snapshot through any node. Every read renews it
on the slices that it reads. Those that it does not read are renewed beside it now and then (leases run a
tenth longer than is promised, so once within that time is enough); the reader does not wait for that, so that
a node which does not answer hinders only reads of its own slices.

A slice answers for a hold only while the hold lasts there: who comes too late, after a restart of a node or
after giving it back, is told `snapshot-gone`, also if the snapshot happens to be there still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from indexer.scan.gather.gather import Gathered, count
from indexer.scan.gather.scatter import (
    CLIENT,
    Agreed,
    AskedT,
    Target,
    keep_everywhere,
    monotonic,
    with_timestamp,
)
from indexer.scan.peer.messages import TIP, LeaseRequest, SliceReader
from indexer.scan.plan.errors import PageSnapshotGoneError, SnapshotMissingError, catching_up
from indexer.scan.plan.selection import Selection, Stamp, filter_json
from indexer.scan.plan.tokens import HeldToken, Saw, Seen
from keytide.errors import KeytideError, RetryableError
from keytide.model.timestamp import Timestamp

REMEMBERED: Final = 4_096
"""Holds of which a node knows when it last renewed them everywhere. Forgetting one costs some requests."""


@dataclass(frozen=True, slots=True)
class SnapshotHold:
    """A snapshot that is held.

    Attributes:
        index: index id.
        hold: under which id; "" for the tip, which cannot be held.
        stamp: which snapshot.
        nodes: slice -> the node that holds it there.
        lease_ms: how long it is held after its last use.
        seen: what the session had seen when it was taken.
        saw: of the index's keyspace, for newest states.
        own: whether this request took it, and gives it back.
    """

    index: str
    hold: str
    stamp: Stamp
    nodes: Mapping[int, str]
    lease_ms: int
    seen: Seen
    saw: Saw = ()
    own: bool = False

    @classmethod
    def of(cls, token: HeldToken) -> SnapshotHold:
        stamp = Stamp(token.number, token.incarnation, Timestamp(), token.fresh_at)
        nodes = {number: node for node, slices in token.nodes for number in slices}
        return cls(token.index, token.hold, stamp, nodes, token.lease_ms, token.seen)

    def token(self, seen: Seen) -> HeldToken:
        by_node: dict[str, list[int]] = {}
        for number, node in self.nodes.items():
            by_node.setdefault(node, []).append(number)
        return HeldToken(
            self.index,
            self.hold,
            self.stamp.number,
            self.stamp.incarnation,
            self.stamp.fresh_at,
            list(by_node.items()),
            self.lease_ms,
            seen,
        )

    def target(self, selection: Selection, timeout_s: float) -> Target:
        """What to read for a selection. Of one that can have nothing a slice is asked all the same: it tells
        the timestamp, and whether the hold lasts."""
        slices: Sequence[int] = selection.slices or sorted(self.nodes)[:1]
        return Target(
            self.index,
            self.stamp.number,
            self.stamp.incarnation,
            selection.spans if selection.slices else (),
            {number: self.nodes[number] for number in slices},
            timeout_s,
            self.lease_ms if self.hold else 0,
            True,
            filter_json(selection.filter),
            selection.distinct,
            self.hold,
            selection.in_order,
            saw=self.saw,
        )

    def gone(self, missing: SnapshotMissingError) -> KeytideError:
        """What a reader is told when a slice does not hold the snapshot any more."""
        if self.stamp.number == TIP:
            return catching_up(missing)
        return PageSnapshotGoneError(
            f"slice {missing.slice} no longer holds snapshot {self.stamp.number}"
            + (f": {missing.reason}" if missing.reason else ""),
            next_step="begin again with a new snapshot (`POST /v1/indexes/{name}/snapshots`); it must be "
            f"used every {self.lease_ms // 1000} s (its `lease_s`)",
        )


class HoldRegistry:
    """Takes, renews and gives back holds, from one node.

    Args:
        nodes: every node.
    """

    def __init__(self, nodes: SliceReader) -> None:
        self.nodes = nodes
        self._renewed: dict[str, float] = {}
        self._renewing: set[asyncio.Task[None]] = set()

    async def read(
        self,
        held: SnapshotHold,
        selection: Selection,
        timeout_s: float,
        work: Callable[[Target], Awaitable[AskedT]],
    ) -> Agreed[AskedT]:
        """Do `work` at a held snapshot, and renew its lease.

        Raises:
            SnapshotGoneError: it is not held any more.
            KeytideError: as `Reads.read`.
        """
        target = held.target(selection, timeout_s)
        try:
            gathered = await work(target)
        except SnapshotMissingError as missing:
            raise held.gone(missing) from missing
        self.renew(held, gathered.leased, timeout_s)
        return Agreed(with_timestamp(held.stamp, gathered), target, gathered, 0, [])

    async def take(self, target: Target) -> Gathered:
        """Take the hold that a target names on all its slices, or on none.

        Raises:
            TooManyLeasesError: a node keeps too many.
            SnapshotMissingError, RetryableError: as `count`.
        """
        try:
            counted = await count(target, self.nodes)
            if target.hold:
                await keep_everywhere(target, self.nodes, counted.leased)
        except BaseException:
            if target.hold:
                await asyncio.shield(self._give_back(target))
            raise
        self._note(target.hold)
        return counted

    def renew(self, held: SnapshotHold, leased: Iterable[int], timeout_s: float) -> None:
        """Renew a hold after a read, where the read has not done so itself and it is time; nobody waits.

        Args:
            leased: the slices on which it has.
        """
        if not held.hold or monotonic() - self._renewed.get(held.hold, 0.0) < held.lease_ms / 12_000:
            return
        self._note(held.hold)
        left = sorted(held.nodes.keys() - set(leased))
        if left:
            task = asyncio.create_task(self._renew(held.target(Selection((), left), timeout_s)))
            self._renewing.add(task)
            task.add_done_callback(self._renewing.discard)

    async def _renew(self, target: Target) -> None:
        """Node by node, for one that is away must not hinder the others. Where it fails the hold runs out,
        and whoever reads there is told."""

        async def one(node: str, slices: list[int]) -> None:
            there = replace(target, nodes=dict.fromkeys(slices, node))
            try:
                await keep_everywhere(there, self.nodes, ())
            except (RetryableError, SnapshotMissingError):
                return

        await asyncio.gather(*(one(node, slices) for node, slices in target.by_node().items()))

    async def give_back(self, held: SnapshotHold, timeout_s: float) -> None:
        """Give a hold back. A node that cannot be asked keeps it until its time is over."""
        self._renewed.pop(held.hold, None)
        if held.hold:
            await self._give_back(held.target(Selection((), sorted(held.nodes)), timeout_s))

    async def leave(self, held: SnapshotHold, timeout_s: float) -> None:
        """Whoever had a hold is gone, and may come again within its time: it makes room from now on."""
        self._renewed.pop(held.hold, None)
        if held.hold:
            everywhere = Selection((), sorted(held.nodes))
            await self._give_back(held.target(everywhere, timeout_s), held.lease_ms)

    async def _give_back(self, target: Target, idle_ms: int = 0) -> None:
        async def one(node: str, slices: list[int]) -> None:
            request = LeaseRequest(
                target.index,
                target.number,
                target.incarnation,
                slices,
                idle_ms,
                True,
                target.hold,
                CLIENT.get(),
                idle_ms > 0,
            )
            try:
                await self.nodes.lease(node, request, target.timeout_s)
            except RetryableError:
                return

        if target.number != TIP:
            await asyncio.gather(*(one(node, slices) for node, slices in target.by_node().items()))

    def _note(self, hold: str) -> None:
        if len(self._renewed) >= REMEMBERED:
            self._renewed.clear()
        if hold:
            self._renewed[hold] = monotonic()
