"""Drivers do without pandas: pyarrow would import it when it is first given a list, to see whether that is
one of its objects. That is nearly half of what a driver needs to start (1.1 of 2.4 seconds of processor time,
measured), and 45 MB that it holds from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pyarrow is to do without", name=name)
        return None


def do_without_pandas() -> None:
    """Have pyarrow find that there is no pandas, once for all; others of this process may import it
    afterwards, but what they make with it pyarrow does not know any more."""
    if "pandas" in sys.modules:
        return  # (in a test, say: it costs nothing any more)
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
