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
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from indexer.scan.gather.gather import Gathered, count
from indexer.scan.gather.scatter import CLIENT, SnapshotMissingError, Target, behind
from indexer.scan.peer.messages import TIP, LeaseRequest, SliceReader
from indexer.scan.plan.agreement import Agreement
from indexer.scan.plan.choose import PageSnapshotGoneError, Stamp
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.leases import keep_everywhere
from indexer.scan.plan.selection import Selection, filter_json
from indexer.scan.plan.tokens import HeldToken, Saw, Seen
from indexer.scan.plan.waiting import Deadline
from indexer.scan.request.request import Moment
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
    """

    index: str
    hold: str
    stamp: Stamp
    nodes: Mapping[int, str]
    lease_ms: int
    seen: Seen
    saw: Saw = ()

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
            return behind(missing)
        return PageSnapshotGoneError(
            f"slice {missing.slice} no longer holds snapshot {self.stamp.number}"
            + (f": {missing.reason}" if missing.reason else ""),
            next_step="begin again with a new snapshot (`POST /v1/indexes/{name}/snapshots`); it must be "
            f"used every {self.lease_ms // 1000} s (its `lease_s`)",
        )


class HoldRegistry:
    """Takes, renews and gives back holds, from one node.

    Args:
        agreement: chooses the snapshots.
        nodes: every node.
    """

    def __init__(self, agreement: Agreement, nodes: SliceReader) -> None:
        self._agreement = agreement
        self._nodes = nodes
        self._renewed: dict[str, float] = {}
        self._renewing: set[asyncio.Task[None]] = set()

    async def take(
        self,
        index: Scannable,
        slices: Sequence[int],
        moment: Moment,
        seen: Seen,
        patience: Deadline,
        lease_ms: int,
        kind: str = "",
    ) -> SnapshotHold:
        """Hold the newest snapshot that satisfies a moment. Of the tip nothing is held: the answer says where
        to read it.

        Raises:
            TooManyLeasesError: a node keeps too many.
            KeytideError: as `Agreement.read`.
        """
        hold = "" if moment.consistency == "tip" else kind + secrets.token_hex(8)

        async def work(target: Target) -> Gathered:
            asked = replace(target, spans=(), hold=hold)
            try:
                counted = await count(asked, self._nodes)
                if hold:
                    await keep_everywhere(asked, self._nodes, counted.leased)
                return counted
            except BaseException:
                if hold:
                    await asyncio.shield(self._give_back(asked))
                raise

        selection = Selection((), slices)
        agreed = await self._agreement.read(index, selection, moment, seen, patience, lease_ms, work)
        self._note(hold)
        return SnapshotHold(
            index.id, hold, agreed.stamp, agreed.target.nodes, lease_ms, seen, seen.get(index.keyspace, ())
        )

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
                await keep_everywhere(there, self._nodes, ())
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
                await self._nodes.lease(node, request, target.timeout_s)
            except RetryableError:
                return

        if target.number != TIP:
            await asyncio.gather(*(one(node, slices) for node, slices in target.by_node().items()))

    def _note(self, hold: str) -> None:
        if len(self._renewed) >= REMEMBERED:
            self._renewed.clear()
        if hold:
            self._renewed[hold] = monotonic()
