"""`hash`: entries in the order of a digest of their keys, which is no order of the keys.

Theory of operation
===================
The stored key is a 128-bit digest of the canonical key, and a *tie*; the canonical key itself is in the
value, and compared, so that two keys with one digest are never taken for one another. An entry takes as much
of the tree, and of the index from documents to entries, whatever the length of its key, and that has no limit
of its own.

Two keys of one document (UNNEST) may have one digest. Their entry keys would be the same, so each gets a tie:
0 for the least of them, then 1, and so on (the code of lengths, one byte nearly always). Which tie a key has
follows from the document alone, and readers look at all ties of a digest.

The digest is XXH3-128: not safe against who makes collisions on purpose, which cost reading more than is
meant, and never give a wrong answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self, final

import xxhash

from keytide.collation import Span, encode_key, successor
from keytide.collation.layout import TAG_NULL, TAG_OBJECT, decode_length, encode_length
from keytide.errors import CallerError, InvariantViolationError
from keytide.model.protocol import OTHER_STRUCTURES
from keytide.structure.interface import (
    MOST_KEYS,
    ORDERED_INSTEAD,
    TOO_MANY_KEYS,
    Box,
    Boxed,
    NotOrderedError,
    Selected,
    Values,
    WantedKeys,
    Wishes,
)
from keytide.structure.keyed import KeyedStructure

DIGEST_BYTES: Final = 16
NO_TIE: Final = b"\x00"
_LAST: Final = b"\xff" * DIGEST_BYTES
_BEFORE_LAST: Final = b"\xff" * (DIGEST_BYTES - 1) + b"\xfe"
_KNOWN: Final = bytes((TAG_NULL + 1,))
_GREATEST: Final = bytes((TAG_OBJECT,))


def digest_of(key: bytes) -> bytes:
    """The digest of a canonical key; there are always bytes above all that start with it."""
    digest = xxhash.xxh3_128_digest(key)
    return digest if digest != _LAST else _BEFORE_LAST


@final
@dataclass(frozen=True, slots=True)
class Hash(KeyedStructure):
    """The structure of an index USING hash.

    Args:
        parts: how many parts its key has.
        descending: their directions: none may descend.
    """

    name: ClassVar = "hash"
    since: ClassVar = OTHER_STRUCTURES
    has_places: ClassVar = False
    several: ClassVar = False
    stored_bytes: ClassVar[int | None] = DIGEST_BYTES + len(NO_TIE)

    parts: int
    descending: tuple[bool, ...] = ()

    @classmethod
    def made(cls, parts: int, descending: tuple[bool, ...], srid: int) -> Self:
        del srid
        return cls(parts, descending)

    def fault(self, wishes: Wishes) -> tuple[str, str] | None:
        del wishes
        if any(self.descending):
            return "a hash index has no order, so no part of its key is DESC", "Leave DESC out."
        return None

    def stored(self, keys: Sequence[bytes]) -> list[tuple[bytes, ...]]:
        if len(keys) == 1:
            return [(digest_of(keys[0]) + NO_TIE,)]
        digests = [digest_of(key) for key in keys]
        if len(set(digests)) == len(digests):
            return [(digest + NO_TIE,) for digest in digests]
        tied: dict[bytes, list[bytes]] = {}
        for digest, key in zip(digests, keys, strict=True):
            tied.setdefault(digest, []).append(key)
        ties = {key: tie for some in tied.values() for tie, key in enumerate(sorted(some))}
        return [(digest + encode_length(ties[key]),) for digest, key in zip(digests, keys, strict=True)]

    def stem(self, key: bytes) -> bytes:
        return digest_of(key)

    def id_start(self, entry_key: bytes) -> int:
        if len(entry_key) > DIGEST_BYTES:
            _, end = decode_length(entry_key, DIGEST_BYTES)
            if len(entry_key) >= end:
                return end
        raise InvariantViolationError("KeyDecodes", f"{entry_key.hex()} has no whole digest and tie")

    def id_starts(self, entry_keys: Sequence[bytes]) -> list[int]:
        whole, id_start = DIGEST_BYTES + len(NO_TIE), self.id_start
        return [whole if key[DIGEST_BYTES:whole] == NO_TIE else id_start(key) for key in entry_keys]

    def check(self, entry_key: bytes, value: bytes) -> None:
        self.id_start(entry_key)
        key = self.whole_key(value)
        if not entry_key.startswith(digest_of(key)):
            raise InvariantViolationError("EntryDecodes", f"{entry_key.hex()} is none of {key[:80].hex()}")

    def selected(self, wanted: WantedKeys) -> Selected:
        if wanted.prefix is not None:
            raise _no_order("a prefix")
        equals = wanted.equals
        if equals is None and (wanted.low or wanted.high):
            equals = wanted.low  # (a range from a whole key to the same one)
            if not equals or wanted.inclusion != "both" or len(equals) != self.parts:
                raise _no_order("a range")
            if encode_key(equals) != encode_key(wanted.high or ()):
                raise _no_order("a range")
        if not equals:
            return Selected((Span(),))
        if len(equals) > self.parts:
            raise CallerError(
                f"{len(equals)} key parts were given, the index has {self.parts}",
                status=422,
                next_step="Give all of the index's key parts.",
            )
        if len(equals) < self.parts:
            raise _no_order(f"{len(equals)} of {self.parts} key parts")
        key = encode_key(equals)
        return Selected((_span_of(key),), (key,))

    def boxed(self, box: Box, most: int) -> Boxed | str:
        parts = [box.get(ordinal) for ordinal in range(self.parts)]
        if all(one is None or _is_there(one) for one in parts):
            return Boxed([Span()], (), frozenset(), 0)
        values = [one for one in parts if one is not None and all(each.is_point for each in one)]
        if len(values) < self.parts:
            return "finds whole keys only, by = and IN of all parts of its key, which the query does not say"
        if math.prod(map(len, values)) > MOST_KEYS:
            return TOO_MANY_KEYS
        keys = tuple(b"".join(one.low for one in some) for some in itertools.product(*values))
        every = frozenset(range(self.parts))
        if len(keys) > most:
            return Boxed([Span()], keys, every, 0)
        return Boxed(list(map(_span_of, keys)), keys, every, self.parts)


def _is_there(values: Sequence[Values]) -> bool:
    """Whether values are all but MISSING, or NULL as well: what a query says to have no more than the index
    has. The whole index is read for it."""
    return len(values) == 1 and values[0].low <= _KNOWN and values[0].high > _GREATEST


def _span_of(key: bytes) -> Span:
    """The entries with the digest of a key."""
    digest = digest_of(key)
    return Span(digest, successor(digest))


def _no_order(what: str) -> NotOrderedError:
    return NotOrderedError(
        f"a hash index does not answer {what}: it finds whole keys only, and has no order",
        next_step=f"Give all parts of the key, or ask {ORDERED_INSTEAD}.",
    )
