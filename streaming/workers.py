"""The process that Spark forks its Python workers from, with everything they need already imported.

Theory of operation: Spark runs this module in place of `pyspark.daemon` (`spark.python.daemon.module`). What
is imported here is imported once, not once per worker. And Spark puts the zipped copy of pyspark before the
installed one on the workers' path: Python then reads that zip's directory again for every single task
(`importlib.invalidate_caches`), 0.1 to 0.2 s each, which for a small micro-batch is most of its time. So the
zips are dropped where the package itself can be imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec


def without_zips(path: Sequence[str]) -> list[str]:
    """A module search path without Spark's zipped packages."""
    return [
        entry
        for entry in path
        if not (entry.endswith(".zip") and os.path.basename(entry).startswith(("pyspark", "py4j")))
    ]


def prepare() -> None:
    """Clean the search path (if pyspark is found without the zips) and import what tasks use."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # workers are forked: no threads before that
    zipped, sys.path[:] = list(sys.path), without_zips(sys.path)
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = zipped
    else:
        for entry in set(zipped) - set(sys.path):
            sys.path_importer_cache.pop(entry, None)
    import streaming.tasks  # noqa: F401


if __name__ == "__main__":
    prepare()
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
