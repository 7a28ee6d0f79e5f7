"""How far timestamps may go, and where a leader begins that knows none (docs/adr/0022)."""

from __future__ import annotations

from coordinator.core.events import SourceSampled, Tick
from coordinator.core.instructions import Broadcast, ConfirmBound, Write
from coordinator.stability.projector_lag import UNTIL_JUDGED
from keytide.catalog.records import KeyspaceRecord
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from keytide.wire.messages import StabilityTimestamp
from tests.unit.leader_world import World, facts
from tests.unit.test_coordinator_rollback import examined, serving

RESERVE = load_settings().coordinator.reserve


def stamped(world: World) -> list[dict[int, int]]:
    """Contents of all timestamps, oldest first."""
    found = [one for one in world.broadcasts if isinstance(one, StabilityTimestamp)]
    return [one.timestamp.offsets() for one in found]


def forgotten(world: World) -> World:
    """Another leader, when the control topic has expired."""
    other, _ = world.restart()
    other.broadcasts.clear()
    other.number = world.number
    other.node("n1", "n2")
    return other


def test_a_leader_without_a_timestamp_waits_for_what_may_have_been_seen() -> None:
    world = serving()  # the last timestamp was 150, 62
    other = forgotten(world)
    stream = other.leader.stability.streams["people"]
    assert (stream.content, stream.floor, other.leader.looks_soon) == (None, UNTIL_JUDGED, True)
    assert [note.kind for note in other.notes].count("timestamps-held") == 1

    other.progress(1, 130, 60)  # what projectors had committed
    other.tick(3_000)
    assert stamped(other) == [], "nothing is known of the source yet"
    other.handle(SourceSampled(facts((170, 63)), "", other.now))
    other.progress(1, 169, 63)
    other.tick(3_000)
    assert stamped(other) == [], "a session may have seen 170"
    other.progress(1, 170, 63)
    other.tick()
    assert stamped(other) == [{0: 170, 1: 63}]
    other.progress(1, 171, 63)
    other.tick(3_000)
    assert stamped(other)[-1] == {0: 171, 1: 63}
    assert not other.leader.looks_soon


def test_it_waits_no_longer_than_up_to_the_bound() -> None:
    world = serving()
    bound = world.keyspace().bound
    assert all(150 < offset <= 150 + RESERVE for offset in bound.values())
    other = forgotten(world)
    other.handle(SourceSampled(facts((10 * RESERVE, 62)), "", other.now))
    other.progress(1, bound[0] - 1, 62)
    other.tick(3_000)
    assert stamped(other) == []
    other.progress(1, bound[0], 62)
    for _ in range(2):  # the next bound is written first
        other.tick(3_000)
    assert stamped(other)[0] == {0: bound[0], 1: 62}


def test_records_lost_that_nobody_had_read_are_not_waited_for() -> None:
    other = forgotten(serving())
    other.handle(SourceSampled(facts((170, 63)), "", other.now))
    other.handle(SourceSampled(facts((160, 63)), "", other.now))
    other.progress(1, 160, 63)
    other.tick(3_000)
    assert {0: 160, 1: 63} in stamped(other)


def test_no_timestamp_passes_a_bound_that_is_not_written() -> None:
    world = serving()
    bound = world.keyspace().bound
    ahead = bound[0] + 5
    before = len(stamped(world))
    known = world.known()
    world.leader.dictionary.put(KeyspaceRecord("people", known.topic_id, 2, known.version, 0, bound))
    world.now += 3_000
    world.progress(1, ahead, 62)
    out = world.leader.handle(Tick(world.now))  # decided, and not carried out
    (write,) = [one for one in out if isinstance(one, Write)]
    (confirm,) = [one for one in out if isinstance(one, ConfirmBound)]
    assert out.index(write) < out.index(confirm)
    assert confirm.bound[0] == ahead + RESERVE
    issued = [one.message for one in out if isinstance(one, Broadcast)]
    assert {one.timestamp.offset(0) for one in issued if isinstance(one, StabilityTimestamp)} <= {150}
    assert {contents[0] for contents in stamped(world)[before:]} <= {150}
    world.take(out)
    world.tick(3_000)
    assert stamped(world)[-1] == {0: ahead, 1: 62}


def test_a_topic_made_anew_begins_without_a_bound() -> None:
    world = serving()
    world.now += 1_000
    world.handle(SourceSampled(facts((5, 5), topic_id="t2"), "", world.now))
    examined(world, -1, Timestamp(), topic_id="t2")
    assert world.keyspace().bound == {}


def test_how_late_projectors_are_is_known_to_the_hour_without_the_control_topic() -> None:
    """R26: tombstones may be gone by now, so a READY index is not to be trusted any more."""
    world = serving()
    assert world.keyspace().fresh_at > 0
    for hours, state in ((23, "READY"), (26, "FAILED")):
        other = forgotten(world)
        other.now = world.now + hours * 3_600_000
        source = facts((170, 63), compacted=True, delete_retention_ms=24 * 3_600_000, at=other.now)
        other.progress(1, 150, 62)
        other.handle(SourceSampled(source, "", other.now))
        assert other.index("by_city").state == state
