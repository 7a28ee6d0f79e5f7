"""How many entries indexes have, for the estimates of plans.

Theory of operation. Slices of an index may differ as much as keys do: of four cities in four slices two may
be empty. So every slice is asked, wherever it is, for its count, which it knows without reading. That is
asked again when it is a few seconds old, behind a plan that goes on with the old figure; only the first
plan of an index waits, and for a moment only: a node that does not answer must not hold up a query that may
not need it. Then the slices here have to do.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from indexer.scan.gather.gather import count
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import Target
from indexer.scan.peer.messages import TIP
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import SnapshotMissingError
from keytide.collation import Span
from keytide.errors import KeytideError

GOOD_FOR_S: Final = 5.0
"""How long a count is good for estimates."""
FIRST_WAIT_S: Final = 0.3
"""For the first count of an index, of a plan that waits for it."""
ASK_S: Final = 2.0
_WHOLE: Final = (Span(b"", None),)


class IndexSizes:
    """Counts of indexes, by id.

    Args:
        shared: the parts of the node's endpoint.
    """

    def __init__(self, shared: Reads) -> None:
        self._shared = shared
        self._known: dict[str, tuple[float, int]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def of(self, index: Scannable) -> int | None:
        """How many entries an index has; None when no slice that it has tells."""
        known = self._known.get(index.id)
        if known is None or monotonic() - known[0] >= GOOD_FOR_S:
            task = self._asking.get(index.id)
            if task is None:
                task = self._asking[index.id] = asyncio.create_task(self._ask(index))
                task.add_done_callback(lambda _: self._asking.pop(index.id, None))
            if known is None:
                await asyncio.wait([task], timeout=FIRST_WAIT_S)
                known = self._known.get(index.id)
        return known[1] if known is not None else self._here(index)

    async def _ask(self, index: Scannable) -> None:
        directory = self._shared.directory
        nodes = {number: directory.replica(replicas) for number, replicas in enumerate(index.placement)}
        others = directory.others(index.placement, nodes)
        target = Target(index.id, TIP, index.incarnation, _WHOLE, nodes, ASK_S, others=others)
        try:
            entries = (await count(target, self._shared.nodes)).count
        except (KeytideError, SnapshotMissingError):
            return  # (a node that is away, or a slice that catches up: what is known has to do)
        catalog = self._shared.view.catalog()
        self._known = {id_: kept for id_, kept in self._known.items() if catalog.index(id_) is not None}
        self._known[index.id] = (monotonic(), entries)

    def _here(self, index: Scannable) -> int | None:
        """As many as if all slices were like those on this node."""
        view = self._shared.view
        counts = []
        for number, replicas in enumerate(index.placement):
            tip = view.tip(index.id, number) if view.node_id in replicas else None
            if tip is not None:
                try:
                    counts.append(tip.count(b"", None))
                finally:
                    tip.release()
        return round(sum(counts) * len(index.placement) / len(counts)) if counts else None
