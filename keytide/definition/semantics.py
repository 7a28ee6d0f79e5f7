"""What expressions and predicates mean: functions on JSON values, shared by everything that evaluates them.

Theory of operation
===================
SQL over documents without a schema, with PostgreSQL's names and, where JSON's types need an answer, that of
N1QL (SQL++):

* A field that is not there is MISSING, a JSON null is NULL. MISSING beside anything in an operation or
  function gives MISSING; NULL, or a value of a wrong type (arithmetic on a string, LOWER of a number),
  gives NULL. Nothing fails on a value.
* COALESCE gives the first argument that is neither, else NULL.
* Predicates are true, false or unknown (None here); WHERE keeps what is true. A comparison with NULL or
  MISSING is unknown. Between values of different types `=` is false, `<>` true, and `<`, `<=`, `>`, `>=`
  are unknown. Integers and floats are one type, compared by value, exactly; strings compare by code point,
  false < true, arrays and objects by the order of keys (`keytide.collation`; unknown when they are nested
  too deep for it).
* IS NULL is true for null, false for other values, and unknown for MISSING, so neither IS NULL nor IS NOT
  NULL holds for a field that is not there. IS MISSING is never unknown.
* Integers are exact, of any size; a float on either side makes it double arithmetic, and a result that no
  double holds is NULL. Division is exact on values: 6 / 3 is the integer 2, 7 / 2 is 3.5 (PostgreSQL would
  give 3, but JSON's 7 and 7.0 are one number). % takes the sign of its left side, as in PostgreSQL.
  Division by zero is NULL.
* `||` joins two strings; anything else gives NULL (CAST it first). LENGTH counts code points. LOWER and
  UPPER follow Unicode.
* CAST that fails gives NULL. To text: equal numbers give equal text (5.0 gives '5'). To bigint: exact, any
  size, halves of floats to even, strings of digits only. To boolean: PostgreSQL's words, and numbers other
  than zero are true.
* LIKE: `%` any characters, `_` one character, a backslash (or ESCAPE) before them takes them as they are.
  Unknown for what is no string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from keytide.collation import MISSING, NotIndexableError, Value, encode_part
from keytide.definition.expression import TypeName


def compare(left: Value, right: Value) -> int | None:
    """-1, 0 or 1; None when the values have no common order (other types, null, missing, or too deep)."""
    kind = type(left)
    if kind is int or kind is float:
        if type(right) is not int and type(right) is not float:
            return None
    elif kind is not type(right):
        return None
    elif kind is list or kind is dict:
        try:
            left, right = encode_part(left), encode_part(right)  # type: ignore[assignment]
        except NotIndexableError:
            return None
    elif kind is not str and kind is not bool:
        return None
    return (left > right) - (left < right)  # type: ignore[operator]


def equal(left: Value, right: Value) -> bool | None:
    """left = right."""
    if left is None or right is None or left is MISSING or right is MISSING:
        return None
    order = compare(left, right)
    if order is None:
        return None if type(left) is type(right) else False
    return order == 0


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants to look a value up in, which takes the same time for a thousand as for one.

    Python's sets compare as `equal` does within each of the three kinds: integers and floats by value,
    exactly (2**53 + 1 is not 2.0**53), -0.0 as 0. They stand apart because Python takes 1 and True for equal.

    Attributes:
        null: NULL was among them, which nothing is equal to for certain.
    """

    texts: frozenset[str]
    numbers: frozenset[int | float]
    booleans: frozenset[bool]
    null: bool

    @classmethod
    def of(cls, values: Iterable[Value]) -> Constants:
        """Of strings, numbers, booleans and NULL."""
        listed = list(values)
        return cls(
            frozenset(one for one in listed if type(one) is str),
            frozenset(one for one in listed if type(one) is int or type(one) is float),
            frozenset(one for one in listed if type(one) is bool),
            any(one is None for one in listed),
        )

    def has(self, value: Value) -> bool:
        """Whether one of them is equal to a value."""
        kind = type(value)
        if kind is str:
            return value in self.texts
        if kind is int or kind is float:
            return value in self.numbers
        return kind is bool and value in self.booleans


def less(left: Value, right: Value) -> bool | None:
    """left < right."""
    order = compare(left, right)
    return None if order is None else order < 0


def less_or_equal(left: Value, right: Value) -> bool | None:
    """left <= right."""
    order = compare(left, right)
    return None if order is None else order <= 0


def lower(value: Value) -> Value:
    return value.lower() if type(value) is str else _nothing(value)


def upper(value: Value) -> Value:
    return value.upper() if type(value) is str else _nothing(value)


def length(value: Value) -> Value:
    return len(value) if type(value) is str else _nothing(value)


def coalesce(*values: Value) -> Value:
    for value in values:
        if value is not None and value is not MISSING:
            return value
    return None


def negate(value: Value) -> Value:
    return -value if type(value) is int or type(value) is float else _nothing(value)


def add(left: Value, right: Value) -> Value:
    return _arithmetic(left, right, lambda a, b: a + b)


