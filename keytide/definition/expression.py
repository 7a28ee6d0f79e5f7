"""Expressions and predicates of an index as plain immutable data, with a JSON form that lives in the
cluster's metadata.

Every node is a msgspec struct tagged by `node`, so `msgspec.json` writes and reads the tree. What a node
means is in `semantics`; how it becomes Python code is in `projector.core.compile`; how it becomes text again
is in `render`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias
from typing import Literal as OneOf

import msgspec


class Node(msgspec.Struct, frozen=True, tag_field="node", tag=str.lower):
    """Base of all nodes."""


class Path(Node, frozen=True):
    """A place in the document: member names and array positions (from 0). The first step is always a name."""

    steps: tuple[str | int, ...]


class DocumentId(Node, frozen=True):
    """The document's id (the record's key), a string."""


class Literal(Node, frozen=True):
    """A constant. `1`, `1.0` and `true` are three different literals: compare expressions with `same`,
    never with `==`."""

    value: bool | int | float | str | None


class Unnest(Node, frozen=True):
    """Each distinct element of an array in turn."""

    operand: Path


FunctionName = OneOf["lower", "upper", "length", "coalesce", "point"]
TypeName = OneOf["text", "bigint", "double", "boolean"]
RelationName = OneOf["within", "contains", "intersects", "dwithin"]
BinaryOperator = OneOf["+", "-", "*", "/", "%", "||"]
ComparisonOperator = OneOf["=", "<>", "<", "<=", ">", ">="]


class Call(Node, frozen=True):
    """A function of its arguments."""

    function: FunctionName
    arguments: tuple[Expression, ...]


class Cast(Node, frozen=True):
    """CAST(operand AS type)."""

    operand: Expression
    type: TypeName


class Binary(Node, frozen=True):
    """Arithmetic, or concatenation (`||`)."""

    operator: BinaryOperator
    left: Expression
    right: Expression


class Negate(Node, frozen=True):
    """Unary minus."""

    operand: Expression


class PlaceLiteral(Node, frozen=True):
    """A place that a statement gives; never an expression of its own.

    Attributes:
        geojson: the geometry, in the normal form of `keytide.geometry`.
        srid: the system of its coordinates, 4326 or 0.
    """

    geojson: str
    srid: int


class DistanceTo(Node, frozen=True):
    """ST_Distance(operand, place): metres, or units of a plane."""

    operand: Expression
    place: PlaceLiteral


class Relates(Node, frozen=True):
    """The operand is within, contains, or intersects the place, or is at most `metres` away from it."""

    relation: RelationName
    operand: Expression
    place: PlaceLiteral
    metres: float = 0.0


class Comparison(Node, frozen=True):
    operator: ComparisonOperator
    left: Expression
    right: Expression


class And(Node, frozen=True):
    operands: tuple[Predicate, ...]


class Or(Node, frozen=True):
    operands: tuple[Predicate, ...]


class Not(Node, frozen=True):
    operand: Predicate


class In(Node, frozen=True):
    """operand IN (choices)."""

    operand: Expression
    choices: tuple[Expression, ...]


class Like(Node, frozen=True):
    """operand LIKE pattern; `escape` is one character, or "" for none."""

    operand: Expression
    pattern: str
    escape: str


class IsNull(Node, frozen=True):
    operand: Expression


class IsMissing(Node, frozen=True):
    operand: Expression


class Truth(Node, frozen=True):
    """A bare expression where a condition stands: true only for the JSON value true."""

    operand: Expression


Expression: TypeAlias = Path | DocumentId | Literal | Unnest | Call | Cast | Binary | Negate | DistanceTo
Predicate: TypeAlias = Comparison | And | Or | Not | In | Like | IsNull | IsMissing | Truth | Relates

FLIPPED: Final[dict[ComparisonOperator, ComparisonOperator]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
"""The operator that says the same with its operands exchanged."""


def identity(node: Node) -> bytes:
    """A key under which equal expressions, and only those, meet (`==` takes 1, 1.0 and true for the same)."""
    return msgspec.json.encode(node)


def same(left: Node, right: Node) -> bool:
    """Whether two expressions are written the same."""
    return identity(left) == identity(right)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below `node`."""
    if type(node) is Literal:  # nearly all there are, where there are many
        return ()
    match node:
        case Call(arguments=nodes) | And(operands=nodes) | Or(operands=nodes):
            return nodes
        case Binary(left=left, right=right) | Comparison(left=left, right=right):
            return (left, right)
        case In(operand=operand, choices=choices):
            return (operand, *choices)
        case Path() | DocumentId():
            return ()
        case _:
            below: object = getattr(node, "operand", None)
            return (below,) if isinstance(below, Node) else ()


def walk(node: Node) -> Iterator[Node]:
    """`node` and everything below it, parents first, without recursion."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def depth(node: Node) -> int:
    """How many nodes lie on the longest way down."""
    level: list[Node] = [node]
    deep = 0
    while level:
        deep += 1
        level = [child for parent in level for child in children(parent)]
    return deep
