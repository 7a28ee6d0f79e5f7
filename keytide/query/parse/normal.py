"""Conditions in a normal form that planning can read.

Theory of operation
===================
A WHERE keeps what is true and does not tell unknown from false. Where nothing is negated any more, unknown
may therefore be written as false. So NOT is pushed down to the single conditions, which is sound in SQL's
three values: NOT (a AND b) is NOT a OR NOT b, and NOT of a comparison is the opposite comparison (both are
unknown together). What is left:

* And and Or, each of at least two operands, none of the kind of its parent;
* `expression <op> literal`, or a comparison of two expressions that both say something about the document;
* In of non-null literals, at least two;
* Like, IsNull, IsMissing, Truth, and In, each of them under a Not or not.

`TRUE` and `FALSE`, the empty And and Or, stand for the whole condition only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from keytide.collation import MISSING
from keytide.definition.binding import Binding
from keytide.definition.expression import (
    FLIPPED,
    And,
    Comparison,
    ComparisonOperator,
    DocumentId,
    Expression,
    In,
    Literal,
    Node,
    Not,
    Or,
    Path,
    Predicate,
    Unnest,
    identity,
    walk,
)
from keytide.definition.index import IndexDefinition, KeyPart

TRUE: Final = And(())
FALSE: Final = Or(())
OPPOSITE: Final[dict[ComparisonOperator, ComparisonOperator]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
_NONE: Final = Binding(IndexDefinition("none", "none", "", (KeyPart(DocumentId()),), DocumentId()))
"""Binds constants only: it is never asked for a document."""
_MANY: Final = 16
"""Comparisons side by side, beyond which those of one expression are listed: a few are told as they were
written."""
_MOST_BITS: Final = 14_000
"""Of an integer that Python still writes as text."""


def is_constant(node: Node) -> bool:
    """Whether it says nothing about the document."""
    return not any(isinstance(below, Path | DocumentId | Unnest) for below in walk(node))


def constant(node: Expression) -> Expression:
    """The literal that a constant expression comes to; any other expression as it is."""
    if isinstance(node, Literal) or not is_constant(node):
        return node
    value = _NONE.value(node)((), "", {})
    if value is MISSING or isinstance(value, list | dict):
        return node
    too_long = isinstance(value, int) and value.bit_length() > _MOST_BITS
    return node if too_long else Literal(value)  # type: ignore[arg-type]


def normal(node: Predicate, wanted: bool = True) -> Predicate:
    """The normal form of `node`: true where `node` is `wanted`, never true elsewhere."""
    match node:
        case And(operands=operands):
            return _joined([normal(one, wanted) for one in operands], wanted)
        case Or(operands=operands):
            return _joined([normal(one, wanted) for one in operands], not wanted)
        case Not(operand=inner):
            return normal(inner, not wanted)
        case _ if is_constant(node):
            return TRUE if _NONE.test(node)((), "", {}) is wanted else FALSE
        case Comparison(operator=operator, left=left, right=right):
            return _comparison(operator if wanted else OPPOSITE[operator], constant(left), constant(right))
        case In():
            return _in(node, wanted)
        case _:
            return node if wanted else Not(node)


def conjuncts(node: Predicate) -> tuple[Predicate, ...]:
    """The conditions that must all hold; none for `TRUE`."""
    return node.operands if isinstance(node, And) else (node,)


def conjunction(nodes: Iterable[Predicate]) -> Predicate:
    """All of some conditions in normal form, in normal form; a condition that stands twice is there once."""
    return _joined(list(nodes), every=True)


def size(node: Node) -> tuple[int, int]:
    """How many nodes it has, but for literals, and how many literals."""
    literals = [isinstance(one, Literal) for one in walk(node)]
    return len(literals) - sum(literals), sum(literals)


def _joined(operands: list[Predicate], every: bool) -> Predicate:
    kind: type[And] | type[Or] = And if every else Or
    neutral, decisive = (TRUE, FALSE) if every else (FALSE, TRUE)
    flat: dict[bytes, Predicate] = {}
    for operand in operands:
        if operand == decisive:
            return decisive
        for one in operand.operands if isinstance(operand, kind) else (operand,):
            flat.setdefault(identity(one), one)
    if len(flat) > _MANY:
        flat = _listed(flat, every)
    if not flat:
        return neutral
    found = tuple(flat.values())
    return found[0] if len(found) == 1 else kind(found)


def _listed(flat: dict[bytes, Predicate], every: bool) -> dict[bytes, Predicate]:
    """The same conditions with `a = 1 OR a = 2 OR ...` as one In, and `a <> 1 AND a <> 2 AND ...` as one that
    is negated: what is listed is looked up, what is compared is compared one by one."""
    wanted: ComparisonOperator = "<>" if every else "="
    found: dict[bytes, Predicate] = {}
    operands: dict[bytes, Expression] = {}
    choices: dict[bytes, dict[bytes, Expression]] = {}
    literals: tuple[Expression, ...]
    for key, one in flat.items():
        inner = one.operand if every and isinstance(one, Not) else one
        if isinstance(one, Comparison) and one.operator == wanted and isinstance(one.right, Literal):
            operand, literals = one.left, (one.right,)
        elif isinstance(inner, In) and isinstance(one, Not) == every:
            operand, literals = inner.operand, inner.choices
        else:
            found[key] = one
            continue
        of = identity(operand)
        operands[of] = operand
        choices.setdefault(of, {}).update((identity(literal), literal) for literal in literals)
    for of, operand in operands.items():
        literals = tuple(choices[of].values())
        made: Predicate = Comparison(wanted, operand, literals[0])
        if len(literals) > 1:
            made = Not(In(operand, literals)) if every else In(operand, literals)
        found[identity(made)] = made
    return found


def _comparison(operator: ComparisonOperator, left: Expression, right: Expression) -> Predicate:
    if isinstance(left, Literal):
        operator, left, right = FLIPPED[operator], right, left
    if isinstance(right, Literal) and right.value is None:
        return FALSE
    return Comparison(operator, left, right)


def _in(node: In, wanted: bool) -> Predicate:
    operand = constant(node.operand)
    choices = [constant(choice) for choice in node.choices]
    literals: dict[bytes, Expression] = {}
    others: list[Predicate] = []
    for choice in choices:
        if isinstance(operand, Literal) or not isinstance(choice, Literal):
            others.append(_comparison("=" if wanted else "<>", operand, choice))
        elif choice.value is not None:
            literals.setdefault(identity(choice), choice)
        elif not wanted:
            return FALSE
    found = tuple(literals.values())
    if len(found) == 1:
        others.insert(0, _comparison("=" if wanted else "<>", operand, found[0]))
    elif found:
        listed = In(operand, found)
        others.insert(0, listed if wanted else Not(listed))
    return _joined(others, every=not wanted)
