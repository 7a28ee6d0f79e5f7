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
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from rich.console import Console

from deploy.cluster import STATE_FILE, LocalCluster
from keytide.cli.output import print_json
from keytide.errors import CallerError, KeytideError, RetryableError

_DETACH_LIMIT_S = 180.0
_DOWN_LIMIT_S = 60.0
_CLOCK_SLACK_S = 2.0
"""How much later than its own note a process may seem to have begun: both times are rounded."""


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
    as_json: bool = False


def run(options: UpOptions) -> int:
    """Run a cluster until SIGINT or SIGTERM. Exit status 0 after a clean stop; a start that is interrupted
    stops what it has started, and raises KeyboardInterrupt."""
    console = Console(stderr=options.as_json)
    _refuse_second(options.data_dir)
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
        nodes=options.nodes,
        projectors=options.projectors,
        name=options.cluster,
        coordinator_port=options.port,
        node_port=options.node_port,
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
    options.data_dir.mkdir(parents=True, exist_ok=True)
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
        f"  web page and admin API  {state['coordinator']}\n"
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


def read_state(data_dir: Path) -> dict[str, Any]:
    """What the last start wrote; empty when there was none."""
    try:
        state = json.loads((data_dir / STATE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def running_pid(data_dir: Path) -> int | None:
    """The supervisor's process id, if it is alive."""
    state = read_state(data_dir)
    pid, noted_at = state.get("pid"), state.get("started_at")
    if not isinstance(pid, int) or not isinstance(noted_at, int | float):
        return None
    return pid if _is_the_one(pid, noted_at) else None


def _refuse_second(data_dir: Path) -> None:
    pid = running_pid(data_dir)
    if pid is not None:
        raise CallerError(
            f"a cluster runs on {data_dir} already, as process {pid}",
            next_step="use it, stop it with `keytide down`, or choose another --data-dir",
        )


def _is_the_one(pid: int, noted_at: float) -> bool:
    """Whether the process that left a note at that time is alive. Ids are used again, so another process may
    have its id now, but that one began later."""
    try:
        process = psutil.Process(pid)
        began = float(process.create_time())
        return began <= noted_at + _CLOCK_SLACK_S and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _greet(console: Console, cluster: LocalCluster) -> None:
    (cluster.data_dir / "ready").write_text(str(os.getpid()))
    console.print(f"\n[bold]cluster {cluster.name} serves[/bold]", highlight=False)
    console.print(f"  web page and admin API  {cluster.coordinator_url}", highlight=False)
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
