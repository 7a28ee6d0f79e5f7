"""What must always hold in the simulated world (DESIGN §5). Each checker raises `BrokenError` with its name.

Mirror and the asserted halves of the others are checked by the code under test itself: the store checks
Mirror after every commit, the core asserts Contiguous, Untorn and Monotonic (`InvariantViolationError`).
"""

from __future__ import annotations

from indexer.snapshots import SnapshotRing
from indexer.store.interface import UNNUMBERED, Applied, StoreSnapshot
from keytide.timestamp import Timestamp
from tests.simulation.oracle import History, entries_at, skips_at


class BrokenError(Exception):
    """An invariant is broken in the simulated world."""

    def __init__(self, name: str, story: str) -> None:
        super().__init__(f"{name}: {story}")
        self.name = name


class Checkers:
    """Watches commits and published numbers.

    Args:
        history: the source, as the oracle reads it.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._numbers: dict[int, dict[int, int]] = {}
        self.commits = 0
        self.scans = 0

    def committed(
        self,
        name: str,
        before: Timestamp,
        snapshot: StoreSnapshot,
        place: tuple[int, int],
        valid_from: Timestamp | None,
    ) -> None:
        """After each commit of a slice: it is exactly the source at its timestamp, numbered or not.

        Args:
            place: (slice, slices).
            valid_from: from where on that is promised (R25); None when not yet known.
        """
        applied = snapshot.applied
        self.commits += 1
        if not applied.timestamp.covers(before):
            raise BrokenError("Contiguous", f"{name} went from {before} back to {applied.timestamp}")
        self._one_timestamp_per_number(name, applied)
        moved = applied.timestamp != before or applied.building
        if moved and valid_from is not None and applied.timestamp.covers(valid_from):
            self._untorn(name, snapshot, place)

    def published(self, name: str, number: int, ring: SnapshotRing, restarted: bool) -> None:
        """A number is offered to scans: the slice holds it, unless it restarted since (Published <= held)."""
        reading = ring.acquire(number)
        if reading is None and not restarted:
            raise BrokenError("Published", f"{name} acknowledged {number} and holds {ring.numbers()}")
        if reading is not None:
            reading.release()

    def scanned(
        self, name: str, number: int, rows: dict[bytes, bytes], at: Timestamp, place: tuple[int, int]
    ) -> None:
        """A stable scan of a published number, long after its commit."""
        self.scans += 1
        want = entries_at(self._history, at.offsets(), *place)
        if rows != want:
            raise BrokenError("Stable", f"{name} at {number}: {_difference(rows, want)}")

    def reached_the_end(self, name: str, applied: Applied, ends: dict[int, int]) -> None:
        """After faults have healed: everything has drained (liveness)."""
        if applied.number == UNNUMBERED or applied.timestamp.offsets() != ends:
            raise BrokenError("Stuck", f"{name} is at {applied}, the source ends at {ends}")

    def _one_timestamp_per_number(self, name: str, applied: Applied) -> None:
        if applied.number == UNNUMBERED:
            return
        offsets = applied.timestamp.offsets()
        if self._numbers.setdefault(applied.number, offsets) != offsets:
            raise BrokenError(
                "Untorn", f"{name}: number {applied.number} is {offsets} and {self._numbers[applied.number]}"
            )

    def _untorn(self, name: str, snapshot: StoreSnapshot, place: tuple[int, int]) -> None:
        offsets = snapshot.timestamp.offsets()
        rows = {key: value for block in snapshot.rows() for key, value in block}
        want = entries_at(self._history, offsets, *place)
        if rows != want:
            raise BrokenError("Untorn", f"{name} at {offsets}: {_difference(rows, want)}")
        lines = {(line.partition, line.offset) for line in snapshot.skips(1_000)}
        allowed = skips_at(self._history, offsets, *place)
        if not lines <= allowed:
            raise BrokenError("NothingSilent", f"{name} at {offsets}: skip lines {sorted(lines - allowed)}")


def _difference(rows: dict[bytes, bytes], want: dict[bytes, bytes]) -> str:
    missing = sorted(want.keys() - rows.keys())
    extra = sorted(rows.keys() - want.keys())
    wrong = sorted(key for key in want.keys() & rows.keys() if want[key] != rows[key])
    return f"missing {missing}, extra {extra}, wrong value {wrong}"
