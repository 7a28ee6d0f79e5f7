"""Spark drivers as child processes: started, watched, started again when told, never left behind.

Theory of operation. One thread forks and watches all drivers: on Linux each asks the kernel to be killed when
its parent dies (PR_SET_PDEATHSIG), which the kernel ties to the thread that forked, so that thread lives as
long as the process. A driver leads its own process group; when it has ended, what it started is swept up with
it, and so is what it has spilled: a build that pauses for want of room would keep that room itself. What it
prints goes to `builds/<id>/driver.log` (`jobs/<id>/driver.log` for a job) in the data folder; the
log's end is part of `DriverExited`. Whether a dead driver is started again is not decided here
(`coordinator.builds.builds`, `coordinator.jobs.jobs`).

A driver is `python -m streaming.<task>`; it may have waited for that
(`coordinator.process.driver_in_waiting`). Those of builds are given no API token. Those of jobs ask nodes
what slices hold, so they get the one that may least.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.builds.registry import FINAL
from coordinator.core import drivers
from coordinator.core.events import DriverExited
from coordinator.core.instructions import DriverTask
from coordinator.process.driver_in_waiting import AGAIN_S, FIRST_S, DriverInWaiting
from keytide.catalog.catalog import Catalog
from keytide.http.tls import AUTHORITY_VARIABLE
from keytide.process import attempt
from keytide.process.clock import now_ms
from keytide.process.parent_death import die_with_parent
from keytide.process.worker import QueueWorker
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

POLL_S = 0.1
STOP_LIMIT_S = 3.0
"""A driver that is asked to end is killed after this: a pause takes effect within five seconds."""
TAIL_LINES = 15
ROOM_BYTES = 64 << 20
"""A driver is not started with less room for its shuffles: on a full disk it would die without
a word, for its log is there too."""
LOG_NAME = "driver.log"
REPORT_NAME: Final = "report.json"
"""What the driver of a job leaves in the job's folder."""
SCRATCH_NAME: Final = "scratch"
"""Folder of shuffle files in the folder of a build or job."""
SAMPLE_NAME: Final = "sample"
"""The same of the driver of a build's sample."""
LOCK_NAME: Final = "lock"
"""In the folder of a build or job: held by the driver that works there."""
BESIDE: Final = "beside-*"
"""Folders in that, of drivers that have found it taken: with a lock each."""
REMOVALS: Final = 5
"""Tries to remove a folder, a moment apart."""
JOB_TASKS: Final = frozenset({"verify", "repair"})
"""Tasks of jobs; the others belong to a build."""


@dataclass(slots=True)
class _Driver:
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    task: DriverTask


@dataclass(frozen=True, slots=True)
class _Due:
    at: float
    task: DriverTask


