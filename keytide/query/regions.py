"""Regions: which values of one expression a condition allows, as intervals of encoded key parts.

Theory of operation
===================
Key parts are encoded so that bytes compare as values do (`keytide.collation`), and no code is a prefix of
another. So a set of values is a set of disjoint byte intervals, whatever their types, and SQL's rules about
types become bounds: `city > 'A'` is true of strings only, so its interval ends where the strings end.

`region(condition, expression)` gives the values that the expression can have where the condition is *true*
(unknown and false are the same to a WHERE). It never leaves one out; it is *exact* when it also has none too
many, so that the condition holds just where the value lies in the region. What is not understood allows
everything, inexactly. Conditions are in the normal form of `keytide.query.normal`.

An interval that is one code and all that begins with it is a *point*: an equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from keytide.collation import encode_part, successor
from keytide.collation.encode import encode_text
from keytide.collation.layout import (
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
)
from keytide.definition.expression import (
    And,
    Binary,
    Call,
    Cast,
    Comparison,
    ComparisonOperator,
    Expression,
    In,
    IsMissing,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Path,
    Predicate,
    Truth,
    same,
)
from keytide.definition.render import render_expression

Constant = bool | int | float | str | None
_CONSTANT_TAGS: Final = (TAG_MISSING, TAG_NULL, TAG_FALSE, TAG_TRUE)
_NUMBER_TAGS: Final = (TAG_NEGATIVE, TAG_NUMBER)
_SHORTEST_NUMBER: Final = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """Values whose code is at or above `low` and below `high`.

    Attributes:
        above, below: the two bounds as a reader would say them; "" for the end of a type.
    """

    low: bytes
    high: bytes
    above: str = ""
    below: str = ""

    @property
    def is_point(self) -> bool:
        """Whether it is exactly one value. (The low bounds of others are tags, prefixes and successors of
        codes, which are no codes.)"""
        low = self.low
        if low[0] in _CONSTANT_TAGS:
            whole = len(low) == 1
        elif low[0] in _NUMBER_TAGS:
            whole = len(low) >= _SHORTEST_NUMBER
        else:
            whole = low[0] == TAG_STRING and low.endswith(STRING_END)
        return whole and self.high == successor(low)

    @property
    def is_bounded(self) -> bool:
        """Whether both of its ends are values, rather than the ends of a type."""
        return bool(self.above and self.below)

    def described(self) -> str:
        """As a reader would say it: `= 'Boston'`, `>= 60 and < 100`."""
        words = dict.fromkeys(word for word in (self.above, self.below) if word)
        return " and ".join(words) or "any value"


@dataclass(frozen=True, slots=True)
class Region:
    """Disjoint intervals in ascending order, and whether they say all that the condition says."""

    intervals: tuple[Interval, ...]
    exact: bool = False

    @property
    def is_all(self) -> bool:
        """Whether it says nothing."""
        return not self.exact and self.intervals == ALL.intervals


_FIRST: Final = b"\x02"
_LAST: Final = b"\xff"
"""Below and above every tag, now and in later releases."""


def _tag(tag: int) -> bytes:
    return bytes((tag,))


def _kind(first: int, last: int, word: str) -> Region:
    return Region((Interval(_tag(first), _tag(last + 1), word, word),))


ALL: Final = Region((Interval(_FIRST, _LAST),))
NOTHING: Final = Region((), exact=True)
MISSING_ONLY: Final = Interval(_tag(TAG_MISSING), _tag(TAG_MISSING + 1), "is missing")
NULL_ONLY: Final = Interval(_tag(TAG_NULL), _tag(TAG_NULL + 1), "is null")
NOT_MISSING: Final = Region((Interval(_tag(TAG_NULL), _LAST, "is not missing"),))
KNOWN: Final = Region((Interval(_tag(TAG_NULL + 1), _LAST, "is not null"),))
NUMBERS: Final = _kind(TAG_NEGATIVE, TAG_NUMBER, "is a number")
STRINGS: Final = _kind(TAG_STRING, TAG_STRING, "is a string")
ARRAYS: Final = _kind(TAG_ARRAY, TAG_ARRAY, "is an array")
OBJECTS: Final = _kind(TAG_OBJECT, TAG_OBJECT, "is an object")
TRUE_ONLY: Final = Interval(_tag(TAG_TRUE), _tag(TAG_TRUE + 1), "= TRUE")
FALSE_ONLY: Final = Interval(_tag(TAG_FALSE), _tag(TAG_FALSE + 1), "= FALSE")


# --- sets ---------------------------------------------------------------------------------------------------


def intersection(one: Sequence[Interval], other: Sequence[Interval]) -> tuple[Interval, ...]:
    """The values in both."""
    found: list[Interval] = []
    left = right = 0
    while left < len(one) and right < len(other):
        first, second = one[left], other[right]
        lower = first if (first.low, bool(first.above)) >= (second.low, bool(second.above)) else second
        upper = first if (first.high, not first.below) <= (second.high, not second.below) else second
        if lower.low < upper.high:
            found.append(Interval(lower.low, upper.high, lower.above, upper.below))
        if first.high <= second.high:
            left += 1
        else:
            right += 1
    return tuple(found)


def union(sets: Sequence[Sequence[Interval]]) -> tuple[Interval, ...]:
    """The values in any. Intervals that merely touch stay apart: a point is worth more than a range."""
    merged: list[Interval] = []
    for following in sorted((one for each in sets for one in each), key=lambda one: (one.low, one.high)):
        last = merged[-1] if merged else None
        if last is None or last.high <= following.low:
            merged.append(following)
        elif following.high > last.high:
            merged[-1] = Interval(last.low, following.high, last.above, following.below)
    return tuple(merged)


def without(one: Sequence[Interval], other: Sequence[Interval]) -> tuple[Interval, ...]:
    """The values in `one` and not in `other`."""
    kept: list[Interval] = []
    first = 0
    for interval in one:
        low, above = interval.low, interval.above
        while first < len(other) and other[first].high <= low:
            first += 1
        at = first
        while at < len(other) and other[at].low < interval.high:
            hole = other[at]
            name = hole.above.removeprefix("= ") if hole.is_point else ""
            if low < hole.low:
                kept.append(Interval(low, hole.low, above, f"< {name}" if name else ""))
            if low < hole.high:
                low, above = hole.high, f"> {name}" if name else ""
            at += 1
        if low < interval.high:
            kept.append(Interval(low, interval.high, above, interval.below))
    return tuple(kept)


def within(one: Sequence[Interval], other: Sequence[Interval]) -> bool:
    """Whether every value of `one` is in `other`."""
    return not without(one, other)


def touches(one: Sequence[Interval], other: Interval) -> bool:
    """Whether they share a value."""
    return bool(intersection(one, (other,)))


# --- conditions ---------------------------------------------------------------------------------------------


def point(value: Constant) -> Interval:
    """The one value; integers and floats of one value are one.

    Raises:
        NotIndexableError: no key holds it.
    """
    code = encode_part(value)
    return Interval(code, successor(code), f"= {render_expression(Literal(value))}")


def region(node: Predicate, expression: Expression) -> Region:
    """The values that `expression` can have where `node` is true."""
    if isinstance(node, And | Or):
        return joined([region(operand, expression) for operand in node.operands], isinstance(node, And))
    about = _operand(node)
    if about is not None and same(about, expression):
        return _leaf(node)
    return Region(_implied(node, expression))


def joined(regions: Sequence[Region], every: bool) -> Region:
    """The region where all of several conditions hold, or any of them."""
    exact = all(one.exact for one in regions)
    if every:
        found = ALL.intervals
        for one in regions:
            found = intersection(found, one.intervals)
        return Region(found, exact)
    return Region(union([one.intervals for one in regions]), exact)


def _operand(node: Predicate) -> Expression | None:
    """The expression that a single condition compares with constants."""
    match node:
        case Comparison(left=left, right=Literal()):
            return left
        case In(operand=operand, choices=choices):
            return operand if all(isinstance(choice, Literal) for choice in choices) else None
        case Like(operand=operand) | IsNull(operand=operand) | IsMissing(operand=operand):
            return operand
        case Truth(operand=operand):
            return operand
        case Not(operand=inner):
            return _operand(inner)
    return None


def _leaf(node: Predicate) -> Region:
    """Where a single condition on an expression is true of the expression's value."""
    match node:
        case Comparison(operator=operator, right=Literal(value=value)):
            return Region(_compared(operator, value), exact=True)
        case In(choices=choices):
            return Region(_points(choices), exact=True)
        case Like(pattern=pattern, escape=escape):
            return _like(pattern, escape)
        case IsNull():
            return Region((NULL_ONLY,), exact=True)
        case IsMissing():
            return Region((MISSING_ONLY,), exact=True)
        case Truth():
            return Region((TRUE_ONLY,), exact=True)
        case Not(operand=In(choices=choices)):
            return Region(without(KNOWN.intervals, _points(choices)), exact=True)
        case Not(operand=Like(pattern=pattern, escape=escape)):
            like = _like(pattern, escape)
            strings = STRINGS.intervals
            return Region(without(strings, like.intervals), exact=True) if like.exact else STRINGS
        case Not(operand=IsNull()):
            return Region(KNOWN.intervals, exact=True)
        case Not(operand=IsMissing()):
            return Region(NOT_MISSING.intervals, exact=True)
        case Not(operand=Truth()):
            return Region((FALSE_ONLY,), exact=True)
    return ALL


