"""From a condition to spans of a spatial index's cells.

A spatial index has the documents whose key is a geometry of its system, and so it serves what is true of such
documents only: a condition on that place, or on its distance. What `keytide.structure.spatial` finds for one
condition are the cells of places that can meet it; AND takes what is in both, OR what is in either. Cells
hold more than what is asked for, so each condition is tested again of what is found.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from keytide.definition.spatial.meaning import region_of
from keytide.query.parse.normal import conjuncts
from keytide.query.plan.boxes import IndexSpans
from keytide.structure import Structure, WantedKeys
from keytide.structure.spatial import intersected

_ALL = (Span(),)
_UPPER = ("=", "<", "<=")
_BITS = 64


def reading_of_places(node: Predicate, key: Expression, structure: Structure, srid: int) -> IndexSpans | str:
    """The spans for a condition in normal form; why there are none, where it is about no place of the index.

    Args:
        key: the expression of the index's key.
        srid: of the index.
    """
    found = _spans(node, key, structure, srid)
    if found is None:
        system = "" if srid else ", with places ST_SetSRID(place, 0) for its plane"
        return (
            "finds places only, by ST_Within, ST_Contains, ST_Intersects, ST_DWithin and ST_Distance of its "
            f"key{system}"
        )
    rest = [one for one in conjuncts(node) if not _has_distance(one, key, srid)]
    return IndexSpans(tuple(found), (), tuple(rest), (), share=_share(found))


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


def _spans(node: Predicate, key: Expression, structure: Structure, srid: int) -> Sequence[Span] | None:
    """The entries of documents for which a condition can be true; None when it can be of others, too."""
    match node:
        case And(operands=operands):
            every = [one for below in operands if (one := _spans(below, key, structure, srid)) is not None]
            if not every:
                return None
            found: Sequence[Span] = _ALL
            for one in every:
                found = intersected(found, one)
            return found
        case Or(operands=operands):
            some = [_spans(below, key, structure, srid) for below in operands]
            known = [one for one in some if one is not None]
            return merge_spans(span for one in known for span in one) if len(known) == len(some) else None
        case Relates(operand=operand, place=PlaceLiteral(srid=system)) if system == srid and same(
            operand, key
        ):
            return _selected(node, structure)
        case Comparison(operator=operator, left=left, right=Literal(value=most)) if is_measured(
            left, key, srid
        ):
            near = operator in _UPPER and type(most) in (int, float)
            if near and isinstance(left, DistanceTo) and most >= 0:  # type: ignore[operator]
                return _selected(Relates("dwithin", left.operand, left.place, float(most)), structure)  # type: ignore[arg-type]
            return _ALL
        case Not(operand=Relates(operand=operand, place=PlaceLiteral(srid=system))):
            return _ALL if system == srid and same(operand, key) else None
    return _ALL if _has_distance(node, key, srid) else None


def _selected(node: Relates, structure: Structure) -> Sequence[Span]:
    return structure.selected(WantedKeys(region=region_of(node))).spans


def _share(spans: Sequence[Span]) -> float:
    """Which part of all cells spans are, by estimate."""
    whole = 1 << _BITS

    def place(bound: bytes) -> int:
        return int.from_bytes(bound[:8].ljust(8, b"\0"), "big")

    parts = sum((whole if one.high is None else place(one.high)) - place(one.low) for one in spans)
    return min(1.0, parts / whole)
