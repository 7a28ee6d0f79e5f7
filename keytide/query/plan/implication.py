"""Whether one condition follows from another: what lets a partial index serve a query.

Sound and not complete: True is said only when every document for which the first is true makes the second
true; when in doubt, False. Both are in normal form. Two ways lead to True: the same condition stands in both,
or the values that the first allows some expression all lie among those for which the second is true
(`keytide.query.plan.regions`).
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
from keytide.query.parse.normal import FALSE
from keytide.query.plan.intervals import Region, within
from keytide.query.plan.regions import region


def implies(given: Predicate, wanted: Predicate) -> bool:
    """Whether `wanted` is true wherever `given` is."""
    return _Proof().implies(given, wanted)


class _Proof:
    """One proof. What it has worked out it remembers by nodes' identities (all of two trees that live on):
    the ways through two nested conditions are many and the pairs of nodes are few."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], bool] = {}
        self._regions: dict[tuple[int, bytes], Region] = {}
        self._stated: dict[int, frozenset[bytes]] = {}

    def implies(self, given: Predicate, wanted: Predicate) -> bool:
        pair = (id(given), id(wanted))
        if pair not in self._pairs:
            self._pairs[pair] = self._prove(given, wanted)
        return self._pairs[pair]

    def _prove(self, given: Predicate, wanted: Predicate) -> bool:
        if isinstance(wanted, And):
            return all(self.implies(given, one) for one in wanted.operands)
        if given == FALSE or self._states(given, wanted) or self._by_region(given, wanted):
            return True
        if isinstance(given, Or):
            return all(self.implies(one, wanted) for one in given.operands)
        if isinstance(wanted, Or) and any(self.implies(given, one) for one in wanted.operands):
            return True
        return isinstance(given, And) and any(
            self.implies(one, wanted) for one in given.operands if isinstance(one, Or)
        )

    def _states(self, given: Predicate, wanted: Predicate) -> bool:
        """Whether `wanted` stands in `given` as it is."""
        stated = self._stated.get(id(given))
        if stated is None:
            stated = frozenset(map(_key, given.operands if isinstance(given, And) else (given,)))
            self._stated[id(given)] = stated
        return _key(wanted) in stated

    def _by_region(self, given: Predicate, wanted: Predicate) -> bool:
        """Whether what `given` allows of an expression that `wanted` is all about makes `wanted` true."""
        expression = _subject(wanted)
        if expression is None:
            return False
        goal = self._region(wanted, expression)
        return goal.exact and within(self._region(given, expression).intervals, goal.intervals)

    def _region(self, node: Predicate, expression: Expression) -> Region:
        at = (id(node), identity(expression))
        if at not in self._regions:
            self._regions[at] = region(node, expression)
        return self._regions[at]


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
