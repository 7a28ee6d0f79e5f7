"""The embedded Kafka broker: a real one, on loopback, alone or one of several (`deploy.brokers`), for a user
who has no Kafka running.

Theory of operation: one JVM is broker and KRaft controller. Its folder is formatted once (the cluster id and
the ports that it had last are kept in it, so a cluster finds its broker where it was), and survives kill -9
and a new start. Ports are chosen below the range of outgoing connections; the controller's is new at every
start, since nobody else uses it. The broker's own log goes to a rolling file; errors, and what the JVM itself
says, to `kafka.out` next to it, whose end is in the error when the broker dies. It is started as a
`ChildProcess`, so it never outlives this process.

Settings differ from Kafka's defaults where brokers on one machine need it: replication 1 everywhere (with
several brokers 3, or as many as there are), internal topics with few partitions, no wait before the first
rebalance, messages up to 32 MiB, no topics made by accident, and no expiry of data unless a topic asks for it
(the records of a demo are years old).

`python -m deploy.kafka --data-dir DIR --port N` runs one in the foreground until Ctrl-C.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException

from deploy.jars import jars_of
from deploy.java import find_java
from deploy.process import ChildDiedError, ChildProcess, free_ports, is_free
from keytide.errors import CallerError, KeytideError
from keytide.kafka.admin import in_sync
from keytide.kafka.clients import AdminClient
from keytide.process.program import begin

START_LIMIT_S = 180.0
STOP_LIMIT_S = 20.0
MESSAGE_MAX_BYTES = 32 * 1024 * 1024

_JVM = ("-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")
_ALONE = ("-Xms128m", "-Xmx1g", "-XX:MaxDirectMemorySize=512m")
_ONE_OF_SEVERAL = ("-Xms64m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m")
"""Three of them fit into a laptop."""
_PERFORMANCE = "-XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
"""How the JVM compiles and collects, unless KAFKA_JVM_PERFORMANCE_OPTS says otherwise, as with Kafka's own
scripts."""

_SHORT_LIVED = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

_LOG4J = """\
<Configuration status="WARN" shutdownHook="disable">
  <Appenders>
    <RollingFile name="file" fileName="{logs}/kafka.log" filePattern="{logs}/kafka.log.%i">
      <PatternLayout pattern="%d %p %c{{1}} [%t] %m%n"/>
      <SizeBasedTriggeringPolicy size="16 MB"/>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
    <Console name="errors" target="SYSTEM_ERR"><PatternLayout pattern="%d %p %c{{1}} %m%n"/></Console>
  </Appenders>
  <Loggers>
    <Root level="INFO">
      <AppenderRef ref="file"/>
      <AppenderRef ref="errors" level="ERROR"/>
    </Root>
  </Loggers>
