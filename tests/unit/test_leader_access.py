"""What changes the coordinator, and what it asks of Kafka for that, while Kafka does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from threading import Event, Timer
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from coordinator.core.source_status import SourceStatus
from coordinator.http import leader_access
from coordinator.http.api import create_app
from coordinator.process.service import CoordinatorService
from keytide.cli.options import DEFAULT_GIVE_UP_S
from keytide.errors import CallerError
from keytide.process.clock import now_ms
from keytide.settings.settings import BACK_MS
from tests.browser.scene import Scene, busy_day

CREATE = "CREATE INDEX by_speed ON flights (speed) WITH (defer_build = true)"
SILENT_S = 20.0
"""For so long Kafka does not answer."""


class _Stopped:
    """A service whose Kafka stands still: no change is committed, no question answered."""

    def __init__(self, scene: Scene, silent_ms: int) -> None:
        self._scene = scene
        self.goes_on = Event()
        self.kafka_answers = False
        scene.leader.stability.failure_detector.kafka_silence = silent_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scene, name)

    def change(self, _: Any) -> Future[Any]:
        return Future()

    def sample(self, keyspace: str) -> SourceStatus:
        if not self.kafka_answers:
            self.goes_on.wait(SILENT_S)
        return self._scene.sample(keyspace)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Stopped]:
    monkeypatch.setattr(leader_access, "LOOK_S", 0.05)
    monkeypatch.setattr(leader_access, "SILENT_MS", 200)
    scene = busy_day()
    scene.pulsed_at = now_ms() + 60_000  # nobody says anything any more
    service = _Stopped(scene, 5_000)
    yield service
    service.goes_on.set()


def test_the_command_waits_for_longer_and_clients_come_back_sooner() -> None:
    assert 2 * BACK_MS < leader_access.SILENT_MS
    assert leader_access.SILENT_MS / 1000 + 2 * leader_access.LOOK_S < DEFAULT_GIVE_UP_S


@pytest.mark.parametrize("asks_kafka_first", [True, False])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/statements", {"statement": CREATE}),
        ("POST", "/v1/statements", {"statement": "DROP INDEX by_carrier"}),
        ("POST", "/v1/statements", {"statement": "BUILD INDEX ON flights (by_carrier)"}),
        ("DELETE", "/v1/indexes/by_carrier", None),
        ("POST", "/v1/builds", {"indexes": ["by_carrier"]}),
        ("POST", "/v1/builds/b1/cancel", None),
        ("POST", "/v1/builds/b1/pause", None),
        ("PATCH", "/v1/builds/b1", {"rate_limit": 5}),
        ("POST", "/v1/indexes/by_carrier/verify", None),
    ],
)
def test_a_change_is_told_that_kafka_does_not_answer(
    stopped: _Stopped, method: str, path: str, body: Any, asks_kafka_first: bool
) -> None:
    stopped.kafka_answers = not asks_kafka_first
    app = create_app(cast(CoordinatorService, stopped), "http://127.0.0.1:8091")
    with TestClient(app) as client:
        began = time.monotonic()
        told = client.request(method, path, json=body)
        stopped.goes_on.set()
    assert time.monotonic() - began < SILENT_S / 2
    assert (told.status_code, told.json()["type"]) == (503, "kafka-unavailable"), told.text
    creates = body == {"statement": CREATE} and asks_kafka_first
    so = "nothing was changed" if creates else "the change may still take effect"
    assert told.json()["detail"] == f"Kafka has answered nothing for 5 s; {so}"
    assert "`keytide doctor`" in told.json()["next_step"]


def test_a_kafka_that_is_slow_is_waited_for(stopped: _Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped.leader.stability.failure_detector.kafka_silence = leader_access.SILENT_MS - 1
    _told_at_last(stopped, monkeypatch, after_s=0.4)


def test_a_kafka_that_is_just_back_is_waited_for(stopped: _Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_access, "SILENT_MS", 5_000)
    stopped.leader.stability.failure_detector.kafka_silence = 77_000
    _told_at_last(stopped, monkeypatch, after_s=0.4)


def _told_at_last(stopped: _Stopped, monkeypatch: pytest.MonkeyPatch, after_s: float) -> None:
    made: Future[Any] = Future()
    monkeypatch.setattr(_Stopped, "change", lambda self, command: made)
    app = create_app(cast(CoordinatorService, stopped), "http://127.0.0.1:8091")
    with TestClient(app) as client:
        Timer(after_s, lambda: made.set_exception(CallerError("at last"))).start()
        assert client.delete("/v1/indexes/by_carrier").json()["detail"] == "at last"
