"""The slices of an index that a query asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from keytide.catalog.partitioning import Partitioning, slices_of_cells
from keytide.collation import Span
from keytide.definition.expression import Predicate
from keytide.definition.index import IndexDefinition
from keytide.query.plan.regions import region

_MOST_POINTS: Final = 64
"""Of a partitioning expression: beyond that all slices are asked."""


def slices_asked(
    condition: Predicate, definition: IndexDefinition, splits: Sequence[bytes], spans: Sequence[Span]
) -> tuple[int, ...]:
    """The slices that can hold rows: those of the values that the condition leaves the partitioning, or of
    the cells."""
    rule = Partitioning.of(definition, splits)
    if definition.partitioned_by_cell:
        return tuple(slices_of_cells(rule, spans))
    values = region(condition, definition.partition).intervals
    found: set[int] = set()
    if rule.ranged:
        for one in values:
            found.update(rule.slices_of_values(one.low, one.high))
    elif len(values) > _MOST_POINTS or not all(one.is_point for one in values):
        return tuple(range(definition.slices))
    else:
        for one in values:
            found.update(rule.slices_of_value(one.low))
    return tuple(sorted(found))