class DriverSupervisor(QueueWorker[Callable[[], None]]):
    """Starts and watches the drivers of builds and jobs.

    Args:
        settings: handed on to drivers through their environment; `data_dir` has their folders.
        post: takes `DriverExited`, from the supervisor's thread.
        failed: told of an error that ends the coordinator.
        command: what runs the driver of a backfill, before `--build ID`.
        commands: the same for any task (before `--build ID` or `--job ID`); others run as
            `python -m streaming.<task>`.
        waiting: the driver in waiting; None for that of the settings.

    Attributes:
        term: under which drivers are started.
    """

    def __init__(
        self,
        settings: Settings,
        post: Callable[[DriverExited], None],
        failed: Callable[[BaseException], None],
        command: Sequence[str] | None = None,
        commands: Mapping[DriverTask, Sequence[str]] | None = None,
        waiting: DriverInWaiting | None = None,
    ) -> None:
        super().__init__("drivers", failed)
        self._settings = settings
        self._post = post
        self._commands: dict[DriverTask, Sequence[str]] = dict(commands or {})
        if command:
            self._commands.setdefault("backfill", command)
        self._drivers: dict[str, _Driver] = {}
        self._due: dict[str, _Due] = {}
        self._to_remove: set[str] = set()
        self._started = 0
        wanted = settings.build.driver_in_waiting and not self._commands
        self._waiting = waiting or DriverInWaiting(wanted, environment(settings))
        self.term = 0

    def open(self) -> None:
        self._waiting.expect(FIRST_S)
        super().open()

    def start(self, build: str, delay_ms: int, task: DriverTask = "backfill") -> None:
        """Start the driver of a build or job after a delay, unless one of it runs; one with another task has
        to end first."""
        due = _Due(time.monotonic() + delay_ms / 1000, task)
        self.put(lambda: self._due.__setitem__(build, due))

    def stop(self, build: str) -> None:
        """End a build's driver, and forget that it was to be started."""
        self.put(lambda: self._stop(build))

    def remove_folder(self, build: str, *, forgotten: bool = False) -> None:
        """Remove what a build's driver has left, after its end; the log stays, unless nobody knows the build
        any more."""
        self.put(lambda: self._remove_folder(build, forgotten))

    def clean(self, catalog: Catalog) -> None:
        """Remove what an earlier term did not come to: folders of builds and jobs that are forgotten,
        what builds that are over have left, and what was spilled by drivers that died with their
        coordinator."""
        for name in self._folders("builds"):
            build = catalog.build(name)
            if build is None or build.state in FINAL:
                self.remove_folder(name, forgotten=build is None)
            else:
                self.put(functools.partial(self._clear, name))
        for name in self._folders("jobs"):
            job = catalog.job(name)
            if job is None:
                self.remove_job(name)
            elif job.state != "RUNNING":
                self.put(functools.partial(self._clear, name))

    def _folders(self, kind: str) -> list[str]:
        with contextlib.suppress(OSError):
            return [entry.name for entry in (self._settings.data_dir / kind).iterdir()]
        return []

    def remove_job(self, job: str) -> None:
        """Remove the folder of a job that is over, its report and its log."""
        self.put(lambda: shutil.rmtree(self.job_folder(job), ignore_errors=True))

    def folder(self, build: str) -> Path:
        """The folder of a build: log, and what its driver spills."""
        return self._settings.data_dir / "builds" / build

    def job_folder(self, job: str) -> Path:
        """The folder of a job: report and log."""
        return self._settings.data_dir / "jobs" / job

    def free(self) -> tuple[str, int] | None:
        """The folder of all builds, and how many bytes are free on its disk; None while it is not there."""
        folder = self._settings.data_dir / "builds"
        try:
            return str(folder), shutil.disk_usage(folder).free
        except OSError:
            return None

    # --- in the thread --------------------------------------------------------------------------------------

    def end(self) -> None:
        """Carry out what is ordered, then end all drivers; returns at once."""
        self.put(self.stopping.set)

    def close(self, limit_s: float | None = None) -> bool:
        """Carry out what is ordered, end all drivers, then the thread."""
        if self.running:
            self.end()
            self.wait(limit_s)
        return super().close(limit_s)

    def _carry_out(self, job: Callable[[], None]) -> None:
        job()

    def _patience_s(self) -> float | None:
        due_s = self._waiting.due_s
        if self._drivers or self._due:
            return POLL_S if due_s is None else min(POLL_S, due_s)
        return due_s

    def _look_around(self) -> None:
        self._waiting.look()
        for build, due in list(self._due.items()):
            if time.monotonic() >= due.at:
                del self._due[build]
                self._start(build, due.task)
        for build in list(self._drivers):
            self._watch(build)

    def _end(self) -> None:
        self._waiting.end()
        for build in list(self._drivers):
            self._stop(build)

    def _start(self, build: str, task: DriverTask) -> None:
        if (running := self._drivers.get(build)) is not None:
            if running.task != task:
                self._due.setdefault(build, _Due(time.monotonic() + POLL_S, task))
            return
        path = (self.job_folder(build) if task in JOB_TASKS else self.folder(build)) / LOG_NAME
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(path.parent).free
            if free < ROOM_BYTES:
                self._clear(build)  # of a driver that died with its coordinator
                free = shutil.disk_usage(path.parent).free
            if free < ROOM_BYTES:
                text = (
                    f"the disk of {path.parent} is full: {free >> 20} MiB left, {ROOM_BYTES >> 20} are needed"
                )
                log.warning("the %s driver of %s waits: %s", task, build, text)
                self._post(DriverExited(build, drivers.NO_ROOM, text, now_ms(), task))
                return
            self._started += 1
            told = attempt.told(self.term, self._started)
            arguments = ["--job" if task in JOB_TASKS else "--build", build]
            with path.open("ab") as out:
                start = out.tell()
                process = None
                if task not in self._commands:
                    process = self._waiting.take(f"streaming.{task}", arguments, path, told)
                process = process or subprocess.Popen(
                    [*self._command(task), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment(self._settings), **told},
                    process_group=0,
                    preexec_fn=die_with_parent(),
                )
            self._waiting.expect(AGAIN_S)
        except (OSError, subprocess.SubprocessError) as error:
            log.error("the %s driver of %s cannot be started: %s", task, build, error)
            self._post(DriverExited(build, drivers.NOT_STARTED, str(error), now_ms(), task))
            return
        self._drivers[build] = _Driver(process, path, start, task)
        log.info("%s driver of %s started as process %d, log %s", task, build, process.pid, path)

    def _command(self, task: DriverTask) -> list[str]:
        return list(self._commands.get(task) or [sys.executable, "-m", f"streaming.{task}"])

    def _watch(self, build: str) -> None:
        driver = self._drivers[build]
        status = driver.process.poll()
        if status is None:
            return
        del self._drivers[build]
        _sweep(driver.process.pid)
        self._clear(build)
        log.info("%s driver of %s ended with status %d", driver.task, build, status)
        if build in self._to_remove:
            self._remove_folder(build, False)
        tail = _tail(driver.log, driver.log_start) if status else ""
        self._post(DriverExited(build, status, tail, now_ms(), driver.task))

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
        self._clear(build)

    def _clear(self, id_: str) -> None:
        """Remove what the driver of a build or job has spilled, if it could not. Where another coordinator's
        driver has the lock by now, it is that one's."""
        ours = self.job_folder(id_), self.folder(id_)
        for folder in (*ours, *(beside for one in ours for beside in one.glob(BESIDE))):
            with contextlib.ExitStack() as held:
                try:
                    file = held.enter_context((folder / LOCK_NAME).open("rb"))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except FileNotFoundError:
                    pass  # nobody works there: a driver begins with the lock
                except OSError:
                    continue
                for name in (SCRATCH_NAME, SAMPLE_NAME) if folder in ours else ("",):
                    _remove(folder / name)

    def _remove_folder(self, build: str, forgotten: bool) -> None:
        if build in self._drivers:  # it has passed and is ending: not under its feet
            self._to_remove.add(build)
            return
        self._to_remove.discard(build)
        folder = self.folder(build)
        if forgotten:
            _remove(folder)
        try:
            for entry in folder.iterdir() if folder.is_dir() else ():
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != LOG_NAME:
                    entry.unlink(missing_ok=True)
        except OSError as error:  # it takes room, and holds nobody up
            log.warning("what is left of build %s cannot be removed: %s", build, error)


def environment(settings: Settings) -> dict[str, str]:
    """Settings as environment variables for a child, a section each (API tokens are no business of a
    driver's)."""
    result = {"KEYTIDE_CLUSTER": settings.cluster, "KEYTIDE_DATA_DIR": str(settings.data_dir.resolve())}
    for name, value in settings.model_dump(mode="json").items():
        if isinstance(value, dict) and name != "security":
            result[f"KEYTIDE_{name.upper()}"] = json.dumps(value)
    if settings.security.tls_authority:
        result[AUTHORITY_VARIABLE] = str(Path(settings.security.tls_authority).resolve())
    return result


def _sweep(group: int) -> None:
    """Kill what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _remove(folder: Path) -> None:
    """Remove a folder; what is being killed may make a last file in it meanwhile."""
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(POLL_S)


def _tail(path: Path, start: int) -> str:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - 300 * TAIL_LINES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
