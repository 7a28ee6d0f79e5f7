"""A local cluster: Kafka (embedded, or one that runs already), a coordinator, projectors and indexer nodes,
each a process.

This is the composition root: the only place that knows all parts. A part that dies is started again after a
short pause; everything ends with this process, even when it is killed. Ports and names are kept in the data
folder, so that a cluster that is started again is found where it was.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException

from deploy.archive import made_archive
from deploy.kafka import EmbeddedKafka
from deploy.process import ChildProcess, free_ports, holder, is_free
from deploy.spark_home import spark_environment
from keytide.cli.admin import CERTIFICATE_STEP, Admin
from keytide.cli.data_folder import STATE_FILE, read_state
from keytide.errors import CallerError, KeytideError
from keytide.http.tls import trusted
from keytide.kafka.clients import AdminClient
from keytide.process.private_files import private_folder
from keytide.process.worker import Worker, logged
from keytide.serving.security import reading_token
from keytide.settings.settings import load_settings
from streaming.spark.session import ARCHIVE_VARIABLE

READY_LIMIT_S = 60.0
_RESTART_PAUSE_S = 1.0
_KAFKA_LIMIT_S = 10.0

Say = Callable[[str], None]


class LocalCluster:
    """All parts of a cluster on this machine.

    Args:
        data_dir: kept across restarts.
        kafka: bootstrap servers of a running Kafka; None starts the embedded one.
        nodes: indexer nodes.
        projectors: projector processes.
        replicas: of new indexes that do not say; None for what settings do.
        name: cluster name, the prefix of its topics.
        settings: further settings as environment variables (`KEYTIDE_...`) for every part.
        coordinator_port, node_port: wanted ports (a node's is the first of a row); with 0 those of the last
            start, or free ones.
        supervise: start parts again that die.
        say: told what happens, a line at a time.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        kafka: str | None = None,
        nodes: int = 2,
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
        self._embedded = EmbeddedKafka(self.data_dir / "kafka") if kafka is None else None
        self._settings = dict(settings or {})
        self._supervise = supervise
        self._say = say
        self._supervisor = Worker("supervisor", logged, self._watch)
        self._held: set[str] = set()
        self._replicas = replicas
        self._counts = {"projectors": projectors, "nodes": nodes}
        self._wanted = (coordinator_port, node_port)
        self.ports: dict[str, int] = {}
        self.services: dict[str, ChildProcess] = {}

    @property
    def bootstrap(self) -> str:
        """Kafka's bootstrap servers."""
        return self._external or (self._embedded.bootstrap if self._embedded else "")

    @property
    def broker(self) -> EmbeddedKafka:
        """The embedded broker.

        Raises:
            CallerError: the cluster uses a Kafka of its own accord.
        """
        if self._embedded is None:
            raise CallerError("this cluster uses a Kafka that it did not start")
        return self._embedded

    @property
    def coordinator_url(self) -> str:
        return self._url("coordinator", self.settings.coordinator.host)

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
            if self._embedded is not None:
                self._say("starting Kafka")
                self._embedded.start()
            else:
                _see_kafka(self.bootstrap)
            spark = {**spark_environment(), ARCHIVE_VARIABLE: str(made_archive() or "")}
            self._choose_ports()
            self._define(spark)
            self._write_state()
            for name, child in self.services.items():
                self._say(f"starting {name}")
                child.start()
            for name in self.services:
                self.wait_ready(name)
            self.services["coordinator"].wait_until(self.nodes_live, READY_LIMIT_S, "heard all nodes")
        except BaseException:
            self.stop()
            raise
        if self._supervise:
            self._supervisor.open()
        return self

    def stop(self) -> None:
        """Stop everything in order: projectors, nodes, coordinator, Kafka."""
        self._supervisor.close()
        order = sorted(
            self.services, key=lambda name: (name.startswith("coordinator"), name.startswith("node-"))
        )
        for name in order:
            self._say(f"stopping {name}")
            self.services[name].terminate()
        if self._embedded is not None:
            self._say("stopping Kafka")
            self._embedded.stop()

    def kill(self, name: str) -> None:
        """End one part as a power failure would, and leave it so until `restart` (for tests)."""
        self._held.add(name)
        self.services[name].kill()

    def restart(self, name: str) -> None:
        """Start a part again and wait until it serves."""
        child = self.services[name]
        if child.running:
            child.terminate()
        child.start()
        self.wait_ready(name)
        self._held.discard(name)

    def arm(self, name: str, point: str) -> None:
        """From its next start on, a part ends or waits at a named place in its code
        (`keytide.process.sync_points`), and what it starts itself (fold worker, Spark driver) does; ""
        disarms it (for tests)."""
        environment = self.services[name].env or {}
        environment.pop("KEYTIDE_SYNC_POINT", None)
        if point:
            environment["KEYTIDE_SYNC_POINT"] = point

    def wait_ready(self, name: str) -> None:
        """Wait until a part serves."""
        child = self.services[name]
        if name not in self.ports:
            child.wait_until(lambda: child.said("ready"), READY_LIMIT_S, "was ready")
            return
        settings = self.settings
        host = settings.coordinator.host if name == "coordinator" else settings.indexer.host
        url, authority = self._url(name, host), settings.security.tls_authority
        child.wait_until(lambda: _answers(url, authority), READY_LIMIT_S, f"answered at {url}")

    def nodes_live(self) -> bool:
        """Whether the coordinator knows that all nodes live: before that it places no index on them."""
        wanted = {name for name in self.services if name.startswith("node-")}
        with Admin(self.coordinator_url, reading_token(self.settings.security)) as admin:
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
        names = ["coordinator", *(f"node-{number}" for number in range(1, self._counts["nodes"] + 1))]
        wanted = {"coordinator": self._wanted[0]}
        if self._wanted[1]:
            wanted |= {name: self._wanted[1] + at for at, name in enumerate(names[1:])}
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

        def service(name: str, module: str, **extra: str) -> None:
            environment = {
                **os.environ,
                "KEYTIDE_CLUSTER": self.name,
                "KEYTIDE_KAFKA__BOOTSTRAP": self.bootstrap,
                "KEYTIDE_DATA_DIR": str(self.data_dir / name),
                **spark,
                "PYTHONUNBUFFERED": "1",
                **self._settings,
                **extra,
            }
            self.services[name] = ChildProcess(
                name, [sys.executable, "-m", module], log=logs / f"{name}.log", env=environment
            )

        port = str(self.ports["coordinator"])
        copies = (
            {} if self._replicas is None else {"KEYTIDE_COORDINATOR__DEFAULT_REPLICAS": f"{self._replicas}"}
        )
        service("coordinator", "coordinator", KEYTIDE_COORDINATOR__PORT=port, **copies)
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
            for name, child in self.services.items():
                if not child.running and name not in self._held and not stopping.is_set():
                    self._say(
                        f"{name} ended with status {child.returncode}; starting it again (log: {child.log})"
                    )
                    child.start()
            if self._embedded is not None and not self._embedded.running and "kafka" not in self._held:
                self._say("Kafka ended; starting it again")
                try:
                    self._embedded.start()
                except KeytideError as error:  # its disk is full, say: it is tried again
                    self._say(error.message)

    def _write_state(self) -> None:
        """What `keytide down` and clients on this machine look up."""
        state = {
            "pid": os.getpid(),
            "started_at": time.time(),
            "cluster": self.name,
            "kafka": self.bootstrap,
            "ports": self.ports,
            **({} if self._replicas is None else {"replicas": self._replicas}),
            "coordinator": self.coordinator_url,
            "tls_authority": self._authority(),
            "nodes": self.node_urls,
            "metrics": [
                *(f"{url}/metrics" for url in (self.coordinator_url, *self.node_urls)),
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


def _see_kafka(bootstrap: str) -> None:
    """Find a Kafka that others run, before parts that need it are started.

    Raises:
        CallerError: it does not answer.
    """
    client = {**load_settings().kafka.client(), "bootstrap.servers": bootstrap, "log_level": 0}
    try:
        with AdminClient(client) as admin:
            admin.list_topics(timeout=_KAFKA_LIMIT_S)
    except KafkaException as error:
        raise CallerError(
            f"no Kafka answers at {bootstrap} within {_KAFKA_LIMIT_S:.0f} s: {error.args[0]}",
            problem_type="kafka-unavailable",
            next_step="start it, correct the address or what [kafka] says, or leave --kafka out",
        ) from error


def _answers(url: str, authority: str) -> bool:
    """Whether a part says that it is ready.

    Raises:
        CallerError: this machine does not trust its certificate, and neither would the other parts.
    """
    try:
        context = trusted(authority) if url.startswith("https:") else None
        with urllib.request.urlopen(f"{url}/readyz", timeout=2, context=context) as response:
            return bool(response.status == 200)
    except OSError as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            raise CallerError(
                f"the certificate shown at {url} is not trusted: {error}", next_step=CERTIFICATE_STEP
            ) from error
        return False
