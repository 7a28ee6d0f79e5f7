"""A Spark standalone cluster for tests: a master and workers from the pyspark package, as processes that end
with the test."""

from __future__ import annotations

import functools
import os
import re
import signal
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from deploy.java import find_java
from deploy.process import ChildProcess, free_ports

_CLASS = "org.apache.spark.deploy.{name}.{title}"
START_LIMIT_S = 60.0


class StandaloneCluster:
    """A master and its workers on this machine.

    Args:
        folder: takes logs and the work of executors.
        workers: how many; each has one core and 1 GiB.

    Attributes:
        master: the address for `build.spark_master`.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        home = Path(pyspark.__file__).parent
        self._program = home / "bin" / "spark-class"
        self._folder = folder
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
        self._env = {
            **find_java().environment(plain),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }
        port, *pages = free_ports(workers + 2)
        self.master = f"spark://127.0.0.1:{port}"
        self._master = self._child("master", ["--port", str(port), "--webui-port", str(pages[0])])
        self.workers = [
            self._child(
                f"worker-{number}",
                ["--cores", "1", "--memory", "1g", "--webui-port", str(page), self.master],
                kind="worker",
            )
            for number, page in enumerate(pages[1:], 1)
        ]

    def _child(self, name: str, arguments: list[str], kind: str = "master") -> ChildProcess:
        program = _CLASS.format(name=kind, title=kind.capitalize())
        return ChildProcess(
            name,
            [self._program, program, "--host", "127.0.0.1", *arguments],
            log=self._folder / f"{name}.log",
            env=self._env,
            cwd=self._folder,
        )

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._master.start()
        self._master.wait_until(
            lambda: self._master.said("I have been elected leader"), START_LIMIT_S, "leads"
        )
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            told = functools.partial(worker.said, "Successfully registered with master")
            worker.wait_until(told, START_LIMIT_S, "is registered")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in [*self.workers, self._master]:
            if child.running:
                for process in psutil.Process(child.pid).children(recursive=True):
                    _kill(process)
                child.kill()

    def executors(self, worker: ChildProcess) -> list[psutil.Process]:
        """The executors of a worker (their Python workers are children of theirs)."""
        if not worker.running:
            return []
        below = psutil.Process(worker.pid).children(recursive=True)
        return [process for process in below if re.search("CoarseGrainedExecutorBackend", _line(process))]

    def lose(self, worker: ChildProcess) -> None:
        """The machine of a worker is gone: the worker, its executors and all that they started."""
        below = psutil.Process(worker.pid).children(recursive=True)
        os.kill(worker.pid, signal.SIGKILL)
        for process in below:
            _kill(process)
        worker.wait(10)


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
