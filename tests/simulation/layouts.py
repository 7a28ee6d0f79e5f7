"""Indexes that are made anew while they serve, and new layouts that are given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.statements.replacing import new_layout
from keytide.errors import CallerError, RetryableError

if TYPE_CHECKING:
    from tests.simulation.world import World

READS = 4
"""Requests in a round."""
CANCELLED_SHARE = 0.05
"""How often, instead, the build of a new layout is cancelled."""


def relayout(world: World) -> None:
    """Somebody has an index made anew, as it was: its slices are others all the same."""
    leader, now = world.leader, world.leader.now
    builds = leader.leader.builds
    catalog = leader.leader.dictionary.catalog
    cancels = world.chance.happens(CANCELLED_SHARE)
    ready = [one for one in catalog.indexes() if one.state == "READY" and catalog.bears_name(one)]
    if not ready:
        return
    index = world.chance.pick(ready)
    new = next(iter(catalog.pending_layouts(index.name)), None)
    try:
        if cancels:
            if new is not None and builds.registry.active(new) is not None:
                leader.ask(leader.leader.commands.cancel(new.build or "", now))
                world.seen["layouts cancelled"] += 1
            return
        _, made, _, out = new_layout(builds, index, index.definition, None, now)
    except (CallerError, RetryableError):
        world.seen["refused"] += 1
        return
    world.note("layout", index.id, made.id)
    world.seen["layouts"] += 1
    leader.order(out)


def read(world: World) -> None:
    """A few requests, while builds come to their end that have not in the storm."""
    for _ in range(READS):
        world.readers.step()


def left(world: World) -> str:
    """Which layout has neither taken over its name nor gone, "" for none."""
    catalog = world.truth.catalog
    for index in catalog.indexes():
        bearers = [one.id for one in catalog.layouts(index.name) if catalog.bears_name(one)]
        if len(bearers) > 1:
            return f"{' and '.join(bearers)} bear one name"
        if index.replaced_by and index.state != "DROPPING":
            return f"{index.id} was replaced by {index.replaced_by}, and is still there"
        if index.state in ("READY", "DEFERRED") and index.replaces and not catalog.bears_name(index):
            return f"{index.id} is {index.state}, and has not taken the place of {index.replaces}"
    return ""
