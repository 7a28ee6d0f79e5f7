"""A cluster on several hosts: on each a broker (which is a controller, too), a coordinator, an indexer node
and a projector, as a small production has it."""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deploy.jars import jars_of
from deploy.java import find_java
from deploy.kafka import _LOG4J, MESSAGE_MAX_BYTES, new_cluster_id
from deploy.probes import answers
from deploy.process import ChildProcess
from deploy.spark_home import spark_environment
from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.process.worker import Worker, logged
from tests.hosts.network import Network
from tests.integration.disks import MIB, NODE_RESERVE, SmallDisk
from tests.integration.world import World
from tests.waiting import wait_for

TOKEN: Final = "tests-only"
BROKER, CONTROLLER, COORDINATOR, NODE = 9092, 9093, 8091, 8093
"""Ports, the same on each host."""
START_S: Final = 240.0
RESTART_S: Final = 1.0
DISK_BYTES: Final = NODE_RESERVE + 600 * MIB
_CLOCK = Path(__file__).parent / "clock"
_JVM = ("-Xms64m", "-Xmx320m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SETTINGS: Final = {
    "KEYTIDE_TOPICS__REPLICATION_FACTOR": "3",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_COORDINATOR__DEFAULT_REPLICAS": "1",
    "KEYTIDE_SECURITY__TOKENS": f'{{"{TOKEN}": ["read", "admin"]}}',
    "SPARK_LOCAL_IP": "127.0.0.1",
}


