"""Checksums of the pages of a base: written beside it after every commit, compared before it is served.

Theory of operation
===================
LMDB has no checksums of its own. The file `checksums` holds one for every page that the state of transaction
T uses, one for the meta page of T, and one for itself.

*Writing.* The checksums of the state before are known. So only those of pages that were free then, or not
there, and are in use now must be computed (`pages` says why these are all): the cost goes with what the
commit changed. When the old file is missing, torn or of another state, all are computed.

*Comparing.* Pages in use are read and compared, the others left out: a transaction that was killed or given
up may have written to them. A state newer than the file (killed between the commit and the file) has its
unchanged pages compared; what it changed must be examined otherwise. A state older than the file is none that
this program left behind, so it is damage.

A file is put in its place by renaming. Its writer holds the base's write lock (`fold`, `base`), so that the
process that takes a slice over and the one that it replaces never write it at once.

This module runs in the fold worker: it imports no lmdb, numpy or msgspec.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from pathlib import Path
from struct import Struct, error
from typing import Final, NamedTuple

import xxhash

from indexer.store.files.pages import DamagedError, Meta, PageFile

CHECKSUMS_FILE: Final = "checksums"

_MAGIC: Final = b"KTSUMS01"
_HEADER: Final = Struct("<8sQQQQQ")  # magic, transaction, digest of the meta page, owner, sequence, pages
_DIGEST: Final = Struct("<Q")
_FIRST: Final = 2
_FURTHER: Final = 4_096  # pages


class Checksums(NamedTuple):
    """What the file holds.

    Attributes:
        transaction: LMDB's number of the state.
        meta: digest of its meta page.
        owner, sequence: what the state names as such (`fold.OWNER_KEY`, `fold.SEQUENCE_KEY`).
        pages: u64 of each page, from the third to the last; anything for free ones.
    """

    transaction: int
    meta: int
    owner: int
    sequence: int
    pages: array[int]

    def belong_to(self, meta: Meta) -> bool:
        """Whether they were made of that state."""
        return (self.transaction, self.meta, len(self.pages)) == (
            meta.transaction,
            meta.digest,
            meta.last + 1 - _FIRST,
        )


def read_checksums(folder: Path) -> Checksums | None:
    """The checksums in a slice's folder; None when they are missing or damaged themselves."""
    try:
        data = (folder / CHECKSUMS_FILE).read_bytes()
        magic, transaction, meta, owner, sequence, count = _HEADER.unpack_from(data)
        (digest,) = _DIGEST.unpack_from(data, len(data) - _DIGEST.size)
    except (FileNotFoundError, error):
        return None
    body = memoryview(data)[_HEADER.size : -_DIGEST.size]
    if magic != _MAGIC or len(body) != 8 * count:
        return None
    if xxhash.xxh3_64_intdigest(memoryview(data)[: -_DIGEST.size]) != digest:
        return None
    pages = array("Q")
    pages.frombytes(body)
    return Checksums(transaction, meta, owner, sequence, pages)


def write_checksums(
    folder: Path, owner: int, sequence: int, *, sync: bool, further: Callable[[], None] = lambda: None
) -> int:
    """Bring the checksums of the slice in `folder` up to the state of its base; the caller holds the base's
    write lock, or is alone.

    Args:
        owner, sequence: as the state names them.
        sync: whether the file has reached the disk on return.
        further: called now and then while pages are read.

    Returns:
        How many pages were read.

    Raises:
        OSError: the disk is full, or another error of the disk.
        DamagedError: the base's file is none.
    """
    with PageFile(folder / "base") as file:
        state, before = file.metas()
        old = read_checksums(folder)
        if old is not None and old.belong_to(state):
            return 0
        free = file.free(state)
        if old is not None and old.belong_to(before):
            sums = old.pages
            changed = file.free(before)
            changed.update(range(before.last + 1, state.last + 1))
            sums.extend([0] * (state.last - before.last))
            wanted = sorted(changed.difference(free))
        else:
            sums = array("Q", bytes(8 * max(0, state.last + 1 - _FIRST)))
            wanted = [page for page in range(_FIRST, state.last + 1) if page not in free]
        for done, (page, digest) in enumerate(file.digests(wanted, state)):
            sums[page - _FIRST] = digest
            if not done % _FURTHER:
                further()
    _put(folder, Checksums(state.transaction, state.digest, owner, sequence, sums), sync)
    return len(wanted)


def _put(folder: Path, sums: Checksums, sync: bool) -> None:
    head = _HEADER.pack(_MAGIC, sums.transaction, sums.meta, sums.owner, sums.sequence, len(sums.pages))
    digest = xxhash.xxh3_64(head)
    body = sums.pages.tobytes()
    digest.update(body)
    new = folder / (CHECKSUMS_FILE + ".next")
    with new.open("wb") as file:
        file.write(head)
        file.write(body)
        file.write(_DIGEST.pack(digest.intdigest()))
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(new, folder / CHECKSUMS_FILE)
    if sync:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Have what was renamed in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def compare(file: PageFile, sums: Checksums) -> Meta:
    """Compare a base's pages with the checksums. For a running base the caller holds a reader on its state.

    Returns:
        The state of the file. When its transaction is not that of `sums`, only what it has in common with
        that one was compared, or nothing when they are further apart than one commit.

    Raises:
        DamagedError: they differ, or the state is older than its checksums.
    """
    file.whole_state()
    state, before = file.metas()
    if sums.transaction > state.transaction:
        raise DamagedError(
            f"{file.path} is at transaction {state.transaction}, its checksums are of {sums.transaction}"
        )
    if sums.belong_to(state):
        free = file.free(state)
    elif sums.belong_to(before):
        free = file.free(before) | file.free(state)
    elif sums.transaction in (state.transaction, before.transaction):
        raise DamagedError(f"the meta page of transaction {sums.transaction} in {file.path} is another one")
    else:
        return state
    last = min(state.last, len(sums.pages) + _FIRST - 1)
    _compare(file, state, sums, [page for page in range(_FIRST, last + 1) if page not in free])
    return state


def _compare(file: PageFile, meta: Meta, sums: Checksums, pages: list[int]) -> None:
    known = sums.pages
    wrong = [page for page, digest in file.digests(pages, meta) if known[page - _FIRST] != digest]
    if wrong:
        raise DamagedError(
            f"{len(wrong)} of {len(pages)} pages of {file.path} are not as they were written, "
            f"the first is page {wrong[0]}"
        )
