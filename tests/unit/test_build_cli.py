"""The command's words about builds, and what it asks of the coordinator to steer them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from coordinator.http.api import BuildBody
from keytide.cli.admin import Admin, build_words, duration, why_ended
from keytide.errors import CallerError
from keytide.settings.builds import BuildSettings
from tests.unit.command import run_command

STATE = {
    "id": "b7",
    "indexes": ["by_city"],
    "state": "BACKFILL",
    "phase": "reading",
    "paused": None,
    "rate": 12_345.6,
    "rate_limit": None,
    "eta_s": 200.4,
    "waiting_for": "",
    "documents_done": 10,
    "documents_total": 100,
    "error": None,
}


class Coordinator:
    """Answers in place of one; `states` one after the other, the last for ever."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = list(states)
        self.asked: list[tuple[str, str, Any]] = []

    def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.asked.append((method, path, body))
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state.get("interrupt"):
            raise KeyboardInterrupt
        return state


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Coordinator]:
    """The coordinator that commands speak to: the first of this list."""
    found: list[Coordinator] = []

    def call(_: Admin, method: str, path: str, body: Any = None, **more: Any) -> Any:
        return found[0].call(method, path, body, **more)

    monkeypatch.setattr(Admin, "call", call)
    monkeypatch.setattr("keytide.cli.admin.time.sleep", lambda _: None)
    return found


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.4, "59 s"), (200.4, "3 min 20 s"), (3_600, "1 h 0 min"), (90_061, "25 h 1 min")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_build_in_words() -> None:
    words = "reading, 10 of 100 documents, 12,346 documents/s, 3 min 20 s to go"
    assert build_words(STATE) == words
    assert build_words({**STATE, "rate": 0.0, "eta_s": None}) == "reading, 10 of 100 documents"
    verifying = {**STATE, "state": "CATCHUP", "phase": "verifying", "rate": 0.0, "eta_s": 42.0}
    assert build_words(verifying) == "verifying, 42 s to go"
    held = {
        **STATE,
        "documents_total": 0,
        "phase": "waiting-for-transactions",
        "rate": 0,
        "eta_s": None,
        "waiting_for": "partition 3",
    }
    assert build_words(held) == "waiting-for-transactions, waits for partition 3"
    assert build_words({**STATE, "paused": "the disk is full"}) == "pauses: the disk is full"
    assert build_words({"state": "QUEUED"}) == "", "members that an older coordinator does not have"


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (("pause", "b7"), ("POST", "/v1/builds/b7/pause", None)),
        (("resume", "b7"), ("POST", "/v1/builds/b7/resume", None)),
        (("throttle", "b7", "500"), ("PATCH", "/v1/builds/b7", {"rate_limit": 500})),
        (("throttle", "b7", "0"), ("PATCH", "/v1/builds/b7", {"rate_limit": None})),
    ],
)
def test_steering(answers: list[Coordinator], command: tuple[str, ...], asked: tuple[str, str, Any]) -> None:
    answers.append(Coordinator({**STATE, "state": "PAUSED", "paused": "on request", "rate_limit": 500}))
    told = run_command(["build", *command])
    assert told.exit_code == 0
    assert told.stdout.strip() == "build b7 is PAUSED, at most 500 documents/s: on request"
    assert answers[0].asked == [asked]
    told = run_command(["build", *command, "--json"])
    assert json.loads(told.stdout)["paused"] == "on request"


@pytest.mark.parametrize(
    ("options", "verify"),
    [((), None), (("--verify",), True), (("--no-verify",), False), (("--verify-full",), "full")],
)
def test_how_a_build_is_verified(answers: list[Coordinator], options: tuple[str, ...], verify: Any) -> None:
    answers.append(Coordinator(STATE))
    result = run_command(["index", "build", "by_city", *options, "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 0, result.output
    ((_, path, body),) = answers[0].asked
    assert (path, body.get("verify")) == ("/v1/builds", verify)
    built = BuildBody.model_validate(body).verify
    assert (built, type(built)) == (verify, type(verify)), "as the coordinator reads it"
    if verify is not None:
        assert BuildSettings.model_validate({"verify": str(verify).lower()}).verify == verify


def test_a_build_is_not_verified_in_two_ways(answers: list[Coordinator]) -> None:
    answers.append(Coordinator(STATE))
    command = ["index", "build", "by_city", "--no-verify", "--verify-full"]
    told = run_command([*command, "--url", "http://127.0.0.1:1"])
    assert (told.exit_code, answers[0].asked) == (1, [])
    assert "--verify-full takes no --no-verify" in told.stderr


def test_a_build_is_waited_for_to_its_end(answers: list[Coordinator]) -> None:
    answers.append(Coordinator(STATE, {**STATE, "paused": "a [disk] is full"}, {**STATE, "state": "READY"}))
    told = run_command(["build", "wait", "b7", "--json"])
    assert json.loads(told.stdout)["state"] == "READY"
    answers[:] = [Coordinator(STATE, {**STATE, "state": "FAILED", "error": "offsets are gone"})]
    told = run_command(["build", "wait", "b7"])
    assert told.exit_code == 1
    assert "offsets are gone" in told.stderr


def test_the_bar_shows_how_far_it_is_to_ready(
    answers: list[Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All documents are read long before: what counts is the percent, verification included."""
    drawn: list[tuple[float, float | None]] = []

    def update(_: Any, task: Any, **values: Any) -> None:
        drawn.append((values["completed"], values["total"]))

    monkeypatch.setattr("keytide.cli.output.Progress.update", update)
    verifying = {**STATE, "documents_done": 100, "state": "CATCHUP", "phase": "verifying"}
    percents = (0.0, 70.5, 99.9)
    states = [{**verifying, "percent": percent} for percent in percents]
    answers.append(Coordinator(*states, {**verifying, "state": "READY", "percent": 100.0}))
    with Admin("http://127.0.0.1:1") as admin:
        admin.wait_for_build("b7")
    assert drawn == [(0.0, None), (70.5, 100), (99.9, 100), (100.0, 100)]


def test_whoever_goes_away_is_told_how_to_come_back(answers: list[Coordinator]) -> None:
    answers.append(Coordinator(STATE, {"interrupt": True}))
    told = run_command(["build", "wait", "b7"])
    assert told.exit_code == 130
    assert "build b7 goes on" in told.stderr
    assert "keytide build wait b7" in told.stderr.replace("\n", " ")
    assert all(method == "GET" for method, _, _ in answers[0].asked), "the build is left alone"
    quiet = Coordinator(STATE, {"interrupt": True})
    answers[:] = [quiet]
    assert run_command(["build", "wait", "b7", "--json"]).stderr.strip() == ""


def test_a_rate_below_nothing_is_refused(answers: list[Coordinator]) -> None:
    answers.append(Coordinator(STATE))
    assert run_command(["build", "throttle", "b7", "--", "-1"]).exit_code == 2
    assert answers[0].asked == []


def test_a_build_that_was_cancelled_is_no_success(answers: list[Coordinator]) -> None:
    answers.append(Coordinator({**STATE, "state": "CANCELLED"}))
    with Admin("http://127.0.0.1:1") as admin, pytest.raises(CallerError) as caught:
        admin.wait_for_build("b7", quiet=True)
    assert caught.value.problem_type == "build-failed"
    assert caught.value.message == "build b7 is CANCELLED: cancelled"
    told = {"state": "CANCELLED", "error": "on request", "finished_at": 1_790_000_000_000}
    assert re.fullmatch(r"on request \(2026-\S+ \S+\)", why_ended(told))
    assert why_ended({"state": "FAILED", "error": None}) == "no reason given"
