"""Slices that fall behind: how long timestamps wait for them, and how they come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.events import Issued, Tick
from coordinator.core.instructions import Note
from coordinator.core.limits import CoreLimits
from keytide.wire.messages import Published, StabilityTimestamp
from tests.unit.test_coordinator_core import (
    TERM,
    Core,
    ack,
    catalog,
    heartbeat,
    index_record,
    progress,
    published,
    stamps,
)

LIMITS = CoreLimits(
    interval_ms=10, heartbeat_ms=200, pacing_limit_ms=2_000, node_timeout_ms=3_000, lag_limit_ms=5_000
)
STEP_MS = 5


class Run:
    """A busy stream and two slices: node a's holds everything at once, node b's when told.

    Args:
        copies: both nodes have both slices.
    """

    def __init__(self, limits: CoreLimits = LIMITS, *, copies: bool = False) -> None:
        self.core = Core(limits, TERM)
        self.slices = {"a": (0, 1), "b": (0, 1)} if copies else {"a": (0,), "b": (1,)}
        placement = [[node for node in "ab" if number in self.slices[node]] for number in (0, 1)]
        self.core.catalog_changed(catalog(index_record(placement=placement)), 0)
        self.published: list[Published] = []
        self.now = 1_000
        self.number = 0
        self.issued: list[tuple[int, StabilityTimestamp]] = []
        self.numbers: dict[int, int] = {}
        self.notes: list[Note] = []
        self.held = {"a": -1, "b": -1}
        self.delay: int | None = 0
        self.busy = True

    def take(self, out: list[object]) -> None:
        self.notes += [one for one in out if isinstance(one, Note)]
        self.published += published(out)  # type: ignore[arg-type]
        for stamp in stamps(out):  # type: ignore[arg-type]
            self.number += 1
            self.numbers[self.number] = self.now
            self.issued.append((self.now, stamp))
            self.take([*self.core.handle(Issued(stamp, self.number, self.now))])

    def hold(self, node: str, delay: int) -> None:
        ripe = [number for number, at in self.numbers.items() if at <= self.now - delay]
        if ripe and max(ripe) > self.held[node]:
            self.held[node] = max(ripe)
            slices = [("by_city-1", number) for number in self.slices[node]]
            self.take([*self.core.handle(ack(self.now, node, self.held[node], *slices))])

    def go(self, ms: int) -> None:
        for _ in range(0, ms, STEP_MS):
            self.now += STEP_MS
            if self.busy:
                self.take([*self.core.handle(progress(self.now, self.now, self.now))])
            self.hold("a", 0)
            if self.delay is not None:
                self.hold("b", self.delay)
            if self.now % 500 == 0:
                for node, numbers in self.slices.items():
                    held = [("by_city-1", number, self.held[node]) for number in numbers]
                    beat = heartbeat(self.now, node, *held)
                    self.take([*self.core.handle(beat)])
            self.take([*self.core.handle(Tick(self.now))])

    def contents(self, ms: int) -> int:
        """How many new contents were issued in the last `ms`."""
        recent = [stamp.timestamp.offset(0) for at, stamp in self.issued if at > self.now - ms]
        return len(set(recent))

    def kinds(self) -> list[str]:
        return [note.kind for note in self.notes if note.kind.startswith("slice")]


def test_a_slice_that_falls_behind_stops_holding_timestamps_back_and_rejoins() -> None:
    run = Run()
    run.go(2_000)
    assert run.contents(1_000) == 100  # one every interval
    run.delay = None  # b stands still
    run.go(5_000)
    assert run.contents(4_500) <= 3  # one at each pacing limit
    assert run.kinds() == []
    run.go(1_000)
    assert run.kinds() == ["slice-lags"]
    assert "slice 1 of by_city-1 on node b" in run.notes[-1].text
    run.go(1_000)
    assert run.contents(1_000) == 100
    run.delay = 3_000  # it moves again, three seconds behind
    run.go(2_000)
    assert run.contents(1_000) == 100
    assert run.kinds() == ["slice-lags"]
    run.delay = 0
    run.go(500)
    assert run.kinds() == ["slice-lags", "slice-caught-up"]
    run.delay = None
    run.go(1_500)
    assert run.contents(1_000) <= 1  # it is waited for again


def test_readers_are_told_which_copies_are_not_waited_for() -> None:
    """Until they are waited for again, and hold what is published next (R37)."""
    run = Run(copies=True)
    run.go(2_000)
    run.delay = None
    run.go(8_000)
    assert run.published[0].behind == {}
    assert run.published[-1].behind == {"b": {"by_city-1": [0, 1]}}
    run.delay = 0
    run.go(500)
    assert run.kinds()[-1] == "slice-caught-up"
    assert run.published[-1].behind == {}


def test_a_slice_of_almost_the_same_speed_comes_back() -> None:
    """It never holds the newest, for the others go on every interval; it is waited for all the same."""
    run = Run()
    run.go(1_000)
    run.delay = None
    run.go(9_000)
    assert run.kinds() == ["slice-lags"]
    run.delay = 400
    run.go(1_000)
    assert run.kinds() == ["slice-lags", "slice-caught-up"]
    run.go(8_000)
    assert run.kinds() == ["slice-lags", "slice-caught-up"]
    assert run.contents(4_000) >= 9  # at its own speed


def test_a_quiet_stream_makes_nobody_lag() -> None:
    run = Run()
    run.go(1_000)
    run.busy = False
    run.go(1_000)
    run.delay = None  # it holds the content, not its repetitions
    run.go(20_000)
    assert run.kinds() == []


def test_a_node_that_dies_is_not_said_to_lag() -> None:
    run = Run()
    run.go(1_000)
    run.delay = None
    run.go(4_000)
    restarted = heartbeat(run.now, "b", ("by_city-1", 1, -1), started_at=2)
    run.take([*run.core.handle(restarted)])
    run.held["b"] = -1
    run.go(4_000)
    assert run.kinds() == []
    assert run.contents(1_000) == 100


@pytest.mark.parametrize("since_mark", range(0, 150, 15))
def test_a_slice_lags_at_whatever_content_it_stands(since_mark: int) -> None:
    """Not only at one that is remembered as a mark: with pacing that never gives up no newer one comes."""
    run = Run(replace(LIMITS, pacing_limit_ms=600_000))
    run.go(1_000 + since_mark)
    run.delay = None
    run.go(LIMITS.lag_limit_ms + LIMITS.heartbeat_ms + 100)
    assert run.kinds() == ["slice-lags"]
    run.go(1_000)
    assert run.contents(1_000) >= 99, "nothing waits for it any more"
    run.delay = 0
    run.go(1_500)
    assert run.kinds() == ["slice-lags", "slice-caught-up"]
