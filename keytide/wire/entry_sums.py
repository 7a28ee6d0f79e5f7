"""Sums over entries, by which what a build has projected is compared with what its slices have stored; and
the messages by which a slice under build is asked for them. Pure.

Theory of operation
===================
Of a set of entries there are, modulo 2^64, so that parts add up in any order (a multiset hash; Cassandra's
repairs and CockroachDB's consistency checks compare replicas in such ways):

    entries   how many there are
    content   over each entry, hashes of (entry key, value)
    versions  over each entry, hashes of (entry key, source partition, offset)

An entry key is the stored key with the document id behind it. Whoever projects has all of it at hand. A slice
works out `content` from its forward entries and `versions` from its back index: so a slice whose two trees do
not say the same differs from what was projected, too.

A wrong key, value or version, an entry too few, too many or in another slice hides only if the hashes sum up
to the same number: with a probability of 2^-64 for each sum that it changes, where chance is all that is at
work. (The hash, xxh3_64 and a bijective finalizer, has no key: nothing is proven against somebody who chooses
documents so that it collides.) The finalizer keeps the linear parts apart: without it, two entries that have
each other's values would sum up to the same far more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from keytide.wire.columns import hashes_of

Hashes = npt.NDArray[np.uint64]

EQUAL: Final = "equal"
"""What a driver says when every copy of every slice sums up to what was projected for it."""
_MASK: Final = (1 << 64) - 1
_ODD_1: Final = np.uint64(0x9E3779B97F4A7C15)
_ODD_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_ODD_3: Final = np.uint64(0x165667B19E3779F9)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


class EntrySums(msgspec.Struct, frozen=True, array_like=True):
    """Of a set of entries."""

    entries: int = 0
    content: int = 0
    versions: int = 0

    def plus(self, other: EntrySums) -> EntrySums:
        """Of both together."""
        return EntrySums(
            self.entries + other.entries,
            (self.content + other.content) & _MASK,
            (self.versions + other.versions) & _MASK,
        )


NO_ENTRIES: Final = EntrySums()


def sums_of(
    entry_keys: Sequence[bytes],
    values: Sequence[bytes] | None,
    partitions: npt.ArrayLike,
    offsets: npt.ArrayLike,
) -> EntrySums:
    """Of entries as they were projected; arguments as below."""
    keys = hashes_of(entry_keys, len(entry_keys))
    return EntrySums(len(entry_keys), _content(keys, values), _versions(keys, partitions, offsets))


def content_of(entry_keys: Sequence[bytes], values: Sequence[bytes] | None) -> int:
    """The sum over forward entries.

    Args:
        values: None when all are empty.
    """
    return _content(hashes_of(entry_keys, len(entry_keys)), values)


def versions_of(entry_keys: Sequence[bytes], partitions: npt.ArrayLike, offsets: npt.ArrayLike) -> int:
    """The sum over entries of the back index, with the version of each one's document."""
    return _versions(hashes_of(entry_keys, len(entry_keys)), partitions, offsets)


def _content(keys: Hashes, values: Sequence[bytes] | None) -> int:
    mixed = keys * _ODD_1
    if values is not None and any(values):
        filled = np.fromiter(map(bool, values), np.bool_, len(values))
        mixed ^= np.where(filled, hashes_of(values, len(values)), np.uint64(0))
    return _total(_finalized(mixed))


def _versions(keys: Hashes, partitions: npt.ArrayLike, offsets: npt.ArrayLike) -> int:
    partition = np.asarray(partitions, np.uint64)
    offset = np.asarray(offsets, np.int64).astype(np.uint64)
    place = _finalized(partition * _ODD_2 + (offset + np.uint64(1)) * _ODD_3)
    return _total(_finalized(keys ^ place))


def _finalized(words: Hashes) -> Hashes:
    """Each word through the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = (words ^ (words >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def _total(words: Hashes) -> int:
    return int(np.add.reduce(words, dtype=np.uint64)) if len(words) else 0


# --- what a slice under build is asked --------------------------------------------------------------------


class BuiltAsk(msgspec.Struct, frozen=True, array_like=True, tag="built"):
    """Sum up a part of a slice that has loaded a micro-batch of its build, and nothing behind it.

    Attributes:
        stage: `forward` for the entries, `back` for the back index.
        after: behind which row.
        limit: rows that are looked at, about.
    """

    index: str
    slice: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    build: str
    batch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    stage: Literal["forward", "back"]
    after: bytes
    limit: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class BuiltAnswer(msgspec.Struct, frozen=True, array_like=True, tag="built-sums"):
    """Attributes:
    entries: in this part.
    total: their `content`, or, of the back index, `versions`.
    reached: behind which row to go on, when there is `more`.
    held: entries that the slice has, as it counts them: where they are not as many as were projected, nothing
        need be read.
    """

    entries: int
    total: int
    more: bool
    reached: bytes
    held: int
