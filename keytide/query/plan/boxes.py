"""From a condition to spans of an index's keys.

Theory of operation
===================
A *box* allows each key part a set of values (`regions`). A condition is a union of boxes: AND intersects
them, OR puts them side by side. Boxes that differ in one part only become one. The index's structure says
which spans answer a box (`keytide.structure`), and which parts are *realised*: the spans hold nothing else,
and a condition that rests on realised parts alone need not be tested again.

Everything is bounded: too many boxes become one that covers them, too many spans become one per prefix. Both
read more than is needed and leave the condition to the residual filter. Of a structure that finds whole keys
only, boxes are keys: one that covers some of them would hold many more, so there may be more of them, and the
spans are shared out by need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from keytide.collation import Span, merge_spans
from keytide.definition.expression import And, Expression, Or, Predicate
from keytide.query.parse.normal import conjuncts
from keytide.query.plan.intervals import ALL, Interval, intersection, union
from keytide.query.plan.regions import region
from keytide.structure import MOST_KEYS, TOO_MANY_KEYS, Structure

MAX_BOXES: Final = 64
"""Of a structure that is ordered."""
MAX_KEY_BOXES: Final = 1_000
"""Of one that finds whole keys only: more than a query can say one by one, which has so many expressions."""
MAX_SPANS: Final = 500
"""Of one read: slices walk them one after the other, and pages carry them."""

IntervalBox = Mapping[int, tuple[Interval, ...]]
"""Key part -> the values that it may have; all of them for a part that is not there."""


@dataclass(frozen=True, slots=True)
class IndexSpans:
    """What to read of an index for a condition.

    Attributes:
        spans: disjoint, ascending; none when nothing can satisfy the condition.
        boxes: what they were made from.
        rest: the conditions that the spans do not assure.
        depth: for each box, how many leading key parts its spans bound.
        keys: canonical keys: of the entries in the spans those that have one of them; empty for all.
        share: which part of the index the spans are, where that is known without boxes; None where they say.
    """

    spans: tuple[Span, ...]
    boxes: tuple[IntervalBox, ...]
    rest: tuple[Predicate, ...]
    depth: tuple[int, ...]
    keys: tuple[bytes, ...] = ()
    share: float | None = None

    @property
    def bounded(self) -> bool:
        """Whether less than the whole index is read."""
        return any(self.depth) if self.share is None else self.share < 1


def reading(node: Predicate, parts: Sequence[Expression], structure: Structure) -> IndexSpans | str:
    """The spans for a condition in normal form; why there are none, where the structure answers no such one.

    Args:
        parts: the expressions of the key parts.
        structure: of the index.
    """
    boxes, loose = _boxes(node, parts, MAX_BOXES if structure.ordered else MAX_KEY_BOXES)
    spans: list[Span] = []
    depths: list[int] = []
    keys: dict[bytes, None] = {}
    every = True
    realised = set(range(len(parts)))
    share = max(1, MAX_SPANS // max(1, len(boxes)))
    for at, box in enumerate(boxes):
        # A box of keys takes as many spans as it has keys: what others do not need, each may have.
        left = share if structure.ordered else MAX_SPANS - len(spans) - (len(boxes) - 1 - at)
        found = structure.boxed(box, left)
        if isinstance(found, str):
            return f"takes at most {MAX_KEY_BOXES} alternatives, and the query has more" if loose else found
        spans += found.spans
        keys.update(dict.fromkeys(found.keys))
        if len(keys) > MOST_KEYS:
            return TOO_MANY_KEYS
        every = every and bool(found.keys)
        depths.append(found.depth)
        realised &= found.realised | (realised - box.keys())
    rest = []
    for one in conjuncts(node):
        support = _support(one, parts)
        if loose or support is None or not support <= realised:
            rest.append(one)
    if every and not all(depths):
        if len(keys) > MAX_SPANS:  # the whole index is read
            spans, depths = [Span()], [0] * len(boxes)
        else:  # boxes have keys in common: there are fewer than they have together
            again = [found for box in boxes if not isinstance(found := structure.boxed(box, MAX_SPANS), str)]
            spans, depths = [span for one in again for span in one.spans], [one.depth for one in again]
    return IndexSpans(
        tuple(merge_spans(spans)), tuple(boxes), tuple(rest), tuple(depths), tuple(keys) if every else ()
    )


def _boxes(node: Predicate, parts: Sequence[Expression], most: int) -> tuple[list[IntervalBox], bool]:
    """The boxes of a condition, `most` of them at most, and whether some were given up for one that covers
    them."""
    loose = False
    found: list[IntervalBox] = []
    if isinstance(node, And):
        found = [{}]
        for operand in node.operands:
            more, given_up = _boxes(operand, parts, most)
            loose = loose or given_up
            if len(found) * len(more) > most:
                more, loose = [_cover(more)], True
            found = [both for one in found for other in more if (both := _both(one, other)) is not None]
        return _merged(found), loose
    if isinstance(node, Or):
        for operand in node.operands:
            more, given_up = _boxes(operand, parts, most)
            loose = loose or given_up
            found += more
        found = _merged(found)
        return ([_cover(found)], True) if len(found) > most else (found, loose)
    box: dict[int, tuple[Interval, ...]] = {}
    for ordinal, part in enumerate(parts):
        allowed = region(node, part)
        if not allowed.intervals:
            return [], False
        if allowed.intervals != ALL.intervals:
            box[ordinal] = allowed.intervals
    return [box], False


def _both(one: IntervalBox, other: IntervalBox) -> IntervalBox | None:
    """What two boxes share; None for nothing."""
    box = dict(one)
    for ordinal, intervals in other.items():
        box[ordinal] = intersection(box[ordinal], intervals) if ordinal in box else intervals
        if not box[ordinal]:
            return None
    return box


def _cover(boxes: Sequence[IntervalBox]) -> IntervalBox:
    """One box that holds them all."""
    common = set.intersection(*(set(box) for box in boxes)) if boxes else set()
    return {ordinal: union([box[ordinal] for box in boxes]) for ordinal in common}


def _merged(boxes: Sequence[IntervalBox]) -> list[IntervalBox]:
    """The same values in fewer boxes: two that differ in one part become one. Bounded: of many boxes only
    neighbours are compared."""
    merged: list[IntervalBox] = []
    for box in boxes:
        for at, other in enumerate(merged[-MAX_BOXES:], max(0, len(merged) - MAX_BOXES)):
            if box.keys() != other.keys():
                continue
            differ = [ordinal for ordinal in box if box[ordinal] != other[ordinal]]
            if len(differ) <= 1:
                merged[at] = {**other, **{n: union([box[n], other[n]]) for n in differ}}
                break
        else:
            merged.append(box)
    return merged


def _support(node: Predicate, parts: Sequence[Expression]) -> frozenset[int] | None:
    """Key parts whose regions say all that a condition says; None when none do."""
    if isinstance(node, And | Or):
        below = [_support(operand, parts) for operand in node.operands]
        known = [one for one in below if one is not None]
        return frozenset().union(*known) if len(known) == len(below) else None
    for ordinal, part in enumerate(parts):
        if region(node, part).exact:
            return frozenset((ordinal,))
    return None
