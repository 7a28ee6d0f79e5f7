"""The file of an LMDB environment, read as pages and not through LMDB.

Theory of operation
===================
LMDB (format 1, versions 0.9) writes copy on write. Its file is pages of equal size: two *meta pages*, used in
turns, then the pages of trees. A commit writes new pages only to places that were free in the state before,
and past its end; then it writes the meta page that the state before does not use, with a transaction number
one larger. The meta page with the larger number is the state. One of the trees, the *free list*, says which
pages no state needs.

So from outside, without a lock, this much is certain (and relied on in `checksums`):

* what a transaction writes that was killed or given up lies in pages that are free in the state of the file;
* from one state to the next only pages change that were free before, or lie past the end;
* while a reader holds a state, none of its pages is written.

The file is read with `pread`, not mapped: a file that is too short, or a disk that cannot read, is an error
then and not a signal. This module runs in the fold worker: it imports no lmdb, numpy or msgspec.

Source: lmdb's `mdb.c` (struct MDB_page, MDB_meta, MDB_db, MDB_node).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import xxhash

_META: Final = Struct("<IIQQ")  # magic, format, address, map size; behind the page's header
TREE: Final = Struct("<IHHQQQQQ")  # page size or pad, flags, depth, branch, leaf, overflow pages, rows, root
_LAST: Final = Struct("<QQ")  # last page, transaction
PAGE: Final = Struct("<QHHHH")  # number, pad, flags, lower, upper (or, both together, overflow pages)
NODE: Final = Struct("<HHHH")  # low, high, flags, key size
_TREES_AT: Final = PAGE.size + _META.size
_LAST_AT: Final = _TREES_AT + 2 * TREE.size
_META_BYTES: Final = _LAST_AT + _LAST.size

_MAGIC: Final = 0xBEEFC0DE
_FORMAT: Final = 1
BRANCH, LEAF, _OVERFLOW, _META_FLAG = 0x01, 0x02, 0x04, 0x08
_BIG_DATA: Final = 0x01
NO_ROOT: Final = 0xFFFFFFFFFFFFFFFF
_READ: Final = 256  # pages at once
_GAP: Final = 16  # pages that are read through rather than jumped over


class DamagedError(Exception):
    """The file is not what LMDB or this program wrote."""


class Meta(NamedTuple):
    """One state of the file.

    Attributes:
        page_bytes: the size of a page.
        transaction: its number.
        last: the last page that any tree has used.
        free_root: root of the free list, None when it is empty.
        free_pages: pages that the free list itself lies in.
        digest: of everything here and of the roots of all other trees.
    """

    page_bytes: int
    transaction: int
    last: int
    free_root: int | None
    free_pages: int
    digest: int


class PageFile:
    """The data file of an environment, open for reading. Close it when done.

    Raises:
        FileNotFoundError: there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data.mdb"
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> PageFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def size(self) -> int:
        """How long the file is."""
        return os.fstat(self._descriptor).st_size

    def metas(self) -> tuple[Meta, Meta]:
        """Both meta pages, the state first, the one before it second.

        Raises:
            DamagedError: one of them is none.
        """
        first = self._meta(0, None)
        second = self._meta(1, first.page_bytes)
        if first.transaction == second.transaction and first != second:
            raise DamagedError(f"two meta pages of transaction {first.transaction} in {self.path}")
        return (second, first) if second.transaction > first.transaction else (first, second)

    def _meta(self, number: int, page_bytes: int | None) -> Meta:
        data = os.pread(self._descriptor, _META_BYTES, number * (page_bytes or 0))
        if len(data) < _META_BYTES:
            raise DamagedError(f"{self.path} ends within its meta pages")
        page, _, flags, _, _ = PAGE.unpack_from(data)
        magic, version, _, _ = _META.unpack_from(data, PAGE.size)
        if (page, flags, magic, version) != (number, _META_FLAG, _MAGIC, _FORMAT):
            raise DamagedError(f"meta page {number} of {self.path} is none")
        size, _, _, branch, leaf, overflow, _, root = TREE.unpack_from(data, _TREES_AT)
        if size & (size - 1) or not 512 <= size <= 65_536 or size != (page_bytes or size):
            raise DamagedError(f"meta page {number} of {self.path} tells of pages of {size} bytes")
        last, transaction = _LAST.unpack_from(data, _LAST_AT)
        digest = xxhash.xxh3_64_intdigest(data[_TREES_AT:])
        free_root = None if root == NO_ROOT else root
        return Meta(size, transaction, last, free_root, branch + leaf + overflow, digest)

    def whole_state(self) -> Meta:
        """The state, of a file that is long enough for it.

        Raises:
            DamagedError: it is not, or a meta page is none.
        """
        state, _ = self.metas()
        if (state.last + 1) * state.page_bytes > self.size():
            raise DamagedError(f"{self.path} has {self.size()} bytes, its state reaches to page {state.last}")
        return state

    def page(self, number: int, meta: Meta, count: int = 1) -> bytes:
        """`count` pages in a row.

        Raises:
            DamagedError: the state does not reach that far, or the file does not.
        """
        if not 2 <= number <= number + count - 1 <= meta.last:
            raise DamagedError(f"page {number} (and {count - 1} more) of {meta.last} in {self.path}")
        data = os.pread(self._descriptor, count * meta.page_bytes, number * meta.page_bytes)
        if len(data) < count * meta.page_bytes:
            raise DamagedError(f"{self.path} ends at page {number}; its state reaches to page {meta.last}")
        return data

    def free(self, meta: Meta) -> set[int]:
        """The pages that are free in a state; never those that the free list itself lies in.

        Raises:
            DamagedError: the free list is none.
        """
        found, own = array("Q"), set[int]()
        if meta.free_root is not None:
            self._free_below(meta.free_root, meta, own, found)
        free = set(found)
        if len(free) != len(found) or (free and not 2 <= min(free) <= max(free) <= meta.last):
            raise DamagedError(f"the free list of {self.path} names a page twice, or one that there is not")
        if not own.isdisjoint(free):
            raise DamagedError(f"the free list of {self.path} names a page that it lies in")
        return free

    def _free_below(self, number: int, meta: Meta, own: set[int], found: array[int]) -> None:
        if number in own:
            raise DamagedError(f"the free list of {self.path} comes back to page {number}")
        own.add(number)
        data = self.page(number, meta)
        itself, _, flags, lower, _ = PAGE.unpack_from(data)
        if itself != number or flags not in (BRANCH, LEAF) or lower > len(data):
            raise DamagedError(f"page {number} of {self.path} is none of the free list")
        for place in memoryview(data)[PAGE.size : lower & ~1].cast("H"):
            if place + NODE.size > len(data):
                raise DamagedError(f"page {number} of {self.path} is none of the free list")
            low, high, node_flags, key_bytes = NODE.unpack_from(data, place)
            if flags == BRANCH:
                self._free_below(low | high << 16 | node_flags << 32, meta, own, found)
                continue
            begin, size = place + NODE.size + key_bytes, low | high << 16
            if node_flags & _BIG_DATA:
                first = int.from_bytes(data[begin : begin + 8], "little")
                own.update(range(first, first + self._free_big(first, size, meta, found)))
            else:
                self._free_list(data[begin : begin + size], found)

    def _free_big(self, number: int, size: int, meta: Meta, found: array[int]) -> int:
        """A row of the free list with pages of its own; returns how many (it may have been longer once)."""
        needed = -(-(size + PAGE.size) // meta.page_bytes)
        data = self.page(number, meta, needed)
        itself, _, flags, lower, upper = PAGE.unpack_from(data)
        count = int(lower | upper << 16)
        if (itself, flags) != (number, _OVERFLOW) or not needed <= count <= meta.last:
            raise DamagedError(f"page {number} of {self.path} is none of the free list")
        self._free_list(data[PAGE.size : PAGE.size + size], found)
        return count

    def _free_list(self, data: bytes, found: array[int]) -> None:
        if len(data) < 8 or len(data) % 8:
            raise DamagedError(f"a row of the free list of {self.path} has {len(data)} bytes")
        numbers = memoryview(data).cast("Q")
        if numbers[0] > len(numbers) - 1:
            raise DamagedError(f"a row of the free list of {self.path} is too short")
        found.extend(numbers[1 : 1 + numbers[0]])

    def digests(self, pages: Iterable[int], meta: Meta) -> Iterator[tuple[int, int]]:
        """(page, xxh3 of its bytes) of pages by ascending number, read many at a time.

        Raises:
            DamagedError: the file ends before them.
        """
        digest, size = xxhash.xxh3_64_intdigest, meta.page_bytes
        for run in _runs(pages):
            block = memoryview(self.page(run[0], meta, run[-1] - run[0] + 1))
            first = run[0]
            for page in run:
                begin = (page - first) * size
                yield page, digest(block[begin : begin + size])


def _runs(pages: Iterable[int]) -> Iterator[list[int]]:
    """Pages that are read together."""
    run: list[int] = []
    for page in pages:
        if run and (page - run[-1] > _GAP or page - run[0] >= _READ):
            yield run
            run = []
        run.append(page)
    if run:
        yield run
