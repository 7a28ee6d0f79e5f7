"""Damaged files: found at opening or when verified, or without consequence; never served, never a signal."""

from __future__ import annotations

import os
import random
import shutil
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import lmdb
import pytest

from indexer.store.files.checksums import CHECKSUMS_FILE, Checksums, compare
from indexer.store.files.pages import Meta, PageFile
from indexer.store.fold.worker import FoldWorker
from indexer.store.formats.records import PUT
from indexer.store.interface import Row, SkipLine, StoreDamagedError, StoredDocument
from keytide.model.entry import pack_keyed_value, pack_value
from keytide.wire.messages import Skip
from tests.store_kit import SMALL, Version, key, lmdb_store, rows_of, segment, segments, state

SETTINGS = replace(SMALL, check_mirror_s=None, base_map_bytes=8 << 20, filter_bits=1 << 10)
INCLUDED = pack_value(b"", b'{"v":1}')
Answer = tuple[list[Row], list[tuple[bytes, StoredDocument]], list[SkipLine]]


class Sample(NamedTuple):
    """A closed store with some of everything.

    Attributes:
        folder: its files; copy them.
        older: its files as they were one fold before.
        answer: what it holds, and what the older one holds.
    """

    folder: Path
    older: Path
    answer: Answer
    older_answer: Answer


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, folds: FoldWorker) -> Sample:
    folder = tmp_path_factory.mktemp("sample")
    source = random.Random(5)
    store = lmdb_store(folder / "slice", folds, SETTINGS)
    answers: list[Answer] = []
    for number in range(1, 7):
        first = 1_000 * number
        versions = [
            Version(
                b"d%04d" % source.randrange(900),
                source.choice([0, 0, 0, 1]),
                first + n,
                1_000 + number,
                tuple(
                    (
                        key("k" * source.choice([3, 30, 650]) + str(source.random())),
                        pack_value(b"", b'{"v":1}'),
                    )
                    for _ in range(source.choice([0, 1, 1, 1, 2, 6]))
                ),
            )
            for n in range(80)
        ]
        skips = [Skip(-1, first + 900 + n, b"bad", "not-json", "why") for n in range(5)]
        store.apply(
            [*segments(versions), segment([], first + 900, first + 950, skips)],
            state(number, p0=first + 1_000, p1=first + 1_000),
        )
        store.start_fold()
        assert store.finish_fold(30) is not None
        if number == 5:
            answers.append(everything(store))
            shutil.copytree(folder / "slice", folder / "older", ignore=shutil.ignore_patterns("delta-*"))
    answers.append(everything(store))
    store.close()
    for thread in threading.enumerate():
        if (
            thread.name == "old-delta"
        ):  # it still deletes a delta that was folded; copies are made from here on
            thread.join(30)
    assert not list((folder / "slice").glob("delta-*"))
    return Sample(folder / "slice", folder / "older", answers[1], answers[0])


def everything(store: object) -> Answer:
    snapshot = store.snapshot()  # type: ignore[attr-defined]
    try:
        return rows_of(snapshot), list(snapshot.back_rows()), snapshot.skips(10_000)
    finally:
        snapshot.close()


def flip(path: Path, place: int, mask: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ mask]))


def copy_of(sample: Sample, folder: Path) -> Path:
    """A copy of its files without the hole behind the last page: many are made."""
    shutil.copytree(sample.folder, folder)
    with PageFile(folder / "base") as file:
        current, _ = file.metas()
    os.truncate(folder / "base" / "data.mdb", (current.last + 1) * current.page_bytes)
    return folder


def free_and_used(sample: Sample) -> tuple[list[int], list[int], int]:
    """The pages behind the meta pages that are free, those in use, and the size of a page."""
    with PageFile(sample.folder / "base") as file:
        current, _ = file.metas()
        free = file.free(current)
    return sorted(free), sorted(set(range(2, current.last + 1)) - free), current.page_bytes


