"""Regions: which values of one expression a condition allows, as intervals of encoded key parts.

Theory of operation
===================
Key parts are encoded so that bytes compare as values do (`keytide.collation`), and no code is a prefix of
another. So a set of values is a set of disjoint byte intervals, whatever their types, and SQL's rules about
types become bounds: `city > 'A'` is true of strings only, so its interval ends where the strings end.

`region(condition, expression)` gives the values that the expression can have where the condition is *true*
(unknown and false are the same to a WHERE). It never leaves one out; it is *exact* when it also has none too
many, so that the condition holds just where the value lies in the region. What is not understood allows
everything, inexactly. Conditions are in the normal form of `keytide.query.parse.normal`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from keytide.collation import encode_part, successor
from keytide.collation.encode import encode_text
from keytide.collation.layout import TAG_FALSE, TAG_NEGATIVE, TAG_NUMBER, TAG_STRING, TAG_TRUE
from keytide.definition.expression import (
    And,
    Binary,
    Call,
    Cast,
    Comparison,
    ComparisonOperator,
    DistanceTo,
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
    Relates,
    Truth,
    identity,
    same,
)
from keytide.definition.render import render_expression
from keytide.query.plan.intervals import (
    ALL,
    ARRAYS,
    FALSE_ONLY,
    KNOWN,
    MISSING_ONLY,
    NOT_MISSING,
    NULL_ONLY,
    NUMBERS,
    OBJECTS,
    STRINGS,
    TRUE_ONLY,
    Interval,
    Region,
    intersection,
    tag_byte,
    union,
    without,
)

Constant = bool | int | float | str | None


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
    if about is not None and _same(about, expression):
        return _leaf(node)
    return Region(_implied(node, expression))


def _same(one: Expression, other: Expression) -> bool:
    """`same`, at once for what is compared most: planning does little else."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Path) and isinstance(other, Path):
        return one.steps == other.steps
    return same(one, other)


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
        case In():
            return Region(_listed(identity(node)), exact=True)
        case Like(pattern=pattern, escape=escape):
            return _like(pattern, escape)
        case IsNull():
            return Region((NULL_ONLY,), exact=True)
        case IsMissing():
            return Region((MISSING_ONLY,), exact=True)
        case Truth():
            return Region((TRUE_ONLY,), exact=True)
        case Not(operand=In() as listed):
            return Region(without(KNOWN.intervals, _listed(identity(listed))), exact=True)
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


@functools.lru_cache(maxsize=8)
def _listed(encoded: bytes) -> tuple[Interval, ...]:
    """The values that an In lists; kept, for every index that a query is planned on asks again.

    Args:
        encoded: the In, as `identity` writes it.
    """
    choices = msgspec.json.decode(encoded, type=In).choices
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
        start, end = tag_byte(TAG_FALSE), tag_byte(TAG_TRUE + 1)
    elif isinstance(value, str):
        start, end = tag_byte(TAG_STRING), tag_byte(TAG_STRING + 1)
    else:
        start, end = tag_byte(TAG_NEGATIVE), tag_byte(TAG_NUMBER + 1)
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
    low = tag_byte(TAG_STRING) + encode_text(prefix)
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
        case Relates(operand=operand) | Not(operand=Relates(operand=operand)):
            return _typed(operand, expression, OBJECTS)
    return ALL.intervals


def _needed(known: Expression, expression: Expression) -> tuple[Interval, ...]:
    """The values of `expression` that let `known` be neither null nor missing."""
    if _same(known, expression):
        return KNOWN.intervals
    match known:
        case Call(function="coalesce"):
            return ALL.intervals
        case Call(function="point", arguments=(x, y)):
            return intersection(_typed(x, expression, NUMBERS), _typed(y, expression, NUMBERS))
        case DistanceTo(operand=operand):
            return _typed(operand, expression, OBJECTS)
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
    return kind.intervals if _same(operand, expression) else _needed(operand, expression)
