"""What must always hold in the simulated world: one checker for each invariant of ARCHITECTURE.md, and one
for liveness. Each raises `BrokenError` with its name; what the code under test asserts itself comes as
`InvariantViolationError`.

    Untorn               every commit, and every scan, is the source at its timestamp: `committed`, `scanned`
    Monotonic            a session never goes back unless it is told: `monotonic`
    Stable               all pages of a scan come from one snapshot: `paged`
    Mirror               forward entries are the inverse of the back index, at every commit: `committed`
    Published            a published number is held by every slice, but for restarts: `published`
    Contiguous           what a slice has applied only grows, but for crashes and rollbacks: `committed`
    BackfillIsInvisible  an index under build is the source at its timestamp, too: `committed`
    NothingSilent        what cannot be indexed is in the ledger of its slice, and nothing else: `committed`
    Loaded               an index has all that there was when it was asked for, and a build fails for what
                         retention took when it needed that and had not read it, and only then, and tells
                         from where on it could read: `scanned`, `World.wrote`, `World.looked`
    Parted               a build that begins has the splits, and as many slices, as the definition of its
                         index asks for then: `World._begun`
    Stuck                after the heal everything drains: `World._drain`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import product
from typing import TYPE_CHECKING, Any

from coordinator.core.nodes import HeardNode
from indexer.hosting.slice_runner import SliceRunner
from indexer.store.interface import UNNUMBERED, Applied, StoreSnapshot
from keytide.catalog.history import History
from keytide.catalog.table_origin import TableOrigin
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import HeartbeatChanges, NodeHeartbeat, SliceStatus
from tests.simulation.source import IDS, PARTITIONS, Fold, Layout, Log, Source, in_full, rows_shown
from tests.simulation.tables import place_of

if TYPE_CHECKING:
    from tests.simulation.nodes import SimNode

Rows = dict[bytes, bytes]
Begin = Mapping[int, int]
"""Partition -> the first offset that a build could read."""


class BrokenError(Exception):
    """An invariant is broken in the simulated world.

    Attributes:
        where: (node, index, slice) or the like.
        ids: documents that are wrong.
    """

    def __init__(self, name: str, story: str, ids: Iterable[bytes] = ()) -> None:
        super().__init__(f"{name}: {story}")
        self.name = name
        self.ids = sorted(set(ids))


class Oracle:
    """What an index must hold at a timestamp, said naively: the newest versions below it."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def changed(self) -> bool:
        """Whether the source has lost anything."""
        return bool(self._source.lost)

    def folds(self, timestamp: Timestamp) -> list[list[Fold]]:
        """For each partition the folds that its place may mean: one, unless the epoch is not known."""
        found: list[list[Fold]] = []
        for partition in range(PARTITIONS):
            place = timestamp.place(partition)
            log = self._source.logs[partition]
            if not self._source.lost:
                if place.offset > log.end:
                    raise BrokenError("Untorn", f"{timestamp} is past the end {log.end} of {partition}")
                found.append([log.folds[place.offset]])
                continue
            logs: list[Log] = self._source.branches(timestamp.topic_id, partition, place)
            if not logs:
                raise BrokenError("Untorn", f"{place} of partition {partition} is on no branch")
            folds = [one.folds[min(place.offset, one.end)] for one in logs]
            found.append([fold for n, fold in enumerate(folds) if fold not in folds[:n]])
        return found

    def difference(
        self,
        rows: Rows,
        timestamp: Timestamp,
        layout: Layout,
        number: int | None = None,
        muted: Set[bytes] = frozenset(),
        begins: Sequence[Begin] = (),
        *,
        full: bool = False,
    ) -> str | None:
        """How `rows` of one slice, or of all of an index, differ from the source at `timestamp`, but for the
        documents `muted`; None when they do not.

        Args:
            number: of the slice.
            begins: by slice, from where on its build could read (R29); empty: from everywhere.
            full: they are entries in full, as scans show them.
        """
        numbers = range(layout.slices) if number is None else (number,)
        want: Rows = {}
        for choice in product(*self.folds(timestamp)):
            want = {
                key: value
                for fold in choice
                for version in fold.values()
                for one in numbers
                if not begins or version.offset >= begins[one].get(version.partition, 0)
                for row in version.rows_in(layout)[one]
                for key, value in (in_full(*row) if full else row,)
                if version.id not in muted
            }
            if rows == want:
                return None
        missing = sorted(want.keys() - rows.keys())
        extra = sorted(rows.keys() - want.keys())
        wrong = sorted(key for key in want.keys() & rows.keys() if want[key] != rows[key])
        return f"missing {missing}, extra {extra}, wrong value {wrong}"

    def sizes(self, timestamp: Timestamp, begin: Begin) -> list[int]:
        """How many rows there may be at a timestamp, in an index whose build could read from `begin` on."""
        return [
            sum(
                rows_shown(version.rows)
                for fold in choice
                for version in fold.values()
                if version.offset >= begin.get(version.partition, 0)
            )
            for choice in product(*self.folds(timestamp))
        ]

    def skips(
        self,
        timestamp: Timestamp,
        layout: Layout,
        number: int,
        begin: Begin,
        origin: TableOrigin | None = None,
    ) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Lines that the ledger of a slice must have and may have, of the branch that is known.

        Args:
            begin: from where on its build could read.
            origin: the table that its index began with.
        """
        must: set[tuple[int, int]] = set()
        may: set[tuple[int, int]] = set()
        for partition, folds in enumerate(self.folds(timestamp)):
            must |= {
                place_of(version, origin, timestamp.topic_id)
                for version in folds[0].values()
                if version.made_in(layout).skip[number] is not None
                and version.offset >= begin.get(partition, 0)
            }
            logs = self._source.branches(timestamp.topic_id, partition, timestamp.place(partition))
            may |= {
                place_of(version, origin, timestamp.topic_id)
                for log in logs
                for version in log.records[: timestamp.offset(partition)]
                if version.made_in(layout).skip[number] is not None
            }
        return must, may


class Checkers:
    """Watches commits, published numbers and scans."""

    def __init__(self, source: Source) -> None:
        self._beats: dict[tuple[str, int, int], Sequence[SliceStatus]] = {}
        self.followed = 0
        self.oracle = Oracle(source)
        self._numbers: dict[tuple[int, int], dict[int, int]] = {}
        self._holders: dict[tuple[str, int, int], list[tuple[int, Any]]] = {}
        self._published: dict[str, tuple[int, int]] = {}
        self.asked: dict[str, dict[int, int]] = {}
        """Index -> where the source ended when it was asked to be built (R24)."""
        self.origin: Callable[[str], TableOrigin | None] = lambda build: None
        """Build -> the table that it began with."""
        self.begin: Callable[[str], Begin] = lambda build: {}
        """Build -> from where on it could read (R29)."""
        self.begins: Callable[[str], Sequence[Begin]] = lambda name: ()
        """Name of an index -> the same of the build of each slice; empty: from everywhere."""
        self.layout: Callable[[str], Layout] = lambda name: source.layout
        """Name of an index -> how it parts its entries."""
        self.commits = 0
        self.scans = 0

    def committed(
        self,
        name: str,
        layout: Layout,
        number: int,
        before: Applied,
        snapshot: StoreSnapshot,
        valid_from: Timestamp | None,
        muted: Set[bytes] = frozenset(),
        corrected: bool = False,
    ) -> None:
        """After each commit of a slice.

        Args:
            layout: of its index.
            number: of the slice.
            valid_from: from where on equality with the source is promised (R25); None when not yet known.
            muted: documents that were spoiled (`tests.simulation.repairs`), and are not looked at.
            corrected: a repair's commit, which changes what is there at one timestamp.
        """
        applied = snapshot.applied
        self.commits += 1
        if not applied.timestamp.covers(before.timestamp):
            raise BrokenError(
                "Contiguous", f"{name} went from {before.timestamp} back to {applied.timestamp}"
            )
        self._one_timestamp_per_number(name, applied)
        rows: Rows = {key: value for block in snapshot.rows() for key, value in block}
        rows = without(rows, muted)
        inverse = {
            key + docid for docid, held in snapshot.back_rows() for key in held.keys if docid not in muted
        }
        if rows.keys() != inverse:
            story = f"only forward {sorted(rows.keys() - inverse)}, only back {sorted(inverse - rows.keys())}"
            raise BrokenError("Mirror", f"{name}: {story}")
        moved = applied.timestamp != before.timestamp or applied.building or corrected
        if not moved or valid_from is None or not applied.timestamp.covers(valid_from):
            return
        if applied.building and self.oracle.changed:
            return  # what was read while the source changed under it is read again (R28)
        folds = self.oracle.folds(applied.timestamp)
        begin = self.begin(applied.build)
        begins = [begin] * layout.slices if begin else ()
        difference = self.oracle.difference(rows, applied.timestamp, layout, number, muted, begins)
        if difference:
            kind = "BackfillIsInvisible" if applied.building else "Untorn"
            raise BrokenError(kind, f"{name} at {applied.timestamp}: {difference}", _ids(difference))
        lines = {(line.partition, line.offset) for line in snapshot.skips(1_000)}
        must, may = self.oracle.skips(applied.timestamp, layout, number, begin, self.origin(applied.build))
        if all(len(some) == 1 for some in folds) and not must <= lines <= may:
            story = f"missing {sorted(must - lines)}, more than there are {sorted(lines - may)}"
            raise BrokenError("NothingSilent", f"{name} at {applied.timestamp.offsets()}: ledger {story}")

    def held(self, node: SimNode, incarnation: int, number: int, key: tuple[str, int]) -> None:
        """A slice has acknowledged a number."""
        runner = node.hosting.runners.get(key)
        self._holders.setdefault((*key, number), []).append((incarnation, runner))

    def beat(self, message: NodeHeartbeat | HeartbeatChanges, statuses: Sequence[SliceStatus]) -> None:
        """A node sends a heartbeat, which stands for these."""
        if message.sequence >= 0:
            self._beats[message.node, message.started_at, message.sequence] = statuses

    def heard(self, node: HeardNode) -> None:
        """The leader has heard of a node, and has this of it now (R53)."""
        beat = node.heartbeat
        self.followed += 1
        if beat.slices != self._beats[beat.node, beat.started_at, beat.sequence]:
            raise BrokenError("Heard", f"heartbeat {beat.sequence} of {beat.node} is put together wrongly")

    def published(
        self,
        index: str,
        number: int,
        history: History,
        slices: Iterable[int],
        running: Callable[[SliceRunner], bool],
    ) -> None:
        """A number is offered to scans: every slice holds it, unless it restarted since, or a newer number
        was published before.

        Args:
            history: in which it is published.
            slices: those that serve: not the ones that are lost.
            running: whether a slice still lives as it was.
        """
        if (history.incarnation, number) <= self._published.get(index, (0, -1)):
            return
        self._published[index] = (history.incarnation, number)
        for one in slices:
            holders = [
                (incarnation, runner)
                for incarnation, runner in self._holders.get((index, one, number), ())
                if history.number_holds(number, incarnation)
            ]
            name = f"{index}/{one}"
            if not holders:
                raise BrokenError("Published", f"{number} of {index}, which {name} has never held")
            for incarnation, runner in holders:
                # (A number from before a rollback may have made room for one that the rollback voided.)
                if incarnation < history.incarnation or runner is None or not running(runner):
                    continue
                reading = runner.ring.acquire(number)
                if reading is not None:
                    reading.release()
                elif number >= runner.ring._published and runner.core.incarnation == incarnation:
                    story = f"{name} acknowledged {number} and holds {runner.ring.numbers()}"
                    raise BrokenError("Published", story)

    def scanned(self, name: str, rows: Rows, at: Timestamp, muted: Set[bytes] = frozenset()) -> None:
        """A stable scan of a whole index, or all pages of one together."""
        self.scans += 1
        difference = self._scan_difference(name, rows, at, muted)
        if difference:
            raise BrokenError("Untorn", f"scan of {name} at {at}: {difference}", _ids(difference))
        asked = Timestamp.of(self.asked.get(name, {}))
        if not self.oracle.changed and not at.covers(asked):
            raise BrokenError("Loaded", f"{name} is READY at {at}, and was to be built from {asked}")

    def counted(self, name: str, count: int, at: Timestamp) -> None:
        """A stable count of a whole index."""
        self.scans += 1
        begins = self.begins(name) or [{}]
        if any(begin != begins[0] for begin in begins):
            return  # (a slice was built anew since: what lies in which is not counted)
        sizes = self.oracle.sizes(at, begins[0])
        if count not in sizes:
            raise BrokenError("Untorn", f"count of {name} at {at}: {count}, not {sizes}")

    def paged(self, name: str, rows: Rows, at: Timestamp, muted: Set[bytes] = frozenset()) -> None:
        """All pages of a scan together are one snapshot."""
        self.scans += 1
        difference = self._scan_difference(name, rows, at, muted)
        if difference:
            raise BrokenError("Stable", f"pages of {name} at {at}: {difference}", _ids(difference))

    def _scan_difference(self, name: str, rows: Rows, at: Timestamp, muted: Set[bytes]) -> str | None:
        layout, begins = self.layout(name), self.begins(name)
        return self.oracle.difference(without(rows, muted), at, layout, None, muted, begins, full=True)

    def monotonic(self, session: str, seen: Timestamp | None, at: Timestamp) -> None:
        """What a session sees does not go back."""
        if seen is not None and not at.covers(seen):
            raise BrokenError("Monotonic", f"session {session} has seen {seen} and is shown {at}")

    def _one_timestamp_per_number(self, name: str, applied: Applied) -> None:
        if applied.number == UNNUMBERED:
            return
        offsets = applied.timestamp.offsets()
        known = self._numbers.setdefault((applied.number, applied.incarnation), offsets)
        if known != offsets:
            raise BrokenError("Untorn", f"{name}: number {applied.number} is {offsets} and {known}")


def without(rows: Rows, muted: Set[bytes]) -> Rows:
    """The rows of all other documents."""
    ends = tuple(muted)
    return {key: value for key, value in rows.items() if not key.endswith(ends)} if ends else rows


def _ids(difference: str) -> list[bytes]:
    """Document ids that a difference names."""
    return [docid for docid in IDS if docid.decode() in difference]
