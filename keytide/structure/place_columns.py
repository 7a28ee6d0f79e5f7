"""The places of many entries of a spatial index, looked at together: points (`keytide.structure.point_keys`)
and polygons of one ring (`keytide.structure.ring_keys`) as columns, and what is rarer by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from keytide.collation import Json
from keytide.geometry import Rings
from keytide.model.entry import canonical_keys
from keytide.structure.point_keys import is_point_value, points_of
from keytide.structure.ring_keys import are_ring_keys, decoded_rings, rings_of
from keytide.structure.spatial import frame_of

ToldT = TypeVar("ToldT", np.bool_, np.float64)
MOST_AREA_BYTES: Final = 192 * 1024
"""Of polygons that are looked at on the event loop: a corner has 22, and takes a fifth of a microsecond."""
Floats = npt.NDArray[np.float64]


def of_places(
    values: Sequence[bytes],
    srid: int,
    points: Callable[[Floats, Floats], npt.NDArray[ToldT]],
    rings: Callable[[Rings], npt.NDArray[ToldT]],
    one: Callable[[bytes], ToldT | bool | float],
) -> npt.NDArray[ToldT]:
    """What is asked of the place of each value (of entries). Else as `of_keys`.

    Raises:
        InvariantViolationError: a value was not made for a spatial index.
    """
    return of_keys(canonical_keys(values), srid, points, rings, one)


def of_keys(
    keys: Sequence[bytes],
    srid: int,
    points: Callable[[Floats, Floats], npt.NDArray[ToldT]],
    rings: Callable[[Rings], npt.NDArray[ToldT]],
    one: Callable[[bytes], ToldT | bool | float],
) -> npt.NDArray[ToldT]:
    """What is asked of the place of each canonical key.

    Args:
        points, rings: tell it of many.
        one: tells it of the geometry of a canonical key.
    """
    are, xs, ys = points_of(keys)
    if not len(xs):
        are_rings, these = rings_of(keys, frame_of(srid))
        if len(these) == len(keys) > 0:
            return rings(these)
    of_points = points(xs, ys)
    if len(xs) == len(keys):
        return of_points
    found = np.empty(len(keys), of_points.dtype)
    found[are] = of_points
    left = np.flatnonzero(~are)
    if len(xs):
        are_rings, these = rings_of([keys[at] for at in left.tolist()], frame_of(srid))
    if len(these):
        found[left[are_rings]] = rings(these)
    for at in left[~are_rings].tolist():
        found[at] = one(keys[at])
    return found


def decoded_places(keys: Sequence[bytes]) -> list[Json]:
    """The value of each key that is a point or a polygon of one ring, written without forms; None of
    another one."""
    are, xs, ys = points_of(keys)
    found: list[Json] = [None] * len(keys)
    for at, x, y in zip(np.flatnonzero(are).tolist(), xs.tolist(), ys.tolist(), strict=True):
        shown: list[Json] = [int(x) if x.is_integer() else x, int(y) if y.is_integer() else y]
        found[at] = {"coordinates": shown, "type": "Point"}
    left = np.flatnonzero(~are).tolist()
    if left:
        for at, value in zip(left, decoded_rings([keys[at] for at in left]), strict=True):
            found[at] = value
    return found


def areas_bytes(values: Sequence[bytes]) -> int | None:
    """How many bytes of some values are those of polygons; None if there are places that are looked at one by
    one."""
    areas = [value for value in values if not is_point_value(value)]
    if not areas:
        return 0
    return sum(map(len, areas)) if are_ring_keys(canonical_keys(areas)) else None


def are_quick(values: Sequence[bytes], *, areas: bool) -> bool:
    """Whether it takes a few milliseconds at most to look at so many places.

    Args:
        areas: whether polygons are looked at together.
    """
    size = areas_bytes(values)
    return size is not None and size <= (MOST_AREA_BYTES if areas else 0)
