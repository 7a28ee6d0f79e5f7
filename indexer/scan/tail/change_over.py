"""Following an index into a new layout that was made of the old one's slices (R45).

Both layouts hold the same entries under one number, so a tail may go on in the new one from a moment that it
has told. A moment that was told some time ago is kept by the tail's lease in the old layout, and by nobody in
the new one. So a moment is looked for there while it is fresh, before it is told, and the tail changes over
once it has told it.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Final

from indexer.scan.gather.reads import Reads
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.selection import Selection
from indexer.scan.tail.moments import TailRequest, Told, same_moment

LOOK_S: Final = 1.0
"""So long a look may take, and so long it is until the next one: events wait for it."""


@dataclass(frozen=True, slots=True)
class Over:
    """A moment, held in the new layout.

    Attributes:
        index: the layout.
        selection: what the tail follows, there.
    """

    index: Scannable
    selection: Selection
    told: Told


class ChangeOver:
    """The change-over of one tail.

    Args:
        timeout_s: of the tail's requests.
    """

    def __init__(self, shared: Reads, request: TailRequest, timeout_s: float) -> None:
        self._shared = shared
        self._request = request
        self._timeout_s = timeout_s
        self._over: Over | None = None
        self._next_look = 0.0

    async def look(self, index: Scannable, fresh: Told) -> None:
        """Have a moment that is about to be told held in the layout that has taken over from `index`, if
        there is one. A tail that names slices stays where they are."""
        if self._request.slices is not None or monotonic() < self._next_look:
            return
        now = self._shared.directory.successor(index)
        if now is None:
            return
        self._next_look = monotonic() + LOOK_S
        selection = await self._shared.selected(self._request, now)
        told = await same_moment(self._shared, now, selection, fresh, min(self._timeout_s, LOOK_S))
        if told is not None:
            self.close()
            self._over = Over(now, selection, told)

    def take(self, newest: Told) -> Over | None:
        """Where to go on, when the newest moment is held there: it is the tail's from now on."""
        over = self._over
        if over is None:
            return None
        there, here = over.told.held.stamp, newest.held.stamp
        if (there.number, there.incarnation) != (here.number, here.incarnation):
            self.close()
            return None
        self._over = None
        return over

    def renew(self) -> None:
        """Keep it while it is not needed yet."""
        if self._over is not None:
            self._shared.holds.renew(self._over.told.held, {}, self._timeout_s)

    def close(self) -> None:
        """Give it back."""
        over, self._over = self._over, None
        if over is not None:
            self._shared.holds.drop(over.told.held, self._timeout_s)
