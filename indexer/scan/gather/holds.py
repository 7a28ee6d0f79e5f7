"""Held snapshots: one moment that many reads share.

Theory of operation
===================
A hold is taken on every slice that it is for, under an id of its own (`leases`), and lasts for `lease_ms`
after its last use; whoever has its token reads exactly that snapshot through any node. Every read renews it
on the slices that it reads. Those that it does not read are renewed beside it now and then (leases run a
tenth longer than is promised, so once within that time is enough); the reader does not wait for that, so that
a node which does not answer hinders only reads of its own slices. Of slices with several copies two keep the
snapshot, and the token names both: it lives through the death of either (R38). So do page tokens.

A slice answers for a hold only while the hold lasts there: who comes too late, after a restart of a node or
after giving it back, is told `snapshot-gone`, also if the snapshot happens to be there still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from indexer.scan.gather.gather import Gathered, count
from indexer.scan.gather.scatter import CLIENT, Agreed, AskedT, Target, monotonic
from indexer.scan.peer.messages import TIP, LeaseRequest, SliceReader
from indexer.scan.plan.errors import PageSnapshotGoneError, SnapshotMissingError, catching_up
from indexer.scan.plan.selection import Selection, Stamp, filter_json
from indexer.scan.plan.tokens import HeldToken, Saw, Seen, by_node, copies_of
from keytide.errors import KeytideError, RetryableError
from keytide.model.timestamp import Timestamp

REMEMBERED: Final = 4_096
"""Leases of which a node knows when it last renewed them beside reads. Forgetting one costs some requests."""
RENEWALS: Final = 12
"""So often, within its time, a lease is renewed that reads do not renew themselves."""
COPIES: Final = 2
"""Of each slice so many copies keep a snapshot that is read more than once (R38)."""
SECOND_COPY_S: Final = 0.1
"""For how long a first page waits for them, when one keeps it already."""


@dataclass(frozen=True, slots=True)
class SnapshotHold:
    """A snapshot that is held.

    Attributes:
        index: index id.
        hold: under which id; "" for the tip, which cannot be held.
        stamp: which snapshot.
        copies: slice -> the nodes that hold it there, the one to ask first.
        lease_ms: how long it is held after its last use.
        seen: what the session had seen when it was taken.
        saw: of the index's keyspace, for newest states.
        own: whether this request took it, and gives it back.
    """

    index: str
    hold: str
    stamp: Stamp
    copies: Mapping[int, Sequence[str]]
    lease_ms: int
    seen: Seen
    saw: Saw = ()
    own: bool = False

    @classmethod
    def of(cls, token: HeldToken) -> SnapshotHold:
        stamp = Stamp(token.number, token.incarnation, Timestamp(), token.fresh_at)
        return cls(token.index, token.hold, stamp, copies_of(token.nodes), token.lease_ms, token.seen)

    def token(self, seen: Seen) -> HeldToken:
        return HeldToken(
            self.index,
            self.hold,
            self.stamp.number,
            self.stamp.incarnation,
            self.stamp.fresh_at,
            by_node(self.copies),
            self.lease_ms,
            seen,
        )

    def at(self, nodes: Mapping[int, Collection[str]]) -> SnapshotHold:
        """The hold on those of its copies that are at these nodes, of slices that have any there."""
        copies = {
            number: [one for one in there if one in nodes.get(number, ())] or there
            for number, there in self.copies.items()
        }
        return replace(self, copies=copies)

    def without(self, number: int, node: str) -> SnapshotHold:
        """The hold without one copy of a slice."""
        left = [one for one in self.copies[number] if one != node]
        return replace(self, copies={**self.copies, number: left})

    def target(self, selection: Selection, timeout_s: float) -> Target:
        """What to read for a selection. Of one that can have nothing a slice is asked all the same: it tells
        the timestamp, and whether the hold lasts."""
        slices: Sequence[int] = selection.slices or sorted(self.copies)[:1]
        return Target(
            self.index,
            self.stamp.number,
            self.stamp.incarnation,
            selection.spans if selection.slices else (),
            {number: self.copies[number][0] for number in slices},
            timeout_s,
            self.lease_ms if self.hold else 0,
            True,
            filter_json(selection),
            selection.distinct,
            self.hold,
            selection.in_order,
            saw=self.saw,
            others={number: self.copies[number][1:] for number in slices if len(self.copies[number]) > 1},
            keys=frozenset(selection.keys),
        )

    def gone(self, missing: SnapshotMissingError) -> KeytideError:
        """What a reader is told when a slice does not hold the snapshot any more."""
        if self.stamp.number == TIP:
            return catching_up(missing)
        missing.raise_if_passing()
        return PageSnapshotGoneError(
            f"slice {missing.slice} no longer holds snapshot {self.stamp.number}"
            + (f": {missing.reason}" if missing.reason else ""),
            next_step="begin again with a new snapshot (`POST /v1/indexes/{name}/snapshots`); it must be "
            f"used every {self.lease_ms // 1000} s (its `lease_s`)",
        )


class HoldRegistry:
    """Takes, renews and gives back holds and other leases, from one node.

    Args:
        nodes: every node.
    """

    def __init__(self, nodes: SliceReader) -> None:
        self.nodes = nodes
        self._renewed: dict[Hashable, float] = {}
        self._under_way: set[asyncio.Task[None]] = set()

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
        return Agreed(held.stamp.of(gathered.timestamps()), target, gathered, 0, [])

    async def take(self, target: Target) -> Gathered:
        """Take the hold that a target names on all its slices, or on none.

        Raises:
            TooManyLeasesError: a node keeps too many.
            SnapshotMissingError, RetryableError: as `count`.
        """
        try:
            counted = await count(target, self.nodes)
            if target.hold:
                await self.keep(target, counted.leased)
        except BaseException:
            if target.hold:
                await asyncio.shield(self._give_back(target))
            raise
        if target.hold:
            self._note(target.hold)
        return counted

    async def keep(self, target: Target, leased: dict[int, set[str]], *, newest: bool = False) -> None:
        """Keep a target's snapshot on all its slices: on two copies of each, where there are two and they
        answer in time, on one at least (R38).

        Args:
            leased: slice -> the nodes that keep it already; those that keep it now are added.
            newest: it was published last. Copies that lag do not hold it, so they are asked only where nobody
                else keeps it. (They may well hold, and keep, an older one.)

        Raises:
            SnapshotMissingError: no copy of a slice has it.
            RetryableError: the only node that may have it does not answer, or keeps too many.
        """
        if target.number == TIP:
            return
        health, now = self.nodes.health, monotonic()
        further: dict[int, list[str]] = {}
        wanted: dict[int, int] = {}
        for number in sorted(target.nodes):
            of, there = (target.index, number), leased.get(number, ())
            copies = [one for one in target.copies(number) if one not in there]
            counted = health.waited_for(copies, of) if newest else copies
            lagging = [one for one in copies if one not in counted]
            further[number] = [*health.order(counted, now, of), *lagging]
            wanted[number] = min(COPIES - len(there), len(counted) or (0 if there else 1))
        failures: dict[int, Exception] = {}
        running: dict[asyncio.Task[None], Sequence[int]] = {}

        def ask(wanted: Mapping[str, Sequence[int]]) -> None:
            for node, slices in wanted.items():
                running[self._start(self._keep_at(target, node, slices, leased, failures))] = slices

        first = _next_copies(further, wanted)
        ask({node: slices for node, slices in first.items() if self._wanted(target, node, slices, leased)})
        try:
            while lacking := [number for number in further if not leased.get(number)]:
                under_way = {number for slices in running.values() for number in slices}
                failed = [number for number in lacking if number not in under_way]
                if gone := [number for number in failed if not further[number]]:
                    raise failures[gone[0]]
                ask(_next_copies(further, dict.fromkeys(failed, 1)))
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del running[task]
        except BaseException:  # nobody is told of what they would keep
            for task in running:
                task.cancel()
            raise
        if running and not target.in_use:  # the token names those that keep it; later pages only renew
            await asyncio.wait(running, timeout=SECOND_COPY_S)

    async def keep_for_more(self, target: Target, page: Gathered) -> None:
        """Keep the snapshot of a page behind which there is more, where reading it has not done so: it may
        end, by its bytes for instance, though slices have nothing more to give, or were read as one. Raises
        as `keep`."""
        if page.more and not all(page.leased.get(number) for number in target.nodes):
            await self.keep(target, page.leased, newest=not target.in_use)

    async def _keep_at(
        self,
        target: Target,
        node: str,
        slices: Sequence[int],
        leased: dict[int, set[str]],
        failures: dict[int, Exception],
    ) -> None:
        """Keep the snapshot of some slices at a node, and note which are kept there and which not."""
        try:
            missing = (await self.nodes.lease(node, _lease(target, slices), target.left_s)).missing
        except RetryableError as error:
            failures.update(dict.fromkeys(slices, error))
            return
        for number in slices:
            if number in missing:
                failures[number] = SnapshotMissingError(number, node, -1)
            else:
                leased.setdefault(number, set()).add(node)

    def _wanted(
        self, target: Target, node: str, slices: Sequence[int], leased: Mapping[int, Collection[str]]
    ) -> bool:
        """Whether a node is to be asked now: not for leases that are renewed beside reads of other copies,
        unless it is time."""
        return (
            not target.in_use
            or not all(leased.get(number) for number in slices)
            or self._is_time((target.index, target.number, target.hold, CLIENT.get(), node), target.lease_ms)
        )

    def _is_time(self, lease: Hashable, lease_ms: int) -> bool:
        """Whether a lease that reads do not renew is to be renewed, and note that it is."""
        if monotonic() - self._renewed.get(lease, 0.0) < lease_ms / RENEWALS / 1_000:
            return False
        self._note(lease)
        return True

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Something that a request begins and need not wait for."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def renew(self, held: SnapshotHold, leased: Mapping[int, Collection[str]], timeout_s: float) -> None:
        """Renew a hold after a read, where the read has not done so itself and it is time; nobody waits.

        Args:
            leased: slice -> the nodes at which it has.
        """
        if not held.hold or not self._is_time(held.hold, held.lease_ms):
            return
        target = held.target(_everywhere(held), timeout_s)
        left = {
            number: [one for one in copies if one not in leased.get(number, ())]
            for number, copies in held.copies.items()
        }
        for node, slices in _grouped(left).items():
            # Where it fails the hold runs out, and whoever reads there is told.
            self._start(self._keep_at(target, node, slices, {}, {}))

    async def give_back(self, held: SnapshotHold, timeout_s: float) -> None:
        """Give a hold back. A node that cannot be asked keeps it until its time is over."""
        self._renewed.pop(held.hold, None)
        if held.hold:
            await self._give_back(held.target(_everywhere(held), timeout_s))

    def drop(self, held: SnapshotHold, timeout_s: float) -> None:
        """`give_back`, for which nobody waits."""
        self._start(self.give_back(held, timeout_s))

    async def leave(self, held: SnapshotHold, timeout_s: float) -> None:
        """Whoever had a hold is gone, and may come again within its time: it makes room from now on."""
        self._renewed.pop(held.hold, None)
        if held.hold:
            await self._give_back(held.target(_everywhere(held), timeout_s), held.lease_ms)

    async def _give_back(self, target: Target, idle_ms: int = 0) -> None:
        async def one(node: str, slices: list[int]) -> None:
            request = _lease(target, slices)
            request = structs.replace(request, lease_ms=idle_ms, in_use=True, idle=idle_ms > 0)
            try:
                await self.nodes.lease(node, request, target.timeout_s)
            except RetryableError:
                return

        if target.number != TIP:
            every = _grouped({number: target.copies(number) for number in target.nodes})
            await asyncio.gather(*(one(node, slices) for node, slices in every.items()))

    def _note(self, what: Hashable) -> None:
        if len(self._renewed) >= REMEMBERED:
            self._renewed.clear()
        self._renewed[what] = monotonic()


def _everywhere(held: SnapshotHold) -> Selection:
    """All slices of a hold."""
    return Selection((), sorted(held.copies))


def _next_copies(copies: dict[int, list[str]], wanted: Mapping[int, int]) -> dict[str, list[int]]:
    """Take the next copies of slices.

    Args:
        copies: slice -> those that are left; changed.
        wanted: slice -> how many to take.

    Returns:
        Node -> its slices.
    """
    taken: dict[int, list[str]] = {}
    for number, most in wanted.items():
        most = max(0, most)
        taken[number], copies[number] = copies[number][:most], copies[number][most:]
    return _grouped(taken)


def _grouped(copies: Mapping[int, Sequence[str]]) -> dict[str, list[int]]:
    """Node -> the slices that have a copy there."""
    grouped: dict[str, list[int]] = {}
    for number, nodes in copies.items():
        for node in nodes:
            grouped.setdefault(node, []).append(number)
    return grouped


def _lease(target: Target, slices: Sequence[int]) -> LeaseRequest:
    return LeaseRequest(
        target.index,
        target.number,
        target.incarnation,
        list(slices),
        target.lease_ms,
        target.in_use,
        target.hold,
        CLIENT.get(),
    )
