"""From a request's selection to spans of entry keys. Pure."""

from __future__ import annotations

from typing import Any

from keytide.definition import IndexDefinition

from indexer.scan.request import Selection
from keytide.collation import Span, equals_span, prefix_span, span
from keytide.errors import CallerError


def spans_of(selection: Selection, definition: IndexDefinition) -> list[Span]:
    """The disjoint spans, in order, that a selection means in an index; none when it can select nothing.

    Raises:
        CallerError (422): more key parts than the index has, or a value that no key can hold.
    """
    parts = len(definition.keys)
    descending = tuple(part.descending for part in definition.keys)
    directions = descending if any(descending) else ()
    if selection.prefix is not None:
        one = prefix_span(_parts(selection.equals), selection.prefix, directions, parts)
    elif selection.equals is not None:
        one = equals_span(_parts(selection.equals), directions, parts)
    else:
        one = span(
            _parts(selection.low) or None,
            _parts(selection.high) or None,
            selection.inclusion in ("both", "low"),
            selection.inclusion in ("both", "high"),
            directions,
            parts,
        )
    return [] if one.empty else [one]


def _parts(values: list[Any] | None) -> list[Any]:
    return [] if values is None else list(values)


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
