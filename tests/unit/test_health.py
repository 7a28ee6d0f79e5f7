"""The verdict of health: every fault is in it, within three seconds and with a next step; nobody is accused
who could not be heard; who gives it and who shows it agree."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from coordinator.core.events import KafkaAnswered, Reported, RoomSeen, SourceAway, SourceSampled
from coordinator.core.failure_detector import BEATS, GRACE_MS, FailureDetector
from coordinator.core.instructions import Instruction
from coordinator.http import metrics
from coordinator.views import health
from indexer.hosting.node import ServingNode
from indexer.serve import health as node_health
from indexer.view import SliceTrouble
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import ClusterRecord
from keytide.model.health import KINDS, LEVELS, HealthStatus, Reason, Verdict, read, single, verdict, worst
from keytide.model.protocol import SPOKEN
from keytide.wire.messages import NodeHeartbeat, SliceStatus
from tests import share
from tests.unit.leader_world import World, facts
from tests.unit.test_coordinator_rebuild import LIMITS, NODES, serving, status

WITHIN_MS = 3_000
MIB = 1 << 20


def beat(node: str, now: int, said: list[SliceStatus], free: int = 1 << 40) -> NodeHeartbeat:
    return NodeHeartbeat(node, f"http://{node}", 1, now, said, 0, free, 0, protocol=SPOKEN)


class Day:
    """A cluster that serves index by_city, whose parts say what they say in real time.

    Attributes:
        silent: who says nothing: nodes by name, `projector`, `kafka`.
        states: what nodes say of slices.
    """

    def __init__(self) -> None:
        self.world: World = serving(LIMITS)
        self.silent: set[str] = set()
        self.states: dict[int, str] = {}
        self.free = 1_000 * MIB
        self.source = facts((130, 60))
        self.live(6_000)
        assert self.verdict().status == "ok", self.verdict()

    def live(self, ms: int, step: int = 250) -> None:
        for _ in range(0, ms, step):
            self.beat()
            self.world.tick(step)

    def beat(self) -> list[Instruction]:
        out: list[Instruction] = []
        world = self.world
        if "kafka" in self.silent:
            return out
        world.handle(KafkaAnswered(world.now))
        for node, slices in NODES.items():
            if node not in self.silent:
                said = [status(world, n, self.states.get(n, "LIVE"), (130, 60)) for n in slices]
                message = beat(node, world.now, said, self.free)
                out += world.handle(Reported(message, world.now))
        if "projector" not in self.silent:
            out += world.progress(world.known().version, 130, 60)
        out += world.handle(SourceSampled(self.source, "", world.now))
        return out

    def verdict(self) -> Verdict:
        return health.of(self.world.leader, self.world.now)

    def story(self, kind: str) -> Reason:
        """The worst reason about that kind of subject."""
        found = [one for one in self.verdict().reasons if one.kind == kind]
        assert found, self.verdict()
        return found[0]


def silence(who: str) -> Callable[[Day], None]:
    return lambda day: day.silent.add(who)


def slice_is(state: str) -> Callable[[Day], None]:
    return lambda day: day.states.update({1: state})


def topic_gone(day: Day) -> None:
    day.source = facts((), earliest=(), topic_id="")


def full(day: Day) -> None:
    day.world.handle(RoomSeen("/data", -1, day.world.now))


FAULTS: dict[str, tuple[Callable[[Day], None], str, str, str]] = {
    "a node stands still": (silence("n2"), "node", "failing", "n2"),
    "its slices answer nothing": (silence("n2"), "slice", "failing", "node n2 is silent"),
    "and its index neither": (silence("n2"), "index", "failing", "1 of 3 slices"),
    "the projector is killed": (silence("projector"), "projector", "failing", "no projector"),
    "Kafka is away": (silence("kafka"), "kafka", "failing", "confirmed nothing"),
    "a slice is lost": (slice_is("LOST"), "slice", "failing", "lost"),
    "a slice has stopped": (slice_is("STOPPED"), "slice", "failing", "has stopped"),
    "a slice catches up": (slice_is("CATCHUP"), "slice", "failing", "no snapshot"),
    "the topic is gone": (topic_gone, "keyspace", "failing", "no topic people"),
    "the drivers' disk is full": (full, "cluster", "degraded", "nearly full"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_in_the_verdict_within_three_seconds(name: str) -> None:
    strike, kind, worst_status, words = FAULTS[name]
    day = Day()
    strike(day)
    day.live(WITHIN_MS)
    found = day.story(kind)
    assert found.status == worst_status
    assert words in f"{found.subject} {found.reason}"
    assert found.next_step
    assert LEVELS[day.verdict().status] >= LEVELS[found.status]


@pytest.mark.parametrize("who", ["n1", "n2", "projector", "kafka"])
def test_all_is_well_again_soon_after_it_is(who: str) -> None:
    day = Day()
    day.silent.add(who)
    day.live(20_000)
    assert day.verdict().status == "failing"
    day.silent.clear()
    day.live(1_000)
    assert day.verdict().status == "ok", day.verdict()


def test_a_leader_that_stood_still_accuses_nobody() -> None:
    day = Day()
    day.world.now += 60_000
    day.world.tick()
    assert {one.kind for one in day.verdict().reasons} <= {"keyspace"}, "what was heard last is a minute old"
    assert day.world.leader.stability.nodes.live() == ["n1", "n2"]
    day.live(500)
    assert day.verdict().status == "ok"


def test_a_leader_that_has_just_begun_says_so_and_fails_nobody() -> None:
    day = Day()
    day.world, _ = day.world.restart()
    for ms in range(0, WITHIN_MS - 1_000, 250):
        assert day.story("slice").status == "degraded", ms
        assert "not heard yet" in day.story("slice").reason
        assert day.verdict().status == "degraded"
        day.world.handle(KafkaAnswered(day.world.now))
        day.world.tick(250)
    day.world.tick(500)
    assert day.story("slice").status == day.story("index").status == "failing"
    day.live(1_000)
    assert day.verdict().status == "ok", day.verdict()


def test_while_kafka_is_away_only_kafka_is_accused_and_others_may_take_their_time_afterwards() -> None:
    day = Day()
    day.silent.add("kafka")
    day.live(60_000)
    assert {one.kind for one in day.verdict().reasons} <= {"kafka", "keyspace"}
    assert day.world.leader.stability.nodes.live() == ["n1", "n2"]
    day.silent = {"n1", "n2", "projector"}  # their clients find Kafka a little later
    day.live(GRACE_MS - 1_000)
    assert {one.kind for one in day.verdict().reasons} <= {"keyspace"}
    day.live(5_000)
    assert day.story("node").status == "failing"


def test_one_late_word_does_not_clear_a_suspicion() -> None:
    detector = FailureDetector(2_000)
    detector.tick(0)
    detector.heard("n1")
    for now in range(250, 3_000, 250):
        detector.tick(now)
    assert detector.suspected("n1")
    for _ in range(BEATS - 1):
        detector.heard("n1")
        assert detector.suspected("n1")
    detector.heard("n1")
    assert not detector.suspected("n1")


def test_heartbeats_that_are_late_by_less_than_the_limit_alarm_nobody() -> None:
    """A busy machine: every beat is late by up to a second, and so are the leader's own rounds."""
    chance, detector = random.Random(7), FailureDetector(2_000)
    now, beat_at = 0, 0
    detector.tick(0)
    detector.heard("n1")
    for _ in range(5_000):
        now += chance.randint(1, 1_000)
        while beat_at <= now:
            detector.heard("n1")
            beat_at += 500 + chance.randint(0, 1_000)
        detector.tick(now)
        assert not detector.suspected("n1")


