"""What scan processes pin, by seed: commits, folds, leases, rollbacks, processes that die, and messages that
come late, in any order that can be. Whatever is pinned is what the node has under that number."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from indexer.scan_processes.core.messages import Closed, Dropped, Kept, LevelAt, SliceKey
from indexer.scan_processes.core.pins import Pins
from indexer.store.interface import Applied, Counts
from tests import share

KEPT = 3


@dataclass(eq=False)
class File:
    """A level's file: what each of its commits holds. LMDB lets readers begin on the last one only."""

    commits: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])

    @property
    def newest(self) -> int:
        return len(self.commits) - 1


Read = tuple[tuple[int, int], ...]
"""(level, commit), from the oldest level to the newest."""


class Slice:
    """A slice as its node has it; every commit adds one number."""

    def __init__(self, chance: random.Random, files: dict[int, File]) -> None:
        self._chance, self._files = chance, files
        self.base = self._made()
        self.seen = 0
        """The base's commit that the node knows of: a fold's is the worker's before it is the node's."""
        self.frozen: int | None = None
        self.delta: int | None = None
        self.held: dict[int, Read] = {}
        self.leased: set[int] = set()

    def _made(self) -> int:
        level = len(self._files) + 1
        self._files[level] = File()
        return level

    def commit(self, number: int) -> None:
        if self._chance.random() < 0.8:  # else it has no rows, and writes nothing
            self.delta = self.delta or self._made()
            file = self._files[self.delta]
            file.commits.append(file.commits[-1] | {number})
        self.held[number] = self.read()

    def read(self) -> Read:
        newer = [(one, self._files[one].newest) for one in (self.frozen, self.delta) if one is not None]
        return ((self.base, self.seen), *newer)

    def fold(self) -> None:
        """The next step of one."""
        file = self._files[self.base]
        if self.frozen is None:
            self.frozen, self.delta = self.delta, None
        elif file.newest == self.seen:
            file.commits.append(file.commits[-1] | self._files[self.frozen].commits[-1])
        else:
            self.seen, self.frozen = file.newest, None

    def trim(self) -> list[int]:
        gone = [one for one in sorted(self.held)[:-KEPT] if one not in self.leased]
        for one in gone:
            del self.held[one]
        return gone


class View:
    def __init__(self, level: Followed, commit: int) -> None:
        self.level, self.commit, self.holders = level, commit, 1

    def release(self) -> None:
        assert self.holders > 0, "let go of twice"
        self.holders -= 1


class Followed:
    """As `indexer.store.lmdb.levels.FollowedLevel`."""

    def __init__(self, number: int, file: File) -> None:
        self.number, self.file = number, file
        self.views: list[View] = []
        self.cached: View | None = None
        self.retired = False

    def at(self, commit: int) -> View | None:
        assert not self.retired
        if self.cached is None or self.cached.commit < commit:
            self._forget()
            self.cached = View(self, self.file.newest)
            self.views.append(self.cached)
        if self.cached.commit != commit:
            return None
        self.cached.holders += 1
        return self.cached

    def retire(self) -> None:
        assert not self.retired
        self.retired = True
        self._forget()

    def _forget(self) -> None:
        cached, self.cached = self.cached, None
        if cached is not None:
            cached.release()

    @property
    def in_use(self) -> bool:
        return any(one.holders for one in self.views)


class Ring:
    def __init__(self) -> None:
        self.pinned: dict[int, Sequence[View]] = {}

    def pin(self, told: Kept, views: Sequence[View]) -> None:
        self.drop(told.number)
        self.pinned[told.number] = views

    def miss(self, number: int) -> None:
        self.drop(number)

    def drop(self, number: int) -> None:
        for view in self.pinned.pop(number, ()):
            view.release()

    def close(self) -> None:
        for number in list(self.pinned):
            self.drop(number)


