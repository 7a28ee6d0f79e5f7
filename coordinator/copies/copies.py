"""Keeps as many copies of each slice as its index is to have. Pure (R39, R41, R42, R43, R46, R48).

Theory of operation. Everything that must outlive this leader is in the dictionary: which copies of a slice
count (`IndexRecord.placement` and `copies`), which are being filled (`CopyRecord`), and which leave
(`IndexRecord.leaving`). Now and then all slices of READY indexes are looked at, and each gets the next step
that what nodes say allows:

* a copy that counts is taken out when its node says that it is LOST, or has been silent for `copy_after_ms`,
  or it holds back more of its slice's queue than it may (`held_back`); only while another one that counts
  holds what is published (`reports`), so the last one never is;
* where copies are missing, one is begun (`beginning`): on which node, and filled from which, is chosen
  (`choosing`) and written before the first byte is read, with the place in the queue from which it may need
  it. So it is with those that are to take the place of others (`moving`);
* one that is being filled counts from the write on that names it in the index and ends its `CopyRecord`; if
  it takes the place of another one, that leaves by the same write;
* it is given up when its node says LOST or stays silent, and another one under a new id follows; when its
  queue is kept for it alone on a disk of Kafka that is nearly full (`held_back`) and it has not all rows yet;
  when it is not wanted any more, unless it is whole and none that counts serves: it may be all that is left.
  When only the copy that it is filled from is gone, another one is named. What it may need of the queue never
  rises;
* where there are too many, one leaves, if another one holds what is published. What leaves is still read for
  a while (`leaving`).

A slice of which nothing is left is rebuilt from its source (`coordinator.builds.rebuild`). What a build fills
has no copy id. So the ids of a slice's copies go in the write that begins its rebuild, and what was being
filled is given up.

A rollback needs nothing here: both ends of a filling step back by themselves.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits, BuildRegistry
from coordinator.copies.beginning import Beginnings
from coordinator.copies.choosing import TURN, Choosing
from coordinator.copies.held_back import HeldBack
from coordinator.copies.leaving import LeavingCopies
from coordinator.copies.moving import Moves
from coordinator.copies.naming import counting, leaving, without
from coordinator.copies.reports import CopyReports, Slice
from coordinator.core.events import BuildPrepared, DictionaryWritten, Event, Tick
from coordinator.core.instructions import Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.core.nodes import WHOLE
from coordinator.core.queue_sizes import QueueSizes
from coordinator.stability.issuer import TimestampIssuer
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord

TOLD_AFTER_MS: Final = 5_000
"""A wait that is over before is nobody's business: a node was started again, another copy was on its way."""


