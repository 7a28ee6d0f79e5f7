"""How fast the copies of a job are filled. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.catalog.dictionary import Dictionary
from coordinator.catalog.registry import ConflictError
from coordinator.copies.moving import Moves
from coordinator.core.instructions import Note
from coordinator.jobs.registry import DRAIN, NoSuchJobError
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import NodeRecord
from keytide.errors import CallerError

LEAST: Final = 64 * 1024
"""Bytes per second. After each chunk (half a MiB) a copy rests; its source keeps what it reads for a minute
only, so one that rests for longer would begin again and again."""
MOST: Final = 1_000_000_000_000


def drain_of(dictionary: Dictionary, id_: str) -> NodeRecord:
    """The node that a job drains.

    Args:
        id_: `drain-NODE`.

    Raises:
        NoSuchJobError: it is not drained.
    """
    node = dictionary.catalog.records.get(f"node/{id_.removeprefix(DRAIN)}")
    if not isinstance(node, NodeRecord) or not node.drained_at:
        raise NoSuchJobError(
            f"node {id_.removeprefix(DRAIN)} is not drained", next_step="see `keytide node list`"
        )
    return node


def set_rate(builds: Builds, moves: Moves, id_: str, rate: int) -> Note:
    """Change how fast the copies of a job are filled: those that are under way, and those that begin later.

    Args:
        id_: of a copy, a rebalance or a drain.
        rate: bytes per second at most, of each copy; 0: as the settings of its node say.

    Raises:
        CallerError: no copy can be filled at that rate.
        NoSuchJobError: there is no such job, or no more.
        ConflictError: it is over, or fills no copies.
    """
    if rate != 0 and not LEAST <= rate <= MOST:
        raise CallerError(
            f"copies cannot be filled with {rate:,} bytes/s",
            problem_type="copy-rate-out-of-range",
            status=422,
            next_step=f"name a rate from {LEAST:,} to {MOST:,} bytes/s, or 0 for the setting "
            "indexer.copy_rate of the node that is filled",
        )
    dictionary = builds.registry.dictionary
    catalog = dictionary.catalog
    mine: list[CopyRecord] = []
    if id_.startswith(DRAIN):
        node = drain_of(dictionary, id_)
        if not moves.copies_on(node.id):
            raise _over(id_, f"node {node.id} has no copies any more")
        dictionary.put(replace(node, drain_rate=rate))
        mine = [one for one in catalog.copies() if one.replaces == node.id and not one.rebalance]
    elif f"rebalance/{id_}" in catalog.records:
        rebalance = moves.find(id_)
        if rebalance.state != "RUNNING":
            raise _over(id_, f"it is {rebalance.state}")
        dictionary.put(replace(rebalance, rate=rate))
        mine = [one for one in catalog.copies() if one.rebalance == id_]
    elif copy := catalog.copy_record(id_):
        mine = [copy]
    elif job := builds.jobs.find(id_):
        raise ConflictError(
            f"{id_} is a job of kind {job.kind}, which fills no copies",
            problem_type="job-fills-no-copies",
            next_step="only jobs of kind copy, rebalance and drain have a copy rate (`keytide job list`)",
        )
    else:
        raise NoSuchJobError(
            f"there is no job {id_!r}",
            next_step="`keytide job list` shows what there is; a copy is there until it counts",
        )
    for one in mine:
        dictionary.put(replace(one, rate=rate))
    limit = f"at most {rate:,} bytes/s each" if rate else "as fast as their nodes' settings let them"
    return Note("info", "copies-throttled", id_, f"copies of job {id_} are filled {limit} from now on")


def _over(id_: str, why: str) -> ConflictError:
    return ConflictError(
        f"job {id_} is over: {why}", problem_type="job-over", next_step="there is nothing to throttle"
    )
