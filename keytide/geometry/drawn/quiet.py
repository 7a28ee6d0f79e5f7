"""Calls of GEOS without numpy's warnings."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def quietly(function: Callable[P, R]) -> Callable[P, R]:
    """A function during which numpy says nothing of floating point: GEOS divides by zero on purpose, where it
    deals with it, and numpy sees the flag of the processor and warns in its own name. A microsecond a
    call."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        import numpy as np

        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return run
