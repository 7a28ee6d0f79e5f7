"""How long the workload driver waits before it calls something stuck."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keytide.errors import RetryableError
from tests.chaos import patience
from tests.chaos.patience import Patience, builds_of


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_moves_is_waited_for_up_to_a_limit() -> None:
    time = Time()
    waiting = Patience(lambda: time.now, still_s=10, most_s=60, clock=time)
    while time.now <= 160:
        assert not waiting.over
        time.now += 5
    assert waiting.over


def test_what_stands_still_is_stuck() -> None:
    time, where = Time(), 0
    waiting = Patience(lambda: where, still_s=10, most_s=1_000, clock=time)
    assert not waiting.over
    time.now, where = 109.0, 1
    assert not waiting.over
    time.now = 118.0
    assert not waiting.over, "it moved at 109"
    time.now, where = 120.0, 0
    assert waiting.over, "it was there before"


def test_what_cannot_be_told_is_no_movement() -> None:
    time, told = Time(), [7, None, 7, None]
    waiting = Patience(lambda: told.pop(0), still_s=10, most_s=1_000, clock=time)
    for now in (100.0, 104.0, 108.0):
        time.now = now
        assert not waiting.over
    time.now = 111.0
    assert waiting.over


def struck_every(pause: float, moves: Callable[[float], object], *, until: float) -> float | None:
    """When patience runs out with a fault every so many seconds; None when not until then."""
    time = Time()
    waiting = Patience(
        lambda: moves(time.now),
        still_s=100,
        most_s=10_000,
        clock=time,
        struck=lambda: time.now // pause * pause,
        needed=lambda: 20.0,
    )
    while time.now < until:
        if waiting.over:
            return time.now
        time.now += 1
    return None


def test_what_was_never_given_the_time_is_not_stuck() -> None:
    assert struck_every(15, lambda _: 0, until=5_000) is None
    at = struck_every(25, lambda _: 0, until=5_000)
    assert at is not None
    assert 200 < at < 300


def test_a_driver_that_begins_from_zero_again_and_again_is_stuck() -> None:
    """It does two micro-batches in every spell, pauses and goes on, and keeps nothing."""

    def batches(now: float) -> object:
        return "PAUSED" if now % 50 < 3 else min(2, int(now % 50 // 10))

    at = struck_every(50, batches, until=5_000)
    assert at is not None
    assert at < 400


def test_a_driver_that_keeps_a_little_each_time_is_not() -> None:
    assert struck_every(50, lambda now: int(now // 90), until=5_000) is None


def test_builds_that_are_over_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[dict[str, object]] = [
        {"id": "b1", "state": "READY", "phase": None, "batches": 3, "documents_done": 9},
        {"id": "b2", "state": "BACKFILL", "phase": "reading", "batches": 1, "documents_done": 5},
    ]

    class Answering:
        def __init__(self, url: str) -> None:
            assert url == "the coordinator's"

        def __enter__(self) -> Answering:
            return self

        def __exit__(self, *_: object) -> None: ...

        def call(self, *_: object) -> object:
            return builds

    class Away(Answering):
        def call(self, *_: object) -> object:
            raise RetryableError("away")

    monkeypatch.setattr(patience, "Admin", Answering)
    before = builds_of("the coordinator's")
    builds[0]["batches"] = 10
    assert builds_of("the coordinator's") == before
    builds[1]["documents_done"] = 6
    assert builds_of("the coordinator's") == before, "a fault may take it away"
    builds[1]["batches"] = 2
    assert builds_of("the coordinator's") != before
    monkeypatch.setattr(patience, "Admin", Away)
    assert builds_of("the coordinator's") is None
