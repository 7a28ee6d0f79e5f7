"""The processes of a local cluster, found below the one that `keytide up` (or a test) runs in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_MODULES = ("coordinator", "indexer", "projector")


class Processes:
    """Finds them anew each time: whatever dies is started again under another id.

    Args:
        supervisor: process id of the one that holds all parts, and maybe those of other clusters.
        data_dir: the cluster's.
    """

    def __init__(self, supervisor: int, data_dir: Path) -> None:
        self._supervisor = supervisor
        self._data_dir = data_dir.resolve()

    def services(self) -> dict[str, psutil.Process]:
        """The parts that run, by the names that the cluster gives them: `coordinator`, `node-1`, `kafka`."""
        found: dict[str, psutil.Process] = {}
        for process in _children(self._supervisor, recursive=False):
            with suppress(psutil.Error):
                command = process.cmdline()
                if "kafka.Kafka" in command:
                    if self._has(Path(command[-1])):  # its settings
                        found["kafka"] = process
                elif (
                    command[1:2] == ["-m"]
                    and command[2] in _MODULES
                    and "KEYTIDE_CHAOS" not in process.environ()
                ):
                    folder = Path(process.environ()["KEYTIDE_DATA_DIR"])
                    if self._has(folder):
                        found[folder.name] = process
        return dict(sorted(found.items()))

    def _has(self, file: Path) -> bool:
        """Whether a file or folder is of this cluster."""
        return file.resolve().is_relative_to(self._data_dir)

    def below(self, words: str) -> list[psutil.Process]:
        """Processes below the parts whose command line has `words` in it."""
        found = []
        services = self.services().values()
        for process in (below for one in services for below in _children(one.pid)):
            with suppress(psutil.Error):
                if words in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def fold_workers(self) -> list[psutil.Process]:
        return self.below("indexer.store.fold.process")

    def spark(self) -> list[psutil.Process]:
        """Spark drivers, their JVMs and Python workers."""
        drivers = self.below("streaming.backfill")
        return list(dict.fromkeys(p for driver in drivers for p in (driver, *_children(driver.pid))))

    @contextmanager
    def second_projector(self) -> Iterator[subprocess.Popen[bytes]]:
        """Another projector of the same group beside the first; it is killed when the block ends.

        Raises:
            LookupError: none runs just now.
        """
        running = [process for name, process in self.services().items() if name.startswith("projector")]
        if not running:
            raise LookupError("no projector runs")
        first = running[0]
        logs = self._data_dir / "logs"
        data = logs / "projector-of-chaos"
        environment = {
            **first.environ(),
            "KEYTIDE_CHAOS": "1",
            "KEYTIDE_DATA_DIR": str(data),
            "KEYTIDE_PROJECTOR__METRICS_PORT": "0",
        }
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "projector-of-chaos.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "projector"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _children(pid: int, recursive: bool = True) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []
    return found


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """A signal to each that is still there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and what it has started."""
    return [process, *_children(process.pid)]


@contextmanager
def stopped(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """SIGSTOP while the block runs."""
    held = list(processes)
    send(held, signal.SIGSTOP)
    try:
        yield
    finally:
        send(held, signal.SIGCONT)


def slow(find: Callable[[], Iterable[psutil.Process]], share: float, over: threading.Event) -> None:
    """Let processes run for `share` of the time only, in turns of 0.1 s, until `over` is set."""
    while not over.is_set():
        with stopped(find()):
            over.wait(0.1 * (1 - share))
        over.wait(0.1 * share)
