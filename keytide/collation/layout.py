"""What encoder and decoder share: the tags, the values, the error, and the code of lengths.

Tags leave gaps for types to come. END is lower than every tag; no tag is 00 or FF, so neither a tag nor its
inversion is FF and every encoded prefix has a successor.
"""

from __future__ import annotations

from typing import Final, TypeAlias, Union, final

from keytide.errors import CallerError

END: Final = 0x01
TAG_MISSING: Final = 0x08
TAG_NULL: Final = 0x10
TAG_FALSE: Final = 0x18
TAG_TRUE: Final = 0x19
TAG_NEGATIVE: Final = 0x20
TAG_NUMBER: Final = 0x21
TAG_STRING: Final = 0x30
TAG_ARRAY: Final = 0x40
TAG_OBJECT: Final = 0x50

STRING_END: Final = b"\x00\x01"
NUL: Final = b"\x00"
ESCAPED_NUL: Final = b"\x00\xff"

INVERTED: Final = bytes(255 - byte for byte in range(256))
"""`part.translate(INVERTED)` inverts every byte: descending order."""

MAX_DEPTH: Final = 64
"""Arrays and objects within each other, in one part; deeper ones are refused (far below Python's own
limit)."""

EXACT_INTEGERS: Final = 2**53
"""Every integer from minus this to this is a double."""

LONGEST_SHORT: Final = 0xF7
"""Lengths up to this are one byte; a greater one is (LONGEST_SHORT + n) and n bytes, big endian."""


@final
class Missing:
    """The type of MISSING: the document has no such field. Falsy; copy and pickle give MISSING itself."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()

Json: TypeAlias = Union[bool, int, float, str, "list[Json]", "dict[str, Json]", None]
"""A JSON value; integers of any size."""
Value: TypeAlias = Json | Missing
"""One part of a key."""


class NotIndexableError(CallerError, ValueError):
    """A value without a place in the order; its document goes to the skip ledger as `not-indexable`."""

    problem_type = "not-indexable"
    status = 422


def encode_length(length: int) -> bytes:
    """A length or count >= 0 as bytes in its own order; at most 2**64 - 1."""
    if length <= LONGEST_SHORT:
        return bytes((length,))
    size = (length.bit_length() + 7) // 8
    return bytes((LONGEST_SHORT + size,)) + length.to_bytes(size, "big")


def decode_length(data: bytes, at: int) -> tuple[int, int]:
    """The length that stands at `at`, and the position after it."""
    first = data[at]
    if first <= LONGEST_SHORT:
        return first, at + 1
    end = at + 1 + first - LONGEST_SHORT
    return int.from_bytes(data[at + 1 : end], "big"), end


def to_json_value(value: Value) -> Json:
    """The part as a row shows it: MISSING as null."""
    return None if isinstance(value, Missing) else value
