"""Repairs in the simulated world: slices that hold what is wrong, and a repair job that puts it right while
everything else goes on.

What is spoiled is wrong by itself, so the checkers look past it (`muted`) until the job has seen every slice
right and durable. The job corrects every document each time, those that were right, too: they stay under the
checkers' eyes, and a correction that is made when it must not be is seen at once. It takes the truth from the
oracle, as the real one takes it from the source.

The job lives in steps of its own, so that anything may happen between two of them; it may die at any of them,
and send what it sends twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from indexer.hosting.slice_runner import SliceKey
from indexer.store.interface import UNNUMBERED, Applied, StoredDocument
from keytide.collation import encode_key
from keytide.model.entry import pack_keyed_value, pack_value, places_of, unpack_keyed_value
from keytide.model.timestamp import Timestamp
from keytide.wire.corrections import Correction, Round, pack_corrections, pack_watch
from keytide.wire.messages import Message, RepairEnd, RepairStatus, encode
from tests.memory_store.snapshot import MemoryState
from tests.memory_store.store import MemorySliceStore
from tests.simulation import geometries
from tests.simulation.checkers import Rows
from tests.simulation.kafka import Queue
from tests.simulation.projectors import TOPICS
from tests.simulation.source import (
    IDS,
    KEYSPACE,
    PARTITIONS,
    Fold,
    kept,
    layout,
    projection,
    spatial,
    structure,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

_STRAY_LETTERS = "yzxwvu"
"""By slice a letter that no document has (and wherever it belongs: no two slices have one entry)."""
_WRONG = pack_value(b"", b'{"v":99}')
"""A value that no document has."""
_KINDS = ("lose", "keep", "ghost", "value", "forget", "half")
PATIENCE = 25
"""A round that got no further for so many steps begins again: its messages may be gone with a rollback."""


@dataclass(slots=True)
class _Job:
    """One repair.

    Attributes:
        stage: watch, find, corrected, durable.
        waited: steps in it.
        ends: of the source, sampled when the watch was in the queues.
        over: slice -> queue offset of the round's end.
        known: what was spoilt before the round's watch.
    """

    name: str
    index: str
    round: int = 0
    stage: str = "watch"
    waited: int = 0
    incarnation: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    known: dict[tuple[str, SliceKey], set[bytes]] = field(default_factory=dict)


class Repairs:
    """What is spoiled, and the job that repairs it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._job: _Job | None = None
        self._jobs = 0
        self._muted: dict[tuple[str, SliceKey], set[bytes]] = {}
        self._mended: dict[tuple[str, SliceKey], dict[bytes, int]] = {}
        self._clean: dict[tuple[str, bytes], int] = {}
        """(index, document) -> from which number on scans must show it right."""

    # --- for the checkers --------------------------------------------------------------

    def muted(self, node: str, key: SliceKey) -> set[bytes]:
        """Documents that are wrong in a slice."""
        return self._muted.get((node, key), set())

    def unseen(self, name: str, number: int) -> set[bytes]:
        """Documents that a scan of an index at `number` may show wrong."""
        index = self.world.truth.catalog.index_by_name(name)
        if index is None:
            return set(IDS)
        found = {docid for (id_, docid), clean in self._clean.items() if id_ == index.id and number < clean}
        for (_, (id_, _)), ids in self._muted.items():
            found |= ids if id_ == index.id else set()
        return found

    def stepped_back(self, node: str, key: SliceKey, after: Applied) -> None:
        """A slice went back to a state that may be from before it was corrected."""
        for docid, end in self._mended.get((node, key), {}).items():
            if after.queue_position <= end:
                self._mute(node, key, docid)

    def left(self) -> str:
        """What is not repaired yet, "" when everything is."""
        self._forget_dropped()
        wrong = [f"{key[0]}/{key[1]} on {node}" for (node, key), ids in sorted(self._muted.items()) if ids]
        return "not repaired: " + ", ".join(wrong) if wrong or self._job else ""

    # --- what happens --------------------------------------------------------------

    def spoil(self) -> None:
        """A slice comes to hold what is wrong of one document, in all states that it could go back to."""
        world, chance = self.world, self.world.chance
        node = chance.pick(sorted(world.disks))
        keys = sorted(world.disks[node])
        if not keys:
            return
        key, docid, kind = chance.pick(keys), chance.pick(IDS), chance.pick(_KINDS)
        store, stray = (
            world.disks[node][key],
            _stray(key[1]),
        )
        runner = world.nodes[node].hosting.runners.get(key)
        if not isinstance(store, MemorySliceStore) or store.applied.building or runner is None:
            return
        states = [store._state, store._durable, *store._undo, *([store._frozen] if store._frozen else [])]
        if any(state.applied.building for state in states):
            return
        made = {id(state): _spoilt(state, kind, docid, stray) for state in states}
        store._state, store._durable = made[id(store._state)], made[id(store._durable)]
        store._frozen = made[id(store._frozen)] if store._frozen else None
        store._undo = deque((made[id(state)] for state in store._undo), store._undo.maxlen)
        self._mute(node, key, docid)
        world.note("spoil", node, key, docid, kind)
        world.seen["spoilt"] += 1

    def step(self) -> None:
        """The job does its next step, if it can."""
        world = self.world
        self._forget_dropped()
        job = self._job
        if job is not None:
            job.waited += 1
        if job is None:
            self._begin()
        elif world.fault("driver-crash", 0.05):
            world.note("repair dies", job.name, job.stage)
            self._job = None
        elif self._index_gone(job):
            self._job = None
        elif job.waited > PATIENCE:
            self._again(job)
        else:
            {"watch": self._watch, "find": self._find, "corrected": self._end, "durable": self._look}[
                job.stage
            ](job)

    # --- the job --------------------------------------------------------------

    def _begin(self) -> None:
        """Some index that has something wrong, or any."""
        ready = [one.id for one in self.world.truth.catalog.indexes() if one.state == "READY"]
        wrong = sorted({key[0] for (_, key), ids in self._muted.items() if ids} & set(ready))
        if wrong or (ready and self.world.storm):
            self._jobs += 1
            self._job = _Job(f"j{self._jobs}", self.world.chance.pick(wrong or ready))

    def _again(self, job: _Job) -> None:
        self._goes_on(job, "watch")
        job.round += 1
        self.world.seen["repair rounds again"] += 1

    def _goes_on(self, job: _Job, stage: str) -> None:
        job.stage, job.waited = stage, 0
        self.world.note("repair", job.name, job.round, stage)

    def _watch(self, job: _Job) -> None:
        record = self.world.truth.catalog.keyspace(KEYSPACE)
        job.incarnation = record.incarnation if record else 0
        for number in self._slices(job):
            self._send(job, number, pack_watch(self._round(job, number), IDS))
        job.ends = self.world.kafka.source.ends()
        job.known = {where: set(ids) for where, ids in self._muted.items()}
        self._goes_on(job, "find")

    def _find(self, job: _Job) -> None:
        """A snapshot of all slices at or past the ends, and what is true there."""
        runners = self._runners(job)
        if runners is None or any(runner.ring.newest() == UNNUMBERED for runner in runners):
            return
        common = set.intersection(*(set(runner.ring.numbers()) for runner in runners))
        readings = [runner.ring.acquire(max(common)) for runner in runners] if common else []
        held = [one for one in readings if one is not None]
        try:
            if len(held) < len(runners) or not self.enough(held[0].timestamp, job):
                return
            if any(one.incarnation != job.incarnation for one in held):
                self._again(job)
                return
            rows = [{key: value for block in one.rows(b"", None) for key, value in block} for one in held]
            at = held[0].timestamp
        finally:
            for one in held:
                one.release()
        if not self._on_the_log(at):
            self._again(job)
            return
        truth = [self._truth(at, runner, rows[number]) for number, runner in enumerate(runners)]
        if any(one is None for one in truth):
            return  # the branch is not known; a later timestamp says it
        for number, corrections in enumerate(truth):
            half = len(corrections or []) // 2
            for sequence, some in enumerate([(corrections or [])[:half], (corrections or [])[half:]]):
                packed = pack_corrections(self._round(job, number), sequence, at, some)
                self._send(job, number, packed)
        self._goes_on(job, "corrected")

    def enough(self, timestamp: Timestamp, job: _Job) -> bool:
        """Whether every version at or past a timestamp lies behind the watch in the queues."""
        return all(timestamp.offset(partition) >= end for partition, end in job.ends.items())

    def _on_the_log(self, at: Timestamp) -> bool:
        """What the real job asks Kafka before and after it reads
        (`streaming.verify.source.KafkaSource.check`)."""
        source = self.world.kafka.source
        short = any(at.offset(partition) > end for partition, end in source.ends().items())
        return at.topic_id in ("", source.topic_id) and not short

    def _folds(self, at: Timestamp) -> list[Fold] | None:
        """By partition, what is true at a timestamp; None when it may mean several branches. (In the end the
        log is what it is.)"""
        choices = self.world.checkers.oracle.folds(at)
        if all(len(some) == 1 for some in choices):
            return [some[0] for some in choices]
        logs = self.world.kafka.source.logs
        if self.world.storm or any(at.offset(log.partition) > log.end for log in logs):
            return None
        return [log.folds[at.offset(log.partition)] for log in logs]

    def _truth(self, at: Timestamp, runner: Any, rows: Rows) -> list[Correction] | None:
        """What a slice must hold, and what it has too much."""
        folds = self._folds(at)
        if folds is None:
            return None
        corrections = []
        of, (_, number) = self.world.layout_of_slice(runner.key), runner.key
        for docid in IDS:
            partition = IDS.index(docid) % PARTITIONS
            version = folds[partition].get(docid)
            values = dict(version.made_in(of).puts[number]) if version else {}
            keys = [key[: -len(docid)] for key in rows if key.endswith(docid)]
            corrections.append(
                Correction(
                    docid,
                    partition,
                    version.offset if version else 0,
                    version.time if version else 0,
                    False,
                    values,
                    [key for key in keys if key not in values],
                )
            )
        return corrections

    def _end(self, job: _Job) -> None:
        """All slices have dealt with the corrections: they may forget."""
        statuses = [self._status(job, number) for number in self._slices(job)]
        if any(
            one is None or (one.job, one.round, one.sequences) != (job.name, job.round, 2) for one in statuses
        ):
            return
        for one in statuses:
            self.world.seen["corrected"] += one.corrected if one else 0
            self.world.seen["spared"] += one.spared if one else 0
            self.world.seen["void corrections"] += one.void if one else 0
        for number in self._slices(job):
            end = RepairEnd(job.index, number, job.name, job.round, job.incarnation)
            queue = self._send(job, number, end)
            job.over[number] = -1 if queue is None else queue.end - 1
        self._goes_on(job, "durable")

    def _look(self, job: _Job) -> None:
        """Once everything is durable: is it right now? Else another round."""
        runners = self._runners(job)
        if runners is None:
            return
        if not all(self._durable(runner, job) for runner in runners):
            return
        wrong = [self._wrong(runner) for runner in runners]
        if any(one is None for one in wrong):
            return
        if any(wrong):
            self._again(job)
            return
        world = self.world
        for (node, key), ids in self._muted.items():
            if key[0] != job.index:
                continue
            for docid in sorted(job.known.pop((node, key), set()) & ids):
                ids.discard(docid)
                self._mended.setdefault((node, key), {})[docid] = job.over[key[1]]
                self._clean[job.index, docid] = len(world.kafka.control)
        world.note("repaired", job.name)
        world.seen["repaired"] += 1
        self._job = None

    def _durable(self, runner: Any, job: _Job) -> bool:
        """Whether what a slice did survives a crash."""
        durable = runner.store.durable
        told = runner.core.repair(durable)
        says = told is not None and (told.job, told.round) == (job.name, job.round) and told.durable
        return says or bool(durable.queue_position > job.over[runner.key[1]])

    def _wrong(self, runner: Any) -> bool | None:
        """Whether a slice differs from the source where it stands; None when that is not known."""
        snapshot = runner.store.snapshot()
        at = snapshot.applied.timestamp
        if self._folds(at) is None:
            return None
        rows: Rows = {key: value for block in snapshot.rows() for key, value in block}
        inverse = {key + docid for docid, held in snapshot.back_rows() for key in held.keys}
        difference = self.world.checkers.oracle.difference(
            rows, at, self.world.layout_of_slice(runner.key), runner.key[1]
        )
        return bool(difference) or rows.keys() != inverse

    # --- details --------------------------------------------------------------

    def _send(self, job: _Job, number: int, message: Message) -> Queue | None:
        queue = self.world.kafka.queue(TOPICS.mutations(job.index), number)
        if queue is None:
            return None
        for _ in range(2 if self.world.fault("duplicate", 0.1) else 1):
            queue.append(encode(message), self.world.clock.now)
        return queue

    def _round(self, job: _Job, number: int) -> Round:
        return Round(job.index, number, job.name, job.round, job.incarnation)

    def _slices(self, job: _Job) -> range:
        """The numbers of the slices of its index."""
        index = self.world.truth.catalog.index(job.index)
        return range(index.slices if index is not None else 0)

    def _runners(self, job: _Job) -> list[Any] | None:
        """The slices of its index, None when one does not serve."""
        index = self.world.truth.catalog.index(job.index)
        found = []
        for number in self._slices(job):
            node = self.world.nodes[index.placement[number][0]] if index else None
            runner = node.hosting.runners.get((job.index, number)) if node else None
            if runner is None or runner.core.state not in ("LIVE", "CATCHUP"):
                return None
            found.append(runner)
        return found

    def _status(self, job: _Job, number: int) -> RepairStatus | None:
        runners = self._runners(job)
        return runners[number].core.repair(runners[number].store.durable) if runners else None

    def _index_gone(self, job: _Job) -> bool:
        index = self.world.truth.catalog.index(job.index)
        return index is None or index.state != "READY"

    def _forget_dropped(self) -> None:
        self.world.truth.read()
        known = {index.id for index in self.world.truth.catalog.indexes() if index.state == "READY"}
        gone = [
            one for one in self._muted if one[1][0] not in known and one[1] not in self.world.disks[one[0]]
        ]
        for one in gone:
            del self._muted[one]

    def _mute(self, node: str, key: SliceKey, docid: bytes) -> None:
        self._muted.setdefault((node, key), set()).add(docid)
        if self._job is not None:
            self._job.known.get((node, key), set()).discard(docid)


