"""Several spans read in one walk give what each gives by itself: over base and deltas, narrow and wide ones,
long keys, from either end, however few are wanted."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest

from indexer.store.fold.worker import FoldWorker
from indexer.store.formats.records import REMOVED
from indexer.store.interface import Applied, Row, SliceStore, StoreSnapshot
from indexer.store.joint import LOOKED_AT_BYTES, LevelCursor, first_rows, rows_within
from indexer.store.lmdb.leaves import LeafReader
from indexer.store.lmdb.merge import KeySpan, live_blocks
from indexer.store.lmdb.snapshot import LmdbSnapshot
from keytide.errors import RetryableError
from keytide.model.byte_columns import Bytes, EntryColumns
from keytide.model.timestamp import Timestamp
from tests import share
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, key, lmdb_store, segments

NUMBERS = 3_000


def stored(number: int) -> bytes:
    """Nearly all short, some of more than 500 bytes."""
    return key(f"{number:05}" + ("x" * 600 if number % 97 == 0 else ""))


def commit(store: SliceStore, queue: int, versions: Sequence[Version]) -> None:
    """Apply them; the first ones are folded into the base."""
    store.apply(segments(versions), Applied(Timestamp(), queue, queue_position=queue))
    if queue == 1:
        assert store.start_fold()
        store.finish_fold(30)


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
        commit(store, queue, versions)
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


@pytest.mark.parametrize("seed", share.seeds(48))
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
        columns = snapshot.entry_columns(spans, False, limit or NUMBERS)
        assert [row for block in columns for row in block.items()] == each[:limit]
        columns = snapshot.entry_columns(spans[::-1], True, limit or NUMBERS)
        assert [row for block in columns for row in block.items()] == each[::-1][:limit]


def test_no_spans_have_no_rows(snapshot: StoreSnapshot) -> None:
    assert list(snapshot.rows_of([])) == []
    assert list(snapshot.rows_of([(b"", None)], limit=0)) == []


@pytest.mark.parametrize("seed", share.seeds(24))
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
    for _ in range(40):
        spans = [
            (low, high)
            for low, high in spans_of(chance, chance.choice([1, 3, 60, 400]), chance.choice([2, 20, 500]))
            if high is not None
        ]
        lows, highs = [low for low, _ in spans], [high for _, high in spans]
        each = [row for low, high in spans for block in held.rows(low, high) for row in block]
        within = rows_within([levels], lows, highs, 2 * NUMBERS, REMOVED)
        assert within is not None
        assert within[0] == each
        assert len(each) <= sum(within[1]) <= 2 * NUMBERS
        most = chance.randrange(len(each) + 1)
        some = rows_within([levels], lows, highs, most, REMOVED)
        assert some is not None
        assert (sum(some[1]) > most) == (sum(within[1]) > most)
        assert sum(some[1]) <= 2 * most + 2
        for level in levels:  # wherever one stands, all of it is read from its beginning
            if chance.random() < 0.5:
                level.ends()
            else:
                level.begin(key("00500"), None, False, 3, LOOKED_AT_BYTES)
        everything = rows_within([levels], [b""], [b"\xff"], 2 * NUMBERS, REMOVED)
        assert everything is not None
        assert everything[0] == [row for block in held.rows(b"", None) for row in block]
        for level in levels:
            check_left_out(level, lows, highs, chance)
    held.close()


def check_left_out(level: LevelCursor, lows: list[bytes], highs: list[bytes], chance: random.Random) -> None:
    """Of rows whose keys end alike one is given that is no removal marker, and others in full if told."""
    every, looked_at = level.within(lows, highs, 2 * NUMBERS, 0, set())
    assert looked_at == len(every)
    if not every:
        return
    behind = len(every[0][0]) - 2
    full = {row[0][behind:] for row in every if chance.random() < 0.1}
    some, again = level.within(lows, highs, 2 * NUMBERS, behind, full)
    assert again == looked_at
    known: set[bytes] = set()
    expected = []
    for row in every:
        document = row[0][behind:]
        if document not in known:
            expected.append(row)
            if row[1] != REMOVED and document not in full:
                known.add(document)
    assert some == expected
    most = chance.randrange(looked_at)
    few, counted = level.within(lows, highs, most, behind, full)
    assert counted == most + 1
    assert few == some[: len(few)]


@pytest.mark.parametrize("seed", share.seeds(32))
def test_pages_are_read_as_rows_are(
    seed: int, tmp_path: Path, folds: FoldWorker, request: pytest.FixtureRequest
) -> None:
    """Over base, frozen and newest delta with removals, from either end, with values of all sizes that fit a
    page; and it is the pages that are read."""
    chance = random.Random(seed)
    store = lmdb_store(tmp_path / "slice", folds)
    request.addfinalizer(store.close)
    for queue in range(1, 5):
        versions = [
            Version(
                b"d%05d" % one,
                0,
                queue * NUMBERS + at,
                entries=((key(f"{one:05}" * (1 + one % 3)), bytes(chance.randrange(seed // 2 * 10 + 1))),)
                if chance.random() < 0.8
                else (),
            )
            for at, one in enumerate(sorted(chance.sample(range(NUMBERS), NUMBERS // queue)))
        ]
        store.apply(segments(versions), Applied(Timestamp(), queue, queue_position=queue))
        if queue < 4 and (seed + queue) % 3:
            assert store.start_fold()
            store.finish_fold(30)
    held = store.snapshot()
    for _ in range(30):
        ends = sorted(key(f"{chance.randrange(NUMBERS):05}") for _ in range(2 * chance.choice([1, 1, 3])))
        some: list[KeySpan] = [pair for pair in zip(ends[::2], ends[1::2], strict=True) if pair[0] < pair[1]]
        kinds: list[list[KeySpan]] = [some, [(b"", None)], [(ends[0], None)]]
        spans = chance.choice(kinds)
        reverse, limit = chance.random() < 0.5, chance.choice([1, 5, 100, 2 * NUMBERS])
        spans = spans[::-1] if reverse else spans
        wanted = [row for block in held.rows_of(spans, reverse, limit) for row in block]
        with (
            mock.patch("indexer.store.lmdb.leaves.FEWEST_ROWS", 0),
            mock.patch("indexer.store.lmdb.leaves.live_blocks", side_effect=AssertionError),
        ):
            found = [row for block in held.entry_columns(spans, reverse, limit) for row in block.items()]
        assert found == wanted
    held.close()


@pytest.mark.parametrize("how", ["a long value", "a page that is none", "another file", "no file"])
def test_pages_that_are_unusual_are_read_row_by_row(
    how: str, tmp_path: Path, folds: FoldWorker, request: pytest.FixtureRequest
) -> None:
    store = lmdb_store(tmp_path / "slice", folds)
    request.addfinalizer(store.close)
    large = bytes(3_000 if how == "a long value" else 3)
    versions = [
        Version(b"d%05d" % at, 0, at, entries=((key(f"{at:05}"), large if at == 900 else b"v"),))
        for at in range(1_000)
    ]
    store.apply(segments(versions), Applied(Timestamp(), 1, queue_position=1))
    assert store.start_fold()
    store.finish_fold(30)
    held = store.snapshot()
    wanted = [row for block in held.rows(b"", None) for row in block]
    assert len(wanted) == 1_000
    file = tmp_path / "slice" / "base" / "data.mdb"
    elsewhere = file.with_name("elsewhere")
    read = LeafReader._read

    def torn(self: LeafReader, numbers: Sequence[int]) -> Bytes:
        data = read(self, numbers)
        if len(numbers) > 1:
            data[12] ^= 1  # where the page says how many rows it has
        return data

    with ExitStack() as undone:
        if how == "a page that is none":
            undone.enter_context(mock.patch.object(LeafReader, "_read", torn))
        elif how.endswith("file"):
            file.rename(elsewhere)
            undone.callback(elsewhere.rename, file)
            if how == "another file":
                shutil.copy(elsewhere, file)
        with mock.patch("indexer.store.lmdb.leaves.live_blocks", side_effect=live_blocks) as by_rows:
            blocks = held.entry_columns([(b"", None)], False, 2_000)
            found = [row for block in blocks for row in block.items()]
        assert by_rows.called
        assert found == wanted
    held.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_who_reads_on_reads_more_leaves_at_once_and_who_wants_few_rows_none(
    reverse: bool, tmp_path: Path, folds: FoldWorker, request: pytest.FixtureRequest
) -> None:
    """Of rows all but the last ones of which were removed."""
    store = lmdb_store(tmp_path / "slice", folds)
    request.addfinalizer(store.close)
    gone = slice(NUMBERS // 10, None) if reverse else slice(0, -NUMBERS // 10)
    for queue, some in enumerate((range(NUMBERS), range(NUMBERS)[gone]), 1):
        versions = [
            Version(
                b"d%05d" % at,
                0,
                queue * NUMBERS + at,
                entries=((key(f"{at:05}"), b""),) if queue == 1 else (),
            )
            for at in some
        ]
        commit(store, queue, versions)
    held = store.snapshot()
    request.addfinalizer(held.close)
    wanted = [row for block in held.rows_of([(b"", None)], reverse) for row in block]
    assert len(wanted) == NUMBERS // 10
    leaves = reads = 0
    take_apart = LeafReader._block

    def counted(self: LeafReader, numbers: Sequence[int], backwards: bool) -> EntryColumns:
        nonlocal leaves, reads
        leaves, reads = leaves + len(numbers), reads + 1
        return take_apart(self, numbers, backwards)

    with mock.patch.object(LeafReader, "_block", counted):
        assert [row for block in held.entry_columns([(b"", None)], reverse, 20) for row in block.items()] == (
            wanted[:20]
        )
        assert not reads
        with mock.patch("indexer.store.lmdb.leaves.FEWEST_ROWS", 20):
            blocks = held.entry_columns([(b"", None)], reverse, 20)
            assert [row for block in blocks for row in block.items()] == wanted[:20]
    assert leaves > 30
    assert reads <= 10


def test_no_file_stays_open_when_that_of_another_level_cannot_be_opened(
    tmp_path: Path, folds: FoldWorker, request: pytest.FixtureRequest
) -> None:
    """Of base and delta, the second of which is asked for in vain."""
    store = lmdb_store(tmp_path / "slice", folds)
    request.addfinalizer(store.close)
    for queue in (1, 2):
        versions = [
            Version(b"d%05d" % at, 0, queue * 1_000 + at, entries=((key(f"{at * queue:05}"), b""),))
            for at in range(300)
        ]
        commit(store, queue, versions)
    held = store.snapshot()
    request.addfinalizer(held.close)
    wanted = [row for block in held.rows() for row in block]
    opened: list[int] = []
    open_file = os.open

    def once(path: str | Path, flags: int) -> int:
        if opened:
            raise OSError(errno.EMFILE, "too many open files")
        opened.append(open_file(path, flags))
        return opened[0]

    with mock.patch("indexer.store.lmdb.leaves.os.open", once):
        found = [row for block in held.entry_columns([(b"", None)], False, 10_000) for row in block.items()]
    assert found == wanted
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_long_entries_are_not_read_as_levels(snapshot: StoreSnapshot) -> None:
    assert (snapshot.levels() is None) == isinstance(snapshot, LmdbSnapshot)
    snapshot.close()
    if isinstance(snapshot, LmdbSnapshot):
        with pytest.raises(RetryableError):
            snapshot.levels()
