"""How many entries a plan reads, by estimate: without statistics it rests on the shape of the condition."""

from __future__ import annotations

from typing import Final

from keytide.definition.expression import DocumentId
from keytide.definition.index import IndexDefinition
from keytide.query.parse.select import Select
from keytide.query.plan.boxes import IndexSpans, IntervalBox
from keytide.query.plan.intervals import Interval

ASSUMED_ENTRIES: Final = 1_000_000
"""Of an index whose size is not known here."""
_EQUAL: Final = 0.01
_BOUNDED: Final = 0.05
_OPEN: Final = 0.3
_FILTERED: Final = 0.3
"""Which part of the entries a value, a range with two ends, one with one end, and a condition let through."""


def estimated(
    select: Select,
    read: IndexSpans,
    definition: IndexDefinition,
    entries: int | None,
    filters: int | None,
) -> float:
    """The entries that are read.

    Args:
        entries: of the index; None when that is not known.
        filters: where entries, or groups, come in the query's order, so that reading stops at LIMIT, how many
            conditions they are tested by; None where they do not.
    """
    total = ASSUMED_ENTRIES if entries is None else entries
    whole = sum(
        _of_box(box, depth, definition, total) for box, depth in zip(read.boxes, read.depth, strict=True)
    )
    whole = whole if read.share is None else read.share
    found = min(1.0, whole) * total
    if filters is None or select.limit is None:
        return found
    each = _EQUAL * total if select.grouped else 1
    return min(found, (select.limit + select.offset) * each / _FILTERED**filters)


def _of_box(box: IntervalBox, depth: int, definition: IndexDefinition, entries: int) -> float:
    part = 1.0
    for ordinal in range(depth):
        expression = definition.keys[ordinal].expression
        equal = 1 / max(1, entries) if isinstance(expression, DocumentId) else _EQUAL
        part *= min(1.0, sum(_of_interval(one, equal) for one in box[ordinal]))
    return part


def _of_interval(one: Interval, equal: float) -> float:
    if one.is_point:
        return equal
    if one.is_bounded and one.above != one.below:
        return _BOUNDED
    if one.above.startswith("LIKE"):
        return _BOUNDED
    compared = [word for word in (one.above, one.below) if word and not word.startswith("is ")]
    return _OPEN if compared else 1.0