@kept
@cache
def _stray(slice_number: int) -> tuple[bytes, bytes]:
    """A stored key that no document has, and its value, which can be read: what cannot is found otherwise."""
    shape = structure()
    letter = _STRAY_LETTERS[slice_number]
    if not shape.key_in_value:
        made = projection(IDS[0], b'{"k":["%s"]}' % letter.encode(), layout())
        return next(key for puts in made.puts for key, _ in puts), b""
    key = encode_key([geometries.geometry(letter) if spatial() else letter])
    return shape.stored([key])[0][0], pack_keyed_value(b"", None, key)


def _with_wrong_column(value: bytes) -> bytes:
    """A value that holds its key, with an included column that no document has."""
    forms, _, key = unpack_keyed_value(value)
    return pack_keyed_value(forms, b'{"v":99}', key, places_of(value))


def _spoilt(state: MemoryState, kind: str, docid: bytes, stray: tuple[bytes, bytes]) -> MemoryState:
    """A state that is wrong in one way.

    Args:
        stray: a stored key that no version of the document has, and its value.
    """
    entries, back = dict(state.entries), dict(state.back)
    mine = [key for key in entries if key.endswith(docid)]
    held = back.get(docid)
    match kind:
        case "lose":
            back.pop(docid, None)
        case "keep":
            partition = IDS.index(docid) % PARTITIONS
            before = held or StoredDocument(partition, 0, 0, (), False)
            back[docid] = before._replace(keys=(*before.keys, stray[0]))
        case "forget":
            back.pop(docid, None)
    for key in mine if kind in ("lose", "half") else ():
        del entries[key]
    for key in mine if kind == "value" else ():
        entries[key] = _with_wrong_column(entries[key]) if structure().key_in_value else _WRONG
    if kind in ("keep", "ghost"):
        entries[stray[0] + docid] = stray[1]
    return replace(state, entries=entries, back=back)
