"""Drivers as child processes: how they start, end, and are swept up."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from coordinator.core.drivers import NO_ROOM, NOT_STARTED
from coordinator.core.events import DriverExited
from coordinator.core.instructions import DriverTask
from coordinator.process import driver_in_waiting
from coordinator.process import driver_supervisor as module
from coordinator.process.driver_in_waiting import LOOK_S, DriverInWaiting
from coordinator.process.driver_supervisor import DriverSupervisor, environment
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import BuildRecord, BuildState, JobRecord, JobState
from keytide.model.timestamp import Timestamp
from keytide.process.attempt import this_attempt
from keytide.settings.settings import load_settings
from tests.waiting import wait_for

FAMILY = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(os.environ["OUT"]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


WAITS = """
import os, time
print("up", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
"""


def up(folder: Path) -> bool:
    log = folder / "driver.log"
    return log.exists() and "up" in log.read_text()


class Watched:
    """A supervisor that runs a script in place of the driver, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: list[DriverExited] = []
        self.failures: list[BaseException] = []
        self._opened: list[DriverSupervisor] = []

    def running(self, script: str, others: dict[DriverTask, list[str]] | None = None) -> DriverSupervisor:
        made = DriverSupervisor(
            load_settings(data_dir=self.folder),
            self.ends.append,
            self.failures.append,
            [sys.executable, "-c", script],
            others,
        )
        made.open()
        self._opened.append(made)
        return made

    def end(self) -> DriverExited:
        wait_for(lambda: bool(self.ends), "an end")
        return self.ends[0]

    def close(self) -> None:
        for one in self._opened:
            one.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.close()
    assert made.failures == []


def test_a_driver_is_told_its_build_and_its_end_has_the_last_lines(watched: Watched) -> None:
    watched.running("import sys; print('said', sys.argv[1:]); sys.exit(3)").start("b7", 0)
    end = watched.end()
    assert (end.build, end.status, end.tail) == ("b7", 3, "said ['--build', 'b7']")
    assert (watched.folder / "builds" / "b7" / "driver.log").read_text() == "said ['--build', 'b7']\n"


def test_a_driver_is_told_which_start_of_it_it_is(watched: Watched) -> None:
    script = "from keytide.process.attempt import this_attempt; print(this_attempt()); raise SystemExit(1)"
    supervisor = watched.running(script)
    supervisor.term = 7
    for number in (1, 2):
        supervisor.start("b7", 0)
        assert watched.end().tail == f"(7, {number})"
        watched.ends.clear()
    assert this_attempt({}) == (0, 0)


def test_a_driver_that_ends_well_has_no_story(watched: Watched) -> None:
    watched.running("print('fine')").start("b7", 0)
    assert (watched.end().status, watched.end().tail) == (0, "")


def test_a_second_start_is_the_same_driver(watched: Watched) -> None:
    supervisor = watched.running("import time; print('up', flush=True); time.sleep(600)")
    supervisor.start("b7", 0)
    supervisor.start("b7", 0)
    log = watched.folder / "builds" / "b7" / "driver.log"
    wait_for(lambda: log.exists() and log.read_text() == "up\n", "a driver")
    supervisor.stop("b7")
    supervisor.close()
    assert log.read_text() == "up\n"
    assert watched.ends == []


def test_a_driver_with_another_task_waits_for_the_one_that_runs(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    monkeypatch.setenv("GO", str(go))
    command = [sys.executable, "-c", WAITS]
    supervisor = DriverSupervisor(
        load_settings(data_dir=tmp_path),
        watched.ends.append,
        watched.failures.append,
        commands={"sample": command, "backfill": command},
    )
    supervisor.open()
    try:
        supervisor.start("b7", 0, "sample")
        wait_for(lambda: up(tmp_path / "builds" / "b7"), "a driver")
        supervisor.start("b7", 0)
        go.touch()
        wait_for(lambda: len(watched.ends) == 2, "both ends")
    finally:
        supervisor.close()
    assert [end.task for end in watched.ends] == ["sample", "backfill"]


def catalog_of(builds: dict[str, BuildState], jobs: dict[str, JobState] | None = None) -> Catalog:
    made = Catalog()
    for id_, state in builds.items():
        made.put(f"build/{id_}", BuildRecord(id_, "people", [], state, Timestamp(), 0))
    for id_, job_state in (jobs or {}).items():
        made.put(f"job/{id_}", JobRecord(id_, "verify", "people", [], job_state, 0))
    return made


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_a_killed_coordinator_left_is_removed(watched: Watched) -> None:
    def made(kind: str, id_: str, *files: str) -> Path:
        folder = watched.folder / kind / id_
        for name in (*files, "driver.log", "scratch/blockmgr/shuffle"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("1")
        return folder

    kept = ("progress.json", "lock", "checkpoint/offsets/0", "sample/shuffle")
    for build in ("b6", "b7", "b8", "b9"):
        made("builds", build, *kept)
    for job in ("j1", "j2", "j3"):
        made("jobs", job, "report.json")
    supervisor = watched.running("print('up')")
    with (watched.folder / "builds" / "b9" / "lock").open() as held:  # another coordinator's driver has it
        fcntl.flock(held, fcntl.LOCK_EX)
        catalog = catalog_of(
            {"b7": "FAILED", "b8": "PAUSED", "b9": "BACKFILL"}, {"j2": "DONE", "j3": "RUNNING"}
        )
        supervisor.clean(catalog)
        supervisor.close()
    builds, jobs = watched.folder / "builds", watched.folder / "jobs"
    assert names(builds) == ["b7", "b8", "b9"], "nobody knows b6 any more"
    assert names(builds / "b7") == ["driver.log"]
    assert names(builds / "b8") == ["checkpoint", "driver.log", "lock", "progress.json"]
    assert "scratch" in names(builds / "b9")
    assert names(jobs) == ["j2", "j3"]
    assert names(jobs / "j2") == ["driver.log", "report.json"]
    assert "scratch" in names(jobs / "j3"), "its driver begins again, and sees to it"


def test_what_another_coordinators_driver_works_with_is_left_alone(watched: Watched) -> None:
    """Coordinators of one machine share a folder; one that is replaced ends its drivers."""
    folder = watched.folder / "jobs" / "j1"
    supervisor = watched.running("", {"verify": [sys.executable, "-c", "import time; time.sleep(600)"]})
    supervisor.start("j1", 0, "verify")
    wait_for((folder / "driver.log").exists, "a driver")
    (folder / "scratch").mkdir()
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        supervisor.close()
    assert names(folder) == ["driver.log", "lock", "scratch"]


def test_what_a_driver_beside_another_one_has_left_is_removed(watched: Watched) -> None:
    """One that had found its folder taken works in another, with a lock of its own."""
    folder = watched.folder / "jobs" / "j1"
    for name in ("scratch", "beside-7.3/scratch", "beside-8.1/scratch"):
        (folder / name).mkdir(parents=True)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    supervisor = watched.running("", {"verify": command})
    with contextlib.ExitStack() as held:
        for name in ("lock", "beside-8.1/lock"):
            fcntl.flock(held.enter_context((folder / name).open("w")), fcntl.LOCK_EX)
        supervisor.start("j1", 0, "verify")
        wait_for((folder / "driver.log").exists, "a driver")
        supervisor.close()
    assert names(folder) == ["beside-8.1", "driver.log", "lock", "scratch"]
    assert names(folder / "beside-8.1") == ["lock", "scratch"]


def test_the_log_of_a_forgotten_build_goes_too(watched: Watched) -> None:
    for build in ("b7", "b8"):
        (watched.folder / "builds" / build).mkdir(parents=True)
        (watched.folder / "builds" / build / "driver.log").write_text("1")
    supervisor = watched.running("print('up')")
    supervisor.remove_folder("b7")
    supervisor.remove_folder("b8", forgotten=True)
    supervisor.close()
    assert names(watched.folder / "builds") == ["b7"]
    assert names(watched.folder / "builds" / "b7") == ["driver.log"]


def test_no_driver_is_started_on_a_full_disk(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(NamedTuple):
        free: int = 5 << 20

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Full())
    supervisor = watched.running("print('up')")
    supervisor.start("b7", 0)
    assert (watched.end().status, "5 MiB left" in watched.end().tail) == (NO_ROOM, True)
    assert not (watched.folder / "builds" / "b7" / "driver.log").exists()
    monkeypatch.undo()
    supervisor.start("b7", 0)
    wait_for(lambda: len(watched.ends) == 2, "an end")
    assert watched.ends[1].status == 0


def test_a_driver_whose_log_cannot_be_opened_was_not_started(watched: Watched) -> None:
    (watched.folder / "builds" / "b7" / "driver.log").mkdir(parents=True)
    watched.running("print('up')").start("b7", 0)
    assert (watched.end().status, "Is a directory" in watched.end().tail) == (NOT_STARTED, True)


def test_a_disk_that_a_killed_driver_has_filled_is_made_free_before_the_next_starts(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled = watched.folder / "jobs" / "j1" / "scratch"
    spilled.mkdir(parents=True)

    class Disk(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(0 if spilled.exists() else 1 << 40))
    watched.running("", {"verify": [sys.executable, "-c", "print('up')"]}).start("j1", 0, "verify")
    assert watched.end().status == 0


def test_stop_ends_the_driver_and_what_it_started(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    out = watched.folder / "pids"
    monkeypatch.setenv("OUT", str(out))
    supervisor = watched.running(FAMILY)
    supervisor.start("b7", 0)
    wait_for(lambda: out.exists() and len(out.read_text().split()) == 2, "both processes")
    pids = [int(pid) for pid in out.read_text().split()]
    supervisor.stop("b7")
    wait_for(lambda: not any(_alive(pid) for pid in pids), "both ends")
    assert watched.ends == []


STANDS_STILL = FAMILY.replace("time.sleep(600)\n", "os.killpg(0, signal.SIGSTOP)\n").replace(
    "import os", "import signal, os", 1
)


def test_stop_ends_a_driver_that_stands_still(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    out = watched.folder / "pids"
    monkeypatch.setenv("OUT", str(out))
    monkeypatch.setattr(module, "STOP_LIMIT_S", 0.2)
    supervisor = watched.running(STANDS_STILL)
    supervisor.start("b7", 0)
    wait_for(lambda: out.exists() and len(out.read_text().split()) == 2, "both processes")
    pids = [int(pid) for pid in out.read_text().split()]
    wait_for(lambda: all(_stopped(pid) for pid in pids), "both stand still")
    supervisor.stop("b7")
    wait_for(lambda: not any(_alive(pid) for pid in pids), "both ends")


def _stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_what_waits_to_be_started_can_be_stopped(watched: Watched) -> None:
    supervisor = watched.running("print('never')")
    supervisor.start("b7", 300)
    supervisor.stop("b7")
    supervisor.start("b8", 400)
    assert watched.end().build == "b8"
    assert not (watched.folder / "builds" / "b7").exists()


def test_the_folder_goes_and_the_log_stays_but_not_under_a_running_driver(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = watched.folder / "builds" / "b7"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "progress.json").write_text("{}")
    go = watched.folder / "go"
    monkeypatch.setenv("GO", str(go))
    supervisor = watched.running(WAITS)
    supervisor.start("b7", 0)
    wait_for(lambda: up(folder), "a driver")
    supervisor.remove_folder("b7")
    supervisor.start("b8", 0)  # orders are carried out in turn
    wait_for(lambda: up(watched.folder / "builds" / "b8"), "the order after the removal")
    assert (folder / "checkpoint").exists()
    go.touch()
    wait_for(lambda: [one.name for one in folder.iterdir()] == ["driver.log"], "an empty folder")


def test_settings_reach_the_driver_and_tokens_do_not(tmp_path: Path) -> None:
    settings = load_settings(
        cluster="other",
        data_dir=tmp_path,
        kafka={"bootstrap": "k:1", "security.protocol": "SSL"},
        build={"spark_master": "local[1]"},
        security={"tokens": {"secret": ["admin"]}},
    )
    made = environment(settings)
    assert made["KEYTIDE_CLUSTER"] == "other"
    assert json.loads(made["KEYTIDE_KAFKA"])["security.protocol"] == "SSL"
    assert json.loads(made["KEYTIDE_BUILD"])["spark_master"] == "local[1]"
    assert "secret" not in str(made)


def test_drivers_of_jobs_have_a_folder_and_a_flag_of_their_own(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path)
    ends: list[DriverExited] = []
    tells = "import sys; print(sys.argv[1:]); sys.exit(5)"
    command = [sys.executable, "-c", tells]
    supervisor = DriverSupervisor(settings, ends.append, print, command, {"verify": command})
    supervisor.open()
    try:
        supervisor.start("j1", 0, "verify")
        supervisor.start("b1", 0)
        wait_for(lambda: len(ends) == 2, "both have ended")
        told = {one.build: one for one in ends}
        assert (told["j1"].task, told["j1"].tail) == ("verify", "['--job', 'j1']")
        assert (told["b1"].task, told["b1"].tail) == ("backfill", "['--build', 'b1']")
        assert (tmp_path / "jobs" / "j1" / "driver.log").exists()
        supervisor.remove_job("j1")
        wait_for(lambda: not (tmp_path / "jobs" / "j1").exists(), "its folder is gone")
        assert (tmp_path / "builds" / "b1" / "driver.log").exists()
    finally:
        supervisor.close()


SPILLS = """
import os, pathlib, signal, sys, time
scratch = pathlib.Path(os.environ["KEYTIDE_DATA_DIR"], "jobs", sys.argv[-1], "scratch", "blockmgr")
scratch.mkdir(parents=True)
(scratch / "shuffle").write_text("much")
(scratch.parent.parent / "report.json").write_text("{}")
print("up", flush=True)
if sys.argv[-1] == "j2":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


SPILLS_FOR_A_BUILD = """
import fcntl, os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["KEYTIDE_DATA_DIR"], "builds", sys.argv[-1])
lock = (folder / "lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
for name in ("scratch", "sample", "checkpoint"):
    (folder / name / "blockmgr").mkdir(parents=True)
    (folder / name / "blockmgr" / "shuffle").write_text("much")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
if sys.argv[-1] == "b8":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


@pytest.mark.parametrize("build", ["b7", "b8"])
def test_what_a_builds_driver_spilled_goes_with_it_and_its_checkpoint_stays(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    monkeypatch.setattr(module, "STOP_LIMIT_S", 0.2)
    supervisor = watched.running(SPILLS_FOR_A_BUILD)
    folder = watched.folder / "builds" / build
    supervisor.start(build, 0)
    if build == "b7":  # it pauses, and its driver does not end in time
        wait_for(lambda: up(folder), "a driver")
        supervisor.stop(build)
    else:  # it dies
        watched.end()
    supervisor.close()
    assert names(folder) == ["checkpoint", "driver.log", "lock"]
    assert (folder / "checkpoint" / "blockmgr" / "shuffle").exists()


def test_what_a_jobs_driver_spilled_goes_with_it(tmp_path: Path) -> None:
    ends: list[DriverExited] = []
    command = [sys.executable, "-c", SPILLS]
    supervisor = DriverSupervisor(
        load_settings(data_dir=tmp_path), ends.append, print, None, {"verify": command}
    )
    supervisor.open()
    jobs = tmp_path / "jobs"
    try:
        supervisor.start("j1", 0, "verify")  # is cancelled
        wait_for(lambda: up(jobs / "j1"), "a driver")
        supervisor.stop("j1")
        supervisor.start("j2", 0, "verify")  # dies
        wait_for(lambda: len(ends) == 1, "an end")
    finally:
        supervisor.close()
    for job in ("j1", "j2"):
        assert sorted(path.name for path in (jobs / job).iterdir()) == ["driver.log", "report.json"]


def test_what_cannot_be_removed_is_told_and_holds_nobody_up(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A supervisor that ended by it would take the coordinator along, and again at each start."""
    folder = watched.folder / "builds" / "b6"
    folder.mkdir(parents=True)
    (folder / "lock").touch()

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    supervisor = watched.running("print('up')")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        supervisor.remove_folder("b6")
        wait_for(lambda: "cannot be removed" in caplog.text, "the warning")
    supervisor.start("b7", 0)
    assert watched.end().status == 0


WAITER = """
import json, os, sys
print("waits", flush=True)
orders = json.loads(sys.stdin.readline())
with open(orders["log"], "a") as log:
    print("waited", orders["module"], orders["arguments"], orders["environment"], file=log)
sys.exit(3)
"""


class Waiting(DriverInWaiting):
    """One that runs a script, and those that were started of it."""

    def __init__(self, script: str) -> None:
        super().__init__(True, {}, [sys.executable, "-c", script])
        self.started: list[psutil.Process] = []

    def look(self) -> None:
        super().look()
        if self._process is not None and self._process.pid not in [one.pid for one in self.started]:
            self.started.append(psutil.Process(self._process.pid))

    def number_is(self, number: int) -> Callable[[], bool]:
        """Whether so many were started, and the last one has loaded."""

        def waits() -> bool:
            one = self._process
            return len(self.started) == number and bool(
                one and one.stdout and select.select([one.stdout], [], [], 0)[0]
            )

        return waits

    def ended(self, number: int) -> bool:
        one = self.started[number]
        return not one.is_running() or one.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)


def supervised(watched: Watched, waiting: DriverInWaiting) -> DriverSupervisor:
    settings = load_settings(data_dir=watched.folder)
    made = DriverSupervisor(settings, watched.ends.append, watched.failures.append, waiting=waiting)
    made.term = 7
    made.open()
    watched._opened.append(made)
    return made


@pytest.mark.usefixtures("at_once")
def test_the_driver_that_waits_is_the_next_that_is_started_and_another_one_waits(watched: Watched) -> None:
    waiting = Waiting(WAITER)
    supervisor = supervised(watched, waiting)
    for number in (1, 2):
        wait_for(waiting.number_is(number), "one that waits")
        supervisor.start(f"j{number}", 0, "verify")
        end = watched.end()
        told = {"KEYTIDE_ATTEMPT": f"7.{number}"}
        assert (end.status, end.task) == (3, "verify")
        assert end.tail == f"waited streaming.verify ['--job', 'j{number}'] {told}"
        watched.ends.clear()
    wait_for(waiting.number_is(3), "one that waits")
    supervisor.close()
    assert waiting.ended(2)


@pytest.mark.usefixtures("at_once")
def test_one_that_still_loads_is_left_to_it(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting("import sys; sys.stdin.readline()")
    supervisor = supervised(watched, waiting)
    command = [sys.executable, "-c", "import sys; print('started'); sys.exit(5)"]
    monkeypatch.setattr(supervisor, "_command", lambda _: command)
    wait_for(lambda: bool(waiting.started), "one that loads")
    supervisor.start("b7", 0)
    assert watched.end().tail == "started"
    assert not waiting.ended(0)
    assert len(waiting.started) == 1


def test_one_that_has_ended_is_replaced_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting("")
    waiting.expect()
    waiting.look()
    wait_for(lambda: waiting.ended(0), "its end")
    assert waiting.due_s == LOOK_S
    monkeypatch.setattr(driver_in_waiting, "LOOK_S", 0.0)
    waiting.look()
    assert len(waiting.started) == 2
    waiting.end()
    assert not psutil.pid_exists(waiting.started[0].pid), "it is reaped"


@pytest.mark.usefixtures("at_once")
def test_a_driver_is_started_where_none_waits_any_more(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting("")
    supervisor = supervised(watched, waiting)
    command = [sys.executable, "-c", "import sys; print('started', sys.argv[1:]); sys.exit(5)"]
    monkeypatch.setattr(supervisor, "_command", lambda _: command)
    wait_for(lambda: bool(waiting.started) and waiting.ended(0), "the end of the one that waits")
    supervisor.start("b7", 0)
    end = watched.end()
    assert (end.status, end.tail) == (5, "started ['--build', 'b7']")


def test_none_waits_where_none_is_wanted(watched: Watched) -> None:
    waiting = DriverInWaiting(False, {}, ["/nowhere"])
    waiting.expect()
    assert waiting.due_s is None
    assert waiting.take("streaming.backfill", [], watched.folder, {}) is None