def test_a_flipped_byte_in_any_page_in_use(tmp_path: Path, folds: FoldWorker, sample: Sample) -> None:
    """Found at opening, before anything is written: so it is flipped back for the next. Two bytes of each."""
    source = random.Random(11)
    _, used, page_bytes = free_and_used(sample)
    folder = copy_of(sample, tmp_path / "slice")
    data = folder / "base" / "data.mdb"
    for page in used:
        for place in (source.randrange(40), source.randrange(page_bytes)):
            at, mask = page * page_bytes + place, 1 << source.randrange(8)
            flip(data, at, mask)
            try:
                lmdb_store(folder, folds, SETTINGS)
            except StoreDamagedError:
                pass
            else:
                pytest.fail(f"byte {place} of page {page} was served")
            flip(data, at, mask)
    assert len(used) > 100
    store = lmdb_store(folder, folds, SETTINGS)
    assert everything(store) == sample.answer
    store.close()


def test_a_flipped_byte_in_a_meta_page(tmp_path: Path, folds: FoldWorker, sample: Sample) -> None:
    """Found at opening, or nobody reads it: the answer is the same then."""
    source = random.Random(12)
    _, _, page_bytes = free_and_used(sample)
    whole = copy_of(sample, tmp_path / "whole")
    found = harmless = 0
    for page in (0, 1):
        # Behind 152 they hold nothing. At 144 is the transaction; a larger one is examined, which takes long.
        for place in (*range(16, 144, 4), 144, 149, 3_000):
            folder = tmp_path / "slice"
            shutil.copytree(whole, folder)
            flip(folder / "base" / "data.mdb", page * page_bytes + place, 1 << source.randrange(8))
            try:
                store = lmdb_store(folder, folds, SETTINGS)
            except StoreDamagedError:
                found += 1
            else:
                assert everything(store) == sample.answer, f"byte {place} of page {page}"
                store.close()
                harmless += 1
            shutil.rmtree(folder)
    assert found > 30  # the newer one, but for its address and its map size, which nobody asks it
    assert harmless > 10


@pytest.mark.parametrize("how", ["a flipped byte", "noise", "zeros"])
def test_free_pages_may_hold_anything(tmp_path: Path, folds: FoldWorker, sample: Sample, how: str) -> None:
    """All of them at once. Nothing reads them: no scan, and no commit or fold that takes them into use."""
    source = random.Random(13)
    free, _, page_bytes = free_and_used(sample)
    assert len(free) > 100
    folder = copy_of(sample, tmp_path / "slice")
    for page in free:
        at = page * page_bytes
        if how == "a flipped byte":
            for place in (source.randrange(40), source.randrange(page_bytes)):
                flip(folder / "base" / "data.mdb", at + place, 1 << source.randrange(8))
        else:
            with (folder / "base" / "data.mdb").open("r+b") as file:
                file.seek(at)
                file.write(source.randbytes(page_bytes) if how == "noise" else bytes(page_bytes))
    store = lmdb_store(folder, folds, SETTINGS)
    assert everything(store) == sample.answer
    gone = [
        Version(docid, held.partition, 9_000 + n, 9_000) for n, (docid, held) in enumerate(sample.answer[1])
    ]
    for half, number in ((gone[::2], 9), (gone[1::2], 10)):
        store.apply(segments(half), state(number, p0=1_000 * number + 1_000, p1=1_000 * number + 1_000))
        store.start_fold()
        assert store.finish_fold(30) is not None
        store.check_mirror()
        store.verify()
    assert everything(store)[0] == []
    assert store.step_back(lambda applied: applied.number < 9)
    assert everything(store) == sample.answer
    store.close()
    store = lmdb_store(folder, folds, SETTINGS)
    assert everything(store) == sample.answer
    store.close()


def cut(keep: Callable[[int, int], int]) -> Callable[[Path, Sample], None]:
    def harm(folder: Path, _: Sample) -> None:
        with PageFile(folder / "base") as file:
            current, _before = file.metas()
        os.truncate(folder / "base" / "data.mdb", keep(current.last, current.page_bytes))

    return harm


def zero(first: int, end: int | None) -> Callable[[Path, Sample], None]:
    """Zeros from page to page (None: to the end)."""

    def harm(folder: Path, _: Sample) -> None:
        path = folder / "base" / "data.mdb"
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(first * 4_096)
            file.write(b"\0" * ((size if end is None else end * 4_096) - first * 4_096))

    return harm


