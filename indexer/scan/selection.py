"""From a request's selection to spans of entry keys, and to the slices that can hold them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from indexer.scan.request import Question, SpanRequest
from keytide.collation import Span, encode_part, equals_span, merge_spans, prefix_span, span
from keytide.definition import IndexDefinition
from keytide.definition.expression import Predicate
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


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read of an index, from whatever moment.

    Attributes:
        spans: disjoint stretches of entry keys, ascending; none when nothing can be selected.
        slices: which can hold entries of them.
        filter: entries for which this is true, of those in the spans; None for all. Slices test it.
        distinct: one entry per key: the first one in the direction of the read.
    """

    spans: Sequence[Span]
    slices: Sequence[int]
    filter: Predicate | None = None
    distinct: bool = False


def selection_of(question: Question, shape: Shape, max_spans: int, *, distinct: bool = False) -> Selection:
    """What a request selects.

    Args:
        max_spans: how many `spans` a request may give.

    Raises:
        CallerError (422): too many spans, more key parts than the index has, a value that no key can hold, or
            a slice that the index does not have.
    """
    if question.spans is not None and len(question.spans) > max_spans:
        raise CallerError(
            f"{len(question.spans)} spans were given, this server takes {max_spans}",
            status=422,
            problem_type="too-many-spans",
            next_step="ask in several requests at one held snapshot, or raise scan.max_spans",
        )
    spans = spans_of(question, shape)
    return Selection(spans, slices_of(question, shape) if spans else (), None, distinct)


def filter_json(predicate: Predicate | None) -> bytes:
    """A selection's filter as slices are told it (JSON, as the metadata has predicates)."""
    return b"" if predicate is None else msgspec.json.encode(predicate)


def spans_of(question: Question, shape: Shape) -> list[Span]:
    """The disjoint spans, in order, that a request means in an index; none when it can select nothing.

    Raises:
        CallerError (422): more key parts than the index has, or a value that no key can hold.
    """
    if question.spans is not None:
        return merge_spans(_span_of(one, shape) for one in question.spans)
    one = _span_of(question, shape)
    return [] if one.empty else [one]


def _span_of(one: SpanRequest | Question, shape: Shape) -> Span:
    parts, directions = shape.parts, shape.descending
    if one.prefix is not None:
        return prefix_span(one.equals or (), one.prefix, directions, parts)
    if one.equals is not None:
        return equals_span(one.equals, directions, parts)
    return span(
        one.low,
        one.high,
        one.inclusion in ("both", "low"),
        one.inclusion in ("both", "high"),
        directions,
        parts,
    )


def slices_of(question: Question, shape: Shape) -> Sequence[int]:
    """The slices that can hold entries of what is selected: one per stretch that fixes the part that the
    partitioning goes by, else all; of these only the `slices` that were asked for. (`spans_of` has checked
    the values.)

    Raises:
        CallerError (422): the index has no such slice.
    """
    stretches: Sequence[SpanRequest | Question] = (question,)
    if question.spans is not None:
        stretches = [one for one in question.spans if not _span_of(one, shape).empty]
    slices: Sequence[int]
    if shape.partition_part is None:
        slices = range(shape.slices)
    else:
        found = {_slice_of(one, shape, shape.partition_part) for one in stretches}
        slices = range(shape.slices) if None in found else tuple(sorted(n for n in found if n is not None))
    if question.slices is None:
        return slices
    if max(question.slices, default=0) >= shape.slices:
        raise CallerError(
            f"the index has no slice {max(question.slices)}, it has {shape.slices}",
            status=422,
            problem_type="unknown-slice",
            next_step=f"name slices 0 to {shape.slices - 1}",
        )
    return tuple(sorted(set(slices).intersection(question.slices)))


def _slice_of(one: SpanRequest | Question, shape: Shape, fixed: int) -> int | None:
    """The only slice that can hold entries of a stretch; None when any can.

    Args:
        fixed: the key part that the partitioning goes by.
    """
    if one.equals is not None:
        bounds: tuple[list[Any], ...] = (one.equals,)
    else:
        bounds = (one.low or [], one.high or [])
    if any(len(bound) <= fixed for bound in bounds):
        return None
    # All parts up to the fixed one must be the same in both bounds, as keys and not as Python compares.
    first, *others = ([encode_part(part) for part in bound[: fixed + 1]] for bound in bounds)
    if any(other != first for other in others):
        return None
    return xxhash.xxh3_64_intdigest(first[fixed]) % shape.slices


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


def bounded_offset(offset: int, maximum: int) -> int:
    """The offset to use.

    Raises:
        CallerError (422): more than the server allows.
    """
    if offset > maximum:
        raise CallerError(
            f"offset {offset} is above this server's {maximum}",
            status=422,
            problem_type="offset-too-large",
            next_step="follow the page tokens, which cost nothing for rows gone by, or use `low`",
        )
    return offset
