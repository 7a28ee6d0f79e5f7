"""kill -9 at every named place of commits, folds, micro-batches and steps back: the state before or after."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from indexer.store.fold.worker import WORKER_DIED, FoldWorker
from indexer.store.lmdb.store import LmdbSliceStore
from keytide.errors import RetryableError
from keytide.model.entry import pack_value
from tests.forking import Forking
from tests.store_kit import (
    SMALL,
    Version,
    all_rows,
    grows,
    key,
    lmdb_store,
    pinning,
    segments,
    state,
)

SETTINGS = replace(SMALL, check_mirror_s=None, filter_bits=1 << 12, fsync=True)
PROGRAM = """
import os, signal, sys
from pathlib import Path
from indexer.store.fold.worker import FoldWorker
from keytide.errors import RetryableError
from tests.store_kit import chunks, lmdb_store, removals, segments, state
from tests.unit.test_store_killed import BATCH, SETTINGS, WINDOW, versions

folds = FoldWorker()
store = lmdb_store(Path(sys.argv[1]), folds, SETTINGS)
for number in range(2):
    first = number * BATCH
    newest = list({version.id: version for version in versions(first, BATCH)}.values())
    store.load(chunks(newest), removals(newest), state(-2 + number, p0=first + BATCH))
try:
    for number in range(1, 5):
        first = 2 * BATCH + (number - 1) * WINDOW
        store.apply(segments(versions(first, WINDOW)), state(number, p0=first + WINDOW))
        store.start_fold()
        store.finish_fold(60)
    store.apply(segments(versions(first + WINDOW, 5)), state(5, p0=first + WINDOW + 5))
    print("stepping", store.step_back(lambda applied: applied.number <= 1), flush=True)
except RetryableError:  # the worker was killed: the node goes as well, before it tries again
    os.kill(os.getpid(), signal.SIGKILL)
