"""A run: the workload beside one nemesis after the other, each undone and waited for until all is well again,
then what the checker says of the clients' history, and what a verification says of each index."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from keytide.errors import KeytideError
from tests.hosts.checker import ClientHistory, Strike, violations
from tests.hosts.cluster import HostCluster, HostWorld
from tests.hosts.indexes import INDEXES
from tests.hosts.nemeses import Nemeses, Nemesis
from tests.hosts.network import Network
from tests.hosts.workload import Workload
from tests.waiting import wait_for

STRUCK_S: Final = (4.0, 12.0)
"""How long a nemesis goes on: past sessions and heartbeats, or not."""
RECOVERY_S: Final = 180.0


def soak(
    world: HostWorld,
    network: Network,
    cluster: HostCluster,
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    kinds: list[str] | None = None,
) -> ClientHistory:
    """Strike for so long, and check.

    Args:
        world: with the indexes of the workload (`workload.prepare`).
        seed: what strikes when follows from it, not how processes interleave.
        kinds: nemeses instead of a schedule, in this order, until they or the time are over.

    Returns:
        The history, in which nothing is wrong.

    Raises:
        AssertionError: something is, or in an index, or the cluster did not recover within `RECOVERY_S`.
    """
    chance = random.Random(seed)
    nemeses = Nemeses(network, cluster, chance)
    schedule = nemeses.schedule() if kinds is None else map(nemeses.one, kinds)
    with Workload(world, seed) as workload:
        wait_for(lambda: min(workload.seen(0.0)) >= 0, "all nodes are read", RECOVERY_S)
        for nemesis in schedule:
            _strike(workload, world, nemesis, chance.uniform(*STRUCK_S), say)
            if workload.now() > seconds:
                break
        wait_for(workload.demanded, "each index has shown what was written", RECOVERY_S)
    workload.read_end()
    history = workload.history
    say(_summary(history))
    wrong = violations(history)
    assert not wrong, "\n".join(f"{one.kind}: {one.story}" for one in wrong)
    for index in INDEXES:  # of places some entries give no row of any answer
        verified = world.verified(index.name)
        assert (verified["state"], verified["clean"]) == ("DONE", True), verified
    return history


def _strike(
    workload: Workload, world: HostWorld, nemesis: Nemesis, seconds: float, say: Callable[[str], None]
) -> None:
    strike = Strike(nemesis.what, nemesis.hosts, nemesis.bears, workload.now())
    workload.history.strikes.append(strike)
    with nemesis.strike():
        _let_pass(seconds)
        workload.check()
    healed, newest = workload.now(), max(workload.seen(0.0))
    try:
        wait_for(
            lambda: min(workload.seen(healed)) > newest and _well(world),
            f"all is well after {nemesis.what}",
            RECOVERY_S,
        )
    except AssertionError as error:
        raise AssertionError(f"{error}: {_state(world)}, read since: {workload.seen(healed)}") from error
    strike.recovered = workload.now()
    took = strike.recovered - healed
    say(f"{strike.begun:6.1f} s: {strike.what} for {seconds:.1f} s, well {took:.1f} s later")


def _let_pass(seconds: float) -> None:
    threading.Event().wait(seconds)


def _well(world: HostWorld) -> bool:
    """Whether nobody has anything to say, and each partition has all of its replicas again: the next broker
    that is lost must not be the last one that has something."""
    try:
        health = world.admin.call("GET", "/v1/health")
        live = sum(one["live"] for one in world.admin.call("GET", "/v1/nodes"))
        topics = (
            AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0}).list_topics(timeout=5).topics
        )
    except (KeytideError, KafkaException):
        return False
    partitions = [one for topic in topics.values() for one in topic.partitions.values()]
    return (
        health["status"] == "ok"
        and live == len(world.cluster.node_urls)
        and all(len(one.isrs) == len(one.replicas) for one in partitions)
    )


def _state(world: HostWorld) -> str:
    try:
        return str(world.admin.call("GET", "/v1/health"))
    except KeytideError as error:
        return f"no coordinator says: {error}"


def _summary(history: ClientHistory) -> str:
    sessions = Counter(one.session.partition(" at ")[0] for one in history.reads)
    indexes = Counter(one.index for one in history.reads)
    unknown = sum(one.ended is None for one in history.writes)
    last = [one for one in history.reads if one.last]
    return (
        f"{len(history.strikes)} strikes, {len(history.writes):,} writes ({unknown} not acknowledged), "
        f"{len(history.refused)} scans refused, postings at the end: {len(last[0].postings):,}; scans: "
        + ", ".join(f"{name} {count:,}" for name, count in sorted((sessions + indexes).items()))
    )
