"""An indexer node: the real hosting, runner, core, ring and control of each slice, on stores that fail now
and then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from indexer.hosting.hosting import Hosting
from indexer.hosting.metrics import NodeMetrics
from indexer.hosting.node import ServingNode
from indexer.hosting.slice_runner import SliceKey, SliceRunner
from indexer.slice.events import BackfillData, CaughtUp, ChunkKey, DataLost, Decide, MutationData, Stamped
from indexer.slice.limits import SliceLimits
from indexer.store.interface import Applied, ApplyResult, Counts, SliceStore, StoreDamagedError
from keytide.catalog.copies import CopyRecord
from keytide.model.protocol import SPOKEN
from keytide.settings.settings import IndexerSettings
from keytide.wire.heartbeats import HeartbeatWriter
from keytide.wire.messages import (
    Acknowledged,
    BatchEnd,
    Corrections,
    HeartbeatChanges,
    NodeHeartbeat,
    PutChunk,
    RemovalChunk,
    Segment,
    SliceStatus,
    StabilityTimestamp,
    decode,
    encode,
)
from tests.simulation.coordinators import number_of
from tests.simulation.copying import SimFiller, filled_store
from tests.simulation.kafka import DiskFullError, Queue, Reader
from tests.simulation.projectors import TOPICS

if TYPE_CHECKING:
    from tests.simulation.world import World

METRICS = NodeMetrics(CollectorRegistry())
LIMITS = SliceLimits(documents=6, bytes=1 << 30, gap_ms=1 << 40, part_ms=300)
"""Small enough that slices are full now and then (R4); gaps fill in the end, however long it takes."""
SETTINGS = IndexerSettings(snapshots_kept=3)  # type: ignore[call-arg]
HEARTBEAT_MS = 120
DISK_FREE = 1 << 40
"""As told: disks that are full here are so by chance."""
_BEGINNING = 0
_T = TypeVar("_T")


class Reopenable(SliceStore, Protocol):
    """A store that says what a crash leaves of it."""

    def reopened(self) -> Reopenable: ...


class SimStore:
    """A store whose disk is full now and then; tells the checkers of every commit."""

    def __init__(self, world: World, node: str, key: SliceKey, inner: Reopenable) -> None:
        self._world = world
        self._node = node
        self._key = key
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def applied(self) -> Applied:  # these are asked for at every step
        return self.inner.applied

    @property
    def durable(self) -> Applied:
        return self.inner.durable

    @property
    def counts(self) -> Counts:
        return self.inner.counts

    @property
    def horizon(self) -> Applied:
        return self.inner.horizon

    def apply(self, segments: Sequence[Segment], applied: Applied) -> ApplyResult:
        return self._commit(lambda: self.inner.apply(segments, applied))

    def load(
        self, puts: Collection[PutChunk], removals: Sequence[RemovalChunk], applied: Applied
    ) -> ApplyResult:
        return self._commit(lambda: self.inner.load(puts, removals, applied))

    def correct(self, corrections: Corrections, spared: frozenset[int], applied: Applied) -> int:
        return self._commit(lambda: self.inner.correct(corrections, spared, applied), corrected=True)

    def step_back(self, holds: Callable[[Applied], bool]) -> bool:
        world, mishaps = self._world, self._world.mishaps
        if world.fault("disk-full", 0.2):
            world.seen["full disk"] += 1
            raise DiskFullError("no space left")
        mishaps.pass_by(self._node)
        before = self.inner.applied
        try:
            mishaps.write("step back")
        except DiskFullError:  # amid it: one step is done
            self.inner.step_back(lambda applied: applied != before)
            world.stepped_back(self._node, self._key, before, self.inner.applied, False)
            raise
        done = self.inner.step_back(holds)
        world.stepped_back(self._node, self._key, before, self.inner.applied, done)
        mishaps.pass_by(self._node)
        return done

    def start_fold(self) -> bool:
        self._world.mishaps.write("fold")
        return self.inner.start_fold()

    def finish_fold(self, wait_s: float = 0.0) -> Applied | None:
        mishaps = self._world.mishaps
        if self.inner.folding:
            mishaps.pass_by(self._node)
            mishaps.write("fold")
        folded = self.inner.finish_fold(wait_s)
        mishaps.pass_by(self._node)
        return folded

    def destroy(self) -> None:
        self._world.mishaps.pass_by(self._node)
        self._world.destroyed(self._node, self._key, self)
        self.inner.destroy()
        self._world.disks[self._node].pop(self._key, None)
        self._world.copy_ids.pop((self._node, self._key), None)
        self._world.mishaps.pass_by(self._node)

    def _commit(self, work: Callable[[], _T], corrected: bool = False) -> _T:
        world = self._world
        if (self._node, self._key) in world.damaged:
            raise StoreDamagedError("a page is not what was written")
        if world.fault("disk-full", 0.04):
            world.seen["full disk"] += 1
            raise DiskFullError("no space left")
        world.mishaps.pass_by(self._node)
        before = self.inner.applied
        result = work()
        snapshot = self.inner.snapshot()
        world.committed(self._node, self._key, before, snapshot, corrected)
        snapshot.close()
        world.mishaps.pass_by(self._node)
        return result


class MemorySpool:
    """Chunks in a dictionary."""

    def __init__(self, path: SlicePath) -> None:
        self._folder = path.folder
        self._chunks: dict[ChunkKey, PutChunk | RemovalChunk] = {}

    def keep(self, key: ChunkKey, chunk: PutChunk | RemovalChunk) -> None:
        self._folder.world.mishaps.write("chunk")
        self._chunks[key] = chunk
        self._folder.world.mishaps.pass_by(self._folder.node_id)

    def puts(self, keys: Sequence[ChunkKey]) -> Sequence[PutChunk]:
        return [chunk for key in keys if isinstance(chunk := self._chunks[key], PutChunk)]

    def removals(self, keys: Sequence[ChunkKey]) -> Sequence[RemovalChunk]:
        return [chunk for key in keys if isinstance(chunk := self._chunks[key], RemovalChunk)]

    def forget(self, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            self._chunks.pop(key, None)

    def forget_all(self) -> None:
        self._chunks.clear()

    def close(self) -> None:
        self._chunks.clear()


class SlicePath:
    """In place of a slice's folder."""

    def __init__(self, folder: DiskFolder, key: SliceKey, aside: bool = False) -> None:
        self.folder = folder
        self.key = key
        self._aside = aside

    def exists(self) -> bool:
        if self._aside:
            return (self.folder.node_id, self.key) in self.folder.world.aside
        return self.key in self.folder.disk

    def __truediv__(self, name: str) -> SlicePath:
        return self


