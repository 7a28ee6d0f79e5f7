"""The clock of a process follows the machine's, and never goes back."""

from __future__ import annotations

import time

import pytest

from keytide.http.node_protocol import headers_of, opens
from keytide.process.clock import ForwardClock, now_ms, wall_ms

SECRET = "5ec2e7" * 8


class Machine:
    """A clock that is set, beside one that is not."""

    def __init__(self) -> None:
        self.wall = 1_000_000
        self.steady = 50
        self.clock = ForwardClock(lambda: self.wall, lambda: self.steady)

    def passes(self, time: int) -> int:
        self.wall += time
        self.steady += time
        return self.clock.now()


def test_it_is_the_wall_clock() -> None:
    machine = Machine()
    told = [machine.passes(step) for step in (0, 1, 30, 1_000)]
    assert told == [1_000_000, 1_000_001, 1_000_031, 1_001_031]
    assert abs(now_ms() - time.time() * 1_000) < 5_000


def test_it_follows_at_once_where_the_clock_is_set_forward() -> None:
    machine = Machine()
    machine.wall += 3_600_000
    assert machine.passes(10) == machine.wall


def test_it_goes_on_at_half_speed_where_the_clock_is_set_back_until_that_has_caught_up() -> None:
    machine = Machine()
    machine.wall -= 1_000
    assert machine.passes(100) == 1_000_050
    assert machine.passes(900) == 1_000_500
    assert machine.passes(1_000) == machine.wall == 1_001_000
    assert machine.passes(10) == machine.wall


def test_it_never_goes_back_whatever_is_set() -> None:
    machine, told = Machine(), 0
    for step in range(1, 400):
        machine.wall += (step * 7_919) % 2_001 - 1_000
        now = machine.passes(step % 13)
        assert now >= max(told, machine.wall)
        told = now


def test_what_machines_compare_goes_by_the_clock_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose clock was hours ahead and is put right is let in by the others at once."""
    now = [10 * 3_600_000_000_000]
    monkeypatch.setattr("time.time_ns", lambda: now[0])
    assert opens(headers_of(SECRET, wall_ms())["Authorization"].encode(), SECRET, now[0] // 1_000_000)
    now[0] -= 8 * 3_600_000_000_000
    assert opens(headers_of(SECRET, wall_ms())["Authorization"].encode(), SECRET, now[0] // 1_000_000)