def test_a_failed_index_is_told_until_it_is_dropped_and_then_its_build_is_not() -> None:
    day = Day()
    world = day.world
    world.sql("CREATE INDEX by_name ON people (name)")
    build = str(world.index("by_name").build)
    world.take(
        world.leader.builds.registry.fail(world.leader.builds.registry.get(build), "no room", world.now)
    )
    world.tick()
    assert world.build(build).state == "FAILED"
    found = day.story("index")
    assert (found.subject, found.status) == ("index by_name", "failing")
    assert "no room" in found.reason
    assert "keytide index build by_name" in found.next_step
    world.take(world.leader.commands.drop("by_name", world.now).instructions)
    assert day.verdict().status == "ok", day.verdict()
    assert [one.state for one in world.leader.builds.registry.all() if one.id == build] == ["FAILED"]


def test_builds_that_pause_are_told_by_whom() -> None:
    day = Day()
    world = day.world
    world.sql("CREATE INDEX by_name ON people (name)")
    build = str(world.index("by_name").build)
    world.take(world.leader.commands.pause(build, world.now).instructions)
    assert (day.story("build").status, "on request" in day.story("build").reason) == ("ok", True)
    assert day.verdict().status == "ok"


def test_a_nearly_full_disk_of_a_node_and_a_source_that_cannot_be_looked_at() -> None:
    day = Day()
    day.world.handle(SourceAway("people", "no leader", day.world.now, day.world.now))
    assert "no leader" in day.story("kafka").reason
    day.world.leader.build_limits = type(LIMITS)(node_disk_bytes=512 * MIB)
    day.free = 100 * MIB
    day.beat()
    assert day.story("node").status == "degraded"
    assert "100 MiB" in day.story("node").reason


def test_snapshots_that_are_too_far_behind() -> None:
    day = Day()
    for _ in range(50):
        day.world.now += 250
        for node, slices in NODES.items():
            said = [status(day.world, n, "LIVE", (130, 60)) for n in slices]
            day.world.handle(Reported(beat(node, day.world.now, said, 0), day.world.now))
        day.world.handle(KafkaAnswered(day.world.now))
        for partition in (0, 1):
            day.world.leader.stability.failure_detector.heard(("partition", "people", partition))
        day.world.tick(0)
    assert "behind the source" in day.story("keyspace").reason


