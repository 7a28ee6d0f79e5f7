"""The simulated world: the source, projectors, a leader, two nodes, a build, and what goes wrong with them.

`run(seed)` lets a world go on with a random subset of faults for a while, then heals it (no more faults, no
more writes) and checks that everything drains: first safety, then liveness. The seed decides everything; the
trace digest tells whether two runs were the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from indexer.store.interface import UNNUMBERED, Applied, StoreSnapshot
from indexer.store.memory import MemorySliceStore
from keytide.timestamp import Timestamp
from tests.simulation.building import SimBuild
from tests.simulation.checkers import Checkers
from tests.simulation.leading import SimLeader
from tests.simulation.projecting import SimProjector
from tests.simulation.schedule import Schedule
from tests.simulation.slicing import Reopenable, SimNode
from tests.simulation.topics import PARTITIONS, SLICES, SliceName, Topics
from tests.simulation.wire import TOPIC_ID

FAULTS = (
    "node-crash",
    "projector-crash",
    "rebalance",
    "lost",
    "duplicate",
    "slow",
    "parts",
    "lost-ack",
    "new-leader",
    "compaction",
    "driver",
    "speculative",
    "disk-full",
)
STORM_MS = 1_600
HEAL_MS = 1_400
REPLAY_MS = 400
BUILD = "build-1"
StoreFactory = Callable[[str, Applied], Reopenable]
"""(name, initial state) -> a store."""


def memory_store(name: str, initial: Applied) -> Reopenable:
    return MemorySliceStore(initial, fold_age_ms=150, check=True)


class World:
    """Everything, and the clock.

    Args:
        faults: those that may happen; None for a random subset.
    """

    def __init__(
        self, seed: int, faults: tuple[str, ...] | None = None, new_store: StoreFactory = memory_store
    ) -> None:
        self.schedule = Schedule(seed)
        chance = self.schedule.random
        self.faults = [one for one in FAULTS if chance.random() < 0.6] if faults is None else list(faults)
        self.topics = Topics(self.schedule)
        self.checkers = Checkers(self.topics.history)
        self.storm = True
        self.version = 1
        self.term = 1
        self.build: SimBuild | None = None
        self.seen: Counter[str] = Counter()
        self._new_store = new_store
        self._held_since: dict[tuple[str, int, int], int] = {}
        self._make_queues("a")
        self.nodes = [SimNode(self, number) for number in range(SLICES)]
        for node in self.nodes:
            node.open("a", new_store(f"a-{node.number}", Applied(timestamp=Timestamp({}, TOPIC_ID))))
        self.leaders = [SimLeader(self, 1, Timestamp({}, TOPIC_ID))]
        self.projectors = [SimProjector(self, name) for name in ("p", "q")]
        for projector in self.projectors:
            projector.learn()
        for partition in range(PARTITIONS):
            self.give(partition, chance.choice(self.projectors))

    # --- what actors ask ----------------------------------------------------------------------------------

    def fault(self, name: str, chance: float) -> bool:
        """Whether a fault strikes now."""
        return self.storm and name in self.faults and self.schedule.random.random() < chance

    def emitting(self) -> list[tuple[str, int]]:
        """(index, catalog version from which projectors emit for it)."""
        return [("a", 1), ("b", 2)] if self.version >= 2 else [("a", 1)]

    def valid_from(self, index: str) -> Timestamp | None:
        """From where on an index must equal the source: without compaction also while it is built."""
        if index == "a" or "compaction" not in self.faults:
            return Timestamp()
        return self.build.final if self.build else None

    def ready(self, index: str, number: int) -> bool:
        """R25: READY needs a timestamp at or past the source's end after the final micro-batch."""
        if index == "a":
            return True
        final = self.build.final if self.build else None
        timestamp = getattr(self.topics.control[number], "timestamp", Timestamp())
        return final is not None and timestamp.covers(final)

    def committed(self, key: SliceName, before: Timestamp, snapshot: StoreSnapshot) -> None:
        applied = snapshot.applied
        self.schedule.note(
            f"{key} commit {applied.number} {applied.timestamp.offsets()} {applied.queue_position}"
        )
        if applied.building:
            self.seen["batches"] += 1
        elif applied.number == UNNUMBERED:
            self.seen["switches" if applied.timestamp == before else "unnumbered"] += 1
        self.checkers.committed(f"{key}", before, snapshot, (key[1], SLICES), self.valid_from(key[0]))

    def acknowledged(self, index: str, slice_number: int, number: int, life: int) -> None:
        self._held_since[index, slice_number, number] = life
        for leader in self.leaders:
            leader.acknowledged(index, slice_number, number)

    def check_published(self, index: str, number: int) -> None:
        self.seen["published"] += 1
        for node in self.nodes:
            restarted = self._held_since[index, node.number, number] != node.lives
            ring = node.runners[index, node.number].ring
            self.checkers.published(f"{index}/{node.number}", number, ring, restarted)

    def give(self, partition: int, projector: SimProjector) -> None:
        """The group's coordinator gives a partition to a projector; the one before notices later."""
        previous, generation = self.topics.owner[partition]
        self.topics.owner[partition] = (projector.name, generation + 1)
        projector.assigned(partition, generation + 1)
        for other in self.projectors if hasattr(self, "projectors") else []:
            if other.name == previous and other is not projector:
                delay = self.schedule.random.randint(0, 120)
                self.schedule.after(delay, lambda other=other: other.revoked(partition))  # type: ignore[misc]

    # --- what happens -------------------------------------------------------------------------------------

    def run(self) -> None:
        """A storm, then calm; everything must have drained."""
        schedule, chance = self.schedule, self.schedule.random
        schedule.every(4, 30, lambda: self.topics.write() if self.storm else None)
        for projector in self.projectors:
            schedule.every(5, 25, projector.poll)
            schedule.every(20, 60, projector.tick)
            schedule.every(20, 60, projector.learn)
            schedule.every(5, 30, lambda projector=projector: self._report(projector))  # type: ignore[misc]
        for node in self.nodes:
            schedule.every(5, 20, node.step)
        schedule.every(10, 40, lambda: self.leaders[-1].stamp())
        schedule.every(30, 90, self._old_stamps)
        schedule.every(20, 100, self._trouble)
        schedule.every(20, 80, self._scan)
        schedule.every(2, 10, lambda: self.build.step() if self.build else None)
        schedule.after(chance.randint(50, 1_000), self._start_build)
        start = schedule.now
        schedule.run_until(start + STORM_MS)
        self._heal()
        schedule.run_until(start + STORM_MS + HEAL_MS)
        self._check_end()
        for node in self.nodes:
            node.crash()
        schedule.run_until(start + STORM_MS + HEAL_MS + REPLAY_MS)
        self._check_end()

    def _old_stamps(self) -> None:
        for leader in self.leaders[:-1]:
            leader.stamp()

    def _report(self, projector: SimProjector) -> None:
        acked = projector.progress()
        for leader in self.leaders:
            leader.progress(acked)

    def _trouble(self) -> None:
        chance = self.schedule.random
        if self.fault("node-crash", 0.08):
            chance.choice(self.nodes).crash()
        if self.fault("projector-crash", 0.08):
            chance.choice(self.projectors).crash()
        if self.fault("rebalance", 0.15):
            self.give(chance.randrange(PARTITIONS), chance.choice(self.projectors))
        if self.fault("new-leader", 0.06):
            self._depose()
        if self.fault("compaction", 0.5):
            self.topics.clean()

    def _depose(self) -> None:
        """A new leader takes over from what control says; the old one does not know yet."""
        newest = Timestamp({}, TOPIC_ID)
        for message in self.topics.control:
            newest = newest.merge_max(getattr(message, "timestamp", Timestamp()))
        self.term += 1
        for leader in self.leaders[:-1]:
            leader.alive = False
        self.leaders.append(SimLeader(self, self.term, newest))

    def _start_build(self) -> None:
        """CREATE INDEX b and BUILD."""
        self._make_queues("b")
        for node in self.nodes:
            initial = Applied(timestamp=Timestamp({}, TOPIC_ID), build=BUILD, building=True)
            node.open("b", self._new_store(f"b-{node.number}", initial))
        self.version = 2
        self.build = SimBuild(self, "b", BUILD, 2)

    def _heal(self) -> None:
        self.storm = False
        for leader in self.leaders[:-1]:
            leader.alive = False
        for partition in range(PARTITIONS):
            self.give(partition, self.projectors[0])
        self.schedule.note("healed")

    def _scan(self) -> None:
        """A stable scan of each slice at the number that its node knows as published."""
        for node in self.nodes:
            for (index, number_of_slice), runner in sorted(node.runners.items()):
                number = node.control.published(index)
                reading = None if number is None else runner.ring.acquire(number)
                if number is None or reading is None:
                    continue
                rows = {key: value for block in reading.rows(b"", None) for key, value in block}
                name = f"{index}/{number_of_slice}"
                self.checkers.scanned(name, number, rows, reading.timestamp, (number_of_slice, SLICES))
                reading.release()

    def _check_end(self) -> None:
        for node in self.nodes:
            for key, runner in sorted(node.runners.items()):
                self.checkers.reached_the_end(f"{key}", runner.core.applied, self.topics.ends())

    def _make_queues(self, index: str) -> None:
        for number in range(SLICES):
            self.topics.mutations[index, number] = []
            self.topics.backfill[index, number] = []


def run(seed: int, faults: tuple[str, ...] | None = None) -> World:
    """One history; raises what is broken."""
    world = World(seed, faults)
    world.run()
    return world
