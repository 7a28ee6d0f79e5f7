"""When a new layout of an index takes over its name, and when the old one goes. Pure (R44, R45).

Theory of operation. A new layout is made by a build, as an index of its own that nobody can name yet
(`IndexRecord.replaces`): it reads the source, follows its own queues, and is verified. It takes over the name
when it is READY and what is published of it is as new as anything that may be of the old one: no session sees
older states than before. One record says so, the old one's (`IndexRecord.replaced_by`), so that every reader
of the dictionary sees the one or the other. A page token names the layout that its scan began with, and never
the snapshot number decides which is read: the old one is fed and served on. It is dropped when

* every node was heard to have read that it was replaced (that is written down), and all nodes with copies of
  it have said, having read that, that nobody reads from them;
* or its grace has ended, which is longer than a lease (`coordinator.leave_after_s`);
* or it serves no longer.

A new layout whose build was cancelled vanishes; one that has failed stays, to be looked at, until its index
is replaced or dropped. When the source is rolled back to before the end of the build of a layout that has
taken over, the old one, if it still serves, has its name again until the new one is built once more. Whatever
becomes of the layout that another one was to replace, it replaces the one that bears the name then.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.builds.retirement import fail_index
from coordinator.copies.grace import Grace
from coordinator.copies.reports import CopyReports
from coordinator.core.events import DictionaryWritten, Event, Tick
from coordinator.core.instructions import Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.layouts.dropping import drop
from coordinator.sources.layout_sources import forgotten_since
from coordinator.stability.issuer import TimestampIssuer
from keytide.catalog.records import IndexRecord

COMING: Final = frozenset({"DEFERRED", "BUILDING", "PAUSED", "READY"})
"""States of a layout that may take over a name yet."""


class Layouts:
    """Carries new layouts on.

    Args:
        builds: whose dictionary is changed.
        stability: with what nodes say.

    Attributes:
        waiting: id of a layout -> what it waits for, in words, before it takes over the name, or goes.
    """

    def __init__(self, builds: Builds, stability: TimestampIssuer, limits: CoreLimits) -> None:
        self.waiting: dict[str, str] = {}
        self._builds = builds
        self._dictionary = builds.registry.dictionary
        self._nodes = stability.nodes
        self._reports = CopyReports(builds.registry, stability)
        self._check_ms = limits.copy_check_ms
        self._checked_at = 0
        self._grace = Grace[str](limits)
        self._pending = True
        """A layout is to take over a name."""

    def handle(self, event: Event) -> list[Instruction]:
        """One event; what follows."""
        match event:
            case DictionaryWritten(end):
                self._reports.written(end)
                return []
            case Tick(now) if self._pending or now - self._checked_at >= self._check_ms:
                return self._look(now)  # (at once where somebody waits for a build, to read it)
            case _:
                return []

    def _look(self, now: int) -> list[Instruction]:
        self._checked_at = now
        self.waiting = {}
        names: dict[str, list[IndexRecord]] = {}
        for one in self._dictionary.catalog.indexes():
            if one.state != "DROPPING":
                names.setdefault(one.name, []).append(one)
        several = [
            mine for mine in names.values() if len(mine) > 1 or mine[0].replaces or mine[0].replaced_by
        ]
        self._grace.look((one.id for mine in several for one in mine if one.replaced_by), now)
        out: list[Instruction] = []
        for mine in several:
            if mine[0].keyspace not in self._builds.registry.halted:
                out += self._of_name(mine, now)
        catalog = self._dictionary.catalog
        self._pending = any(
            one.replaces and not one.replaced_by and one.state in COMING and not catalog.bears_name(one)
            for one in catalog.indexes()
        )
        return out

    def _of_name(self, layouts: list[IndexRecord], now: int) -> list[Instruction]:
        """The next step of all layouts with one name."""
        catalog = self._dictionary.catalog
        bearer = next((one for one in layouts if catalog.bears_name(one)), None)
        if bearer is None or bearer.state != "READY":
            serving = [one for one in layouts if one.replaced_by and one.state == "READY"]
            if serving:
                return self._give_back(max(serving, key=lambda one: one.number), layouts)
        if bearer is None:  # nobody has what they were to replace
            newest = max(layouts, key=lambda one: one.number)
            self._dictionary.put(replace(newest, replaces="", took_over=False, replaced_by=""))
            return []
        out: list[Instruction] = []
        for one in layouts:
            index = catalog.index(one.id)  # (a step before may have changed it)
            if index is None or index.state == "DROPPING" or index.id == bearer.id:
                continue
            out += self._old(index, now) if index.replaced_by else self._new(index, bearer, layouts, now)
        return out

    def _give_back(self, index: IndexRecord, layouts: list[IndexRecord]) -> list[Instruction]:
        """A layout that still serves has its name again; later ones are to replace it when they are built."""
        self._dictionary.put(replace(index, replaced_by="", replacement_read=False))
        for one in layouts:
            if one.number > index.number:
                again = replace(
                    one, replaces=index.id, took_over=False, replaced_by="", replacement_read=False
                )
                self._dictionary.put(again)
        text = f"index {index.name} is answered from {index.id} again: no later layout of it is READY"
        return [Note("warning", "layout-back", index.name, text)]

    # --- the new layout -------------------------------------------------------------------------------------

    def _new(
        self, index: IndexRecord, old: IndexRecord, layouts: list[IndexRecord], now: int
    ) -> list[Instruction]:
        """The next step of a layout that is to take over a name, which `old` bears."""
        catalog = self._dictionary.catalog
        later = [one for one in layouts if one.number > index.number and one.state != "FAILED"]
        if any(not one.replaced_by for one in later):
            out, _ = drop(self._builds, index, now)
            text = f"layout {index.id} of index {index.name} is given up: {later[-1].id} is newer"
            return [*out, Note("info", "layout-given-up", index.name, text)]
        if old.id != index.replaces:
            self._dictionary.put(replace(index, replaces=old.id))
            return []
        if index.state == "DEFERRED" and self._builds.registry.active(index) is None:
            out, _ = drop(self._builds, index, now)
            text = f"the new layout of index {index.name} is given up: its build was cancelled"
            return [*out, Note("info", "layout-given-up", index.name, text)]
        if index.state != "READY" or not self._reports.shows(index, old):
            built = index.state == "READY"
            self.waiting[index.id] = f"snapshots as new as those of {old.id}" if built else "its build"
            return []
        if lost := forgotten_since(catalog, old, index):
            return fail_index(self._dictionary, index, lost)
        # (Who reads the first of these only sees the old one still.)
        self._dictionary.put(replace(index, took_over=True))
        self._dictionary.put(replace(old, replaced_by=index.id, replacement_read=False))
        self._reports.changed(old.id, 0)
        text = (
            f"index {index.name} has a new layout, {index.id}, which answers scans from now on; {old.id} "
            "answers who reads from it already, and goes then"
        )
        return [Note("info", "index-replaced", index.name, text)]

    # --- the old one ----------------------------------------------------------------------------------------

    def _old(self, index: IndexRecord, now: int) -> list[Instruction]:
        """The next step of a layout whose name another one has taken over."""
        why = ""
        if index.state != "READY":
            why = f"it is {index.state}"
        elif over := self._grace.over(index.id):
            why = over
        elif index.replacement_read and self._unused(index):
            why = "nobody reads from it any more"
        elif not index.replacement_read and self._reports.known(index.id, 0):
            index = replace(index, replacement_read=True)
            self._dictionary.put(index)
            self._reports.changed(index.id, 0)
        if not why:
            self.waiting[index.id] = self._grace.waits(index.id, "it")
            return []
        out, _ = drop(self._builds, index, now)
        text = f"layout {index.id} of index {index.name}, which was replaced, goes: {why}"
        return [*out, Note("info", "layout-goes", index.name, text)]

    def _unused(self, index: IndexRecord) -> bool:
        """Whether nobody reads from any of its copies, by words younger than that everybody knows."""
        for number in range(index.slices):
            for node in index.copies_kept(number):
                if self._nodes.gone(node):
                    continue
                if not self._reports.has_read(node, index.id, 0):
                    return False
                status = self._nodes.by_id[node].slice(index.id, number)
                if status is not None and status.leases:
                    return False
        return True
