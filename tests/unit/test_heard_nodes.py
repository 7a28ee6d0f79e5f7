"""What a leader knows of nodes that say only what has changed: of one that it begins to hear in the middle,
that begins again, or whose clock was set back (R37, R53)."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.copies.naming import leaving
from coordinator.core.events import Event, Reported
from coordinator.core.instructions import Instruction
from coordinator.views import health
from keytide.model.protocol import SPOKEN
from keytide.wire.heartbeats import WHOLE_MS, HeartbeatWriter
from keytide.wire.messages import HeartbeatChanges, NodeHeartbeat
from tests.unit.copies_world import BEAT_MS, INDEX, LIMITS, STEP_MS, CopiesWorld
from tests.unit.test_copies_held_back import BOUNDED, measure, read


class Changing(CopiesWorld):
    """Its nodes say what has changed.

    Attributes:
        whole_lost: of these nodes a heartbeat that says all is lost on its way.
        kinds: node -> what has come of it.
    """

    def __init__(self, *args: Any, **others: Any) -> None:
        self.writers: dict[tuple[str, int], HeartbeatWriter] = {}
        self.whole_lost: set[str] = set()
        self.kinds: dict[str, list[type]] = {}
        super().__init__(*args, **others)

    def handle(self, event: Event) -> list[Instruction]:
        if not isinstance(event, Reported) or not isinstance(beat := event.message, NodeHeartbeat):
            return super().handle(event)
        writer = self.writers.setdefault((beat.node, beat.started_at), HeartbeatWriter())
        message = writer.write(beat, self.leader.term, SPOKEN)
        if isinstance(message, NodeHeartbeat) and beat.node in self.whole_lost:
            return []
        self.kinds.setdefault(beat.node, []).append(type(message))
        return super().handle(Reported(message, event.now))

    def follows(self, node: str, number: int = 0) -> bool:
        """Whether timestamps wait for a copy."""
        return self.leader.stability.nodes.copy_serves(node, INDEX, number, 0)

    def holding(self, node: str, number: int = 0) -> int:
        """The newest number that a copy is known to hold."""
        return self.leader.stability.acknowledgements.newest(node, INDEX, number)

    def begin_again(self, node: str, later_ms: int = 1_000, state: str = "LIVE") -> None:
        """Another process of a node, by a clock that goes on, or was set back; its first heartbeat is
        lost."""
        self.nodes[node].started_at += later_ms
        self.nodes[node].copies[0].state = state
        self.whole_lost.add(node)
        self.beat(node)
        self.whole_lost.discard(node)


def serving(**others: Any) -> Changing:
    world = Changing([["n1", "n2"]], **others)
    world.nodes["n1"].started_at = world.nodes["n2"].started_at = 10_000
    world.go(2_000)
    assert world.published > 0
    assert world.kinds["n1"][-1] is HeartbeatChanges
    return world


# --- a leader that begins -----------------------------------------------------------------------------------


def missed(world: Changing) -> Changing:
    """A leader that has not heard what n1 told it first; n1 goes on, and takes nothing in any more."""
    world.nodes["n1"].copies[0].follows = False
    world.whole_lost = {"n1"}
    world.busy = True
    world.succeed()
    return world


def test_nothing_is_published_that_a_copy_lacks_whose_node_says_what_has_changed() -> None:
    world = missed(serving())
    before, issued = world.published, world.number
    for _ in range(0, 4_000, STEP_MS):
        world.go(STEP_MS)
        assert world.published == before
    assert world.kinds["n1"][-6:] == [HeartbeatChanges] * 6
    assert "n1" not in world.leader.stability.nodes.by_id
    assert world.number > issued + 5
    assert world.leader.stability.nodes.unheard(["n1", "n2"]) == ["n1"]
    assert not [
        one for one in health.of(world.leader, world.now).reasons if "node n1 is silent" in one.reason
    ]


def test_no_copy_is_given_up_whose_node_says_what_has_changed() -> None:
    world = serving(limits=BOUNDED)
    measure(world, 10)
    measure(world, 10_000)
    read(world, n1=9_500, n2=9_800)
    world.beat()
    missed(world)
    measure(world, 10)
    measure(world, 10_000)
    world.go(4_000)
    assert world.placement() == ["n1", "n2"]
    assert world.told("copy-taken-out") == []


def test_when_all_was_said_it_goes_on() -> None:
    world = missed(serving())
    world.go(4_000)
    world.nodes["n1"].copies[0].follows = True
    world.whole_lost = set()
    before = world.published
    world.until(lambda: world.follows("n1"), WHOLE_MS + BEAT_MS)
    world.go(BEAT_MS)
    assert world.published > before


def test_who_says_nothing_is_not_waited_for_on_account_of_who_does() -> None:
    world = Changing([["n1", "n2", "n3"]], replicas=2)
    world.go(2_000)
    world.nodes["n3"].up = False
    missed(world)
    world.go(LIMITS.node_timeout_ms + 300)
    assert world.leader.stability.nodes.unheard(world.nodes) == ["n1"]
    world.nodes["n1"].copies[0].follows = True
    before = world.published
    world.go(500)
    assert world.published > before, "every copy holds it that may serve"


def test_who_was_silent_and_is_heard_again_counts_as_not_heard() -> None:
    """Until it has said all: it may hold less than the others."""
    world = serving()
    version = world.leader.stability.nodes.version
    world.nodes["n1"].up = False
    world.busy = True
    world.go(LIMITS.node_timeout_ms + 1_000)
    nodes = world.leader.stability.nodes
    assert nodes.live() == ["n2", "n3"]
    assert nodes.version > version
    world.nodes["n1"].up, world.nodes["n1"].copies[0].follows = True, False
    writer = world.writers["n1", 10_000]
    writer.write(now_of(world, "n1"), world.leader.term, SPOKEN)  # is lost, and says all
    world.whole_lost = {"n1"}
    world.go(2 * BEAT_MS)
    assert nodes.live() == ["n2", "n3"]
    assert nodes.unheard(["n1"]) == ["n1"]
    before = world.published
    world.go(2 * BEAT_MS)
    assert world.published == before


def now_of(world: Changing, node: str) -> NodeHeartbeat:
    known = world.leader.stability.nodes.by_id[node].heartbeat
    return NodeHeartbeat(node, known.url, known.started_at, world.now, known.slices, 0, 0, 0)


# --- a process that begins again ----------------------------------------------------------------------------


def test_what_a_process_has_said_counts_no_more_when_another_one_speaks() -> None:
    world = serving()
    world.begin_again("n1", state="CATCHUP")
    assert world.follows("n1"), "nobody has heard of it"
    assert world.holding("n1") > 0
    nodes = world.leader.stability.nodes
    world.beat("n1")
    assert world.kinds["n1"][-1] is HeartbeatChanges
    assert not world.follows("n1")
    assert world.holding("n1") == -1
    assert "n1" in nodes.live()
    assert nodes.unheard(["n1"]) == ["n1"]
    assert nodes.said(INDEX, 0) == [nodes.by_id["n2"].heartbeat.slices[0]]
    assert not world.leader.copies._reports.has_read("n1", INDEX, 0)
    assert len(world.told("node-restarted")) == 1
    said = [one.reason for one in health.of(world.leader, world.now).reasons]
    assert any("node n1 has begun again, and has not said yet what it has" in one for one in said)
    world.busy, before = True, world.published
    world.go(BEAT_MS)
    assert world.published == before
    world.go(WHOLE_MS)
    assert nodes.by_id["n1"].slice(INDEX, 0) == world.status(0, world.nodes["n1"].copies[0])
    assert world.published > before, "it catches up, and is not waited for"
    assert len(world.told("node-restarted")) == 1


def test_a_copy_that_leaves_may_be_whole_as_long_as_its_process_has_not_said_all() -> None:
    """Its slice is not rebuilt from the source meanwhile (R46)."""
    world = serving()
    world.leader.dictionary.put(leaving(world.index("by_city"), 0, "n1"))
    world.go(STEP_MS)
    nodes = world.leader.stability.nodes
    assert nodes.has_whole(INDEX, 0)
    world.begin_again("n1", state="CATCHUP")
    world.beat("n1")
    assert nodes.by_id["n1"].heartbeat.slices == []
    assert nodes.has_whole(INDEX, 0)


def test_a_gap_of_the_same_process_changes_nothing() -> None:
    world = serving()
    world.whole_lost = {"n1"}
    held = world.holding("n1")
    writer = world.writers["n1", 10_000]
    writer.write(now_of(world, "n1"), world.leader.term, SPOKEN)  # is lost
    world.beat("n1")
    assert world.kinds["n1"][-1] is HeartbeatChanges
    assert world.follows("n1")
    assert world.holding("n1") == held
    assert world.leader.stability.nodes.unheard(["n1"]) == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_node_whose_clock_was_set_back_is_heard_when_its_last_start_is_silent(lost: bool) -> None:
    """Its heartbeats are not taken for life of the process before."""
    world = serving()
    if lost:
        world.begin_again("n1", -5_000, "LOST")
    else:
        world.nodes["n1"].started_at -= 5_000
        world.lose("n1")
    since = world.now
    world.until(lambda: "n1" not in world.leader.stability.nodes.live(), 4_000)
    assert world.now - since <= LIMITS.node_timeout_ms + BEAT_MS
    limit = WHOLE_MS if lost else LIMITS.node_timeout_ms
    nodes = world.leader.stability.nodes

    def known() -> bool:
        status = nodes.by_id["n1"].slice(INDEX, 0)
        return "n1" in nodes.live() and status is not None and status.state == "LOST"

    world.until(known, 8_000)
    assert world.now - since <= limit + 2 * BEAT_MS
    assert len(world.told("slice-lost")) == 1
