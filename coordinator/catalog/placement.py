"""Which node holds which slice. Pure.

Each replica of each slice goes to the node that has the fewest slices so far (of all indexes), names
deciding ties: with equal nodes that is round robin. Slices of one partition are there to share what is too
much for one node, so first counts how many of these a node has. Replicas of one slice lie on different nodes,
and as long as there are zones without one, in different zones. Nodes that are drained, or have not the role
for it, get none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

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


def place(
    slices: int,
    replicas: int,
    load: dict[str, int],
    zones: Mapping[str, str],
    closed: Set[str] = frozenset(),
    spread: Sequence[int] = (),
) -> list[list[str]]:
    """Nodes for each slice, the first of which is asked first.

    Args:
        slices: how many slices.
        replicas: copies beside the first.
        load: slice replicas per live node; raised by what is placed here.
        zones: node -> what fails together with it; of every live node.
        closed: nodes that get no slice.
        spread: of how many slices each partition is; empty when each is one.

    Raises:
        TooFewNodesError: there are fewer nodes than replicas.
    """
    needed = replicas + 1
    open_ = sorted(load.keys() - closed)
    if len(open_) < needed:
        shut = len(load) - len(open_)
        step = "start one: `python -m indexer`, or `keytide up --nodes N` for a local cluster"
        again = "`keytide node undrain NODE`, or the role `index` for it (setting indexer.roles)"
        step += f"; or let one have slices again: {again}" if shut else ""
        raise TooFewNodesError(shortage(len(open_), needed, shut), next_step=step)
    placement: list[list[str]] = []
    for size in spread or (1,) * slices:
        held: Counter[str] = Counter()
        for _ in range(size):
            chosen: list[str] = []
            for _ in range(needed):
                taken = {zones[name] for name in chosen}
                free = (name for name in open_ if name not in chosen)
                node = min(free, key=lambda name: (zones[name] in taken, held[name], load[name]))
                load[node] += 1
                held[node] += 1
                chosen.append(node)
            placement.append(chosen)
    return placement


def shortage(live: int, needed: int, closed: int = 0) -> str:
    """That fewer indexer nodes are live than are needed, in words.

    Args:
        live: those that may have slices.
        closed: live ones that may not.
    """
    which = " that may have slices" if closed else ""
    if not live:
        return f"no indexer node{which} is live" + (f", and {needed} are needed" if needed > 1 else "")
    have = f"1 indexer node{which} is" if live == 1 else f"{live} indexer nodes{which} are"
    return f"only {have} live, and {needed} are needed"


def nodes_of(placement: Sequence[Sequence[str]]) -> list[str]:
    """The nodes that a placement names, sorted."""
    return sorted({node for replicas in placement for node in replicas})
