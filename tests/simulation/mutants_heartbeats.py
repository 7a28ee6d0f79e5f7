"""Planted faults in heartbeats that say what has changed. Importing this adds them to `mutants.MUTANTS`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from coordinator.core import nodes
from coordinator.core.nodes import HeardNodes, node_subject
from keytide.model.protocol import CHANGES
from keytide.wire.heartbeats import HeartbeatWriter
from keytide.wire.messages import HeartbeatChanges
from tests.simulation.mutants import mutant
from tests.simulation.mutants_unit import unit_mutant
from tests.simulation.planting import Patches
from tests.unit import test_heard_nodes, test_heartbeats


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
    "that leader takes nodes for silent until all is said again, and nothing comes of that there but waiting",
    test_heartbeats.test_a_leader_of_the_release_before_hears_all_always,
)
def tell_changes_to_everybody(patches: Patches) -> None:
    def write(self: HeartbeatWriter, beat: Any, term: int, protocol: int) -> Any:
        return _write(self, beat, term, CHANGES)

    _write = patches.put(HeartbeatWriter, "write", write)


@unit_mutant(
    "R53",
    "a leader that begins is told what has changed",
    "that leader waits for what it does not know, and all is said again before it would be stuck",
    test_heartbeats.test_a_leader_that_begins_hears_all_and_so_does_everybody_every_now_and_then,
)
def go_on_under_another_leader(patches: Patches) -> None:
    def write(self: HeartbeatWriter, beat: Any, term: int, protocol: int) -> Any:
        return _write(self, beat, 1, protocol)

    _write = patches.put(HeartbeatWriter, "write", write)


@unit_mutant(
    "R53, R37",
    "a leader takes who says what has changed for silent, when it has not heard the whole",
    "whoever waits there for a number that died with its copy gets a newer one",
    test_heard_nodes.test_nothing_is_published_that_a_copy_lacks_whose_node_says_what_has_changed,
)
def take_changes_for_silence(patches: Patches) -> None:
    def unheard(self: HeardNodes, node: str) -> bool:
        return node not in self.by_id and self._failure_detector.silence(node_subject("")) <= self._timeout_ms

    patches.put(HeardNodes, "_is_unheard", unheard)


@unit_mutant(
    "R53",
    "what a process has said holds on while another one of its node says what has changed",
    "a process begins with all, and when that is lost it is said again soon",
    test_heard_nodes.test_what_a_process_has_said_counts_no_more_when_another_one_speaks,
)
def keep_what_the_dead_said(patches: Patches) -> None:
    patches.put(nodes, "begun", lambda *_: None)


@mutant(
    "R53",
    "changes of a process that began earlier, by its clock, show that another one lives",
    faults=("node-crash", "clock-jump"),
)
def hear_the_dead_in_changes(patches: Patches) -> None:
    def in_full(self: HeardNodes, message: Any) -> Any:
        if message.node in self.by_id:
            self._failure_detector.heard(node_subject(message.node))
        return _in_full(self, message)

    _in_full = patches.put(HeardNodes, "in_full", in_full)
