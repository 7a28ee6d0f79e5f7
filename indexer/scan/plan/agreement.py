"""Agreeing on the snapshot of a first page when the newest one does not do at once: choose a number, waiting
for it if need be, read it, and choose again while some slice does not hold it.

A slice may not hold a published number because it restarted (then it catches up, Published), because the
number is old already on a busy node, or because it has not rolled back yet. Other replicas are tried at once,
the same ones after a pause. Only what is lost on every replica is not waited for. After a rollback nothing is
read until a number of the new incarnation is common (R32).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from indexer.scan.peer.messages import HistoryAheadError
from indexer.scan.plan.directory import IndexDirectory, Scannable
from indexer.scan.plan.errors import (
    IndexNotReadyError,
    RollingBackError,
    SnapshotMissingError,
    TimestampNotReachedError,
)
from indexer.scan.plan.selection import Stamp, demanded_offsets
from indexer.scan.plan.tokens import Seen
from indexer.scan.plan.waiting import Deadline, SnapshotNotifier
from indexer.scan.request.request import Moment
from indexer.view import NodeView
from keytide.errors import RetryableError
from keytide.http.node_protocol import NodeUnavailableError

FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.1
"""Between tries of a snapshot that a slice did not hold; doubled from the first to the longest."""
MOST_TOLD: Final = 16
"""Things that were waited for, in the story of a scan."""
OUT_OF_TIME: Final = 504
"""Status of what ran out of time."""
CATALOG_LAG_S: Final = 0.5
"""How far behind the coordinator a node's catalog may be on a busy machine before a scan is turned away."""

Hindrance = SnapshotMissingError | HistoryAheadError | NodeUnavailableError
"""Why a snapshot that was chosen could not be read, and another one, or another replica, may be."""
HINDRANCES: Final = (SnapshotMissingError, HistoryAheadError, NodeUnavailableError)

AgreedT = TypeVar("AgreedT")
ReadAt = Callable[[Scannable, Stamp, Mapping[int, str], list[str]], Awaitable[AgreedT]]
"""Reads a snapshot of an index, each slice at a node; is told what was waited for. May raise `Hindrance`."""

_ENDED: Final = ("READY", "FAILED", "CANCELLED")
"""States of a build that is over."""


