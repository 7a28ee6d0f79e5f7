"""Filling an empty slice by appending: the same as by putting, in full pages; what is not in order is put."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from indexer.store.files.external_sort import BLOCK_ROWS, SortedRuns
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import ApplyResult, Counts
from indexer.store.lmdb.base import Base
from indexer.store.lmdb.store import LmdbSliceStore
from keytide.wire.messages import Skip
from tests.store_kit import Version, all_rows, chunks, key, lmdb_store, removals, state

PAGE = 4096


def documents(count: int, seed: int = 1, keys: int = 1) -> list[Version]:
    chosen = random.Random(seed)
    names = chosen.sample(range(10 * count), count)
    return [
        Version(
            b"doc-%06d" % name,
            name % 3,
            offset,
            1_000 + offset,
            tuple((key(f"{chosen.randrange(100):02d}-{n}"), b"v" * (name % 3)) for n in range(keys)),
        )
        for offset, name in enumerate(names)
    ]


def load(store: LmdbSliceStore, versions: list[Version], pieces: Any = None) -> ApplyResult:
    heard = removals(versions, [Skip(-1, 7, b"bad", "not-json", "")])
    return store.load(pieces if pieces is not None else chunks(versions), heard, state(1, p0=10_000))


def back_of(store: LmdbSliceStore) -> list[Any]:
    snapshot = store.snapshot()
    try:
        return list(snapshot.back_rows())
    finally:
        snapshot.close()


def fullness(store: LmdbSliceStore, table: str) -> float:
    """How full the leaf pages of a table of the base are, 0 to 1."""
    level = store._base.level
    with level.environment.begin() as transaction:
        handle = getattr(level.tables, table)
        pages = transaction.stat(handle)["leaf_pages"]
        rows = sum(len(k) + len(v) + 10 for k, v in transaction.cursor(handle))  # 8 of node, 2 of pointer
    return rows / (pages * PAGE)


@pytest.mark.parametrize("keys", [1, 3])
def test_appending_gives_what_putting_gives(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    versions = documents(700, keys=keys)
    appended = lmdb_store(tmp_path / "appended", folds)
    done = load(appended, versions)
    assert done.appended == done.put == 700 * keys
    assert done.counts == Counts(700 * keys, 700, 0, 3, 0)

    put = lmdb_store(tmp_path / "put", folds)
    monkeypatch.setattr(Base, "_empty", lambda _: False)
    done = load(put, versions)
    assert not done.appended
    assert all_rows(appended) == all_rows(put)
    assert back_of(appended) == back_of(put)
    assert appended.counts == put.counts
    appended.check_mirror()
    for store in (appended, put):
        store.close()


def test_appended_pages_are_full(tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """acceptance 11, as counts: entries and back index are written page after page, each full; put one after
    the other in the order of documents the same rows split pages and leave them partly empty."""
    versions = documents(3_000)
    store = lmdb_store(tmp_path / "appended", folds)
    assert load(store, versions).appended == 3_000
    assert fullness(store, "forward") > 0.9
    assert fullness(store, "back") > 0.9
    store.close()

    one_by_one = lmdb_store(tmp_path / "put", folds)
    monkeypatch.setattr(Base, "_empty", lambda _: False)
    one_by_one.load([piece for v in versions for piece in chunks([v])], [], state(1, p0=10_000))
    assert fullness(one_by_one, "forward") < 0.8
    assert fullness(one_by_one, "back") < 0.8
    one_by_one.close()


def test_a_micro_batch_after_the_first_is_put_against_what_is_held(tmp_path: Path, folds: FoldWorker) -> None:
    first = documents(50)
    store = lmdb_store(tmp_path / "slice", folds)
    load(store, first)
    moved = [Version(v.id, v.partition, v.offset + 1_000, 5_000, ((key("moved"), b""),)) for v in first[:20]]
    done = load(store, moved)
    assert (done.appended, done.put, done.removed) == (0, 20, 20)
    assert store.counts.entries == 50
    store.check_mirror()
    store.close()


@pytest.mark.parametrize("what", ["order", "versions", "twice"])
def test_what_cannot_be_appended_is_put(tmp_path: Path, folds: FoldWorker, what: str) -> None:
    versions = documents(60)
    pieces = chunks(versions)
    if what == "order":
        pieces.reverse()
    elif what == "versions":  # chunks of two attempts, or of an older version: the newer one decides
        old = versions[0]
        newer = Version(old.id, old.partition, 5_000, 5_000, ((key("zz-newer"), b""),))
        pieces += chunks([newer])
        versions[0] = newer
    else:
        pieces = [piece for piece in pieces for _ in range(2)]
    store = lmdb_store(tmp_path / "slice", folds)
    done = load(store, versions, pieces)
    assert done.appended == 0
    expected = sorted((entry + v.id, value) for v in versions for entry, value in v.entries)
    assert all_rows(store) == expected
    store.check_mirror()
    store.close()
    reopened = lmdb_store(tmp_path / "slice", folds)
    assert all_rows(reopened) == expected
    reopened.close()


def test_long_keys_are_put_beside_the_appended(tmp_path: Path, folds: FoldWorker) -> None:
    versions = documents(40)
    versions += [
        Version(b"long-%d" % n, 0, 2_000 + n, 9_000, ((key(f"{n:02d}" + "x" * 600), b"value"),))
        for n in range(20)
    ]
    store = lmdb_store(tmp_path / "slice", folds)
    done = load(store, versions)
    assert (done.appended, done.counts.entries) == (60, 60)
    assert all_rows(store) == sorted((entry + v.id, value) for v in versions for entry, value in v.entries)
    store.check_mirror()
    store.close()


def test_an_empty_slice_hears_without_a_trace(tmp_path: Path, folds: FoldWorker) -> None:
    """What is only heard removes nothing where nothing is; its lines are kept once."""
    versions = documents(10)
    store = lmdb_store(tmp_path / "slice", folds)
    for _ in range(2):
        store.load([], removals(versions, [Skip(-1, 7, b"bad", "not-json", "")]), state(1, p0=10))
    assert store.counts == Counts(skips=3)
    assert load(store, versions).appended == 10
    store.close()


@pytest.mark.parametrize(
    ("runs", "size"), [(0, 0), (1, 10), (3, 10), (2, BLOCK_ROWS), (5, 2 * BLOCK_ROWS + 3)]
)
def test_runs_are_merged_in_order_and_equal_keys_stay_as_they_came(
    tmp_path: Path, runs: int, size: int
) -> None:
    chosen = random.Random(runs)
    given = [
        [(b"%03d" % chosen.randrange(700), b"%d-%d" % (run, n)) for n in range(size)] for run in range(runs)
    ]
    sorting = SortedRuns(tmp_path)
    for run in given:
        sorting.add(run)
    blocks = list(sorting.merged())
    sorting.close()
    merged = [row for block in blocks for row in block]
    assert merged == sorted((row for run in given for row in run), key=lambda row: row[0])
    assert len(sorting._runs) == (runs if runs > 1 else 0)
    assert all(len(block) <= runs * BLOCK_ROWS for block in blocks) or runs < 2
    assert not list(tmp_path.iterdir()), "the scratch file has no name"
