"""Agreeing on the snapshot of a first page: choose a number, waiting for it if need be, read it, and choose
again while some slice does not hold it.

A slice may not hold a published number because it restarted (then it catches up, Published), because the
number is old already on a busy node, or because it has not rolled back yet. Other replicas are tried at once,
the same ones after a pause. Only what is lost on every replica is not waited for. After a rollback nothing is
read until a number of the new incarnation is common (R32).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, Generic, TypeVar

from indexer.scan.gather.scatter import SliceAnswers, SnapshotMissingError, Target
from indexer.scan.peer.messages import TIP, HistoryAheadError, NodeUnavailableError
from indexer.scan.plan.choose import (
    IndexNotReadyError,
    RollingBackError,
    Stamp,
    TimestampNotReachedError,
    check_branches,
    check_history,
    check_partitions,
    unmet,
)
from indexer.scan.plan.directory import IndexDirectory, Scannable
from indexer.scan.plan.selection import Selection, filter_json
from indexer.scan.plan.tokens import Seen
from indexer.scan.plan.waiting import Deadline, SnapshotNotifier
from indexer.scan.request.request import Moment
from indexer.view import NodeView
from keytide.errors import CallerError, invariant
from keytide.model.timestamp import Timestamp, smallest
from keytide.process.clock import now_ms

FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.1
"""Between tries of a snapshot that a slice did not hold; doubled from the first to the longest."""
CATALOG_LAG_S: Final = 0.5
"""How far behind the coordinator a node's catalog may be on a busy machine before a scan is turned away."""


_ENDED: Final = ("READY", "FAILED", "CANCELLED")
"""States of a build that is over."""


AskedT = TypeVar("AskedT", bound=SliceAnswers)


@dataclass(frozen=True, slots=True)
class Agreed(Generic[AskedT]):
    """A gathered read of one agreed snapshot, and the story of the choice."""

    stamp: Stamp
    target: Target
    gathered: AskedT
    waited_ms: int
    waited_for: list[str]


