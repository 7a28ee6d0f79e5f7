"""Which slices get much more than the others: what is told, from when on and until when."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.core.slice_loads import LOOKS, Hot, LoadLimits, over_others
from tests.unit.copies_world import INDEX, CopiesWorld

LOAD = LoadLimits(look_ms=2_000, rate=100, entries=1_000)
PATIENCE = (LOOKS + 2) * LOAD.look_ms
"""The first look comes before any node was heard, and the second gives no rate."""


class LoadWorld(CopiesWorld):
    """Slices of an index that are written to and read at given rates.

    Attributes:
        writes, reads: per second, of each slice; each copy has all writes, and an equal part of the reads.
    """

    load_limits = LOAD

    def __init__(self, placement: list[list[str]], replicas: int = 0) -> None:
        self.writes = [10] * len(placement)
        self.reads = [0] * len(placement)
        super().__init__(placement, replicas)
        for node in self.nodes.values():
            for copy in node.copies.values():
                copy.writes = 0

    def go(self, ms: int) -> list[Any]:
        out = []
        for _ in range(0, ms, 500):
            for node in self.nodes.values():
                for number, copy in node.copies.items():
                    copy.writes += self.writes[number] // 2
                    copy.reads += self.reads[number] // 2 // len(self.placement(number))
            out += super().go(500)
        return out

    def told_hot(self) -> list[Hot]:
        index = self.leader.dictionary.catalog.index(INDEX)
        return self.leader.loads.hot(index) if index is not None else []

    @property
    def hot(self) -> list[tuple[int, str]]:
        return [(one.slice, one.measure) for one in self.told_hot()]


def four() -> LoadWorld:
    return LoadWorld([["n1"], ["n2"], ["n1"], ["n2"]])


# --- what is over -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "told", "over"),
    [
        ([300, 100, 100, 100], (), []),  # not more than three times
        ([301, 100, 100, 100], (), [0]),
        ([301, 100, 100, 100], (1,), [0]),
        ([201, 100, 100, 100], (0,), [0]),  # it stays
        ([200, 100, 100, 100], (0,), []),
        ([100, 0, 0, 0], (), []),  # not above the floor
        ([51, 0, 0, 0], (0,), [0]),
        ([50, 0, 0, 0], (0,), []),
        ([900, 900, 0, 0, 0, 0, 0, 0], (), [0, 1]),
        ([901, 300], (), [0]),  # two slices are enough
        ([900], (), []),
        ([], (), []),
    ],
)
def test_a_slice_is_over_by_the_mean_of_the_others(
    values: list[float], told: tuple[int, ...], over: list[int]
) -> None:
    assert over_others(values, 100, told) == set(over)


# --- what is told -------------------------------------------------------------------------------------------


def test_rates_come_from_two_looks() -> None:
    world = four()
    world.writes, world.reads = [120, 10, 10, 10], [40, 0, 0, 0]
    world.go(3 * LOAD.look_ms)
    first, *_ = world.leader.loads.loads[INDEX]
    assert first.writes == pytest.approx(120)
    assert first.reads == pytest.approx(40)


def test_a_slice_that_gets_most_of_the_writes_is_told_of_and_no_longer_when_that_is_over() -> None:
    world = four()
    world.go(PATIENCE)
    assert world.hot == []
    world.writes[2] = 500
    world.go(LOAD.look_ms * (LOOKS - 1))
    assert world.hot == []  # not yet: it may be a burst
    world.go(LOAD.look_ms * 2)
    assert world.hot == [(2, "writes")]
    (text,) = world.told("slice-hot")
    assert text == ("slice 2 of by_city is hot: 500 entries/s are written to it, 10 to others of its index")
    world.writes[2] = 12
    world.go(LOAD.look_ms * (LOOKS - 1))
    assert world.hot == [(2, "writes")]
    world.go(LOAD.look_ms * 2)
    assert world.hot == []
    assert len(world.told("slice-not-hot")) == len(world.told("slice-hot")) == 1


def test_what_comes_and_goes_is_not_told() -> None:
    world = four()
    for _ in range(6):
        world.writes[0] = 500
        world.go(LOAD.look_ms * 2)
        world.writes[0] = 10
        world.go(LOAD.look_ms * 2)
    assert world.told("slice-hot") == []


def test_near_the_limit_it_stays_what_it_is() -> None:
    world = four()
    world.writes = [400, 100, 100, 100]
    world.go(PATIENCE)
    for rate in (280, 310, 290, 320):
        world.writes[0] = rate
        world.go(PATIENCE)
        assert world.hot == [(0, "writes")]
    assert len(world.told("slice-hot")) == 1


def test_reads_of_all_copies_count_together_and_writes_once() -> None:
    world = LoadWorld([["n1", "n2"], ["n2", "n3"], ["n3", "n1"]], replicas=1)
    world.writes, world.reads = [100, 100, 100], [600, 40, 40]
    world.go(PATIENCE)
    assert world.hot == [(0, "reads")]
    (hot,) = world.told_hot()
    assert hot.value == pytest.approx(600)
    assert [one.writes for one in world.leader.loads.loads[INDEX]] == pytest.approx([100, 100, 100])


def test_a_slice_that_holds_most_entries_is_told_of() -> None:
    world = four()
    for node in world.nodes.values():
        for number, copy in node.copies.items():
            copy.entries = 5_000 if number == 3 else 100
    world.go(PATIENCE)
    assert world.told_hot() == [Hot(3, "entries", 5_000, 100)]


@pytest.mark.parametrize("trouble", ["silent", "catching up", "restarted", "older"])
def test_what_cannot_be_judged_changes_nothing(trouble: str) -> None:
    """A node that begins anew reads its queue as fast as it can: nobody is hot for that."""
    world = four()
    node = world.nodes["n1"]
    for _ in range(LOOKS + 2):
        match trouble:
            case "silent":
                node.up = False
            case "catching up":
                node.copies[0].state = "CATCHUP"
            case "restarted":
                node.started_at += 1
                node.copies[0].writes = 0
            case "older":
                node.copies[0].writes = -1 << 20
        world.writes = [5_000, 10, 10, 10]
        world.go(LOAD.look_ms)
    assert world.hot == []


def test_an_index_that_was_built_with_other_slices_since_the_last_look_is_not_judged() -> None:
    world = four()
    world.writes[2] = 500
    world.go(PATIENCE)
    index = world.leader.dictionary.catalog.index(INDEX)
    assert index is not None
    for placement in ([["n1"]] * 2, [["n1"]] * 8, []):
        other = replace(index, placement=placement)
        assert [one.writes for one in world.leader.loads.of(other)] == [None] * len(placement)
        assert world.leader.loads.hot(other) == []


def test_an_index_that_goes_is_forgotten() -> None:
    world = four()
    world.writes[2] = 500
    world.go(PATIENCE)
    world.sql("DROP INDEX by_city")
    world.tick(LOAD.look_ms)
    assert world.hot == []
    assert world.leader.loads.loads == {}
