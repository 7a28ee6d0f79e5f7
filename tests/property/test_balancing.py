"""Plans of any cluster: what holds of them, worked out from the moves alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.copies.balancing import PlannedNode, PlannedSlice, plan
from keytide.catalog.copies import Move
from tests import share

ROOM = 5
NAMES = [f"n{number}" for number in range(8)]


class Cluster(NamedTuple):
    slices: list[PlannedSlice]
    nodes: list[PlannedNode]

    @property
    def zones(self) -> dict[str, str]:
        """Of nodes that may have slices; of one whose zone is not known, its own."""
        return {node.name: node.zone or f"of {node.name}" for node in self.nodes}

    def off(self, one: PlannedSlice) -> list[str]:
        """Nodes with a copy that are to have none."""
        return [name for name in one.nodes if name not in self.zones]

    def spread(self, one: PlannedSlice) -> int:
        """In how many zones it is."""
        return len({self.zones[name] for name in one.nodes if name in self.zones})

    def loads(self) -> Counter[str]:
        """Entries, or slices where all are empty."""
        empty = not any(one.entries for one in self.slices)
        found = Counter(dict.fromkeys(self.zones, 0))
        for one in self.slices:
            found.update({name: 1 if empty else one.entries for name in one.nodes if name in self.zones})
        return found

    def off_by(self) -> Fraction:
        """By how much nodes are more than a tenth off the mean, together."""
        loads = self.loads().values()
        mean = Fraction(sum(loads), len(loads))
        return sum((max(Fraction(), abs(load - mean) - mean / 10) for load in loads), Fraction())


@st.composite
def clusters(draw: st.DrawFn, *, zones: str = "abc ", alike: bool = False, roomy: bool = False) -> Cluster:
    there = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    nodes = [
        PlannedNode(
            name,
            draw(st.sampled_from(zones)).strip(),
            10**9 if roomy else draw(st.sampled_from([0, 20, 60, 10**9])),
        )
        for name in there
    ]
    size = st.just(7) if alike else st.sampled_from([0, 1, 3, 10, 11, 50])
    slices = [
        PlannedSlice(
            f"i-{number % 2}",
            number,
            tuple(
                draw(
                    st.lists(st.sampled_from(there if alike else NAMES), min_size=1, max_size=4, unique=True)
                )
            ),
            draw(size),
            draw(st.integers(0, 30)),
            alike or draw(st.integers(0, 9)) > 0,
        )
        for number in range(draw(st.integers(0, 30)))
    ]
    return Cluster(slices, nodes)


def moved(cluster: Cluster, moves: Sequence[Move], *, frees: bool) -> Cluster:
    """What comes of a plan; `frees`: disks have room again for what has left them."""
    on = {(one.index_id, one.slice): set(one.nodes) for one in cluster.slices}
    room = Counter({node.name: node.disk_free for node in cluster.nodes})
    for move in moves:
        holders = on[move.index, move.slice]
        assert move.source in holders
        assert move.target not in holders
        holders.remove(move.source)
        holders.add(move.target)
        room[move.target] -= move.bytes
        room[move.source] += move.bytes if frees else 0
    return Cluster(
        [one._replace(nodes=tuple(sorted(on[one.index_id, one.slice]))) for one in cluster.slices],
        [node._replace(disk_free=room[node.name]) for node in cluster.nodes],
    )


def by_key(slices: Sequence[PlannedSlice]) -> Mapping[tuple[str, int], PlannedSlice]:
    return {(one.index_id, one.slice): one for one in slices}


@settings(max_examples=share.examples(600), deadline=None)
@given(clusters())
def test_what_a_plan_may_do(cluster: Cluster) -> None:
    moves = plan(cluster.slices, cluster.nodes, ROOM)
    slices, free = by_key(cluster.slices), {node.name: node.disk_free for node in cluster.nodes}
    assert len({(move.index, move.slice, move.source) for move in moves}) == len(moves), "none moves twice"
    for move in moves:
        one = slices[move.index, move.slice]
        assert one.movable
        assert move.bytes == one.bytes
        assert move.target not in one.nodes, "its copy there might not have gone yet"
        assert free[move.target] >= move.bytes + ROOM
        free[move.target] -= move.bytes
    after = moved(cluster, moves, frees=False)
    before = Cluster(cluster.slices, cluster.nodes)
    for was, now in zip(before.slices, after.slices, strict=True):
        assert len(now.nodes) == len(was.nodes)
        assert len(after.off(now)) <= len(before.off(was))
        assert after.spread(now) >= before.spread(was)


@settings(max_examples=share.examples(200), deadline=None)
@given(clusters())
def test_no_step_of_a_plan_puts_copies_into_one_zone(cluster: Cluster) -> None:
    moves = plan(cluster.slices, cluster.nodes, ROOM)
    for count in range(len(moves)):
        before = moved(cluster, moves[:count], frees=False)
        after = moved(cluster, moves[: count + 1], frees=False)
        for was, now in zip(before.slices, after.slices, strict=True):
            assert after.spread(now) >= before.spread(was)


@settings(max_examples=share.examples(600), deadline=None)
@given(clusters())
def test_what_must_move_has_moved_where_there_is_room(cluster: Cluster) -> None:
    after = moved(cluster, plan(cluster.slices, cluster.nodes, ROOM), frees=False)
    for one in after.slices:
        roomy = [
            node.name
            for node in after.nodes
            if node.name not in one.nodes and node.disk_free >= one.bytes + ROOM
        ]
        if not one.movable or not roomy:
            continue
        assert not after.off(one)
        mine = {after.zones[name] for name in one.nodes}
        if len(mine) < len(one.nodes):
            assert all(after.zones[name] in mine for name in roomy)


@settings(max_examples=share.examples(600), deadline=None)
@given(clusters())
def test_a_plan_of_what_comes_of_a_plan_is_empty(cluster: Cluster) -> None:
    moves = plan(cluster.slices, cluster.nodes, ROOM)
    after = moved(cluster, moves, frees=False)
    assert plan(after.slices, after.nodes, ROOM) == []
    assert plan(cluster.slices[::-1], cluster.nodes[::-1], ROOM) == moves, "whatever order they come in"


@settings(max_examples=share.examples(300), deadline=None)
@given(clusters())
def test_plans_end_also_where_moves_make_room(cluster: Cluster) -> None:
    for _ in range(20):
        moves = plan(cluster.slices, cluster.nodes, ROOM)
        if not moves:
            return
        cluster = moved(cluster, moves, frees=True)
    raise AssertionError("20 plans, and another one")


@settings(max_examples=share.examples(600), deadline=None)
@given(clusters(zones=" ", alike=True, roomy=True))
def test_slices_of_one_size_are_even_but_for_one(cluster: Cluster) -> None:
    after = moved(cluster, plan(cluster.slices, cluster.nodes, ROOM), frees=False)
    loads = after.loads().values()
    assert after.off_by() == 0 or max(loads) - min(loads) <= 7


@settings(max_examples=share.examples(600), deadline=None)
@given(clusters(roomy=True))
def test_no_single_move_is_left_that_brings_all_within_a_tenth(cluster: Cluster) -> None:
    after = moved(cluster, plan(cluster.slices, cluster.nodes, ROOM), frees=False)
    if after.off_by() == 0:
        return
    for one in after.slices:
        for source in set(one.nodes) & after.zones.keys() if one.movable else ():
            for target in after.zones.keys() - set(one.nodes):
                tried = moved(after, [Move(one.index_id, one.slice, source, target)], frees=True)
                keeps = tried.spread(by_key(tried.slices)[one.index_id, one.slice]) >= after.spread(one)
                assert not keeps or tried.off_by() > 0
