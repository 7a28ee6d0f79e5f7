"""Expressions and conditions over what an index entry holds: its key parts, the document's id and the
included columns.

Theory of operation
===================
An entry is a small part of its document, and what can be said of the document from it is said here. An
expression that is written as a key part *is* that key part; a path that is included is that column, and a
path below a key part or column that holds an object or array is looked up in it; anything else is worked out
of its operands. What then is left over (a path that the entry does not hold) is `NotHeldError`.

The meaning is that of `semantics`, the one that projection goes by: the value of an expression over an entry
is its value over the document (of an index on UNNEST: over the document and the entry's element), and a
condition is true, false or unknown (None) of both alike. An included column that the entry does not have was
MISSING in the document.

Bound expressions are functions of (key parts, id, included columns), made once per question and called per
entry. Most need a part of that only: `needs` says which, so that callers decode nothing in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from keytide.collation import MISSING, Json, Value
from keytide.definition import semantics
from keytide.definition.expression import (
    FLIPPED,
    And,
    Binary,
    BinaryOperator,
    Call,
    Cast,
    Comparison,
    ComparisonOperator,
    DistanceTo,
    DocumentId,
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
    Unnest,
    children,
    identity,
)
from keytide.definition.index import IndexDefinition
from keytide.definition.render import render_expression
from keytide.definition.spatial import meaning
from keytide.errors import CallerError

KeyValues = Sequence[Value]
Included = Mapping[str, Json]
Evaluate = Callable[[KeyValues, str, Included], Value]
"""(key parts, document id, included columns) -> value."""
Test = Callable[[KeyValues, str, Included], bool | None]
"""The same for a condition: true, false, or unknown."""

ResultT = TypeVar("ResultT")

_OPERATIONS: Final[dict[BinaryOperator, Callable[[Value, Value], Value]]] = {
    "+": semantics.add,
    "-": semantics.subtract,
    "*": semantics.multiply,
    "/": semantics.divide,
    "%": semantics.modulo,
    "||": semantics.concatenate,
}
_FUNCTIONS: Final[dict[str, Callable[[Value], Value]]] = {
    "lower": semantics.lower,
    "upper": semantics.upper,
    "length": semantics.length,
}
_CONDITIONS: Final = (Comparison, And, Or, Not, In, Like, IsNull, IsMissing, Truth, Relates)


class NotHeldError(CallerError):
    """An expression cannot be worked out of what the index holds. `extra` has it as `expression`."""

    problem_type = "not-in-index"
    status = 422


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be decoded of an entry.

    Attributes:
        parts: how many leading key parts.
        id: the document id.
        include: the included columns.
    """

    parts: int = 0
    id: bool = False
    include: bool = False

    def __or__(self, other: Needs) -> Needs:
        return Needs(max(self.parts, other.parts), self.id or other.id, self.include or other.include)


