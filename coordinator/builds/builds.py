"""Builds: from BUILD INDEX to READY, one step at a time. Pure.

Theory of operation. The way of a build (its states and how they change: `registry.TRANSITIONS`):

    QUEUED      waits for its turn, for nodes, for the removal of what an earlier build left (`admission`)
                -> topics are made, the source is sampled: its end is the load timestamp (R24); slices are
                   placed; the keyspace's version is raised, so that projectors activate the indexes (R13)
    BACKFILL    the Spark driver reads; driver, source and both timestamps are watched (`backfill`)
                -> both timestamps are passed; the source's end is sampled once more (R25); BuildEnd (R23)
    CATCHUP     slices read their mutation queues (`completion`)
                -> for each index: every slice holds one snapshot past the load timestamp and R25's end

READY, FAILED and CANCELLED are final. After a restart of the coordinator everything goes on from the record:
a new driver that goes on by the journal, `BuildEnd` once more (it is idempotent), the same low-watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec.structs import replace

from coordinator.builds.admission import BuildAdmission
from coordinator.builds.backfill import BEGIN_AGAIN, BackfillPhase
from coordinator.builds.completion import COMMON, BuildCompletion
from coordinator.builds.pausing import BuildPausing
from coordinator.builds.phases import Phases
from coordinator.builds.registry import BuildLimits, BuildRegistry
from coordinator.builds.sampling import SplitSampling
from coordinator.catalog.dictionary import Dictionary
from coordinator.core import drivers
from coordinator.core.events import (
    BuildPrepared,
    CommonSnapshot,
    DriverExited,
    Event,
    PrepareFailed,
    Reported,
    RoomSeen,
    SourceAway,
    SourceSampled,
    Tick,
)
from coordinator.core.instructions import DeleteTopics, Instruction, Note, StartDriver
from coordinator.core.nodes import HeardNodes
from coordinator.core.queue_sizes import QueueSizes
from coordinator.core.source_status import SourceStatus
from coordinator.jobs.jobs import Jobs
from coordinator.sources.layout_sources import gone, other_entries
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.definition.index import IndexDefinition
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import Activated, BuildProgress, BuildSampled, Message

UNDER_WAY: Final = frozenset({"BACKFILL", "PAUSED", "CATCHUP"})


class Builds:
    """The state machine of all builds. Records are read from and put into the dictionary, whose `drain` gives
    the write that comes before the instructions returned here.

    Args:
        dictionary: the leader's.
        limits: settings.
        nodes: what indexer nodes say.
        sizes: what Kafka says of its disks.
    """

    def __init__(
        self, dictionary: Dictionary, limits: BuildLimits, nodes: HeardNodes, sizes: QueueSizes
    ) -> None:
        self.nodes = nodes
        self.registry = BuildRegistry(dictionary)
        self.pausing = BuildPausing(self.registry, limits, nodes, sizes)
        self.phases = Phases(self.registry, nodes)
        self._limits = limits
        self._sampling = SplitSampling(self.registry, limits, self.pausing)
        self._admission = BuildAdmission(self.registry, limits, self.pausing, self._sampling, nodes)
        self._backfill = BackfillPhase(self.registry, limits, self.pausing)
        self.jobs = Jobs(dictionary, limits.jobs)
        self.completion = BuildCompletion(self.registry, self.jobs, nodes)
        self._witnesses: dict[str, tuple[int, Timestamp]] = {}
        """Build -> when which reach of it was known."""

    def recover(self) -> list[Instruction]:
        """What to do, at the start of a term, for builds that were under way."""
        out: list[Instruction] = []
        for record in self.registry.all():
            if record.state == "BACKFILL":
                out.append(StartDriver(record.id))
                text = f"build {record.id} goes on where it was"
                out.append(Note("info", "build-resumed", record.id, text))
            elif record.state == "CATCHUP":
                out.append(self.completion.build_end(record))
                self.registry.run(record.id).waiting_for = COMMON
        return out

    def request(
        self,
        indexes: list[IndexRecord],
        rate_limit: int,
        now: int,
        attempt: int = 0,
        origin: TableOrigin | None = None,
        verify: bool | Literal["full"] | None = None,
        like: BuildRecord | None = None,
    ) -> BuildRecord:
        """Queue a build of indexes of one keyspace (`commands` has checked that they can be built).

        Args:
            verify: whether they are READY only verified; `full`: by a second read of the source alone; None
                for what the settings say.
            like: another one, which is over, that this is in place of.
        """
        wanted = self._limits.verify if verify is None else verify
        record = self._queue(
            indexes[0].keyspace,
            [index.id for index in indexes],
            now,
            like,
            rate_limit=rate_limit,
            attempt=attempt,
            origin=origin,
            verify=bool(wanted),
            verify_full=wanted == "full",
        )
        for index in indexes:
            # Its state changes when the build starts.
            self.registry.dictionary.put(replace(index, build=record.id, violated=None))
        return record

    def request_rebuild(
        self,
        keyspace: str,
        slices: Mapping[str, Sequence[int]],
        now: int,
        attempt: int = 0,
        origin: TableOrigin | None = None,
        like: BuildRecord | None = None,
    ) -> BuildRecord | None:
        """Queue a rebuild of single slices of READY indexes of one keyspace; None when none of them is READY
        any more. `like` as in `request`."""
        catalog = self.registry.dictionary.catalog
        wanted = {
            id_: sorted(numbers)
            for id_, numbers in sorted(slices.items())
            if (index := catalog.index(id_)) is not None and index.state == "READY"
        }
        if not wanted:
            return None
        # (`completion` says why it is not verified.)
        return self._queue(
            keyspace, list(wanted), now, like, slices=wanted, attempt=attempt, origin=origin, verify=False
        )

    def _queue(
        self, keyspace: str, indexes: list[str], now: int, like: BuildRecord | None, **fields: Any
    ) -> BuildRecord:
        """What was said of a build that this one is in place of stays: its rate, and a pause on request."""
        if like is not None:
            fields["rate_limit"] = like.rate_limit
            if like.paused_by == "operator":
                fields.update(paused=like.paused, paused_by=like.paused_by)
        record = BuildRecord(
            id=f"b{self.registry.dictionary.number()}",
            keyspace=keyspace,
            indexes=indexes,
            state="QUEUED",
            load_timestamp=Timestamp(),
            started_at=now,
            **fields,
        )
        self.registry.put(record)
        return record

    def rolled_back(self, keyspace: str, reason: str, now: int) -> list[Instruction]:
        """Begin every build of a keyspace that is under way again (R28): what it has read may be on the lost
        branch, and its timestamps are those of another history."""
        out: list[Instruction] = []
        for record in self.registry.all():
            if record.keyspace == keyspace and record.state in UNDER_WAY:
                out += self.begin_again(record, reason, now)
        return out

    def reach(self, keyspace: str) -> Timestamp:
        """How far builds that are under way have read, or are to read."""
        reached = Timestamp()
        for record in self.registry.all():
            if record.keyspace == keyspace and record.state in UNDER_WAY:
                reached = reached.merge_max(_reach(record))
        return reached

    def _past_the_end(self, source: SourceStatus, now: int) -> list[Instruction]:
        """Begin builds again that have read, or wait for, what the source has no more: no rollback tells of
        it when nothing but the build has read it. An end is held against an older reach only."""
        out: list[Instruction] = []
        for record in self.registry.all():
            if record.keyspace != source.keyspace or record.state not in UNDER_WAY:
                continue
            seen_at, reached = self._witnesses.get(record.id, (now, Timestamp()))
            self._witnesses[record.id] = (now, _reach(record))
            short = [
                p for p, place in reached.places.items() if place.offset > source.high.get(p, place.offset)
            ]
            if not short or source.sampled_at < seen_at or source.keyspace in self.registry.halted:
                continue
            if source.topic_id == record.load_timestamp.topic_id:
                del self._witnesses[record.id]
                out += self.begin_again(record, "the source lost records that the build counts on", now)
        return out

    def _source_ends(self, event: SourceSampled) -> list[Instruction]:
        """The driver has passed, and the source was looked at since: what it has read counts if it was still
        on the log then. (What is lost later is held against the build's reach.)"""
        if event.lost:
            return self._what_was_read_is_lost(event, drivers.READ_LOST)
        return self.completion.source_ends(event)

    def _what_was_read_is_lost(self, event: SourceSampled | DriverExited, status: int) -> list[Instruction]:
        """What a build has read is not on the log any more (nobody else may have read it, so no rollback
        tells), or its driver does not know any more what it was."""
        record = self.registry.find(event.build, "BACKFILL")
        return self.begin_again(record, BEGIN_AGAIN[status], event.now) if record else []

    def begin_again(self, record: BuildRecord, reason: str, now: int) -> list[Instruction]:
        """End a build and queue the same anew, unless that was done too often already."""
        if record.attempt >= self._limits.restarts:
            why = f"it was begun {record.attempt + 1} times; at last: {reason}"
            if not record.rebuild:  # (what becomes of slices that cannot be rebuilt: `rebuild`)
                why += "; mend that, and build again"
            return self.registry.fail(record, why, now)
        out = self.registry.end_to_begin_again(record, reason, now)
        again = record.attempt + 1
        wanted = [index for index in self.registry.indexes(record) if index.state == "DEFERRED"]
        made = None
        if record.rebuild:
            made = self.request_rebuild(record.keyspace, record.slices, now, again, record.origin, record)
        elif wanted:
            made = self.build_anew(record, wanted, now, again)
        if made is not None:  # whoever waits for it is told where to look
            over = self.registry.get(record.id)
            self.registry.dictionary.put(replace(over, error=f"begun again as {made.id}: {reason}"))
        return out

    def build_anew(
        self, record: BuildRecord, indexes: list[IndexRecord], now: int, attempt: int = 0
    ) -> BuildRecord:
        """Queue a build of indexes as another one was to be, which is over."""
        verify: bool | Literal["full"] = "full" if record.verify_full else record.verify
        return self.request(indexes, record.rate_limit, now, attempt, record.origin, verify, like=record)

    def handle(self, event: Event, live_nodes: list[str]) -> list[Instruction]:
        """One event; what follows.

        Args:
            live_nodes: ids of the live indexer nodes, sorted.
        """
        match event:
            case Reported(message, now):
                self._backfill.heard(now)
                return self._reported(message, now)
            case Tick(now):
                return self._tick(live_nodes, now)
            case BuildPrepared():
                return self._admission.prepared(event)
            case PrepareFailed():
                return self._admission.prepare_failed(event)
            case SourceAway():
                self.pausing.source_away(event)
                return []
            case RoomSeen():
                self.pausing.room = event
                return []
            case SourceSampled(source, "", now):
                self.pausing.source_seen(source.keyspace)
                return [*self._past_the_end(source, now), *self._backfill.watch_source(event)]
            case SourceSampled():
                return self._source_ends(event)
            case DriverExited(task="sample"):
                return self._sampling.exited(event)
            case DriverExited(status=status):
                if status in BEGIN_AGAIN:
                    return self._what_was_read_is_lost(event, status)
                return self._backfill.driver_exited(event)
            case CommonSnapshot():
                return self.completion.common(event)
            case _:
                return []

    def _reported(self, message: Message, now: int) -> list[Instruction]:
        match message:
            case Activated():
                return self._backfill.activated(message)
            case BuildProgress():
                return self._backfill.progress(message, now)
            case BuildSampled():
                return self._sampling.found(message)
            case _:
                return []

    def _tick(self, live_nodes: list[str], now: int) -> list[Instruction]:
        out: list[Instruction] = []
        for record in self.registry.all():
            if record.state == "QUEUED":
                out += self._sampling.tick(record, now) or self._admission.try_start(record, live_nodes, now)
            if record.state not in UNDER_WAY:
                continue
            if record.state != "CATCHUP" and (reason := self._seed_gone(record)):
                out += self.begin_again(record, reason, now)
                continue
            self.phases.tick(record)
            record = self.registry.get(record.id)
            paused = self.pausing.tick(record, now)
            out += paused
            if record.state == "BACKFILL" and not paused:
                out += self._backfill.tick(record, now)
            elif record.state == "CATCHUP" and record.verification:
                out += self.completion.tick(record, now)
        return out

    def seeds(self, new: IndexDefinition, old: IndexDefinition) -> bool:
        """Whether a new layout may begin with the entries of the old one."""
        return self._limits.seed_layouts and not other_entries(new, old)

    def _seed_gone(self, record: BuildRecord) -> str:
        """Why what a build begins with cannot be had any more; "" when it can, or is there already."""
        if not record.seed or record.batches:
            return ""
        old = self.registry.dictionary.catalog.index(record.seed)
        if old is not None and self.registry.half_rebuilt(old):
            return f"slices of layout {old.id} are rebuilt"
        return gone(self.registry.dictionary.catalog, self.nodes, record.seed)

    def leave_rebuilds(self, index: IndexRecord, reason: str, now: int) -> list[Instruction]:
        """No slice of an index is to be rebuilt any more: it is being dropped, say, or has failed."""
        out: list[Instruction] = []
        for record in self.registry.rebuilds(index.id):
            others = {id_: numbers for id_, numbers in record.slices.items() if id_ != index.id}
            waits = record.state == "QUEUED" and not self.registry.run(record.id).preparing
            if others and (waits or record.state == "CATCHUP"):
                self.registry.put(replace(record, indexes=list(others), slices=others))
                out.append(DeleteTopics((self.registry.dictionary.topics.backfill(index.id, record.id),)))
                continue
            out += self.registry.cancel(record, reason, now)
            self.request_rebuild(record.keyspace, others, now, record.attempt, record.origin, record)
        return out

    def leave(self, index: IndexRecord, now: int) -> tuple[list[Instruction], list[IndexRecord]]:
        """An index that is being dropped leaves its build.

        A driver cannot change its indexes, so in BACKFILL that cancels the build; before and after, the
        others go on.

        Returns:
            Instructions, and those of its indexes whose build was cancelled although they are wanted.
        """
        reason = f"index {index.name} was dropped"
        out = self.leave_rebuilds(index, reason, now)
        record = self.registry.active(index)
        if record is None:
            return out, []
        others = [id_ for id_ in record.indexes if id_ != index.id]
        waits = record.state == "QUEUED" and not self.registry.run(record.id).preparing
        if others and (waits or record.state == "CATCHUP"):
            record = replace(record, indexes=others)
            self.registry.put(record)
            # Of a build that waits it may be there as well: topics are made, then a pause comes in between.
            out.append(DeleteTopics((self.registry.dictionary.topics.backfill(index.id, record.id),)))
            return [*out, *([] if waits else self.completion.finish_if_ready(record, now))], []
        out += self.registry.cancel(record, reason, now)
        found = [self.registry.dictionary.catalog.index(id_) for id_ in others]
        return out, [other for other in found if other is not None and other.state == "DEFERRED"]


def _reach(record: BuildRecord) -> Timestamp:
    """How far a build has read, or is to read."""
    return record.load_timestamp.merge_max(record.backfill_timestamp).merge_max(
        record.final_timestamp or Timestamp()
    )
