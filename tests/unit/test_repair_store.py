"""Corrections of a repair in both kinds of stores: what they write, what they leave, and the counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from indexer.store.fold.worker import FoldWorker
from indexer.store.formats.long_rows import long_table_key, long_value
from indexer.store.formats.records import PUT
from indexer.store.interface import Applied, Counts, SliceStore
from indexer.store.lmdb.store import LmdbSliceStore
from keytide.model.entry import INLINE_LIMIT
from keytide.model.timestamp import TABLE_PARTITION, Timestamp
from keytide.wire.corrections import Correction, Round, pack_corrections, read_corrections
from keytide.wire.messages import Corrections, decode, encode
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, all_rows, key, lmdb_store, segments, state

A, B, C = key("a"), key("b"), key("c")
LONG = key("x" * (INLINE_LIMIT + 20))
TO = Round("i", 0, "job", 0, 0)


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, folds: FoldWorker) -> Iterator[SliceStore]:
    made: SliceStore = (
        lmdb_store(tmp_path / "slice", folds) if request.param == "lmdb" else MemorySliceStore(Applied())
    )
    yield made
    made.close()


def put(docid: str, offset: int, *keys: bytes, partition: int = 0, time: int = 1_000) -> Version:
    return Version(docid.encode(), partition, offset, time, tuple((some, b"") for some in keys))


def truth(docid: str, offset: int, *keys: bytes, strays: tuple[bytes, ...] = (), **more: int) -> Correction:
    values = dict.fromkeys(keys, b"")
    return Correction(docid.encode(), more.get("partition", 0), offset, 1_000, False, values, list(strays))


def message(at: Timestamp, *corrections: Correction) -> Corrections:
    packed = decode(encode(pack_corrections(TO, 0, at, corrections)))
    assert isinstance(packed, Corrections)
    return packed


def correct(store: SliceStore, *corrections: Correction, spared: tuple[int, ...] = (), p0: int = 10) -> int:
    applied = store.applied
    return store.correct(message(Timestamp.of({0: p0}), *corrections), frozenset(spared), applied)


def plant(
    store: SliceStore,
    put_rows: dict[bytes, bytes],
    removed: tuple[bytes, ...] = (),
    *,
    written_over: bool = False,
) -> None:
    """Entries behind the back index's back, as a bug would make or lose them: the counts follow the rows.

    Args:
        written_over: those that are put are there already.
    """
    change = (0 if written_over else len(put_rows)) - len(removed)
    if isinstance(store, MemorySliceStore):
        for entry_key, value in put_rows.items():
            store._state.entries[entry_key] = value
        for entry_key in removed:
            del store._state.entries[entry_key]
        return
    assert isinstance(store, LmdbSliceStore)
    store._settings = replace(store._settings, check_mirror_s=None)
    delta = store._delta or store._new_delta()
    with delta.environment.begin(write=True) as transaction:
        for entry_key, value in put_rows.items():
            if len(entry_key) > INLINE_LIMIT:
                row = long_value(entry_key, PUT + value)
                transaction.put(long_table_key(entry_key), row, db=delta.tables.long)
            else:
                transaction.put(entry_key, PUT + value, db=delta.tables.forward)
        for entry_key in removed:
            transaction.put(entry_key, b"\x00", db=delta.tables.forward)
    delta.changed()
    store._delta_rows += 1
    store._counts = store._counts.plus(Counts(entries=change))


def keys(store: SliceStore) -> list[bytes]:
    return [entry_key for entry_key, _ in all_rows(store)]


def fold(store: SliceStore) -> None:
    assert store.start_fold()
    assert store.finish_fold(30) is not None


def test_columns_and_back_again() -> None:
    some = [
        Correction(b"d", 1, 7, -5, True, {A: b"v", B: b""}, [C]),
        Correction(b"other", TABLE_PARTITION, 2**40, 1_000),
    ]
    assert read_corrections(message(Timestamp.of({0: 3}), *some)) == some


@pytest.mark.parametrize("folded", [False, True])
def test_what_is_missing_is_put_and_what_is_wrong_replaced(store: SliceStore, folded: bool) -> None:
    store.apply(segments([put("d", 0, A, B), put("e", 1, A)]), state(1, p0=9))
    if folded:
        fold(store)
    assert correct(store, truth("d", 3, B, C), truth("new", 2, A), truth("e", 1, A), p0=9) == 2
    assert keys(store) == [A + b"e", A + b"new", B + b"d", C + b"d"]
    assert store.counts == Counts(entries=4, documents=3)
    store.check_mirror()
    fold(store)
    store.check_mirror()
    assert correct(store, truth("d", 3, B, C), truth("new", 2, A), p0=9) == 0


def test_what_is_stale_goes(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A), put("e", 1, A)]), state(1, p0=9))
    assert correct(store, truth("d", 4), p0=9) == 1
    assert keys(store) == [A + b"e"]
    assert store.counts == Counts(entries=1, documents=1)


def test_a_newer_version_is_left_alone(store: SliceStore) -> None:
    store.apply(segments([put("d", 5, A)]), state(1, p0=9))
    assert correct(store, truth("d", 3, B), p0=5) == 0
    assert keys(store) == [A + b"d"]


def test_a_version_from_past_what_is_applied_is_of_no_log(store: SliceStore) -> None:
    store.apply(segments([put("d", 50, A)]), state(1, p0=9))
    assert correct(store, truth("d", 3, B), p0=5) == 1
    assert keys(store) == [B + b"d"]


def test_a_version_of_no_log_gives_way_to_the_next_change(store: SliceStore) -> None:
    store.apply(segments([put("d", 50, A)]), state(1, p0=9))
    assert correct(store, truth("d", 3, B), spared=(0,), p0=5) == 1
    assert keys(store) == [A + b"d"]
    store.apply(segments([put("d", 9, C)]), state(2, p0=10))
    assert keys(store) == [C + b"d"]
    assert store.counts == Counts(entries=1, documents=1)


def test_a_document_that_was_heard_since_is_left_alone(store: SliceStore) -> None:
    store.apply(segments([put("d", 5, A), put("d", 7)]), state(1, p0=9))
    assert correct(store, truth("d", 5, A), spared=(0,), p0=6) == 0
    assert keys(store) == []
    assert store.counts == Counts()


def test_a_row_of_a_table_is_older_than_every_timestamp(store: SliceStore) -> None:
    store.apply(segments([put("d", 5_000, A, partition=TABLE_PARTITION)]), state(1, p0=9))
    assert correct(store, truth("d", 3, B), p0=9) == 1
    assert keys(store) == [B + b"d"]


def test_a_version_of_another_partition_is_judged_by_its_own(store: SliceStore) -> None:
    store.apply(segments([put("d", 6, A, partition=1)]), state(1, p0=9, p1=9))
    applied = store.applied
    early = message(Timestamp.of({0: 9, 1: 6}), truth("d", 8, B))
    assert store.correct(early, frozenset(), applied) == 0
    late = message(Timestamp.of({0: 9, 1: 7}), truth("d", 8, B))
    assert store.correct(late, frozenset(), applied) == 1
    assert keys(store) == [B + b"d"]


@pytest.mark.parametrize("ghost", [B, LONG])
@pytest.mark.parametrize("spared", [(), (0,)])
def test_strays_that_the_back_index_does_not_know_go(
    store: SliceStore, ghost: bytes, spared: tuple[int, ...]
) -> None:
    store.apply(segments([put("d", 0, A)]), state(1, p0=9))
    fold(store)
    plant(store, {ghost + b"d": b"", ghost + b"nobody": b""})
    found = [truth("d", 0, A, strays=(ghost,)), truth("nobody", 3, strays=(ghost,))]
    assert correct(store, *found, spared=spared, p0=9) == 2
    assert keys(store) == [A + b"d"]
    store.check_mirror()
    fold(store)
    store.check_mirror()


def test_a_stray_that_has_become_right_stays(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A), put("d", 8, B)]), state(1, p0=9))
    assert correct(store, truth("d", 0, A, strays=(B,)), spared=(0,), p0=5) == 0
    assert keys(store) == [B + b"d"]


def test_an_entry_that_only_the_back_index_knows_is_put_again(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A, B)]), state(1, p0=9))
    plant(store, {}, removed=(B + b"d",))
    assert correct(store, truth("d", 0, A, B), p0=9) == 1
    assert keys(store) == [A + b"d", B + b"d"]
    store.check_mirror()
    plant(store, {}, removed=(B + b"d",))
    assert correct(store, truth("d", 0, A), p0=9) == 1
    store.check_mirror()
    assert store.counts == Counts(entries=1, documents=1)


@pytest.mark.parametrize("where", [A, LONG])
def test_a_wrong_value_is_written_over(store: SliceStore, where: bytes) -> None:
    store.apply(segments([put("d", 0, where)]), state(1, p0=9))
    right = Correction(b"d", 0, 0, 1_000, False, {where: b"value"})
    assert correct(store, right, p0=9) == 1
    assert all_rows(store) == [(where + b"d", b"value")]
    assert correct(store, right, p0=9) == 0


def test_the_deletion_of_an_id_of_two_partitions_stays_remembered(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A)]), state(1, p0=9))
    store.apply(segments([put("d", 0, A, partition=1, time=2_000)]), state(2, p0=9, p1=2))
    store.apply(segments([put("d", 1, partition=1, time=2_000)]), state(3, p0=9, p1=2))
    assert store.counts == Counts(tombstones=1, foreign=1)
    gone = Correction(b"d", 1, 1, 2_000, True)
    there = Correction(b"d", 1, 1, 2_000, True, {A: b""})
    assert store.correct(message(Timestamp.of({0: 9, 1: 2}), there), frozenset(), store.applied) == 1
    assert store.counts == Counts(entries=1, documents=1, foreign=1)
    assert store.correct(message(Timestamp.of({0: 9, 1: 2}), gone), frozenset(), store.applied) == 1
    assert store.counts == Counts(tombstones=1, foreign=1)


def test_a_corrected_document_is_found_by_what_comes_later(store: SliceStore) -> None:
    correct(store, truth("d", 3, A))
    store.apply(segments([put("d", 12, B)]), state(1, p0=13))
    assert keys(store) == [B + b"d"]
    store.check_mirror()


def test_corrections_survive_a_fold_and_a_step_back_undoes_them(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A)]), state(1, p0=9))
    fold(store)
    before = store.applied
    message_ = message(Timestamp.of({0: 9}), truth("d", 4, B))
    assert store.correct(message_, frozenset(), state(2, p0=9)) == 1
    fold(store)
    assert keys(store) == [B + b"d"]
    assert store.step_back(lambda applied: applied.number <= before.number)
    assert keys(store) == [A + b"d"]
    store.check_mirror()
