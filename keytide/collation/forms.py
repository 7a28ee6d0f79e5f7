"""Which numbers of a key were written as floats though their value is integral (5.0, 1e300, -0.0).

The canonical key holds values; 5 and 5.0 have one. Decoding gives integral numbers as integers, so the
exceptions are noted here: one unsigned LEB128 number per exception, 2 * ordinal + (1 for -0.0), where the
ordinal counts the numbers of the whole key depth first, members of objects in the order of their names. No
exception, which is the usual case, is b"".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from keytide.collation.layout import Json, Missing, Value
from keytide.errors import invariant


def key_forms(parts: Sequence[Value]) -> bytes:
    """The forms of a key's numbers; values of any depth are taken, `encode_key` refuses the too deep ones.

    Parts hold JSON values or MISSING, but anything is passed over here: `encode_key` is what refuses.
    """
    for part in parts:
        if type(part) is float:
            if part.is_integer():
                return _walk(parts)
        elif type(part) is list or type(part) is dict:
            return _walk(parts)
    return b""


def _walk(parts: Sequence[Value]) -> bytes:
    """Depth first without recursion: the values still to come are a stack, the next one on top."""
    forms = bytearray()
    ordinal = 0
    stack: list[Value] = list(reversed(parts))
    while stack:
        value = stack.pop()
        if type(value) is float:
            if value.is_integer():
                _append_number(forms, 2 * ordinal + (value == 0.0 and math.copysign(1.0, value) < 0))
            ordinal += 1
        elif type(value) is int:
            ordinal += 1
        elif type(value) is list:
            stack.extend(reversed(value))
        elif type(value) is dict:
            stack.extend(value[name] for name in sorted(value, key=str, reverse=True))
    return bytes(forms)


def apply_forms(values: Sequence[Value], forms: bytes) -> list[Value]:
    """The decoded parts with the noted numbers as floats again; the inverse of `key_forms`."""
    restore = _Restorer(forms)
    return [value if isinstance(value, Missing) else restore.value(value) for value in values]


class _Restorer:
    """One walk over a key, in the order of `_walk`; as deep as the decoder went, so recursion is safe."""

    def __init__(self, forms: bytes) -> None:
        self._codes = _numbers(forms)
        self._next = next(self._codes, -1)
        self._ordinal = 0

    def value(self, value: Json) -> Json:
        if type(value) is int or type(value) is float:
            ordinal = self._ordinal
            self._ordinal = ordinal + 1
            if self._next < 0 or self._next >> 1 != ordinal:
                return value
            negative_zero = self._next & 1
            self._next = next(self._codes, -1)
            return -0.0 if negative_zero else float(value)
        if type(value) is list:
            return [self.value(element) for element in value]
        if type(value) is dict:
            return {name: self.value(value[name]) for name in sorted(value)}
        return value


def _append_number(forms: bytearray, number: int) -> None:
    while number > 0x7F:
        forms.append(number & 0x7F | 0x80)
        number >>= 7
    forms.append(number)


def _numbers(forms: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in forms:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
        else:
            yield number
            number = shift = 0
    invariant(shift == 0, "KeyDecodes", "the forms of a key end within a number")
