"""`keytide up` and `keytide down`: a local cluster in the foreground or the background.

The foreground process is the supervisor: it holds all parts, starts again what dies, and takes everything
down with it. `cluster.json` in the data folder says which process that is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy.cluster import STATE_FILE, LocalCluster
from keytide.errors import CallerError, RetryableError

_DETACH_LIMIT_S = 180.0
_DOWN_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `keytide up` was asked for."""

    data_dir: Path
    kafka: str | None
    nodes: int
    projectors: int
    cluster: str
    port: int
    node_port: int


def run(options: UpOptions) -> int:
    """Run a cluster until SIGINT or SIGTERM. Exit status 0 after a clean stop."""
    console = Console()
    _refuse_second(options.data_dir)
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    cluster = LocalCluster(
        options.data_dir,
        kafka=options.kafka,
        nodes=options.nodes,
        projectors=options.projectors,
        name=options.cluster,
        coordinator_port=options.port,
        node_port=options.node_port,
        say=lambda line: console.print(line, style="dim", highlight=False),
    )
    with cluster:
        _greet(console, cluster)
        end.wait()
    console.print("stopped")
    return 0


def detach(options: UpOptions) -> int:
    """Start a cluster that goes on in the background; returns when it serves."""
    _refuse_second(options.data_dir)
    options.data_dir.mkdir(parents=True, exist_ok=True)
    log = options.data_dir / "up.log"
    command = [sys.executable, "-m", "deploy.up", json.dumps({**_as_dict(options)})]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + _DETACH_LIMIT_S
    marker = options.data_dir / "ready"
    while not (marker.exists() and marker.read_text() == str(process.pid)):
        if process.poll() is not None:
            raise CallerError(f"the cluster ended at its start; the end of {log}:\n{log.read_text()[-2000:]}")
        if time.monotonic() > deadline:
            raise RetryableError(
                f"the cluster does not serve after {_DETACH_LIMIT_S:.0f} s", next_step=f"see {log}"
            )
        time.sleep(0.1)
    state = read_state(options.data_dir)
    Console().print(
        f"cluster {options.cluster} runs in the background, process {process.pid}\n"
        f"  web page and admin API  {state['coordinator']}\n"
        f"  scan endpoints          {', '.join(state['nodes'])}\n"
        f"  Kafka                   {state['kafka']}\n"
        f"stop it with: keytide down --data-dir {options.data_dir}",
        highlight=False,
    )
    return 0


def down(data_dir: Path) -> None:
    """Stop the cluster of a data folder and wait until it has ended.

    Raises:
        CallerError: none runs there.
    """
    pid = running_pid(data_dir)
    if pid is None:
        raise CallerError(f"no cluster runs on {data_dir}", next_step="say where its data is with --data-dir")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_LIMIT_S
    while _alive(pid):
        if time.monotonic() > deadline:
            raise RetryableError(
                f"process {pid} has not ended after {_DOWN_LIMIT_S:.0f} s", next_step=f"kill -9 {pid}"
            )
        time.sleep(0.1)
    Console().print("stopped")


def read_state(data_dir: Path) -> dict[str, Any]:
    """What the last start wrote; empty when there was none."""
    try:
        state: dict[str, Any] = json.loads((data_dir / STATE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return state


def running_pid(data_dir: Path) -> int | None:
    """The supervisor's process id, if it is alive."""
    pid = read_state(data_dir).get("pid")
    return pid if isinstance(pid, int) and _alive(pid) else None


def _refuse_second(data_dir: Path) -> None:
    pid = running_pid(data_dir)
    if pid is not None:
        raise CallerError(
            f"a cluster runs on {data_dir} already, as process {pid}",
            next_step="use it, stop it with `keytide down`, or choose another --data-dir",
        )


def _alive(pid: int) -> bool:
    """Whether a process lives and is one of ours (process ids are used again)."""
    try:
        os.kill(pid, 0)
        command = Path(f"/proc/{pid}/cmdline")
        if not command.exists():
            return True
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" and b"python" in command.read_bytes()
    except (OSError, IndexError):
        return False


def _greet(console: Console, cluster: LocalCluster) -> None:
    (cluster.data_dir / "ready").write_text(str(os.getpid()))
    console.print(f"\n[bold]cluster {cluster.name} serves[/bold]", highlight=False)
    console.print(f"  web page and admin API  {cluster.coordinator_url}", highlight=False)
    console.print(f"  scan endpoints          {', '.join(cluster.node_urls)}", highlight=False)
    console.print(f"  Kafka                   {cluster.bootstrap}", highlight=False)
    console.print(f"  logs                    {cluster.data_dir / 'logs'}", highlight=False)
    console.print("Ctrl-C stops it.\n", style="dim")


def _as_dict(options: UpOptions) -> dict[str, object]:
    return {
        "data_dir": str(options.data_dir),
        "kafka": options.kafka,
        "nodes": options.nodes,
        "projectors": options.projectors,
        "cluster": options.cluster,
        "port": options.port,
        "node_port": options.node_port,
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.exit(run(UpOptions(**{**given, "data_dir": Path(given["data_dir"])})))
