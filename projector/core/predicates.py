"""Conditions as Python source.

SQL's conditions have three values, but all that a WHERE asks is whether one is true, and all that a NOT
asks is whether one is false. So each condition is written in one of two ways, `true(p)` or `false(p)`, both
plain Python booleans that short-circuit: true(a AND b) = true(a) and true(b); false(a AND b) = false(a) or
false(b); true(NOT a) = false(a). Unknown is where both are False.

Operands are names of local variables (or of constants), written by the caller's `atom`.
"""

from __future__ import annotations

from collections.abc import Callable

from keytide.collation import Value
from keytide.definition.expression import (
    FLIPPED,
    And,
    Comparison,
    Expression,
    In,
    IsMissing,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Predicate,
    Relates,
    Truth,
)
from keytide.definition.semantics import Constants, LikePattern
from keytide.definition.spatial.meaning import relates


class PredicateWriter:
    """Writes conditions for one generated function.

    Attributes:
        atom: gives the name of the local variable that holds an expression's value.
        constant: binds a Python object to a name in the function's globals.
    """

    def __init__(self, atom: Callable[[Expression], str], constant: Callable[[str, object], str]) -> None:
        self._atom = atom
        self._constant = constant

    def write(self, node: Predicate, wanted: bool) -> str:
        """Python source that is true exactly when `node` is `wanted`."""
        match node:
            case And(operands=operands):
                return self._joined("and" if wanted else "or", operands, wanted)
            case Or(operands=operands):
                return self._joined("or" if wanted else "and", operands, wanted)
            case Not(operand=inner):
                return self.write(inner, not wanted)
            case Comparison():
                return self._comparison(node, wanted)
            case In(operand=operand, choices=choices):
                return self._in(operand, choices, wanted)
            case Like(operand=operand, pattern=pattern, escape=escape):
                matcher = self._constant("like", LikePattern(pattern, escape))
                return f"{matcher}({self._atom(operand)}) is {wanted}"
            case IsNull(operand=operand):
                return f"{self._atom(operand)} is None" if wanted else _known(self._atom(operand))
            case IsMissing(operand=operand):
                return f"{self._atom(operand)} is {'' if wanted else 'not '}MISSING"
            case Relates(operand=operand):
                return f"{self._constant('relates', relates(node))}({self._atom(operand)}) is {wanted}"
            case Truth(operand=operand):
                return f"{self._atom(operand)} is {wanted}"

    def _joined(self, word: str, operands: tuple[Predicate, ...], wanted: bool) -> str:
        return "(" + f" {word} ".join(self.write(operand, wanted) for operand in operands) + ")"

    def _in(self, operand: Expression, choices: tuple[Expression, ...], wanted: bool) -> str:
        """One look into a set for the constants, whatever their number; the rest are equalities."""
        literals = tuple(c for c in choices if isinstance(c, Literal))
        if len(literals) < 2 or isinstance(operand, Literal):
            return self.write(Or(tuple(Comparison("=", operand, choice) for choice in choices)), wanted)
        others = tuple(Comparison("=", operand, c) for c in choices if not isinstance(c, Literal))
        listed = self._listed(self._atom(operand), Constants.of(c.value for c in literals), wanted)
        if not others:
            return listed
        return f"({listed} {'or' if wanted else 'and'} {self.write(Or(others), wanted)})"

    def _listed(self, name: str, constants: Constants, wanted: bool) -> str:
        """Whether a value is one of some constants, by kind: Python takes 1 and True for equal."""
        if constants.null and not wanted:
            return "False"  # never for certain
        tests = [
            f"({' or '.join(f'type({name}) is {kind}' for kind in kinds)}) and {name} in {constant}"
            for kinds, values in (
                (("str",), constants.texts),
                (("int", "float"), constants.numbers),
                (("bool",), constants.booleans),
            )
            if values and (constant := self._constant("choices", values))
        ]
        found = "(" + " or ".join(tests or ["False"]) + ")"
        return found if wanted else f"({_known(name)} and not {found})"

    def _comparison(self, node: Comparison, wanted: bool) -> str:
        operator, left, right = node.operator, node.left, node.right
        if isinstance(left, Literal):
            operator, left, right = FLIPPED[operator], right, left
        if operator == "<>":
            operator, wanted = "=", not wanted
        if isinstance(right, Literal) and not isinstance(left, Literal):
            special = self._with_literal(operator, self._atom(left), right.value, wanted)
            if special:
                return special
        first, second = self._atom(left), self._atom(right)
        match operator:
            case "=":
                return f"equal({first}, {second}) is {wanted}"
            case "<":
                return f"less({first}, {second}) is {wanted}"
            case "<=":
                return f"less_or_equal({first}, {second}) is {wanted}"
            case ">":
                return f"less({second}, {first}) is {wanted}"
            case _:
                return f"less_or_equal({second}, {first}) is {wanted}"

    def _with_literal(self, operator: str, name: str, value: Value, wanted: bool) -> str:
        """The usual comparisons, in line; "" for the others."""
        if value is None:
            return "False"  # unknown, whatever the other side
        is_same_type = {
            str: f"type({name}) is str",
            int: f"(type({name}) is int or type({name}) is float)",
            float: f"(type({name}) is int or type({name}) is float)",
        }.get(type(value))
        if is_same_type is None:
            return ""
        literal = repr(value)
        if operator == "=":
            equals = f"({is_same_type} and {name} == {literal})"
            return equals if wanted else f"({_known(name)} and not {equals})"
        opposite = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
        return f"({is_same_type} and {name} {operator if wanted else opposite[operator]} {literal})"


def _known(name: str) -> str:
    return f"({name} is not None and {name} is not MISSING)"
