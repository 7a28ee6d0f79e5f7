"""Which copies move where, so that nodes have about as much. Pure.

What is planned is carried out by `coordinator.copies.moving`.

Theory of operation. Copies are moved on paper, one after the other, until no move is worth it; what they come
to is told for each slice as the difference between the nodes that hold it before and after, so that nothing
is moved twice. Every move lowers, in this order, how many copies lie on nodes that may have none, how many
lie in one zone with another copy of their slice, how far nodes are off the mean by more than `TOLERANCE`, and
how uneven they are. So it ends, and what comes of a plan is never planned back.

Of a pair of nodes the copy is chosen that helps most, and of those that help as much the smallest; pairs are
tried from the node with the most to the one with the least. This is greedy: it swaps nothing, so a few slices
of very different size may stay less even than they could be.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from keytide.catalog.copies import Move

TOLERANCE: Final = 10
"""A node may have a tenth more or less than the mean."""


_Zone = tuple[str, str]
"""A zone, or the node that is one by itself."""
_Worth = Callable[[int, int, int], int]
"""Of what a node has, what another one has, and how much moves from that to this."""


class PlannedNode(NamedTuple):
    """A node that may have slices.

    Attributes:
        disk_free: bytes.
    """

    name: str
    zone: str
    disk_free: int


class PlannedSlice(NamedTuple):
    """A slice as it lies now.

    Attributes:
        nodes: those that hold its copies that count, or will when what is under way is done.
        entries, bytes: of one copy.
        movable: whether its copies may be moved now.
    """

    index_id: str
    slice: int
    nodes: tuple[str, ...]
    entries: int
    bytes: int
    movable: bool = True


class Sketch(NamedTuple):
    """What a rebalance is planned from, apart from whatever changes meanwhile.

    Attributes:
        slices, nodes, room: as `plan` takes them.
    """

    slices: list[PlannedSlice]
    nodes: list[PlannedNode]
    room: int

    def plan(self) -> list[Move]:
        """As `plan`. Any thread: with some ten thousand copies it takes seconds."""
        return plan(self.slices, self.nodes, self.room)


def plan(slices: Sequence[PlannedSlice], nodes: Sequence[PlannedNode], room: int) -> list[Move]:
    """The moves after which nodes have about as many entries each, in the order in which to begin them.

    What lies on a node that may have no slices goes to another zone than its slice's other copies where there
    is room, else to theirs. Disk that moves will free is not counted on. Where all slices are empty, nodes
    get about as many slices.

    Args:
        slices: all of them.
        nodes: all that may have slices; what lies elsewhere moves to them.
        room: bytes that stay free on a disk.
    """
    return _Planning(slices, nodes, room).moves() if nodes else []


class _Planning:
    """Where copies lie, while moves are planned. Slices are meant by their place in `slices`.

    Loads are entries times nodes times `TOLERANCE`, so that mean and tolerance are whole numbers.
    """

    def __init__(self, slices: Sequence[PlannedSlice], nodes: Sequence[PlannedNode], room: int) -> None:
        self._slices = sorted(slices)
        self._before = [frozenset(one.nodes) for one in self._slices]
        self._room = room
        self._holders = [list(one.nodes) for one in self._slices]
        self._free = {node.name: node.disk_free for node in sorted(nodes)}
        self._zones = {node.name: (node.zone, "" if node.zone else node.name) for node in nodes}
        empty = not any(one.entries for one in self._slices)
        scale = len(nodes) * TOLERANCE
        self._weights = [(1 if empty else one.entries) * scale for one in self._slices]
        self._loads = dict.fromkeys(self._free, 0)
        self._movable: dict[str, list[tuple[int, int, int]]] = {name: [] for name in self._free}
        """Node -> (minus weight, bytes, slice) of copies on it that may be moved, in order."""
        self._touched: dict[int, None] = {}
        self._versions: Counter[str] = Counter()
        """Of a node: changes when a slice moves that it has, or had."""
        for number, one in enumerate(self._slices):
            for node in one.nodes:
                if node in self._loads:
                    self._loads[node] += self._weights[number]
                    if one.movable:
                        self._movable[node].append(self._place(number))
        for places in self._movable.values():
            places.sort()
        self._set_mean()

    def moves(self) -> list[Move]:
        """Plan, and tell what came of it."""
        while (
            self._move_off()
            | self._part_zones()
            | self._level(self._nearer, self._nearest)
            | self._level(self._evener, self._evenest)
        ):
            pass
        return [move for number in self._touched for move in self._told(number)]

    def _told(self, number: int) -> Iterator[Move]:
        """What became of a slice. A copy that stays in its zone comes from there: its slice is never in
        fewer zones meanwhile."""
        one, after = self._slices[number], self._holders[number]
        sources = sorted(self._before[number].difference(after))
        targets = sorted(set(after) - self._before[number])
        for same_zone in (True, False):
            for source in list(sources):
                zone = self._zones.get(source)
                target = next((t for t in targets if not same_zone or self._zones[t] == zone), None)
                if target is not None:
                    sources.remove(source)
                    targets.remove(target)
                    yield Move(one.index_id, one.slice, source, target, one.bytes)

    # --- what may be --------------------------------------------------------------------------------------

    def _set_mean(self) -> None:
        self._mean = sum(self._loads.values()) // len(self._loads)
        self._tolerance = self._mean // TOLERANCE

    def _fits(self, number: int, target: str) -> bool:
        """Whether a node may get a copy. One that had it when the plan began has the room."""
        return target not in self._holders[number] and (
            target in self._before[number] or self._free[target] >= self._slices[number].bytes + self._room
        )

    def _zones_of(self, number: int, without: str = "") -> list[_Zone]:
        zones = self._zones
        return [zones[node] for node in self._holders[number] if node != without and node in zones]

    def _may_go(self, number: int, source: str, zone: _Zone) -> bool:
        """Whether a copy may go to a zone: its slice is in as many zones as before then."""
        left = self._zones[source]
        others = () if zone == left else self._zones_of(number, source)
        return zone not in others or left in others

    def _place(self, number: int) -> tuple[int, int, int]:
        return -self._weights[number], self._slices[number].bytes, number

    def _move(self, number: int, source: str, target: str) -> None:
        size, before = self._slices[number].bytes, self._before[number]
        holders = self._holders[number]
        holders[holders.index(source)] = target
        self._versions.update((source, *holders))
        self._touched[number] = None
        insort(self._movable[target], self._place(number))
        self._loads[target] += self._weights[number]
        self._free[target] -= 0 if target in before else size
        if source in self._loads:
            places = self._movable[source]
            del places[bisect_left(places, self._place(number))]
            self._loads[source] -= self._weights[number]
            self._free[source] += 0 if source in before else size

    # --- what must be -------------------------------------------------------------------------------------

    def _move_off(self) -> bool:
        """Move copies off nodes that are to have none, the largest first; whether one was moved."""
        away = [
            (-self._weights[number], number, node)
            for number, one in enumerate(self._slices)
            for node in self._holders[number]
            if one.movable and node not in self._loads
        ]
        moved = False
        for _, number, source in sorted(away):
            zones = self._zones_of(number)
            fitting = [
                (self._zones[node] in zones, load, node)
                for node, load in self._loads.items()
                if self._fits(number, node)
            ]
            if fitting:
                self._move(number, source, min(fitting)[2])
                moved = True
        self._set_mean()
        return moved

    def _part_zones(self) -> bool:
        """Move copies that lie in one zone with another one into zones that have none; whether one was."""
        moved = False
        for number, one in enumerate(self._slices):
            while one.movable:
                zones = Counter(self._zones_of(number))
                crowded = [
                    (self._loads[node], node)
                    for node in self._holders[number]
                    if node in self._loads and zones[self._zones[node]] > 1
                ]
                if not crowded:
                    break
                fitting = [
                    (load, node)
                    for node, load in self._loads.items()
                    if self._zones[node] not in zones and self._fits(number, node)
                ]
                if not fitting:
                    break
                self._move(number, max(crowded)[1], min(fitting)[1])
                moved = True
        return moved

    # --- what is worth it ---------------------------------------------------------------------------------

    def _level(self, worth: _Worth, most: _Worth) -> bool:
        """Move copies from nodes with more to nodes with less as long as it is worth it; whether one was.

        Args:
            worth: of moving so much, between two nodes that have so much; 0 for none.
            most: that moving so much, or less, can be worth.
        """
        tried: dict[tuple[str, str], tuple[int, int]] = {}
        moved = False
        while found := self._next(worth, most, tried):
            self._move(*found)
            moved = True
        return moved

    def _next(
        self, worth: _Worth, most: _Worth, tried: dict[tuple[str, str], tuple[int, int]]
    ) -> tuple[int, str, str] | None:
        """The next move: slice, source, target.

        Args:
            tried: (source, target) -> their versions when nothing between them was worth it.
        """
        low, high = self._mean - self._tolerance, self._mean + self._tolerance
        loads, versions = self._loads, self._versions
        rising = sorted(loads, key=lambda name: (loads[name], name))
        for source in sorted(loads, key=lambda name: (-loads[name], name)):
            has = loads[source]
            for target in rising:
                got = loads[target]
                if got >= has or (has <= high and got >= low):
                    break
                both = versions[source], versions[target]
                if tried.get((source, target)) == both:
                    continue
                number = self._best(source, target, worth, most)
                if number is not None:
                    return number, source, target
                tried[source, target] = both
        return None

    def _best(self, source: str, target: str, worth: _Worth, most: _Worth) -> int | None:
        """The slice whose copy to move from one node to another one. The heaviest are looked at first, and
        no more when those that are left cannot be worth as much."""
        has, got = self._loads[source], self._loads[target]
        places, zone = self._movable[source], self._zones[target]
        best: tuple[int, int, int] | None = None
        at = bisect_left(places, (got - has + 1,))
        while at < len(places):
            minus, size, number = places[at]
            weight, at = -minus, at + 1
            if weight <= 0 or (best is not None and most(has, got, weight) < best[0]):
                break
            if target in self._holders[number]:
                continue
            rank = worth(has, got, weight), -size, -number
            if rank[0] > 0 and (best is None or rank > best):
                if not (self._may_go(number, source, zone) and self._fits(number, target)):
                    continue
                best = rank
            at = bisect_left(places, (minus + 1,), at)  # others as heavy are no better
        return None if best is None else -best[2]

    def _off(self, load: int) -> int:
        """How far a node is off the mean, beyond what it may be."""
        return max(0, abs(load - self._mean) - self._tolerance)

    def _nearer(self, has: int, got: int, weight: int) -> int:
        """By how much two nodes come nearer to what they may be. Nothing, where it is not a tenth of what is
        moved and does not do either."""
        after = self._off(has - weight) + self._off(got + weight)
        nearer = self._off(has) + self._off(got) - after
        return nearer if after == 0 or nearer * TOLERANCE >= weight else 0

    def _nearest(self, has: int, got: int, weight: int) -> int:
        """The most that `_nearer` can be, of so much or less."""
        return min(weight, self._off(has)) + min(weight, self._off(got))

    def _evener(self, has: int, got: int, weight: int) -> int:
        """How much more even two nodes become that come no nearer: where copies, or their zones, keep others
        from the mean. Nothing, where the one would have nearly as much then as the other has now."""
        if has - got - weight < self._tolerance:
            return 0
        farther = self._off(has - weight) + self._off(got + weight) - self._off(has) - self._off(got)
        return weight * (has - got - weight) if farther <= 0 else 0

    def _evenest(self, has: int, got: int, weight: int) -> int:
        """The most that `_evener` can be, of so much or less."""
        between = has - got
        return max(weight, between // 2) * between if 2 * weight > between else weight * (between - weight)
