"""Which of the node's snapshots a scan process can read. Pure, but for what opens levels.

Theory of operation
===================
The node tells of each snapshot that a slice begins to hold by which commits of which levels it is read, and
of each that it holds no more. LMDB lets nobody begin to read an older commit than the newest, so a scan
process has until the next commit of a level to *pin* a snapshot: to open read transactions on just these
commits. A transaction tells its number, and no two commits of a level share one: what is pinned is what the
node has under that number, or it is not pinned. Then the number is *missed* here, and whoever asks for it is
passed on to the node, which holds it.

So the node waits for nobody, whatever a scan process does, and a scan process holds nothing that the node
does not: a lease (`indexer.scan.plan.leases`) is the node's.

A commit without rows writes nothing: then several numbers share their commits. A level that a slice's newest
snapshot does not have is never told of again, for levels do not come back: it goes when its last pin does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from indexer.scan_processes.core.messages import Closed, Dropped, Kept, SliceKey

ViewT = TypeVar("ViewT")
GivenT_co = TypeVar("GivenT_co", covariant=True)
TakenT_contra = TypeVar("TakenT_contra", contravariant=True)


class PinnableLevel(Protocol[GivenT_co]):
    """A level of the node's, followed."""

    def at(self, commit: int) -> GivenT_co | None:
        """A view of that commit; None when it is not the newest any more."""
        ...

    def retire(self) -> None:
        """Close it once its last view is let go."""
        ...


class PinnedRing(Protocol[TakenT_contra]):
    """What is pinned of one slice."""

    def pin(self, told: Kept, views: Sequence[TakenT_contra]) -> None:
        """A number can be read by these views, which are the ring's now."""
        ...

    def miss(self, number: int) -> None:
        """A number is held by the node, and cannot be read here: what was pinned under it goes."""
        ...

    def drop(self, number: int) -> None:
        """It is held no more."""
        ...

    def close(self) -> None:
        """Nothing is held any more."""
        ...


class Pins(Generic[ViewT]):
    """What is pinned of all slices. One thread.

    Args:
        open_level: (map_bytes, whatever came along for it) -> the level.
        make_ring: of a slice that begins to be told of.
        let_go: gives a view back.

    Attributes:
        rings: of the slices that were told of.
        pinned, missed: snapshots.
    """

    def __init__(
        self,
        open_level: Callable[[int, int], PinnableLevel[ViewT]],
        make_ring: Callable[[SliceKey], PinnedRing[ViewT]],
        let_go: Callable[[ViewT], None],
    ) -> None:
        self._open, self._make_ring, self._let_go = open_level, make_ring, let_go
        self._levels: dict[SliceKey, dict[int, PinnableLevel[ViewT]]] = {}
        self.rings: dict[SliceKey, PinnedRing[ViewT]] = {}
        self.pinned = self.missed = 0

    def kept(self, told: Kept, folders: Sequence[int]) -> None:
        """Pin a snapshot if it is not too late.

        Args:
            folders: what came along for the levels that are told of for the first time.
        """
        known = self._levels.setdefault(told.key, {})
        came = dict(zip(told.opened, folders, strict=True))
        for one in told.levels:
            if one.level in came:
                known[one.level] = self._open(one.map_bytes, came[one.level])
        newest = {one.level for one in told.levels}
        for gone in [level for level in known if level not in newest]:
            known.pop(gone).retire()
        ring = self.rings.get(told.key)
        if ring is None:
            ring = self.rings[told.key] = self._make_ring(told.key)
        views: list[ViewT] = []
        for one in reversed(told.levels):  # the newest level has the next commit first
            view = known[one.level].at(one.commit)
            if view is None:
                for taken in views:
                    self._let_go(taken)
                self.missed += 1
                ring.miss(told.number)
                return
            views.append(view)
        self.pinned += 1
        ring.pin(told, views[::-1])

    def dropped(self, told: Dropped) -> None:
        ring = self.rings.get(told.key)
        if ring is not None:
            ring.drop(told.number)

    def closed(self, told: Closed) -> None:
        ring = self.rings.pop(told.key, None)
        if ring is not None:
            ring.close()
        for level in self._levels.pop(told.key, {}).values():
            level.retire()
