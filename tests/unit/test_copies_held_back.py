"""Copies that hold back more of their slice's queue than they may: which are given up, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest
from kafka.errors import KafkaConnectionError

from coordinator.core.events import QueuesTrimmed
from coordinator.core.instructions import TrimQueues
from coordinator.core.queue_sizes import QueueSize, QueueSizes
from coordinator.http import metrics
from coordinator.kafka import queue_sizes
from coordinator.kafka.queue_sizes import ToldSizes, largest
from coordinator.process.limits import limits_of
from coordinator.queues.trim_guard import stays_from
from coordinator.views import health
from keytide.kafka.clients import AdminClient
from keytide.model.health import Reason
from keytide.settings.settings import load_settings
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld

TOPIC = f"kt.mutations.{INDEX}"
PER_OFFSET, MOST = 100, 400_000
BOUNDED = replace(LIMITS, queue_max_bytes=MOST, queue_sizes=True)


# --- sizes --------------------------------------------------------------------------------------------------


def sizes(*told: tuple[int, int, int]) -> QueueSizes:
    known = QueueSizes()
    for one in told:
        known.told({("t", 0): QueueSize(*one)})
    return known


def test_bytes_are_worked_out_from_what_has_grown() -> None:
    known = sizes((0, 100, 9_000_000), (0, 300, 9_002_000))
    assert known.between(("t", 0), 100, 300) == 2_000, "not by the whole, which has much that was deleted"
    assert known.between(("t", 0), 250) == 500
    assert known.between(("t", 0), 300, 100) == 0
    assert known.between(("t", 1), 0, 100) == 0


def test_nothing_is_known_before_it_has_grown() -> None:
    assert sizes((0, 100, 5_000)).between(("t", 0), 0) == 0
    assert sizes((0, 100, 5_000), (0, 100, 5_000)).between(("t", 0), 0) == 0


def test_segments_that_are_deleted_make_it_no_more() -> None:
    known = sizes((0, 100, 5_000), (0, 200, 6_000), (150, 300, 2_000))
    assert known.between(("t", 0), 200, 300) == 1_000


def test_only_what_is_there_counts_and_no_more_than_all() -> None:
    assert sizes((0, 100, 1_000), (90, 200, 2_000)).between(("t", 0), 0, 100) == 100
    assert sizes((0, 100, 0), (0, 200, 50), (0, 300, 60)).between(("t", 0), 0) <= 60


def test_new_growth_counts_more_than_old() -> None:
    known = sizes((0, 0, 0), (0, 1_000, 1_000_000), (0, 2_000, 1_001_000), (0, 3_000, 1_002_000))
    assert known.between(("t", 0), 2_000, 3_000) < 200_000


def test_a_queue_that_was_made_anew_begins_anew() -> None:
    known = sizes((0, 100, 1_000), (0, 200, 2_000), (0, 10, 50_000))
    assert known.between(("t", 0), 0) == 0


def test_no_answer_changes_nothing_and_is_known() -> None:
    known = sizes((0, 100, 1_000), (0, 200, 2_000))
    known.told(None)
    assert known.untold
    assert known.between(("t", 0), 100, 200) == 1_000
    known.told({})
    assert not known.untold


def test_the_largest_replica_counts() -> None:
    def broker(size: int) -> dict[str, object]:
        one = {"name": "t", "partitions": [{"partition_index": 2, "partition_size": size}]}
        return {"log_dirs": [{"topics": []}, {"topics": [one]}]}

    assert largest([broker(5), broker(9), broker(7)]) == {("t", 2): 9}


# --- measuring ----------------------------------------------------------------------------------------------


def measure(world: CopiesWorld, end: int, begin: int = 0) -> None:
    """Kafka says how large the queue of slice 0 is, each time that it is asked."""
    size = QueueSize(begin, end, end * PER_OFFSET)
    world.leader.trimmer._measures = True
    world.handle(QueuesTrimmed({}, 0, (), world.now, {(TOPIC, 0): size}))


def test_queues_are_measured_when_they_are_trimmed_and_when_nothing_goes() -> None:
    world = CopiesWorld([["n1", "n2"]], limits=BOUNDED)
    world.nodes["n1"].copies[0].horizon = -1
    orders = [one for one in world.go(20_000) if isinstance(one, TrimQueues)]
    assert orders == [TrimQueues((), ("kt.control", TOPIC))], "nothing goes, for n1 cannot say what it needs"
    world.handle(QueuesTrimmed({}, 0, (), world.now))
    assert world.leader.queue_sizes.untold
    assert [one for one in world.go(2_000) if isinstance(one, TrimQueues)] == orders


def test_without_it_they_are_not() -> None:
    world = CopiesWorld([["n1", "n2"]])
    orders = [one for one in world.go(20_000) if isinstance(one, TrimQueues)]
    assert orders[0].measured == ()
    world.handle(QueuesTrimmed({}, 0, (), world.now))
    assert not world.leader.queue_sizes.untold


def test_services_measure_and_bound_as_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    core, *_ = limits_of(load_settings())
    assert (core.queue_sizes, core.queue_max_bytes) == (True, 0)
    monkeypatch.setenv("KEYTIDE_COORDINATOR__QUEUE_MAX_BYTES", "7")
    assert limits_of(load_settings())[0].queue_max_bytes == 7


# --- who is given up ----------------------------------------------------------------------------------------


def serving(placement: list[list[str]] | None = None, bounded: bool = True) -> CopiesWorld:
    """Two copies of a slice and a node without one; the queue has 10,000 offsets."""
    placement = placement or [["n1", "n2"]]
    limits = BOUNDED if bounded else LIMITS
    world = CopiesWorld(placement, replicas=len(placement[0]) - 1, limits=limits)
    world.go(2_000)
    assert world.published > 0
    measure(world, 10)
    measure(world, 10_000)
    return world


def read(world: CopiesWorld, **positions: int) -> None:
    """How far copies of slice 0 have durably read."""
    for name, position in positions.items():
        world.nodes[name].copies[0].position = position
        world.nodes[name].copies[0].horizon = position
    world.beat()


def reasons(world: CopiesWorld, kind: str) -> list[Reason]:
    return [one for one in health.of(world.leader, world.now).reasons if one.kind == kind]


def test_a_copy_that_holds_back_too_much_is_taken_out_and_filled_anew() -> None:
    world = serving()
    read(world, n1=100, n2=9_900)
    world.go(500)
    (told,) = world.told("copy-taken-out")
    assert "the copy of slice 0 of by_city on node n1 counts no longer: 1 MB of its queue are kept" in told
    assert "coordinator.queue_max_bytes" in told
    assert "node n2 has what it had" in told
    assert world.placement() == ["n2"]
    record = world.record()
    assert (record.source, record.need) == ("n2", 9_900)
    assert reasons(world, "slice") != [], "a copy is missing, until it counts"
    world.nodes["n1"].copies.pop(0)
    world.fill(record)
    world.go(2_000)
    assert sorted(world.placement()) == sorted(["n2", record.node])
    assert reasons(world, "slice") == []
    assert len(world.told("copy-taken-out")) == 1


def test_the_queue_goes_on_being_deleted_then() -> None:
    world = serving()
    world.go(BOUNDED.queue_settling_ms)
    read(world, n1=100, n2=9_900)
    world.go(500)
    world.fill(world.record())
    world.until(lambda: len(world.placement()) == 2)
    measure(world, 10_000)
    (order,) = [one for one in world.go(1_500) if isinstance(one, TrimQueues)]
    (limit,) = order.limits
    assert stays_from(limit, 10_000) == limit.before == 9_900


def test_within_the_bound_it_stays() -> None:
    world = serving()
    read(world, n1=6_000, n2=9_900)
    world.go(5_000)
    assert world.told("copy-taken-out") == []
    assert reasons(world, "slice") == []


def test_without_a_bound_it_stays() -> None:
    world = serving(bounded=False)
    read(world, n1=100, n2=9_900)
    world.go(5_000)
    assert world.told("copy-taken-out") == []
    assert reasons(world, "slice") == []


def test_a_silent_node_is_given_up_before_its_time() -> None:
    world = serving()
    read(world, n1=100, n2=100)
    world.nodes["n1"].up = False
    world.go(5_000)
    assert world.told("copy-taken-out") == []
    read(world, n2=9_900)
    world.go(500)
    assert world.placement() == ["n2"]


def test_one_that_was_never_heard_holds_all_back_when_it_is_known_to_be_silent() -> None:
    world = serving()
    read(world, n1=100, n2=9_900)
    world.nodes["n1"].up = False
    world.leader.copies.held_back.most = 0
    world.succeed()
    measure(world, 10)
    measure(world, 10_000)
    world.go(1_000)
    assert world.told("copy-taken-out") == [], "it may still be heard"
    world.until(lambda: world.placement() == ["n2"], 20_000)


def test_where_no_other_copy_holds_what_is_published_it_is_only_told() -> None:
    world = serving()
    world.nodes["n2"].copies[0].state = "CATCHUP"
    read(world, n1=100, n2=9_900)
    world.go(5_000)
    assert world.told("copy-taken-out") == []
    told = [one for one in reasons(world, "slice") if "queue_max_bytes" in one.reason]
    assert [(one.subject, one.status) for one in told] == [("slice 0 of by_city", "degraded")]
    assert told[0].reason.startswith("1 MB are kept in Kafka for the copy on node n1, more than may be")
    assert "node n1" in told[0].next_step


def test_the_only_copy_is_told_of() -> None:
    world = serving([["n1"]])
    read(world, n1=100)
    world.go(2_000)
    assert world.placement() == ["n1"]
    assert len(reasons(world, "slice")) == 1


def test_where_all_stand_still_together_none_is_given_up() -> None:
    world = serving()
    read(world, n1=100, n2=200)
    world.go(5_000)
    assert world.told("copy-taken-out") == []
    assert len(reasons(world, "slice")) == 2


def test_of_two_that_stand_still_each_is_given_up_for_the_third() -> None:
    world = serving([["n1", "n2", "n3"]])
    read(world, n1=100, n2=200, n3=9_900)
    world.go(500)
    assert world.placement() == ["n3"]


def test_another_copy_that_is_not_so_far_on_is_no_reason() -> None:
    """Of those that hold what is published, the one farther on has to be it."""
    world = serving([["n1", "n2", "n3"]])
    world.nodes["n3"].copies[0].state = "CATCHUP"
    read(world, n1=100, n2=200, n3=9_900)
    world.go(2_000)
    assert world.placement() == ["n1", "n2", "n3"]


# --- what is shown ------------------------------------------------------------------------------------------


def test_metrics_have_the_sizes() -> None:
    world = serving()
    read(world, n1=7_000, n2=9_900)
    page = metrics.render(world.leader, world.now).decode()
    assert 'keytide_queue_bytes{index="by_city",slice="0"} 1e+06' in page
    assert 'keytide_queue_held_bytes{index="by_city",slice="0"} 300000.0' in page


def test_a_kafka_that_does_not_say_is_told_of_where_there_is_a_bound() -> None:
    world = serving()
    world.leader.trimmer._measures = True
    world.handle(QueuesTrimmed({}, 0, (), world.now))
    (told,) = reasons(world, "kafka")
    assert told.reason == "it does not say how large queues are: coordinator.queue_max_bytes is not kept"
    world = serving(bounded=False)
    world.leader.trimmer._measures = True
    world.handle(QueuesTrimmed({}, 0, (), world.now))
    assert reasons(world, "kafka") == []


# --- asking Kafka -------------------------------------------------------------------------------------------


SEVEN = ToldSizes({("t", 0): QueueSize(3, 3, 7)}, ())


class Broker:
    """Stands for kafka-python's client."""

    opened: ClassVar[list[Broker]] = []

    def __init__(self, **_: object) -> None:
        self.closed = self.away = self.silent = False
        self.opened.append(self)

    def describe_log_dirs(self, topics: list[str]) -> list[dict[str, Any]]:
        if self.away:
            raise KafkaConnectionError("gone")
        told = [{"name": one, "partitions": [{"partition_index": 0, "partition_size": 7}]} for one in topics]
        return [{"log_dirs": [{"topics": [] if self.silent else told}]}]

    def close(self) -> None:
        self.closed = True


def test_one_connection_is_kept_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "opened", [])
    monkeypatch.setattr(queue_sizes, "KafkaAdminClient", Broker)
    monkeypatch.setattr(queue_sizes, "_offsets", lambda _, places, __: dict.fromkeys(places, 3))
    reader = queue_sizes.SizeReader(load_settings(), cast(AdminClient, None))
    assert reader.sizes(["t"]) == reader.sizes(["t"]) == SEVEN
    assert len(Broker.opened) == 1
    Broker.opened[0].away = True
    assert reader.sizes(["t"]) is None
    assert Broker.opened[0].closed
    assert reader.sizes(["t"]) == SEVEN
    Broker.opened[1].silent = True
    assert reader.sizes(["t"]) is None, "no broker tells of any"
    assert Broker.opened[1].closed, "they may be others by now"
    assert reader.sizes(["t"]) == SEVEN
    reader.close()
    assert [one.closed for one in Broker.opened] == [True, True, True]
