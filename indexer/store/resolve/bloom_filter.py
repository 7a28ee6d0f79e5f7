"""Which documents a slice may hold: a blocked Bloom filter over 64-bit id hashes, tested thousands at a time.

Theory of operation
===================
A slice hears of far more documents than it holds; looking each up would make hearing the main cost. The
filter answers "certainly not held" for nearly all of them. It contains at least everything held, always:
bits are only ever added, and a document that left a slice stays in until the filter is built anew from the
back index (which the fold worker does when too many bits are set). So it may be saved early and be too full,
never too empty: it is saved before the commit that it must cover, with the sequence number of that commit.
A filter that was built anew from commit n lacks what was held before n only, so it covers commits from n on
(`since`). A base that steps back to a state before n, or whose commit n never came, needs another one.

One word of 64 bits per document, three bits of it: one memory access per test. The word is chosen by the
hash's top bits and the bits by its middle ones, because the lowest ones route documents to slices
(`hash % slices`) and may be the same for all documents of a slice.

Source: Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007).
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

_MAGIC: Final = b"KTFILT02"  # a file of the first form, without `since`, counts as missing
_HEADER: Final = Struct("<8sQQQQ")  # magic, since, sequence, words, digest of the words

BITS_PER_DOCUMENT: Final = 12
"""At 12 to 24 bits per document 12 to 22 percent of the bits are set: 1 to 2 percent pass wrongly."""
FULL: Final = 0.4
"""Share of set bits at which a filter should be built anew: about 8 percent pass wrongly."""

_SHIFTS: Final = (np.uint64(8), np.uint64(14), np.uint64(20))
_LOW: Final = np.uint64(63)
_ONE: Final = np.uint64(1)


class IdFilter:
    """A superset of the document ids that a slice holds.

    Args:
        bits: size, a power of two, at least 64.
        since: sequence number of the first base commit that it will cover.
    """

    def __init__(self, bits: int, since: int = 0) -> None:
        self.since = since
        self._use(np.zeros(max(1, bits // 64), np.uint64))
        self._journal: list[npt.NDArray[np.uint64]] | None = None

    def _use(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words
        self._shift = np.uint64(64 - (len(words) - 1).bit_length())

    @classmethod
    def for_documents(cls, documents: int, smallest_bits: int, since: int = 0) -> IdFilter:
        """An empty filter with room for so many documents."""
        return cls(cls.bits_for(documents, smallest_bits), since)

    @staticmethod
    def bits_for(documents: int, smallest_bits: int) -> int:
        """The size with room for so many documents."""
        return max(smallest_bits, 1 << (BITS_PER_DOCUMENT * documents).bit_length())

    @property
    def bits(self) -> int:
        return 64 * len(self._words)

    def test(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """bool[n]: which of u64[n] may be held."""
        masks = _masks(hashes)
        passing: npt.NDArray[np.bool_] = (self._words[self._places(hashes)] & masks) == masks
        return passing

    def add(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Add u64[n]."""
        if len(hashes):
            np.bitwise_or.at(self._words, self._places(hashes), _masks(hashes))
            if self._journal is not None:
                self._journal.append(hashes)

    def keep_journal(self) -> None:
        """From now on, remember what is added, for `replay_into`."""
        self._journal = []

    def replay_into(self, other: IdFilter) -> None:
        """Add what was added since `keep_journal` to a filter that was built meanwhile, and forget it."""
        for hashes in self._journal or ():
            other.add(hashes)
        self._journal = None

    def _places(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        if len(self._words) == 1:  # a shift by 64 is undefined
            return np.zeros(len(hashes), np.intp)
        return (hashes >> self._shift).astype(np.intp)

    def full(self) -> bool:
        """Whether it should be built anew."""
        return int(np.bitwise_count(self._words).sum()) > FULL * self.bits

    def stored(self, sequence: int) -> tuple[bytes, bytes]:
        """Head and body of its file (`indexer.store.files.filter_file`).

        Args:
            sequence: of the base commit that it covers.
        """
        words = self._words.astype("<u8", copy=False).tobytes()
        digest = xxhash.xxh3_64_intdigest(words)
        return _HEADER.pack(_MAGIC, self.since, sequence, len(self._words), digest), words

    @classmethod
    def of_stored(cls, data: bytes) -> tuple[IdFilter, int] | None:
        """The filter of a file, and its sequence number; None when it is damaged."""
        try:
            magic, since, sequence, count, digest = _HEADER.unpack_from(data)
        except error:
            return None
        words = memoryview(data)[_HEADER.size :]
        whole = magic == _MAGIC and len(words) == 8 * count and count > 0 and count & (count - 1) == 0
        if not whole or xxhash.xxh3_64_intdigest(words) != digest:
            return None
        read = cls(64, since)
        read._use(np.frombuffer(words, "<u8").astype(np.uint64))
        return read, sequence


def _masks(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """u64[n]: the three bits of each hash."""
    first, second, third = _SHIFTS
    masks: npt.NDArray[np.uint64] = _ONE << ((hashes >> first) & _LOW)
    masks |= _ONE << ((hashes >> second) & _LOW)
    masks |= _ONE << ((hashes >> third) & _LOW)
    return masks
