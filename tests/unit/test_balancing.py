"""Which copies a rebalance moves."""

from __future__ import annotations

import time

from coordinator.copies.balancing import PlannedNode, PlannedSlice, plan
from keytide.catalog.copies import Move

GB = 1_000_000_000
ROOM = 10 * GB


def nodes(*names: str, free: int = 1000 * GB) -> list[PlannedNode]:
    """Each `name` or `name/zone`."""
    return [PlannedNode(name, zone, free) for name, _, zone in (one.partition("/") for one in names)]


def one(number: int, *on: str, entries: int = 100, size: int = GB, movable: bool = True) -> PlannedSlice:
    return PlannedSlice("i-1", number, on, entries, size, movable)


def moves(slices: list[PlannedSlice], among: list[PlannedNode]) -> list[tuple[int, str, str]]:
    return [(move.slice, move.source, move.target) for move in plan(slices, among, ROOM)]


def test_a_new_node_gets_its_share_and_nothing_else_moves() -> None:
    slices = [one(number, f"n{number % 2}") for number in range(6)]
    assert plan(slices, nodes("n0", "n1", "n2"), ROOM) == [
        Move("i-1", 0, "n0", "n2", GB),
        Move("i-1", 1, "n1", "n2", GB),
    ]


def test_what_is_within_a_tenth_of_the_mean_stays() -> None:
    slices = [one(0, "n0", entries=55), one(1, "n0", entries=55), one(2, "n1", entries=90)]
    assert moves(slices, nodes("n0", "n1")) == []


def test_no_move_where_it_would_be_as_uneven_the_other_way() -> None:
    assert moves([one(0, "n0"), one(1, "n0"), one(2, "n1")], nodes("n0", "n1")) == []
    assert moves([one(0, "n0")], nodes("n0", "n1", "n2")) == []


def test_nothing_is_moved_for_next_to_nothing() -> None:
    slices = [one(0, "n0", entries=1000), one(1, "n0", entries=30, movable=False)]
    assert moves(slices, nodes("n0", "n1")) == []


def test_the_largest_improvement_comes_first() -> None:
    slices = [one(number, "n0", entries=20) for number in range(5)]
    slices += [one(5 + number, "n0", entries=80) for number in range(3)]
    slices += [one(8 + number, "n1", entries=100) for number in range(2)]
    (first, *_) = moves(slices, nodes("n0", "n1", "n2"))
    assert first == (5, "n0", "n2")


def test_of_those_that_help_as_much_the_smallest_is_moved() -> None:
    slices = [one(0, "n0", size=3 * GB), one(1, "n0", size=GB), one(2, "n0", size=2 * GB)]
    assert moves(slices, nodes("n0", "n1")) == [(1, "n0", "n1")]


def test_copies_of_a_slice_stay_on_different_nodes() -> None:
    slices = [one(number, "n0", "n1") for number in range(4)]
    moved = moves(slices, nodes("n0", "n1", "n2", "n3"))
    assert len(moved) == 4
    assert len({(number, target) for number, _, target in moved}) == 4


def test_a_copy_off_a_node_that_is_to_have_none() -> None:
    slices = [one(0, "gone", "n1"), one(1, "n1"), one(2, "n2"), one(3, "gone", "n2")]
    assert sorted(moves(slices, nodes("n1", "n2", "n3"))) == [(0, "gone", "n3"), (3, "gone", "n3")]


def test_it_goes_to_a_zone_without_a_copy_of_its_slice() -> None:
    slices = [one(0, "gone", "n1"), one(1, "n3"), one(2, "n3")]
    assert (0, "gone", "n3") in moves(slices, nodes("n1/a", "n2/a", "n3/b"))


def test_rather_to_the_same_zone_than_nowhere() -> None:
    among = [*nodes("n1/a", "n2/a"), *nodes("n3/b", free=0)]
    assert moves([one(0, "gone", "n1")], among) == [(0, "gone", "n2")]