class DiskFolder:
    """In place of a node's folder: its disk is a dictionary of stores."""

    def __init__(self, world: World, node: str) -> None:
        self.world = world
        self.node_id = node
        self.disk = world.disks[node]
        self.fillings = world.fillings[node]

    def slice_folder(self, key: SliceKey) -> SlicePath:
        return SlicePath(self, key)

    def slices(self) -> list[SliceKey]:
        return sorted({*self.disk, *self.fillings.keys()})

    def copy_id(self, key: SliceKey) -> str:
        return self.world.copy_ids.get((self.node_id, key), "") if key in self.disk else ""

    def begin_filling(self, copy: CopyRecord) -> SlicePath:
        key = copy.index, copy.slice
        self._forget(key)
        self.fillings.begin(key, copy.id)
        return SlicePath(self, key)

    def put_filled(self, key: SliceKey) -> None:
        found = self.fillings.pop(key)
        assert found is not None
        self.world.copy_ids[self.node_id, key] = found[0]
        self.disk[key] = filled_store(found[1])
        self.world.seen["filled copy"] += 1

    def drop_filling(self, key: SliceKey) -> None:
        self.fillings.pop(key)

    def _forget(self, key: SliceKey) -> None:
        self.disk.pop(key, None)
        self.world.damaged.discard((self.node_id, key))
        self.world.copy_ids.pop((self.node_id, key), None)

    def remove(self, key: SliceKey) -> None:
        self._forget(key)
        self.fillings.pop(key)
        self.world.aside.discard((self.node_id, key))

    def set_aside(self, key: SliceKey) -> None:
        """A damaged slice."""
        self._forget(key)
        self.world.damaged.discard((self.node_id, key))
        self.world.aside.add((self.node_id, key))

    def aside(self, key: SliceKey) -> SlicePath:
        return SlicePath(self, key, aside=True)


