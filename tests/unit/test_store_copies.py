"""Copies of slice stores, both kinds: one commit goes out, and what it fills is the same store. (Any history
of them: `tests/property/test_store.py`.)"""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from indexer.store.copies import EXPORT_TABLES, StoreFilling, Table
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, Counts, SliceStore, StoreDamagedError, StoredDocument
from indexer.store.lmdb.copying import LmdbSliceFilling
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import MIB
from keytide.errors import ConfigurationError, InvariantViolationError, KeytideError, RetryableError
from keytide.wire.messages import Skip
from tests.forking import Forking
from tests.memory_store.copying import MemorySliceFilling
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import (
    SMALL,
    Version,
    all_rows,
    exported,
    fill,
    key,
    lmdb_store,
    pinning,
    segment,
    segments,
    state,
)

A, B = key("a"), key("b")
LONG = key("x" * 700)
DURABLE = replace(SMALL, fsync=True)


def put(docid: str, offset: int, *keys: bytes, partition: int = 0, time: int = 1_000) -> Version:
    return Version(docid.encode(), partition, offset, time, tuple((some, b"") for some in keys))


class Kind:
    """How stores of a kind are made, filled and opened."""

    def __init__(self, name: str, folder: Path, folds: FoldWorker) -> None:
        self.name, self.folder, self.folds = name, folder, folds
        self.disk: StoreFilling | None = None

    def store(self) -> SliceStore:
        return lmdb_store(self.folder / "slice", self.folds) if self.name == "lmdb" else memory()

    def filling(self) -> StoreFilling:
        """What a process finds that opens it."""
        if self.name == "lmdb":
            return LmdbSliceFilling(self.folder / "filling", SMALL)
        self.disk = self.disk or MemorySliceFilling()
        return self.disk

    def copy(self) -> SliceStore:
        """What was filled, opened."""
        if isinstance(self.disk, MemorySliceFilling):
            return MemorySliceStore.filled(self.disk, check=True)
        (self.folder / "filling").rename(self.folder / "copy")
        return lmdb_store(self.folder / "copy", self.folds)


def memory() -> MemorySliceStore:
    return MemorySliceStore(Applied(), check=True)


