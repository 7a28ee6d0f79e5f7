"""Planted faults in how clocks that jump are borne. Importing this adds them to `mutants.MUTANTS`."""

from __future__ import annotations

from typing import Any

from coordinator.core.nodes import HeardNodes
from keytide.process.clock import ForwardClock
from tests.simulation.mutants import mutant
from tests.simulation.planting import Patches

JUMPS = ("clock-jump",)


@mutant("clocks", "a process stands still for as long as its clock was set back", faults=JUMPS)
def believe_the_clock(patches: Patches) -> None:
    patches.put(ForwardClock, "now", lambda self: self._wall())


@mutant(
    "clocks",
    "a node that was started again on a clock set back is never heard",
    faults=(*JUMPS, "node-crash"),
)
def believe_the_later_start(patches: Patches) -> None:
    def heartbeat(self: HeardNodes, message: Any, now: int) -> Any:
        known = self.by_id.get(message.node)
        if known is not None and message.started_at < known.heartbeat.started_at:
            return False, []
        return _heartbeat(self, message, now)

    _heartbeat = patches.put(HeardNodes, "heartbeat", heartbeat)
