"""`btree`: entries in the order of their keys. The stored key is the canonical key itself
(`keytide.collation`), so equalities of leading parts, ranges, prefixes and orders are stretches of entry
keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, final

from keytide.collation import Span, equals_span, prefix_span, skip_key, span, successor
from keytide.collation.layout import INVERTED
from keytide.model.entry import MAX_KEY_BYTES, pack_value, unpack_value
from keytide.model.protocol import FIRST_PROTOCOL
from keytide.structure.interface import Box, Boxed, Selected, Values, WantedKeys, Wishes


@final
@dataclass(frozen=True, slots=True)
class BTree:
    """The structure of an index that says nothing of USING.

    Args:
        parts: how many parts its key has.
        descending: their directions, as in `keytide.collation`.
    """

    name: ClassVar = "btree"
    since: ClassVar = FIRST_PROTOCOL
    ordered: ClassVar = True
    has_places: ClassVar = False
    key_in_value: ClassVar = False
    several: ClassVar = False
    key_limit: ClassVar[int | None] = MAX_KEY_BYTES
    stored_bytes: ClassVar[int | None] = None

    parts: int
    descending: tuple[bool, ...] = ()

    @classmethod
    def made(cls, parts: int, descending: tuple[bool, ...], srid: int) -> Self:
        del srid
        return cls(parts, descending)

    def fault(self, wishes: Wishes) -> tuple[str, str] | None:
        del wishes
        return None

    def stored(self, keys: Sequence[bytes]) -> list[tuple[bytes, ...]]:
        return [(key,) for key in keys]

    def stem(self, key: bytes) -> bytes:
        return key

    def id_start(self, entry_key: bytes) -> int:
        return skip_key(entry_key, self.parts, self.descending)

    def id_starts(self, entry_keys: Sequence[bytes]) -> list[int]:
        parts, descending = self.parts, self.descending
        return [skip_key(key, parts, descending) for key in entry_keys]

    def canonical(self, stored: bytes, value: bytes) -> bytes:
        del value
        return stored

    def in_full(self, entry_key: bytes, value: bytes) -> tuple[bytes, bytes]:
        return entry_key, value

    def check(self, entry_key: bytes, value: bytes) -> None:
        self.id_start(entry_key)
        unpack_value(value)

    def without_columns(self, value: bytes) -> bytes:
        return pack_value(unpack_value(value)[0]) if value else value

    def selected(self, wanted: WantedKeys) -> Selected:
        if wanted.prefix is not None:
            found = prefix_span(wanted.equals or (), wanted.prefix, self.descending, self.parts)
        elif wanted.equals is not None:
            found = equals_span(wanted.equals, self.descending, self.parts)
        else:
            found = span(
                wanted.low,
                wanted.high,
                wanted.inclusion in ("both", "low"),
                wanted.inclusion in ("both", "high"),
                self.descending,
                self.parts,
            )
        return Selected((found,))

    def boxed(self, box: Box, most: int) -> Boxed:
        """A box is walked along the key: as long as a part may have single values only, every one of them
        (times those before) is a prefix to go on from; the first part with a range ends the walk. What the
        walk has taken in is realised, if it did not have to be made coarser."""
        ended: list[Span] = []
        open_: list[bytes] = [b""]
        realised: set[int] = set()
        depth = 0
        for ordinal in range(self.parts):
            intervals = box.get(ordinal)
            if intervals is None or not open_:
                break
            descending = bool(self.descending) and self.descending[ordinal]
            bounds = [_directed(one, descending) for one in intervals]
            points = [one.is_point for one in intervals]
            if len(ended) + len(open_) * len(intervals) > most:
                if len(intervals) > 1:
                    low, high = intervals[0].low, intervals[-1].high
                    bounds, points = [_covering(low, high, descending)], [False]
                if len(ended) + len(open_) > most:
                    break
            elif not ended:
                realised.add(ordinal)
            depth += 1
            further: list[bytes] = []
            for prefix in open_:
                for (low, high), point in zip(bounds, points, strict=True):
                    if point:
                        further.append(prefix + low)
                    else:
                        ended.append(Span(prefix + low, prefix + high))
            open_ = further
        ended += [Span(prefix, successor(prefix)) if prefix else Span() for prefix in open_]
        return Boxed(ended, (), frozenset(realised), depth)


def _directed(one: Values, descending: bool) -> tuple[bytes, bytes]:
    """The bounds of values as they stand in keys. (Of a point the low one is its code.)"""
    if descending and one.is_point:
        code = one.low.translate(INVERTED)
        return code, successor(code)
    return _covering(one.low, one.high, descending)


def _covering(low: bytes, high: bytes, descending: bool) -> tuple[bytes, bytes]:
    """Bounds as they stand in keys. Inverting turns the order round, and what began with a bound still does:
    so each bound becomes the successor of the other's inversion."""
    if not descending:
        return low, high
    return successor(high.translate(INVERTED)), successor(low.translate(INVERTED))
