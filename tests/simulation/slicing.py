"""An indexer node: the real runner, core and ring of each slice, on a store that sometimes fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry

from indexer.control import Control
from indexer.events import (
    BackfillData,
    CaughtUp,
    ChunkKey,
    MutationData,
    Stamped,
    Turn,
)
from indexer.following import Limits
from indexer.metrics import NodeMetrics
from indexer.slices import SliceKey, SliceRunner
from indexer.store.interface import Applied, ApplyResult, SliceStore, StoreSnapshot
from keytide.errors import RetryableError
from keytide.messages import PutChunk, RemovalChunk, Segment, StabilityTimestamp
from tests.simulation.projecting import KEYSPACE
from tests.simulation.topics import SNAPSHOTS_KEPT

if TYPE_CHECKING:
    from tests.simulation.world import World

METRICS = NodeMetrics(CollectorRegistry())
LIMITS = Limits(documents=8, bytes=1 << 30, gap_ms=1 << 40, part_ms=400)
"""Small enough that slices are full now and then (R4); gaps fill in the end, however long it takes."""


class Reopenable(SliceStore, Protocol):
    """A store that says what a crash leaves of it."""

    def reopened(self) -> Reopenable: ...


class FlakyStore:
    """A store whose disk is full now and then; tells the checkers of every commit."""

    def __init__(self, world: World, key: SliceKey, inner: Reopenable) -> None:
        self._world = world
        self._key = key
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def apply(self, segments: Sequence[Segment], applied: Applied) -> ApplyResult:
        return self._commit(lambda: self.inner.apply(segments, applied))

    def load(
        self, puts: Iterable[PutChunk], removals: Sequence[RemovalChunk], applied: Applied
    ) -> ApplyResult:
        return self._commit(lambda: self.inner.load(puts, removals, applied))

    def snapshot(self) -> StoreSnapshot:
        return self.inner.snapshot()

    def _commit(self, work: object) -> ApplyResult:
        if self._world.fault("disk-full", 0.05):
            self._world.seen["full disk"] += 1
            raise RetryableError("no space left", problem_type="disk-full")
        before = self.inner.applied.timestamp
        result: ApplyResult = work()  # type: ignore[operator]
        snapshot = self.inner.snapshot()
        self._world.committed(self._key, before, snapshot)
        snapshot.close()
        return result


class MemorySpool:
    """Chunks in a dictionary."""

    def __init__(self) -> None:
        self._chunks: dict[ChunkKey, PutChunk | RemovalChunk] = {}

    def keep(self, key: ChunkKey, chunk: PutChunk | RemovalChunk) -> None:
        self._chunks[key] = chunk

    def puts(self, keys: Sequence[ChunkKey]) -> Sequence[PutChunk]:
        return [chunk for key in keys if isinstance(chunk := self._chunks[key], PutChunk)]

    def removals(self, keys: Sequence[ChunkKey]) -> Sequence[RemovalChunk]:
        return [chunk for key in keys if isinstance(chunk := self._chunks[key], RemovalChunk)]

    def forget(self, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            del self._chunks[key]

    def forget_all(self) -> None:
        self._chunks.clear()

    def close(self) -> None:
        self._chunks.clear()


@dataclass(slots=True)
class _Place:
    """Where a slice reads."""

    queue: list[bytes]
    position: int
    building: bool
    paused: bool = False


class SimNode:
    """One node: it holds slice `number` of every index.

    Attributes:
        lives: counts restarts.
        runners: by (index, slice).
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.lives = 0
        self.stores: dict[SliceKey, Reopenable] = {}
        self.runners: dict[SliceKey, SliceRunner] = {}
        self._places: dict[SliceKey, _Place] = {}
        self._begin()

    def _begin(self) -> None:
        self.control = Control(self.world.term)
        self._control_position = len(self.world.topics.control)
        self._acks: list[tuple[str, int, int]] = []
        self._places = {}
        self.runners = {}

    def open(self, index: str, store: Reopenable) -> None:
        key = (index, self.number)
        self.stores[key] = store
        now = self.world.schedule.now
        runner = SliceRunner(
            key,
            KEYSPACE,
            FlakyStore(self.world, key, store),  # type: ignore[arg-type]
            MemorySpool(),
            LIMITS,
            SNAPSHOTS_KEPT,
            self,
            lambda _ks, _inc, number, key: self._acks.append((*key, number)),
            METRICS,
            self.control.term,
        )
        self.runners[key] = runner
        runner.start(now)

    def crash(self) -> None:
        """kill -9, and start again at once: what is left is the durable part of each store."""
        self.lives += 1
        stores = self.stores
        for runner in self.runners.values():
            runner.ring.close()
        self._begin()
        for (index, _), store in sorted(stores.items()):
            self.open(index, store.reopened())

    def step(self) -> None:
        """One pass of the ingest loop."""
        chance, now = self.world.schedule.random, self.world.schedule.now
        for key, runner in sorted(self.runners.items()):
            self._read(key, runner, chance.randint(0, 3) if self.world.storm else 100)
        upto = chance.randint(self._control_position, len(self.world.topics.control))
        for number in range(self._control_position, upto):
            self._control(number, now)
        self._control_position = upto
        for _, runner in sorted(self.runners.items()):
            runner.feed(Turn(now), now)
            if chance.random() < 0.3:
                runner.look_after(now)
        self._acknowledge()

    def _read(self, key: SliceKey, runner: SliceRunner, most: int) -> None:
        now = self.world.schedule.now
        for _ in range(most):
            place = self._places.get(key)
            if place is None or place.paused:
                return
            if place.position >= len(place.queue):
                runner.feed(CaughtUp(now), now)
                return
            data, position = place.queue[place.position], place.position
            place.position += 1
            kind = BackfillData if place.building else MutationData
            before = (runner.core.gap_drops, runner.core.incomplete_batches)
            runner.feed(kind(data, position), now)
            self.world.seen["gaps"] += max(0, runner.core.gap_drops - before[0])
            self.world.seen["passed over"] += max(0, runner.core.incomplete_batches - before[1])

    def _control(self, number: int, now: int) -> None:
        message = self.world.topics.control[number]
        if isinstance(message, StabilityTimestamp):
            if self.control.stamped(number, message):
                for _, runner in sorted(self.runners.items()):
                    runner.feed(Stamped(number, message), now)
            return
        for index, published in self.control.publish(message).items():
            runner = self.runners[index, self.number]
            runner.published(published, now)

    def _acknowledge(self) -> None:
        """Reports travel: late, lost or doubled."""
        acks, self._acks = self._acks, []
        life = self.lives
        for index, slice_number, number in acks:
            for _ in range(0 if self.world.fault("lost-ack", 0.1) else 1):
                self.world.schedule.after(
                    self.world.schedule.random.randint(0, 20),
                    lambda i=index, s=slice_number, n=number: self.world.acknowledged(i, s, n, life),  # type: ignore[misc]
                )

    # --- QueueReading -------------------------------------------------------------------------------------

    def read_mutations(self, key: SliceKey, position: int) -> None:
        self._places[key] = _Place(self.world.topics.mutations[key], position, building=False)

    def read_backfill(self, key: SliceKey, build: str, position: int) -> None:
        self._places[key] = _Place(self.world.topics.backfill[key], position, building=True)

    def pause(self, key: SliceKey) -> None:
        self._places[key].paused = True

    def resume(self, key: SliceKey) -> None:
        self._places[key].paused = False

    def leave(self, key: SliceKey) -> None:
        self._places.pop(key, None)