@pytest.fixture(params=["lmdb", "memory"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, folds: FoldWorker) -> Kind:
    return Kind(request.param, tmp_path, folds)


@pytest.fixture
def store(kind: Kind) -> Iterator[SliceStore]:
    """One with everything in it that a store can hold, and something that is not durable."""
    made = kind.store()
    skip = Skip(-1, 7, b"s", "not-json", "at 3")
    made.apply([segment([put("l", 4, LONG, A)], 0, 9, [skip])], state(1, p0=9))
    made.apply(segments([put("t", 9, A), put("f", 10, A, B)]), state(2, p0=11))
    gone = [put("t", 0, partition=1, time=1_500), put("f", 1, B, partition=1, time=1_500)]
    made.apply(segments(gone), state(3, p0=11, p1=2))
    fold(made)
    made.apply(segments([put("volatile", 11, A)]), state(4, p0=12, p1=2))
    yield made
    made.close()


def fold(store: SliceStore) -> None:
    assert store.start_fold()
    assert store.finish_fold(30) is not None


def test_a_copy_is_what_was_durable_and_goes_on_as_the_store_does(kind: Kind, store: SliceStore) -> None:
    store.step_back(lambda applied: applied.number <= 3)
    export, filling = store.export(), kind.filling()
    assert export.counts == Counts(entries=3, documents=2, tombstones=1, skips=1, foreign=2)
    filling.begin(export.generation)
    fill(filling, export, most_bytes=1)
    filling.close()
    copy = kind.copy()
    assert copy.applied == copy.durable == copy.horizon == state(3, p0=11, p1=2)
    assert copy.undo_steps == 0
    later = [
        [put("t", 11, B, time=1_200), put("f", 12, A, time=1_700), put("new", 13, LONG)],
        [put("l", 14), put("f", 2, B, partition=1, time=1_600)],
    ]
    for number, versions in enumerate([[], *later], 3):
        if versions:
            results = [one.apply(segments(versions), state(number, p0=20)) for one in (store, copy)]
            assert results[0][:3] == results[1][:3]
        assert all_rows(copy) == all_rows(store)
        assert copy.counts == store.counts
        before, after = store.snapshot(), copy.snapshot()
        assert list(after.back_rows()) == list(before.back_rows())
        assert after.skips(9) == before.skips(9)
        before.close()
        after.close()
        copy.check_mirror()
    fold(copy)
    copy.verify()
    assert copy.step_back(lambda applied: applied.number <= 3), "the way back begins with the copy"
    assert not copy.step_back(lambda applied: applied.number <= 2)
    copy.close()


def test_tombstones_and_ids_of_several_partitions_are_copied(kind: Kind, store: SliceStore) -> None:
    export, filling = store.export(), kind.filling()
    filling.begin(export.generation)
    fill(filling, export)
    filling.close()
    copy = kind.copy()
    snapshot = copy.snapshot()
    assert snapshot.backs([b"t"]).get(b"t") == StoredDocument(1, 0, 1_500, (), True)
    assert snapshot.backs([b"f"]).get(b"f") == StoredDocument(1, 1, 1_500, (B,), True)
    snapshot.close()
    copy.close()


def test_an_export_stays_what_it_was_and_none_is_ever_called_the_same(kind: Kind, store: SliceStore) -> None:
    first = store.export()
    rows, names = exported(first), {first.generation}
    assert sum(len(some) for _, some in rows) == first.rows_total

    def another_name() -> None:
        export = store.export()
        assert export.generation not in names
        names.add(export.generation)
        export.close()
        assert exported(first) == rows
        assert (first.applied, first.counts.entries) == (state(3, p0=11, p1=2), 3)

    again = store.export()
    assert again.generation == first.generation, "nothing was made durable: what was copied can go on"
    fold(store)
    another_name()
    store.apply(segments([put("l", 20)]), state(5, p0=21, p1=2))
    fold(store)
    another_name()
    assert store.step_back(lambda applied: applied.number <= 4)
    another_name()
    assert store.step_back(lambda applied: applied.number <= 3)
    another_name()
    again.close()
    first.close()


def test_a_store_that_is_begun_anew_gives_its_commits_other_names(kind: Kind) -> None:
    names = set()
    for _ in range(2):
        store = kind.store()
        store.apply(segments([put("d", 0, A)]), state(1, p0=1))
        fold(store)
        names.add(store.export().generation)
        store.destroy()
    assert len(names) == 2


def test_an_export_ends_with_its_store(kind: Kind, store: SliceStore) -> None:
    export = store.export()
    closed = store.export()
    closed.close()
    closed.close()
    store.close()
    asks: list[Callable[[], object]] = [
        store.export,
        lambda: export.rows("forward", b"", 100),
        lambda: closed.rows("forward", b"", 100),
    ]
    for ask in asks:
        with pytest.raises(RetryableError) as caught:
            ask()
        assert caught.value.problem_type == "snapshot-closed"
    export.close()
    if kind.name == "lmdb":
        again = kind.store()  # an environment can be opened once
        assert isinstance(again, LmdbSliceStore)
        again._base.level.changed()
        assert pinning(again) == (0, 0)
        again.destroy()


def test_exports_are_read_on_other_threads_while_the_store_works_and_ends(kind: Kind) -> None:
    store = kind.store()
    stop, faults, read = threading.Event(), list[Exception](), [0]

    def look() -> None:
        try:
            while not stop.is_set():
                export = store.export()
                (first, _), *_ = export.rows("forward", b"", 1) or [(b"", b"")]
                there = 0
                for table in EXPORT_TABLES:
                    after = b""
                    while rows := export.rows(table, after, 300):
                        there, after = there + len(rows), rows[-1][0]
                assert there == export.rows_total
                # All documents are rewritten by every commit, so an export shows one of them only.
                assert not first or first[1:4] == b"%03d" % export.applied.number
                read[0] += 1
                export.close()
        except RetryableError as error:
            if error.problem_type != "snapshot-closed":
                faults.append(error)
        except (KeytideError, lmdb.Error, AssertionError) as error:
            faults.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 25):
        versions = [put(f"d{n:02}", 100 * number + n, key(f"{number:03}-{n}")) for n in range(20)]
        store.apply(segments(versions), state(number, p0=100 * number + 20))
        fold(store)
    while not read[0] and not faults:
        pass
    store.destroy()
    for thread in threads:
        thread.join(30)
    assert faults == []
    assert not any(thread.is_alive() for thread in threads), "the end of the store is told"