def _points(choices: Sequence[Expression]) -> tuple[Interval, ...]:
    """The non-null literals among `choices`."""
    return union(
        [(point(one.value),) for one in choices if isinstance(one, Literal) and one.value is not None]
    )


def _compared(operator: ComparisonOperator, value: Constant) -> tuple[Interval, ...]:
    """Values for which `value-of-the-expression <operator> value` is true."""
    if value is None:
        return ()
    one = point(value)
    if operator == "=":
        return (one,)
    if operator == "<>":
        return without(KNOWN.intervals, (one,))
    name = one.above.removeprefix("= ")
    if isinstance(value, bool):
        start, end = _tag(TAG_FALSE), _tag(TAG_TRUE + 1)
    elif isinstance(value, str):
        start, end = _tag(TAG_STRING), _tag(TAG_STRING + 1)
    else:
        start, end = _tag(TAG_NEGATIVE), _tag(TAG_NUMBER + 1)
    match operator:
        case "<":
            found = Interval(start, one.low, "", f"< {name}")
        case "<=":
            found = Interval(start, one.high, "", f"<= {name}")
        case ">":
            found = Interval(one.high, end, f"> {name}")
        case _:
            found = Interval(one.low, end, f">= {name}")
    return (found,) if found.low < found.high else ()


