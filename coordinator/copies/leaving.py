"""Copies that count no longer, until they are gone. Pure (R42, R43).

Theory of operation. A copy that leaves still answers pages whose tokens name it, and readers whose catalog is
older. It is gone when

* every node was heard to have read that it leaves (that is written down: from then on it leases nothing that
  nobody has leased), and its node has said, having read that, that nobody reads from it and no lease is left;
* or its grace has ended, which is longer than a lease: who has been silent all the time holds up nobody;
* or it has nothing any more, or its node is not expected back;

and, at that moment, another copy that counts holds what is published. When none that counts is left, it
counts again.
"""

from __future__ import annotations

from coordinator.builds.registry import BuildRegistry
from coordinator.copies.grace import Grace
from coordinator.copies.naming import acknowledged, counting_again, gone
from coordinator.copies.reports import CopyReports, Slice
from coordinator.core.instructions import Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.core.nodes import WHOLE, HeardNodes
from keytide.catalog.copies import LeavingCopy
from keytide.catalog.records import IndexRecord
from keytide.wire.messages import SliceStatus


class LeavingCopies:
    """Lets copies go.

    Args:
        registry: whose dictionary is changed.

    Attributes:
        waiting: node -> what the first of the copies that leave it waits for, in words.
    """

    def __init__(
        self, registry: BuildRegistry, nodes: HeardNodes, reports: CopyReports, limits: CoreLimits
    ) -> None:
        self.waiting: dict[str, str] = {}
        self._dictionary = registry.dictionary
        self._nodes = nodes
        self._reports = reports
        self._grace = Grace[tuple[Slice, str]](limits)

    def look(self, now: int) -> list[Instruction]:
        """Take the next step of all of them."""
        found = [
            ((index.id, number), node)
            for index in self._dictionary.catalog.indexes()
            for number, leaving in index.leaving.items()
            for node in leaving
        ]
        self._grace.look(found, now)
        out: list[Instruction] = []
        self.waiting = {}
        for key, node in found:
            index = self._reports.open(*key)
            if index is None:
                self.waiting.setdefault(node, self._reports.closed(*key))
            else:
                out += self._step(index, key[1], node)
        return out

    def _step(self, index: IndexRecord, number: int, node: str) -> list[Instruction]:
        key = (index.id, number), node
        copy = index.leaving[number][node]
        status = self._reports.said(node, index.id, number, copy.copy)
        lost = status is not None and status.state == "LOST"
        if self._left_alone(index, number, node, status):
            self._put(counting_again(index, number, node), number)
            text = f"{self._words(index, number, node)} counts again: no other one that does is left"
            return [Note("warning", "copy-counts", index.name, text)]
        holder = self._reports.holder(index, number, index.placement[number])
        slice_ = f"slice {number} of {index.name}"
        if holder is None:
            others = " or ".join(index.placement[number])
            words = f"a copy of {slice_} that holds what is published, on {others}, before this one goes"
            self.waiting.setdefault(node, words)
            return []
        why = ""
        if lost or self._nodes.gone(node):
            why = "it is lost" if lost else "its node is not expected back"
        elif over := self._grace.over(key):
            why = over
        elif self._unused(index, number, node, copy, status):
            why = "nobody reads from it any more"
        elif not copy.acknowledged and self._reports.known(index.id, number):
            self._put(acknowledged(index, number, node), number)
        if not why:
            self.waiting.setdefault(node, self._grace.waits(key, f"{slice_} there"))
            return []
        self._put(gone(index, number, node), number)
        text = f"{self._words(index, number, node)} is gone: {why}; node {holder} has what it had"
        return [Note("info", "copy-left", index.name, text)]

    def _put(self, index: IndexRecord, number: int) -> None:
        self._dictionary.put(index)
        self._reports.changed(index.id, number)

    def _left_alone(self, index: IndexRecord, number: int, node: str, status: SliceStatus | None) -> bool:
        """Whether a copy has what it is to have, and none that counts is expected to come back."""
        if status is None or status.state not in WHOLE or not self._nodes.by_id[node].live:
            return False
        return all(
            self._nodes.gone(one)
            or ((said := self._reports.counted(index, number, one)) is not None and said.state == "LOST")
            for one in index.placement[number]
        )

    def _unused(
        self, index: IndexRecord, number: int, node: str, copy: LeavingCopy, status: SliceStatus | None
    ) -> bool:
        """Whether nobody has anything of a copy, by a word that is younger than that everybody knows."""
        if not copy.acknowledged or status is None or status.leases:
            return False
        return self._reports.has_read(node, index.id, number)

    def _words(self, index: IndexRecord, number: int, node: str) -> str:
        return f"the copy of slice {number} of {index.name} on node {node}, which was leaving,"
