"""How large micro-batches are, and that drivers which are struck get on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.model.timestamp import Timestamp
from streaming.core.micro_batches import SettledBatch
from streaming.core.sizing import GROW, SHRINK, SizedBatch, Sizing, cut, documents
from streaming.drivers.outage import Outage
from tests.unit.kept_journal import KeptJournal

OFFSETS = st.dictionaries(st.integers(0, 5), st.integers(0, 1_000), min_size=1)


@given(OFFSETS, st.dictionaries(st.integers(0, 5), st.integers(0, 500)), st.integers(1, 2_000))
def test_a_piece_is_of_all_partitions_and_never_nothing(
    start: dict[int, int], lengths: dict[int, int], most: int
) -> None:
    planned = {p: offset + lengths.get(p, 0) for p, offset in start.items()}
    end = cut(start, planned, most)
    assert all(start[p] <= end[p] <= planned[p] for p in planned)
    assert documents(start, end) <= most + len(planned)
    assert documents(start, end) >= min(most, documents(start, planned))
    if 0 < documents(start, planned) < 200:
        pieces = 0
        while documents(start, planned):
            start, pieces = cut(start, planned, most), pieces + 1
        assert pieces <= -(-sum(lengths.values()) // most) + 1


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 40), min_size=3, max_size=3), st.integers(1, 30), st.booleans())
    )
)
def test_micro_batches_follow_one_another_whatever_is_planned(
    plans: list[tuple[list[int], int, bool]],
) -> None:
    """A driver that goes on may plan less of a partition than one before it has read: Spark cuts its plans
    by what the source has of each partition, and that has grown meanwhile."""
    kept = KeptJournal()
    status, position = kept.status(), dict.fromkeys(range(3), 0)
    status.resume(-1, Timestamp.of(position), Timestamp())
    for ends, most, dies in plans:
        while (
            batch := status.next_batch(dict.fromkeys(range(3), 0), dict(enumerate(ends)), most)
        ) is not None:
            assert batch.start == position
            assert all(batch.end[p] >= offset for p, offset in position.items())
            position = batch.end
            status.settle_batch(Timestamp.of(position), batch)
            status.finish_batch(
                batch.number, Timestamp.of(position), [], SettledBatch([], [], 1, b"", {}, {})
            )
        if dies and status.journal.newest is not None:
            status = kept.status()
            newest = status.journal.newest
            assert newest is not None
            status.resume(newest.finished, Timestamp.of(newest.reached), Timestamp())


def test_the_first_piece_is_the_largest_unless_a_driver_died_in_it() -> None:
    sizing = Sizing(2_000_000, 1_000, 30)
    assert (sizing.size, sizing.struck()) == (2_000_000, 2_000_000 // SHRINK)
    sizing = Sizing(2_000_000, 1_000, 30, sizing.struck())
    assert sizing.size == 250_000
    for _ in range(9):
        sizing = Sizing(2_000_000, 1_000, 30, sizing.struck())
    assert (sizing.size, sizing.struck()) == (1_000, 1_000)


def test_pieces_take_about_as_long_as_they_should() -> None:
    sizing = Sizing(2_000_000, 1_000, 30, 10_000)
    sizing.finished(10_000, 0.5)
    assert sizing.size == GROW * 10_000, "no faster than that"
    sizing.finished(40_000, 20)
    assert sizing.size == 60_000
    sizing.finished(60_000, 90)
    assert sizing.size == 20_000
    sizing.finished(500, 0.1)
    assert sizing.size == 20_000, "the rest of a plan"
    assert (sizing.limited(0), sizing.limited(100), sizing.limited(1_000_000)) == (20_000, 1_000, 20_000)


def test_what_is_written_down_comes_first_and_once() -> None:
    kept = KeptJournal()
    status = kept.status()
    piece = SizedBatch(3, {0: 5}, {0: 9})
    status.settle_batch(Timestamp.of({0: 9}), piece)
    assert b'"piece":{' in kept.data, "as earlier releases call it"
    journal = kept.load()
    assert (journal.pending, journal.finished) == (piece, 2)
    status.resume(2, Timestamp.of(piece.reached), Timestamp())
    assert not status.try_close(lambda _: True), "some slices may have it"
    status.finish_batch(3, Timestamp.of({0: 9}), [], SettledBatch([], [], 4, b"", {}, {}))
    journal = kept.load()
    assert (journal.pending, journal.finished) == (None, 3)
    assert status.try_close(lambda _: True)


def test_the_next_batch_is_of_what_is_planned_and_not_done() -> None:
    status = KeptJournal().status()
    status.resume(-1, Timestamp.of({0: 2}), Timestamp())
    assert status.next_batch({0: 2}, {0: 2}, 10) is None, "nothing is planned"
    first = status.next_batch({0: 2}, {0: 9}, 4)
    assert first == SizedBatch(0, {0: 2}, {0: 6})
    assert status.next_batch({0: 2}, {0: 9}, 3) == SizedBatch(0, {0: 2}, {0: 5}), (
        "cut anew: nobody has its end"
    )
    status.settle_batch(Timestamp.of({0: 6}), first)
    assert status.next_batch({0: 2}, {0: 9}, 3) == first, "some slices may have it"
    status.finish_batch(0, Timestamp.of({0: 6}), [], SettledBatch([], [], 4, b"", {}, {}))
    assert status.next_batch({0: 2}, {0: 9}, 4) == SizedBatch(1, {0: 6}, {0: 9})
    assert status.next_batch({0: 2}, {0: 6}, 4) is None


def test_what_is_away_is_sat_out_from_the_first_failure_on() -> None:
    sitting = Outage(60)
    assert not sitting.over(-1, 1_000)
    assert not sitting.over(-1, 1_059)
    assert not sitting.over(0, 1_061), "a micro-batch was done meanwhile"
    assert not sitting.over(0, 1_120)
    assert sitting.over(0, 1_121)


# --- liveness -----------------------------------------------------------------------------------------------


def backfill(size: int, rate: float, start_s: float, lives: Callable[[int], float]) -> int:
    """Drivers that are struck, each after a while; how many it takes until all is read.

    Args:
        size: documents of the source.
        rate: documents per second.
        start_s: how long a driver takes to start, and a micro-batch beside its documents.
        lives: seconds that the n-th driver lives.
    """
    kept = KeptJournal()
    for driver in range(200):
        status, left = kept.status(), lives(driver) - start_s
        sizing = Sizing(size, 1_000, 30, status.journal.size)
        at = status.journal.newest.reached if status.journal.newest else {0: 0}
        status.note_size(sizing.struck())
        while at[0] < size:
            piece = status.journal.pending or SizedBatch(
                status.journal.finished + 1, at, cut(at, {0: size}, sizing.size)
            )
            took = start_s + documents(piece.start, piece.end) / rate
            left -= took
            if left < 0:
                break
            status.settle_batch(Timestamp.of(piece.end), piece)
            outcome = SettledBatch([], [], 0, b"", {}, {})
            status.finish_batch(piece.number, Timestamp.of(piece.end), [], outcome)
            sizing.finished(documents(piece.start, piece.end), took)
            status.note_size(sizing.size)
            at = piece.end
        else:
            return driver + 1
    raise AssertionError(f"200 drivers, and {at} of {size} are read")


@pytest.mark.parametrize("rate", [100.0, 1_000.0, 100_000.0])
def test_drivers_that_are_struck_get_on(rate: float) -> None:
    lives = [40.0, 33.0, 60.0, 31.0]
    assert backfill(40_000, rate, 10, lambda n: lives[n % 4]) < 150


def test_a_first_micro_batch_that_is_too_large_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.core.sizing.SHRINK", 1)
    with pytest.raises(AssertionError, match="200 drivers"):
        backfill(40_000, 1_000.0, 10, lambda _: 40.0)


def test_progress_that_is_thrown_away_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SizedBatch, "reached", property(lambda _: {0: 0}))
    with pytest.raises(AssertionError, match="200 drivers"):
        backfill(40_000, 1_000.0, 10, lambda _: 25.0)
