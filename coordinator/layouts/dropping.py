"""Taking an index out of the dictionary, whatever it does. Pure."""

from __future__ import annotations

from coordinator.builds.builds import Builds
from coordinator.builds.retirement import retire
from coordinator.core.instructions import Instruction
from keytide.catalog.records import BuildRecord, IndexRecord


def drop(builds: Builds, index: IndexRecord, now: int) -> tuple[list[Instruction], BuildRecord | None]:
    """Drop an index: it is out of service at once; its topics go when the projectors have let go of it.

    Returns:
        What follows, and the build that does what is left of one that was cancelled for it.
    """
    left = builds.registry.active(index)
    out, wanted = builds.leave(index, now)
    index = builds.registry.dictionary.catalog.index(index.id) or index
    out = [*out, *retire(builds.registry.dictionary, index, "DROPPING")]
    again = builds.build_anew(left, wanted, now) if left is not None and wanted else None
    return out, again
