"""Spark drivers as child processes: started, watched, started again when told, never left behind.

Theory of operation. One thread forks and watches all drivers: on Linux each asks the kernel to be killed when
its parent dies (PR_SET_PDEATHSIG), which the kernel ties to the thread that forked, so that thread lives as
long as the process. A driver leads its own process group; when it has ended, what it started is swept up with
it. What it prints goes to `builds/<id>/driver.log` in the data folder; the log's end is part of
`DriverExited`. Whether a dead driver is started again is not decided here (`coordinator.builds`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.events import NO_ROOM, DriverExited
from keytide.clock import now_ms
from keytide.parent_death import die_with_parent
from keytide.settings import Settings

log = logging.getLogger(__name__)

POLL_S = 0.1
STOP_LIMIT_S = 5.0
"""A driver that is asked to end is killed after this."""
TAIL_LINES = 15
ROOM_BYTES = 64 << 20
"""A driver is not started with less room for its checkpoint and shuffles: on a full disk it would die without
a word, for its log is there too."""
LOG_NAME = "driver.log"


@dataclass(slots=True)
class _Driver:
    process: subprocess.Popen[bytes]
    log_start: int


class Supervisor:
    """Starts and watches the drivers of builds.

    Args:
        settings: handed on to drivers through their environment; `data_dir` has their folders.
        post: takes `DriverExited`, from the supervisor's thread.
        command: what runs a driver, before `--build ID`.
    """

    def __init__(
        self, settings: Settings, post: Callable[[DriverExited], None], command: Sequence[str] | None = None
    ) -> None:
        self._settings = settings
        self._post = post
        self._command = list(command or [sys.executable, "-m", "streaming.backfill"])
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._drivers: dict[str, _Driver] = {}
        self._due: dict[str, float] = {}
        self._to_remove: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="drivers", daemon=True)

    def open(self) -> None:
        """Begin to carry out orders."""
        self._thread.start()

    def start(self, build: str, delay_ms: int) -> None:
        """Start a build's driver after a delay, unless it runs."""
        due = time.monotonic() + delay_ms / 1000
        self._orders.put(lambda: self._due.__setitem__(build, due))

    def stop(self, build: str) -> None:
        """End a build's driver, and forget that it was to be started."""
        self._orders.put(lambda: self._stop(build))

    def remove_folder(self, build: str) -> None:
        """Remove a build's checkpoint, after its driver's end; the log stays."""
        self._orders.put(lambda: self._remove_folder(build))

    def close(self) -> None:
        """End all drivers, then the thread."""
        if self._thread.is_alive():
            self._orders.put(None)
            self._thread.join()

    def folder(self, build: str) -> Path:
        """The folder of a build: checkpoint and log."""
        return self._settings.data_dir / "builds" / build

    # --- in the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                order = self._orders.get(timeout=POLL_S if self._drivers or self._due else None)
                if order is None:
                    break
                order()
            for build, due in list(self._due.items()):
                if time.monotonic() >= due:
                    del self._due[build]
                    self._start(build)
            for build in list(self._drivers):
                self._watch(build)
        for build in list(self._drivers):
            self._stop(build)

    def _start(self, build: str) -> None:
        if build in self._drivers:
            return
        path = self.folder(build) / LOG_NAME
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(path.parent).free
            if free < ROOM_BYTES:
                text = (
                    f"the disk of {path.parent} is full: {free >> 20} MiB left, {ROOM_BYTES >> 20} are needed"
                )
                log.warning("the driver of build %s waits: %s", build, text)
                self._post(DriverExited(build, NO_ROOM, text, now_ms()))
                return
            with path.open("ab") as out:
                start = out.tell()
                process = subprocess.Popen(
                    [*self._command, "--build", build],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment(self._settings)},
                    process_group=0,
                    preexec_fn=die_with_parent(),
                )
        except OSError as error:
            log.error("the driver of build %s cannot be started: %s", build, error)
            self._post(DriverExited(build, 127, str(error), now_ms()))
            return
        self._drivers[build] = _Driver(process, start)
        log.info("driver of build %s started as process %d, log %s", build, process.pid, path)

    def _watch(self, build: str) -> None:
        driver = self._drivers[build]
        status = driver.process.poll()
        if status is None:
            return
        del self._drivers[build]
        _sweep(driver.process.pid)
        log.info("driver of build %s ended with status %d", build, status)
        if build in self._to_remove:
            self._remove_folder(build)
        tail = _tail(self.folder(build) / LOG_NAME, driver.log_start) if status else ""
        self._post(DriverExited(build, status, tail, now_ms()))

    def _stop(self, build: str) -> None:
        self._due.pop(build, None)
        driver = self._drivers.pop(build, None)
        if driver is None:
            return
        driver.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.process.wait(STOP_LIMIT_S)
        _sweep(driver.process.pid)
        driver.process.wait()

    def _remove_folder(self, build: str) -> None:
        if build in self._drivers:  # it has passed and is ending: not under its feet
            self._to_remove.add(build)
            return
        self._to_remove.discard(build)
        folder = self.folder(build)
        if not folder.is_dir():
            return
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOG_NAME:
                entry.unlink(missing_ok=True)


def environment(settings: Settings) -> dict[str, str]:
    """Settings as environment variables for a child, a section each (API tokens are no business of a
    driver's)."""
    result = {"KEYTIDE_CLUSTER": settings.cluster, "KEYTIDE_DATA_DIR": str(settings.data_dir.resolve())}
    for name, value in settings.model_dump(mode="json").items():
        if isinstance(value, dict) and name != "security":
            result[f"KEYTIDE_{name.upper()}"] = json.dumps(value)
    return result


def _sweep(group: int) -> None:
    """Kill what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _tail(path: Path, start: int) -> str:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - 300 * TAIL_LINES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