def test_two_copies_in_one_zone_are_parted() -> None:
    assert moves([one(0, "n1", "n2"), one(1, "n2")], nodes("n1/a", "n2/a", "n3/b")) == [(0, "n2", "n3")]


def test_where_there_is_one_zone_they_stay() -> None:
    assert moves([one(0, "n1", "n2")], nodes("n1/a", "n2/a")) == []


def test_three_copies_in_two_zones_stay() -> None:
    assert moves([one(0, "n1", "n2", "n3")], nodes("n1/a", "n2/a", "n3/b", "n4/b")) == []


def test_nodes_whose_zone_is_not_known_fail_alone() -> None:
    assert moves([one(0, "n1", "n2")], nodes("n1", "n2")) == []
    slices = [one(number, "n1", "n2") for number in range(3)]
    assert len(moves(slices, nodes("n1/a", "n2", "n3"))) == 2


def test_balance_puts_no_two_copies_into_one_zone() -> None:
    slices = [one(number, "n1", "n3") for number in range(6)]
    moved = moves(slices, nodes("n1/a", "n2/a", "n3/b", "n4/b"))
    assert {(source, target) for _, source, target in moved} == {("n1", "n2"), ("n3", "n4")}


def test_where_zones_keep_nodes_from_the_mean_the_others_become_even() -> None:
    slices = [one(number, "n1", "n2") for number in range(10)]
    moved = moves(slices, nodes("n1/a", "n2/b", "n3/b", "n4/b"))
    assert [target for _, _, target in moved].count("n3") == 3
    assert [target for _, _, target in moved].count("n4") == 3


def test_no_more_is_planned_for_a_disk_than_it_has_room_for() -> None:
    slices = [one(number, "n0") for number in range(10)]
    among = [*nodes("n0"), *nodes("n1", free=ROOM + 3 * GB - 1), *nodes("n2", free=ROOM + GB)]
    assert [target for _, _, target in moves(slices, among)] == ["n1", "n2", "n1"]


def test_what_may_not_be_moved_counts_all_the_same() -> None:
    slices = [one(number, "n0", movable=False) for number in range(4)] + [one(4, "n1"), one(5, "n1")]
    assert moves(slices, nodes("n0", "n1")) == []
    slices = [one(0, "n0", entries=300, movable=False), *(one(number, "n0") for number in range(1, 4))]
    assert {number for number, *_ in moves(slices, nodes("n0", "n1"))} == {1, 2, 3}
    assert (
        moves(
            [one(0, "gone", movable=False), one(1, "n1", "n2", movable=False)], nodes("n1/a", "n2/a", "n3/b")
        )
        == []
    )


def test_empty_slices_are_counted() -> None:
    slices = [one(number, "n0", entries=0, size=0) for number in range(4)]
    assert moves(slices, nodes("n0", "n1")) == [(0, "n0", "n1"), (1, "n0", "n1")]


def test_nothing_to_plan() -> None:
    assert moves([], nodes("n0", "n1")) == []
    assert moves([one(0, "n0")], []) == []


def test_a_plan_of_many_is_quick() -> None:
    among = [PlannedNode(f"n{number:02}", "abc"[number % 3], 1000 * GB) for number in range(100)]
    slices = [
        one(
            number, f"n{number * 7 % 50:02}", f"n{(number * 7 + 1) % 50:02}", entries=1000 + number * 37 % 500
        )
        for number in range(2000)
    ]
    before = time.process_time()
    assert len(plan(slices, among, ROOM)) > 1000
    assert time.process_time() - before < 5, "seconds; it takes a fifth of one"


def test_a_plan_of_many_on_each_node_is_quick() -> None:
    among = nodes(*(f"n{number:02}" for number in range(20)))
    slices = [
        one(number, f"n{number % 10:02}", f"n{(number + 1 + number // 10 % 9) % 10:02}", entries=entries)
        for number in range(8000)
        for entries in (1000 + number * 7919 % 100_003,)
    ]
    before = time.process_time()
    assert len(plan(slices, among, ROOM)) > 3000
    assert time.process_time() - before < 3, "seconds, in which the leader does nothing else"
