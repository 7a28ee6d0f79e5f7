"""Planted faults in heartbeats that say what has changed. Importing this adds them to `mutants.MUTANTS`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from coordinator.core import nodes
from keytide.model.protocol import CHANGES
from keytide.wire.heartbeats import HeartbeatWriter
from keytide.wire.messages import HeartbeatChanges
from tests.simulation.mutants import mutant
from tests.simulation.mutants_unit import unit_mutant
from tests.simulation.planting import Patches
from tests.unit import test_heartbeats


@mutant("R53", "changes are taken whatever was missed before them", faults=("lost-report",))
def follow_over_gaps(patches: Patches) -> None:
    def follow(known: Any, message: Any) -> Any:
        if known is not None and isinstance(message, HeartbeatChanges):
            known = replace(known, started_at=message.started_at, sequence=message.sequence - 1)
        return _follow(known, message)

    _follow = patches.put(nodes, "follow", follow)


@unit_mutant(
    "R53",
    "changes are sent to a leader that does not understand them",
    "all is said again so soon there that nobody is taken for silent",
    test_heartbeats.test_a_leader_of_the_release_before_hears_all_always,
)
def tell_changes_to_everybody(patches: Patches) -> None:
    def write(self: HeartbeatWriter, beat: Any, term: int, protocol: int) -> Any:
        return _write(self, beat, term, CHANGES)

    _write = patches.put(HeartbeatWriter, "write", write)


@unit_mutant(
    "R53",
    "a leader that begins is told what has changed",
    "all is said again so soon there that it waits no longer than for a lost heartbeat",
    test_heartbeats.test_a_leader_that_begins_hears_all_and_so_does_everybody_every_now_and_then,
)
def go_on_under_another_leader(patches: Patches) -> None:
    def write(self: HeartbeatWriter, beat: Any, term: int, protocol: int) -> Any:
        return _write(self, beat, 1, protocol)

    _write = patches.put(HeartbeatWriter, "write", write)
