"""The LMDB store and its disk: room, sparse files, a full disk, the filter's file, formats, bounds."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lmdb
import pytest

from indexer.store.environment import Room
from indexer.store.fold.worker import FoldWorker
from indexer.store.formats.long_rows import long_table_key
from indexer.store.lmdb.snapshot import LmdbSnapshot
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import GIB, MIB, StoreSettings
from keytide.errors import ConfigurationError, InvariantViolationError, RetryableError
from tests.store_kit import SMALL, Version, all_rows, chunks, key, lmdb_store, rows_of, segments, state


def documents(first: int, count: int) -> list[Version]:
    return [
        Version(b"d%05d" % n, 0, n, entries=((key(f"k{n % 97}"), b""),)) for n in range(first, first + count)
    ]


def fold(store: LmdbSliceStore) -> None:
    assert store.start_fold()
    assert store.finish_fold(30) is not None


def test_maps_of_many_gigabytes_take_little_disk(tmp_path: Path, folds: FoldWorker) -> None:
    settings = StoreSettings(base_map_bytes=256 * GIB, delta_map_bytes=8 * GIB, reserve_bytes=MIB)
    store = lmdb_store(tmp_path / "slice", folds, settings)
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    fold(store)
    store.apply(segments(documents(10, 10)), state(2, p0=20))
    assert (tmp_path / "slice" / "base" / "data.mdb").stat().st_size == 256 * GIB
    assert store.disk_bytes() < 8 * MIB
    store.close()


def test_room_covers_what_commits_write(tmp_path: Path, folds: FoldWorker) -> None:
    """Pages in use never pass what was allocated: no page fault can find the disk full."""
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, check_mirror_s=None, filter_bits=1 << 16))
    source = random.Random(3)
    for number in range(30):
        window = [
            Version(
                b"d%d" % source.randrange(10**6),
                0,
                number * 1_000 + n,
                entries=(
                    (key(f"{source.getrandbits(64):x}" + "y" * source.choice([0, 0, 0, 400, 900])), b"v" * n),
                ),
            )
            for n in range(300)
        ]
        held = store.snapshot()
        store.apply(segments(window), state(number, p0=number * 1_000 + 300))
        held.close()
        delta = store._delta
        assert delta is not None
        assert delta.room.used_bytes() <= delta.room._allocated
    store.close()


def test_a_load_gives_back_the_room_that_it_did_not_need(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, check_mirror_s=None, filter_bits=1 << 16))
    for number in range(4):
        store.load(chunks(documents(number * 3_000, 3_000)), [], state(number, p0=(number + 1) * 3_000))
        room = store._base.level.room
        taken = (tmp_path / "slice" / "base" / "data.mdb").stat().st_blocks * 512
        assert room._allocated - room.used_bytes() == 64 * room._page
        assert taken <= room._allocated + 64 * 1024
    store.check_mirror()
    store.apply(segments(documents(12_000, 3_000)), state(5, p0=15_000))
    fold(store)
    store.check_mirror()
    store.close()


def test_room_counts_in_the_pages_of_the_environment(tmp_path: Path) -> None:
    """LMDB's page is the machine's, which need not be of 4 KiB."""
    environment = SimpleNamespace(stat=lambda: {"psize": 16_384}, info=lambda: {"last_pgno": 3})
    assert Room(cast("Any", environment), tmp_path, 0).used_bytes() == 4 * 16_384


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_typed_error_and_nothing_changes(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    fold(store)
    before = all_rows(store)

    def full(*_: object) -> None:
        raise OSError(code, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full)
        with pytest.raises(RetryableError) as caught:
            store.apply(segments(documents(10, 10)), state(2, p0=20))
        assert caught.value.problem_type == "disk-full"
        with pytest.raises(RetryableError) as caught:
            store.load(chunks(documents(10, 10)), [], state(2, p0=20))
        assert caught.value.problem_type == "disk-full"
    assert all_rows(store) == before
    assert store.applied == store.durable == state(1, p0=10)
    store.check_mirror()
    store.load(chunks(documents(10, 10)), [], state(2, p0=20))
    store.apply(segments(documents(20, 10)), state(3, p0=30))
    assert len(all_rows(store)) == 30
    store.close()


def test_the_reserve_is_left_free(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, reserve_bytes=1 << 60))
    with pytest.raises(RetryableError) as caught:
        store.apply(segments(documents(0, 10)), state(1, p0=10))
    assert caught.value.problem_type == "disk-full"
    store.close()


def test_a_fold_leaves_the_reserve_and_goes_on_when_there_is_room(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    with monkeypatch.context() as patched:
        patched.setattr(store._folding, "_settings", replace(SMALL, reserve_bytes=1 << 60))
        store.start_fold()
        with pytest.raises(RetryableError) as caught:
            store.finish_fold(30)
        assert caught.value.problem_type == "disk-full"
    assert len(all_rows(store)) == 10
    fold(store)
    assert store.durable == state(1, p0=10)
    store.close()


def test_a_full_map_is_a_typed_error_and_the_base_stays(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, base_map_bytes=MIB))
    store.load(chunks(documents(0, 10)), [], state(1, p0=10))
    with pytest.raises(RetryableError) as caught:
        store.load(chunks(documents(10, 20_000), size=1_000), [], state(2, p0=20_010))
    assert caught.value.problem_type == "disk-full"
    assert len(all_rows(store)) == 10
    assert store.durable == state(1, p0=10)
    store.close()


def test_a_base_that_has_grown_gets_a_larger_map_at_open(tmp_path: Path, folds: FoldWorker) -> None:
    small = replace(SMALL, base_map_bytes=2 * MIB)
    store = lmdb_store(tmp_path / "slice", folds, small)
    store.load(chunks(documents(0, 12_000), size=1_000), [], state(1, p0=12_000))
    store.close()
    store = lmdb_store(tmp_path / "slice", folds, small)
    assert store._base.map_bytes > 3 * MIB
    store.load(chunks(documents(12_000, 12_000), size=1_000), [], state(2, p0=24_000))
    assert len(all_rows(store)) == 24_000
    store.close()


def test_too_many_snapshots_is_a_typed_error(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, max_readers=4))
    held: list[LmdbSnapshot] = []

    def take_too_many() -> None:
        for number in range(10):
            store.apply(segments(documents(number, 1)), state(number, p0=number + 1))
            held.append(store.snapshot())

    with pytest.raises(RetryableError) as caught:
        take_too_many()
    assert caught.value.problem_type == "too-many-snapshots"
    for snapshot in held:
        snapshot.close()
    assert len(all_rows(store)) >= 3
    store.close()


def test_destroy_leaves_nothing(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    fold(store)
    store.apply(segments(documents(10, 10)), state(2, p0=20))
    snapshot = store.snapshot()
    store.destroy()
    assert not (tmp_path / "slice").exists()
    assert len(rows_of(snapshot)) == 20
    again = lmdb_store(tmp_path / "slice", folds)
    snapshot.close()
    again.apply(segments(documents(0, 1)), state(1, p0=1))
    assert len(all_rows(again)) == 1
    again.destroy()
    assert not (tmp_path / "slice").exists()


def test_another_format_is_refused_by_name(tmp_path: Path, folds: FoldWorker) -> None:
    lmdb_store(tmp_path / "slice", folds).close()
    with lmdb.open(str(tmp_path / "slice" / "base"), map_size=SMALL.base_map_bytes, max_dbs=5) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True, db=meta) as transaction:
            transaction.put(b"format", b"keytide-slice-9")
    with pytest.raises(ConfigurationError, match="keytide-slice-9"):
        lmdb_store(tmp_path / "slice", folds)


def test_a_planted_ghost_is_found(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, replace(SMALL, check_mirror_s=None))
    store.apply(segments(documents(0, 10)), state(1, p0=10))
    store.check_mirror()
    delta = store._delta
    assert delta is not None
    with delta.environment.begin(write=True) as transaction:
        transaction.put(key("ghost") + b"d00001", b"\x01", db=delta.tables.forward)
    delta.changed()
    with pytest.raises(InvariantViolationError, match="ghost"):
        store.check_mirror()
    store.start_fold()
    with pytest.raises(InvariantViolationError, match="Mirror"):
        store.finish_fold(30)
    store.close()


def test_bounds_longer_than_a_database_key(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    texts = ["f", "f" + "g" * 800, "h"]
    rows = [Version(b"d", 0, 0, entries=tuple((key(text), b"") for text in texts))]
    store.apply(segments(rows), state(1, p0=1))
    snapshot = store.snapshot()
    after = key("f" + "g" * 2_000)
    assert [row[0] for row in rows_of(snapshot, after)] == [key("h") + b"d"]
    assert [row[0] for row in rows_of(snapshot, b"", after, reverse=True)] == [
        key(text) + b"d" for text in ("f" + "g" * 800, "f")
    ]
    assert len(long_table_key(key(texts[1]) + b"d")) <= 511
    snapshot.close()
    store.close()