"""
BATCH = 150
WINDOW = 120


def versions(first: int, count: int) -> list[Version]:
    return [version(n) for n in range(first, first + count)]


def version(n: int) -> Version:
    """Of 200 documents, each again and again, with long keys and deletions among them."""
    text = f"k{n}" + "x" * (600 if n % 50 == 0 else 0)
    value = pack_value(b"", b"{}") if n % 5 else b""
    return Version(b"d%05d" % (n * 7_919 % 200), 0, n, entries=((key(text), value),) if n % 3 else ())


def rows_below(offset: int) -> list[tuple[bytes, bytes]]:
    last = {version(n).id: version(n) for n in range(offset)}
    return sorted((entry + docid, value) for docid, v in last.items() for entry, value in v.entries)


def offset_of(number: int) -> int:
    """Where the state of a number ends: -2 and -1 are micro-batches, -3 is nothing."""
    return (number + 3) * BATCH if number < 0 else 2 * BATCH + number * WINDOW


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    with Forking("tests.unit.test_store_killed") as made:
        yield made


@pytest.mark.fault
@pytest.mark.parametrize(
    ("point", "number", "steps"),
    [
        ("load-before-commit:kill:1", -3, 0),
        ("load-before-commit:kill:2", -2, 0),
        ("load-committed:kill:1", -2, 0),
        ("load-committed:kill:2", -1, 0),
        ("delta-before-commit:kill:1", -1, 0),
        ("delta-before-commit:kill:3", 2, 2),
        ("delta-committed:kill:3", 2, 2),
        ("fold-frozen:kill:3", 2, 2),
        ("fold-undo-written:kill:1", -1, 0),
        ("fold-undo-written:kill:3", 2, 2),
        ("fold-filter-moved:kill:3", 2, 2),
        ("fold-before-commit:kill:3", 2, 2),
        ("fold-committed:kill:3", 3, 3),
        ("fold-checksums-written:kill:3", 3, 3),
        ("fold-settled:kill:3", 3, 3),
        ("step-back-before:kill:1", 4, 4),
        ("step-back-half:kill:1", 4, 4),
        ("step-back-done:kill:1", 3, 3),
        ("step-back-before:kill:3", 2, 2),
        ("step-back-half:kill:3", 2, 2),
        ("step-back-done:kill:3", 1, 1),
    ],
)
def test_killed_at_a_named_place(
    tmp_path: Path, folds: FoldWorker, forking: Forking, point: str, number: int, steps: int
) -> None:
    status, said = forking.run(PROGRAM, tmp_path / "slice", tmp_path / "out", point)
    assert status == -signal.SIGKILL
    assert "stepping" not in said
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    check(store, number)
    assert store.undo_steps == steps
    assert len(list((tmp_path / "slice" / "undo").glob("*"))) == steps
    # The way back is whole, one state after the other, and what follows is as ever.
    for earlier in range(number - 1, number - 1 - steps, -1):
        here = offset_of(number if earlier == 0 and number == -1 else earlier if earlier else -1)
        assert store.step_back(lambda applied, here=here: applied.timestamp.offset(0) <= here)  # type: ignore[misc]
        check(store, -1 if earlier == 0 else earlier)
    first = store.applied.timestamp.offset(0)
    store.apply(segments(versions(first, 90)), state(9, p0=first + 90))
    assert store.start_fold()
    assert store.finish_fold(60) is not None
    assert all_rows(store) == rows_below(first + 90)
    assert pinning(store)[1] == 0
    store.close()


def again(store: LmdbSliceStore) -> None:
    """A fold of new versions of all documents."""
    first = store.applied.timestamp.offset(0)
    some = [
        Version(b"d%05d" % n, 0, first + n, entries=((key(f"k{n}"), bytes(pack_value(b"v"))),))
        for n in range(200)
    ]
    store.apply(segments(some), state(store.applied.number + 1, p0=first + 200))
    store.start_fold()
    assert store.finish_fold(60) is not None


def check(store: LmdbSliceStore, number: int) -> None:
    offset = offset_of(number)
    assert store.applied.timestamp.offset(0) == offset
    rows = rows_below(offset)
    assert all_rows(store) == rows
    assert store.counts.entries == len(rows)
    store.check_mirror()
    store.verify()


def test_the_program_ends_when_it_is_left_alone(tmp_path: Path, folds: FoldWorker, forking: Forking) -> None:
    done = forking.run(PROGRAM, tmp_path / "slice", tmp_path / "out")
    assert done == (0, "stepping True\n")
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    check(store, 1)
    store.close()


@pytest.mark.fault
@pytest.mark.parametrize("then", ["fold", "step back", "step back further", "reopen"])
@pytest.mark.parametrize(
    "point", ["fold-undo-written", "fold-filter-moved", "fold-before-commit", "fold-committed"]
)
def test_a_worker_killed_within_a_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, then: str
) -> None:
    """The node lives on. It tries the fold again, or steps back, or is started again."""
    monkeypatch.setenv("KEYTIDE_SYNC_POINT", f"{point}:once={tmp_path / 'struck'}:2")
    folds = FoldWorker()
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    store.apply(segments(versions(0, 100)), state(1, p0=100))
    store.start_fold()
    assert store.finish_fold(60) is not None
    store.apply(segments(versions(100, 100)), state(2, p0=200))
    store.start_fold()
    with pytest.raises(RetryableError) as caught:
        store.finish_fold(60)
    assert caught.value.problem_type == WORKER_DIED
    assert (tmp_path / "struck").exists()
    store.apply(segments(versions(200, 50)), state(3, p0=250))
    happened = point == "fold-committed"
    if then == "fold":
        assert store.start_fold()
        durable = store.finish_fold(60)
        assert durable is not None
        assert durable.number == 2
        assert all_rows(store) == rows_below(250)
        assert store.undo_steps == 2
        assert store.step_back(lambda applied: applied.number <= 1)
        expected = 100
    elif then == "step back":
        assert store.step_back(lambda applied: applied.number <= 2)
        expected = 200 if happened else 100
    elif then == "step back further":
        assert store.step_back(lambda applied: applied.number <= 1)
        expected = 100
    else:
        store.close()
        store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
        expected = 200 if happened else 100
    assert store.applied.timestamp.offset(0) == expected
    assert all_rows(store) == rows_below(expected)
    assert store.undo_steps == expected // 100
    store.check_mirror()
    store.verify()
    assert pinning(store)[1] == 0
    assert not grows(tmp_path / "slice", lambda: again(store))
    assert store.step_back(lambda applied: applied.number < 0)
    assert all_rows(store) == []
    store.close()
    folds.close()


FULL = replace(SETTINGS, filter_bits=1 << 10, undo_s=0, fsync=False)
"""A filter that is too small, so that folds build it anew."""


def overwrite(store: LmdbSliceStore, number: int) -> None:
    """A fold that changes every document."""
    first = number * 1_500
    again = [
        Version(b"d%05d" % (n - first), 0, n, entries=((key(f"k{n % 97}"), pack_value(b"v" * 40)),))
        for n in range(first, first + 1_500)
    ]
    store.apply(segments(again), state(number + 1, p0=first + 1_500))
    store.start_fold()
    assert store.finish_fold(60) is not None


@pytest.mark.fault
def test_a_worker_killed_within_a_read_does_not_make_the_base_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its read transaction would keep every page that later folds free."""
    monkeypatch.setenv("KEYTIDE_SYNC_POINT", f"fold-filter-read:once={tmp_path / 'struck'}")
    with closing(FoldWorker()) as folds:
        store = lmdb_store(tmp_path / "slice", folds, FULL)
        with pytest.raises(RetryableError) as caught:
            overwrite(store, 0)
        assert caught.value.problem_type == WORKER_DIED
        assert (tmp_path / "struck").exists()
        assert pinning(store)[1] == 0
        assert store.start_fold()
        assert store.finish_fold(60) is not None
        numbers = count(1)
        assert not grows(tmp_path / "slice", lambda: overwrite(store, next(numbers)))
        assert len(all_rows(store)) == 1_500
        store.close()


@pytest.mark.fault
def test_an_examination_killed_within_its_read_pins_nothing_and_tells_nothing(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends it with a signal says nothing about the base: the slice is neither lost nor grows."""
    store = lmdb_store(tmp_path / "slice", folds, FULL)
    overwrite(store, 0)
    (tmp_path / "slice" / "checksums").unlink()
    with monkeypatch.context() as armed:
        armed.setenv("KEYTIDE_SYNC_POINT", "examine-read:kill")
        with pytest.raises(RetryableError) as caught:
            store.verify()
    assert caught.value.problem_type == "check-ended"
    assert pinning(store)[1] == 0
    store.verify()
    numbers = count(1)
    assert not grows(tmp_path / "slice", lambda: overwrite(store, next(numbers)))
    store.close()