class Agreement:
    """One request's search for a snapshot that can be read.

    Args:
        view: this node.
        directory: indexes by name.
        notifier: of published numbers and the catalog.
        slices: which are needed.
        seen: what the session has seen.
        deadline: bounds all waits.
        replica: where to read a slice, but for some nodes to do without.
    """

    def __init__(
        self,
        view: NodeView,
        directory: IndexDirectory,
        notifier: SnapshotNotifier,
        slices: Sequence[int],
        moment: Moment,
        seen: Seen,
        deadline: Deadline,
        replica: Callable[[Scannable, int, set[str] | None], str],
    ) -> None:
        self._view = view
        self._replica = replica
        self._directory = directory
        self._notifier = notifier
        self._slices = slices
        self._moment = moment
        self._seen = seen
        self._deadline = deadline
        self._waited_for: list[str] = []
        self._without: dict[int, set[str]] = {}
        self._lost: dict[int, dict[str, str]] = {}
        self._pause = FIRST_PAUSE_S

    async def read(
        self,
        index: Scannable,
        nodes: Mapping[int, str],
        read_at: ReadAt[AgreedT],
        hindrance: Hindrance | None,
    ) -> AgreedT:
        """What `read_at` gives of the newest snapshot that satisfies the moment.

        Args:
            nodes: slice -> where it was read in vain.
            hindrance: what came of that; None if nothing was read yet.

        Raises:
            KeytideError: the typed errors of docs/reference.
            ReaderGoneError: the reader went away.
        """
        while True:
            if hindrance is not None:
                await self._after(index, nodes, hindrance)
            stamp = await self._choose(index)
            index = await self._rebuilt(index)
            nodes = {
                number: self._replica(index, number, self._without.get(number)) for number in self._slices
            }
            left = self._deadline.left
            try:
                return await read_at(index, stamp, nodes, self._waited_for)
            except HINDRANCES as error:
                hindrance = error
            except RetryableError as error:
                if hindrance is None or error.status != OUT_OF_TIME or left > LONGEST_PAUSE_S:
                    raise
                # The last try, with hardly any time: what was in the way before it says more.
                await self._after(index, nodes, hindrance)
                raise

    async def _after(self, index: Scannable, nodes: Mapping[int, str], hindrance: Hindrance) -> None:
        """Returns when it is time for another try.

        Raises:
            KeytideError: there is no use in one, or no time.
        """
        match hindrance:
            case SnapshotMissingError() as missing:
                self._check_lost(index, missing)
                if not self._deadline.left:
                    raise _not_held(index, missing) from missing
                self._note(f"slice {missing.slice} on {missing.node} to hold its snapshot")
                without = self._without.setdefault(missing.slice, set())
                # (One that leaves, and keeps no more snapshots, is not among those that are chosen from.)
                other = missing.node in index.placement[missing.slice] and missing.node not in without
                without.add(missing.node)
                if other and self._untried(index, [missing.slice]):
                    return
                self._without[missing.slice] = set(self._lost.get(missing.slice, ()))
            case HistoryAheadError():
                if not self._deadline.left:
                    raise hindrance
                self._note("this node to read of the keyspace's rollback")
            case NodeUnavailableError():
                down = hindrance.extra["node"]
                there = [number for number, node in nodes.items() if node == down]
                for number in there:
                    self._without.setdefault(number, set()).add(down)
                if not self._deadline.left or not self._untried(index, there):
                    raise hindrance
                self._note(f"other replicas than those on {down}")
                if there:
                    return
        await self._deadline.wait(at_most=self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)

    async def _choose(self, index: Scannable) -> Stamp:
        """The newest published snapshot, once it satisfies the moment. What is lost is not waited for."""
        at_least = demanded_offsets(self._moment, index.partitions)
        stamp, lacking = self._directory.newest_stamp(index, self._moment, self._seen, at_least)
        if lacking is None and stamp is not None:
            return stamp
        while True:
            with self._notifier.listening() as told:
                index = self._directory.again(index)
                stamp, lacking = self._directory.newest_stamp(index, self._moment, self._seen, at_least)
                if lacking is None and stamp is not None:
                    return stamp
                self._check_known_lost(index)
                self._note(str(lacking))
                if not self._deadline.left:
                    break
                await self._deadline.wait(told)
        if stamp is None or stamp.incarnation < index.incarnation:
            _check_rollback(index)
            raise IndexNotReadyError(
                f"no snapshot of {index.name} is held by all its slices",
                next_step="try again; see `keytide status`",
            )
        raise TimestampNotReachedError(
            f"waited {self._deadline.waited_ms} ms for {lacking}",
            next_step="try again, or allow more with timeout_ms; `keytide status` says who is behind",
            waited_for=self._waited_for,
        )

    async def _rebuilt(self, index: Scannable) -> Scannable:
        """The same index as the catalog has it now, once none of the slices is being rebuilt: a moment for a
        build's end that this node has not read of yet.

        Raises:
            IndexNotReadyError: some are.
        """
        began = self._deadline.left
        while True:
            with self._notifier.listening() as told:
                index = self._directory.again(index)
                out = index.out.intersection(self._slices)
                if not out:
                    return index
                if not self._deadline.left or began - self._deadline.left >= CATALOG_LAG_S:
                    raise index.without(out, "")
                self._note(f"the rebuild of slice {min(out)}")
                await self._deadline.wait(told, at_most=CATALOG_LAG_S)

    def _check_known_lost(self, index: Scannable) -> None:
        """Raise if some of the slices are known to be lost: here, or because a rebuild of them goes on."""
        lost = {
            number: ""
            for number in self._slices
            if number in index.rebuilds and index.rebuilds[number].state not in _ENDED
        }
        for number in self._slices:
            trouble = self._view.trouble(index.id, number)
            alone = index.placement[number] == [self._view.node_id]
            if alone and trouble is not None and trouble.state == "LOST":
                lost[number] = trouble.reason
        if lost:
            raise index.without(lost, next(filter(None, lost.values()), ""))

    def _check_lost(self, index: Scannable, missing: SnapshotMissingError) -> None:
        """Note the replica of a slice that has lost its data; raise when no other replica is left."""
        if missing.state != "LOST":
            return
        of_slice = self._lost.setdefault(missing.slice, {})
        of_slice[missing.node] = missing.reason
        if of_slice.keys() >= set(index.placement[missing.slice]):
            raise index.without([missing.slice], missing.reason) from missing

    def _untried(self, index: Scannable, slices: Iterable[int]) -> bool:
        """Whether every one of the slices has another replica to try."""
        return all(
            self._directory.candidates(index.placement[number], self._without.get(number))
            for number in slices
        )

    def _note(self, what: str) -> None:
        """Keep the story short: what is waited for is told once, though its numbers change."""
        told = {one.split(" (")[0] for one in self._waited_for}
        if what.split(" (")[0] not in told and len(told) < MOST_TOLD:
            self._waited_for.append(what)


def _not_held(index: Scannable, missing: SnapshotMissingError) -> IndexNotReadyError:
    """Nobody has given what was asked of a slice."""
    counted, why = index.placement[missing.slice], f" ({missing.reason})" if missing.reason else ""
    slice_name = f"slice {missing.slice} of {index.name}"
    if missing.node in counted:
        text = f"{slice_name} is catching up on node {missing.node}{why}"
    else:
        text = (
            f"{slice_name} is not to be had from {' or '.join(counted)}, and node {missing.node}, which it "
            f"leaves, keeps no more snapshots{why}"
        )
    return IndexNotReadyError(text, next_step="try again; see `keytide status`")


def _check_rollback(index: Scannable) -> None:
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