def test_a_filling_goes_on_where_it_was_killed_and_begins_anew_when_told(
    kind: Kind, store: SliceStore
) -> None:
    export, filling = store.export(), kind.filling()
    assert (filling.generation, filling.place, filling.rows) == ("", ("forward", b""), 0)
    filling.begin("of another commit")
    filling.put("forward", [(b"row", b"\x01")])
    filling.put("skips", [(b"line", b"\x01")])
    filling.begin(export.generation)
    assert (filling.place, filling.rows) == (("forward", b""), 0)
    for chunks in range(1, 3):
        fill(filling, export, most_bytes=1, most_chunks=1)
        filling.close()
        filling = kind.filling()
        assert (filling.generation, filling.rows, filling.finished) == (export.generation, chunks, False)
        assert filling.place == ("forward", export.rows("forward", b"", 1 << 30)[chunks - 1][0])
    fill(filling, export)
    filling.close()
    filling = kind.filling()
    assert filling.finished
    filling.close()
    copy = kind.copy()
    copy.check_mirror()
    copy.close()


def test_rows_that_do_not_lie_behind_are_refused(kind: Kind) -> None:
    filling = kind.filling()
    filling.begin("g")
    filling.put("long", [(b"b", b"\x01"), (b"d", b"\x01")])
    wrong: list[tuple[Table, list[bytes]]] = [
        ("long", [b"c"]),
        ("long", [b"d"]),
        ("long", [b"e", b"e"]),
        ("long", [b"f", b"e"]),
        ("forward", [b"x"]),
    ]
    for table, keys in wrong:
        with pytest.raises(InvariantViolationError, match="Mirror"):
            filling.put(table, [(key, b"\x01") for key in keys])
        assert (filling.place, filling.rows) == (("long", b"d"), 2)
    filling.put("long", [])
    filling.put("long", [(b"e", b"\x01")])
    filling.put("back", [(b"a", b"\x01")])
    assert (filling.place, filling.rows) == (("back", b"a"), 4)
    filling.close()


@pytest.mark.parametrize("table", ["forward", "back", "skips"])
def test_a_copy_without_all_rows_is_refused_and_begins_anew(
    kind: Kind, store: SliceStore, table: str
) -> None:
    export, filling = store.export(), kind.filling()
    filling.begin(export.generation)
    for name, rows in exported(export):
        filling.put(name, rows[:-1] if name == table else rows)
    with pytest.raises(StoreDamagedError, match="counted"):
        filling.finish(export.applied, export.counts)
    assert not filling.finished
    filling.begin("")
    assert (filling.generation, filling.rows, filling.place) == ("", 0, ("forward", b""))
    filling.close()
    filling = kind.filling()
    assert (filling.generation, filling.rows, filling.place) == ("", 0, ("forward", b""))
    filling.begin(export.generation)
    fill(filling, export)
    filling.close()
    copy = kind.copy()
    assert copy.applied == export.applied
    copy.close()


def test_a_finished_copy_can_be_begun_anew(kind: Kind, store: SliceStore) -> None:
    export, filling = store.export(), kind.filling()
    filling.begin(export.generation)
    fill(filling, export)
    filling.begin("next")
    assert (filling.finished, filling.rows, filling.generation) == (False, 0, "next")
    filling.finish(Applied(number=9), Counts())
    filling.close()
    copy = kind.copy()
    assert (copy.applied.number, copy.counts) == (9, Counts())
    copy.close()


# --- on the disk ------------------------------------------------------------------------------------------


def documents(count: int) -> list[Version]:
    return [put(f"d{n:05}", n, key(f"k{n % 97}"), *([LONG] if not n % 50 else [])) for n in range(count)]


@pytest.fixture
def source(tmp_path: Path, folds: FoldWorker) -> Iterator[LmdbSliceStore]:
    made = lmdb_store(tmp_path / "slice", folds)
    made.apply(segments(documents(3_000)), state(1, p0=3_000))
    fold(made)
    yield made
    made.close()


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_an_unfinished_copy_is_never_taken_for_a_slice(
    tmp_path: Path, folds: FoldWorker, source: LmdbSliceStore, chunks: int
) -> None:
    filling, export = LmdbSliceFilling(tmp_path / "filling", SMALL), source.export()
    if chunks:
        filling.begin(export.generation)
        fill(filling, export, most_bytes=5_000, most_chunks=chunks)
    filling.close()
    with pytest.raises(ConfigurationError, match="keytide-filling-1"):
        lmdb_store(tmp_path / "filling", folds)
    filling = LmdbSliceFilling(tmp_path / "filling", SMALL)
    if not chunks:
        filling.begin(export.generation)
    fill(filling, export, most_bytes=5_000)
    filling.close()


