"""The filter over the ids that a slice holds: nothing is missed, its file, its growth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer.store.files.filter_file import read_filter, save_filter
from indexer.store.fold.worker import FoldWorker
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.resolve.bloom_filter import IdFilter
from tests.store_kit import SMALL, Version, all_rows, key, lmdb_store, segments, state


def documents(first: int, count: int) -> list[Version]:
    return [
        Version(b"d%05d" % n, 0, n, entries=((key(f"k{n % 97}"), b""),)) for n in range(first, first + count)
    ]


def fold(store: LmdbSliceStore) -> None:
    assert store.start_fold()
    assert store.finish_fold(30) is not None


def hashes(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize("bits", [64, 128, 1 << 12, 1 << 20])
def test_a_filter_lets_pass_all_that_was_added(bits: int) -> None:
    held = IdFilter(bits)
    some = hashes(1, 3_000)
    held.add(some)
    assert held.test(some).all()
    assert held.bits == bits


def test_a_filter_of_the_right_size_lets_little_else_pass() -> None:
    held = IdFilter.for_documents(10_000, 64)
    some = hashes(1, 10_000) & ~np.uint64(7)  # documents of one slice of eight: their lowest bits are alike
    held.add(some)
    assert not held.full()
    assert held.test(hashes(2, 100_000)).mean() < 0.03
    held.add(hashes(3, 60_000))
    assert held.full()


def test_a_saved_filter_is_read_back_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    held = IdFilter(1 << 12)
    some = hashes(1, 100)
    held.add(some)
    path = tmp_path / "filter"
    save_filter(held, path, 7, sync=True)
    read = read_filter(path)
    assert read is not None
    assert read[1] == 7
    assert read[0].test(some).all()
    read[0].add(hashes(2, 10))
    data = path.read_bytes()
    for damaged in (
        b"",
        data[:20],
        data[:-1],
        data[:-1] + bytes([data[-1] ^ 1]),
        b"x" + data[1:],
        data + b"\0" * 8,
    ):
        path.write_bytes(damaged)
        assert read_filter(path) is None
    assert read_filter(tmp_path / "missing") is None


@pytest.mark.parametrize("harm", ["keep", "delete", "damage", "old"])
def test_the_filter_is_there_after_reopening_whatever_happened_to_its_file(
    tmp_path: Path, folds: FoldWorker, harm: str
) -> None:
    path = tmp_path / "slice" / "filter"
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, filter_bits=1 << 16))
    store.apply(segments(documents(0, 50)), state(1, p0=50))
    fold(store)
    old = path.read_bytes()
    store.apply(segments(documents(50, 50)), state(2, p0=100))
    fold(store)
    store.close()
    if harm == "delete":
        path.unlink()
    elif harm == "damage":
        path.write_bytes(path.read_bytes()[:-8] + b"damaged!")
    elif harm == "old":
        path.write_bytes(old)
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, filter_bits=1 << 16))
    gone = [Version(b"d%05d" % n, 0, 100 + n) for n in range(100)]
    result = store.apply(segments(gone), state(3, p0=200))
    assert result.removed == 100
    assert all_rows(store) == []
    store.close()


def test_a_full_filter_is_built_anew_by_the_fold_and_misses_nothing(
    tmp_path: Path, folds: FoldWorker
) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, filter_bits=1 << 10))
    store.apply(segments(documents(0, 600)), state(1, p0=600))
    assert store._filter.full()
    store.start_fold()
    store.apply(segments(documents(600, 100)), state(2, p0=700))
    assert store.finish_fold(30) is not None
    assert store._filter.bits > 1 << 10
    assert not store._filter.full()
    gone = [Version(b"d%05d" % n, 0, 700 + n) for n in range(700)]
    assert store.apply(segments(gone), state(3, p0=1_400)).removed == 700
    store.close()


def test_only_documents_that_may_be_held_are_looked_up(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, filter_bits=1 << 16))
    first = store.apply(segments(documents(0, 500)), state(1, p0=500))
    assert first.looked_up < 10, "new documents need no look-up"
    others = [Version(b"other%d" % n, 0, 500 + n) for n in range(2_000)]
    assert store.apply(segments(others), state(2, p0=2_500)).looked_up < 200
    again = [Version(b"d%05d" % n, 0, 2_500 + n) for n in range(500)]
    assert store.apply(segments(again), state(3, p0=3_000)).looked_up == 500
    store.close()