def older(*names: str) -> Callable[[Path, Sample], None]:
    """Files as they were one fold before."""

    def harm(folder: Path, sample: Sample) -> None:
        for name in names:
            path, source = folder / name, sample.older / name
            if source.is_dir():
                shutil.rmtree(path)
                shutil.copytree(source, path)
            else:
                shutil.copy(source, path)

    return harm


def delete(name: str) -> Callable[[Path, Sample], None]:
    def harm(folder: Path, _: Sample) -> None:
        (folder / name).unlink()

    return harm


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(cut(lambda last, size: last * size), id="the last page is cut off"),
        pytest.param(cut(lambda last, size: (last + 1) * size - 1), id="the last byte is cut off"),
        pytest.param(cut(lambda last, size: last // 2 * size), id="half is cut off"),
        pytest.param(cut(lambda last, size: 2 * size), id="all but the meta pages is cut off"),
        pytest.param(cut(lambda last, size: 100), id="cut within the first meta page"),
        pytest.param(cut(lambda last, size: 0), id="emptied"),
        pytest.param(delete("base/data.mdb"), id="deleted"),
        pytest.param(zero(0, None), id="all zeros"),
        pytest.param(zero(0, 1), id="the first meta page zeros"),
        pytest.param(zero(1, 2), id="the second meta page zeros"),
        pytest.param(zero(2, None), id="zeros behind the meta pages"),
        pytest.param(zero(5, 6), id="a page of zeros"),
        pytest.param(older("base"), id="an older base"),
        pytest.param(older("base", "filter"), id="an older base and filter"),
    ],
)
def test_damage_is_found_at_opening(
    tmp_path: Path, folds: FoldWorker, sample: Sample, harm: Callable[[Path, Sample], None]
) -> None:
    shutil.copytree(sample.folder, tmp_path / "slice")
    harm(tmp_path / "slice", sample)
    for _ in range(2):
        with pytest.raises(StoreDamagedError):
            lmdb_store(tmp_path / "slice", folds, SETTINGS)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda *_: None, id="nothing"),
        pytest.param(delete(CHECKSUMS_FILE), id="no checksums"),
        pytest.param(older(CHECKSUMS_FILE), id="older checksums"),
        pytest.param(lambda folder, _: flip(folder / CHECKSUMS_FILE, 99), id="damaged checksums"),
        pytest.param(delete("filter"), id="no filter"),
        pytest.param(older("filter"), id="an older filter"),
        pytest.param(older("undo"), id="older undo files"),
        pytest.param(cut(lambda last, size: (last + 1) * size), id="nothing behind the last page"),
    ],
)
def test_what_can_be_made_up_for(
    tmp_path: Path, folds: FoldWorker, sample: Sample, harm: Callable[[Path, Sample], None]
) -> None:
    folder = tmp_path / "slice"
    shutil.copytree(sample.folder, folder)
    harm(folder, sample)
    for _ in range(2):
        store = lmdb_store(folder, folds, SETTINGS)
        assert everything(store) == sample.answer
        store.verify()
        gone = [
            Version(docid, held.partition, 9_000 + n, 9_000)
            for n, (docid, held) in enumerate(sample.answer[1])
        ]
        store.apply(segments(gone), state(9, p0=10_000, p1=10_000))
        assert everything(store)[0] == []
        store.close()


def test_all_files_of_an_older_state_together_are_that_state(
    tmp_path: Path, folds: FoldWorker, sample: Sample
) -> None:
    """And a filter of later times does not hide what it held."""
    shutil.copytree(sample.older, tmp_path / "slice")
    shutil.copy(sample.folder / "filter", tmp_path / "slice" / "filter")
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    assert everything(store) == sample.older_answer
    assert store.undo_steps == 5
    store.close()


