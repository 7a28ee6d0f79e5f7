"""Which slice of its index an entry lies in: what scans, queries and checks ask. Pure.

Theory of operation
===================
An entry's *partition key* says its partition, and where a partition is of several slices, its document id
says which of these it is; its router (`router.core`, which does the same for whole columns) and everybody who
looks for the entry later must agree on it for ever.

HASH: the partition is xxh3_64 of the partition key modulo the number of partitions. The partition key is the
encoded value of the partitioning expression (ascending); of HASH(id) it is the document id itself, but for an
index on `id` alone, ascending, whose whole key is taken as it is.

RANGE: the partition key is the encoded value, always. The index has *splits*, ascending encoded values, one
less than partitions; the partition is how many of them are at or below the partition key. So equal values lie
in one partition, and partitions are in the order of the values. Equal splits are allowed: the partitions
between them are empty. Splits are written into the index's record with the version that makes projectors emit
for it, and stay as they are until the whole index is built anew.

SUBPARTITION BY HASH(id): a partition of n slices has n numbers in a row, in the order of partitions; a
document's entries in it lie in the one with the number xxh3_64 of its id modulo n (Couchbase's design has
such logical partitions). Without, a partition is one slice, and has its number.

No code word is a prefix of another, so a split compares with the bytes behind a value as with the value
alone: the slices of a stretch of entry keys follow from its two ends (`slices_of_span`).
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import xxhash

from keytide.collation import Span, decode_key, successor, to_json_value
from keytide.collation.layout import INVERTED
from keytide.geometry import CELL_BYTES
from keytide.structure.spatial import partition_key_of

if TYPE_CHECKING:
    from keytide.definition.index import IndexDefinition

_FIRST: Final = b""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How the entries of one index fall to its slices.

    Attributes:
        slices: how many, of all partitions.
        splits: of a RANGE index, once it has them; empty for HASH.
        ranged: whether it is one by RANGE. Without splits nothing is known of where its entries lie.
        raw_id: the partition key is the document id as it is, not encoded.
        descending: whether the key part that the partitioning goes by (if it is one) descends.
        spread: of how many slices each partition is; empty when each is one.
    """

    slices: int
    splits: tuple[bytes, ...] = ()
    ranged: bool = False
    raw_id: bool = False
    descending: bool = False
    spread: tuple[int, ...] = ()

    @classmethod
    def of(cls, definition: IndexDefinition, splits: Sequence[bytes] = ()) -> Partitioning:
        """That of an index; `splits` are those of its record, given ones are known without.

        An index by HASH has none, though a release before this one may have left it those of a RANGE that it
        was before it was built.
        """
        part = definition.partition_part
        keys, ranged = definition.keys, definition.partition_kind == "range"
        return cls(
            definition.slices,
            (tuple(splits) or definition.encoded_splits) if ranged else (),
            ranged,
            definition.raw_id_routes,
            part is not None and keys[part].descending,
            definition.spread,
        )

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.spread) or self.slices

    @property
    def id_shares(self) -> tuple[int, ...]:
        """Groups of slices that follow one another, by how many each has: a document's entries lie in the one
        slice of a group with the hash of its id modulo that number. Groups of one where the id has no say."""
        return (self.slices,) if self.raw_id else self.spread or (1,) * self.slices

    @property
    def by_id(self) -> bool:
        """Whether the document id decides which slice an entry lies in, or has a say."""
        return max(self.id_shares) > 1

    @property
    def starts(self) -> tuple[int, ...]:
        """The first slice of each partition, and how many slices there are."""
        return _starts(self.spread) if self.spread else tuple(range(self.slices + 1))

    @property
    def in_order(self) -> int:
        """How the order of slices is that of the entries by the part that the partitioning goes by: 1 the
        same, -1 the other way round, 0 none (so where a partition is several slices)."""
        if not self.ranged or self.unknown or self.spread:
            return 0
        return -1 if self.descending else 1

    @property
    def unknown(self) -> bool:
        """Whether an entry may lie anywhere: the splits are not found yet."""
        return self.ranged and self.partitions > 1 and not self.splits

    def partition_of(self, encoded: bytes) -> int | None:
        """The only partition that can hold entries whose partitioning expression has one value (encoded,
        ascending); None when any can."""
        if self.unknown:
            return None
        if self.ranged:
            return bisect_right(self.splits, encoded)
        routed_by = encoded
        if self.raw_id:
            value = decode_key(encoded, 1)[0][0]
            routed_by = value.encode() if isinstance(value, str) else encoded  # an id is a string
        return xxhash.xxh3_64_intdigest(routed_by) % self.partitions

    def partition_of_slice(self, number: int) -> int:
        """The partition that a slice belongs to."""
        return bisect_right(self.starts, number) - 1 if self.spread else number

    def slice_of(self, encoded: bytes, id_: bytes) -> int | None:
        """The only slice that can hold a document's entries whose partitioning expression has one value
        (encoded, ascending); None when any can."""
        slices = self.slices_of_value(encoded)
        if len(slices) == 1:
            return slices[0]
        return None if self.unknown else slices[xxhash.xxh3_64_intdigest(id_) % len(slices)]

    def slices_of_value(self, encoded: bytes) -> range:
        """The slices that can hold entries whose partitioning expression has one value (encoded, ascending):
        those of one partition, or all."""
        partition = self.partition_of(encoded)
        return range(self.slices) if partition is None else self._slices(partition, partition + 1)

    def slices_of_values(self, low: bytes, high: bytes | None) -> range:
        """The slices that can hold values whose code is at or above `low` and below `high` (None: no end).
        Of a HASH index all."""
        if not self.ranged or self.unknown:
            return range(self.slices)
        found = self.partitions_of_values(low, high)
        return self._slices(found.start, found.stop)

    def partitions_of_values(self, low: bytes, high: bytes | None) -> range:
        """The partitions of a RANGE index that can hold such values, its splits being known."""
        last = len(self.splits) if high is None else bisect_left(self.splits, high)
        return range(bisect_right(self.splits, low), last + 1)

    def slices_of_span(self, span: Span, before: bytes) -> range:
        """The slices that can hold entries of a span of a RANGE index.

        Args:
            before: the encoded key parts before the one that the partitioning goes by; every entry of the
                span has them.
        """
        low = span.low[len(before) :] if span.low.startswith(before) else _FIRST
        high = None
        if span.high is not None and span.high.startswith(before):
            high = span.high[len(before) :] or None
        if not self.descending or not self.ranged or self.unknown:
            return self.slices_of_values(low, high)
        # The other way round: a value is at or above a split when its inverted code is below the end of
        # what begins with the inverted split. These ends ascend from the last split to the first.
        ends = [successor(split.translate(INVERTED)) for split in reversed(self.splits)]
        count = len(ends)
        first = 0 if high is None else count - bisect_left(ends, high)
        return self._slices(first, count - bisect_right(ends, low) + 1)

    def _slices(self, first: int, end: int) -> range:
        """Those of partitions that follow one another."""
        if not self.spread or end <= first:
            return range(first, end)
        starts = _starts(self.spread)
        return range(starts[first], starts[end])


@functools.lru_cache(maxsize=1_024)
def _starts(spread: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *itertools.accumulate(spread))


def slices_of_cells(rule: Partitioning, spans: Iterable[Span]) -> list[int]:
    """The slices, ascending, that can hold entries of some spans of a spatial index by RANGE(cell). (Their
    bounds are cells, or none.)"""
    found: set[int] = set()
    for span in spans:
        low = partition_key_of(span.low) if span.low else _FIRST
        high = None if span.high is None else partition_key_of(span.high.ljust(CELL_BYTES, b"\0"))
        found.update(rule.slices_of_values(low, high))
    return sorted(found)


def readable_splits(splits: Sequence[bytes]) -> list[object]:
    """Splits as JSON shows them."""
    return [to_json_value(decode_key(split, 1)[0][0]) for split in splits]
