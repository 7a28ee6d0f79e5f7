"""Bytes to values: `decode_key`, and `skip_key` for those who only want to know where the document id starts.

A descending part is read from an inverted copy of the whole key (made once per key, and only if it has such
a part), at the same positions, so that nothing below needs to know about directions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from keytide.collation.encode import GREATEST_INTEGER, INFINITY
from keytide.collation.forms import apply_forms
from keytide.collation.layout import (
    END,
    ESCAPED_NUL,
    INVERTED,
    MISSING,
    NUL,
    STRING_END,
    TAG_ARRAY,
    TAG_FALSE,
    TAG_MISSING,
    TAG_NEGATIVE,
    TAG_NULL,
    TAG_NUMBER,
    TAG_OBJECT,
    TAG_STRING,
    TAG_TRUE,
    Json,
    Value,
    decode_length,
)
from keytide.errors import InvariantViolationError

_unpack_double = struct.Struct(">d").unpack_from
_CONSTANTS: Final[dict[int, bool | None]] = {TAG_NULL: None, TAG_FALSE: False, TAG_TRUE: True}
_NUMBERS: Final = (TAG_NEGATIVE, TAG_NUMBER)
_NUMBER: Final = bytes([TAG_NUMBER])
_EXACT: Final = b"\0"
_NOT_A_KEY: Final = (IndexError, ValueError, struct.error, RecursionError, OverflowError)
"""What reading foreign bytes can raise in here (UnicodeDecodeError is a ValueError)."""


def decode_key(
    data: bytes, parts_count: int, descending: Sequence[bool] = (), forms: bytes = b""
) -> tuple[list[Value], int]:
    """The parts of a canonical or entry key, and where they end (where the document id starts).

    Args:
        data: the key; anything may follow its parts.
        parts_count: how many parts to read.
        descending: as given to `encode_key`; empty when no part is.
        forms: the key's forms; without them integral numbers come as int.

    Raises:
        InvariantViolationError: `data` holds no such key.
    """
    values, _, at = _decode_parts(data, parts_count, descending, (), 0)
    return (apply_forms(values, forms) if forms else values), at


def decode_keys(
    keys: Iterable[bytes], parts_count: int, descending: Sequence[bool] = ()
) -> Iterator[tuple[list[Value], int]]:
    """The same of many keys, without forms: what one shares with the one before is decoded once, so they come
    in their order, if they can. Equal keys share one list. Raises as `decode_key`."""
    values: list[Value] = []
    known: list[Value] = []  # all parts but the last one, whose bytes are `head`
    head, canonical = b"", b""
    start = end = 0
    number = not descending
    for data in keys:
        # No key is the beginning of another one, and no part of another part.
        if start and data.startswith(head):
            if number and data[start : start + 1] == _NUMBER and data[start + 9 : start + 10] == _EXACT:
                double: float = _unpack_double(data, start + 1)[0]
                values, end = [*known, int(double) if double.is_integer() else double], start + 10
            else:
                values, _, end = _decode_parts(data, parts_count, descending, known, start)
        elif start or not end or not data.startswith(canonical):
            values, start, end = _decode_parts(data, parts_count, descending, (), 0)
            head, known, canonical = data[:start], values[:-1], data[:end]
        yield values, end


def _decode_parts(
    data: bytes, parts_count: int, descending: Sequence[bool], known: Sequence[Value], at: int
) -> tuple[list[Value], int, int]:
    """The parts, where the last one starts, and where it ends.

    Args:
        known: the first parts.
        at: where the others start.
    """
    values: list[Value] = [*known]
    source = data
    flipped = b""
    last = at
    try:
        for ordinal in range(len(values), parts_count):
            if descending:
                flipped = flipped or data.translate(INVERTED)
                source = flipped if descending[ordinal] else data
            last = at
            tag = source[at]
            if tag == TAG_STRING:
                end = source.index(STRING_END, at)
                body = source[at + 1 : end]
                values.append((body.replace(ESCAPED_NUL, NUL) if 0 in body else body).decode())
                at = end + 2
            elif tag == TAG_NUMBER and not source[at + 9]:
                double: float = _unpack_double(source, at + 1)[0]
                values.append(int(double) if double.is_integer() else double)
                at += 10
            elif tag == TAG_MISSING:
                values.append(MISSING)
                at += 1
            else:
                value, at = _decode(source, at)
                values.append(value)
        if at > len(data):
            raise IndexError("the key ends within a part")
        return values, last, at
    except _NOT_A_KEY as error:
        raise _not_a_key(data, error) from error


def skip_key(data: bytes, parts_count: int, descending: Sequence[bool] = ()) -> int:
    """Where the parts of a canonical or entry key end: where the document id starts.

    Raises:
        InvariantViolationError: `data` holds no such key.
    """
    at = 0
    source = data
    flipped = b""
    try:
        for ordinal in range(parts_count):
            if descending:
                flipped = flipped or data.translate(INVERTED)
                source = flipped if descending[ordinal] else data
            tag = source[at]
            if tag == TAG_STRING:
                at = source.index(STRING_END, at) + 2
            elif tag in _NUMBERS and not source[at + 9]:
                at += 10
            elif tag == TAG_MISSING:
                at += 1
            else:
                at = _skip(source, at)
        if at > len(data):
            raise IndexError("the key ends within a part")
        return at
    except _NOT_A_KEY as error:
        raise _not_a_key(data, error) from error


def _decode(data: bytes, at: int) -> tuple[Json, int]:
    """The value that stands at `at`, and the position after it."""
    tag = data[at]
    if tag == TAG_STRING:
        return _decode_text(data, at + 1)
    if tag in _NUMBERS:
        return _decode_number(data, at)
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at + 1
    if tag == TAG_ARRAY:
        elements: list[Json] = []
        at += 1
        while data[at] != END:
            element, at = _decode(data, at)
            elements.append(element)
        return elements, at + 1
    if tag == TAG_OBJECT:
        count, at = decode_length(data, at + 1)
        names: list[str] = []
        for _ in range(count):
            name, at = _decode_text(data, at)
            names.append(name)
        members: dict[str, Json] = {}
        for name in names:
            members[name], at = _decode(data, at)
        return members, at
    raise ValueError(f"no value has the tag {tag:#04x}")


def _decode_text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(STRING_END, at)
    return data[at:end].replace(ESCAPED_NUL, NUL).decode(), end + 2


def _decode_number(data: bytes, at: int) -> tuple[int | float, int]:
    start = at + 9
    if data[at] == TAG_NEGATIVE:
        double: float = _unpack_double(data[at + 1 : start].translate(INVERTED))[0]
        if double == -INFINITY:  # below the least double: the distance, inverted
            distance, end = _decode_residual(data[start:].translate(INVERTED), 0)
            return -GREATEST_INTEGER - distance, start + end
    else:
        double = _unpack_double(data, at + 1)[0]
    if not data[start]:
        return (int(double) if double.is_integer() else double), start + 1
    residual, end = _decode_residual(data, start)
    return int(double) + residual, end


def _decode_residual(data: bytes, at: int) -> tuple[int, int]:
    size, start = decode_length(data, at)
    end = start + size
    if end > len(data):
        raise IndexError("the key ends within a number")
    return int.from_bytes(data[start:end], "big"), end


def _skip(data: bytes, at: int) -> int:
    """The position after the value that stands at `at`."""
    tag = data[at]
    if tag == TAG_STRING:
        return data.index(STRING_END, at) + 2
    if tag == TAG_ARRAY:
        at += 1
        while data[at] != END:
            at = _skip(data, at)
        return at + 1
    if tag == TAG_OBJECT:
        count, at = decode_length(data, at + 1)
        for _ in range(count):
            at = data.index(STRING_END, at) + 2
        for _ in range(count):
            at = _skip(data, at)
        return at
    if tag in _CONSTANTS:
        return at + 1
    if tag in _NUMBERS:
        return _decode_number(data, at)[1]
    raise ValueError(f"no value has the tag {tag:#04x}")


def _not_a_key(data: bytes, error: Exception) -> InvariantViolationError:
    return InvariantViolationError(
        "KeyDecodes", f"{error} in {data[:80].hex()}{'...' if len(data) > 80 else ''} ({len(data)} bytes)"
    )
