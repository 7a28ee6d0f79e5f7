"""Slice stores, both kinds: what one commit does, what a snapshot shows, the ledger, micro-batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, Counts, SliceStore
from keytide.errors import InvariantViolationError, RetryableError
from keytide.wire.messages import Skip
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import (
    Version,
    all_rows,
    chunks,
    key,
    lmdb_store,
    removals,
    rows_of,
    segment,
    segments,
    state,
)

A, B, C = key("a"), key("b"), key("c")


def put(docid: str, offset: int, *keys: bytes, partition: int = 0, time: int = 1_000) -> Version:
    return Version(docid.encode(), partition, offset, time, tuple((some, b"") for some in keys))


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, folds: FoldWorker) -> Iterator[SliceStore]:
    made: SliceStore = (
        lmdb_store(tmp_path / "slice", folds) if request.param == "lmdb" else MemorySliceStore(Applied())
    )
    yield made
    made.close()


def keys(store: SliceStore) -> list[bytes]:
    return [entry_key for entry_key, _ in all_rows(store)]


def fold(store: SliceStore) -> Applied:
    assert store.start_fold()
    done = store.finish_fold(30)
    assert done is not None
    return done


def test_a_new_version_replaces_the_keys_of_the_old_one(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A, B)]), state(1, p0=1))
    result = store.apply(segments([put("d", 1, B, C)]), state(2, p0=2))
    assert keys(store) == [B + b"d", C + b"d"]
    assert (result.removed, result.counts) == (1, Counts(entries=2, documents=1))


def test_a_document_heard_without_an_entry_is_removed(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A)]), state(1, p0=1))
    store.apply(segments([put("d", 1)]), state(2, p0=2))
    assert keys(store) == []
    assert store.counts == Counts()


def test_put_and_then_heard_in_one_window_leaves_nothing(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A), put("other", 1, A), put("d", 2)]), state(1, p0=3))
    assert keys(store) == [A + b"other"]


def test_put_in_one_segment_and_heard_in_the_next_of_the_same_window(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A), put("d", 1)], cuts=2), state(1, p0=2))
    assert keys(store) == []


def test_the_last_of_several_versions_in_a_window_decides_its_value_too(store: SliceStore) -> None:
    first = Version(b"d", 0, 0, entries=((A, b"old"),))
    second = Version(b"d", 0, 1, entries=((A, b"new"),))
    store.apply(segments([first, second]), state(1, p0=2))
    assert all_rows(store) == [(A + b"d", b"new")]
    store.apply(segments([Version(b"d", 0, 2, entries=((A, b""),))]), state(2, p0=3))
    assert all_rows(store) == [(A + b"d", b"")]


def test_the_same_segment_twice_changes_nothing(store: SliceStore) -> None:
    window = segments([put("d", 0, A), put("e", 1, A, B), put("f", 2, C)])
    before = store.apply(window, state(1, p0=3)).counts
    assert store.apply(window, state(1, p0=3)).counts == before
    assert keys(store) == [A + b"d", A + b"e", B + b"e", C + b"f"]


def test_an_older_version_is_ignored_and_counted(store: SliceStore) -> None:
    store.apply(segments([put("d", 5, A)]), state(1, p0=6))
    result = store.apply(segments([put("d", 4, B)]), state(1, p0=6))
    assert keys(store) == [A + b"d"]
    assert result.ignored == 1


def test_an_id_in_two_partitions_goes_by_time_and_is_counted(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A, partition=0, time=20)]), state(1, p0=1))
    store.apply(segments([put("d", 7, B, partition=1, time=10)]), state(2, p0=1, p1=8))
    assert keys(store) == [A + b"d"]
    store.apply(segments([put("d", 8, C, partition=1, time=21)]), state(3, p0=1, p1=9))
    assert keys(store) == [C + b"d"]
    assert store.counts.foreign == 1


def test_the_tombstone_of_an_id_in_two_partitions_is_remembered_through_folds(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A, partition=0, time=10)]), state(1, p0=1))
    store.apply(segments([put("d", 0, partition=1, time=30)]), state(2, p0=1, p1=1))
    assert store.counts == Counts(tombstones=1, foreign=1)
    fold(store)
    store.apply(segments([put("d", 1, B, partition=0, time=20)]), state(3, p0=2, p1=1))
    assert keys(store) == []
    store.apply(segments([put("d", 2, C, partition=0, time=40)]), state(4, p0=3, p1=1))
    assert keys(store) == [C + b"d"]
    assert store.counts == Counts(entries=1, documents=1, foreign=1)


def test_a_commit_without_documents_moves_the_state(store: SliceStore) -> None:
    store.apply([segment([], 0, 9)], state(4, p0=9))
    snapshot = store.snapshot()
    assert (snapshot.applied.number, snapshot.applied.timestamp.offsets()) == (4, {0: 9})
    snapshot.close()
    assert fold(store) == store.durable == state(4, p0=9)


def test_the_ledger_is_written_in_the_commit_and_read_in_order(store: SliceStore) -> None:
    lines = [Skip(-1, 7, b"x", "not-json", "at 3"), Skip(-1, 300, b"y", "key-too-large", "")]
    store.apply([segment([], 0, 301, lines)], state(1, p0=301))
    store.apply([segment([], 0, 301, lines)], state(1, p0=301))
    assert store.counts.skips == 2
    fold(store)
    store.apply([segment([], 301, 302, [Skip(-1, 301, b"z", "bad-id", "")])], state(2, p0=302))
    snapshot = store.snapshot()
    assert [(line.offset, line.reason) for line in snapshot.skips(10)] == [
        (7, "not-json"),
        (300, "key-too-large"),
        (301, "bad-id"),
    ]
    assert [line.id for line in snapshot.skips(1, after=(0, 7))] == [b"y"]
    assert snapshot.skips(5, after=(0, 301)) == []
    snapshot.close()


def test_back_tells_version_and_keys(store: SliceStore) -> None:
    store.apply(segments([put("d", 3, A, B, time=77), put("e", 4, C)]), state(1, p0=5))
    snapshot = store.snapshot()
    held = snapshot.backs([b"d"]).get(b"d")
    assert held is not None
    assert (held.partition, held.offset, held.time, held.keys, held.foreign) == (0, 3, 77, (A, B), False)
    assert snapshot.backs([b"nobody"]).get(b"nobody") is None
    assert [docid for docid, _ in snapshot.back_rows()] == [b"d", b"e"]
    snapshot.close()


def test_a_closed_snapshot_says_so(store: SliceStore) -> None:
    snapshot = store.snapshot()
    snapshot.close()
    snapshot.close()
    with pytest.raises(RetryableError, match="closed"):
        list(snapshot.rows())


def test_a_snapshot_outlives_commits_folds_and_the_store(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A)]), state(1, p0=1))
    first = store.snapshot()
    store.apply(segments([put("d", 1, B)]), state(2, p0=2))
    second = store.snapshot()
    fold(store)
    store.apply(segments([put("d", 2)]), state(3, p0=3))
    fold(store)
    assert rows_of(first) == [(A + b"d", b"")]
    store.destroy()
    assert rows_of(second) == [(B + b"d", b"")]
    first.close()
    second.close()


def test_a_read_at_work_goes_on_when_its_snapshot_is_closed(store: SliceStore) -> None:
    store.apply(segments([put(f"d{number:04}", number, A) for number in range(700)]), state(1, p0=700))
    snapshot = store.snapshot()
    blocks = snapshot.rows()
    first = next(blocks)
    snapshot.close()
    store.apply(segments([put("d0000", 700)]), state(2, p0=701))
    assert len(first) + sum(map(len, blocks)) == 700


def test_snapshots_are_read_on_other_threads_while_the_writer_goes_on(store: SliceStore) -> None:
    wrong: list[object] = []
    finished = threading.Event()
    snapshots: list[tuple[int, object]] = []

    def read() -> None:
        while not finished.is_set() or snapshots:
            if not snapshots:
                finished.wait(0.001)
                continue
            expected, taken = snapshots.pop()
            found = rows_of(taken)  # type: ignore[arg-type]
            if len(found) != 50 or any(value != b"%d" % expected for _, value in found):
                wrong.append((expected, found))
            taken.close()  # type: ignore[attr-defined]

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(60):
        window = [
            Version(
                b"d%d" % docid, 0, number * 50 + docid, entries=((key(f"k{number % 7}"), b"%d" % number),)
            )
            for docid in range(50)
        ]
        store.apply(segments(window), state(number, p0=number * 50 + 50))
        snapshots.append((number, store.snapshot()))
        if number % 10 == 5:
            store.start_fold()
        store.finish_fold()
    finished.set()
    for reader in readers:
        reader.join(30)
        assert not reader.is_alive()
    assert not wrong
    assert not snapshots


def test_a_micro_batch_is_durable_on_return(store: SliceStore) -> None:
    versions = [put(f"d{number:03}", number, key(f"k{number % 13}"), B) for number in range(60)]
    result = store.load(chunks(versions), removals(versions), state(1, p0=60))
    assert result.counts == Counts(entries=120, documents=60)
    assert store.durable == state(1, p0=60)
    assert len(keys(store)) == 120


def test_removals_of_a_micro_batch_come_before_its_puts(store: SliceStore) -> None:
    store.load(chunks([put("moved", 0, A), put("left", 1, A)]), [], state(1, p0=2))
    moved, left = put("moved", 2, B), put("left", 3)
    store.load(chunks([moved]), removals([moved, left]), state(2, p0=4))
    assert keys(store) == [B + b"moved"]


def test_chunks_out_of_order_are_loaded_all_the_same(store: SliceStore) -> None:
    versions = [put(f"d{number:03}", number, key(f"k{number % 13}")) for number in range(40)]
    store.load(list(reversed(chunks(versions))), [], state(1, p0=40))
    assert keys(store) == sorted(key(f"k{number % 13}") + b"d%03d" % number for number in range(40))


def test_a_document_in_two_chunks_of_a_batch_goes_by_its_version(store: SliceStore) -> None:
    older, newer = put("d", 0, A, partition=0, time=10), put("d", 0, B, partition=1, time=20)
    store.load(chunks([older, newer], size=1), [], state(1, p0=1, p1=1))
    assert keys(store) == [B + b"d"]
    assert store.counts == Counts(entries=1, documents=1, foreign=1)


def test_live_segments_after_a_build_change_only_what_is_newer(store: SliceStore) -> None:
    store.load(chunks([put("d", 5, A), put("e", 6, A)]), [], state(-1, p0=7))
    store.apply(segments([put("d", 5, A), put("e", 6, A), put("e", 7, B)]), state(1, p0=8))
    assert keys(store) == [A + b"d", B + b"e"]


def test_a_micro_batch_beside_unfolded_changes_is_refused(store: SliceStore) -> None:
    store.apply(segments([put("d", 0, A)]), state(1, p0=1))
    with pytest.raises(InvariantViolationError, match="BackfillIsInvisible"):
        store.load([], [], state(2, p0=1))


def test_the_switch_after_a_build_is_durable(store: SliceStore) -> None:
    store.load(chunks([put("d", 0, A)]), [], Applied(build="b", batch=0, building=True))
    store.load([], [], Applied(build="b", batch=0, building=False, queue_position=12))
    assert store.durable.queue_position == 12
    assert not store.durable.building


def test_long_keys_lie_in_exact_order_among_short_ones(store: SliceStore) -> None:
    texts = [
        "m" * 499,
        "m" * 398,
        "m" * 400,
        "m" * 1_000,
        "m" * 399 + "a" * 300,
        "m" * 399 + "z",
        "n",
        "l" * 700,
    ]
    versions = [put(f"d{number}", number, key(text)) for number, text in enumerate(texts)]
    expected = sorted(key(text) + b"d%d" % number for number, text in enumerate(texts))
    store.apply(segments(versions), state(1, p0=len(texts)))
    assert keys(store) == expected
    fold(store)
    assert keys(store) == expected
    snapshot = store.snapshot()
    for low in range(len(expected)):
        for high in range(low, len(expected)):
            inside = [entry_key for entry_key, _ in rows_of(snapshot, expected[low], expected[high])]
            assert inside == expected[low:high]
            backwards = rows_of(snapshot, expected[low], expected[high], reverse=True)
            assert [entry_key for entry_key, _ in backwards] == expected[low:high][::-1]
    snapshot.close()
    store.apply(segments([put(f"d{number}", 100 + number) for number in range(len(texts))]), state(2, p0=200))
    assert keys(store) == []