def test_what_another_release_has_put_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: LmdbSliceStore
) -> None:
    with monkeypatch.context() as later:
        later.setattr("indexer.store.lmdb.copying.FILLING_FORMAT", b"keytide-filling-2")
        filling = LmdbSliceFilling(tmp_path / "filling", SMALL)
        filling.begin("g")
        filling.put("forward", [(b"other", b"layout")])
        filling.close()
    filling, export = LmdbSliceFilling(tmp_path / "filling", SMALL), source.export()
    assert (filling.generation, filling.rows) == ("", 0)
    filling.begin(export.generation)
    fill(filling, export)
    filling.close()


def test_what_cannot_be_read_is_thrown_away(tmp_path: Path, source: LmdbSliceStore) -> None:
    filling, export = LmdbSliceFilling(tmp_path / "filling", SMALL), source.export()
    filling.begin(export.generation)
    fill(filling, export)
    filling.close()
    with (tmp_path / "filling" / "base" / "data.mdb").open("r+b") as file:
        file.write(bytes(8_192))
    filling = LmdbSliceFilling(tmp_path / "filling", SMALL)
    assert (filling.finished, filling.generation, filling.rows) == (False, "", 0)
    filling.begin(export.generation)
    fill(filling, export)
    filling.close()


def test_a_slice_of_another_format_is_not_thrown_away(tmp_path: Path, folds: FoldWorker) -> None:
    lmdb_store(tmp_path / "slice", folds).close()
    with lmdb.open(str(tmp_path / "slice" / "base"), map_size=SMALL.base_map_bytes, max_dbs=5) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True, db=meta) as transaction:
            transaction.put(b"format", b"keytide-slice-9")
    with pytest.raises(ConfigurationError, match="keytide-slice-9"):
        LmdbSliceFilling(tmp_path / "slice", SMALL)


