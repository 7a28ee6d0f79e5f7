"""From a condition to spans of a spatial index's cells.

A spatial index has the documents whose key is a geometry of its system, and so it serves what is true of such
documents only: a condition on that place, or on its distance. What `keytide.structure.spatial` finds for one
condition are the cells of places that can meet it. A document with several cells may meet one condition by
one and another condition by another, so AND takes the cells of the condition that has the fewest, and OR all
of them. Cells hold more than what is asked for, so each condition is tested again of what is found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from keytide.collation import Span, merge_spans
from keytide.definition.expression import (
    And,
    Comparison,
    DistanceTo,
    Expression,
    IsNull,
    Literal,
    Not,
    Or,
    PlaceLiteral,
    Predicate,
    Relates,
    same,
)
from keytide.definition.spatial.meaning import query_shape
from keytide.query.parse.normal import conjuncts
from keytide.query.plan.boxes import IndexSpans
from keytide.structure import Structure, WantedKeys
from keytide.structure.spatial import intersected

_ALL = (Span(),)
_UPPER = ("=", "<", "<=")
_BITS = 64


def reading_of_places(
    node: Predicate, key: Expression, structure: Structure, srid: int, nearest: DistanceTo | None = None
) -> IndexSpans | str:
    """The spans for a condition in normal form; why there are none, where it is about no place of the index.

    Args:
        key: the expression of the index's key.
        srid: of the index.
        nearest: the distance that the least of are wanted: circles around it are read within the spans.
    """
    found = _found(node, key, structure, srid, nearest)
    if found is None:
        system = "" if srid else ", with places ST_SetSRID(place, 0) for its plane"
        return (
            "finds places only, by ST_Within, ST_Contains, ST_Intersects, ST_DWithin and ST_Distance of its "
            f"key{system}"
        )
    rest = [one for one in conjuncts(node) if not _has_distance(one, key, srid)]
    spans = found.spans if nearest is None or found.every else _ALL
    return IndexSpans(tuple(spans), (), tuple(rest), (), share=_share(spans))


def farthest(node: Predicate, to: DistanceTo) -> float:
    """How far from a place documents are at most for which a condition is true, as far as it says so."""
    return min((_limit(one, to) for one in conjuncts(node)), default=math.inf)


def _limit(node: Predicate, to: DistanceTo) -> float:
    match node:
        case Relates(relation="dwithin", operand=operand, place=place, metres=metres) if place == to.place:
            return metres if same(operand, to.operand) else math.inf
        case Comparison(operator="=" | "<" | "<=", left=DistanceTo() as left, right=Literal(value=most)):
            return _number(most) if same(left, to) else math.inf
    return math.inf


def _number(value: object) -> float:
    """A number as far as doubles go; infinite beyond, and of what is none."""
    if type(value) is not int and type(value) is not float:
        return math.inf
    try:
        return float(value)
    except OverflowError:
        return math.inf


def is_measured(value: object, key: Expression, srid: int) -> bool:
    """Whether an expression is the distance of the index's key."""
    return isinstance(value, DistanceTo) and same(value.operand, key) and value.place.srid == srid


def _has_distance(node: Predicate, key: Expression, srid: int) -> bool:
    """Whether a condition says no more than that the key has a distance, which every entry's has."""
    return (
        isinstance(node, Not)
        and isinstance(node.operand, IsNull)
        and is_measured(node.operand.operand, key, srid)
    )


class _Found(NamedTuple):
    """What of an index can be of documents for which a condition is true.

    Attributes:
        spans: every such document has a cell in them.
        every: all of its cells lie in them, or, where the nearest are wanted, the cell of its nearest place:
            only such spans may be cut with others, for what is in both need not have a cell in both.
    """

    spans: Sequence[Span]
    every: bool


def _found(
    node: Predicate, key: Expression, structure: Structure, srid: int, nearest: DistanceTo | None
) -> _Found | None:
    """The entries of documents for which a condition can be true; None when it can be of others, too."""
    match node:
        case And(operands=operands):
            some = [_found(one, key, structure, srid, nearest) for one in operands]
            known = sorted((one for one in some if one is not None), key=lambda one: _share(one.spans))
            if not known:
                return None
            if nearest is not None:
                known = [one for one in known if one.every] or known
            spans, every = known[0]
            for one in known[1:]:
                if one.every or every:
                    spans, every = intersected(spans, one.spans), one.every and every
            return _Found(spans, every)
        case Or(operands=operands):
            some = [_found(one, key, structure, srid, nearest) for one in operands]
            known = [one for one in some if one is not None]
            if len(known) < len(some):
                return None
            return _Found(
                merge_spans(span for one in known for span in one.spans), all(one.every for one in known)
            )
        case Relates(operand=operand) if node.place.srid == srid and same(operand, key):
            around = nearest is not None and node.relation == "dwithin" and node.place == nearest.place
            return _Found(_selected(node, structure), node.relation == "within" or around)
        case Comparison(operator=operator, left=DistanceTo() as left, right=Literal(value=value)) if (
            is_measured(left, key, srid)
        ):
            most = _number(value)
            if operator in _UPPER and 0 <= most < math.inf:
                circle = Relates("dwithin", left.operand, left.place, most)
                around = nearest is not None and left.place == nearest.place
                return _Found(_selected(circle, structure), around)
            return _Found(_ALL, True)
        case Not(operand=Relates(operand=operand, place=PlaceLiteral(srid=system))):
            return _Found(_ALL, True) if system == srid and same(operand, key) else None
    return _Found(_ALL, True) if _has_distance(node, key, srid) else None


def _selected(node: Relates, structure: Structure) -> Sequence[Span]:
    with query_shape(node) as shape:
        return structure.selected(WantedKeys(region=shape)).spans


def _share(spans: Sequence[Span]) -> float:
    """Which part of all cells spans are, by estimate."""
    whole = 1 << _BITS

    def place(bound: bytes) -> int:
        return int.from_bytes(bound[:8].ljust(8, b"\0"), "big")

    parts = sum((whole if one.high is None else place(one.high)) - place(one.low) for one in spans)
    return min(1.0, parts / whole)