@pytest.mark.fault
@pytest.mark.parametrize(
    ("flags", "pages"),
    [
        pytest.param(1, 2, id="branch pages"),
        pytest.param(2, 1, id="a leaf page"),
        pytest.param(4, 1, id="an overflow page"),
    ],
)
def test_a_base_without_checksums_never_ends_the_process(
    tmp_path: Path, folds: FoldWorker, sample: Sample, flags: int, pages: int
) -> None:
    """Then LMDB itself has to read it: in a process of its own. What cannot be seen there (a changed value,
    unused bytes) is served; anything else is found."""
    source = random.Random(3)
    _, used, page_bytes = free_and_used(sample)
    data = (sample.folder / "base" / "data.mdb").read_bytes()
    kind = [
        page
        for page in used
        if struct.unpack_from("<QHH", data, page * page_bytes)[::2] == (page, flags)  # its number, its flags
    ]
    for page in source.sample(kind, pages):
        folder = copy_of(sample, tmp_path / str(page))
        (folder / CHECKSUMS_FILE).unlink()
        with (folder / "base" / "data.mdb").open("r+b") as raw:
            raw.seek(page * page_bytes)
            raw.write(source.randbytes(400))
        with pytest.raises(StoreDamagedError):
            lmdb_store(folder, folds, SETTINGS)


