"""Which slice of its index an entry lies in: what scans, queries and checks ask. Pure.

Theory of operation
===================
An entry's *partition key* says its slice; its router (`router.core`, which does the same for whole columns)
and everybody who looks for the entry later must agree on it for ever.

HASH: the slice is xxh3_64 of the partition key modulo the number of slices. The partition key is the encoded
value of the partitioning expression (ascending); of HASH(id) it is the document id itself, but for an index
on `id` alone, ascending, whose whole key is taken as it is.

RANGE: the partition key is the encoded value, always. The index has *splits*, ascending encoded values, one
less than slices; the slice is how many of them are at or below the partition key. So equal values lie in one
slice, and slices are in the order of the values. Equal splits are allowed: the slices between them are empty.
Splits are written into the index's record with the version that makes projectors emit for it, and stay as
they are until the whole index is built anew.

No code word is a prefix of another, so a split compares with the bytes behind a value as with the value
alone: the slices of a stretch of entry keys follow from its two ends (`slices_of_span`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import xxhash

from keytide.collation import Span, decode_key, successor, to_json_value
from keytide.collation.layout import INVERTED

if TYPE_CHECKING:
    from keytide.definition.index import IndexDefinition

_FIRST: Final = b""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How the entries of one index fall to its slices.

    Attributes:
        slices: how many.
        splits: of a RANGE index, once it has them; empty for HASH.
        ranged: whether it is one by RANGE. Without splits nothing is known of where its entries lie.
        raw_id: the partition key is the document id as it is, not encoded.
        descending: whether the key part that the partitioning goes by (if it is one) descends.
    """

    slices: int
    splits: tuple[bytes, ...] = ()
    ranged: bool = False
    raw_id: bool = False
    descending: bool = False

    @classmethod
    def of(cls, definition: IndexDefinition, splits: Sequence[bytes] = ()) -> Partitioning:
        """That of an index; `splits` are those of its record, given ones are known without."""
        part = definition.partition_part
        keys = definition.keys
        return cls(
            definition.slices,
            tuple(splits) or definition.encoded_splits,
            definition.partition_kind == "range",
            definition.raw_id_routes,
            part is not None and keys[part].descending,
        )

    @property
    def in_order(self) -> int:
        """How the order of slices is that of the entries by the part that the partitioning goes by: 1 the
        same, -1 the other way round, 0 none."""
        if not self.ranged or self.unknown:
            return 0
        return -1 if self.descending else 1

    @property
    def unknown(self) -> bool:
        """Whether an entry may lie anywhere: the splits are not found yet."""
        return self.ranged and self.slices > 1 and not self.splits

    def slice_of(self, encoded: bytes) -> int | None:
        """The only slice that can hold entries whose partitioning expression has one value (encoded,
        ascending); None when any can."""
        if self.unknown:
            return None
        if self.ranged:
            return bisect_right(self.splits, encoded)
        routed_by = encoded
        if self.raw_id:
            value = decode_key(encoded, 1)[0][0]
            routed_by = value.encode() if isinstance(value, str) else encoded  # an id is a string
        return xxhash.xxh3_64_intdigest(routed_by) % self.slices

    def slices_of_values(self, low: bytes, high: bytes | None) -> range:
        """The slices that can hold values whose code is at or above `low` and below `high` (None: no end).
        Of a HASH index all."""
        if not self.ranged or self.unknown:
            return range(self.slices)
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
        return range(first, count - bisect_right(ends, low) + 1)


def readable_splits(splits: Sequence[bytes]) -> list[object]:
    """Splits as JSON shows them."""
    return [to_json_value(decode_key(split, 1)[0][0]) for split in splits]