class Copies:
    """Takes out, begins, follows and counts copies.

    Args:
        registry: whose dictionary is changed; slices that its rebuilds fill are left alone.
        stability: with what nodes say.
        limits, build_limits: settings.
        sizes: of queues.

    Attributes:
        held_back: what queues keep for copies.
        waiting: (index id, slice) that has fewer or more copies than it is to have, and nothing is done
            about it now -> what that waits for, in words.
        moves: what makes copies move.
    """

    def __init__(
        self,
        registry: BuildRegistry,
        stability: TimestampIssuer,
        limits: CoreLimits,
        build_limits: BuildLimits,
        sizes: QueueSizes,
    ) -> None:
        self.waiting: dict[Slice, str] = {}
        self._registry = registry
        self._dictionary = registry.dictionary
        self._nodes = stability.nodes
        self._reports = CopyReports(registry, stability)
        self._limits = limits
        self.held_back = HeldBack(
            self._dictionary.topics, self._nodes, self._reports, sizes, limits.queue_max_bytes
        )
        self._beginnings = Beginnings(
            registry, self._nodes, self._reports, self.held_back, limits, build_limits.node_disk_bytes
        )
        self._leaving = LeavingCopies(registry, self._nodes, self._reports, limits)
        self.moves = Moves(
            registry,
            self._nodes,
            self._reports,
            self._beginnings,
            self._leaving,
            build_limits.node_disk_bytes,
        )
        self._checked_at = 0
        self._waited: dict[tuple[str, str], int] = {}
        self._told: set[tuple[str, str]] = set()

    def handle(self, event: Event) -> list[Instruction]:
        """One event; what follows."""
        match event:
            case DictionaryWritten(end):
                self._reports.written(end)
                return []
            case BuildPrepared():
                return self._leave_to_builds()
            case Tick(now) if now - self._checked_at >= self._limits.copy_check_ms:
                self._checked_at = now
                return [*self._leave_to_builds(), *self._check(now)]
            case _:
                return []

    def _leave_to_builds(self) -> list[Instruction]:
        """Nothing is filled for an index that is not READY, nor of a slice that a rebuild has begun."""
        out: list[Instruction] = []
        catalog = self._dictionary.catalog
        for record in catalog.copies():
            of = catalog.index(record.index)
            if of is None or of.state != "READY":
                out += self._beginnings.give_up(record, "its index is not READY any more", level="info")
            elif record.slice in self._registry.half_rebuilt(of):
                out += self._beginnings.give_up(record, "the slice is rebuilt from its source")
        return out

    def _check(self, now: int) -> list[Instruction]:
        """Look at all slices."""
        out: list[Instruction] = []
        self.waiting = {}
        for record in self._dictionary.catalog.copies():
            index = self._reports.open(record.index, record.slice)
            out += self._follow(record, index, now) if index else []
        filled = self._dictionary.catalog.copies_of_slices()
        for key in dict.fromkeys((*self._slices(), *filled)):
            index = self._reports.open(*key)
            out += self._take_out(index, key[1], now) if index else []
            index = self._reports.open(*key)
            out += self._too_many(index, key[1], filled.get(key, [])) if index else []
        out += self._leaving.look(now)
        out += self._fill_up(now)
        out += self.moves.begin(now)
        return [*out, *self._tell(now)]

    def _slices(self) -> list[Slice]:
        """Those that have, or are to have, several copies."""
        return [
            (index.id, number)
            for index in self._dictionary.catalog.indexes()
            for number, nodes in enumerate(index.placement)
            if index.definition.replicas or len(nodes) > 1
        ]

    # --- copies that are being filled -----------------------------------------------------------------------

    def _follow(self, record: CopyRecord, index: IndexRecord, now: int) -> list[Instruction]:
        """The next step of a copy that is being filled."""
        status = self._reports.filled(record)
        if status is not None and status.state == "LOST":
            self._beginnings.note_failed(record, now)
            return self._beginnings.give_up(record, f"its node says that it is lost ({status.reason})")
        if self._nodes.gone(record.node):
            return self._beginnings.give_up(record, self._silent(record.node))
        if (why := self.moves.unwanted(record, index)) and self._reports.spare(record, index):
            return self._beginnings.give_up(record, why, level="info")
        if self._reports.caught_up(record, index):
            return self._count(record, index)
        if status is not None and status.state in WHOLE:
            return []  # it needs no other copy any more, and is about to count
        if kept := self.held_back.crowded(record, index, now):
            self._beginnings.note_failed(record, now)
            self.held_back.relieved(index, record.slice, now)
            why = f"{kept[0] / 1e6:,.0f} MB of its queue are kept for it alone on {kept[1].words}"
            return self._beginnings.give_up(record, f"{why}, which is nearly full")
        if self._reports.serves(index, record.slice, record.source) or self._nodes.unheard([record.source]):
            return []  # (who has begun to lead hears one node after the other)
        return self._replace_source(record, index)

    def _count(self, record: CopyRecord, index: IndexRecord) -> list[Instruction]:
        """From now on a copy serves, and is waited for."""
        now_so = counting(index, record)
        # The index comes first: who reads half of this write sees the copy named twice, not at all.
        self._dictionary.put(now_so)
        self._dictionary.delete(f"copy/{record.id}")
        self._reports.changed(index.id, record.slice)
        self._beginnings.note_counts(record)
        counted, wanted = len(now_so.placement[record.slice]), index.definition.replicas + 1
        text = f"{self._beginnings.words(record)} has caught up and counts: {counted} of {wanted} copies do"
        if record.replaces in index.placement[record.slice]:
            text += f"; the one on node {record.replaces} leaves"
        return [Note("info", "copy-counts", index.name, text)]

    def _replace_source(self, record: CopyRecord, index: IndexRecord) -> list[Instruction]:
        """Name another copy that it is filled from, if there is one. What it may need is told again before
        its first byte, and never rises (R39)."""
        source, words = self._beginnings.choosing().source(index, record.slice)
        if source is None:
            self.waiting[index.id, record.slice] = words
            return []
        need = min(record.need, source.horizon)
        self._dictionary.put(replace(record, source=source.node, need=need))
        text = (
            f"{self._beginnings.words(record)} is filled from node {source.node} now: the copy on node "
            f"{record.source} does not serve any more"
        )
        return [Note("warning", "copy-source-replaced", index.name, text)]

    # --- copies that count ----------------------------------------------------------------------------------

    def _take_out(self, index: IndexRecord, number: int, now: int) -> list[Instruction]:
        """One that has nothing any more, or whose node is not expected back, or that holds back too much of
        its queue, counts no longer, if another one has what it had (R43)."""
        nodes, key = index.placement[number], (index.id, number)
        for node in nodes if len(nodes) > 1 and key not in self._nodes.lost else ():
            status = self._reports.counted(index, number, node)
            lost = status is not None and status.state == "LOST"
            if lost or self._nodes.gone(node):
                holder = self._holder(index, number, node, "is replaced")
            else:
                ahead = self.held_back.ahead(index, number, node, now)
                holder = self._reports.holder(index, number, ahead)
            if holder is None:
                continue
            self._dictionary.put(without(index, number, node))
            self._reports.changed(*key)
            if lost:
                self._beginnings.note_lost(key, node)
            if status and lost:
                why = f"it is lost ({status.reason})"
            elif self._nodes.gone(node):
                why = self._silent(node)
            else:
                why = self._holds_back(index, number, node, now)
                self.held_back.relieved(index, number, now)
            text = (
                f"the copy of slice {number} of {index.name} on node {node} counts no longer: {why}; node "
                f"{holder} has what it had"
            )
            return [Note("warning", "copy-taken-out", index.name, text)]
        return []

    def _too_many(self, index: IndexRecord, number: int, filled: list[CopyRecord]) -> list[Instruction]:
        """One copy more than the slice is to have is given up, or leaves (R43): rather one that is being
        filled, then one that does not serve, then one on a node that may have none, then the last."""
        nodes, key = index.placement[number], (index.id, number)
        extra = [record for record in filled if record.replaces not in nodes]
        wanted = index.definition.replicas + 1
        if extra and len(nodes) + len(extra) > wanted:
            spare = [record for record in extra if self._reports.spare(record, index)]
            why = f"the slice is to have {wanted} copies"
            return self._beginnings.give_up(spare[-1], why, level="info") if spare else []
        if len(nodes) <= wanted or key in self._nodes.lost:
            return []
        closed = self._dictionary.catalog.closed()
        order = {
            one: (self._reports.serves(index, number, one), one not in closed, -place)
            for place, one in enumerate(nodes)
        }
        node = min(order, key=lambda one: order[one])
        if self._holder(index, number, node, "leaves") is None:
            return []
        self._dictionary.put(leaving(index, number, node))
        self._reports.changed(*key)
        text = (
            f"the copy of slice {number} of {index.name} on node {node} leaves: there are {len(nodes)}, and "
            f"are to be {wanted}"
        )
        return [Note("info", "copy-leaves", index.name, text)]

    def _holder(self, index: IndexRecord, number: int, node: str, what: str) -> str | None:
        """A node, other than this one, whose copy of a slice holds what is published (R43). `what` waits for
        that when there is none, in words."""
        others = [one for one in index.placement[number] if one != node]
        holder = self._reports.holder(index, number, others)
        if holder is None:
            self.waiting[index.id, number] = (
                f"a copy that holds what is published, on {' or '.join(others)}, before the one on node "
                f"{node} {what}"
            )
        return holder

    def _fill_up(self, now: int) -> list[Instruction]:
        """Begin copies where there are too few."""
        filled = self._dictionary.catalog.copies_of_slices()
        out: list[Instruction] = []
        choosing: Choosing | None = None
        for key in self._slices():
            index = self._reports.open(*key)
            if index is None or index.replaced_by or key in self._nodes.lost:
                continue
            nodes, mine = index.placement[key[1]], filled.get(key, [])
            if len(nodes) + sum(one.replaces not in nodes for one in mine) > index.definition.replicas:
                continue
            choosing = choosing or self._beginnings.choosing()
            words, begun = self._beginnings.begin(index, key[1], choosing, now)
            if words:
                self.waiting[key] = words
            out += begun
        return out

    # --- words ----------------------------------------------------------------------------------------------

    def _tell(self, now: int) -> list[Instruction]:
        """What copies wait for, once for each cause that lasts."""
        causes: dict[tuple[str, str], list[int]] = {}
        for (id_, number), words in sorted(self.waiting.items()):
            causes.setdefault((id_, words), []).append(number)
        self._waited = {cause: self._waited.get(cause, now) for cause in causes}
        self._told &= causes.keys()
        out: list[Instruction] = []
        for (id_, words), numbers in causes.items():
            if (id_, words) in self._told or now - self._waited[id_, words] < TOLD_AFTER_MS:
                continue
            self._told.add((id_, words))
            text = (
                f"slices {', '.join(map(str, numbers))} of {self._beginnings.name(id_)} have not the copies "
                f"that they are to have, and wait for {words}"
            )
            level: Literal["info", "warning"] = "info" if words == TURN else "warning"
            out.append(Note(level, "copy-waits", self._beginnings.name(id_), text))
        return out

    def _holds_back(self, index: IndexRecord, number: int, node: str, now: int) -> str:
        held = self.held_back.of(index, number, node)
        most = self.held_back.bound(index, number, node, now)
        disk = self.held_back.disk(index, number)
        if disk is not None and most != self.held_back.most:
            limit = f"its node is silent, and {disk.words} is nearly full"
        else:
            limit = (
                f"beyond another copy it may be {most / 1e6:,.0f} MB (setting coordinator.queue_max_bytes)"
            )
        return f"{held / 1e6:,.0f} MB of its queue are kept for it, and {limit}"

    def _silent(self, node: str) -> str:
        limit_s = self._limits.copy_after_ms // 1000
        return f"node {node} has been silent for more than {limit_s} s (setting coordinator.copy_after_s)"
