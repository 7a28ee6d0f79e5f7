"""Slices of READY indexes whose data is lost, and the builds that bring it back. Pure.

Theory of operation. A node says that a slice is LOST when it cannot go on from what it has: its folder is
gone or damaged, its queue no longer reaches back to its position, its base cannot step back as far as a
rollback went. While another copy of the slice is left it is filled from that (`coordinator.copies`). When
every copy that counts is lost, or on a node that is not expected back, the slice is queued for a *rebuild*:
a build that fills these slices only, while the others serve (docs/adr/0013). What is lost within
`rebuild_wait_ms` goes into one build per keyspace, with one read of the source. It fills all copies of a
slice that count, and is over when one of them serves: what is still lost is filled from that.

A copy may be there again before the rebuild begins: its node came back, or it was being filled and had got
all it needed. Then that one is kept, and the rebuild leaves the slice out (R46).

A rebuild that fails is tried again after a pause that doubles each time; the count is kept in its record, so
a new leader goes on counting. When it has failed too often, the index becomes FAILED and says so: an index
that lacks a slice answers hardly any scan, and only a person can know what is wrong.

A slice that loses its data while it is built begins again with its whole build.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.builds.completion import words
from coordinator.builds.registry import FINAL, BuildLimits
from coordinator.builds.retirement import fail_index
from coordinator.core.instructions import Instruction, Note
from coordinator.core.nodes import HeardNodes
from coordinator.sources.table_origins import origin_of
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.model.timestamp import Timestamp

Slice = tuple[str, int]
"""(index id, number)."""


class Rebuilds:
    """Watches slices, queues rebuilds and ends them.

    Args:
        builds: which carries them through.
        nodes: what they say of their slices.
        limits: settings.

    Attributes:
        ended: rebuilds that brought their slices back in this term.
    """

    def __init__(self, builds: Builds, nodes: HeardNodes, limits: BuildLimits) -> None:
        self._builds = builds
        self._registry = builds.registry
        self._nodes = nodes
        self._limits = limits
        self.ended = 0
        self._checked_at = 0
        self._since: dict[Slice, int] = {}
        self._lost_in_build: dict[tuple[str, str, int], int] = {}

    def tick(self, now: int) -> list[Instruction]:
        """Look at all slices, now and then."""
        if now - self._checked_at < self._limits.rebuild_check_ms:
            return []
        self._checked_at = now
        return [*self._under_way(now), *self._collect(now)]

    # --- builds under way -----------------------------------------------------------------------------------

    def _under_way(self, now: int) -> list[Instruction]:
        out: list[Instruction] = []
        lost: dict[tuple[str, str, int], int] = {}
        for record in self._registry.all():
            if record.state == "QUEUED" and record.rebuild:
                out += self._spare(record, now)
            if (
                record.state not in ("BACKFILL", "PAUSED", "CATCHUP")
                or record.keyspace in self._registry.halted
            ):
                continue
            for index, number in self._to_fill(record):
                if (index.id, number) in self._nodes.lost:
                    key = (record.id, index.id, number)
                    lost[key] = self._lost_in_build.get(key, now)
            late = [key for key, since in lost.items() if key[0] == record.id and self._late(since, now)]
            if late:
                where = ", ".join(f"slice {number} of {index}" for _, index, number in late)
                out += self._builds.begin_again(record, f"{where} lost what it had got", now)
            elif record.state == "CATCHUP" and record.rebuild and self._serve(record):
                self.ended += 1
                out += self._builds.completion.rebuilt(record, now)
        self._lost_in_build = lost
        return out

    def _spare(self, record: BuildRecord, now: int) -> list[Instruction]:
        """Leave slices that serve again out of a rebuild that has not begun; not those that serve what a
        rebuild has left that was given up."""
        if self._registry.run(record.id).preparing:
            return []
        incarnation = self._registry.incarnation(record.keyspace)
        serve = {
            (index.id, number)
            for index, number in self._to_fill(record)
            if number not in self._registry.half_rebuilt(index)
            for node in (index.placement[number] if index.placement else ())
            if self._nodes.copy_serves(node, index.id, number, incarnation)
        }
        if not serve:
            return []
        left = {id_: [n for n in numbers if (id_, n) not in serve] for id_, numbers in record.slices.items()}
        left = {id_: numbers for id_, numbers in left.items() if numbers}
        if not left:
            return self._registry.cancel(record, "its slices serve again", now)
        self._registry.put(replace(record, indexes=list(left), slices=left))
        return []

    def _to_fill(self, record: BuildRecord) -> Iterator[tuple[IndexRecord, int]]:
        """The slices that a build is to fill, each with its index."""
        for index in self._registry.indexes(record):
            if record.rebuild or (index.build == record.id and index.state in ("BUILDING", "PAUSED")):
                for number in record.slices_of(index):
                    yield index, number

    def _serve(self, record: BuildRecord) -> bool:
        """Whether every slice of a rebuild is live past what it had to reach, on some replica."""
        target = record.load_timestamp.merge_max(record.final_timestamp or Timestamp())
        incarnation = self._registry.incarnation(record.keyspace)
        return all(
            any(
                status.state == "LIVE"
                and status.number >= 0
                and status.incarnation == incarnation
                and status.timestamp.covers(target)
                for status in self._nodes.said(index.id, number)
            )
            for index, number in self._to_fill(record)
        )

    # --- collecting -----------------------------------------------------------------------------------------

    def _collect(self, now: int) -> list[Instruction]:
        """Queue rebuilds of what is lost, one for each keyspace (and table that its data began with)."""
        wanted: dict[tuple[str, str], dict[Slice, BuildRecord | None]] = {}
        since: dict[Slice, int] = {}
        for index in self._registry.dictionary.catalog.indexes():
            if index.state != "READY" or index.replaced_by or index.keyspace in self._registry.halted:
                continue
            for number in range(index.slices):
                key = (index.id, number)
                if key not in self._nodes.lost and number not in index.slice_builds:
                    continue
                last = self._registry.last_rebuild(*key)
                if not self._needed(index, number, last):
                    continue
                since[key] = self._since.get(key, now)
                if last is None or last.state == "READY" or now >= self._again_at(last):
                    table = index.build if origin_of(self._registry.dictionary.catalog, index) else None
                    wanted.setdefault((index.keyspace, table or ""), {})[key] = last
        self._since = since
        out: list[Instruction] = []
        for (keyspace, _), found in sorted(wanted.items()):
            if now - min(since[key] for key in found) >= self._limits.rebuild_wait_ms:
                out += self._request(keyspace, found, now)
        return out

    def _needed(self, index: IndexRecord, number: int, last: BuildRecord | None) -> bool:
        """Whether a slice has nothing to go on from and no build that is to bring it."""
        if last is not None and last.state not in FINAL:
            return False
        if self._nodes.has_whole(index.id, number):
            return False  # a copy that is about to count, or may come back and do so
        if (index.id, number) in self._nodes.lost:
            return True
        return (
            last is not None and last.state != "READY" and index.slice_builds.get(number) == last.id
        )  # a rebuild had begun to fill it, and was given up

    def _request(self, keyspace: str, found: dict[Slice, BuildRecord | None], now: int) -> list[Instruction]:
        out: list[Instruction] = []
        failed = {
            key: last for key, last in sorted(found.items()) if last is not None and last.state != "READY"
        }
        for (id_, number), last in failed.items():
            if last.attempt >= self._limits.restarts:
                out += self._fail(id_, number, last, now)
        slices: dict[str, list[int]] = {}
        attempt = 0
        for id_, number in sorted(found):
            index = self._registry.dictionary.catalog.index(id_)
            if index is not None and index.state == "READY":  # one that failed needs none of its slices
                slices.setdefault(id_, []).append(number)
                attempt = max(attempt, failed[id_, number].attempt + 1 if (id_, number) in failed else 0)
        first = self._registry.dictionary.catalog.index(min(found)[0])
        origin = origin_of(self._registry.dictionary.catalog, first) if first else None
        record = self._builds.request_rebuild(keyspace, slices, now, attempt, origin)
        if record is not None:
            text = f"build {record.id} is to rebuild {words(record, self._registry.indexes(record))}"
            out.append(Note("warning", "rebuild-queued", record.id, text))
        return out

    def _fail(self, index: str, number: int, last: BuildRecord, now: int) -> list[Instruction]:
        record = self._registry.dictionary.catalog.index(index)
        if record is None or record.state != "READY":
            return []  # another of its slices was first
        why = (
            last.error if last.state == "FAILED" else f"the rebuild was cancelled, {last.error}".rstrip(", ")
        )
        reason = (
            f"slice {number} lost its data and could not be rebuilt in {last.attempt + 1} attempts; at last: "
            f"{why}; build the index again"
        )
        left = self._builds.leave_rebuilds(record, f"index {record.name} failed: {reason}", now)
        return [*left, *fail_index(self._registry.dictionary, record, reason)]

    def _late(self, since: int, now: int) -> bool:
        return now - since >= self._limits.lost_grace_ms

    def _again_at(self, last: BuildRecord) -> int:
        """When a rebuild that was given up may be tried again."""
        return last.finished_at + (self._limits.rebuild_pause_ms << min(last.attempt, 6))