class Agreement:
    """Chooses snapshots for first pages, counts and everything else that names none.

    Args:
        view: this node.
        directory: indexes by name.
        news: of published numbers and the catalog.
    """

    def __init__(self, view: NodeView, directory: IndexDirectory, news: SnapshotNotifier) -> None:
        self._view = view
        self._directory = directory
        self._news = news

    async def read(
        self,
        index: Scannable,
        selection: Selection,
        moment: Moment,
        seen: Seen,
        patience: Deadline,
        lease_ms: int,
        work: Callable[[Target], Awaitable[AskedT]],
    ) -> Agreed[AskedT]:
        """Do `work` on the newest snapshot that satisfies `moment`.

        Args:
            selection: what the target is to name.
            moment: its `at` is not looked at: `Shared.read` knows what to do with it.
            seen: what the session has seen.
            patience: bounds all waits.
            lease_ms: for `Target`.
            work: reads a target; may raise `SnapshotMissingError` or `HistoryAheadError`, then it is called
                again.

        Raises:
            KeytideError: the typed errors of docs/reference.
            ReaderGoneError: the reader went away.
        """
        slices = selection.slices
        tested = filter_json(selection.filter)
        waited_for: list[str] = []
        lacking: dict[int, set[str]] = {}
        lost: dict[int, dict[str, str]] = {}
        pause = FIRST_PAUSE_S
        while True:
            stamp = await self._choose(index, slices, moment, seen, patience, waited_for)
            index = await self._rebuilt(index, slices, patience, waited_for)
            nodes = {number: self.place(index.placement[number], lacking.get(number)) for number in slices}
            target = Target(
                index.id,
                stamp.number,
                stamp.incarnation,
                selection.spans,
                nodes,
                max(0.001, patience.left),
                lease_ms,
                False,
                tested,
                selection.distinct,
                in_order=selection.in_order,
                saw=seen.get(index.keyspace, ()),
            )
            try:
                gathered = await work(target)
                stamp = with_timestamp(stamp, (reply.timestamp for reply in gathered.replies.values()))
                return Agreed(stamp, target, gathered, patience.waited_ms, waited_for)
            except SnapshotMissingError as missing:
                self._check_lost(index, missing, lost)
                if not patience.left:
                    why = f" ({missing.reason})" if missing.reason else ""
                    raise IndexNotReadyError(
                        f"slice {missing.slice} of {index.name} is catching up on node {missing.node}{why}",
                        next_step="try again; see `keytide status`",
                    ) from missing
                _note(waited_for, f"slice {missing.slice} on {missing.node} to hold its snapshot")
                lacking.setdefault(missing.slice, set()).add(missing.node)
                if self._untried(index, [missing.slice], lacking):
                    continue
                lacking[missing.slice] = set(lost.get(missing.slice, ()))
            except HistoryAheadError:
                if not patience.left:
                    raise
                _note(waited_for, "this node to read of the keyspace's rollback")
            except NodeUnavailableError as down:
                there = [number for number, node in target.nodes.items() if node == down.extra["node"]]
                for number in there:
                    lacking.setdefault(number, set()).add(down.extra["node"])
                if not patience.left or not self._untried(index, there, lacking):
                    raise
                _note(waited_for, f"other replicas than those on {down.extra['node']}")
                continue
            await patience.wait(at_most=pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _choose(
        self,
        index: Scannable,
        slices: Sequence[int],
        moment: Moment,
        seen: Seen,
        patience: Deadline,
        waited_for: list[str],
    ) -> Stamp:
        """The newest published snapshot, once it satisfies the moment. What is lost is not waited for."""
        at_least = check_partitions(moment.at_least, index.partitions)
        tip = moment.consistency == "tip"
        if tip and (at_least or moment.max_staleness_ms is not None):
            raise CallerError(
                "at_least and max_staleness_ms need consistency `stable`: a tip scan agrees on nothing",
                status=422,
                problem_type="invalid-request",
            )
        stamp, lacking = self._look(index, moment, seen, at_least)
        if lacking is None and stamp is not None:
            return stamp
        while True:
            with self._news.listening() as heard:
                index = self._same(index)
                stamp, lacking = self._look(index, moment, seen, at_least)
                if lacking is None and stamp is not None:
                    return stamp
                self._check_known_lost(index, slices)
                _note(waited_for, str(lacking))
                if not patience.left:
                    break
                await patience.wait(heard)
        if stamp is None or stamp.incarnation < index.incarnation:
            self._check_rollback(index)
            raise IndexNotReadyError(
                f"no snapshot of {index.name} is held by all its slices",
                next_step="try again; see `keytide status`",
            )
        raise TimestampNotReachedError(
            f"waited {patience.waited_ms} ms for {lacking}",
            next_step="try again, or allow more with timeout_ms",
        )

    def _look(
        self, index: Scannable, moment: Moment, seen: Seen, at_least: dict[int, int]
    ) -> tuple[Stamp | None, str | None]:
        """The newest published snapshot (of a tip scan, none), and what it lacks.

        Raises:
            HistoryChangedError: what was seen or is demanded was rolled back.
        """
        of_keyspace = seen.get(index.keyspace)
        check_history(of_keyspace, index.history)
        check_branches(moment.at_least, index.history)
        if moment.consistency == "tip":
            behind = of_keyspace is not None and of_keyspace[1] > index.incarnation
            lacking = "this node to read of a rollback that the session has seen" if behind else None
            return Stamp(TIP, index.incarnation, Timestamp(), 0), lacking
        number = self._view.published(index.id)
        known = None if number is None else self._view.stamp(index.keyspace, number)
        stamp = None if number is None or known is None else Stamp(number, *known)
        return stamp, unmet(stamp, moment, of_keyspace, at_least, index.incarnation, now_ms())

    def _check_rollback(self, index: Scannable) -> None:
        """Raise `RollingBackError` if the keyspace was ever rolled back: nothing is common since."""
        newest = index.history.newest
        if newest is None:
            return
        to = f"snapshot {newest.number}" if newest.number >= 0 else "nothing, for its topic was made anew"
        raise RollingBackError(
            f"the source lost records; {index.keyspace} is being rolled back to {to}, and the slices of "
            f"{index.name} hold no common snapshot since",
            next_step="try again in a moment; see `keytide status`",
            rolled_back_to=newest.number if newest.number >= 0 else None,
        )

    def _check_known_lost(self, index: Scannable, slices: Sequence[int]) -> None:
        """Raise if some of the slices are known to be lost: here, or because a rebuild of them goes on."""
        lost = {
            number: ""
            for number in slices
            if number in index.rebuilds and index.rebuilds[number].state not in _ENDED
        }
        for number in slices:
            trouble = self._view.trouble(index.id, number)
            alone = index.placement[number] == [self._view.node_id]
            if alone and trouble is not None and trouble.state == "LOST":
                lost[number] = trouble.reason
        if lost:
            raise index.without(lost, next(filter(None, lost.values()), ""))

    def _check_lost(
        self, index: Scannable, missing: SnapshotMissingError, lost: dict[int, dict[str, str]]
    ) -> None:
        """Note the replica of a slice that has lost its data; raise when no other replica is left."""
        if missing.state != "LOST":
            return
        of_slice = lost.setdefault(missing.slice, {})
        of_slice[missing.node] = missing.reason
        if of_slice.keys() >= set(index.placement[missing.slice]):
            raise index.without([missing.slice], missing.reason) from missing

    async def _rebuilt(
        self, index: Scannable, slices: Sequence[int], patience: Deadline, waited_for: list[str]
    ) -> Scannable:
        """The same index as the catalog has it now, once none of the slices is being rebuilt: a moment for a
        build's end that this node has not read of yet.

        Raises:
            IndexNotReadyError: some are.
        """
        index = self._same(index)
        if not index.out:
            return index
        began = patience.left
        while True:
            with self._news.listening() as heard:
                index = self._same(index)
                out = index.out.intersection(slices)
                if not out:
                    return index
                if not patience.left or began - patience.left >= CATALOG_LAG_S:
                    raise index.without(out, "")
                _note(waited_for, f"the rebuild of slice {min(out)}")
                await patience.wait(heard, at_most=CATALOG_LAG_S)

    def _same(self, index: Scannable) -> Scannable:
        """The same index as the catalog has it now.

        Raises:
            KeytideError: it is gone, or not READY any more.
        """
        now = self._directory.index(index.name)
        if now.id != index.id:
            raise IndexNotReadyError(
                f"index {index.name} was dropped and created again meanwhile", next_step="try again"
            )
        return now

    def _untried(self, index: Scannable, slices: Iterable[int], lacking: dict[int, set[str]]) -> bool:
        """Whether every one of the slices has another replica to try."""
        return all(self._candidates(index.placement[number], lacking.get(number)) for number in slices)

    def place(self, replicas: list[str], lacking: set[str] | None = None) -> str:
        """Where to read a slice: here if a replica is here, else at any that is known; at those that lacked
        the snapshot only if no other is left."""
        me = self._view.node_id
        candidates = self._candidates(replicas, lacking) or replicas
        return me if me in candidates else random.choice(candidates)

    def _candidates(self, replicas: list[str], lacking: set[str] | None) -> list[str]:
        me = self._view.node_id
        return [
            node
            for node in replicas
            if not (lacking and node in lacking) and (node == me or self._view.node_url(node) is not None)
        ]


def with_timestamp(stamp: Stamp, read: Iterable[Timestamp]) -> Stamp:
    """The stamp with the timestamp that its slices have: the same in all unless it is a tip scan (Untorn)."""
    timestamps = list(read)
    if not timestamps:
        return stamp
    first, *others = timestamps
    if stamp.number == TIP:
        tip = reduce(Timestamp.merge_max, timestamps)
        return replace(stamp, timestamp=smallest(timestamps), tip=tip)
    invariant(
        all(_same_cut(first, other) for other in others),
        "Untorn",
        lambda: f"snapshot {stamp.number} has several timestamps: {timestamps}",
    )
    if stamp.timestamp.places:
        invariant(
            _same_cut(first, stamp.timestamp),
            "Untorn",
            lambda: f"snapshot {stamp.number} is {stamp.timestamp}, its slices have {first}",
        )
        return stamp
    return replace(stamp, timestamp=first)


def _same_cut(one: Timestamp, other: Timestamp) -> bool:
    return one is other or (one.covers(other) and other.covers(one))


def _note(waited_for: list[str], what: str) -> None:
    """Keep the story short: what is waited for is told once, though its numbers change."""
    if not waited_for or waited_for[-1].split(" (")[0] != what.split(" (")[0]:
        waited_for.append(what)
