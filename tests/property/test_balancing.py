"""Plans of any cluster: what holds of them, worked out from the moves alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coordinator.copies.balancing import PlannedNode, PlannedSlice, plan
from keytide.catalog.copies import Move
from tests import share
from tests.unit.copies_world import CopiesWorld

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


@settings(max_examples=share.examples(150), deadline=None)
@given(st.data())
def test_nodes_for_scans_get_nothing_and_lose_what_they_have(data: st.DataObject) -> None:
    """Roles as nodes tell them, to the moves that a leader plans of them."""
    names = [f"n{number + 1}" for number in range(data.draw(st.integers(1, 6)))]
    roles = {
        name: data.draw(st.sampled_from([(), ("index",), ("index", "scan"), ("scan",), ("scan", "search")]))
        for name in names
    }
    may = {name for name, told in roles.items() if not told or "index" in told}
    copies = data.draw(st.integers(1, min(3, len(names))))
    on = st.lists(st.sampled_from(names), min_size=copies, max_size=copies, unique=True)
    placement = data.draw(st.lists(on, min_size=1, max_size=12))
    world = CopiesWorld(placement, replicas=copies - 1, count=len(names))
    world.roles = {name: told for name, told in roles.items() if told}
    for node in world.nodes.values():
        for copy in node.copies.values():
            copy.entries = data.draw(st.integers(0, 50))
    world.go(2_000)
    assume(may)
    assert world.records() == []
    after = [set(nodes) for nodes in placement]
    for move in world.leader.copies.moves.sketch().plan():
        assert move.target in may
        after[move.slice].remove(move.source)
        after[move.slice].add(move.target)
    for was, nodes in zip(placement, after, strict=True):
        stays = len(nodes - may)
        assert stays == max(0, len(set(was) - may) - len(may - set(was))), "no more than there is no node for"
