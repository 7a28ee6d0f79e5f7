"""The command while parts of the cluster are away or stand still: reads go to nodes, and everything gives up
in the time that it states."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result

from keytide.cli.output import err, out
from keytide.settings.settings import load_settings
from tests.reference.commands import every_command
from tests.unit.command import run_command
from tests.unit.scan_world import Doc, World
from tests.unit.test_api import serving

LIMIT_S = 20.0
"""For a command, on a busy machine, that is to take a moment: it hung for a minute."""
NOBODY = "http://127.0.0.1:1"
SELECT = "SELECT id FROM users WHERE city = 'Bonn'"
READS = [
    ("scan", "by_city"),
    ("scan", "by_city", "--count"),
    ("sql", SELECT),
    ("sql", f"EXPLAIN {SELECT}"),
    ("index", "list"),
    ("index", "show", "by_city"),
]
OTHERS = [
    ("sql", "DROP INDEX by_city"),
    ("node", "list"),
    ("build", "list"),
    ("build", "show", "b1"),
    ("build", "cancel", "b1"),
    ("job", "list"),
    ("status",),
    ("topology",),
    ("upgrade",),
    ("events",),
    ("index", "drop", "by_city"),
    ("index", "build", "by_city"),
    ("index", "verify", "by_city"),
    ("index", "skipped", "by_city"),
    ("index", "violations", "by_city"),
    ("index", "load", "by_city"),
    ("index", "repair", "by_city"),
    ("build", "pause", "b1"),
    ("build", "resume", "b1"),
    ("build", "throttle", "b1", "5"),
    ("build", "wait", "b1"),
    ("job", "show", "j1"),
    ("job", "report", "j1"),
    ("job", "cancel", "j1"),
    ("job", "throttle", "j1", "--copy-rate", "1000000"),
    ("node", "drain", "node-1"),
    ("node", "restart", "node-1", "--by", "true"),
    ("node", "undrain", "node-1"),
    ("rebalance", "--yes"),
]
LOCAL = {("up",), ("down",), ("demo",), ("doctor",), ("trace",), ("gateway",)}
"""Those that start and stop processes, or ask Kafka, and have limits of their own."""


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    world = World("CREATE INDEX by_city ON users (city) WITH (slices=2)", node_count=1)
    world.commit(5, {"by_city": [Doc(["Bonn"], "u1"), Doc(["Berlin"], "u2")]})
    with serving(world.views["n0"], load_settings()) as url:
        yield url


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for console in (out, err):
        monkeypatch.setattr(console, "_width", 200)
    for name in ("KEYTIDE_URL", "KEYTIDE_NODES", "KEYTIDE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def standing_still() -> Iterator[str]:
    """A server that takes connections, as a stopped process's kernel does, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def run(*arguments: str, status: int = 0, give_up: float = 10.0) -> Result:
    result = run_command(["--give-up", str(give_up), *arguments])
    assert result.exit_code == status, result.output
    return result


def folder(tmp_path: Path, coordinator: str, *nodes: str) -> tuple[str, str]:
    """The options that name a data folder, as `keytide up` leaves it."""
    (tmp_path / "cluster.json").write_text(json.dumps({"coordinator": coordinator, "nodes": nodes}))
    return "--data-dir", str(tmp_path)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("away", ["gone", "stands still"])
def test_reads_go_to_nodes_while_the_coordinator_is_away(
    node: str, tmp_path: Path, read: tuple[str, ...], away: str
) -> None:
    with standing_still() as still:
        where = folder(tmp_path, NOBODY if away == "gone" else still, NOBODY, node)
        began = time.monotonic()
        shown = run(*read, *where, give_up=4.0)
        assert time.monotonic() - began < LIMIT_S
        told = json.loads(run(*read, *where, "--json", give_up=4.0).stdout)
    assert shown.stdout.strip()
    assert told
    if read[0] == "index":
        assert "this is what a node knows" in shown.stderr
        one = told[0] if isinstance(told, list) else told
        assert (one["name"], one["keyspace"], one["slices"]) == ("by_city", "users", 2)
        assert one["statement"].startswith("CREATE INDEX by_city")


def test_a_node_that_stands_still_is_not_asked_first(node: str, tmp_path: Path) -> None:
    with standing_still() as still:
        began = time.monotonic()
        run("scan", "by_city", *folder(tmp_path, NOBODY, still, node))
        assert time.monotonic() - began < LIMIT_S


def test_nodes_of_the_environment_and_of_the_coordinator(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = ("--data-dir", str(tmp_path / "no"))
    monkeypatch.setenv("KEYTIDE_NODES", f"{NOBODY}, {node}")
    assert "Bonn" in run("scan", "by_city", "--url", NOBODY).stdout
    assert "u1" in run("sql", SELECT, *missing).stdout
    monkeypatch.delenv("KEYTIDE_NODES")
    with_node = folder(tmp_path, NOBODY, node)
    problem = run("scan", "by_city", *with_node, "--url", NOBODY, "--json", status=1).stdout
    assert json.loads(problem)["next_step"], "--url names another cluster than the folder's"


@pytest.mark.parametrize("command", [*READS, *OTHERS])
def test_every_command_gives_up_in_the_time_that_it_states(
    tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts stand still: the message says who was asked, and for how long."""
    monkeypatch.setattr("keytide.cli.nodes._READY_S", 0.1)
    with standing_still() as still:
        began = time.monotonic()
        result = run(*command, *folder(tmp_path, still, still), "--json", status=1, give_up=0.1)
        assert time.monotonic() - began < LIMIT_S
    problem: dict[str, Any] = json.loads(result.stdout)
    assert still in problem["detail"]
    assert "--give-up" in problem["next_step"]


def test_who_waits_for_a_build_pauses_no_longer_than_it_has_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("keytide.cli.admin.time", clock)
    where = folder(tmp_path, NOBODY)
    run("build", "wait", "b1", *where, "--json", status=1, give_up=0.6)
    assert 0.6 <= sum(pauses) < 0.65


def test_no_command_is_forgotten() -> None:
    tried = {
        command[: 2 if command[0] in ("index", "build", "job", "node") else 1] for command in READS + OTHERS
    }
    all_commands = {
        tuple(path.split()[1:]) for path, command in every_command() if not hasattr(command, "list_commands")
    }
    assert all_commands - tried == LOCAL


def test_nothing_there_at_all_is_said_at_once(tmp_path: Path) -> None:
    for command in READS + OTHERS:
        began = time.monotonic()
        result = run(*command, *folder(tmp_path, NOBODY, NOBODY), "--json", status=1, give_up=1.0)
        assert time.monotonic() - began < LIMIT_S, command
        assert json.loads(result.stdout)["next_step"]


def test_an_index_that_no_node_knows(node: str, tmp_path: Path) -> None:
    where = folder(tmp_path, NOBODY, node)
    problem = json.loads(run("index", "show", "nosuch", *where, "--json", status=1).stdout)
    assert "no node knows" in problem["detail"]