def test_damage_under_an_open_store_is_found_when_it_is_verified(
    tmp_path: Path, folds: FoldWorker, sample: Sample
) -> None:
    shutil.copytree(sample.folder, tmp_path / "slice")
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    store.verify()
    with PageFile(tmp_path / "slice" / "base") as file:
        current, _ = file.metas()
        used = sorted(set(range(2, current.last + 1)) - file.free(current))
    flip(tmp_path / "slice" / "base" / "data.mdb", used[len(used) // 2] * current.page_bytes + 2_000)
    with pytest.raises(StoreDamagedError, match="not as they were written"):
        store.verify()
    store.close()


def test_verifying_beside_commits_and_folds_finds_nothing(
    tmp_path: Path, folds: FoldWorker, sample: Sample
) -> None:
    """On another thread, again and again, while the base moves on."""
    shutil.copytree(sample.folder, tmp_path / "slice")
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    wrong: list[StoreDamagedError] = []
    rounds = 0
    finished = threading.Event()

    def verify() -> None:
        nonlocal rounds
        while not finished.is_set():
            try:
                store.verify()
            except StoreDamagedError as error:
                wrong.append(error)
                return
            rounds += 1

    thread = threading.Thread(target=verify)
    thread.start()
    number = 10
    while number < 30 or (rounds < 20 and not wrong and number < 500):
        versions = [
            Version(b"d%04d" % n, 0, 1_000 * number + n, entries=((key(f"{number}"), b""),))
            for n in range(200)
        ]
        store.apply(segments(versions), state(number, p0=1_000 * number + 1_000))
        store.start_fold()
        assert store.finish_fold(30) is not None
        if number % 7 == 0:
            assert store.step_back(lambda applied, number=number: applied.number < number)  # type: ignore[misc]
        number += 1
    finished.set()
    thread.join(30)
    assert not wrong
    assert rounds >= 20
    store.close()


def test_impossible_rows_are_damage_wherever_they_are_read(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    versions = [Version(b"d%02d" % n, 0, n, entries=((key("k" * 600), b""),)) for n in range(5)]
    store.apply([*segments(versions), segment([], 5, 6, [Skip(-1, 5, b"x", "not-json", "")])], state(1, p0=6))
    delta = store._delta
    assert delta is not None
    tables = delta.tables
    with delta.environment.begin(write=True) as transaction:
        for table, value in (
            (tables.back, b"\x01\x01short"),
            (tables.long, b"\x01\xff\xff"),
            (tables.skips, b"\x01?"),
        ):
            for name in [bytes(row) for row, _ in transaction.cursor(table)]:
                transaction.put(name, value, db=table)
    delta.changed()
    snapshot = store.snapshot()
    for read in (
        lambda: list(snapshot.rows()),
        lambda: snapshot.backs([b"d00"]).get(b"d00"),
        lambda: list(snapshot.back_rows()),
        lambda: snapshot.skips(10),
    ):
        with pytest.raises(StoreDamagedError):
            read()
    snapshot.close()
    with pytest.raises(StoreDamagedError):
        store.apply(segments([Version(b"d01", 0, 10)]), state(2, p0=11))
    store.close()


@pytest.mark.parametrize("error", [lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.BadTxnError])
def test_what_lmdb_finds_is_damage_in_snapshots_and_commits(
    tmp_path: Path, folds: FoldWorker, monkeypatch: pytest.MonkeyPatch, error: type[lmdb.Error]
) -> None:
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    store.apply(segments([Version(b"d", 0, 0, entries=((key("k"), b""),))]), state(1, p0=1))
    snapshot = store.snapshot()

    def fail(*_: object) -> None:
        raise error("page has wrong type")

    with monkeypatch.context() as patched:
        patched.setattr("indexer.store.lmdb.levels.View.cursor", fail)
        patched.setattr("indexer.store.lmdb.levels.View.get", fail)
        patched.setattr("indexer.store.lmdb.levels.View.many", fail)
        with pytest.raises(StoreDamagedError):
            list(snapshot.rows())
        with pytest.raises(StoreDamagedError):
            snapshot.backs([b"d"]).get(b"d")
        with pytest.raises(StoreDamagedError):
            store.apply(segments([Version(b"d", 0, 1)]), state(2, p0=2))
    assert [row[0] for row in rows_of(snapshot)] == [key("k") + b"d"]
    snapshot.close()
    store.close()


def test_the_fold_worker_says_when_a_base_is_damaged(tmp_path: Path, folds: FoldWorker) -> None:
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    store.apply(segments([Version(b"d", 0, 0, entries=((key("k"), b""),))]), state(1, p0=1))
    flip(tmp_path / "slice" / "base" / "data.mdb", 16)
    flip(tmp_path / "slice" / "base" / "data.mdb", 4_096 + 16)
    store.start_fold()
    with pytest.raises(StoreDamagedError):
        store.finish_fold(30)
    store.close()


def test_a_store_that_was_never_begun_may_be_empty(tmp_path: Path, folds: FoldWorker) -> None:
    """Killed while the base was being made: nothing is lost."""
    (tmp_path / "slice" / "base").mkdir(parents=True)
    (tmp_path / "slice" / "base" / "data.mdb").touch()
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    store.close()
    (tmp_path / "slice" / CHECKSUMS_FILE).unlink()  # killed before the first checksums
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    store.check_mirror()
    store.close()


def test_counts_that_are_wrong_are_found_when_there_are_no_checksums(
    tmp_path: Path, folds: FoldWorker, sample: Sample
) -> None:
    shutil.copytree(sample.folder, tmp_path / "slice")
    with lmdb.open(str(tmp_path / "slice" / "base"), map_size=8 << 20, max_dbs=5) as environment:
        table = environment.open_db(b"back")
        with environment.begin(write=True, db=table) as transaction:
            transaction.delete(sample.answer[1][0][0])
    with pytest.raises(StoreDamagedError):
        lmdb_store(tmp_path / "slice", folds, SETTINGS)
    (tmp_path / "slice" / CHECKSUMS_FILE).unlink()
    with pytest.raises(StoreDamagedError):
        lmdb_store(tmp_path / "slice", folds, SETTINGS)


def test_an_entry_of_another_structure_is_found_when_there_are_no_checksums(
    tmp_path: Path, folds: FoldWorker, sample: Sample
) -> None:
    shutil.copytree(sample.folder, tmp_path / "slice")
    with lmdb.open(str(tmp_path / "slice" / "base"), map_size=8 << 20, max_dbs=5) as environment:
        table = environment.open_db(b"forward")
        with environment.begin(write=True, db=table) as transaction:
            entry_key, _ = next(iter(transaction.cursor()))
            transaction.put(entry_key, PUT + pack_keyed_value(b"", None, entry_key))
    (tmp_path / "slice" / CHECKSUMS_FILE).unlink()
    with pytest.raises(StoreDamagedError, match="none of this index"):
        lmdb_store(tmp_path / "slice", folds, SETTINGS)


def test_a_store_may_be_closed_while_it_is_verified(
    tmp_path: Path, folds: FoldWorker, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sample.folder, tmp_path / "slice")
    store = lmdb_store(tmp_path / "slice", folds, SETTINGS)
    compared: list[int] = []

    def close_then_compare(file: PageFile, sums: Checksums) -> Meta:
        store.close()
        compared.append(sums.transaction)
        return compare(file, sums)

    monkeypatch.setattr("indexer.store.integrity.opening.compare", close_then_compare)
    store.verify()
    assert compared
    monkeypatch.undo()
    lmdb_store(tmp_path / "slice", folds, SETTINGS).close()
