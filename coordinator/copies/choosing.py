"""Where a copy is filled, and from which one. Pure (R39).

A node that is live, may have slices, has no copy of this one and has room for one. Of these one in a zone
without a copy, also where its turn has to be waited for, unless filling it has come to nothing on all of
them. Of these one on which it has not come to nothing before, then the one that has lost it (it has the room,
and the placement stays as it was), then the one with the fewest slices. The copy that it is filled from
serves; one that does not lag is preferred, and one whose node takes part in fewer fillings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from coordinator.catalog.placement import counts
from coordinator.copies.reports import CopyReports
from coordinator.core.nodes import WHOLE, HeardNodes
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord

TURN: Final = (
    "their turn: as many copies are filled from or on these nodes as may be at once (setting "
    "coordinator.copies_per_node)"
)


class Source(NamedTuple):
    """A copy that another one is filled from.

    Attributes:
        horizon: what its slice's queue keeps for it (`SliceStatus.queue_horizon`).
        bytes: what it takes on its disk.
    """

    node: str
    horizon: int
    bytes: int


class Purpose(NamedTuple):
    """What a copy is begun for.

    Attributes:
        replaces: the node whose copy leaves when it counts, "" for none.
        target: the node to fill it on, "" for any.
        rebalance: the rebalance that it is of, "" for none.
        rate: that it is filled at (`CopyRecord.rate`).
    """

    replaces: str = ""
    target: str = ""
    rebalance: str = ""
    rate: int = 0


class Choosing:
    """What nodes have to do with copies, at one moment.

    Args:
        catalog: with the copies that are being filled.
        nodes: as heard.
        reports: what they say of copies.
        at_once: copies that are filled from or on one node at a time.
        room: bytes that stay free on a disk.

    Attributes:
        filled: the copies of each slice that are being filled.
    """

    def __init__(
        self, catalog: Catalog, nodes: HeardNodes, reports: CopyReports, at_once: int, room: int
    ) -> None:
        self._nodes = nodes
        self._reports = reports
        self._at_once = at_once
        self._room = room
        self.filled = catalog.copies_of_slices()
        self._awaited = nodes.awaited(catalog)
        self._drained = catalog.drained()
        self._closed = catalog.closed()
        self._zones = catalog.zones()
        self._load = counts((one for one in nodes.live() if one not in self._closed), catalog.indexes())
        self._busy: Counter[str] = Counter()
        self._promised: Counter[str] = Counter()
        for record in catalog.copies():
            index = catalog.index(record.index)
            status = reports.counted(index, record.slice, record.source) if index else None
            self._take_part(record, status.bytes if status else 0)

    def begun(self, record: CopyRecord, size: int) -> None:
        """A copy is being filled, which takes `size` bytes."""
        self.filled.setdefault((record.index, record.slice), []).append(record)
        self._take_part(record, size)

    def _take_part(self, record: CopyRecord, size: int) -> None:
        """Both its nodes have to do with it."""
        if record.node in self._load:
            self._load[record.node] += 1
        status = self._reports.filled(record)
        if status is None or status.state not in WHOLE:
            self._busy.update((record.node, record.source))
            self._promised[record.node] += size

    def busy(self, node: str) -> bool:
        """Whether a node takes part in as many fillings as it may."""
        return self._busy[node] >= self._at_once

    def source(self, index: IndexRecord, number: int) -> tuple[Source | None, str]:
        """What to fill a copy of a slice from; what has to be waited for, in words, when there is none."""
        found: list[tuple[bool, int, Source]] = []
        for node in index.placement[number]:
            status = self._reports.counted(index, number, node)
            if status is None or status.queue_horizon < 0 or not self._reports.serves(index, number, node):
                continue
            source = Source(node, status.queue_horizon, status.bytes)
            found.append((self._reports.lags(index, number, node), self._busy[node], source))
        if not found:
            return (
                None,
                f"a copy to fill it from: none serves, of those on {', '.join(index.placement[number])}",
            )
        free = [one for one in found if one[1] < self._at_once]
        return (min(free, key=lambda one: one[:2])[2], "") if free else (None, TURN)

    def target(
        self,
        index: IndexRecord,
        number: int,
        size: int,
        failures: Mapping[str, int],
        preferred: str,
        purpose: Purpose,
    ) -> tuple[str, str]:
        """Which node to fill a copy on, one that has none of the slice, nor gets one; else "", and what has
        to be waited for, in words.

        Args:
            size: what it takes, in bytes.
            failures: how often filling it on a node came to nothing.
            preferred: the node that has lost it, "" for none.
        """
        if self._awaited and not purpose.target:
            return "", self._awaited
        holders = {*index.copies_kept(number), *(one.node for one in self.filled.get((index.id, number), ()))}
        there = self._load.keys() & {purpose.target} if purpose.target else self._load
        others = [node for node in there if node not in holders]
        if not others and purpose.target:
            away = "not live" if purpose.target not in self._nodes.live() else "to have no other copy of it"
            return "", f"node {purpose.target}, which is {away}"
        if not others:
            beside = holders.union(node for node in self._closed if node in self._nodes.live())
            words = f"none is live beside {', '.join(sorted(beside))}"
            leaves = sorted(index.leaving.get(number, ()))
            first = f"the copy that leaves node {' or '.join(leaves)} to be gone, or " if leaves else ""
            return "", f"{first}another indexer node: {words}{self._why_closed(beside)}; start one"
        roomy = [
            node
            for node in others
            if self._nodes.by_id[node].heartbeat.disk_free - self._promised[node] >= size + self._room
        ]
        if not roomy:
            return "", (
                f"{(size + self._room) / 1e9:.1f} GB of free disk on one of {', '.join(others)}: make room, "
                "or start another indexer node"
            )
        taken = {self._zones[node] for node in holders - {purpose.replaces} if node in self._zones}
        apart = [node for node in roomy if self._zones[node] not in taken]
        if all(failures.get(node) for node in apart):
            apart = roomy
        free = [node for node in apart if not self.busy(node)]
        if not free:
            return "", TURN
        return min(free, key=lambda n: (failures.get(n, 0), n != preferred, self._load[n], n)), ""

    def _why_closed(self, nodes: set[str]) -> str:
        """That some of those may have no slices, in words."""
        drained = ", ".join(sorted(nodes & self._drained))
        others = ", ".join(sorted(nodes & self._closed - self._drained))
        said = [f"{drained} {'are' if ',' in drained else 'is'} drained"] if drained else []
        said += [f"{others} {'have' if ',' in others else 'has'} not the role index"] if others else []
        return f" ({'; '.join(said)})" if said else ""