</Configuration>
"""


def jvm_options(several: bool = False) -> list[str]:
    """Options of a broker's JVM, alone or one of several; KAFKA_JVM_PERFORMANCE_OPTS replaces those of
    speed."""
    memory = _ONE_OF_SEVERAL if several else _ALONE
    return [*memory, *_JVM, *shlex.split(os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", _PERFORMANCE))]


def replication(brokers: int) -> tuple[int, int]:
    """The replication factor of topics with so many brokers, and how many replicas must have what a producer
    is told is written."""
    factor = min(3, brokers)
    return factor, in_sync(factor)


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """What a broker is among several.

    Attributes:
        node: its number, from 1.
        controllers: number -> port, of all of them.
        cluster_id: of the Kafka cluster.
    """

    node: int
    controllers: Mapping[int, int]
    cluster_id: str


class EmbeddedKafka(ChildProcess):
    """A Kafka broker on 127.0.0.1. `start` brings it back on the same port and data, also after `kill`.

    Args:
        data_dir: its folder, kept; None for a temporary one, removed by `stop`.
        port: where it listens; 0 for the port that it had last in this folder if that is free, else any free
            one.

    Attributes:
        name: what people call it.
        place: set before it is started when it is one of several; None for a broker alone.
    """

    place: BrokerPlace | None = None

    def __init__(self, data_dir: Path | None = None, port: int = 0, name: str = "kafka") -> None:
        self._temporary = data_dir is None
        self.data_dir = (data_dir or Path(tempfile.mkdtemp(prefix="keytide-kafka-"))).resolve()
        self.log_dir = self.data_dir / "logs"
        self._wanted_port = port
        self._port = port
        super().__init__(name, [], log=self.log_dir / "kafka.out")

    @property
    def port(self) -> int:
        """Where it listens; from the first start on it stays the same through restarts."""
        return self._port

    @property
    def bootstrap(self) -> str:
        """What goes into `bootstrap.servers`."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Start it and wait until it answers; formats the folder and fetches the jars the first time. One of
        several answers when most of them run.

        Raises:
            JavaError, JarsError: the Java parts are not to be had.
            CallerError: it runs already, or the port is taken.
            ChildDiedError: it died; the message has the end of its log.
            NotReadyError: it did not answer in time (it is stopped).
        """
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start it, and do not wait. Raises as `start`."""
        if self.running:
            raise CallerError(f"{self.name} runs already, as process {self.pid}.")
        java, classpath = find_java(), ":".join(map(str, jars_of("broker")))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        state = self._read_state()
        self._port = self._choose_port(int(state.get("port", 0)))
        config, log4j = self._write_config()
        self._write_state({**state, "port": self._port})
        command = [str(java.path), "-cp", classpath, f"-Dlog4j2.configurationFile=file:{log4j}"]
        self._format(command, config, str(state["cluster_id"]))
        options = jvm_options(several=self.place is not None)
        self.argv = [*command, *options, "kafka.Kafka", str(config)]
        super().start()

    def wait_ready(self) -> None:
        """Wait until it answers.

        Raises:
            ChildDiedError: it died; the message has the end of its log.
            NotReadyError: it did not answer in time (it is stopped).
        """
        try:
            self.wait_until(self._answers, START_LIMIT_S, f"answered on {self.bootstrap}")
        except KeytideError:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop it in order (kill it after 20 s), and remove a temporary folder."""
        self.terminate(STOP_LIMIT_S)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def restart(self) -> None:
        """Stop it in order if it runs, and start it on the same port and data."""
        self.terminate(STOP_LIMIT_S)
        self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _choose_port(self, last: int) -> int:
        fixed = self._port or self._wanted_port
        if fixed:
            if not is_free(fixed):
                raise CallerError(
                    f"Port {fixed} on 127.0.0.1 is taken.",
                    next_step="Stop what listens there, or choose another port.",
                )
            return fixed
        return last if last and is_free(last) else free_ports()[0]

    def _read_state(self) -> dict[str, Any]:
        """What the folder remembers: `cluster_id`, and `port` after a first start."""
        try:
            state: dict[str, Any] = json.loads((self.data_dir / "keytide-broker.json").read_text())
        except FileNotFoundError:
            return {"cluster_id": self.place.cluster_id if self.place else new_cluster_id()}
        return state

    @property
    def cluster_id(self) -> str:
        """Of the Kafka cluster that the folder belongs to; a new one of a new folder."""
        return str(self._read_state()["cluster_id"])

    @property
    def last_port(self) -> int:
        """Where it listened last; 0 of a new folder."""
        return int(self._read_state().get("port", 0))

    def _write_state(self, state: Mapping[str, Any]) -> None:
        file = self.data_dir / "keytide-broker.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.replace(file)

    def _write_config(self) -> tuple[Path, Path]:
        config, log4j = self.data_dir / "server.properties", self.data_dir / "log4j2.xml"
        lines = (f"{name}={value}" for name, value in self._broker_settings().items())
        config.write_text("\n".join(lines) + "\n")
        log4j.write_text(_LOG4J.format(logs=self.log_dir))
        return config, log4j

    def _broker_settings(self) -> dict[str, str | int]:
        member = self.place or BrokerPlace(1, {1: free_ports()[0]}, "")
        several = len(member.controllers) > 1
        voters = (f"{node}@127.0.0.1:{port}" for node, port in member.controllers.items())
        own = f"CONTROLLER://127.0.0.1:{member.controllers[member.node]}"
        factor, least = replication(len(member.controllers))
        return {
            "process.roles": "broker,controller",
            "node.id": member.node,
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},{own}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data_dir / "data"),
            "auto.create.topics.enable": "false",
            "message.max.bytes": MESSAGE_MAX_BYTES,
            "replica.fetch.max.bytes": MESSAGE_MAX_BYTES,
            "log.retention.ms": -1,
            "default.replication.factor": factor,
            "min.insync.replicas": least,
            "offsets.topic.replication.factor": factor,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": least,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": factor,
            "share.coordinator.state.topic.min.isr": least,
            "share.coordinator.state.topic.num.partitions": 1,
            # A broker that was killed may only register again when its old session is over: default 9 s. Of
            # several on one machine that is busy none is to be given up before it had its turn.
            "broker.session.timeout.ms": 6000 if several else 3000,
            # All stop together: nobody would be left to hand leaders over to, and to write that down.
            "controlled.shutdown.enable": str(not several).lower(),
            "broker.heartbeat.interval.ms": 500,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
            "log.cleaner.threads": 1,
        }

    def _format(self, command: list[str], config: Path, cluster_id: str) -> None:
        """Format the storage, once: KRaft refuses a folder that nobody formatted."""
        if (self.data_dir / "data" / "meta.properties").exists():
            return
        tool = [*command, *_SHORT_LIVED, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        run = subprocess.run(
            [*tool, "-t", cluster_id, "-c", str(config)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            said = (run.stdout + run.stderr).strip()[-2000:]
            raise ChildDiedError(f"Kafka could not format {self.data_dir}:\n{said}")

    def _answers(self) -> bool:
        """Whether a client gets metadata with a broker in it; asks only once something listens there."""
        if is_free(self._port):
            return False
        config = {"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 2000}
        try:
            with AdminClient(config) as client:
                return bool(client.list_topics(timeout=2).brokers)
        except KafkaException:
            return False


def new_cluster_id() -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64, no dash first (it is an option's value)."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return text


def main() -> int:
    """Run a broker in the foreground until SIGINT or SIGTERM, or until it dies."""
    begin()
    parser = argparse.ArgumentParser(prog="python -m deploy.kafka", description="An embedded Kafka broker.")
    parser.add_argument("--data-dir", type=Path, help="folder to keep (default: a temporary one)")
    parser.add_argument("--port", type=int, default=0, help="where to listen (default: any free port)")
    arguments = parser.parse_args()
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    try:
        with EmbeddedKafka(arguments.data_dir, arguments.port) as kafka:
            print(f"Kafka {kafka.bootstrap}, process {kafka.pid}, logs in {kafka.log_dir}", flush=True)
            while kafka.running and not end.wait(0.5):
                pass
            return 0 if end.is_set() else kafka.returncode or 1
    except KeytideError as error:
        print(error.message, error.next_step, sep="\n", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
