"""A real Kafka cluster for tests of lost history: a controller and three brokers, each a JVM of its own.

The controller is apart, so that brokers can be killed or stopped in any number and elections go on. Unclean
elections are allowed per topic (`unclean=True`). Heaps are small: all four take about a gigabyte.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.jars import jars_of
from deploy.java import find_java
from deploy.kafka import _LOG4J, MESSAGE_MAX_BYTES, new_cluster_id
from deploy.process import ChildProcess, free_ports
from tests.waiting import wait_for

LIMIT_S = 180.0
CONTROLLER = 100
BROKERS = (1, 2, 3)
_JVM = ("-Xms64m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ThreeBrokers:
    """The cluster, in a folder.

    Args:
        data_dir: of all four.
        settings: further broker settings.
    """

    def __init__(self, data_dir: Path, settings: Mapping[str, str | int] | None = None) -> None:
        self._dir = data_dir
        self._settings = dict(settings or {})
        self._cluster_id = new_cluster_id()
        ports = free_ports(len(BROKERS) + 1)
        self.ports = dict(zip((CONTROLLER, *BROKERS), ports, strict=True))
        self.nodes: dict[int, ChildProcess] = {}
        self._admin: AdminClient | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[broker]}" for broker in BROKERS)

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    # --- life

    def start(self) -> Self:
        for node in self.ports:
            self._format(node)
        for node in self.ports:
            self.nodes[node].start()
        wait_for(lambda: len(self.alive()) == len(BROKERS), "three brokers answer")
        return self

    def stop(self) -> None:
        for child in self.nodes.values():
            if child.running:
                os.kill(child.pid, signal.SIGCONT)
                child.kill()  # there is nothing to be kept

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _format(self, node: int) -> None:
        folder = self._dir / f"node-{node}"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        config, log4j = folder / "server.properties", folder / "log4j2.xml"
        lines = {**(self._of_controller() if node == CONTROLLER else self._of_broker(node)), **self._settings}
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        log4j.write_text(_LOG4J.format(logs=folder / "logs"))
        java, classpath = find_java(), ":".join(map(str, jars_of("broker")))
        command = [str(java.path), "-cp", classpath, f"-Dlog4j2.configurationFile=file:{log4j}"]
        tool = [*command, "-Xmx128m", "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        formatting = ChildProcess(
            f"format {node}",
            [*tool, "-t", self._cluster_id, "-c", str(config)],
            log=folder / "logs" / "format.out",
        ).start()
        assert formatting.wait(LIMIT_S) == 0, (folder / "logs" / "format.out").read_text()
        self.nodes[node] = ChildProcess(
            f"kafka {node}", [*command, *_JVM, "kafka.Kafka", str(config)], log=folder / "logs" / "kafka.out"
        )

    def _common(self, node: int) -> dict[str, str | int]:
        return {
            "node.id": node,
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{self.ports[CONTROLLER]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._dir / f"node-{node}" / "data"),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            # Longer than a busy machine holds up a broker that lives: an election too many is another story.
            "broker.session.timeout.ms": 6000,
            "broker.heartbeat.interval.ms": 300,
            "auto.create.topics.enable": "false",
        }

    def _of_controller(self) -> dict[str, str | int]:
        listener = f"CONTROLLER://127.0.0.1:{self.ports[CONTROLLER]}"
        return {**self._common(CONTROLLER), "process.roles": "controller", "listeners": listener}

    def _of_broker(self, node: int) -> dict[str, str | int]:
        listener = f"PLAINTEXT://127.0.0.1:{self.ports[node]}"
        return {
            **self._common(node),
            "process.roles": "broker",
            "listeners": listener,
            "advertised.listeners": listener,
            "inter.broker.listener.name": "PLAINTEXT",
            "message.max.bytes": MESSAGE_MAX_BYTES,
            "replica.fetch.max.bytes": MESSAGE_MAX_BYTES,
            # A follower that does not answer leaves the in-sync replicas soon.
            "replica.lag.time.max.ms": 6000,
            "log.retention.ms": -1,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 3,
            "share.coordinator.state.topic.replication.factor": 3,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
            "auto.leader.rebalance.enable": "false",
        }

    # --- brokers

    def alive(self) -> set[int]:
        """Brokers that are registered, as far as the cluster knows."""
        try:
            return set(self.admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return set()

    def kill(self, broker: int) -> None:
        """kill -9, and wait until the cluster has noticed."""
        self.nodes[broker].kill()
        wait_for(lambda: broker not in self.alive(), f"broker {broker} is gone")

    def restart(self, broker: int) -> None:
        """Start a broker that was killed, and wait until it is there."""
        self.nodes[broker].start()
        wait_for(lambda: broker in self.alive(), f"broker {broker} is back")

    @contextmanager
    def stopped(self, *brokers: int) -> Iterator[None]:
        """SIGSTOP while the block runs."""
        for broker in brokers:
            os.kill(self.nodes[broker].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for broker in brokers:
                if self.nodes[broker].running:
                    os.kill(self.nodes[broker].pid, signal.SIGCONT)

    # --- topics

    def create(self, topic: str, assignment: list[list[int]], *, unclean: bool = True, **config: str) -> None:
        """A topic whose replicas lie as `assignment` says: for each partition its brokers, the leader
        first."""
        settings = {
            "min.insync.replicas": "1",
            "unclean.leader.election.enable": str(unclean).lower(),
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        new = NewTopic(topic, len(assignment), replica_assignment=assignment, config=settings)
        self.admin.create_topics([new])[topic].result(30)
        wait_for(
            lambda: all(self.leader(topic, p) == brokers[0] for p, brokers in enumerate(assignment)),
            f"{topic} has its leaders",
        )
        wait_for(lambda: all(self._knows(node, topic) for node in self.alive()), f"all know {topic}")

    def _knows(self, node: int, topic: str) -> bool:
        """Whether a broker has heard of a topic: whoever describes topics asks any of them."""
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.ports[node]}", "log_level": 0})
        return client.list_topics(topic, timeout=10).topics[topic].error is None

    def leader(self, topic: str, partition: int) -> int:
        """-1 while there is none."""
        found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
        return -1 if found is None else int(found.leader)

    def in_sync(self, topic: str, partition: int) -> set[int]:
        return set(self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].isrs)

    def write(self, topic: str, partition: int, records: Iterable[tuple[str, bytes | None]]) -> None:
        """Write records that all replicas which are in sync acknowledge."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0}
        )
        errors: list[object] = []
        for key, value in records:
            producer.produce(
                topic, value, key, partition, on_delivery=lambda e, _: errors.append(e) if e else None
            )
        assert producer.flush(30) == 0
        assert errors == []

    def lose(self, topic: str, partition: int, lost: Callable[[], None], *, keep_down: bool = False) -> None:
        """An unclean election that loses what `lost` writes, or has written by others: the follower is away
        while it runs, then the leader dies and the follower, which has none of it, must lead. Replicas of the
        partition must be two.

        Args:
            keep_down: the old leader stays dead; else it comes back and follows.
        """
        leader = self.leader(topic, partition)
        (follower,) = self.replicas(topic, partition) - {leader}
        self.kill(follower)
        wait_for(lambda: self.in_sync(topic, partition) == {leader}, "the follower is out of sync")
        lost()
        self.kill(leader)
        self.restart(follower)
        wait_for(lambda: self.leader(topic, partition) == follower, "the follower leads")
        if not keep_down:
            self.restart(leader)

    def replicas(self, topic: str, partition: int) -> set[int]:
        return set(self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].replicas)
