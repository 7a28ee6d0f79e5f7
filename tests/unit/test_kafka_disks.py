"""Disks of Kafka that are nearly full: what is known of them, and what is left off meanwhile."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.copies.held_back import AWAY_MS, DELETED_MS
from coordinator.core.events import QueuesTrimmed
from coordinator.core.instructions import StartDriver, StopDriver, TrimQueues
from coordinator.core.queue_sizes import BELIEVED, KafkaDisk, QueueSize, QueueSizes
from coordinator.http import metrics
from coordinator.kafka.queue_sizes import disks_of
from coordinator.process.limits import limits_of
from coordinator.views import health
from keytide.catalog.copies import CopyRecord, LeavingCopy
from keytide.model.health import Reason
from keytide.settings.settings import load_settings
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld, Copy
from tests.unit.leader_world import World, started

TOPIC = f"kt.mutations.{INDEX}"
CONTROL = ("kt.control", 0)
MIB = 1 << 20
LEAST = 160 * MIB
"""That are to be free."""
PER_OFFSET = 10_000
BOUNDED = changed(LIMITS, kafka_disk_bytes=LEAST, queue_sizes=True)


def disk(free: int, *queues: tuple[str, int], broker: int = 1) -> KafkaDisk:
    return KafkaDisk(broker, "/kafka", free, 1 << 34, frozenset(queues))


# --- what is known ------------------------------------------------------------------------------------------


def test_what_kafka_says_of_its_folders() -> None:
    partitions = [{"partition_index": n, "partition_size": 9} for n in (0, 2)]
    ours = {
        "log_dir": "/a",
        "topics": [{"name": "t", "partitions": partitions}],
        "total_bytes": 100,
        "usable_bytes": 7,
    }
    empty = {"log_dir": "/b", "topics": [], "total_bytes": 50, "usable_bytes": 0}
    untold = {"log_dir": "/c", "topics": [], "total_bytes": -1, "usable_bytes": -1}
    before = {"log_dir": "/d", "topics": []}
    found = disks_of([{"broker": 3, "log_dirs": [ours, empty]}, {"broker": 4, "log_dirs": [untold, before]}])
    assert found == (
        KafkaDisk(3, "/a", 7, 100, frozenset({("t", 0), ("t", 2)})),
        KafkaDisk(3, "/b", 0, 50, frozenset()),
    )


def test_a_disk_is_full_until_it_has_a_quarter_more() -> None:
    known = QueueSizes(100)

    def full(*free: int) -> bool:
        for one in free:
            known.told({}, [disk(one, ("t", 0))])
        return known.full_below(("t", 0)) is not None

    assert not full(100)
    assert full(99)
    assert full(124)
    assert not full(125)
    assert not full(124)


def test_only_disks_with_something_of_the_cluster_count_each_for_its_queues() -> None:
    known = QueueSizes(100)
    known.told({}, [disk(1), disk(2, ("t", 1), broker=2), disk(200, ("t", 0), broker=3)])
    assert [one.broker for one in known.full] == [2]
    assert known.full_below(("t", 0)) is None
    assert known.full_below(("t", 1)) is not None
    for _ in range(BELIEVED):
        known.told(None)
    assert [one.broker for one in known.full] == [2], "who does not answer may be the one"
    known.told(None)
    assert known.full == ()


def test_without_a_limit_none_is_full() -> None:
    known = QueueSizes()
    known.told({}, [disk(0, ("t", 0))])
    assert not known.full


def test_services_look_as_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits_of(load_settings())[0].kafka_disk_bytes == 256 * MIB
    monkeypatch.setenv("KEYTIDE_COORDINATOR__KAFKA_DISK_FREE_BYTES", "0")
    assert limits_of(load_settings())[0].kafka_disk_bytes == 0


# --- copies -------------------------------------------------------------------------------------------------


def told(world: CopiesWorld, free: int, end: int = 10_000) -> None:
    """Kafka says how large the queue of slice 0 is, and how full the disk is that it lies on."""
    world.leader.trimmer._measures = True
    size = {(TOPIC, 0): QueueSize(0, end, end * PER_OFFSET)}
    world.handle(QueuesTrimmed({}, 0, (), world.now, size, (disk(free, (TOPIC, 0), CONTROL),)))


def serving(nodes: list[str], replicas: int = 1) -> CopiesWorld:
    """A slice with copies on some of three nodes; its queue has 10,000 offsets, 100 MB."""
    world = CopiesWorld([nodes], replicas=replicas, limits=BOUNDED)
    world.go(2_000)
    assert world.published > 0
    told(world, 1 << 33, 10)
    told(world, 1 << 33)
    return world


def reasons(world: World, kind: str) -> list[Reason]:
    return [one for one in health.of(world.leader, world.now).reasons if one.kind == kind]


def test_kafka_is_asked_when_there_is_no_index_yet() -> None:
    world = World()
    world.leader.trimmer._limits = BOUNDED
    (order,) = [one for one in world.tick(2_000) if isinstance(one, TrimQueues)]
    assert order.measured == ("kt.control",)


def test_the_backfill_queues_of_builds_are_asked_for_too() -> None:
    world = started(World(BuildLimits()))
    world.leader.trimmer._limits = BOUNDED
    (order,) = [one for one in world.tick(2_000) if isinstance(one, TrimQueues)]
    (index,) = world.build("b8").indexes
    assert order.measured == ("kt.control", f"kt.backfill.{index}.b8")


def test_a_disk_that_is_nearly_full_is_told_of() -> None:
    world = serving(["n1", "n2"])
    assert reasons(world, "kafka") == []
    told(world, LEAST - 1)
    (reason,) = reasons(world, "kafka")
    assert (reason.subject, reason.status) == ("broker 1", "degraded")
    assert "the disk of /kafka is nearly full, 160 MiB of 16,384 MiB are free" in reason.reason
    page = metrics.render(world.leader, world.now).decode()
    assert 'keytide_kafka_disk_free_bytes{broker="1",folder="/kafka"} 1.67772159e+08' in page
    world.go(2_000)
    assert world.placement() == ["n1", "n2"], "who counts stays"


def test_no_copy_is_begun_before_there_is_room() -> None:
    world = serving(["n1", "n2"])
    told(world, LEAST - 1)
    world.nodes["n2"].copies[0].state = "LOST"
    world.go(10_000)
    assert world.placement() == ["n1"]
    assert world.records() == []
    assert any("wait for room on the disk of /kafka" in one for one in world.told("copy-waits"))
    told(world, LEAST + LEAST // 4 - 1)
    world.go(2_000)
    assert world.records() == []
    told(world, LEAST + LEAST // 4)
    world.go(2_000)
    assert len(world.records()) == 1


def test_what_is_being_filled_goes_on() -> None:
    world = serving(["n1", "n2"])
    world.nodes["n2"].copies[0].state = "LOST"
    world.go(1_000)
    (record,) = world.records()
    told(world, 1)
    world.fill(record)
    world.until(lambda: len(world.placement()) == 2)


def filling(horizon: int, state: str = "BUILDING") -> CopiesWorld:
    """A copy is being filled on a disk of Kafka that is nearly full; those that count have folded since, and
    need the queue from `horizon` on."""
    world = serving(["n1", "n2"])
    world.nodes["n2"].copies[0].state = "LOST"
    world.go(1_000)
    (record,) = world.records()
    world.nodes[record.node].copies[0] = Copy(record.id, state, horizon=-1, position=0, follows=False)
    for name in ("n1", "n2"):
        if name != record.node:
            world.nodes[name].copies[0].horizon = world.nodes[name].copies[0].position = horizon
    world.go(500)
    assert world.records() == [record], "there is room"
    told(world, LEAST - 1)
    world.go(1_000)
    return world


SHARE = LEAST // 4 // PER_OFFSET
"""Offsets that are worth giving something up for."""


def test_a_copy_is_given_up_that_a_queue_is_kept_for_alone_on_a_disk_that_is_nearly_full() -> None:
    world = filling(10 + SHARE + 1)
    assert world.records() == []
    (why,) = world.told("copy-given-up")
    assert "42 MB of its queue are kept for it alone on the disk of /kafka" in why
    world.go(20_000)
    assert world.records() == [], "not before there is room"
    told(world, 2 * LEAST)
    world.go(2_000)
    (again,) = world.records()
    assert again.need == 10 + SHARE + 1


def test_a_copy_that_is_given_up_for_a_disk_is_begun_again_after_longer_and_longer_pauses() -> None:
    """Or it would be filled and given up for ever, at the full rate of its source."""
    world = filling(10 + SHARE + 1)
    told(world, 2 * LEAST)
    world.go(BOUNDED.copy_pause_ms // 2)
    pauses = []
    for round_ in range(2, 5):
        before = world.now
        world.until(lambda: len(world.records()) == 1, 1_000_000)
        pauses.append(world.now - before)
        world.go(DELETED_MS)
        world.fill(world.record(), "BUILDING").follows = False
        for name in ("n1", "n2"):
            if name != world.record().node:
                world.nodes[name].copies[0].horizon = 10 + round_ * (SHARE + 1)
        world.beat()
        told(world, LEAST - 1, 100_000)
        world.go(1_000)
        assert world.records() == []
        told(world, 2 * LEAST, 100_000)
    assert pauses == sorted(pauses)
    assert pauses[-1] > BOUNDED.copy_pause_ms


def test_a_copy_that_has_caught_up_counts_and_frees_the_queue_by_that() -> None:
    world = filling(10)
    for name in ("n1", "n2"):
        if name != world.record().node:
            world.nodes[name].copies[0].horizon = 10 + SHARE + 1
    node = world.record().node
    world.fill(world.record()).position = 10 + SHARE + 1
    world.until(lambda: len(world.placement()) == 2)
    assert node in world.placement()
    assert world.told("copy-given-up") == []


def test_a_copy_goes_on_being_filled_when_one_that_leaves_needs_the_queue_too() -> None:
    world = serving(["n1", "n2", "n3"], replicas=2)
    assert world.records() == []
    record = CopyRecord("c1", INDEX, 0, "n3", "n1", 10, 0, 0)
    index = world.index("by_city")
    held_back = world.leader.copies.held_back
    told(world, LEAST - 1)
    for copies in (one.copies for one in world.nodes.values()):
        copies[0].horizon = 10 + SHARE + 1
    world.beat()
    assert held_back.crowded(record, index, world.now) is not None
    world.nodes["n3"].copies[0].horizon = 10
    world.beat()
    leaving = replace(index, placement=[["n1", "n2"]], leaving={0: {"n3": LeavingCopy()}})
    assert held_back.crowded(record, leaving, world.now) is None


def test_a_copy_goes_on_being_filled_when_that_frees_little() -> None:
    assert len(filling(10 + SHARE).records()) == 1


def test_a_copy_goes_on_being_filled_when_others_need_the_queue_too() -> None:
    assert len(filling(10).records()) == 1
    assert len(filling(-1).records()) == 1, "one that counts cannot say what it needs"


def test_a_whole_copy_is_not_given_up_for_a_disk_while_none_that_counts_serves() -> None:
    world = filling(10)
    world.nodes["n1"].copies[0].state = "CATCHUP"
    world.nodes["n1"].copies[0].horizon = 9_000
    (record,) = world.records()
    world.nodes[record.node].copies[0].state = "CATCHUP"
    world.go(2_000)
    assert world.records() == [record]


def away(free: int, most: int = 0, lag: int = SHARE + 1) -> CopiesWorld:
    """The node of one copy is silent, and so many offsets behind."""
    world = serving(["n1", "n2"])
    world.leader.copies.held_back.most = most
    for name, position in ("n1", 10), ("n2", 10 + lag):
        world.nodes[name].copies[0].position = position
    world.beat()
    world.nodes["n1"].up = False
    world.until(lambda: "n1" not in world.leader.stability.nodes.live(), 20_000)
    told(world, free)
    world.go(1_000)
    assert world.placement() == ["n1", "n2"] or 0 < most < LEAST // 4, "it may be restarting"
    world.until(lambda: world.leader.stability.nodes.silent_for("n1", AWAY_MS), 100_000)
    told(world, free)
    world.go(1_000)
    return world


def test_a_silent_node_is_given_up_for_a_disk_that_is_nearly_full() -> None:
    world = away(LEAST - 1)
    assert world.placement() == ["n2"]
    (told_of,) = world.told("copy-taken-out")
    assert "MB of its queue are kept for it, and its node is silent, and the disk of /kafka" in told_of
    assert world.records() == [], "not before there is room"
    assert away(LEAST - 1, most=1 << 40).placement() == ["n2"], "however much it may hold back else"
    assert "queue_max_bytes" in away(LEAST - 1, most=PER_OFFSET).told("copy-taken-out")[0]


def test_a_silent_node_is_waited_for_while_there_is_room_and_when_that_frees_little() -> None:
    assert away(2 * LEAST).placement() == ["n1", "n2"]
    assert away(LEAST - 1, lag=SHARE).placement() == ["n1", "n2"]


def test_one_copy_is_given_up_at_a_time() -> None:
    """Kafka takes a minute to delete, and to say that there is room."""
    world = away(LEAST - 1)
    held_back, index = world.leader.copies.held_back, world.index("by_city")
    record = CopyRecord("c9", INDEX, 0, "n3", "n2", 10, 0, 0)
    world.nodes["n2"].copies[0].horizon = 10 + 2 * SHARE
    world.beat()
    assert held_back.crowded(record, index, world.now) is None
    assert held_back.crowded(record, index, world.now + DELETED_MS) is not None


def test_a_live_node_is_not_given_up_for_a_disk_that_is_nearly_full() -> None:
    world = serving(["n1", "n2"])
    world.nodes["n2"].copies[0].position = 9_999
    world.beat()
    told(world, 1)
    world.go(2_000)
    assert world.placement() == ["n1", "n2"]


# --- builds -------------------------------------------------------------------------------------------------


def test_a_full_disk_of_kafka_has_builds_pause_and_room_resumes_them() -> None:
    world = started(World(BuildLimits()))
    sizes = world.leader.queue_sizes
    sizes.least = LEAST
    sizes.told({}, [disk(LEAST - 1, CONTROL)])
    assert world.tick() == [StopDriver("b8")]
    build = world.build("b8")
    assert (build.state, build.paused_by) == ("PAUSED", "system")
    assert "the disk of /kafka of Kafka's broker 1 is full: 159 MiB left, 160 are needed" in build.paused
    sizes.told({}, [disk(LEAST + 1, CONTROL)])
    assert world.tick(60_000) == []
    sizes.told({}, [disk(2 * LEAST, CONTROL)])
    assert world.tick() == [StartDriver("b8")]
