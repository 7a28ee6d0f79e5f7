"""What a search for the nearest finds, and how it is put in order. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from indexer.scan.gather.scatter import SliceAnswers
from indexer.scan.peer.messages import Entry
from keytide.errors import CallerError
from keytide.geometry import CELL_BYTES

Measured = tuple[float, Entry]
"""An entry, behind how far away it is."""
FARTHEST: Final = 20_100_000.0
"""Metres: from anywhere on the globe all of it lies within."""
WIDEST: Final = 1e15
"""Units of a plane: beyond, all of it is read."""
GROWTH: Final = 8.0
"""Times that a radius is wider after one within which there is nothing."""


@dataclass(slots=True)
class Nearest(SliceAnswers):
    """What was found.

    Attributes:
        entries: the wanted ones, the nearest first, those at one distance by their ids; with `ties` also
            those that are as far away as the last one.
        searches: how many radii were tried.
    """

    entries: list[Measured] = field(default_factory=list)
    searches: int = 0


class TooManyNearestError(CallerError):
    """More rows are equally far away than a node holds to put them in order, or the nearest are too large."""

    problem_type = "too-many-rows"
    status = 422


def cut(found: list[Measured], wanted: int, most_ties: int | None) -> list[Measured]:
    """The wanted ones of those that were found, in their order.

    Args:
        most_ties: of those that are as far away as the last one, and the ones before them, how many are held
            at most; None when they are not wanted.

    Raises:
        TooManyNearestError: they are more.
    """
    found.sort(key=_place)
    if len(found) <= wanted:
        return found
    if most_ties is None:
        return found[:wanted]
    end = bisect_right(found, found[wanted - 1][0], key=itemgetter(0))
    if end > most_ties:
        raise TooManyNearestError(
            f"more than {most_ties} rows are equally far away (scan.max_sort_rows)",
            next_step="order by the distance alone, or narrow the condition",
        )
    return found[:end]


def check_size(size: int, most: int) -> None:
    """Raise TooManyNearestError if those that were cut take more bytes than `most`."""
    if size > most:
        raise TooManyNearestError(
            f"the nearest take more than {most:,} bytes",
            next_step="ask for fewer, narrow the condition, or raise scan.max_query_bytes",
        )


def _place(one: Measured) -> tuple[float, bytes]:
    """What the nearest are ordered by: how far away, and the document's id. (A document's entry is another
    one by the radius that finds it.)"""
    return one[0], one[1][0][CELL_BYTES:]
