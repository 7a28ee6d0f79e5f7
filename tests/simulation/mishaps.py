"""Faults that strike amid what a process does: it is stopped between any two of its instructions, its clock
jumps, its disk fills up at any write.

Instructions are what a core asks its shell for, and what the shell does for itself: a commit, a chunk kept,
a fold that ends, a message sent, a question answered. Before and after each the process may end as by
kill -9: what it has done stays, and nothing else of it happens. (It is no `Exception`, so that no code takes
it for an error of its own.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keytide.process.clock import ForwardClock
from tests.simulation.kafka import DiskFullError

if TYPE_CHECKING:
    from tests.simulation.world import World

_NS = 1_000_000
FURTHEST = 40
"""Instructions that a process has left, at most."""
JUMPS_MS = (30, 300, 3_000, 900_000)
"""How far clocks jump, at most, by chance forward or back: up to much more than all waits together."""
COORDINATORS = ("coordinator-0", "coordinator-1")
"""Two machines, on which coordinators follow one another."""


def machine_of(term: int) -> str:
    """Where the coordinator of a term runs."""
    return COORDINATORS[term % len(COORDINATORS)]


class KilledError(BaseException):
    """A process ends here.

    Attributes:
        process: its name.
    """

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self.process = process


class Mishaps:
    """Who is to be stopped, and how far whose clock is off."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: dict[str, int] = {}
        self._skew: dict[str, int] = {}
        self._clocks: dict[str, ForwardClock] = {}

    def strike(self, what: str) -> None:
        """One of `chance.MISHAPS` that is a step."""
        world, chance = self._world, self._world.chance
        process = chance.pick(self.processes())
        if what == "killed":
            self._left = {process: chance.below(FURTHEST)}
        else:
            most = chance.pick(JUMPS_MS)
            self.now(process)
            skew = self._skew.get(process, 0) + chance.below(2 * most) - most
            self._skew[process] = max(skew, -JUMPS_MS[-1])  # (no clock is before its epoch)
            world.seen["clock jumped"] += 1
            world.note("clock", process, self._skew[process])

    def processes(self) -> list[str]:
        """Names of all that may be struck."""
        world = self._world
        return [*world.nodes, *(projector.name for projector in world.projectors), world.leader.machine]

    def now(self, process: str) -> int:
        """The time by a process's own clock (the real one, on a clock that is set now and then), ms."""
        world = self._world
        if "clock-jump" not in world.plan.faults:
            return world.clock.now
        clock = self._clocks.get(process)
        if clock is None:
            clock = self._clocks[process] = ForwardClock(
                lambda: (world.clock.now + self._skew.get(process, 0)) * _NS, lambda: world.clock.now * _NS
            )
        return clock.now() // _NS

    def begin(self, process: str) -> None:
        """A process begins: it believes the clock of its machine as it is."""
        self._clocks.pop(process, None)

    def pass_by(self, process: str) -> None:
        """A process is between two instructions.

        Raises:
            KilledError: it ends here.
        """
        if not self._left:
            return
        left = self._left.get(process)
        if left is None:
            return
        if left:
            self._left[process] = left - 1
            return
        del self._left[process]
        self._world.note("killed", process)
        self._world.seen["killed amid"] += 1
        raise KilledError(process)

    def write(self, what: str) -> None:
        """A process writes to its disk.

        Raises:
            DiskFullError: there is no room.
        """
        if self._world.fault("full-anywhere", 0.1):
            self._world.seen[f"full disk: {what}"] += 1
            raise DiskFullError("no space left")

    def end(self) -> None:
        """Nobody is stopped any more; clocks stay as they are."""
        self._left.clear()

    def bury(self, killed: KilledError) -> None:
        """A process has ended: it starts again."""
        world = self._world
        if killed.process in COORDINATORS:
            if world.leader.term == world.kafka.term:  # (else it has died before it led)
                world.leader.stop()
            world.depose()
        elif killed.process in world.nodes:
            world.nodes[killed.process].crash()
        else:
            next(one for one in world.projectors if one.name == killed.process).die()
