"""Begins copies: fills one on another node, from one that serves. Pure (R39).

Where that came to nothing before, it is tried again after a pause, on another node if there is one.
"""

from __future__ import annotations

from typing import Literal

from coordinator.builds.registry import BuildRegistry
from coordinator.copies.choosing import Choosing, Purpose
from coordinator.copies.held_back import HeldBack
from coordinator.copies.reports import CopyReports, Slice
from coordinator.core.instructions import Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.core.nodes import HeardNodes
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord


class Beginnings:
    """Begins copies, and remembers what came to nothing.

    Args:
        registry: whose dictionary is changed.
        held_back: on whose disk there is no room for a longer queue.
        room: bytes that stay free on a disk.
    """

    def __init__(
        self,
        registry: BuildRegistry,
        nodes: HeardNodes,
        reports: CopyReports,
        held_back: HeldBack,
        limits: CoreLimits,
        room: int,
    ) -> None:
        self._registry = registry
        self._dictionary = registry.dictionary
        self._nodes = nodes
        self._reports = reports
        self._held_back = held_back
        self._limits = limits
        self._room = room
        self._lost_on: dict[Slice, str] = {}
        self._failures: dict[Slice, dict[str, int]] = {}
        self._again_at: dict[Slice, int] = {}

    def choosing(self) -> Choosing:
        """A `Choosing` by what the dictionary and nodes say now."""
        limits, catalog = self._limits, self._dictionary.catalog
        return Choosing(catalog, self._nodes, self._reports, limits.copies_per_node, self._room)

    def note_lost(self, key: Slice, node: str) -> None:
        """A copy that counted was lost: its node is the first that gets one again."""
        self._lost_on[key] = node

    def note_failed(self, record: CopyRecord, now: int) -> None:
        """One that was begun has come to nothing."""
        failures = self._failures.setdefault((record.index, record.slice), {})
        pause = self._limits.copy_pause_ms << min(sum(failures.values()), 6)
        failures[record.node] = failures.get(record.node, 0) + 1
        self._again_at[record.index, record.slice] = now + pause

    def failures(self, key: Slice, node: str) -> int:
        """How often filling a copy of a slice on a node has come to nothing."""
        return self._failures.get(key, {}).get(node, 0)

    def note_counts(self, record: CopyRecord) -> None:
        """One that was begun counts: what came to nothing before it is forgotten."""
        for known in (self._failures, self._again_at, self._lost_on):
            known.pop((record.index, record.slice), None)

    def begin(
        self,
        index: IndexRecord,
        number: int,
        choosing: Choosing,
        now: int,
        purpose: Purpose = Purpose(),
    ) -> tuple[str, list[Instruction]]:
        """Begin a copy of a slice. Returns what it waits for, in words ("" when it is begun), and what
        follows."""
        key = index.id, number
        failures, lost_on = self._failures.get(key, {}), self._lost_on.get(key, "")
        if now < self._again_at.get(key, 0):
            return f"the end of a pause: {sum(failures.values())} attempts came to nothing", []
        if (disk := self._held_back.disk(index, number)) is not None:
            return f"room on {disk.words}: its queue is kept while a copy is filled", []
        source, words = choosing.source(index, number)
        if source is None:
            return words, []
        node, words = choosing.target(index, number, source.bytes, failures, lost_on, purpose)
        if not node:
            return words, []
        why: Literal["lost", "wanted", "moved"] = "lost" if node == lost_on else "wanted"
        record = CopyRecord(
            id=f"c{self._dictionary.number()}",
            index=index.id,
            slice=number,
            node=node,
            source=source.node,
            need=source.horizon,
            incarnation=self._registry.incarnation(index.keyspace),
            created_at=now,
            why="moved" if purpose.replaces else why,
            replaces=purpose.replaces,
            rebalance=purpose.rebalance,
            rate=purpose.rate,
        )
        self._dictionary.put(record)
        choosing.begun(record, source.bytes)
        place = f", to take the place of the one on node {record.replaces}" if record.replaces else ""
        text = f"{self.words(record)} is filled from node {source.node}{place}"
        return "", [Note("info", "copy-begun", index.name, text)]

    def give_up(
        self, record: CopyRecord, why: str, level: Literal["info", "warning"] = "warning"
    ) -> list[Instruction]:
        """One that is being filled is not wanted any more, or cannot be had."""
        self._dictionary.delete(f"copy/{record.id}")
        text = f"{self.words(record)} is given up: {why}"
        return [Note(level, "copy-given-up", self.name(record.index), text)]

    def words(self, record: CopyRecord) -> str:
        """A copy, in words."""
        return f"copy {record.id} of slice {record.slice} of {self.name(record.index)} on node {record.node}"

    def name(self, id_: str) -> str:
        """Of an index; its id when it is gone."""
        index = self._dictionary.catalog.index(id_)
        return index.name if index else id_
