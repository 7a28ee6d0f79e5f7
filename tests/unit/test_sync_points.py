"""Named places at which a test ends or holds a process: each action does what it says, in a real process."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.cluster import LocalCluster
from keytide.process.sync_points import POINTS
from tests.arming import arm

ROOT = Path(__file__).resolve().parents[2]

CODE = """
from keytide.process.sync_points import reach
for number in range(3):
    reach("fold-frozen")
    reach("delta-committed")
    print(number, flush=True)
"""


def _run(point: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KEYTIDE_SYNC_POINT": point}
    return subprocess.run(
        [sys.executable, "-c", CODE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_nothing_is_armed() -> None:
    run = _run("")
    assert (run.returncode, run.stdout.split()) == (0, ["0", "1", "2"])


@pytest.mark.parametrize(("count", "lived"), [("", []), (":1", []), (":3", ["0", "1"])])
def test_kill_strikes_at_the_count(count: str, lived: list[str]) -> None:
    run = _run("delta-committed:kill" + count)
    assert (run.returncode, run.stdout.split()) == (-signal.SIGKILL, lived)


def test_once_strikes_the_first_process_only(tmp_path: Path) -> None:
    point = f"delta-committed:once={tmp_path / 'struck'}:2"
    assert (_run(point).returncode, (tmp_path / "struck").exists()) == (-signal.SIGKILL, True)
    assert _run(point).returncode == 0


def test_hold_waits_for_its_file(tmp_path: Path) -> None:
    environment = {**os.environ, "KEYTIDE_SYNC_POINT": f"fold-frozen:hold={tmp_path / 'go'}:2"}
    with subprocess.Popen([sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "go.held").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert process.poll() is None
        (tmp_path / "go").touch()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    "point",
    ["no-such-point:kill", "fold-frozen", "fold-frozen:stop", "fold-frozen:once=", "fold-frozen:kill=x"],
)
def test_what_is_no_point_or_action_is_refused(point: str) -> None:
    run = _run(point)
    assert run.returncode == 1
    assert "no such point or action" in run.stderr


def test_a_part_of_a_cluster_is_armed_for_its_next_start(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, kafka="127.0.0.1:1", nodes=1)
    cluster._choose_ports()
    cluster._define({})
    arm(cluster, "node-1", "fold-frozen:kill:2")
    assert (cluster.services["node-1"].env or {})["KEYTIDE_SYNC_POINT"] == "fold-frozen:kill:2"
    assert "KEYTIDE_SYNC_POINT" not in (cluster.services["coordinator"].env or {})
    arm(cluster, "node-1", "")
    assert "KEYTIDE_SYNC_POINT" not in (cluster.services["node-1"].env or {})


def _reached() -> dict[str, list[str]]:
    """Point -> where the product says `reach(point)`."""
    found: dict[str, list[str]] = {}
    for package in ("keytide", "projector", "indexer", "coordinator", "streaming", "deploy"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "reach(" not in (text := path.read_text()):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reach":
                    words = [word.value for word in ast.walk(node) if isinstance(word, ast.Constant)]
                    assert words, f"{path}:{node.lineno}: the name is not a word"
                    for word in words:
                        found.setdefault(str(word), []).append(f"{path.name}:{node.lineno}")
    return found


def test_every_point_is_in_the_code_and_nothing_else_is() -> None:
    """A crash test that arms a name which nothing reaches would strike nowhere."""
    assert set(_reached()) == POINTS
