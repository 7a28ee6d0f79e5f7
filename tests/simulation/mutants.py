"""Planted faults in slices, projectors, coordinator, builds and scans. All must be seen (`mutants_rollback`
has those of rollback)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from coordinator import leader
from coordinator.builds import backfill as backfilling
from coordinator.catalog.dictionary import Dictionary
from coordinator.stability import issuer
from coordinator.stability.acknowledgements import AcknowledgedNumbers, RequiredCopies
from indexer.hosting import slice_runner as slices
from indexer.hosting.node import ServingNode
from indexer.hosting.snapshots import SnapshotRing
from indexer.scan.gather import scatter
from indexer.scan.gather import service as scanning
from indexer.slice import following
from indexer.slice.building import Building
from indexer.slice.events import Apply, LoadBatch
from indexer.slice.following import QueueFollower
from indexer.slice.mutation_queue import PendingMutations, SegmentOutcome
from indexer.slice.pending_timestamps import PendingStamps
from indexer.store.interface import Applied
from keytide.catalog.partitioning import Partitioning
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.wire.columns import heard_ids
from keytide.wire.messages import Part, Segment, decode
from keytide.wire.parts import Assembler
from projector.core.projection import SourceBatch
from projector.progress.events import Key
from projector.progress.tracker import Tracker
from projector.service import projector as service
from projector.service import reports as report
from projector.service import source
from projector.service.reports import ProjectorReporter
from projector.service.sender import QueueSender
from streaming.core import micro_batches as streaming_core
from streaming.core import sizing as pieces
from streaming.drivers.journal import DisplacedError, FencedJournal, Journal
from tests.memory_store import store as memory
from tests.simulation import coordinators, kafka, nodes
from tests.simulation.planting import Mutant, Patches

MUTANTS: list[Mutant] = []
_Plant = Callable[[Patches], None]


def mutant(rules: str, text: str, **more: Any) -> Callable[[_Plant], _Plant]:
    """Adds a planted fault to the list."""

    def add(plant: _Plant) -> Any:
        MUTANTS.append(Mutant(plant.__name__, rules, text, plant, **more))
        return plant

    return add


# --- snapshots ----------------------------------------------------------------------------------------------


@mutant("R1", "the newest number is committed, heard or not")
def commit_what_is_not_heard(patches: Patches) -> None:
    def take(self: PendingMutations, applied: Timestamp, target: Timestamp) -> Any:
        return _take(self, applied, self.reachable(target))

    _take = patches.put(PendingMutations, "take", take)
    patches.put(PendingMutations, "covers", lambda self, timestamp: True)


@mutant("R2", "a timestamp below the position is joined")
def join_the_past(patches: Patches) -> None:
    def forget(self: PendingStamps, position: Timestamp, number: int) -> None:
        _forget(self, Timestamp(), number)

    _forget = patches.put(PendingStamps, "forget", forget)


@mutant("R3", "leaders number their timestamps themselves: two leaders, one number")
def number_by_the_leader(patches: Patches) -> None:
    def number_of(world: Any, message: Any, offset: int) -> Any:
        issued = world.issued = getattr(world, "issued", {})
        counts = getattr(world, "counts", None)
        if counts is None:
            counts = world.counts = {}
        if offset not in issued:
            if message.term not in counts:
                counts[message.term] = max((counts.get(message.term - 1, 0), 0))
            counts[message.term] += 1
            issued[offset] = counts[message.term]
        found: int = issued[offset]
        return found

    patches.put(coordinators, "number_of", number_of)
    patches.put(nodes, "number_of", number_of)


@mutant("R4", "a full slice waits for a number")
def never_make_room(patches: Patches) -> None:
    patches.put(PendingStamps, "make_room", lambda self, position, queue: None)


@mutant("R4, what no timestamp reaches", "a full slice holds on to it", faults=("lost", "truncate"))
def hold_what_no_timestamp_reaches(patches: Patches) -> None:
    patches.put(QueueFollower, "_waits_in_vain", lambda self: False)


@mutant("R5", "the newest common number is not kept beside the ring")
def forget_the_published(patches: Patches) -> None:
    def keeps(self: SnapshotRing, number: int) -> bool:
        self._ahead = 1
        newest = number in self._order[-self._kept :]
        return newest or (number != self._published and bool(_keeps(self, number)))

    _keeps = patches.put(SnapshotRing, "_keeps", keeps)


@mutant("R5, what a slower slice works towards", "numbers past the published one go, but for the newest few")
def forget_the_slower(patches: Patches) -> None:
    def keeps(self: SnapshotRing, number: int) -> bool:
        self._ahead = 1
        return bool(_keeps(self, number))

    _keeps = patches.put(SnapshotRing, "_keeps", keeps)


@mutant("R6", "a restart reads on behind what was only held")
def forget_the_queue_position(patches: Patches) -> None:
    patches.put(QueueFollower, "_position", lambda self: self._cursor)


@mutant("R7", "a timestamp is issued only when it has changed")
def stamp_only_news(patches: Patches) -> None:
    def issue(self: Any, name: str, stream: Any, now: int) -> Any:
        if stream.content is not None and not stream.issuable:
            return []
        return _issue(self, name, stream, now)

    _issue = patches.put(issuer.TimestampIssuer, "_maybe_issue", issue)


@mutant("R8", "a number is acknowledged before its commit can be read")
def acknowledge_early(patches: Patches) -> None:
    def attempt(self: slices.SliceRunner, instruction: Any, now: int) -> Any:
        if isinstance(instruction, Apply) and instruction.applied.number >= 0:
            applied = instruction.applied
            self._acknowledge(self.keyspace, applied.incarnation, applied.number, self.key)
        return _attempt(self, instruction, now)

    _attempt = patches.put(slices.SliceRunner, "_try", attempt)


@mutant("R8, commit position before entries", "a fold makes the position durable before the entries")
def position_before_entries(patches: Patches) -> None:
    def reopened(self: memory.MemorySliceStore) -> Any:
        newest = self.applied
        store = _reopened(self)
        older = store.applied
        applied = replace(older, queue_position=max(older.queue_position, newest.queue_position))
        store._state = store._durable = dataclasses.replace(store._durable, applied=applied)
        return store

    _reopened = patches.put(memory.MemorySliceStore, "reopened", reopened)


# --- segments and projectors --------------------------------------------------------------------------------


@mutant("R9", "a segment begins at its first record, not where the one before ended")
def begin_at_the_record(patches: Patches) -> None:
    def batches_of(key: Any, start: int, end: int, epoch: int, columns: Any, marked: int = -1) -> Any:
        made: list[SourceBatch] = _batches_of(key, start, end, epoch, columns, marked)
        return [
            SourceBatch(b.partition, b.epoch, b.offsets[0], b.end, b.offsets, b.ids, b.values, b.times)
            if b.offsets
            else b
            for b in made
        ]

    _batches_of = patches.put(service, "batches_of", batches_of)


@mutant("R9", "a segment ends behind its last record, not at the consumer's position")
def end_at_the_record(patches: Patches) -> None:
    def batches_of(key: Any, start: int, end: int, epoch: int, columns: Any, marked: int = -1) -> Any:
        columns = list(columns)
        last = columns[-1].offsets[-1] + 1 if columns else start
        return _batches_of(key, start, max(start, last), epoch, columns)

    _batches_of = patches.put(service, "batches_of", batches_of)


@mutant("R10", "a segment that must be cut is taken for a duplicate")
def skip_what_overlaps(patches: Patches) -> None:
    def hear(self: PendingMutations, segment: Segment, position: int, limit: Any = None) -> Any:
        if segment.start < self.heard(segment.partition):
            return SegmentOutcome.DUPLICATE
        return _hear(self, segment, position, limit)

    _hear = patches.put(PendingMutations, "hear", hear)


@mutant("R10, forget to cut", "an overlapping segment is taken whole")
def forget_to_cut(patches: Patches) -> None:
    def hear(self: PendingMutations, segment: Segment, position: int, limit: Any = None) -> Any:
        outcome = _hear(self, segment, position, limit)
        if outcome is SegmentOutcome.CUT:
            queue = self._queues[segment.partition]
            part = queue.parts.pop()
            queue.parts.append(dataclasses.replace(part, start=segment.start))
        return outcome

    _hear = patches.put(PendingMutations, "hear", hear)


@mutant("R10, skip a gap", "a segment beyond the position is taken as if nothing were missing")
def jump_over_gaps(patches: Patches) -> None:
    def hear(self: PendingMutations, segment: Segment, position: int, limit: Any = None) -> Any:
        known = self.heard(segment.partition)
        if segment.start > known:
            _hear(self, Segment(segment.partition, segment.epoch, known, segment.start), position, limit)
        return _hear(self, segment, position, limit)

    _hear = patches.put(PendingMutations, "hear", hear)


@mutant("R10", "after a failed send the projector goes on where it is")
def never_send_again(patches: Patches) -> None:
    def rewind(self: Tracker) -> Any:
        for poll in self.outstanding:
            self.outstanding[poll] = 0
        return self._advance()

    patches.put(Tracker, "_rewind", rewind)


@mutant("R11", "a segment that a timestamp goes through is applied whole")
def forget_to_split(patches: Patches) -> None:
    patches.put(following, "_cut", lambda piece: piece.segment)


@mutant("R12", "a version that cannot be projected is left out, and not heard", pipeline=True)
def leave_out_the_bad(patches: Patches) -> None:
    from projector.core import pipeline

    def project(batch: SourceBatch, plan: Any, ids: Any = None, **more: Any) -> Any:
        good = [n for n, value in enumerate(batch.values) if value is None or value.startswith(b"{")]
        kept = SourceBatch(
            batch.partition,
            batch.epoch,
            batch.start,
            batch.end,
            [batch.offsets[n] for n in good],
            [batch.ids[n] for n in good],
            [batch.values[n] for n in good],
            [batch.times[n] for n in good],
        )
        return _project(kept, plan, ids, **more)

    _project = patches.put(pipeline, "project", project)


@mutant("R12, NothingSilent", "no line in the ledger for what cannot be projected")
def keep_silent(patches: Patches) -> None:
    patches.put(memory._Change, "lines", lambda self, lines: None)


@mutant("R13", "an activation is told to begin below where it begins")
def begin_later_than_told(patches: Patches) -> None:
    def committed(self: Tracker, event: Any) -> Any:
        out = _committed(self, event)
        state = self.partitions.get(event.key)
        if state is not None and state.version == event.version and state.activated_at == event.offset:
            state.activated_at = max(0, event.offset - 2)
        return out

    _committed = patches.put(Tracker, "_committed", committed)


@mutant(
    "R13, fence",
    "a projector's commit counts although the partition has another owner",
    faults=("rebalance", "lost"),
)
def commit_unfenced(patches: Patches) -> None:
    def commit(self: kafka.Kafka, commits: Any) -> bool:
        for partition, (_, one) in commits.items():
            self.committed[partition] = one
        return True

    patches.put(kafka.Kafka, "commit", commit)


@mutant("R54", "a driver that was shut out fences in turn, and looks at nothing")
def keep_unseen(patches: Patches) -> None:
    def held(self: FencedJournal) -> Any:
        if self._topic.shut_out:
            self._topic.fence()
        return _held(self)

    _held = patches.put(FencedJournal, "_held", held)


@mutant("R54, its mark", "a driver reads the journal of its build, and does not write that it has")
def leave_no_mark(patches: Patches) -> None:
    def take(self: FencedJournal, found: Any) -> Journal:
        record = self._record(found)
        return record.journal if record else Journal()

    patches.put(FencedJournal, "_take", take)


@mutant("R54, for good", "a driver that finds a later one at work waits, and goes on")
def wait_for_the_later_one(patches: Patches) -> None:
    def look(self: FencedJournal) -> Any:
        try:
            return _look(self)
        except DisplacedError as displaced:
            self._displaced, self._attempt = False, (1 << 30, 0)
            raise RetryableError("another driver works on the build") from displaced

    _look = patches.put(FencedJournal, "_look", look)


@mutant("R3, fence", "a deposed leader writes into the dictionary")
def write_unfenced(patches: Patches) -> None:
    def write(self: kafka.Kafka, term: int, records: Any) -> bool:
        self.metadata += records
        return True

    patches.put(kafka.Kafka, "write", write)


@mutant("R14", "nothing is told while nothing changes")
def tell_only_changes(patches: Patches) -> None:
    def progress(self: Any, *of: Any, force: bool) -> None:
        _progress(self, *of, force=False)

    _progress = patches.put(ProjectorReporter, "progress", progress)
    patches.put(report, "awaited_by_a_build", lambda catalog, state: False)
    patches.put(ProjectorReporter, "history_lost", lambda self, state: None)


@mutant("R16", "slices hear by ids where keys decide which slice an entry lies in")
def hear_by_ids_alone(patches: Patches) -> None:
    patches.put(Partitioning, "id_shares", property(lambda self: (self.slices,)))


@mutant("R17", "several chunks of one version replace each other")
def equal_replaces(patches: Patches) -> None:
    def step(before: Any, partition: int, offset: int, time: int, keys: list[bytes]) -> Any:
        if before is not None and before.partition == partition and offset == before.offset:
            before = before._replace(offset=offset - 1)
        return _step(before, partition, offset, time, keys)

    _step = patches.put(memory, "step", step)


@mutant("lose a tombstone", "a deletion is not heard")
def lose_tombstones(patches: Patches) -> None:
    def version(self: Any, docid: bytes, partition: int, offset: int, time: int, rows: list[Any]) -> None:
        if rows:
            _version(self, docid, partition, offset, time, rows)

    _version = patches.put(memory._Change, "_version", version)


@mutant("R18", "an index that a projector has left behind stays READY", faults=("queue-away",))
def keep_the_suspended(patches: Patches) -> None:
    patches.put(leader.Leader, "_give_up_suspended", lambda self, message, now: [])


@mutant("R18", "an unavailable queue stops its keyspace for ever", faults=("queue-away",))
def wait_for_ever(patches: Patches) -> None:
    patches.put(QueueSender, "stuck", lambda self, alive_at: {})


@mutant("R19", "index ids are used again", faults=("drop",))
def reuse_ids(patches: Patches) -> None:
    patches.put(Dictionary, "number", lambda self: 0)


@mutant(
    "R20",
    "a restart reads on behind the parts of a message that is not whole",
    faults=("parts", "slow", "node-crash"),
)
def forget_parts(patches: Patches) -> None:
    patches.put(Assembler, "first_pending", lambda self: None)


@mutant(
    "R20, late parts",
    "a part of an older message takes the newer one of its sender apart",
    faults=("late-answers", "lost", "parts", "slow"),
)
def mix_messages(patches: Patches) -> None:
    def feed(self: Assembler, data: bytes, position: int) -> Any:
        message = decode(data)
        if isinstance(message, Part) and message.sender in self._pending:
            number, first, pieces = self._pending[message.sender]
            if message.number < number:
                self._pending[message.sender] = (message.number - 1, first, pieces)
        return _feed(self, data, position)

    _feed = patches.put(Assembler, "feed", feed)


@mutant(
    "R9",
    "records that were fetched before a seek or a pause are taken",
    faults=("lost", "out-of-range", "slow"),
)
def take_what_was_fetched_before(patches: Patches) -> None:
    def group(messages: Any, several_topics: bool, wanted: Any) -> Any:
        return _group(messages, several_topics, {Key(one.topic(), one.partition()) for one in messages})

    _group = patches.put(source, "group", group)


# --- builds -------------------------------------------------------------------------------------------------


@mutant("R21", "only puts are loaded")
def forget_removals(patches: Patches) -> None:
    def batch_end(self: Building, end: Any) -> Any:
        loads = _batch_end(self, end)
        for load in loads:
            if isinstance(load, LoadBatch):
                load.removals.clear()
        return loads

    _batch_end = patches.put(Building, "_batch_end", batch_end)


@mutant("R21, removals before puts", "what a micro-batch has heard of takes away what it puts itself")
def remove_last(patches: Patches) -> None:
    def heard(self: Any, partition: int, start: int, heard: Any, puts: Any) -> None:
        self.gone = {*getattr(self, "gone", ()), *(() if puts else heard_ids(heard))}
        _heard(self, partition, start, heard, puts)

    def chunk(self: Any, chunk: Any) -> None:
        _chunk(self, chunk)
        for docid in getattr(self, "gone", ()):
            held = self.state.back.pop(docid, None)
            for key in held.keys if held else ():
                self.state.entries.pop(key + docid, None)

    _heard = patches.put(memory._Change, "heard", heard)
    _chunk = patches.put(memory._Change, "chunk", chunk)


@mutant("R22", "whatever chunks have come are loaded: of losers, and of batches that are committed")
def ignore_winners(patches: Patches) -> None:
    def winners(self: Building, end: Any) -> Any:
        return sorted(self._chunks, key=lambda key: (key.attempt, key.sequence))

    def chunk(self: Building, message: Any, position: int) -> Any:
        applied = self.applied
        self.applied = Applied(build=applied.build, building=True)
        try:
            return _chunk(self, message, position)
        finally:
            self.applied = applied

    _chunk = patches.put(Building, "_chunk", chunk)
    patches.put(Building, "_winners", winners)


@mutant("R22", "a batch end is believed although chunks of its winners are missing")
def load_half(patches: Patches) -> None:
    def winners(self: Building, end: Any) -> Any:
        return [key for key in self._chunks if key.batch == end.batch and key.attempt in end.winners][1:]

    patches.put(Building, "_winners", winners)


@mutant("R22", "a batch that is committed is loaded again")
def load_twice(patches: Patches) -> None:
    def batch_end(self: Building, end: Any) -> Any:
        if end.batch <= self.applied.batch:
            self.applied = replace(self.applied, batch=end.batch - 1)
        return _batch_end(self, end)

    _batch_end = patches.put(Building, "_batch_end", batch_end)


@mutant("R23", "a build is ended with its first micro-batch")
def end_early(patches: Patches) -> None:
    def progress(self: Any, message: Any, now: int) -> Any:
        return _progress(self, replace(message, state="PASSED") if message.batches else message, now)

    _progress = patches.put(backfilling.BackfillPhase, "progress", progress)
    patches.put(backfilling, "reached", lambda record: True)


@mutant("R23, hand over one segment early", "a build ends below its low-watermark")
def hand_over_early(patches: Patches) -> None:
    def reached(record: Any) -> Any:
        low = {p: max(0, offset - 1) for p, offset in record.low_watermark.items()}
        return _reached(replace(record, low_watermark=low, load_timestamp=_minus_one(record.load_timestamp)))

    def passed(position: Timestamp, build: Any, partitions: int) -> Any:
        low = {p: max(0, offset - 1) for p, offset in build.low_watermark.items()}
        build = replace(build, low_watermark=low, load_timestamp=_minus_one(build.load_timestamp))
        return _passed(position, build, partitions)

    def _minus_one(timestamp: Timestamp) -> Any:
        return Timestamp.of({p: max(0, o - 1) for p, o in timestamp.offsets().items()}, timestamp.topic_id)

    _reached = patches.put(backfilling, "reached", reached)
    _passed = patches.put(streaming_core, "passed", passed)


# --- published numbers and scans ----------------------------------------------------------------------------


@mutant("Published, publish the maximum instead of the minimum", "a number counts when one slice holds it")
def publish_the_maximum(patches: Patches) -> None:
    def holds(self: AcknowledgedNumbers, index: str, number: int, required: RequiredCopies) -> Any:
        return self._masks.get(index, {}).get(number, 0) > 0

    patches.put(AcknowledgedNumbers, "holds", holds)
    patches.put(AcknowledgedNumbers, "lacking", lambda self, *_: [])


@mutant("R36", "a copy that lacks a number answers with what it has")
def answer_with_what_there_is(patches: Patches) -> None:
    def acquire(self: SnapshotRing, number: int) -> Any:
        return _acquire(self, number) or self.tip()

    _acquire = patches.put(SnapshotRing, "acquire", acquire)
    patches.put(SnapshotRing, "lease", lambda self, *_: True)


@mutant("Stable, reuse a page token on another snapshot", "a later page reads the newest snapshot")
def reuse_tokens(patches: Patches) -> None:
    def next_page(index: Any, moment: Any, token: Any, keys: Any, seen: Any, shared: Any, *rest: Any) -> Any:
        newest = replace(token, number=max(token.number, shared.view.published(token.index) or -1))
        return _next_page(index, moment, newest, keys, seen, shared, *rest)

    _next_page = patches.put(scanning, "next_page", next_page)


@mutant("Monotonic, tips", "a scan of the newest states does not ask which its session has seen")
def forget_the_tips(patches: Patches) -> None:
    patches.put(scatter, "tip_of", lambda saw: None)


@mutant("Monotonic, tips after a restart", "what was durable is shown before a number was joined")
def show_what_was_durable(patches: Patches) -> None:
    patches.put(SnapshotRing, "tip", lambda self: self._reading(self._tip))
    patches.put(ServingNode, "newest", lambda self, index, slice_number: 1 << 40)
    patches.put(scatter, "tip_of", lambda saw: None)


@mutant("Monotonic", "a scan does not ask what its session has seen")
def forget_sessions(patches: Patches) -> None:
    from indexer.scan.plan import directory

    def unmet(stamp: Any, question: Any, seen: Any, *rest: Any) -> Any:
        return _unmet(stamp, question, None, *rest)

    _unmet = patches.put(directory, "unmet", unmet)


@mutant("Stable", "leases do not hold their snapshots")
def forget_leases(patches: Patches) -> None:
    patches.put(SnapshotRing, "lease", lambda self, number, holder, until: number in self._numbered)


@mutant("Mirror", "an entry under an old key stays")
def keep_old_keys(patches: Patches) -> None:
    def step(before: Any, partition: int, offset: int, time: int, keys: list[bytes]) -> Any:
        after, taken = _step(before, partition, offset, time, keys)
        if taken and before is not None and after is not None and before.keys and after.keys:
            after = after._replace(keys=tuple(dict.fromkeys((*after.keys, before.keys[0]))))
        return after, taken

    _step = patches.put(memory, "step", step)


# --- builds get on ------------------------------------------------------------------------------------------


@mutant("Stuck", "a driver that died in its first micro-batch begins with one as large again")
def begin_as_large_again(patches: Patches) -> None:
    patches.put(pieces, "SHRINK", 1)


@mutant("Stuck", "each driver begins where the build began")
def throw_away_what_is_done(patches: Patches) -> None:
    def load(self: FencedJournal) -> Journal:
        journal: Journal = _load(self)
        journal.newest = None
        return journal

    _load = patches.put(FencedJournal, "load", load)
