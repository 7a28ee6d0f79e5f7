"""The process that Spark forks its Python workers from, with everything they need already imported.

Theory of operation: Spark runs this module in place of `pyspark.daemon` (`spark.python.daemon.module`). What
is imported here is imported once, not once per worker. And Spark puts the zipped copy of pyspark, and the jar
of its core, before the installed package on the workers' path: Python then reads the directories of those
archives again for every single task (`importlib.invalidate_caches`), 0.1 to 0.2 s each, which for a small
micro-batch is most of its time. So the archives are dropped where the package itself can be imported.

Nor does the collector of cycles earn what it costs here: a task holds tens of thousands of messages at a
time, none of them in a cycle, and each pass over them frees nothing (a fifth of a worker's time). What is
imported is frozen, and workers collect once after each task, as Spark's loop does anyway.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from keytide.process.program import begin


def without_archives(path: Sequence[str]) -> list[str]:
    """A module search path without Spark's zipped packages and jars."""
    return [entry for entry in path if not _is_archive(os.path.basename(entry))]


def _is_archive(name: str) -> bool:
    return name.endswith(".jar") or (name.endswith(".zip") and name.startswith(("pyspark", "py4j")))


def prepare() -> None:
    """Clean the search path (if pyspark is found without the zips) and import what tasks use."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # workers are forked: no threads before that
    given, sys.path[:] = list(sys.path), without_archives(sys.path)
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = given
    else:
        for entry in set(given) - set(sys.path):
            sys.path_importer_cache.pop(entry, None)
    import streaming.stages.tasks
    import streaming.verify.tasks  # noqa: F401

    gc.freeze()
    gc.disable()


if __name__ == "__main__":
    begin()
    prepare()
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
