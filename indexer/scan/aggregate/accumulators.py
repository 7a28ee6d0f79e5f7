"""What is accumulated of one expression in one group: count, exact sum, extremes, distinct values. Pure.

Theory of operation
===================
All of it is exact, so that an answer does not depend on how entries are spread over slices and blocks, or on
the order in which these are added up.

Integers are added as Python's integers. A float is an integer times a power of two, so floats are added as
one large integer in units of 2**-UNIT (Kulisch's exact accumulator); rounding happens once, in `total` and
`mean`, where Python divides integers correctly rounded. Whole columns of doubles are taken apart by numpy:
mantissas are summed by exponent, in halves that fit a double's 53 bits.

Extremes compare by the order of keys (`keytide.collation`), as encoded bytes. Of equal values written
differently (5 and 5.0) the minimum is that of the first entry in key order, the maximum that of the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from keytide.collation import MISSING, Json, NotIndexableError, Value, decode_key, encode_part, key_forms

Doubles = npt.NDArray[np.float64]

UNIT: Final = 1126
"""numpy takes the least double, 2**-1074, for 0.5 * 2**-1073, a mantissa of 53 bits times 2**-1126."""
_ONE: Final = 1 << UNIT
_EXACT_BLOCK: Final = 1 << 20
"""Doubles that are added up at once: halves of mantissas, of 27 bits, sum to less than 2**53."""
_SAFE_INTEGER: Final = float(1 << 42)
"""Integers below this sum exactly in 64 bits, a block of them."""
_MOST_BITS: Final = 14_284
"""Larger integers are not written as JSON: they may have more than 4300 digits."""


class Extreme(NamedTuple):
    """A value that is the least or the greatest so far.

    Attributes:
        code: the value's code word (ascending).
        entry: entry key of the entry that holds it: of equal values the first or the last counts.
        forms: how its numbers were written.
    """

    code: bytes
    entry: bytes
    forms: bytes

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.code) + len(self.entry) + len(self.forms)

    def value(self) -> Json:
        values, _ = decode_key(self.code, 1, (), self.forms)
        return values[0]  # type: ignore[return-value]  # never MISSING


class Wants(NamedTuple):
    """What is to be accumulated, beside the count."""

    sums: bool = False
    extremes: bool = False
    distinct: bool = False


class State(msgspec.Struct, frozen=True, array_like=True):
    """An accumulator on its way between nodes; integers of any size as little-endian bytes."""

    count: int
    numbers: int
    unordered: int
    floated: bool
    whole: bytes
    parts: bytes
    least: Extreme | None
    greatest: Extreme | None
    distinct: list[bytes]


class Accumulator:
    """The values of one expression in one group, but for NULL and MISSING.

    Attributes:
        count: how many there are.
        numbers: how many of them are numbers.
        unordered: how many have no place in the order (nested too deep), and are left out of extremes and
            distinct values.
        floated: whether one of the numbers is a float.
        distinct: code words of the different values, if wanted. They are added by `add_codes`.
        size: bytes of the extremes and the distinct values: those may be as long as documents. (Sums take
            some hundred at most, or as many as their largest number.)
    """

    __slots__ = (
        "_parts",
        "_wants",
        "_whole",
        "count",
        "distinct",
        "floated",
        "greatest",
        "least",
        "numbers",
        "size",
        "unordered",
    )

    def __init__(self, wants: Wants) -> None:
        self._wants = wants
        self.count = 0
        self.numbers = 0
        self.unordered = 0
        self.size = 0
        self.floated = False
        self._whole = 0
        self._parts = 0
        self.least: Extreme | None = None
        self.greatest: Extreme | None = None
        self.distinct: set[bytes] = set()

    # --- adding up --------------------------------------------------------------

    def add(self, value: Value, entry: bytes) -> None:
        """Add the value of one entry, given by its entry key."""
        if value is None or value is MISSING:
            return
        if self._wants.sums and (type(value) is int or type(value) is float):
            self.add_number(value)
        else:
            self.count += 1
        if self._wants.extremes or self._wants.distinct:
            try:
                code = encode_part(value)
            except NotIndexableError:
                self.unordered += 1
                return
            if self._wants.distinct and code not in self.distinct:
                self.distinct.add(code)
                self.size += len(code)
            if self._wants.extremes:
                self.stretch(code, entry, value)

    def add_codes(self, codes: Iterable[bytes]) -> None:
        """Add distinct values by their code words: only those that are new are weighed."""
        new = set(codes).difference(self.distinct)
        if new:
            self.distinct |= new
            self.size += sum(map(len, new))

    def add_values(self, values: Sequence[Value], entries: Sequence[bytes]) -> None:
        """Add the values of several entries."""
        if self._wants.extremes or self._wants.distinct:
            for value, entry in zip(values, entries, strict=True):
                self.add(value, entry)
            return
        self.count += sum(value is not None and value is not MISSING for value in values)
        if self._wants.sums:
            integers = [value for value in values if type(value) is int]
            floats = [value for value in values if type(value) is float]
            self.numbers += len(integers) + len(floats)
            self._whole += sum(integers)
            self.floated |= bool(floats)
            for start in range(0, len(floats), _EXACT_BLOCK):
                self._parts += _exact_sum(np.array(floats[start : start + _EXACT_BLOCK]))

    def stretch(self, code: bytes, entry: bytes, value: Value) -> None:
        """Let a value be the least or greatest if it is."""
        least, greatest = self.least, self.greatest
        if least is None or code < least.code or (code == least.code and entry < least.entry):
            self.least = self._instead(least, Extreme(code, entry, key_forms((value,))))
        if greatest is None or code > greatest.code or (code == greatest.code and entry > greatest.entry):
            self.greatest = self._instead(greatest, Extreme(code, entry, key_forms((value,))))

    def _instead(self, of: Extreme | None, one: Extreme) -> Extreme:
        """Weigh an extreme that takes the place of another one."""
        self.size += one.size - (0 if of is None else of.size)
        return one

    def add_numbers(self, doubles: Doubles) -> None:
        """Count and sum numbers that were written without need of a form: the integral ones as integers."""
        self.count += len(doubles)
        self.numbers += len(doubles)
        if not self._wants.sums:
            return
        for start in range(0, len(doubles), _EXACT_BLOCK):
            self._sum(doubles[start : start + _EXACT_BLOCK])

    def _sum(self, doubles: Doubles) -> None:
        integral = doubles == np.floor(doubles)
        if not integral.all():
            self.floated = True
            self._parts += _exact_sum(doubles[~integral])
            doubles = doubles[integral]
        if not len(doubles):
            return
        if np.abs(doubles).max() < _SAFE_INTEGER:
            self._whole += int(doubles.astype(np.int64).sum())
        else:
            self._whole += sum(map(int, doubles.tolist()))

    def add_number(self, value: Value) -> None:
        """Count and sum one number."""
        self.count += 1
        self.numbers += 1
        if type(value) is int:
            self._whole += value
        elif type(value) is float:
            self.floated = True
            numerator, denominator = value.as_integer_ratio()
            self._parts += numerator << (UNIT + 1 - denominator.bit_length())

    def count_only(self, count: int) -> None:
        """Add values that nothing but their number is wanted of, or that are no numbers."""
        self.count += count

    def merge(self, other: Accumulator) -> None:
        """Add what another one has accumulated."""
        self.count += other.count
        self.numbers += other.numbers
        self.unordered += other.unordered
        self.floated |= other.floated
        self._whole += other._whole
        self._parts += other._parts
        self.add_codes(other.distinct)
        least, greatest = other.least, other.greatest
        if least is not None and (self.least is None or least[:2] < self.least[:2]):
            self.least = self._instead(self.least, least)
        if greatest is not None and (self.greatest is None or greatest[:2] > self.greatest[:2]):
            self.greatest = self._instead(self.greatest, greatest)

    # --- results ----------------------------------------------------------------

    @property
    def total(self) -> int | float | None:
        """The sum of the numbers; None when there are none, or no number that can be written is so large. An
        integer when all of them are."""
        if not self.numbers:
            return None
        if not self.floated:
            return self._whole if self._whole.bit_length() <= _MOST_BITS else None
        return _quotient((self._whole << UNIT) + self._parts, _ONE)

    @property
    def mean(self) -> int | float | None:
        """The sum divided by how many numbers there are, as `/` divides: an integer if all are and it comes
        out even."""
        if not self.numbers:
            return None
        if self.floated:
            return _quotient((self._whole << UNIT) + self._parts, self.numbers << UNIT)
        whole, rest = divmod(self._whole, self.numbers)
        if rest:
            return _quotient(self._whole, self.numbers)
        return whole if whole.bit_length() <= _MOST_BITS else None

    @property
    def strangers(self) -> int:
        """Values that are no numbers."""
        return self.count - self.numbers

    # --- on the way -------------------------------------------------------------

    def pack(self) -> State:
        return State(
            self.count,
            self.numbers,
            self.unordered,
            self.floated,
            _to_bytes(self._whole),
            _to_bytes(self._parts),
            self.least,
            self.greatest,
            list(self.distinct),
        )

    @classmethod
    def unpack(cls, state: State, wants: Wants) -> Accumulator:
        made = cls(wants)
        made.count, made.numbers, made.unordered = state.count, state.numbers, state.unordered
        made.floated = state.floated
        made._whole, made._parts = _from_bytes(state.whole), _from_bytes(state.parts)
        made.least, made.greatest = state.least, state.greatest
        made.size = sum(one.size for one in (state.least, state.greatest) if one is not None)
        made.add_codes(state.distinct)
        return made


def _exact_sum(doubles: Doubles) -> int:
    """The sum of at most `_EXACT_BLOCK` doubles in units of 2**-UNIT."""
    fractions, exponents = np.frexp(doubles)
    mantissas = (fractions * 9007199254740992.0).astype(np.int64)  # 2**53: exact
    low = int(exponents.min())
    places = exponents - low
    high_halves = np.bincount(places, weights=mantissas >> 26)
    low_halves = np.bincount(places, weights=mantissas & 0x3FFFFFF)
    total = 0
    shift = low - 53 + UNIT
    for place, (high, rest) in enumerate(zip(high_halves.tolist(), low_halves.tolist(), strict=True)):
        if high or rest:
            total += ((int(high) << 26) + int(rest)) << (shift + place)
    return total


def _quotient(numerator: int, denominator: int) -> float | None:
    """Correctly rounded; None beyond the doubles."""
    try:
        return numerator / denominator
    except OverflowError:
        return None


def _to_bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True) if number else b""


def _from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
