"""`keytide up` and `keytide down`: a local cluster in the foreground or the background.

The foreground process is the supervisor: it holds all parts, starts again what dies, and takes everything
down with it. `cluster.json` in the data folder says which process that is.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from rich.console import Console

from deploy.brokers import brokers_in
from deploy.cluster import KAFKA_FOLDER, LocalCluster
from keytide.cli.data_folder import read_state, running_pid
from keytide.cli.output import print_json
from keytide.errors import CallerError, KeytideError, RetryableError
from keytide.model.topics import cluster_name
from keytide.process import program
from keytide.process.private_files import private_folder

_DETACH_LIMIT_S = 180.0
_DOWN_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `keytide up` was asked for; None for what the data folder remembers, or the usual."""

    data_dir: Path
    kafka: str | None = None
    nodes: int | None = None
    projectors: int | None = None
    cluster: str | None = None
    port: int | None = None
    node_port: int | None = None
    as_json: bool = False
    replicas: int | None = None
    brokers: int | None = None
    coordinators: int | None = None


def remembered(options: UpOptions) -> UpOptions:
    """The options with what the folder's last start says; ports of 0 stand for the folder's own.

    Raises:
        CallerError: they ask for what the folder's cluster cannot become.
    """
    try:
        cluster_name("keytide" if options.cluster is None else options.cluster)
    except ValueError as error:
        raise CallerError(f"{error}", next_step="correct --cluster") from error
    state = read_state(options.data_dir)
    ports = state.get("ports", {})
    nodes = sum(name.startswith("node-") for name in ports)
    projectors = sum(name.startswith("projector-") for name in ports)
    name = str(state.get("cluster", "keytide"))
    if options.cluster not in (None, name) and state:
        raise CallerError(
            f"the cluster in {options.data_dir} is named {name}, and keeps its name",
            next_step="leave --cluster out, or choose another --data-dir",
        )
    if options.nodes is not None and options.nodes < nodes:
        raise CallerError(
            f"the cluster in {options.data_dir} has {nodes} nodes; with {options.nodes} the slices of the "
            "others would be out of service",
            next_step="leave --nodes out, or choose another --data-dir",
        )
    brokers = brokers_in(options.data_dir / KAFKA_FOLDER)
    embedded = brokers > 0
    before = None if embedded or "kafka" not in state else str(state["kafka"])
    kafka = options.kafka or before
    if embedded and options.brokers not in (None, brokers):
        raise CallerError(
            f"the Kafka in {options.data_dir} has {_counted(brokers, 'broker')}, and its topics lie on these",
            next_step="leave --brokers out, or choose another --data-dir",
        )
    if kafka is not None and not embedded and options.brokers is not None:
        raise CallerError(
            f"the cluster is to use the Kafka at {kafka}, which has its own brokers",
            next_step="leave --brokers out, or --kafka for a new data folder",
        )
    if options.kafka is not None and embedded:
        raise CallerError(
            f"the cluster in {options.data_dir} keeps its queues in its own Kafka",
            next_step="leave --kafka out, or choose another --data-dir",
        )
    wanted = options.nodes or nodes or 2
    replicas = state.get("replicas") if options.replicas is None else options.replicas
    if replicas is not None and replicas >= wanted:
        raise CallerError(
            f"{replicas + 1} copies of each slice need as many nodes, and there are to be {wanted}",
            next_step=f"say --nodes {replicas + 1}, or --replicas {wanted - 1}",
        )
    coordinators = sum(name.startswith("coordinator") for name in ports)
    return replace(
        options,
        kafka=kafka,
        brokers=options.brokers or brokers or None,
        coordinators=options.coordinators or coordinators or None,
        nodes=wanted,
        replicas=replicas,
        projectors=options.projectors or projectors or 1,
        cluster=options.cluster or name,
        port=options.port if options.port is not None else (0 if ports else 8091),
        node_port=options.node_port if options.node_port is not None else (0 if ports else 8093),
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Hold the folder: its lock goes with this process, however it ends.

    Raises:
        CallerError: another process holds it.
    """
    with (data_dir / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise CallerError(
                f"a cluster starts, runs or stops on {data_dir}, as process {holder or 'unknown'}",
                next_step="use it, wait until it has stopped, or choose another --data-dir",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def run(options: UpOptions) -> int:
    """Run a cluster until SIGINT or SIGTERM. Exit status 0 after a clean stop; a start that is interrupted
    stops what it has started, and raises KeyboardInterrupt."""
    console = Console(stderr=options.as_json)
    _refuse_second(options.data_dir)
    program.begin()
    private_folder(options.data_dir, "--data-dir")
    with only_one(options.data_dir):
        return _run(remembered(options), console)


def _run(options: UpOptions, console: Console) -> int:
    end, serves = threading.Event(), threading.Event()

    def ended(_number: int, _frame: FrameType | None) -> None:
        end.set()
        if not serves.is_set():
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ended)
    cluster = LocalCluster(
        options.data_dir,
        kafka=options.kafka,
        nodes=options.nodes or 1,
        brokers=options.brokers or 1,
        coordinators=options.coordinators or 1,
        projectors=options.projectors or 1,
        replicas=options.replicas,
        name=options.cluster or "keytide",
        coordinator_port=options.port or 0,
        node_port=options.node_port or 0,
        say=lambda line: console.print(line, style="dim", highlight=False),
    )
    with cluster:
        serves.set()
        _greet(console, cluster)
        if options.as_json:
            print_json(read_state(options.data_dir))
            sys.stdout.flush()
        end.wait()
    console.print("stopped")
    return 0


def detach(options: UpOptions) -> int:
    """Start a cluster that goes on in the background; returns when it serves."""
    _refuse_second(options.data_dir)
    program.begin()
    private_folder(options.data_dir, "--data-dir")
    options = remembered(options)
    log = options.data_dir / "up.log"
    given = {**asdict(options), "data_dir": str(options.data_dir), "as_json": False}
    command = [sys.executable, "-m", "deploy.up", json.dumps(given)]
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_until_it_serves(process, options.data_dir, log, begin)
    except BaseException:  # Ctrl-C, too: what nobody waits for any more is not left to go on
        process.terminate()
        raise
    state = read_state(options.data_dir)
    if options.as_json:
        print_json(state)
        return 0
    Console().print(
        f"cluster {options.cluster} runs in the background, process {process.pid}\n"
        f"  web page and admin API  {', '.join(state['coordinators'])}\n"
        f"  scan endpoints          {', '.join(state['nodes'])}\n"
        f"  Kafka                   {state['kafka']}\n"
        f"stop it with: keytide down --data-dir {options.data_dir}",
        highlight=False,
    )
    return 0


def _wait_until_it_serves(process: subprocess.Popen[bytes], data_dir: Path, log: Path, begin: int) -> None:
    """Until the process of `keytide up` has left its mark.

    Raises:
        CallerError: it has ended; with what it wrote to its log from `begin` on.
        RetryableError: it takes too long.
    """
    deadline = time.monotonic() + _DETACH_LIMIT_S
    marker = data_dir / "ready"
    while not (marker.exists() and marker.read_text() == str(process.pid)):
        if process.poll() is not None:
            told = log.read_bytes()[begin:].decode(errors="replace")[-2000:]
            raise CallerError(
                f"the cluster ended at its start:\n{told}", next_step=f"see {data_dir / 'logs'}"
            )
        if time.monotonic() > deadline:
            raise RetryableError(
                f"the cluster does not serve after {_DETACH_LIMIT_S:.0f} s", next_step=f"see {log}"
            )
        time.sleep(0.1)


def down(data_dir: Path, as_json: bool = False) -> None:
    """Stop the cluster of a data folder and wait until it has ended.

    Raises:
        CallerError: none runs there.
    """
    pid = running_pid(data_dir)
    if pid is None:
        raise CallerError(f"no cluster runs on {data_dir}", next_step="say where its data is with --data-dir")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_LIMIT_S
    while running_pid(data_dir) == pid:
        if time.monotonic() > deadline:
            raise RetryableError(
                f"process {pid} has not ended after {_DOWN_LIMIT_S:.0f} s", next_step=f"kill -9 {pid}"
            )
        time.sleep(0.1)
    if as_json:
        print_json({"stopped": pid})
    else:
        Console().print("stopped")


def _refuse_second(data_dir: Path) -> None:
    pid = running_pid(data_dir)
    if pid is not None:
        raise CallerError(
            f"a cluster runs on {data_dir} already, as process {pid}",
            next_step="use it, stop it with `keytide down`, or choose another --data-dir",
        )


def _greet(console: Console, cluster: LocalCluster) -> None:
    (cluster.data_dir / "ready").write_text(str(os.getpid()))
    console.print(f"\n[bold]cluster {cluster.name} serves[/bold]", highlight=False)
    console.print(f"  web page and admin API  {', '.join(cluster.coordinator_urls)}", highlight=False)
    console.print(f"  scan endpoints          {', '.join(cluster.node_urls)}", highlight=False)
    console.print(f"  Kafka                   {cluster.bootstrap}", highlight=False)
    console.print(f"  logs                    {cluster.data_dir / 'logs'}", highlight=False)
    console.print("Ctrl-C stops it.\n", style="dim")


def _main() -> int:
    """The process behind `keytide up --detach`; what it says goes to a log."""
    given = json.loads(sys.argv[1])
    try:
        return run(UpOptions(**{**given, "data_dir": Path(given["data_dir"])}))
    except KeytideError as error:
        print(f"{error.message}\n{error.next_step}".strip(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(_main())
