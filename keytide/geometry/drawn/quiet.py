"""Calls of GEOS: without numpy's warnings, and with its exceptions told as what they say of a geometry."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from keytide.geometry.geojson import NotAGeometryError

P = ParamSpec("P")
R = TypeVar("R")
_MOST_SAID: Final = 120
"""Characters of what GEOS says: it writes whole geometries now and then."""


def quietly(function: Callable[P, R]) -> Callable[P, R]:
    """A function during which numpy says nothing of floating point: GEOS divides by zero on purpose, where it
    deals with it, and numpy sees the flag of the processor and warns in its own name. A microsecond a
    call.

    What GEOS gives up is a geometry that cannot be drawn: `NotAGeometryError`, which concerns one document,
    or one request. Whatever else is raised is an error of ours, and passes."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        import numpy as np

        try:
            with np.errstate(all="ignore"):
                return function(*args, **kwargs)
        except Exception as error:
            from shapely.errors import GEOSException

            if isinstance(error, GEOSException):
                raise undrawable(str(error)) from error
            raise

    return run


def undrawable(why: str) -> NotAGeometryError:
    """What is said of a geometry that GEOS gives up, though nothing is known to be wrong with it."""
    return NotAGeometryError(f"cannot be drawn: {why[:_MOST_SAID]}")
