"""LMDB's file from outside: the free list, and checksums that follow commits, against LMDB itself."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from indexer.store.files.checksums import CHECKSUMS_FILE, compare, read_checksums, write_checksums
from indexer.store.files.pages import DamagedError, PageFile
from indexer.store.lmdb.merge import BLOCK_BYTES, FIRST_BLOCK, table_blocks
from tests import share


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[lmdb.Environment]:
    opened = lmdb.open(
        str(tmp_path / "base"), map_size=1 << 28, max_dbs=3, writemap=True, sync=False, metasync=False
    )
    yield opened
    opened.close()


def pages_in_use(environment: lmdb.Environment) -> int:
    with environment.begin() as transaction:
        tables = [None, b"a", b"b"]
        stats = [transaction.stat(environment.open_db(name, transaction, create=False)) for name in tables]
    return sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)


@pytest.mark.parametrize("reverse", [False, True])
def test_blocks_of_large_rows_are_bounded_in_bytes(environment: lmdb.Environment, reverse: bool) -> None:
    table = environment.open_db(b"a")
    rows = [(b"%06d" % at, os.urandom(20_000 if 1_000 < at < 2_000 else 30)) for at in range(6_000)]
    with environment.begin(write=True) as transaction:
        for key, value in rows:
            transaction.put(key, value, db=table)
    with environment.begin() as transaction, transaction.cursor(table) as cursor:
        blocks = list(table_blocks(cursor, b"", None, reverse, FIRST_BLOCK))
    assert [row for block in blocks for row in block] == (rows[::-1] if reverse else rows)
    sizes = [sum(len(value) for _, value in block) for block in blocks]
    large = [size for size in sizes if size > 2 * BLOCK_BYTES]
    assert len(large) <= 2, "until it is known how large they are"
    assert max(map(len, blocks)) > 1_000, "small rows come in large blocks"


@pytest.mark.parametrize("seed", share.seeds(24))
def test_checksums_follow_any_transactions(tmp_path: Path, environment: lmdb.Environment, seed: int) -> None:
    """Puts, deletions, values over several pages, aborts, and readers that keep pages from being used again.
    After each commit only changed pages are read, and the file says what reading all of them would."""
    source = random.Random(seed)
    tables = [environment.open_db(name) for name in (b"a", b"b")]
    readers: list[lmdb.Transaction[bytes]] = []
    partly = 0
    for _ in range(60):
        transaction = environment.begin(write=True)
        for table in tables:
            keys = [
                b"%012d" % source.randrange(20_000)
                for _ in range(source.randrange(source.choice([1, 10, 300, 6_000])) + 1)
            ]
            if source.random() < 0.6:
                sizes = [source.choice([900, 5_000, 20_000]) if source.random() < 0.01 else 30 for _ in keys]
                for key, size in zip(keys, sizes, strict=True):
                    transaction.put(key, os.urandom(size), db=table)
            else:
                for key in keys:
                    transaction.delete(key, db=table)
        if source.random() < 0.15:
            transaction.abort()
        else:
            transaction.commit()
        if source.random() < 0.2:
            readers.append(environment.begin())
        if readers and source.random() < 0.2:
            readers.pop(source.randrange(len(readers))).abort()
        if source.random() < 0.1:
            with PageFile(tmp_path / "base") as file:
                known = read_checksums(tmp_path)
                if known is not None:
                    compare(file, known)  # older than the file, and still right about what they share
            continue
        read = write_checksums(tmp_path, 1, 1, sync=False)
        sums = read_checksums(tmp_path)
        assert sums is not None
        with PageFile(tmp_path / "base") as file:
            current, _ = file.metas()
            assert compare(file, sums) == current
            free = file.free(current)
            used = [page for page in range(2, current.last + 1) if page not in free]
            assert {page: sums.pages[page - 2] for page in used} == dict(file.digests(used, current))
        assert 2 + pages_in_use(environment) + current.free_pages + len(free) == current.last + 1
        partly += read < len(used)
    assert partly > 20
    for reader in readers:
        reader.abort()


def test_nothing_is_read_when_nothing_was_committed(tmp_path: Path, environment: lmdb.Environment) -> None:
    table = environment.open_db(b"a")
    with environment.begin(write=True, db=table) as transaction:
        transaction.put(b"k", b"v")
    assert write_checksums(tmp_path, 1, 1, sync=True) > 0
    transaction = environment.begin(write=True, db=table)
    transaction.put(b"k", b"w")
    transaction.abort()
    assert write_checksums(tmp_path, 1, 1, sync=True) == 0


def test_a_damaged_checksum_file_counts_as_none(tmp_path: Path, environment: lmdb.Environment) -> None:
    table = environment.open_db(b"a")
    with environment.begin(write=True, db=table) as transaction:
        transaction.put(b"k", b"v")
    write_checksums(tmp_path, 7, 9, sync=False)
    sums = read_checksums(tmp_path)
    assert sums is not None
    assert (sums.owner, sums.sequence) == (7, 9)
    path = tmp_path / CHECKSUMS_FILE
    data = path.read_bytes()
    for place in range(0, len(data), 5):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert read_checksums(tmp_path) is None
    for short in (b"", data[:10], data[:-1], data + b"\0"):
        path.write_bytes(short)
        assert read_checksums(tmp_path) is None
    path.unlink()
    assert read_checksums(tmp_path) is None


def test_a_free_list_that_names_its_own_pages_is_damage(
    tmp_path: Path, environment: lmdb.Environment
) -> None:
    """It would take itself out of the comparison."""
    table = environment.open_db(b"a")
    for value in range(6):
        with environment.begin(write=True, db=table) as transaction:
            for key in range(400):
                transaction.put(b"%04d" % key, b"%d" % value)
    with PageFile(tmp_path / "base") as file:
        current, _ = file.metas()
        free = file.free(current)
        assert current.free_root is not None
        assert free
        page = bytearray(file.page(current.free_root, current))
    some = max(free).to_bytes(8, "little")
    assert some in page
    path = tmp_path / "base" / "data.mdb"
    with path.open("r+b") as raw:
        raw.seek(current.free_root * current.page_bytes)
        raw.write(bytes(page).replace(some, current.free_root.to_bytes(8, "little")))
    with PageFile(tmp_path / "base") as file, pytest.raises(DamagedError, match="free list"):
        file.free(current)
