"""Several spans read in one walk give what each gives by itself: over base and deltas, narrow and wide ones,
long keys, from either end, however few are wanted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexer.store.fold.worker import FoldWorker
from indexer.store.formats.records import REMOVED
from indexer.store.interface import Applied, Row, SliceStore, StoreSnapshot
from indexer.store.joint import first_rows
from indexer.store.lmdb.snapshot import LmdbSnapshot
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, key, lmdb_store, segments

NUMBERS = 3_000


def stored(number: int) -> bytes:
    """Nearly all short, some of more than 500 bytes."""
    return key(f"{number:05}" + ("x" * 600 if number % 97 == 0 else ""))


@pytest.fixture(params=["lmdb", "memory"])
def snapshot(request: pytest.FixtureRequest, tmp_path: Path, folds: FoldWorker) -> Iterator[StoreSnapshot]:
    store: SliceStore
    store = lmdb_store(tmp_path / "slice", folds) if request.param == "lmdb" else MemorySliceStore(Applied())
    chance = random.Random(4)
    for queue, (low, high) in enumerate(((0, NUMBERS), (0, 400), (900, 1_000)), 1):
        some = chance.sample(range(low, high), (high - low) // 2)
        versions = [
            Version(b"d%05d" % one, 0, queue * NUMBERS + at, entries=((stored(one), b"%d" % queue),))
            for at, one in enumerate(sorted(some))
        ]
        store.apply(segments(versions), Applied(Timestamp(), queue, queue_position=queue))
        if queue == 1:
            assert store.start_fold()
            store.finish_fold(30)
    held = store.snapshot()
    yield held
    held.close()
    store.close()


def spans_of(chance: random.Random, count: int, widest: int) -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = []
    at = 0
    for _ in range(count):
        low = at + chance.randrange(1, 2 * NUMBERS // count)
        at = low + chance.randrange(1, widest)
        found.append((key(f"{low:05}")[:-1], key(f"{at:05}")[:-1]))
    if chance.random() < 0.3:
        found.append((key(f"{at + 5:05}"), None))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_several_spans_are_read_as_each_of_them(snapshot: StoreSnapshot, seed: int) -> None:
    chance = random.Random(seed)
    spans = spans_of(chance, chance.choice([1, 3, 60, 400]), chance.choice([2, 20, 500]))
    each: list[Row] = [row for low, high in spans for block in snapshot.rows(low, high) for row in block]
    assert each or seed
    for limit in (None, 1, 7, len(each) or 1, len(each) + 1):
        blocks = list(snapshot.rows_of(spans, limit=limit))
        assert all(blocks)
        assert [row for block in blocks for row in block] == each[:limit]
        backwards = list(snapshot.rows_of(spans[::-1], reverse=True, limit=limit))
        assert [row for block in backwards for row in block] == each[::-1][:limit]


def test_no_spans_have_no_rows(snapshot: StoreSnapshot) -> None:
    assert list(snapshot.rows_of([])) == []
    assert list(snapshot.rows_of([(b"", None)], limit=0)) == []


@pytest.mark.parametrize("seed", range(6))
def test_levels_are_read_as_rows_are(
    seed: int, tmp_path: Path, folds: FoldWorker, request: pytest.FixtureRequest
) -> None:
    """Over base, frozen and newest delta, from either end."""
    chance = random.Random(seed)
    store = lmdb_store(tmp_path / "slice", folds)
    request.addfinalizer(store.close)
    for queue in range(1, 4):
        versions = [
            Version(
                b"d%05d" % one,
                0,
                queue * NUMBERS + at,
                entries=((key(f"{one:05}"), b"%d" % queue),) if chance.random() < 0.8 else (),
            )
            for at, one in enumerate(sorted(chance.sample(range(NUMBERS), NUMBERS // queue)))
        ]
        store.apply(segments(versions), Applied(Timestamp(), queue, queue_position=queue))
        if queue < 3 and seed % 2:
            assert store.start_fold()
            store.finish_fold(30)
    held = store.snapshot()
    levels = held.levels()
    assert levels is not None
    assert len(levels) == (2 if seed % 2 else 1)
    for _ in range(40):
        low, high = sorted((key(f"{chance.randrange(NUMBERS):05}"), key(f"{chance.randrange(NUMBERS):05}")))
        until = chance.choice([high, None])
        reverse, count = chance.random() < 0.5, chance.choice([1, 5, 100, 2_000])
        found = first_rows([levels], low, until, reverse, count, REMOVED)
        rows = [row for block in held.rows(low, until, reverse, count) for row in block]
        assert found is not None
        assert found[0] == rows
    held.close()


def test_long_entries_are_not_read_as_levels(snapshot: StoreSnapshot) -> None:
    assert (snapshot.levels() is None) == isinstance(snapshot, LmdbSnapshot)
    snapshot.close()
    if isinstance(snapshot, LmdbSnapshot):
        with pytest.raises(RetryableError):
            snapshot.levels()