def _like(pattern: str, escape: str) -> Region:
    """Strings that begin as the pattern does; exact when that is all it says."""
    if escape in ("%", "_"):
        return STRINGS
    prefix, rest = "", pattern
    while rest and rest[0] not in "%_":
        step = 2 if escape and rest[0] == escape else 1
        prefix, rest = prefix + rest[step - 1 : step], rest[step:]
    if not rest:
        return Region((point(prefix),), exact=True)
    whole = not rest.strip("%")
    if not prefix:
        return Region(STRINGS.intervals, exact=whole)
    low = _tag(TAG_STRING) + encode_text(prefix)
    words = f"LIKE {render_expression(Literal(prefix + '%'))}"
    return Region((Interval(low, successor(low), words, words),), exact=whole)


def _implied(node: Predicate, expression: Expression) -> tuple[Interval, ...]:
    """What a single condition on other expressions, when true, says of `expression`."""
    match node:
        case Comparison(left=left, right=right):
            return intersection(_needed(left, expression), _needed(right, expression))
        case (
            In(operand=operand)
            | Like(operand=operand)
            | Truth(operand=operand)
            | Not(operand=In(operand=operand))
            | Not(operand=Like(operand=operand))
            | Not(operand=IsNull(operand=operand))
            | Not(operand=Truth(operand=operand))
        ):
            return _needed(operand, expression)
    return ALL.intervals


def _needed(known: Expression, expression: Expression) -> tuple[Interval, ...]:
    """The values of `expression` that let `known` be neither null nor missing."""
    if same(known, expression):
        return KNOWN.intervals
    match known:
        case Call(function="coalesce"):
            return ALL.intervals
        case Call(arguments=(argument,)):
            return _typed(argument, expression, STRINGS)
        case Cast(operand=operand):
            return _typed(operand, expression, KNOWN)
        case Negate(operand=operand):
            return _typed(operand, expression, NUMBERS)
        case Binary(operator=operator, left=left, right=right):
            kind = STRINGS if operator == "||" else NUMBERS
            return intersection(_typed(left, expression, kind), _typed(right, expression, kind))
        case Path(steps=steps) if isinstance(expression, Path):
            above = expression.steps
            if len(above) < len(steps) and steps[: len(above)] == above:
                return (OBJECTS if isinstance(steps[len(above)], str) else ARRAYS).intervals
    return ALL.intervals


def _typed(operand: Expression, expression: Expression, kind: Region) -> tuple[Interval, ...]:
    return kind.intervals if same(operand, expression) else _needed(operand, expression)
