"""From a request's selection to spans of entry keys, and to the slices that can hold them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from indexer.scan.request import Question
from keytide.collation import Span, encode_part, equals_span, prefix_span, span
from keytide.definition import IndexDefinition
from keytide.errors import CallerError


@dataclass(frozen=True, slots=True)
class Shape:
    """What selections and rows need to know of an index, worked out once.

    Attributes:
        parts: how many parts its key has.
        descending: its directions, empty when every part ascends.
        partition_part: the key part that the partitioning goes by, None when it is none of them.
        includes: whether it has included columns.
    """

    parts: int
    descending: tuple[bool, ...]
    partition_part: int | None
    slices: int
    includes: bool

    @classmethod
    def of(cls, definition: IndexDefinition) -> Shape:
        return cls(
            len(definition.keys),
            definition.descending,
            definition.partition_part,
            definition.slices,
            bool(definition.include),
        )


def spans_of(question: Question, shape: Shape) -> list[Span]:
    """The disjoint spans, in order, that a selection means in an index; none when it can select nothing.

    Raises:
        CallerError (422): more key parts than the index has, or a value that no key can hold.
    """
    parts, directions = shape.parts, shape.descending
    if question.prefix is not None:
        one = prefix_span(question.equals or (), question.prefix, directions, parts)
    elif question.equals is not None:
        one = equals_span(question.equals, directions, parts)
    else:
        one = span(
            question.low,
            question.high,
            question.inclusion in ("both", "low"),
            question.inclusion in ("both", "high"),
            directions,
            parts,
        )
    return [] if one.empty else [one]


def slices_of(question: Question, shape: Shape) -> Sequence[int]:
    """The slices that can hold entries of a selection: one when it fixes the part that the partitioning goes
    by, else all. (`spans_of` has checked the selection.)
    """
    fixed = shape.partition_part
    if fixed is None:
        return range(shape.slices)
    if question.equals is not None:
        bounds: tuple[list[Any], ...] = (question.equals,)
    else:
        bounds = (question.low or [], question.high or [])
    if any(len(bound) <= fixed for bound in bounds):
        return range(shape.slices)
    # All parts up to the fixed one must be the same in both bounds, as keys and not as Python compares.
    first, *others = ([encode_part(part) for part in bound[: fixed + 1]] for bound in bounds)
    if any(other != first for other in others):
        return range(shape.slices)
    return (xxhash.xxh3_64_intdigest(first[fixed]) % shape.slices,)


def effective_limit(limit: int | None, default: int, maximum: int) -> int:
    """The page size to use.

    Raises:
        CallerError (422): more than the server allows.
    """
    if limit is None:
        return default
    if limit > maximum:
        raise CallerError(
            f"limit {limit} is above this server's {maximum} rows per page",
            status=422,
            problem_type="limit-too-large",
            next_step="ask for smaller pages and follow the page tokens",
        )
    return limit