def open_store(path: SlicePath, initial: Applied, _settings: object, _folds: object) -> SimStore:
    """In place of `LmdbSliceStore`: what is on the simulated disk, or a new one."""
    folder = path.folder
    if (folder.node_id, path.key) in folder.world.damaged:
        raise StoreDamagedError("a page is not what was written")
    found = folder.disk.get(path.key)
    if found is None:
        folder.world.mishaps.write("new store")
        found = folder.disk[path.key] = folder.world.new_store(folder.node_id, path.key, initial)
    return SimStore(folder.world, folder.node_id, path.key, found)


class SmallHosting(Hosting):
    """Slices that hold only a few documents."""

    def _limits(self) -> SliceLimits:
        return LIMITS


@dataclass(slots=True)
class _Place:
    """Where a slice reads."""

    topic: str
    position: int
    building: bool
    paused: bool = False


class SimNode:
    """One node and its successors.

    Attributes:
        lives: counts starts.
        began: when the last one was, by the world's clock.
        node: what its endpoint sees.
        silent_until: it is stopped (as by SIGSTOP) until then.
        late_until: it reads nothing of the control topic until then.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.lives = 0
        self.silent_until = 0
        self.late_until = 0
        self._begin()

    def _begin(self) -> None:
        world = self.world
        self.lives += 1
        self.began = world.clock.now
        world.mishaps.begin(self.name)
        self.started_at = self.now
        self.reader = Reader(world.kafka)
        self.reader.read()
        self.node = ServingNode(self.name)
        self.places: dict[SliceKey, _Place] = {}
        self._acks: dict[tuple[str, int, int], list[SliceKey]] = {}
        self._heartbeats = HeartbeatWriter()
        self._heartbeat_at = 0
        self._told: list[tuple[object, ...]] = []
        self._control = len(world.kafka.control)
        self.filler = SimFiller(world, self)
        self.hosting = SmallHosting(
            DiskFolder(world, self.name),  # type: ignore[arg-type]
            self.node,
            SETTINGS,
            self,
            self._acknowledge,
            METRICS,
            None,  # type: ignore[arg-type]
            self.filler,  # type: ignore[arg-type]
            open_store,  # type: ignore[arg-type]
            MemorySpool,  # type: ignore[arg-type]
        )
        self._catalog_changed()

    @property
    def now(self) -> int:
        """By its own clock."""
        return self.world.mishaps.now(self.name)

    def crash(self) -> None:
        """kill -9, and start again at once: what is left is the durable part of each store."""
        for runner in self.hosting.runners.values():
            runner.ring.close()
        disk = self.world.disks[self.name]
        for key in sorted(disk):
            disk[key] = disk[key].reopened()
        self.world.note("crash", self.name)
        self._begin()

    # --- its loop -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """One pass of the ingest loop."""
        world, now, time = self.world, self.now, self.world.clock.now
        if time < self.silent_until:
            return
        chance, storm = world.chance, world.storm
        if self.reader.read(chance.below(5) if storm else 1 << 30):
            self._catalog_changed()
        runners = self.hosting.runners
        for key in list(runners):
            self._read(key, chance.below(5) if storm else 1 << 30)
        end = len(world.kafka.control) if time >= self.late_until else self._control
        upto = self._control + chance.below(end - self._control + 1) if storm else end
        begin, self._control = self._control, upto
        for number in range(begin, upto):
            self._hear(number, now)
        for runner in runners.values():
            runner.feed(Decide(now), now)
        if world.healed or not chance.below(3):
            for runner in runners.values():
                runner.look_after(now)
                runner.sweep(now)
            self.filler.step()
            self.hosting.take_whole(now)
            self.hosting.try_again(self.reader.catalog, now)
        for runner in runners.values():
            world.uniqueness.look(self.name, runner)
        self._flush()
        self._heartbeat(now)

    def _catalog_changed(self) -> None:
        self.node.show_catalog(self.reader.catalog.copy())
        self.hosting.reconcile(self.reader.catalog, self.now)

    def _read(self, key: SliceKey, most: int) -> None:
        runner = self.hosting.runners.get(key)
        if runner is None:
            return
        core, dropped = runner.core, runner.core.gap_drops
        self._feed(key, runner, most)
        self.world.seen["gaps"] += max(0, core.gap_drops - dropped)

    def _feed(self, key: SliceKey, runner: SliceRunner, most: int) -> None:
        kafka, now = self.world.kafka, self.now
        for _ in range(most):
            place = self.places.get(key)
            if place is None or place.paused:
                return
            queue = kafka.queue(place.topic, key[1])
            if queue is None:
                return  # not there (any more); the reader waits
            if place.position < queue.begin:
                self._fell_out(key, place, queue)
                continue
            if place.position >= queue.end:
                runner.feed(CaughtUp(now), now)
                return
            position = place.position
            place.position += 1
            data = queue.records[position]
            if not place.building:
                runner.feed(MutationData(data, position), now)
                continue
            waits = _ends_next_batch(data, runner.core.applied)
            runner.feed(BackfillData(data, position), now)
            self.world.seen["passed over"] += waits and _ends_next_batch(data, runner.core.applied)

    def _fell_out(self, key: SliceKey, place: _Place, queue: Queue) -> None:
        """The queue was trimmed: position 0 is its beginning, every other is lost."""
        if place.position == _BEGINNING:
            place.position = queue.begin
            return
        now = self.now
        self.places.pop(key)
        reason = f"{place.topic} no longer has offset {place.position}"
        self.hosting.runners[key].feed(DataLost(reason), now)

    def _hear(self, offset: int, now: int) -> None:
        message = self.world.kafka.control[offset]
        if isinstance(message, StabilityTimestamp):
            number = number_of(self.world, message, offset)
            if self.node.control.stamped(number, message):
                for runner in self.hosting.runners.values():
                    runner.feed(Stamped(number, message), now)
            return
        new = self.node.control.publish(message)
        for (index, _), runner in self.hosting.runners.items():
            if index in new:
                runner.published(new[index], now)

    # --- what it tells ------------------------------------------------------------------------------------

    def _acknowledge(self, keyspace: str, incarnation: int, number: int, key: SliceKey) -> None:
        self.world.mishaps.pass_by(self.name)
        self._acks.setdefault((keyspace, incarnation, number), []).append(key)
        self.world.held(self, incarnation, number, key)

    def _flush(self) -> None:
        acks, self._acks = self._acks, {}
        for (keyspace, incarnation, number), keys in sorted(acks.items()):
            self.world.mishaps.pass_by(self.name)
            self.world.report(Acknowledged(self.name, keyspace, incarnation, number, keys))

    def _heartbeat(self, now: int) -> None:
        runners = self.hosting.runners
        states: list[tuple[object, ...]] = [
            (key, one.core.state, one.core.applied.batch, one.core.reason) for key, one in runners.items()
        ]
        if now < self._heartbeat_at and states == self._told:
            return
        statuses = self.hosting.statuses(now)
        self.node.show_states(statuses)
        self._heartbeat_at, self._told = now + HEARTBEAT_MS, states
        catalog = self.reader.catalog
        beat = NodeHeartbeat(
            self.name,
            f"http://{self.name}",
            self.started_at,
            now,
            statuses,
            0,
            DISK_FREE,
            catalog.offset,
            protocol=SPOKEN,
        )
        message = self._heartbeats.write(beat, catalog.term, catalog.leader_protocol)
        self.world.checkers.beat(message, statuses)
        self.world.report(decode(encode(message)) if isinstance(message, HeartbeatChanges) else message)

    def statuses(self) -> list[SliceStatus]:
        return self.hosting.statuses(self.now)

    # --- QueueReading -------------------------------------------------------------------------------------

    def read_mutations(self, key: SliceKey, position: int) -> None:
        self.world.mishaps.pass_by(self.name)
        self.places[key] = _Place(TOPICS.mutations(key[0]), position, building=False)

    def read_backfill(self, key: SliceKey, build: str, position: int) -> None:
        self.world.mishaps.pass_by(self.name)
        self.places[key] = _Place(TOPICS.backfill(key[0], build), position, building=True)

    def pause(self, key: SliceKey) -> None:
        self.places[key].paused = True

    def resume(self, key: SliceKey) -> None:
        self.places[key].paused = False

    def leave(self, key: SliceKey) -> None:
        self.places.pop(key, None)


def _ends_next_batch(data: bytes, applied: Applied) -> bool:
    """Whether a message is the end of the batch that a slice waits for: also behind it, of one that it passed
    over, for chunks were missing (or the disk was full)."""
    end = decode(data)
    return isinstance(end, BatchEnd) and (end.build, end.batch) == (applied.build, applied.batch + 1)
