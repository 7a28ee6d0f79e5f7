"""Jobs over HTTP and by the command: asked for, looked at, cancelled, and their reports as JSON, as tables
and as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import Result

from coordinator.core.events import Reported, Tick
from keytide.cli.output import out
from keytide.process.clock import now_ms
from keytide.wire.messages import JobProgress
from tests.browser.scene import Scene, busy_day, served
from tests.unit.command import run_command


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return busy_day(data_dir=tmp_path)


@pytest.fixture
def address(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(out, "_width", 250)
    with served(scene) as url:
        yield url


def run(*arguments: str, status: int = 0) -> Result:
    result = run_command(arguments)
    assert result.exit_code == status, result.output
    return result


def run_json(*arguments: str, status: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", status=status).stdout)


def finish(scene: Scene, job: str, counts: dict[str, int], differences: list[dict[str, Any]]) -> None:
    """The driver's work: a report, and its last word."""
    folder = scene.settings.data_dir / "jobs" / job
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "differences.ndjson").write_text("".join(json.dumps(one) + "\n" for one in differences))
    index = {"name": "by_destination", "entries": 7, "unproven": 1, "not_examined": 0, "counts": counts}
    report = {
        "job": job,
        "kind": "verify",
        "keyspace": "flights",
        "snapshot": 9,
        "documents_read": 1_234,
        "counts": counts,
        "clean": not counts,
        "listed": len(differences),
        "indexes": [index],
        "seconds": 2.5,
        "timestamp": {},
    }
    (folder / "report.json").write_text(json.dumps(report))
    scene.handle(Tick(now_ms() + 1_000))
    message = JobProgress(job, "r", "DONE", 9, 100.0, 1_234, 1_234, counts, "", "", now_ms())
    scene.handle(Reported(message, now_ms()))


def difference(number: int) -> dict[str, Any]:
    return {
        "kind": "WRONG_KEY",
        "index": "by_destination",
        "id": f"<f{number}>",
        "expected": [{"key": ["BOS", None], "slice": 1, "include": {"carrier": "UA"}}],
        "found": [],
        "version": {"partition": 0, "offset": number, "time": 5},
        "held": {"1": {"partition": 0, "offset": 3, "time": 5}},
        "reason": "it moved",
    }


def test_asked_for_once_shown_and_cancelled(address: str) -> None:
    job = run_json("index", "verify", "by_destination", "--url", address)
    assert (job["kind"], job["indexes"], job["build"]) == ("verify", ["by_destination"], None)
    assert job["state"] in ("QUEUED", "RUNNING")
    again = run_json("index", "verify", "by_destination", "--url", address, status=1)
    assert (again["type"], again["status"]) == ("job-under-way", 409)
    assert job["id"] in again["detail"]
    assert [one["id"] for one in run_json("job", "list", "--url", address)] == [job["id"]]
    assert run_json("job", "report", job["id"], "--url", address, status=1)["type"] == "no-report"
    assert "by_destination" in run("job", "show", job["id"], "--url", address).stdout
    assert run_json("job", "cancel", job["id"], "--url", address)["state"] == "CANCELLED"
    assert run_json("job", "cancel", job["id"], "--url", address, status=1)["type"] == "job-over"
    assert run_json("job", "show", "j999", "--url", address, status=1)["type"] == "job-not-found"
    assert run_json("index", "verify", "nothing", "--url", address, status=1)["type"] == "index-not-found"
    failed = [one["name"] for one in run_json("index", "list", "--url", address) if one["state"] == "FAILED"]
    for name in failed:
        assert run_json("index", "verify", name, "--url", address, status=1)["type"] == "index-not-ready"


def test_a_report_with_differences(address: str, scene: Scene) -> None:
    job = run_json("index", "verify", "by_destination", "--url", address)["id"]
    finish(scene, job, {"WRONG_KEY": 3}, [difference(number) for number in range(3)])
    shown = run_json("job", "show", job, "--url", address)
    assert (shown["state"], shown["clean"], shown["counts"]) == ("DONE", False, {"WRONG_KEY": 3})
    first = run_json("job", "report", job, "--limit", "2", "--url", address)
    assert ([one["id"] for one in first["differences"]], first["next"]) == (["<f0>", "<f1>"], 2)
    rest = run_json("job", "report", job, "--offset", "2", "--url", address)
    assert ([one["id"] for one in rest["differences"]], rest["next"]) == (["<f2>"], None)
    text = run("job", "report", job, "--limit", "2", "--url", address).stdout
    assert all(word in text for word in ("WRONG_KEY", "<f0>", "it moved", "--offset 2"))
    page = httpx.get(f"{address}/v1/jobs/{job}/report", params={"format": "html", "limit": 2})
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "&lt;f0&gt;" in page.text
    assert "<f0>" not in page.text
    assert "there are differences" in page.text
    assert "BOS" in page.text
    index = run_json("index", "show", "by_destination", "--url", address)
    assert (index["verification"]["job"], index["verification"]["clean"]) == (job, False)
    assert "index-differs" in {event["kind"] for event in run_json("events", "--url", address)}


def test_the_exit_status_of_a_verification_that_is_waited_for(
    address: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for counts, status in (({"EXTRA": 1}, 4), ({}, 0), ({"UNPROVABLE": 5}, 0)):

        def sleep(_: float, counts: dict[str, int] = counts) -> None:
            waiting = [one for one in scene.leader.jobs.all() if one.state in ("QUEUED", "RUNNING")]
            if waiting:
                finish(scene, waiting[0].id, counts, [])

        monkeypatch.setattr("keytide.cli.admin.time.sleep", sleep)
        arguments = ("index", "verify", "by_destination", "--wait", "--url", address)
        shown = run_json(*arguments, status=status)
        assert shown["counts"] == counts
    assert run("job", "list", "--url", address).stdout.count("DONE") == 3
