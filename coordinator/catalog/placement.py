"""Which node holds which slice. Pure.

Each replica of each slice goes to the node that has the fewest slices so far (of all indexes), names
deciding ties: with equal nodes that is round robin. Replicas of one slice lie on different nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keytide.catalog.catalog import EMITTING
from keytide.catalog.records import IndexRecord
from keytide.errors import RetryableError


class TooFewNodesError(RetryableError):
    """Not enough live nodes for the replicas that an index asks for."""

    problem_type = "too-few-nodes"


def counts(nodes: Iterable[str], indexes: Iterable[IndexRecord]) -> dict[str, int]:
    """How many slice replicas each of `nodes` holds."""
    result = dict.fromkeys(sorted(nodes), 0)
    for record in indexes:
        if record.state in EMITTING:
            for replicas in record.placement:
                for node in replicas:
                    if node in result:
                        result[node] += 1
    return result


def place(slices: int, replicas: int, load: dict[str, int]) -> list[list[str]]:
    """Nodes for each slice, the first of which is asked first.

    Args:
        slices: how many slices.
        replicas: copies beside the first.
        load: slice replicas per live node; raised by what is placed here.

    Raises:
        TooFewNodesError: there are fewer nodes than replicas.
    """
    needed = replicas + 1
    if len(load) < needed:
        raise TooFewNodesError(
            shortage(len(load), needed),
            next_step="start one: `python -m indexer`, or `keytide up --nodes N` for a local cluster",
        )
    placement: list[list[str]] = []
    for _ in range(slices):
        chosen: list[str] = []
        for _ in range(needed):
            node = min((name for name in sorted(load) if name not in chosen), key=lambda name: load[name])
            load[node] += 1
            chosen.append(node)
        placement.append(chosen)
    return placement


def shortage(live: int, needed: int) -> str:
    """That fewer indexer nodes are live than are needed, in words."""
    if not live:
        return "no indexer node is live" + (f", and {needed} are needed" if needed > 1 else "")
    have = "only 1 indexer node is live" if live == 1 else f"only {live} indexer nodes are live"
    return f"{have}, and {needed} are needed"


def nodes_of(placement: Sequence[Sequence[str]]) -> list[str]:
    """The nodes that a placement names, sorted."""
    return sorted({node for replicas in placement for node in replicas})