def subtract(left: Value, right: Value) -> Value:
    return _arithmetic(left, right, lambda a, b: a - b)


def multiply(left: Value, right: Value) -> Value:
    return _arithmetic(left, right, lambda a, b: a * b)


def divide(left: Value, right: Value) -> Value:
    return _arithmetic(left, right, _quotient)


def modulo(left: Value, right: Value) -> Value:
    return _arithmetic(left, right, _remainder)


def concatenate(left: Value, right: Value) -> Value:
    return left + right if type(left) is str and type(right) is str else _nothing(left, right)


def _quotient(left: int | float, right: int | float) -> int | float:
    if type(left) is int and type(right) is int:
        whole, rest = divmod(left, right)
        return whole if rest == 0 else left / right
    return left / right


def _remainder(left: int | float, right: int | float) -> int | float:
    if type(left) is int and type(right) is int:
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return math.fmod(left, right)


def _arithmetic(
    left: Value, right: Value, operation: Callable[[int | float, int | float], int | float]
) -> Value:
    if type(left) is not int and type(left) is not float:
        return _nothing(left, right)
    if type(right) is not int and type(right) is not float:
        return _nothing(left, right)
    try:
        result = operation(left, right)
    except (ArithmeticError, ValueError):  # division by zero, an integer beyond a double, fmod of one
        return None
    return result if type(result) is int or math.isfinite(result) else None


def _nothing(*values: Value) -> Value:
    """What an operation gives that cannot be done: MISSING when one of its values is, else NULL."""
    return MISSING if any(value is MISSING for value in values) else None


_INTEGER: Final = re.compile(r"[ \t\n\r\f\v]*+([+-]?[0-9]++)[ \t\n\r\f\v]*+")
_NUMBER: Final = re.compile(
    r"[ \t\n\r\f\v]*+([+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[ \t\n\r\f\v]*+"
)
_WORDS: Final[dict[str, bool]] = {
    word[:size]: truth
    for word, shortest, truth in (
        ("true", 1, True),
        ("yes", 1, True),
        ("on", 2, True),
        ("1", 1, True),
        ("false", 1, False),
        ("no", 1, False),
        ("off", 2, False),
        ("0", 1, False),
    )
    for size in range(shortest, len(word) + 1)
}


def cast_text(value: Value) -> Value:
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int or type(value) is float:
        if type(value) is float and not value.is_integer():
            return repr(value)
        try:
            return str(int(value))
        except ValueError:  # more digits than Python writes
            return None
    return _nothing(value)


def cast_bigint(value: Value) -> Value:
    if type(value) is int:
        return value
    if type(value) is bool:
        return int(value)
    if type(value) is float:
        return round(value)
    if type(value) is str and (match := _INTEGER.fullmatch(value)):
        try:
            return int(match[1])
        except ValueError:  # more digits than Python reads
            return None
    return _nothing(value)


def cast_double(value: Value) -> Value:
    if type(value) is float:
        return value
    try:
        if type(value) is int or type(value) is bool:
            return float(value)
        if type(value) is str and (match := _NUMBER.fullmatch(value)):
            number = float(match[1])
            return number if math.isfinite(number) else None
    except OverflowError:
        return None
    return _nothing(value)


def cast_boolean(value: Value) -> Value:
    if type(value) is bool:
        return value
    if type(value) is int or type(value) is float:
        return value != 0
    if type(value) is str:
        return _WORDS.get(value.strip(" \t\n\r\f\v").lower())
    return _nothing(value)


CASTS: Final[dict[TypeName, Callable[[Value], Value]]] = {
    "text": cast_text,
    "bigint": cast_bigint,
    "double": cast_double,
    "boolean": cast_boolean,
}


class LikePattern:
    """A LIKE pattern, compiled once. Linear in the text: parts between `%` have a fixed length, and taking
    each at its first place after the one before is always right, so nothing is ever tried twice (one
    regular expression would backtrack).
    """

    def __init__(self, pattern: str, escape: str) -> None:
        """
        Raises:
            ValueError: the pattern ends with the escape character.
        """
        parts: list[list[str | None]] = [[]]  # None stands for `_`
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                try:
                    parts[-1].append(next(characters))
                except StopIteration:
                    raise ValueError("a LIKE pattern must not end with its escape character") from None
            elif character == "%":
                parts.append([])
            else:
                parts[-1].append(None if character == "_" else character)
        self._sizes = [len(part) for part in parts]
        self._regexes = [
            re.compile("".join("." if c is None else re.escape(c) for c in part), re.DOTALL) for part in parts
        ]

    def __call__(self, value: Value) -> bool | None:
        """Whether `value` matches; None when it is no string."""
        if type(value) is not str:
            return None
        first, last = self._regexes[0], self._regexes[-1]
        if len(self._regexes) == 1:
            return first.fullmatch(value) is not None
        end = len(value) - self._sizes[-1]
        if end < self._sizes[0] or not first.match(value) or not last.match(value, end):
            return False
        at = self._sizes[0]
        for regex in self._regexes[1:-1]:
            match = regex.search(value, at, end)
            if match is None:
                return False
            at = match.end()
        return True
