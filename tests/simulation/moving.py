"""Copies that move: rebalances with moves by chance, nodes that are drained and may have slices again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keytide.catalog.copies import Move
from keytide.errors import CallerError, RetryableError

if TYPE_CHECKING:
    from tests.simulation.world import World

ACTIONS = ("rebalance", "rebalance", "rebalance", "drain", "undrain", "undrain", "cancel")
MOST = 3
"""Moves of a rebalance."""


def move(world: World) -> None:
    """Somebody orders something."""
    leader = world.leader
    moves, now = leader.leader.copies.moves, leader.now
    what, node = world.chance.pick(ACTIONS), world.chance.pick(world.machines)
    running = [one.id for one in leader.leader.dictionary.catalog.rebalances() if one.state == "RUNNING"]
    try:
        match what:
            case "rebalance":
                _, out = moves.carry_out(_some(world), now)
            case "drain":
                _, out = moves.drain(node, now)
            case "undrain":
                _, out = moves.undrain(node)
            case _:
                out = [one for id_ in running for one in moves.cancel(id_, now)[1]]
    except (CallerError, RetryableError):
        world.seen["refused"] += 1
        return
    world.note("moves", what, node)
    leader.order(out)


def _some(world: World) -> list[Move]:
    """A few moves of copies that count to nodes that have none of the slice."""
    found: list[Move] = []
    indexes = [one for one in world.leader.leader.dictionary.catalog.indexes() if one.state == "READY"]
    for _ in range(1 + world.chance.below(MOST) if indexes else 0):
        index = world.chance.pick(indexes)
        number = world.chance.below(index.slices)
        nodes = index.placement[number]
        others = [one for one in world.machines if one not in nodes]
        if others:
            found.append(Move(index.id, number, world.chance.pick(nodes), world.chance.pick(others)))
    return found


def settle(world: World) -> None:
    """All nodes may have slices."""
    leader = world.leader
    for node in sorted(leader.leader.dictionary.catalog.drained()):
        leader.order(leader.leader.copies.moves.undrain(node)[1])


def left(world: World) -> str:
    """What has not come to its end, "" when everything has."""
    catalog = world.truth.catalog
    for one in catalog.rebalances():
        if one.state == "RUNNING":
            return f"{one.id} is RUNNING, {len(one.left)} moves are left"
    return "; ".join(
        f"the copy of {index.id}/{number} on {node} leaves"
        for index in catalog.indexes()
        for number, leaving in index.leaving.items()
        for node in leaving
    )