def test_a_leader_whose_clock_was_set_back_does_not_take_snapshots_for_old() -> None:
    """Its own time goes on from where it was; projectors tell by theirs."""
    day = Day()
    world, hour = day.world, 3_600_000
    world.tick()
    assert day.verdict().status == "ok"
    (stream,) = world.leader.stability.streams.values()
    fresh_at = stream.progress.fresh_at()
    assert fresh_at > 0
    world.leader.clock_ahead_ms = hour
    assert world.leader.staleness_ms(stream, fresh_at + hour + 70) == 70
    reasons = health.of(world.leader, fresh_at + hour + 70).reasons
    assert [one for one in reasons if one.kind == "keyspace"] == []


def test_topics_of_others_are_told_and_nothing_is_wrong() -> None:
    day = Day()
    day.world.leader.foreign = [f"kt.mutations.x-{number}" for number in range(7)]
    told = day.verdict()
    assert told.status == "ok"
    assert any("kt.mutations.x-0" in one.reason and "2 more" in one.reason for one in told.reasons)


# --- what always holds --------------------------------------------------------------------------------------


def test_every_verdict_of_random_days_is_the_worst_of_its_reasons_and_says_what_to_do() -> None:
    for seed in share.seeds(120):
        chance, day = random.Random(seed), Day()
        for _ in range(12):
            day.silent = {who for who in ("n1", "n2", "projector", "kafka") if chance.random() < 0.2}
            day.states = {n: chance.choice(("LIVE", "LOST", "STOPPED", "CATCHUP")) for n in range(3)}
            day.free = chance.choice((0, 1_000 * MIB))
            day.live(chance.choice((250, 1_000, 4_000)))
            found = day.verdict()
            assert found.status == worst(one.status for one in found.reasons)
            for one in found.reasons:
                assert all((one.subject, one.reason, one.next_step))
                assert one.kind in KINDS
                assert "ix-" not in one.subject
            assert read(found.as_json()) == found


def test_metrics_show_the_same_verdict() -> None:
    day = Day()
    day.silent.add("n2")
    day.live(WITHIN_MS)
    page = metrics.render(day.world.leader, day.world.now).decode()
    shown = {
        sample.labels["subject_kind"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "keytide_health_status"
    }
    assert shown == {kind: LEVELS[day.verdict().worst_of(kind)] for kind in KINDS}
    assert shown["node"] == LEVELS["failing"]
    assert 'keytide_build_info{component="coordinator"' in page
    standing = metrics.standing_by(single("cluster", "kt", "failing", "stands by", "wait")).decode()
    assert 'keytide_health_status{subject_kind="cluster"} 2.0' in standing


def test_verdicts_are_ordered_worst_first() -> None:
    statuses: tuple[HealthStatus, ...] = ("ok", "failing", "degraded")
    made = [Reason("node", f"node {one}", one, "r", "n") for one in statuses]
    assert [one.status for one in verdict(made).reasons] == ["failing", "degraded", "ok"]
    assert verdict([]).well


# --- a node's own view --------------------------------------------------------------------------------------


def node() -> ServingNode:
    made, catalog = ServingNode("n1"), Catalog()
    catalog.put("cluster", ClusterRecord("c1", "", 0))
    made.show_catalog(catalog)
    made.passed(10.0)
    return made


def test_a_node_is_ready_while_its_thread_goes_on() -> None:
    made = node()
    assert node_health.of(made, 11.0, 2.0).well
    stalled = node_health.of(made, 12.5, 2.0)
    assert (stalled.status, "stands still" in stalled.reasons[0].reason) == ("failing", True)
    assert node_health.of(ServingNode("n1"), 0.0, 2.0).status == "failing", "it knows no cluster yet"


def test_a_node_says_that_nobody_leads_and_which_slices_do_not_serve() -> None:
    made = node()
    made.passed(15.0)
    assert node_health.of(made, 15.0, 2.0).worst_of("cluster") == "degraded"
    made.leader_heard()
    made.passed(15.1)
    assert node_health.of(made, 15.2, 2.0).well
    made._troubles = {("i", 1): SliceTrouble("LOST", "its folder is gone")}
    assert "its folder is gone" in node_health.of(made, 15.2, 2.0).reasons[0].reason


def test_a_way_back_that_was_given_up_is_told() -> None:
    day = Day()
    given_up = [replace(status(day.world, 1, "LIVE", (130, 60)), undo_given_up=True)]
    day.world.handle(Reported(beat("n2", day.world.now, given_up), day.world.now))
    (reason,) = day.verdict().reasons
    assert (reason.kind, reason.subject, reason.status) == ("slice", "slice 1 of by_city", "degraded")
    assert "the way back was given up" in reason.reason
    assert "node n2" in reason.next_step
