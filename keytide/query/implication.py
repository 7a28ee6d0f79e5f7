"""Whether one condition follows from another: what lets a partial index serve a query.

Sound and not complete: True is said only when every document for which the first is true makes the second
true; when in doubt, False. Both are in normal form. Two ways lead to True: the same condition stands in both,
or the values that the first allows some expression all lie among those for which the second is true
(`keytide.query.regions`).
"""

from __future__ import annotations

from keytide.definition.expression import (
    FLIPPED,
    And,
    Comparison,
    Expression,
    Literal,
    Node,
    Not,
    Or,
    Predicate,
    identity,
)
from keytide.query.intervals import within
from keytide.query.normal import FALSE
from keytide.query.regions import region


def implies(given: Predicate, wanted: Predicate) -> bool:
    """Whether `wanted` is true wherever `given` is."""
    return _implies(given, wanted, {})


def _implies(given: Predicate, wanted: Predicate, known: dict[tuple[int, int], bool]) -> bool:
    """The same; `known` remembers pairs of nodes (by identity, all of two trees that live on), for the ways
    through two nested conditions are many and the pairs are few."""
    pair = (id(given), id(wanted))
    if pair not in known:
        known[pair] = _prove(given, wanted, known)
    return known[pair]


def _prove(given: Predicate, wanted: Predicate, known: dict[tuple[int, int], bool]) -> bool:
    if isinstance(wanted, And):
        return all(_implies(given, one, known) for one in wanted.operands)
    if given == FALSE or _states(given, wanted) or _by_region(given, wanted):
        return True
    if isinstance(given, Or):
        return all(_implies(one, wanted, known) for one in given.operands)
    if isinstance(wanted, Or) and any(_implies(given, one, known) for one in wanted.operands):
        return True
    return isinstance(given, And) and any(
        _implies(one, wanted, known) for one in given.operands if isinstance(one, Or)
    )


def _states(given: Predicate, wanted: Predicate) -> bool:
    """Whether `wanted` stands in `given` as it is."""
    sought = _key(wanted)
    return any(_key(one) == sought for one in (given.operands if isinstance(given, And) else (given,)))


def _by_region(given: Predicate, wanted: Predicate) -> bool:
    """Whether what `given` allows of an expression that `wanted` is all about makes `wanted` true."""
    expression = _subject(wanted)
    if expression is None:
        return False
    goal = region(wanted, expression)
    return goal.exact and within(region(given, expression).intervals, goal.intervals)


def _subject(node: Predicate) -> Expression | None:
    """The expression that the first single condition is about, if it is one with constants."""
    while isinstance(node, And | Or | Not):
        if isinstance(node, Not):
            node = node.operand
        elif not node.operands:
            return None
        else:
            node = node.operands[0]
    if isinstance(node, Comparison):
        return node.left if isinstance(node.right, Literal) else None
    return node.operand


def _key(node: Node) -> bytes:
    """Equal for conditions that are written the same but for the sides of a comparison."""
    if isinstance(node, Comparison) and not isinstance(node.right, Literal):
        turned = Comparison(FLIPPED[node.operator], node.right, node.left)
        return min(identity(node), identity(turned))
    return identity(node)
