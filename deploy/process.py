"""Child processes that are watched while they start and never outlive their parent.

Theory of operation: on Linux each child asks the kernel for SIGKILL at its parent's end (PR_SET_PDEATHSIG),
which works even when the parent is killed with -9. The kernel ties that to the parent *thread*, so every
child is forked by one daemon thread that lives as long as the process; else a child started from a worker
thread would die with that thread. Elsewhere a tiny shell holds the read end of a pipe, and kills the child's
group when the pipe breaks.

Each child leads its own process group: Ctrl-C at the terminal reaches the parent only, which stops its
children in order, and what the child itself started can be swept up after it. Output goes to a log file,
whose last lines are part of the error when a child dies early.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from keytide.errors import CallerError, ConfigurationError, KeytideError, RetryableError
from keytide.process.parent_death import die_with_parent
from keytide.process.worker import QueueWorker, logged

_POLL_S = 0.05
_GUARDIAN = 'read -r _; kill -9 -- "-$0"'  # `read` returns when the pipe breaks: the parent is gone
_PORTS = "20000-32699"
_given: set[int] = set()
"""Ports that this process was given, or that are kept back: who is to listen there may not do so yet."""


class ChildDiedError(KeytideError):
    """A child ended while somebody waited for it to get ready; the message has the end of its log."""

    problem_type = "process-died"


class NotReadyError(RetryableError):
    """A child is alive but what was waited for did not happen in time."""

    problem_type = "process-not-ready"


class ChildProcess:
    """One child process, started at most once at a time.

    Args:
        name: what people call it, used in messages.
        argv: program and arguments.
        log: file that takes its output; appended to, so that a restart keeps the story.
        env: its whole environment; this process's when None.
        cwd: its working folder; this process's when None.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.argv = [str(part) for part in argv]
        self.log = log
        self.env = None if env is None else dict(env)
        self.cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._swept = True
        """Nothing is left of its group: the system may give its number to another one."""

    def start(self) -> Self:
        """Start it.

        Raises:
            CallerError: if it runs already, or its program cannot be run.
        """
        if self.running:
            raise CallerError(f"{self.name} runs already, as process {self.pid}.")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._log_start = out.tell()
            try:
                self._process = _spawner().run(lambda: self._fork(out.fileno()))
            except OSError as error:
                raise CallerError(f"{self.name} cannot be started: {error}") from error
        self._swept = False
        if not sys.platform.startswith("linux"):
            self._guardian = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDIAN, str(self._process.pid)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        return self

    def _fork(self, out: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=self.env,
            cwd=self.cwd,
            process_group=0,
            preexec_fn=die_with_parent(),
        )

    @property
    def pid(self) -> int:
        """Its process id, which is also its group's; of the last run when it has ended.

        Raises:
            CallerError: if it was never started.
        """
        if self._process is None:
            raise CallerError(f"{self.name} was never started.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Its exit status (negative: the signal that ended it); None while it runs, or was never started."""
        return None if self._process is None else self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end, `timeout` seconds at most; its exit status, or None when it still runs."""
        if self._process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def ask_to_end(self) -> None:
        """Ask it to end (SIGTERM), and do not wait: `terminate` does."""
        if self.running and self._process is not None:
            self._process.terminate()

    def terminate(self, timeout: float = 10.0) -> int | None:
        """Ask it to end (SIGTERM), after `timeout` seconds kill it; sweep up its group; its exit status."""
        if self._process is None:
            return None
        if self.running:
            self._process.terminate()
            self.wait(timeout)
        return self.kill()

    def kill(self) -> int | None:
        """End it and what it started at once (SIGKILL to its group); its exit status. Harmless afterwards."""
        if self._process is None:
            return None
        if not self._swept:
            with suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
                os.killpg(self._process.pid, signal.SIGKILL)
            self._swept = True
        if self._guardian is not None:
            self._guardian.kill()
            self._guardian.communicate()
            self._guardian = None
        return self._process.wait()

    def tail(self, lines: int = 20) -> str:
        """The last lines of what it wrote in its present (or last) run."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, end - 200 * lines))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def said(self, words: str) -> bool:
        """Whether it wrote these words in its present (or last) run, however much it has written since."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                return words.encode() in file.read()
        except OSError:
            return False

    def wait_until(self, condition: Callable[[], bool], limit: float, what: str) -> None:
        """Wait until `condition` holds.

        Args:
            condition: polled; must return quickly.
            limit: seconds.
            what: words for the message, such as "answers on port 9092".

        Raises:
            ChildDiedError: it ended first.
            NotReadyError: `limit` passed first. It is left running: whoever started it decides.
        """
        deadline = time.monotonic() + limit
        while not condition():
            if (status := self.returncode) is not None:
                raise ChildDiedError(
                    f"{self.name} ended with status {status} before it {what}. "
                    f"The end of {self.log}:\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise NotReadyError(
                    f"{self.name} runs, but {limit:.0f} s were not enough until it {what}. "
                    f"The end of {self.log}:\n{self.tail()}"
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.terminate()


def free_ports(count: int = 1) -> list[int]:
    """Loopback ports that nobody listens on, all different, and others than before while there are any.

    From below the range that the kernel gives to outgoing connections (32768 and up on Linux), so that a
    server which is restarted finds its port still free. `KEYTIDE_PORTS=20000-26349` in the environment names
    another range, of which both are part. It is for running several clusters side by side, each with a range
    of its own: a port is bound only some time after it was found free.

    Raises:
        ConfigurationError: `KEYTIDE_PORTS` is no range of ports, or too few of them are free.
    """
    first, last = port_range()
    ports = random.sample(range(first, last + 1), last + 1 - first)
    ports.sort(key=_given.__contains__)
    found = list(islice(filter(is_free, ports), count))
    if len(found) < count:
        raise ConfigurationError(
            f"of the ports from {first} to {last} only {len(found)} are free, {count} are needed",
            next_step="stop what listens there, or name a wider range in KEYTIDE_PORTS",
        )
    _given.update(found)
    return found


def keep_back(ports: Iterable[int]) -> None:
    """Have `free_ports` give these only when there are no others: somebody is to listen there again."""
    _given.update(ports)


def port_range() -> tuple[int, int]:
    """The first and the last port that `free_ports` gives.

    Raises:
        ConfigurationError: `KEYTIDE_PORTS` is no range of ports.
    """
    text = os.environ.get("KEYTIDE_PORTS") or _PORTS
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65_536):
        raise ConfigurationError(
            f"KEYTIDE_PORTS={text} is no range of ports", next_step=f"give one like {_PORTS}"
        )
    return int(first), int(last)


def is_free(port: int) -> bool:
    """Whether a server could listen on the loopback `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Who listens on a loopback port, for a message."""
    for one in psutil.net_connections("tcp"):
        if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN and one.pid:
            try:
                return f"process {one.pid} ({psutil.Process(one.pid).name()})"
            except psutil.Error:
                break
    return "a process of another user"


_Child = Future[subprocess.Popen[bytes]]


class _Spawner(QueueWorker[tuple[Callable[[], subprocess.Popen[bytes]], _Child]]):
    """The one thread that forks: the kernel's parent-death signal is tied to the thread that did."""

    def __init__(self) -> None:
        super().__init__("spawner", logged)
        self.pid = os.getpid()
        self.open()

    def run(self, fork: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        child: _Child = Future()
        self.put((fork, child))
        return child.result()

    def _carry_out(self, job: tuple[Callable[[], subprocess.Popen[bytes]], _Child]) -> None:
        fork, child = job
        try:
            child.set_result(fork())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked, which raises it
            child.set_exception(error)


_spawner_made: _Spawner | None = None
_spawner_lock = threading.Lock()


def _spawner() -> _Spawner:
    global _spawner_made
    with _spawner_lock:
        if _spawner_made is None or _spawner_made.pid != os.getpid():  # a fork does not inherit threads
            _spawner_made = _Spawner()
        return _spawner_made