class Process:
    """A scan process, what is under way to it, and which levels the node has told it of."""

    def __init__(self, files: dict[int, File]) -> None:
        self._files = files
        self.rings: dict[SliceKey, Ring] = {}
        self.opened: list[Followed] = []
        self.pins: Pins[View] = Pins(self._open, self._ring, View.release)
        self.under_way: deque[Kept | Dropped | Closed] = deque()
        self.shown: dict[SliceKey, set[int]] = {}

    def _open(self, _: int, level: int) -> Followed:
        assert level not in [one.number for one in self.opened], "a file was opened twice"
        self.opened.append(Followed(level, self._files[level]))
        return self.opened[-1]

    def _ring(self, key: SliceKey) -> Ring:
        self.rings[key] = made = Ring()
        return made

    def kept(self, key: SliceKey, number: int, read: Read) -> None:
        levels = [LevelAt(level, commit, 0) for level, commit in read]
        known = self.shown.get(key, set())
        opened = [level for level, _ in read if level not in known]
        self.shown[key] = {level for level, _ in read}
        self.under_way.append(Kept(key, number, Applied(), Counts(), levels, opened))

    def hear(self) -> None:
        told = self.under_way.popleft()
        match told:
            case Kept():
                self.pins.kept(told, told.opened)
            case Dropped():
                self.pins.dropped(told)
            case Closed():
                self.pins.closed(told)
                self.rings.pop(told.key, None)


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files: dict[int, File] = {}
        self.slices = {("i", n): Slice(self.chance, self.files) for n in range(2)}
        self.processes = [Process(self.files) for _ in range(2)]
        self.told: dict[tuple[SliceKey, int], Read] = {}
        self.number = 0
        self.pinned = self.missed = 0

    def step(self) -> None:
        key = self.chance.choice(list(self.slices))
        one = self.slices[key]
        match self.chance.choices(
            ["commit", "fold", "hear", "lease", "roll back", "anew", "die"], [8, 3, 24, 2, 0.3, 0.3, 0.5]
        )[0]:
            case "commit":
                self.number += 1
                one.commit(self.number)
                self.told[key, self.number] = one.held[self.number]
                for process in self.processes:
                    process.kept(key, self.number, one.held[self.number])
                self._dropped(key, one.trim())
            case "fold":
                one.fold()
            case "hear":
                process = self.chance.choice(self.processes)
                if process.under_way:
                    process.hear()
            case "lease" if one.held:
                one.leased ^= {self.chance.choice(list(one.held))}
                self._dropped(key, one.trim())
            case "roll back" if one.held:
                void = sorted(one.held)[self.chance.randrange(len(one.held)) :]
                for number in void:
                    del one.held[number]
                self._dropped(key, void)
            case "anew":
                self.slices[key] = Slice(self.chance, self.files)
                for process in self.processes:
                    if process.shown.pop(key, None) is not None:
                        process.under_way.append(Closed(key))
            case "die":
                self._replace(self.chance.randrange(2))
        self.check()

    def _dropped(self, key: SliceKey, numbers: list[int]) -> None:
        for process in self.processes:
            if key in process.shown:
                process.under_way.extend(Dropped(key, number) for number in numbers)

    def _replace(self, at: int) -> None:
        self._count(self.processes[at])
        self.processes[at] = joining = Process(self.files)
        for key, one in self.slices.items():
            for number in sorted(one.held):
                joining.kept(key, number, one.held[number])

    def check(self) -> None:
        """Everything that is pinned is what the node had, and has not been let go of."""
        for process in self.processes:
            for key, ring in process.rings.items():
                for number, views in ring.pinned.items():
                    assert tuple((one.level.number, one.commit) for one in views) == self.told[key, number]
                    assert all(one.holders > 0 for one in views)

    def settle(self) -> None:
        """Everything is heard: nothing is pinned that the node does not hold, nor any level kept open for
        nothing."""
        for process in self.processes:
            while process.under_way:
                process.hear()
            newest = {level for key in self.slices for level in process.shown.get(key, ())}
            for key, ring in process.rings.items():
                assert ring.pinned.keys() <= self.slices[key].held.keys()
            used = {
                one.level.number
                for ring in process.rings.values()
                for views in ring.pinned.values()
                for one in views
            }
            for level in process.opened:
                assert level.retired == (level.number not in newest), level.number
                assert not level.retired or level.in_use == (level.number in used)
            self._count(process)

    def _count(self, process: Process) -> None:
        self.pinned += process.pins.pinned
        self.missed += process.pins.missed


def run(seed: int) -> World:
    world = World(seed)
    for _ in range(400):
        world.step()
    world.settle()
    return world


@pytest.mark.parametrize("block", range(10))
def test_what_is_pinned_is_what_the_node_has(block: int) -> None:
    seeds = range(block * share.examples(200), (block + 1) * share.examples(200))
    worlds = [run(seed) for seed in seeds]
    pinned, missed = sum(one.pinned for one in worlds), sum(one.missed for one in worlds)
    assert pinned > 10 * len(worlds)
    assert missed > 2 * len(worlds), "nothing was late: this shows nothing"


def test_a_commit_that_is_followed_at_once_is_pinned() -> None:
    world = World(1)
    (key, one), *_ = world.slices.items()
    process = world.processes[0]
    for number in range(1, 20):
        one.commit(number)
        process.kept(key, number, one.held[number])
        process.hear()
        if number % 3 == 0:
            one.fold()
        assert number in process.rings[key].pinned
    assert process.pins.missed == 0
