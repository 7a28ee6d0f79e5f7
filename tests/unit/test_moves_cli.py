"""Drains and rebalances over HTTP and by the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from typer.testing import Result

from keytide.catalog.copies import Move
from keytide.cli import jobs as job_commands
from keytide.cli.output import out
from tests.browser.scene import Scene, busy_day, served
from tests.unit.command import run_command
from tests.unit.moves_double import MovesDouble


@pytest.fixture
def scene() -> Scene:
    return busy_day()


@pytest.fixture
def moves(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> MovesDouble:
    double = MovesDouble(monkeypatch, scene.leader)
    double.planned = [Move(index(scene), 0, "node-1", "node-2", 3 << 20)]
    return double


@pytest.fixture
def address(scene: Scene, moves: MovesDouble, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(out, "_width", 250)
    with served(scene) as url:
        monkeypatch.setenv("KEYTIDE_URL", url)
        yield url


def index(scene: Scene) -> str:
    return scene.leader.dictionary.index_named("by_destination").id


def run(*arguments: str, status: int = 0, answer: str | None = None) -> Result:
    result = run_command(arguments, input=answer)
    assert result.exit_code == status, result.output
    return result


def run_json(*arguments: str, status: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", status=status).stdout)


def once_asked(monkeypatch: pytest.MonkeyPatch, scene: Scene, then: Callable[[], object]) -> None:
    """Something happens whenever the coordinator has been asked something."""
    ask = scene.ask

    def asked(look: Any) -> Any:
        answer = ask(look)
        then()
        return answer

    monkeypatch.setattr(scene, "ask", asked)


def test_a_node_is_drained_and_undrained(address: str, moves: MovesDouble) -> None:
    moves.on["node-1"] = 12
    job = run_json("node", "drain", "node-1")
    assert (job["id"], job["kind"], job["state"]) == ("drain-node-1", "drain", "RUNNING")
    assert run_json("job", "show", "drain-node-1")["detail"] == "node node-1 has 12 copies still"
    assert "drain-node-1" in run("job", "list").stdout
    assert [one["drain"] for one in run_json("node", "list")] == ["draining", None]
    assert "draining" in run("node", "list").stdout
    assert run_json("node", "undrain", "node-1")["drain"] is None
    assert run("node", "undrain", "node-1").stdout == "node node-1 may have slices again\n"
    assert run_json("node", "drain", "nosuch", status=1)["type"] == "node-not-found"
    assert run_json("node", "undrain", "nosuch", status=1)["status"] == 404


def test_a_drain_is_waited_for(
    address: str, scene: Scene, moves: MovesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves.on["node-1"] = 12
    once_asked(monkeypatch, scene, moves.on.clear)
    told = run("node", "drain", "node-1", "--wait")
    assert "DONE" in told.stdout
    moves.on["node-1"] = 12
    once_asked(monkeypatch, scene, lambda: moves.undrain("node-1"))
    assert run_json("node", "drain", "node-1", "--wait", status=1)["type"] == "job-failed"


def test_jobs_that_move_copies_are_cancelled(address: str, moves: MovesDouble) -> None:
    moves.on["node-1"] = 12
    run("node", "drain", "node-1")
    assert run_json("job", "cancel", "drain-node-1")["state"] == "CANCELLED"
    assert run_json("job", "cancel", "drain-node-1", status=1)["type"] == "job-not-found"
    job = run_json("rebalance", "--yes", "--no-wait")
    assert run_json("job", "cancel", job["id"])["state"] == "CANCELLED"
    assert run_json("job", "report", job["id"], status=1)["type"] == "job-moves-copies"


def test_a_plan_is_shown_and_nothing_moves(address: str, scene: Scene, moves: MovesDouble) -> None:
    plan = run_json("rebalance", "--dry-run")
    assert plan == {
        "moves": [
            {
                "index": "by_destination",
                "slice": 0,
                "source": "node-1",
                "target": "node-2",
                "bytes": 3 << 20,
            }
        ],
        "bytes": 3 << 20,
    }
    told = run("rebalance", "--dry-run").stdout
    assert all(word in told for word in ("by_destination", "node-1", "node-2", "1 copy moves, 3.0 MiB"))
    moves.planned = [*moves.planned, replace(moves.planned[0], slice=1)]
    assert "2 copies move, 6.0 MiB" in run("rebalance", "--dry-run").stdout
    moves.planned = []
    assert "nothing is to be moved" in run("rebalance", "--yes").stdout
    assert scene.leader.dictionary.catalog.rebalances() == []
    assert httpx.post(f"{address}/v1/rebalance", json={"dry_run": True}).status_code == 200
    assert httpx.post(f"{address}/v1/rebalance", json={"other": True}).status_code == 422
    assert httpx.post(f"{address}/v1/rebalance").status_code == 202


def test_nothing_moves_that_nobody_has_agreed_to(
    address: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ((), ("--json",)):
        told = run("rebalance", *form, status=1).output
        assert "--yes" in told
    monkeypatch.setattr(job_commands, "at_terminal", lambda: True)
    assert "by_destination" in run("rebalance", status=1, answer="n\n").stdout
    assert scene.leader.dictionary.catalog.rebalances() == []
    run("rebalance", "--no-wait", answer="y\n")
    assert len(scene.leader.dictionary.catalog.rebalances()) == 1


def test_a_rebalance_is_waited_for(address: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> None:
        for one in scene.leader.dictionary.catalog.rebalances():
            scene.leader.dictionary.put(replace(one, state="DONE", left=[], dropped=1))

    once_asked(monkeypatch, scene, end)
    told = run("rebalance", "--yes").stdout
    assert "0 of 1 moves are done, 1 came to nothing" in told