class Binding:
    """Binds expressions to the entries of one index.

    Args:
        definition: of the index.
    """

    def __init__(self, definition: IndexDefinition) -> None:
        self._definition = definition
        self._parts: dict[bytes, int] = {}
        for ordinal, part in enumerate(definition.keys):
            self._parts.setdefault(identity(part.expression), ordinal)
        self._columns = {
            identity(path): name
            for path, name in zip(definition.include, definition.include_names, strict=True)
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """What entries hold, as SQL, in the order of the definition: key parts, `id`, included columns."""
        held = [render_expression(part.expression) for part in self._definition.keys]
        held += ["id", *map(render_expression, self._definition.include)]
        return tuple(dict.fromkeys(held))

    def part(self, expression: Expression) -> int | None:
        """The key part that an expression is, None when it is none of them."""
        return self._parts.get(identity(expression))

    def serves(self, node: Expression | Predicate) -> bool:
        """Whether an expression or condition can be worked out of an entry."""
        return self._lacking(node) is None

    def needs(self, node: Expression | Predicate) -> Needs:
        """What of an entry an expression or condition that is served looks at."""
        if isinstance(node, Literal):  # (there may be thousands of them)
            return Needs()
        ordinal = self._ordinal(node)
        if ordinal is not None:
            return Needs(parts=ordinal + 1)
        match node:
            case DocumentId():
                return Needs(id=True)
            case Path():
                return self._source(node)[0] if self._holds(node) else Needs()
        needs = Needs()
        for child in children(node):
            needs |= self.needs(child)  # type: ignore[arg-type]
        return needs

    def value(self, node: Expression) -> Evaluate:
        """The function that gives an expression's value.

        Raises:
            NotHeldError: it is not served.
        """
        self._check(node)
        return self._value(node)

    def test(self, node: Predicate) -> Test:
        """The function that tells whether a condition is true (True), false (False) or unknown (None).

        Raises:
            NotHeldError: it is not served.
        """
        self._check(node)
        return self._test(node)

    # --- what is held -----------------------------------------------------------

    def _check(self, node: Expression | Predicate) -> None:
        lacking = self._lacking(node)
        if lacking is not None:
            said = render_expression(lacking)
            raise NotHeldError(
                f"index {self._definition.name} does not hold {said}; it holds {', '.join(self.columns)}",
                next_step=f"take an index with {said} in its key or under INCLUDE, or create one",
                expression=said,
            )

    def _lacking(self, node: Expression | Predicate) -> Expression | None:
        """The first thing that an expression needs and an entry does not hold."""
        if isinstance(node, Literal) or self._ordinal(node) is not None:
            return None
        if isinstance(node, Path):
            return None if self._holds(node) else node
        if isinstance(node, Unnest):
            return node
        for child in children(node):
            lacking = self._lacking(child)  # type: ignore[arg-type]
            if lacking is not None:
                return lacking
        return None

    def _ordinal(self, node: Expression | Predicate) -> int | None:
        return None if isinstance(node, _CONDITIONS) else self._parts.get(identity(node))

    def _holds(self, path: Path) -> bool:
        return any(
            (key := identity(Path(path.steps[:size]))) in self._parts or key in self._columns
            for size in range(1, len(path.steps) + 1)
        )

    def _source(self, path: Path) -> tuple[Needs, Evaluate, tuple[str | int, ...]]:
        """Where a path that is held begins: what to decode, the value there, and the steps that are left."""
        for size in range(len(path.steps), 0, -1):
            key = identity(Path(path.steps[:size]))
            ordinal = self._parts.get(key)
            if ordinal is not None:
                return Needs(parts=ordinal + 1), _part(ordinal), path.steps[size:]
            column = self._columns.get(key)
            if column is not None:
                return Needs(include=True), _column(column), path.steps[size:]
        raise NotHeldError(f"{render_expression(path)} is not held")  # `_check` has said so before

    # --- values -----------------------------------------------------------------

    def _value(self, node: Expression) -> Evaluate:
        if isinstance(node, Literal):
            constant = node.value
            return lambda key, id, include: constant
        ordinal = self._ordinal(node)
        if ordinal is not None:
            return _part(ordinal)
        match node:
            case DocumentId():
                return lambda key, id, include: id
            case Path():
                _, value, steps = self._source(node)
                for step in steps:
                    value = _step(value, step)
                return value
            case Call(function="coalesce", arguments=arguments):
                return _coalesce(tuple(map(self._value, arguments)))
            case Call(function="point", arguments=(x, y)):
                return _combined(meaning.point, self._value(x), self._value(y))
            case Call(function=function, arguments=(argument,)):
                return _applied(_FUNCTIONS[function], self._value(argument))
            case Cast(operand=operand, type=type_):
                return _applied(semantics.CASTS[type_], self._value(operand))
            case Negate(operand=operand):
                return _applied(semantics.negate, self._value(operand))
            case DistanceTo(operand=operand):
                return _applied(meaning.distance_to(node), self._value(operand))
            case Binary(operator=operator, left=left, right=right):
                return _combined(_OPERATIONS[operator], self._value(left), self._value(right))
        raise NotHeldError(f"{render_expression(node)} is not held")  # `_check` has said so before

    # --- conditions -------------------------------------------------------------

    def _test(self, node: Predicate) -> Test:
        match node:
            case And(operands=operands):
                return _all(tuple(map(self._test, operands)))
            case Or(operands=operands):
                return _any(tuple(map(self._test, operands)))
            case Not(operand=inner):
                return _negated(self._test(inner))
            case Comparison(operator=operator, left=left, right=right):
                return self._comparison(operator, left, right)
            case In(operand=operand, choices=choices):
                return self._in(operand, choices)
            case Like(operand=operand, pattern=pattern, escape=escape):
                return _applied(semantics.LikePattern(pattern, escape), self._value(operand))
            case IsNull(operand=operand):
                return _applied(_is_null, self._value(operand))
            case IsMissing(operand=operand):
                return _applied(_is_missing, self._value(operand))
            case Relates(operand=operand):
                return _applied(meaning.relates(node), self._value(operand))
            case Truth(operand=operand):
                return _applied(_truth, self._value(operand))

    def _comparison(self, operator: ComparisonOperator, left: Expression, right: Expression) -> Test:
        if operator in (">", ">="):
            operator, left, right = FLIPPED[operator], right, left
        compare = {"<": semantics.less, "<=": semantics.less_or_equal}.get(operator, semantics.equal)
        test = _combined(compare, self._value(left), self._value(right))
        return _negated(test) if operator == "<>" else test

    def _in(self, operand: Expression, choices: tuple[Expression, ...]) -> Test:
        constants = semantics.Constants.of(c.value for c in choices if isinstance(c, Literal))
        others = [c for c in choices if not isinstance(c, Literal)]
        rest = _any(tuple(self._comparison("=", operand, choice) for choice in others)) if others else None
        value = self._value(operand)

        def test(key: KeyValues, id: str, include: Included) -> bool | None:
            found = value(key, id, include)
            if found is None or found is MISSING:
                return None
            if constants.has(found):
                return True
            below = rest(key, id, include) if rest is not None else False
            return None if constants.null and not below else below

        return test if choices else _any(())


def _part(ordinal: int) -> Evaluate:
    return lambda key, id, include: key[ordinal]


def _column(name: str) -> Evaluate:
    return lambda key, id, include: include.get(name, MISSING)


def _step(value: Evaluate, step: str | int) -> Evaluate:
    """One step of a path below a value."""

    def member(key: KeyValues, id: str, include: Included) -> Value:
        whole = value(key, id, include)
        return whole.get(str(step), MISSING) if type(whole) is dict else MISSING

    def element(key: KeyValues, id: str, include: Included) -> Value:
        whole = value(key, id, include)
        return whole[int(step)] if type(whole) is list and len(whole) > int(step) else MISSING

    return element if isinstance(step, int) else member


def _applied(
    function: Callable[[Value], ResultT], argument: Evaluate
) -> Callable[[KeyValues, str, Included], ResultT]:
    return lambda key, id, include: function(argument(key, id, include))


def _combined(
    function: Callable[[Value, Value], ResultT], first: Evaluate, second: Evaluate
) -> Callable[[KeyValues, str, Included], ResultT]:
    return lambda key, id, include: function(first(key, id, include), second(key, id, include))


def _coalesce(arguments: tuple[Evaluate, ...]) -> Evaluate:
    def value(key: KeyValues, id: str, include: Included) -> Value:
        for argument in arguments:
            found = argument(key, id, include)
            if found is not None and found is not MISSING:
                return found
        return None

    return value


def _all(tests: tuple[Test, ...]) -> Test:
    """AND: false as soon as one is false."""

    def test(key: KeyValues, id: str, include: Included) -> bool | None:
        unknown = False
        for one in tests:
            found = one(key, id, include)
            if found is False:
                return False
            unknown = unknown or found is None
        return None if unknown else True

    return test


def _any(tests: tuple[Test, ...]) -> Test:
    """OR: true as soon as one is true."""

    def test(key: KeyValues, id: str, include: Included) -> bool | None:
        unknown = False
        for one in tests:
            found = one(key, id, include)
            if found:
                return True
            unknown = unknown or found is None
        return None if unknown else False

    return test


def _negated(inner: Test) -> Test:
    def test(key: KeyValues, id: str, include: Included) -> bool | None:
        found = inner(key, id, include)
        return None if found is None else not found

    return test


def _is_null(value: Value) -> bool | None:
    return None if value is MISSING else value is None


def _is_missing(value: Value) -> bool:
    return value is MISSING


def _truth(value: Value) -> bool | None:
    return value if type(value) is bool else None