class HostCluster:
    """All parts, each on its host, which has a small disk and a clock of its own.

    Args:
        network: with its hosts.
        data_dir: of all of them.

    Attributes:
        services: all processes by name, as in `coordinator-1`; those of one host bear its number.
        disks: of each host, with all that its parts keep; their logs are elsewhere.
    """

    name = "keytide"

    def __init__(self, network: Network, data_dir: Path, hosts: int = 3) -> None:
        self.network = network
        self.data_dir = data_dir
        self.hosts = range(hosts)
        self.services: dict[str, ChildProcess] = {}
        self.disks = [SmallDisk(data_dir / f"host-{host + 1}", DISK_BYTES) for host in self.hosts]
        self._mounted: list[SmallDisk] = []
        self._down: set[str] = set()
        self._lock = threading.Lock()
        """Nothing is started while something is killed."""
        self._cluster_id = new_cluster_id()
        self._supervisor = Worker("supervisor", logged, self._watch)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.network.address(host)}:{BROKER}" for host in self.hosts)

    @property
    def coordinator_urls(self) -> list[str]:
        return [f"http://{self.network.address(host)}:{COORDINATOR}" for host in self.hosts]

    @property
    def coordinator_url(self) -> str:
        return self.coordinator_urls[0]

    @property
    def node_urls(self) -> list[str]:
        return [f"http://{self.network.address(host)}:{NODE}" for host in self.hosts]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything: there is nothing to be kept."""
        self._supervisor.close()
        for child in self.services.values():
            if child.running:
                child.kill()
        while self._mounted:
            self._mounted.pop().unmount()

    @contextmanager
    def down(self, *names: str) -> Iterator[None]:
        """Parts that are killed (SIGKILL, with all that they have started) and stay so for the block."""
        with self._lock:
            self._down.update(names)
            for name in names:
                self.services[name].kill()
        try:
            yield
        finally:
            self._down.difference_update(names)

    def set_clock(self, host: int, seconds: float) -> None:
        """Have a host's clock be off by so much; `tests/hosts/clock` says for whom."""
        with self._clock(host).open("r+b") as file:
            file.write(struct.pack("d", seconds))

    def _clock(self, host: int) -> Path:
        return self.data_dir / f"clock-{host + 1}"

    def _watch(self) -> None:
        """Start again what has ended, as a host's own supervisor does: a coordinator that was replaced, or
        that Kafka stays away from, ends."""
        while not self._supervisor.stopping.wait(RESTART_S):
            with self._lock:
                for name, child in self.services.items():
                    if not child.running and name not in self._down:
                        child.start()

    def _start(self) -> None:
        (self.data_dir / "logs").mkdir()
        for host, disk in zip(self.hosts, self.disks, strict=True):
            disk.mount()
            self._mounted.append(disk)
            self._clock(host).write_bytes(struct.pack("d", 0.0))
        formatting = [self._broker(host) for host in self.hosts]
        for one in formatting:
            assert one.wait(START_S) == 0, one.log.read_text()
        for host in self.hosts:
            self.services[f"kafka-{host + 1}"].start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def all_brokers() -> bool:
            try:
                return len(admin.list_topics(timeout=5).brokers) == len(self.hosts)
            except KafkaException:
                return False

        wait_for(all_brokers, "all brokers answer", START_S)
        spark = spark_environment()
        for host in self.hosts:
            number, address = host + 1, self.network.address(host)
            zone = {"KEYTIDE_INDEXER__ZONE": f"host-{number}"}
            led = {"KEYTIDE_COORDINATOR__HOST": address, **spark}
            self._service(host, f"coordinator-{number}", "coordinator", **led)
            self._service(
                host,
                f"node-{number}",
                "indexer",
                KEYTIDE_INDEXER__HOST=address,
                KEYTIDE_INDEXER__NODE_ID=f"node-{number}",
                **zone,
            )
            self._service(host, f"projector-{number}", "projector")
        for name, child in self.services.items():
            if not name.startswith("kafka"):
                child.start()
        for urls in (self.coordinator_urls, self.node_urls):
            for url in urls:
                wait_for(partial(answers, f"{url}/healthz", ""), f"{url} answers", START_S)
        wait_for(
            lambda: any(answers(f"{url}/readyz", "") for url in self.coordinator_urls), "one leads", START_S
        )
        for host in self.hosts:
            projector = self.services[f"projector-{host + 1}"]
            projector.wait_until(partial(projector.said, "ready"), START_S, "was ready")
        self._supervisor.open()

    def _service(self, host: int, name: str, module: str, **more: str) -> None:
        environment = {
            **os.environ,
            "KEYTIDE_CLUSTER": self.name,
            "KEYTIDE_KAFKA__BOOTSTRAP": self.bootstrap,
            "KEYTIDE_DATA_DIR": str(self.disks[host].folder / name),
            "TEST_BED_CLOCK": str(self._clock(host)),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_CLOCK), os.environ.get("PYTHONPATH")))),
            "PYTHONUNBUFFERED": "1",
            **SETTINGS,
            **more,
        }
        command = [*self.network.on(host), sys.executable, "-m", module]
        log = self.data_dir / "logs" / f"{name}.log"
        self.services[name] = ChildProcess(name, command, log=log, env=environment)

    def _broker(self, host: int) -> ChildProcess:
        """Define a broker; what formats its folder."""
        number, address = host + 1, self.network.address(host)
        folder, logs = self.disks[host].folder / f"kafka-{number}", self.data_dir / "logs"
        folder.mkdir()
        voters = (f"{one + 1}@{self.network.address(one)}:{CONTROLLER}" for one in self.hosts)
        listener = f"PLAINTEXT://{address}:{BROKER}"
        lines: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"{listener},CONTROLLER://{address}:{CONTROLLER}",
            "advertised.listeners": listener,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": folder / "data",
            "auto.create.topics.enable": "false",
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "message.max.bytes": MESSAGE_MAX_BYTES,
            "replica.fetch.max.bytes": MESSAGE_MAX_BYTES,
            "replica.lag.time.max.ms": 6_000,
            "broker.session.timeout.ms": 6_000,
            "broker.heartbeat.interval.ms": 500,
            "log.retention.ms": -1,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": 2,
            "transaction.state.log.num.partitions": 3,
            "share.coordinator.state.topic.replication.factor": 3,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 16 << 20,
        }
        config, log4j = folder / "server.properties", folder / "log4j2.xml"
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        log4j.write_text(_LOG4J.format(logs=logs / f"kafka-{number}"))
        classpath = ":".join(map(str, jars_of("broker")))
        java = [str(find_java().path), "-cp", classpath, f"-Dlog4j2.configurationFile=file:{log4j}"]
        tool = [*java, "-Xmx128m", "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        self.services[f"kafka-{number}"] = ChildProcess(
            f"broker {number}",
            [*self.network.on(host), *java, *_JVM, "kafka.Kafka", str(config)],
            log=logs / f"kafka-{number}.log",
        )
        return ChildProcess(
            f"format {number}",
            [*tool, "-t", self._cluster_id, "-c", str(config)],
            log=logs / f"format-{number}.log",
        ).start()


class HostWorld(World):
    """What tests do to it."""

    def client(self, node: int = 0) -> Client:
        return Client(self.cluster.node_urls[node], token=TOKEN)

    @property
    def admin(self) -> Admin:
        """Any coordinator that answers, for the one that leads."""
        if self._admin is None:
            self._admin = Admin(self.cluster.coordinator_urls, TOKEN)
        return self._admin