def test_a_copy_is_opened_without_being_examined_and_is_as_dense_as_a_load(
    tmp_path: Path, folds: FoldWorker, source: LmdbSliceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling, export = LmdbSliceFilling(tmp_path / "filling", SMALL), source.export()
    filling.begin(export.generation)
    (tmp_path / "filling" / "copy").write_text("c7")
    fill(filling, export, most_bytes=20_000)
    used = filling._level.room.used_bytes()
    assert filling._level.room._allocated - used == 64 * 4_096, "what was not needed is given back"
    rows_bytes = sum(len(k) + len(v) + 16 for _, rows in exported(export) for k, v in rows)
    assert used < 1.3 * rows_bytes + 64 * 4_096
    filling.close()
    assert (tmp_path / "filling" / "copy").read_text() == "c7"

    def never(*_: object) -> None:
        raise AssertionError("examined")

    with monkeypatch.context() as patched:
        patched.setattr("indexer.store.integrity.opening._examine", never)
        patched.setattr("indexer.store.lmdb.base.Base._build_filter", never)
        copy = lmdb_store(tmp_path / "filling", folds)
        copy.verify()
    copy.apply(segments([put("d00007", 9_000)]), state(2, p0=9_001))
    assert len(all_rows(copy)) == len(all_rows(source)) - 1
    fold(copy)
    copy.check_mirror()
    copy.close()


def test_pages_in_use_never_pass_what_was_allocated(tmp_path: Path, source: LmdbSliceStore) -> None:
    filling, export = LmdbSliceFilling(tmp_path / "filling", SMALL), source.export()
    filling.begin(export.generation)
    place: tuple[Table, bytes] = (EXPORT_TABLES[0], b"")
    for table in EXPORT_TABLES:
        after = b""
        while rows := export.rows(table, after, 3_000):
            filling.put(table, [(k, v * 40) for k, v in rows])
            assert filling._level.room.used_bytes() <= filling._level.room._allocated
            after = rows[-1][0]
            place = (table, after)
    assert filling.place == place
    filling.close()


def test_chunks_are_of_about_the_size_that_was_asked_for(source: LmdbSliceStore) -> None:
    export = source.export()
    assert len(export.rows("forward", b"", 1)) == 1
    for most in (5_000, 20_000):
        rows = export.rows("forward", b"", most)
        assert 0.5 * most < sum(len(k) + len(v) + 200 for k, v in rows) < 1.5 * most
    assert len(export.rows("forward", b"", 1 << 30)) == 3_000
    assert export.rows("skips", b"", 100) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_and_nothing_changes(
    tmp_path: Path, folds: FoldWorker, source: LmdbSliceStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    filling, export = LmdbSliceFilling(tmp_path / "filling", SMALL), source.export()
    filling.begin(export.generation)
    fill(filling, export, most_bytes=1_000, most_chunks=2)
    before = (filling.place, filling.rows)

    def full(*_: object, **__: object) -> None:
        raise OSError(code, "No space left on device")

    rows = export.rows("forward", before[0][1], 1 << 30)
    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full)
        with pytest.raises(RetryableError) as caught:
            filling.put("forward", [(k, v * 2_000) for k, v in rows])
        assert caught.value.problem_type == "disk-full"
        assert (filling.place, filling.rows) == before
    for table, some in exported(export):
        filling.put(table, rows if table == "forward" else some)
    with monkeypatch.context() as patched:
        patched.setattr("indexer.store.lmdb.base.save_filter", full)
        with pytest.raises(RetryableError) as caught:
            filling.finish(export.applied, export.counts)
        assert caught.value.problem_type == "disk-full"
        assert not filling.finished
    filling.finish(export.applied, export.counts)
    filling.close()
    copy = lmdb_store(tmp_path / "filling", folds)
    assert all_rows(copy) == all_rows(source)
    copy.close()


def test_the_reserve_is_left_free(tmp_path: Path) -> None:
    filling = LmdbSliceFilling(tmp_path / "filling", replace(SMALL, reserve_bytes=1 << 60))
    with pytest.raises(RetryableError) as caught:
        filling.begin("g")
    assert caught.value.problem_type == "disk-full"
    assert filling.generation == ""
    filling.close()


def test_what_was_filled_gets_a_map_that_is_large_enough(tmp_path: Path, folds: FoldWorker) -> None:
    small = replace(SMALL, base_map_bytes=MIB)
    filling = LmdbSliceFilling(tmp_path / "filling", small)
    filling.begin("g")

    def fill_up() -> None:
        for n in range(4_000):
            filling.put("back", [(b"%06d" % n, b"\x01" * 500)])

    with pytest.raises(RetryableError) as caught:
        fill_up()
    assert caught.value.problem_type == "disk-full"
    rows = filling.rows
    filling.close()
    filling = LmdbSliceFilling(tmp_path / "filling", small)
    assert filling.rows == rows
    filling.put("back", [(b"%06d" % n, b"\x01" * 500) for n in range(rows, 4_000)])
    filling.close()


PROGRAM = """
import sys
from contextlib import closing
from pathlib import Path
from indexer.store.fold.worker import FoldWorker
from indexer.store.lmdb.copying import LmdbSliceFilling
from tests.store_kit import fill, lmdb_store
from tests.unit.test_store_copies import DURABLE

folder = Path(sys.argv[1])
export = lmdb_store(folder / "slice", FoldWorker()).export()
filling = LmdbSliceFilling(folder / "filling", DURABLE)
filling.begin(export.generation)
fill(filling, export, most_bytes=20_000)
"""


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    with Forking("tests.unit.test_store_copies") as made:
        yield made


@pytest.mark.fault
@pytest.mark.parametrize(
    ("point", "finished"),
    [
        ("filling-before-commit:1", False),
        ("filling-committed:1", False),
        ("filling-before-commit:5", False),
        ("filling-committed:5", False),
        ("filling-before-finish:1", False),
        ("filling-finished:1", True),
    ],
)
def test_killed_at_a_named_place(
    tmp_path: Path, folds: FoldWorker, source: LmdbSliceStore, forking: Forking, point: str, finished: bool
) -> None:
    source.close()
    name, times = point.split(":")
    status, _ = forking.run(PROGRAM, tmp_path, tmp_path / "out", f"{name}:kill:{times}")
    assert status == -signal.SIGKILL
    source = lmdb_store(tmp_path / "slice", folds)
    export, filling = source.export(), LmdbSliceFilling(tmp_path / "filling", DURABLE)
    assert filling.finished == finished
    if not finished:
        assert filling.generation
        assert (filling.rows > 0) == (point != "filling-before-commit:1")
        fill(filling, export, most_bytes=20_000)  # of the same commit, whatever its name is now
    filling.close()
    copy = lmdb_store(tmp_path / "filling", folds)
    assert all_rows(copy) == all_rows(source)
    assert copy.applied == export.applied
    copy.check_mirror()
    copy.verify()
    copy.close()
    source.close()
