"""A local cluster: Kafka (embedded, or one that runs already), coordinators, projectors and indexer nodes,
each a process.

This is the composition root: the only place that knows all parts. A part that dies is started again after a
short pause; everything ends with this process, even when it is killed. Ports and names are kept in the data
folder, so that a cluster that is started again is found where it was. Coordinators share one folder, so that
reports of jobs are found whichever of them leads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from deploy.archive import made_archive
from deploy.brokers import KafkaBrokers
from deploy.kafka import EmbeddedKafka, replication
from deploy.probes import answers, see_kafka
from deploy.process import ChildProcess, free_ports, holder, is_free, keep_back
from deploy.spark_home import spark_environment
from keytide.cli.admin import Admin
from keytide.cli.data_folder import STATE_FILE, read_state
from keytide.errors import CallerError, KeytideError
from keytide.process.private_files import private_folder
from keytide.process.worker import Worker, logged
from keytide.serving.security import reading_token
from keytide.settings.settings import load_settings
from streaming.spark.session import ARCHIVE_VARIABLE

READY_LIMIT_S = 180.0
_RESTART_PAUSE_S = 1.0

KAFKA_FOLDER: Final = "kafka"

Say = Callable[[str], None]


class LocalCluster:
    """All parts of a cluster on this machine.

    Args:
        data_dir: kept across restarts.
        kafka: bootstrap servers of a running Kafka; None starts the embedded one.
        nodes: indexer nodes.
        brokers: of the embedded Kafka.
        coordinators: coordinator processes; one leads.
        projectors: projector processes.
        replicas: of new indexes that do not say; None for what settings do.
        name: cluster name, the prefix of its topics.
        settings: further settings as environment variables (`KEYTIDE_...`) for every part.
        coordinator_port, node_port: wanted ports (of the first coordinator; a node's is the first of a row);
            with 0 those of the last start, or free ones.
        supervise: start parts again that die.
        say: told what happens, a line at a time.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        kafka: str | None = None,
        nodes: int = 2,
        brokers: int = 1,
        coordinators: int = 1,
        projectors: int = 1,
        replicas: int | None = None,
        name: str = "keytide",
        settings: Mapping[str, str] | None = None,
        coordinator_port: int = 0,
        node_port: int = 0,
        supervise: bool = True,
        say: Say = lambda _: None,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.name = name
        self.settings = load_settings()
        self._external = kafka
        self._kafka = KafkaBrokers(self.data_dir / KAFKA_FOLDER, brokers) if kafka is None else None
        self._settings = dict(settings or {})
        self._supervise = supervise
        self._say = say
        self._supervisor = Worker("supervisor", logged, self._watch)
        self._held: set[str] = set()
        self._replicas = replicas
        self._counts = {"projectors": projectors, "nodes": nodes, "coordinators": coordinators}
        self._wanted = (coordinator_port, node_port)
        self.ports: dict[str, int] = {}
        self.services: dict[str, ChildProcess] = {}

    @property
    def bootstrap(self) -> str:
        """Kafka's bootstrap servers."""
        return self._external or (self._kafka.bootstrap if self._kafka else "")

    @property
    def brokers(self) -> list[EmbeddedKafka]:
        """The embedded brokers; none of a Kafka that the cluster did not start."""
        return self._kafka.all if self._kafka else []

    @property
    def broker(self) -> EmbeddedKafka:
        """The first embedded broker.

        Raises:
            CallerError: the cluster uses a Kafka of its own accord.
        """
        if not self.brokers:
            raise CallerError("this cluster uses a Kafka that it did not start")
        return self.brokers[0]

    @property
    def coordinators(self) -> list[str]:
        """Names of the coordinators, the first one first."""
        more = range(2, self._counts["coordinators"] + 1)
        return ["coordinator", *(f"coordinator-{number}" for number in more)]

    @property
    def coordinator_urls(self) -> list[str]:
        """Where all coordinators answer, whichever leads."""
        return [self._url(name, self.settings.coordinator.host) for name in self.coordinators]

    @property
    def coordinator_url(self) -> str:
        """Where the first coordinator answers."""
        return self.coordinator_urls[0]

    @property
    def node_urls(self) -> list[str]:
        return [
            self._url(name, self.settings.indexer.host)
            for name in sorted(self.ports)
            if name.startswith("node-")
        ]

    def _authority(self) -> str:
        """Whom clients on this machine are to trust: an absolute path, "" for the machine's own."""
        authority = self.settings.security.tls_authority
        return str(Path(authority).resolve()) if authority else ""

    def _url(self, part: str, host: str) -> str:
        """Where a part serves, as it says so itself: its certificate has that name."""
        scheme = "https" if self.settings.security.tls_certificate else "http"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.ports[part]}"

    def start(self) -> Self:
        """Start everything, in order, and wait until it serves.

        Raises:
            KeytideError: a part cannot be started; the message has the end of its log.
        """
        private_folder(self.data_dir, "--data-dir")
        try:
            if self._kafka is not None:
                keep_back(read_state(self.data_dir).get("ports", {}).values())
                self._say("starting Kafka")
                self._kafka.start()
            else:
                see_kafka(self.bootstrap)
            spark = {**spark_environment(), ARCHIVE_VARIABLE: str(made_archive() or "")}
            self._choose_ports()
            self._define(spark)
            self._write_state()
            first = [name for name in self.services if name not in self.coordinators[1:]]
            for names in (first, self.coordinators[1:]):  # who stand by do not compete with the first one
                for name in names:
                    self._say(f"starting {name}")
                    self.services[name].start()
                for name in names:
                    self.wait_ready(name)
            self.services["coordinator"].wait_until(self.nodes_live, READY_LIMIT_S, "heard all nodes")
        except BaseException:
            self.stop()
            raise
        if self._supervise:
            self._supervisor.open()
        return self

    def stop(self) -> None:
        """Stop everything in order: projectors, nodes, coordinators (at once, or one after the other would
        come to lead), Kafka."""
        self._supervisor.close()
        order = sorted(
            self.services, key=lambda name: (name.startswith("coordinator"), name.startswith("node-"))
        )
        for name in order:
            if name == "coordinator":
                for one in self.coordinators:
                    if one in self.services:
                        self.services[one].ask_to_end()
            self._say(f"stopping {name}")
            self.services[name].terminate()
        if self._kafka is not None:
            self._say("stopping Kafka")
            self._kafka.stop()

    def _broker(self, name: str) -> EmbeddedKafka | None:
        return next((broker for broker in self.brokers if broker.name == name), None)

    def kill(self, name: str) -> None:
        """End one part, a broker, too, as a power failure would, and leave it so until `restart` (for
        tests)."""
        self._held.add(name)
        (self._broker(name) or self.services[name]).kill()

    def restart(self, name: str) -> None:
        """Start a part again and wait until it serves."""
        if (broker := self._broker(name)) is not None:
            broker.restart()
            self._held.discard(name)
            return
        child = self.services[name]
        if child.running:
            child.terminate()
        child.start()
        self.wait_ready(name)
        self._held.discard(name)

    def wait_ready(self, name: str) -> None:
        """Wait until a part serves. A coordinator does when it answers and any of them leads."""
        child = self.services[name]
        if name not in self.ports:
            child.wait_until(lambda: child.said("ready"), READY_LIMIT_S, "was ready")
            return
        settings = self.settings
        led = name in self.coordinators
        url = self._url(name, settings.coordinator.host if led else settings.indexer.host)
        authority = settings.security.tls_authority

        def serves() -> bool:
            if not led:
                return answers(f"{url}/readyz", authority)
            leads = any(answers(f"{one}/readyz", authority) for one in self.coordinator_urls)
            return leads and answers(f"{url}/healthz", authority)

        child.wait_until(serves, READY_LIMIT_S, f"answered at {url}")

    def nodes_live(self) -> bool:
        """Whether the leader knows that all nodes live: before that it places no index on them."""
        wanted = {name for name in self.services if name.startswith("node-")}
        with Admin(self.coordinator_urls, reading_token(self.settings.security)) as admin:
            try:
                nodes = admin.call("GET", "/v1/nodes")
            except KeytideError as error:
                return error.status in (401, 403)  # not for us to see
        return wanted <= {node["id"] for node in nodes if node["live"]}

    def _choose_ports(self) -> None:
        """The wanted ports, else those of the last start, else free ones.

        Raises:
            CallerError: a wanted port, or one of the last start, is taken: clients ask there.
        """
        last: dict[str, int] = read_state(self.data_dir).get("ports", {})
        names = [f"node-{number}" for number in range(1, self._counts["nodes"] + 1)]
        wanted = {"coordinator": self._wanted[0]}
        if self._wanted[1]:
            wanted |= {name: self._wanted[1] + at for at, name in enumerate(names)}
        names = [*self.coordinators, *names]
        names += [f"projector-{number}-metrics" for number in range(1, self._counts["projectors"] + 1)]
        free = (port for port in free_ports(3 * len(names)) if port not in last.values())
        for name in names:
            port = wanted.get(name, 0) or last.get(name, 0)
            if port and (not is_free(port) or port in self.ports.values()):
                raise CallerError(
                    f"port {port}, which {name} is to listen on, is taken by {holder(port)}",
                    problem_type="port-taken",
                    next_step="stop that, or choose other ports with --port and --node-port",
                )
            self.ports[name] = port or next(free)

    def _define(self, spark: Mapping[str, str]) -> None:
        logs = self.data_dir / "logs"
        factor, _ = replication(len(self.brokers))
        kafka = {"KEYTIDE_TOPICS__REPLICATION_FACTOR": str(factor)} if factor > 1 else {}

        def service(name: str, module: str, **extra: str) -> None:
            environment = {
                **os.environ,
                "KEYTIDE_CLUSTER": self.name,
                "KEYTIDE_KAFKA__BOOTSTRAP": self.bootstrap,
                "KEYTIDE_DATA_DIR": str(self.data_dir / name),
                **kafka,
                **spark,
                "PYTHONUNBUFFERED": "1",
                **self._settings,
                **extra,
            }
            self.services[name] = ChildProcess(
                name, [sys.executable, "-m", module], log=logs / f"{name}.log", env=environment
            )

        copies = (
            {} if self._replicas is None else {"KEYTIDE_COORDINATOR__DEFAULT_REPLICAS": f"{self._replicas}"}
        )
        shared = str(self.data_dir / "coordinator")
        for name in self.coordinators:
            port = str(self.ports[name])
            own = {"KEYTIDE_COORDINATOR__PORT": port, "KEYTIDE_DATA_DIR": shared}
            service(name, "coordinator", **own, **copies)
        for number in range(1, self._counts["nodes"] + 1):
            name = f"node-{number}"
            port = str(self.ports[name])
            service(name, "indexer", KEYTIDE_INDEXER__PORT=port, KEYTIDE_INDEXER__NODE_ID=name)
        for number in range(1, self._counts["projectors"] + 1):
            name = f"projector-{number}"
            port = str(self.ports[f"{name}-metrics"])
            service(name, "projector", KEYTIDE_PROJECTOR__METRICS_PORT=port)

    def _watch(self) -> None:
        """Start parts again that died."""
        stopping = self._supervisor.stopping
        while not stopping.wait(_RESTART_PAUSE_S):
            for name, child in self._parts():
                if not child.running and name not in self._held and not stopping.is_set():
                    self._say(
                        f"{name} ended with status {child.returncode}; starting it again (log: {child.log})"
                    )
                    try:
                        child.launch() if isinstance(child, EmbeddedKafka) else child.start()
                    except KeytideError as error:  # its disk is full, say: it is tried again
                        self._say(error.message)

    def _parts(self) -> Iterator[tuple[str, ChildProcess]]:
        yield from ((broker.name, broker) for broker in self.brokers)
        yield from self.services.items()

    def _write_state(self) -> None:
        """What `keytide down` and clients on this machine look up."""
        state = {
            "pid": os.getpid(),
            "started_at": time.time(),
            "cluster": self.name,
            "kafka": self.bootstrap,
            "brokers": len(self.brokers),
            "ports": self.ports,
            **({} if self._replicas is None else {"replicas": self._replicas}),
            "coordinator": self.coordinator_url,
            "coordinators": self.coordinator_urls,
            "tls_authority": self._authority(),
            "nodes": self.node_urls,
            "metrics": [
                *(f"{url}/metrics" for url in (*self.coordinator_urls, *self.node_urls)),
                *(
                    f"http://{self.settings.projector.metrics_host}:{port}/metrics"  # never with TLS
                    for name, port in sorted(self.ports.items())
                    if name.endswith("-metrics")
                ),
            ],
        }
        file = self.data_dir / STATE_FILE
        new = file.with_suffix(".new")
        new.write_text(json.dumps(state, indent=2))
        new.replace(file)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
