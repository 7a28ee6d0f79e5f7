"""Steps back over folds, both kinds of store: every state comes back whole, and work goes on from it."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from indexer.store.fold.fold import FoldJob, FoldOutcome
from indexer.store.fold.worker import FoldTicket, FoldWorker
from indexer.store.interface import UNNUMBERED, Applied, Counts, Row, SkipLine, SliceStore, StoredDocument
from keytide.errors import RetryableError
from keytide.wire.messages import Skip
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import (
    SMALL,
    Version,
    all_rows,
    chunks,
    key,
    lmdb_store,
    rows_of,
    segment,
    segments,
    state,
)

WHOLE = tuple[Applied, Counts, list[Row], list[tuple[bytes, StoredDocument]], list[SkipLine]]


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, folds: FoldWorker) -> Iterator[SliceStore]:
    made: SliceStore = (
        lmdb_store(tmp_path / "slice", folds) if request.param == "lmdb" else MemorySliceStore(Applied())
    )
    yield made
    made.close()


def whole(store: SliceStore) -> WHOLE:
    """Everything that a store holds."""
    snapshot = store.snapshot()
    try:
        return (
            store.applied,
            store.counts,
            rows_of(snapshot),
            list(snapshot.back_rows()),
            snapshot.skips(10_000),
        )
    finally:
        snapshot.close()


def fold(store: SliceStore) -> None:
    assert store.start_fold()
    assert store.finish_fold(30) is not None


def put(docid: str, offset: int, *texts: str, partition: int = 0, time: int = 1_000) -> Version:
    entries = tuple((key(text), b"v%d" % offset if offset % 3 else b"") for text in texts)
    return Version(docid.encode(), partition, offset, time, entries)


def window(source: random.Random, number: int) -> tuple[list[Version], list[Skip]]:
    """Documents that come, go, move, have several and long keys, and wander between partitions."""
    first = 100 * number
    versions = [
        put(
            f"d{source.randrange(60)}",
            first + n,
            *{
                "k" * source.choice([1, 3, 450, 700]) + str(source.randrange(9))
                for _ in range(source.randrange(3))
            },
            partition=source.choice([0, 0, 0, 1]),
            time=1_000 + source.randrange(50),
        )
        for n in range(40)
    ]
    skips = [Skip(-1, first + 90 + n, b"bad", "not-json", "?") for n in range(source.randrange(3))]
    return versions, skips


def bring(store: SliceStore, source: random.Random, number: int) -> None:
    versions, skips = window(source, number)
    store.apply(
        [*segments(versions), segment([], 100 * number + 90, 100 * number + 99, skips)],
        state(number, p0=100 * number + 100, p1=100 * number + 100),
    )


@pytest.mark.parametrize("back", range(1, 7))
def test_each_of_the_last_states_comes_back_whole(store: SliceStore, back: int) -> None:
    source = random.Random(back)
    load = [put(f"d{n}", n, f"k{n % 7}", "m" * 600 + str(n)) for n in range(0, 60, 2)]
    store.load(chunks(load), [], state(0, p0=60))
    states = [whole(store)]
    for number in range(1, 7):
        bring(store, source, number)
        fold(store)
        states.append(whole(store))
    bring(store, source, 7)  # in the delta only
    assert store.undo_steps == 6
    assert store.horizon == states[0][0]
    target = states[6 - back]
    assert store.step_back(lambda applied: applied.number <= target[0].number)
    assert whole(store) == target
    assert store.durable == target[0]
    assert store.undo_steps == 6 - back
    assert store.horizon == states[0][0]
    store.verify()
    # Work goes on, with other content than the first time; and back once more, over old and new folds.
    for number in range(11, 14):
        bring(store, source, number)
        fold(store)
    store.check_mirror()
    assert store.step_back(lambda applied: applied.number <= target[0].number)
    assert whole(store) == target
    assert store.step_back(lambda applied: applied.number <= 0)
    assert whole(store) == states[0]
    store.check_mirror()


def test_the_present_state_holds_so_nothing_happens(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, "a")]), state(1, p0=1))
    fold(store)
    store.apply(segments([put("d", 1, "b")]), state(2, p0=2))
    before = whole(store)
    assert store.step_back(lambda _: True)
    assert whole(store) == before
    assert store.durable.number == 1


def test_what_was_not_folded_goes_first(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, "a")]), state(1, p0=1))
    fold(store)
    before = whole(store)
    store.apply(segments([put("d", 1, "b"), put("e", 2, "c")]), state(2, p0=3))
    assert store.step_back(lambda applied: applied.number == 1)
    assert whole(store) == before
    assert store.undo_steps == 1


def step_back_when_folded(store: SliceStore, number: int) -> bool:
    """A step back that is tried again until the fold at work has ended."""
    ends = time.monotonic() + 30
    while True:
        with suppress(RetryableError):
            return store.step_back(lambda applied: applied.number == number)
        assert time.monotonic() < ends, "the fold does not end"
        time.sleep(0.01)


def test_a_fold_at_work_is_waited_for_and_its_state_may_hold(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, "a")]), state(1, p0=1))
    store.start_fold()
    frozen = whole(store)
    store.apply(segments([put("d", 1, "b")]), state(2, p0=2))
    assert step_back_when_folded(store, 1)
    assert whole(store) == frozen
    assert not store.folding
    assert store.finish_fold() is None, "the caller knows"


def test_no_state_holds(store: SliceStore) -> None:
    store.load(chunks([put("d", 0, "a")]), [], state(1, p0=1))
    store.apply(segments([put("d", 1, "b")]), state(2, p0=2))
    fold(store)
    before = whole(store)
    assert not store.step_back(lambda applied: applied.number == 0), "a micro-batch has no way back"
    assert whole(store) == before
    assert store.undo_steps == 1


def test_a_micro_batch_ends_the_way_back(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, "a")]), state(1, p0=1))
    fold(store)
    assert store.undo_steps == 1
    store.load(chunks([put("e", 1, "a")]), [], state(2, p0=2))
    assert store.undo_steps == 0
    assert store.horizon == store.durable == state(2, p0=2)


def test_a_fold_of_the_state_alone_is_a_step_too(store: SliceStore) -> None:
    store.apply([], state(1, p0=5))
    fold(store)
    store.apply([], state(2, p0=9))
    fold(store)
    assert store.undo_steps == 2
    assert store.step_back(lambda applied: applied.number <= 1)
    assert store.applied == state(1, p0=5)


def test_commits_without_a_number_are_undone_too(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, "a")]), state(1, p0=1))
    fold(store)
    store.apply(segments([put("e", 1, "a")]), state(UNNUMBERED, p0=2))
    fold(store)
    store.apply(segments([put("d", 2, "b")]), state(UNNUMBERED, p0=3))
    fold(store)
    store.apply(segments([put("f", 3, "a")]), state(2, p0=4))
    assert store.undo_steps == 3
    assert store.step_back(lambda applied: applied.timestamp.offset(0) <= 1)
    assert store.applied == state(1, p0=1)
    assert all_rows(store) == [(key("a") + b"d", b"")]
    store.check_mirror()


def test_snapshots_outlive_a_step_back(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, "a")]), state(1, p0=1))
    fold(store)
    store.apply(segments([put("d", 1, "b")]), state(2, p0=2))
    fold(store)
    store.apply(segments([put("d", 2, "c")]), state(3, p0=3))
    snapshot = store.snapshot()
    assert store.step_back(lambda applied: applied.number <= 1)
    assert [row[0] for row in rows_of(snapshot)] == [key("c") + b"d"]
    assert [row[0] for row in all_rows(store)] == [key("a") + b"d"]
    snapshot.close()


# --- on disk only ------------------------------------------------------------------------------------------


def documents(first: int, count: int) -> list[Version]:
    return [put(f"d{n:05}", n, f"k{n % 97}") for n in range(first, first + count)]


def test_the_way_back_is_there_after_reopening(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    states = [whole(store)]
    for number in range(1, 5):
        store.apply(segments(documents(10 * number, 30)), state(number, p0=10 * number + 30))
        fold(store)
        states.append(whole(store))
    store.close()
    for number in range(3, -1, -1):
        store = lmdb_store(tmp_path / "slice", folds)
        assert store.undo_steps == number + 1
        assert store.step_back(lambda applied, number=number: applied.number <= states[number][0].number)  # type: ignore[misc]
        store.close()
        store = lmdb_store(tmp_path / "slice", folds)
        assert whole(store) == states[number]
        store.verify()
        store.close()
    assert not list((tmp_path / "slice" / "undo").iterdir())


@pytest.mark.parametrize("reopen", [False, True])
def test_ids_that_come_back_are_found_also_by_a_filter_built_since(
    tmp_path: Path, folds: FoldWorker, reopen: bool
) -> None:
    """The filter is built anew without ids that were removed; a step back brings them back."""
    settings = replace(SMALL, filter_bits=1 << 10)
    store = lmdb_store(tmp_path / "slice", folds, settings)
    store.apply(segments(documents(0, 600)), state(1, p0=600))
    fold(store)
    gone = [Version(v.id, 0, 600 + v.offset) for v in documents(0, 600)]
    store.apply(segments(gone), state(2, p0=1_200))
    fold(store)
    others = [put(f"other{n}", 1_200 + n, "k") for n in range(6_000)]
    store.apply(segments(others), state(3, p0=7_200))
    fold(store)  # too full: built anew from the base, which holds the others only
    assert store._filter.since > 2
    assert store.step_back(lambda applied: applied.number <= 1)
    if reopen:
        store.close()
        store = lmdb_store(tmp_path / "slice", folds, settings)
    assert store.counts.documents == 600
    again = [Version(v.id, 0, 9_000 + v.offset) for v in documents(0, 600)]
    assert store.apply(segments(again), state(4, p0=9_600)).removed == 600
    assert all_rows(store) == []
    store.close()


def test_the_oldest_steps_go_by_age_and_the_state_behind_the_limit_stays(
    tmp_path: Path, folds: FoldWorker
) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, undo_s=10))
    for number in range(1, 7):
        store.fold_due(number * 4_000)
        store.apply(segments(documents(number, 1)), state(number, p0=number + 1))
        fold(store)
    # Folds ran at 4, 8 ... 24 s. Ten seconds ago, at 14, the state of the fold at 12 was the durable one.
    assert store.horizon.number == 3
    assert len(list((tmp_path / "slice" / "undo").iterdir())) == store.undo_steps == 3
    store.close()


def test_the_oldest_steps_go_by_size(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, undo_bytes=10_000))
    for number in range(1, 9):
        store.apply(segments(documents(100 * number, 100)), state(number, p0=100 * number + 100))
        fold(store)
    sizes = [path.stat().st_size for path in (tmp_path / "slice" / "undo").iterdir()]
    assert 2 <= store.undo_steps == len(sizes) < 8
    assert sum(sizes) < 13_000
    # A fold larger than all of it leaves no way back, also none beyond it.
    store.apply(segments(documents(2_000, 1_000)), state(9, p0=3_000))
    fold(store)
    assert store.undo_steps == 0
    assert store.horizon == store.durable == state(9, p0=3_000)
    assert not list((tmp_path / "slice" / "undo").iterdir())
    store.apply(segments(documents(3_000, 10)), state(10, p0=3_010))
    fold(store)
    assert store.undo_steps == 1
    assert store.step_back(lambda applied: applied.number <= 9)
    assert store.counts.documents == len(all_rows(store)) == 1_800
    store.close()


def test_no_undo_files_when_none_are_wanted(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, undo_s=0))
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    fold(store)
    assert store.undo_steps == 0
    assert not (tmp_path / "slice" / "undo").exists()
    assert not store.step_back(lambda applied: applied.number <= 0)
    store.close()


def test_files_that_lead_nowhere_are_deleted(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    fold(store)
    undo = tmp_path / "slice" / "undo"
    (name,) = [path.name for path in undo.iterdir()]
    store.close()
    for stray in ("9-9", "next", "1-2"):
        (undo / stray).write_bytes((undo / name).read_bytes())
    store = lmdb_store(tmp_path / "slice", folds)
    assert [path.name for path in undo.iterdir()] == [name]
    assert store.undo_steps == 1
    store.close()


@pytest.mark.parametrize("where", ["rows", "footer", "cut", "gone", "other"])
def test_a_damaged_undo_file_ends_the_way_back_there(tmp_path: Path, folds: FoldWorker, where: str) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    for number in range(1, 5):
        store.apply(segments(documents(10 * number, 10)), state(number, p0=10 * number + 10))
        fold(store)
    damaged = tmp_path / "slice" / "undo" / "1-2"
    data = bytearray(damaged.read_bytes())
    if where == "gone":
        damaged.unlink()
    elif where == "other":
        damaged.write_bytes(damaged.with_name("1-1").read_bytes())
    else:
        data[{"rows": 40, "footer": len(data) - 60, "cut": 0}[where]] ^= 1
        damaged.write_bytes(data[: len(data) - (7 if where == "cut" else 0)])
    if where == "rows":  # seen when the rows are read: when everything is verified, or they are needed
        assert store.undo_steps == 4
        store.verify()
    else:
        store.close()
        store = lmdb_store(tmp_path / "slice", folds)
    assert store.undo_steps == 2
    assert store.horizon.number == 2
    before = whole(store)
    assert not store.step_back(lambda applied: applied.number <= 1)
    assert whole(store) == before
    assert store.step_back(lambda applied: applied.number <= 2)
    assert store.counts.documents == 20
    store.close()


def test_a_damaged_undo_file_is_seen_before_anything_is_undone(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    for number in range(1, 4):
        store.apply(segments(documents(10 * number, 10)), state(number, p0=10 * number + 10))
        fold(store)
    path = tmp_path / "slice" / "undo" / "1-2"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    before = whole(store)
    assert not store.step_back(lambda applied: applied.number <= 1)
    assert whole(store) == before
    assert store.undo_steps == 1
    store.close()


class NeverEnds:
    """A worker that takes its time."""

    def submit(self, job: FoldJob, prepare: Callable[[], None]) -> FoldTicket:
        return self

    def outcome(self, wait_s: float = 0.0) -> FoldOutcome | None:
        return None

    def cancel(self) -> None:
        pass


def test_a_fold_that_does_not_end_is_a_retryable_error(tmp_path: Path) -> None:
    store = lmdb_store(tmp_path / "slice", NeverEnds())
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    store.start_fold()
    store.apply(segments(documents(10, 10)), state(2, p0=20))
    with pytest.raises(RetryableError) as caught:
        store.step_back(lambda applied: applied.number <= 1)
    assert caught.value.problem_type == "fold-behind"
    assert store.applied == state(2, p0=20)
    assert len(all_rows(store)) == 20
    store.close()


def test_a_disk_that_is_full_leaves_the_state_before_or_after_a_step(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    for number in range(1, 4):
        store.apply(segments(documents(10 * number, 10)), state(number, p0=10 * number + 10))
        fold(store)
    before = whole(store)
    with monkeypatch.context() as patched:
        patched.setattr(store._base.level.room, "_reserve", 1 << 60)
        patched.setattr(store._base.level.room, "_allocated", 0)
        with pytest.raises(RetryableError) as caught:
            store.step_back(lambda applied: applied.number <= 1)
    assert caught.value.problem_type == "disk-full"
    assert whole(store) == before
    assert store.step_back(lambda applied: applied.number <= 1)
    assert store.counts.documents == 10
    store.close()


def test_a_disk_that_is_nearly_full_costs_the_way_back_and_that_is_told(
    tmp_path: Path, folds: FoldWorker, caplog: pytest.LogCaptureFixture
) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    fold(store)
    assert (store.undo_steps, store.undo_given_up) == (1, False)
    roomy, free = store._folding._settings, shutil.disk_usage(tmp_path).free
    store._folding._settings = replace(roomy, reserve_bytes=int(4 * 0.7 * free))
    store.apply(segments(documents(10, 10)), state(2, p0=20))
    fold(store)
    assert (store.undo_steps, store.undo_given_up) == (0, True)
    assert store.horizon == store.durable == state(2, p0=20)
    assert "the disk is nearly full" in caplog.text
    store._folding._settings = roomy
    store.apply(segments(documents(20, 10)), state(3, p0=30))
    fold(store)
    assert (store.undo_steps, store.undo_given_up) == (1, False)
    store.close()


def test_rows_that_say_what_the_base_says_are_in_no_undo_file(tmp_path: Path, folds: FoldWorker) -> None:
    """The same keys again: only the versions change, and only they are in the undo file."""
    store = lmdb_store(tmp_path / "slice", folds)
    versions = documents(0, 50)
    store.apply(segments(versions), state(1, p0=50))
    fold(store)
    again = [Version(v.id, 0, 50 + v.offset, entries=v.entries) for v in versions]
    store.apply(segments(again), state(2, p0=100))
    fold(store)
    (first, second) = store._journal.ways
    assert (first.step.rows, second.step.rows) == (100, 50)
    assert store.step_back(lambda applied: applied.number <= 1)
    snapshot = store.snapshot()
    assert {held.offset for _, held in snapshot.back_rows()} == set(range(50))
    snapshot.close()
    store.close()
