"""Child processes: they tell why they died, sweep up after themselves, and never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from deploy.process import ChildDiedError, ChildProcess, NotReadyError, free_ports, is_free
from keytide.errors import CallerError, ConfigurationError
from tests.waiting import wait_for

SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"


def python(tmp_path: Path, code: str) -> ChildProcess:
    return ChildProcess("a child", [sys.executable, "-c", textwrap.dedent(code)], log=tmp_path / "log")


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def says(child: ChildProcess, word: str) -> Callable[[], bool]:
    return lambda: word in child.tail()


def test_it_starts_writes_to_its_log_and_ends_on_demand(tmp_path: Path) -> None:
    with python(tmp_path, SLEEPER) as child:
        child.wait_until(says(child, "ready"), 20, "says ready")
        assert (child.running, child.returncode) == (True, None)
        assert os.getpgid(child.pid) == child.pid
        with pytest.raises(CallerError, match="runs already"):
            child.start()
    assert not child.running
    assert child.returncode == -signal.SIGTERM
    assert child.terminate() == -signal.SIGTERM


def test_what_it_said_is_found_behind_whatever_it_wrote_since_and_not_of_an_earlier_run(
    tmp_path: Path,
) -> None:
    child = python(tmp_path, "print('once'); print('more\\n' * 5_000)")
    assert not child.said("once")
    child.start().wait(20)
    assert child.said("once")
    assert "once" not in child.tail(200)
    child.argv[-1] = "print('again')"
    child.start().wait(20)
    assert (child.said("once"), child.said("again")) == (False, True)


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be started"):
        ChildProcess("nothing", [tmp_path / "no-such-program"], log=tmp_path / "log").start()


def test_early_death_is_told_with_the_end_of_its_own_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("from an earlier run\n")
    child = python(tmp_path, "import sys; print('the reason'); sys.exit(3)").start()
    with pytest.raises(ChildDiedError, match=r"ended with status 3 before it is ready") as caught:
        child.wait_until(lambda: False, 20, "is ready")
    assert "the reason" in caught.value.message
    assert "earlier run" not in caught.value.message
    assert (tmp_path / "log").read_text().startswith("from an earlier run\n")


def test_too_slow_is_not_dead(tmp_path: Path) -> None:
    with python(tmp_path, SLEEPER) as child:
        with pytest.raises(NotReadyError, match="not enough until it is ready"):
            child.wait_until(lambda: False, 0.1, "is ready")
        assert child.running


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ignore = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    )
    child = python(tmp_path, ignore).start()
    child.wait_until(says(child, "ready"), 20, "says ready")
    assert child.terminate(timeout=0.2) == -signal.SIGKILL


def test_the_number_of_one_that_is_gone_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then another process may have it."""
    child = ChildProcess("sleeper", ["sleep", "60"], log=tmp_path / "log").start()
    assert child.kill() == -signal.SIGKILL
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: sent.append(pid))
    assert child.kill() == child.terminate() == -signal.SIGKILL
    assert not sent
    monkeypatch.undo()
    assert child.start().running
    assert child.kill() == -signal.SIGKILL


def test_what_the_child_started_is_swept_up(tmp_path: Path) -> None:
    child = python(
        tmp_path,
        f"""
        import subprocess, sys, time
        print(subprocess.Popen([sys.executable, "-c", {SLEEPER!r}]).pid, flush=True)
        time.sleep(600)
        """,
    ).start()
    child.wait_until(says(child, "ready"), 20, "has a child that is ready")
    grandchild = int(child.tail().split()[0])
    assert not gone(grandchild)
    child.terminate()
    wait_for(lambda: gone(grandchild), "the grandchild is gone")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(tmp_path: Path, sent: signal.Signals) -> None:
    parent_code = f"""
        import sys, time
        from pathlib import Path
        from deploy.process import ChildProcess
        log = Path({str(tmp_path / "child.log")!r})
        child = ChildProcess("child", [sys.executable, "-c", {SLEEPER!r}], log=log).start()
        print(child.pid, flush=True)
        time.sleep(600)
        """
    command = [sys.executable, "-c", textwrap.dedent(parent_code)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.send_signal(sent)
    wait_for(lambda: gone(pid), "the child is gone")


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    child = python(tmp_path, SLEEPER)
    starter = threading.Thread(target=child.start)
    starter.start()
    starter.join()
    with child:
        child.wait_until(says(child, "ready"), 20, "says ready")
        assert child.running


def test_free_ports_are_different_and_free(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)
    monkeypatch.delenv("KEYTIDE_PORTS", raising=False)
    assert max(free_ports(20)) < 32_768  # (where the system takes those of connections from)


def test_free_ports_come_from_a_range_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYTIDE_PORTS", "25000-25049")
    ports = [port for _ in range(5) for port in free_ports(4)]
    assert all(25_000 <= port <= 25_049 for port in ports)
    assert len(set(ports)) == 20, "a port that was given may be bound only later"
    with pytest.raises(ConfigurationError, match="25000 to 25049 only"):
        free_ports(51)
    assert len(set(free_ports(40))) == 40, "then those that were given before"


@pytest.mark.parametrize("text", ["x", "25000", "25000-", "25010-25000", "0-10", "25000-65536", "1-2-3"])
def test_a_range_of_ports_that_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYTIDE_PORTS", text)
    with pytest.raises(ConfigurationError, match="no range of ports"):
        free_ports()
