"""Builds that are paused, resumed and throttled, and a disk of drivers that fills up and empties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.core.events import RoomSeen
from keytide.catalog.records import BuildRecord

if TYPE_CHECKING:
    from tests.simulation.world import World

ACTIONS = ("pause", "pause", "pause", "resume", "resume", "throttle", "full", "empty")
STEERED = frozenset({"QUEUED", "BACKFILL", "PAUSED"})
MUCH = 1 << 40


def steer(world: World) -> None:
    """Somebody does something to some build, or the disk of the drivers."""
    now = world.leader.now
    what = world.chance.pick(ACTIONS)
    if what in ("full", "empty"):
        world.leader.tell(RoomSeen("builds", 0 if what == "full" else MUCH, now))
        world.seen[f"disk {what}"] += 1
        return
    order(world, what)


def order(world: World, what: str) -> None:
    """Somebody pauses, resumes or throttles some build."""
    leader, now = world.leader.leader, world.leader.now
    builds = _steered(world)
    if not builds:
        return
    build = world.chance.pick(builds).id
    world.note(what, build)
    world.seen[f"{what} of a build"] += 1
    if what == "throttle":
        world.leader.ask(leader.commands.throttle(build, world.chance.below(1_000), now))
    else:
        world.leader.ask(
            leader.commands.pause(build, now) if what == "pause" else leader.commands.resume(build, now)
        )


def settle(world: World) -> None:
    """Everything that was paused goes on, and there is room."""
    now = world.leader.now
    world.leader.tell(RoomSeen("builds", MUCH, now))
    for build in _steered(world):
        if build.paused_by == "operator":
            world.leader.ask(world.leader.leader.commands.resume(build.id, now))


def _steered(world: World) -> list[BuildRecord]:
    return [one for one in world.leader.leader.builds.registry.all() if one.state in STEERED]
