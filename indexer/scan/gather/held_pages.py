"""Pages of one held snapshot, one after the other, within one request: what streams read from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indexer.scan.gather.gather import Gathered, gather
from indexer.scan.gather.scatter import Target
from indexer.scan.plan.choose import Stamp
from indexer.scan.plan.holds import SnapshotHold
from indexer.scan.plan.selection import Selection

if TYPE_CHECKING:
    from indexer.scan.gather.reads import Reads


class HeldPages:
    """Reads a selection at a held snapshot. Close it in any case: that gives the snapshot back, unless the
    hold is the reader's own (`at`).

    Args:
        own: whether the hold was taken for this.
        timeout_s: longest wait for a node per page.
        offset: entries to leave out at the start.

    Attributes:
        held: the snapshot, for further reads by `Reads.read_held`.
        stamp: the snapshot; its timestamp is whole from the first page on (from the beginning, when the hold
            was taken for this).
        done: whether everything was read.
    """

    def __init__(
        self,
        shared: Reads,
        held: SnapshotHold,
        own: bool,
        selection: Selection,
        timeout_s: float,
        reverse: bool,
        offset: int,
    ) -> None:
        self.held = held
        self.stamp: Stamp = held.stamp
        self.done = False
        self._shared = shared
        self._own = own
        self._selection = selection
        self._timeout_s = timeout_s
        self._reverse = reverse
        self._offset = offset
        self._after = b""

    async def next(self, limit: int) -> Gathered:
        """The next page: at most `limit` entries, perhaps fewer though there are more (`done` tells); behind
        the last one nothing.

        Raises:
            SnapshotGoneError: a node lost the snapshot.
            KeytideError: as `Reads.read_held`.
        """

        if self.done:
            return Gathered()

        async def work(target: Target) -> Gathered:
            return await gather(target, self._shared.nodes, self._after, self._reverse, limit, self._offset)

        agreed = await self._shared.read_held(self.held, self._selection, self._timeout_s, work)
        page = agreed.gathered
        self.stamp = agreed.stamp
        self._after, self._offset, self.done = page.reached, page.offset_left, not page.more
        return page

    async def close(self) -> None:
        """Give the snapshot back."""
        if self._own:
            self._own = False
            await self._shared.holds.give_back(self.held, self._timeout_s)
