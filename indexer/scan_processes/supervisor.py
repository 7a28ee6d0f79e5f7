"""The node's side of its scan processes: starts them, listens to them, ends those that stand still.

Theory of operation
===================
The node keeps the address (`keytide.serving.listener.reserve`), and lets nobody in there; each scan process
listens on it, too, and the system gives connections out to them. The node itself answers on a local socket,
to its scan processes alone.

Every process is asked whether it lives, several times a second. One that says nothing for two seconds is told
of (`/readyz`, metrics), and ended after ten: a process that stands still keeps pages of LMDB from being used
again, and connections from being answered. One that ends, by itself or by a signal, has what it kept freed as
soon as it is seen, and another one takes its place; one that ends soon after its start, a while later.

Nothing here is waited for by the thread that writes slices. Scan processes end with the node, however it
ends.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs
from prometheus_client.registry import Collector

from indexer.scan_processes.channel import Channel
from indexer.scan_processes.core.messages import Alive, Ping, Welcome, alive_decoder
from indexer.scan_processes.metrics import ProcessTotals
from indexer.scan_processes.passing import SOCKET, way_to
from indexer.scan_processes.telling import Listening, Telling
from keytide.errors import ConfigurationError
from keytide.model.health import Reason
from keytide.process.child import start_module
from keytide.process.worker import Worker, logged

log = logging.getLogger(__name__)

PING_S: Final = 0.25
LOOK_S: Final = 0.05
SILENT_S: Final = 2.0
"""Longer silence is told."""
STALLED_S: Final = 10.0
"""After longer silence a process is ended."""
START_S: Final = 30.0
"""A process may take as long to answer for the first time: where cores are busy, imports take seconds."""
SOON_S: Final = 10.0
"""One that has lived for less is started again after a pause."""
LONGEST_PAUSE_S: Final = 10.0
STOP_S: Final = 4.0
MODULE: Final = "indexer.serve.scan_process"


def check_system(count: int) -> None:
    """Raise ConfigurationError where there cannot be so many scan processes."""
    if count and not sys.platform.startswith("linux"):
        raise ConfigurationError(
            "indexer.scan_processes needs Linux: elsewhere connections are not spread over processes",
            next_step="set indexer.scan_processes to 0",
        )


class _Process:
    """One that runs."""

    def __init__(self, child: subprocess.Popen[bytes], channel: Channel, telling: Telling) -> None:
        self.child, self.channel = child, channel
        self.began = self.heard_at = time.monotonic()
        self.told = Alive(False, 0, 0, 0, [], [])
        self.spoke = False
        self.listening: Listening | None = None
        self._telling = telling

    def speaks(self) -> None:
        """It has said something, so it reads what it is told: from the first time on it is told everything.
        (What is told while Python starts would have to wait somewhere.)"""
        self.heard_at = time.monotonic()
        if not self.spoke:
            self.spoke = True
            self.listening = self._telling.join(self.channel)

    def silent_s(self, now: float) -> float:
        """For how long it has said nothing, but for its start."""
        return now - self.heard_at if self.spoke else max(0.0, now - self.began - START_S)


class ScanProcesses:
    """The scan processes of a node.

    Args:
        count: of them.
        reserved: keeps the address.
        folder: the node's.
        registry: of the node's metrics.

    Attributes:
        listener: where the node answers them.
        totals: the node's metrics with theirs.
    """

    def __init__(
        self,
        count: int,
        node_id: str,
        reserved: socket.socket,
        folder: Path,
        telling: Telling,
        registry: Collector,
    ) -> None:
        host, port = reserved.getsockname()[:2]
        self._welcome = Welcome(node_id, host, port)
        self._count, self._reserved, self._telling = count, reserved, telling
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        (folder / SOCKET).unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(way_to(self._folder))
        self._processes: tuple[_Process, ...] = ()
        self.totals = ProcessTotals(registry, self._living)
        self._start_at, self._pause_s = 0.0, 0.0
        self._serving = threading.Event()
        self._failed: Callable[[BaseException], None] = logged
        self._then: Callable[[], None] = lambda: None
        self._worker = Worker("scan-processes", lambda error: self._failed(error), self._run)

    def open(self, failed: Callable[[BaseException], None]) -> None:
        """Start them.

        Args:
            failed: told when they cannot be looked after any more: they end then.
        """
        self._failed = failed
        self._worker.open()

    def wait_serving(self) -> bool:
        """Wait until one of them answers; False when the node stops before."""
        while not self._serving.wait(LOOK_S):
            if self._worker.stopping.is_set():
                return False
        return True

    def end(self, then: Callable[[], None]) -> None:
        """Have them end while the node still answers what they pass on. Waits for nothing: a signal's handler
        may call it.

        Args:
            then: called when they have.
        """
        self._then = then
        self._worker.stopping.set()
        if not self._worker.running:
            then()

    def close(self) -> None:
        """End them, if they have not."""
        self._worker.close()
        self.listener.close()
        self._reserved.close()
        os.close(self._folder)

    def reasons(self) -> Sequence[Reason]:
        """What is the matter with them."""
        now, found = time.monotonic(), list[Reason]()
        for one in self._processes:
            if one.silent_s(now) > SILENT_S:
                found.append(
                    Reason(
                        "node",
                        f"scan process {one.child.pid}",
                        "degraded",
                        f"it says nothing for {one.silent_s(now):,.1f} s: connections that it has are not "
                        "answered",
                        f"wait: it is ended after {STALLED_S:.0f} s, and started again",
                    )
                )
        serving = sum(one.told.serving for one in self._processes)
        if serving == 0:
            found.append(
                Reason(
                    "node",
                    "scan processes",
                    "degraded",
                    "none of them serves: nobody else reaches this node",
                    "wait; if it stays so, see its log",
                )
            )
        return found

    # --- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Children are tied to the thread that starts them, which so is the one that ends them."""
        try:
            self._look_after()
        finally:
            self._end_all()
            self._then()

    def _end_all(self) -> None:
        for one in self._processes:
            one.child.terminate()
        until = time.monotonic() + STOP_S
        for one in self._processes:
            try:
                one.child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.child.kill()
                one.child.wait()
            one.channel.close()

    def _look_after(self) -> None:
        ping_at, looked_at = 0.0, time.monotonic()
        while not self._worker.stopping.is_set():
            now = time.monotonic()
            if (stood := now - looked_at) > SILENT_S:  # it was this process that stood still
                for one in self._processes:
                    one.heard_at += stood
            looked_at = now
            if len(self._processes) < self._count and now >= self._start_at:
                try:
                    self._processes = (*self._processes, self._start())
                except OSError as error:  # (no room for one more process)
                    log.warning("a scan process cannot be started: %s", error)
                    self._start_at = now + LONGEST_PAUSE_S
            if now >= ping_at:
                ping_at = now + PING_S
                for one in self._processes:
                    one.channel.tell(Ping())
            self._exchange()
            self._end_dead(time.monotonic())

    def _exchange(self) -> None:
        """Send what waits, and hear what was said, after a moment at the latest."""
        poll = select.poll()  # (`select` takes no descriptor above 1,023)
        for one in self._processes:
            poll.register(one.channel, select.POLLIN | (select.POLLOUT if one.channel.waits else 0))
        events = dict(poll.poll(LOOK_S * 1000))
        for one in self._processes:
            event = events.get(one.channel.fileno(), 0)
            if event & select.POLLOUT:
                one.channel.flush()
            if event & ~select.POLLOUT:
                self._hear(one)

    def _start(self) -> _Process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            child = start_module(
                *(MODULE, str(theirs.fileno()), str(self._folder)),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._folder),
            )
        channel = Channel(ours)
        channel.tell(self._welcome)
        log.info("scan process %d starts", child.pid)
        return _Process(child, channel, self._telling)

    def _hear(self, one: _Process) -> None:
        for message in one.channel.heard():
            told = alive_decoder.decode(message)
            one.told = structs.replace(told, samples=told.samples or one.told.samples)
            one.speaks()
            self._telling.count_reads(told.reads)
            if told.serving:
                self._serving.set()

    def _end_dead(self, now: float) -> None:
        for one in self._processes:
            if one.child.poll() is None:
                if one.silent_s(now) > STALLED_S:
                    log.error("scan process %d stands still, and is ended", one.child.pid)
                elif one.channel.broken:
                    log.error("scan process %d is ended: %s", one.child.pid, one.channel.broken)
                else:
                    continue
                one.child.kill()
                one.child.wait()
            log.warning("scan process %d has ended: %s", one.child.pid, one.child.returncode)
            self._processes = tuple(other for other in self._processes if other is not one)
            one.channel.close()
            if one.listening is not None:
                self._telling.leave(one.listening)
            self._remember(one, now)

    def _remember(self, one: _Process, now: float) -> None:
        """Keep what one has counted; say when another one is to start."""
        self.totals.ended(one.told)
        soon = now - one.began < SOON_S
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or 0.5) if soon else 0.0
        self._start_at = now + self._pause_s

    def _living(self) -> list[tuple[Alive, bool]]:
        """What each has told last, and whether it answers."""
        now = time.monotonic()
        return [(one.told, one.told.serving and one.silent_s(now) <= SILENT_S) for one in self._processes]
