"""The leader as a whole: dictionary, stability timestamps, builds and statements behind one `handle`. Pure.

Each event goes to every part that it concerns. What they change in the dictionary comes out as one `Write`,
before the instructions that follow from it. Parts speak to each other only through the dictionary and
`CommonSnapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.builds.rebuild import Rebuilds
from coordinator.builds.registry import BuildLimits
from coordinator.builds.retirement import Retirement, fail_index
from coordinator.catalog.dictionary import Dictionary
from coordinator.copies.copies import Copies
from coordinator.core.events import (
    CommonSnapshot,
    ControlTail,
    DictionaryWritten,
    Event,
    QueuesTrimmed,
    Reported,
    RollbackWritten,
    SourceSampled,
    Tick,
    TopicsDeleted,
    WrittenTold,
)
from coordinator.core.instructions import Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.core.queue_sizes import QueueSizes
from coordinator.core.slice_loads import LoadLimits, SliceLoads
from coordinator.core.source_status import SourceStatus
from coordinator.core.speakers import Speakers
from coordinator.layouts.layouts import Layouts
from coordinator.queues.trimming import Trimmer
from coordinator.rollback.rollback import Rollbacks
from coordinator.stability.bounds import Bounds
from coordinator.stability.issuer import TimestampIssuer
from coordinator.stability.projector_lag import UNTIL_JUDGED, LatenessWatch
from coordinator.stability.stream import StabilityStream
from coordinator.statements.auto_split import AutoSplitLimits, AutoSplits
from coordinator.statements.commands import Commands
from keytide.catalog.catalog import EMITTING, Catalog
from keytide.catalog.records import IndexRecord, NodeRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import (
    QUEUE_UNAVAILABLE,
    BuildProgress,
    HeartbeatChanges,
    JobProgress,
    Message,
    NodeHeartbeat,
    Progress,
)


class Leader:
    """The one coordinator that decides.

    Args:
        catalog: the dictionary as read after the term was claimed; changed in place from now on.
        cluster: the cluster's name.
        term: the leader's term.

    Attributes:
        foreign: topics named like the cluster's queues that it knows nothing of
        (`coordinator.queues.orphaned_topics`).
        speakers: who speaks which version of the protocol.
        clock_ahead_ms: by how much its time, which never goes back, is ahead of the machine's, which was set
            back. What others tell by their clocks is looked at without it.
    """

    def __init__(
        self,
        catalog: Catalog,
        cluster: str,
        term: int,
        limits: CoreLimits,
        build_limits: BuildLimits,
        load_limits: LoadLimits | None = None,
        auto_split_limits: AutoSplitLimits | None = None,
    ) -> None:
        self.stability = TimestampIssuer(limits, term)
        self.speakers = Speakers(self.stability.nodes.live, self.stability.projectors)
        self.dictionary = Dictionary(catalog, cluster, self.speakers)
        self.queue_sizes = QueueSizes(limits.kafka_disk_bytes)
        self.builds = Builds(self.dictionary, build_limits, self.stability.nodes, self.queue_sizes)
        self.jobs = self.builds.jobs
        self.sources: dict[str, SourceStatus] = {}
        self.foreign: list[str] = []
        self.term = term
        self.clock_ahead_ms = 0
        self.build_limits = build_limits
        self.rebuilds = Rebuilds(self.builds, self.stability.nodes, build_limits)
        self.copies = Copies(self.builds.registry, self.stability, limits, build_limits, self.queue_sizes)
        self.loads = SliceLoads(self.stability.nodes, load_limits or LoadLimits())
        self.auto_splits = AutoSplits(self.builds, self.loads, auto_split_limits or AutoSplitLimits())
        self.layouts = Layouts(self.builds, self.stability, limits)
        self.trimmer = Trimmer(self.builds, self.stability, limits, self.queue_sizes)
        self._retirement = Retirement(self.dictionary)
        self._lateness = LatenessWatch()
        self._bounds = Bounds(self.dictionary, self.stability)
        self.rollbacks = Rollbacks(self.dictionary, self.stability, self.builds, self._lateness, limits)
        self.commands = Commands(
            self.dictionary, self.builds, self.copies.moves, self._settle, build_limits.default_replicas
        )

    def staleness_ms(self, stream: StabilityStream, now: int) -> int | None:
        """For how long the timestamps of a keyspace have not covered its source's end, None when they never
        did; by the clocks of projectors."""
        fresh_at = stream.progress.fresh_at()
        return max(0, now - self.clock_ahead_ms - fresh_at) if fresh_at else None

    # --- events ---------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """One event; what to do now, in this order."""
        out: list[Instruction | CommonSnapshot] = []
        if isinstance(event, Reported) and isinstance(event.message, NodeHeartbeat | HeartbeatChanges):
            heartbeat = self.stability.nodes.in_full(event.message)
            if heartbeat is None:
                return []
            event = Reported(heartbeat, event.now)
        match event:
            case Reported(NodeHeartbeat() as message, now) if (
                message.protocol < self.dictionary.catalog.protocol
            ):
                # It may take the one layout for the other, and knows of no copies that leave: as if silent.
                return self._settle(self._too_old(message, now), now)
            case ControlTail():
                out += self.stability.catalog_changed(self.dictionary.catalog, event.now)
                out += self.stability.handle(event)
                out += self._bounds.recover()
                self._hold_until_looked()
                out += [*self.builds.recover(), *self.jobs.recover(), *self._retirement.recover()]
                return self._settle(out, event.now)
            case Reported(message, now):
                out += self._heard(message, now)
            case SourceSampled(source, _, _):
                out += self._source_changed(source)
                out += self._check_lateness(source)
            case TopicsDeleted():
                out += self._retirement.deleted(event)
            case Tick(now):
                progress = {name: stream.progress for name, stream in self.stability.streams.items()}
                out += self._retirement.tick(progress, now)
                out += [*self.rebuilds.tick(now), *self.trimmer.tick(now)]
                out += self.loads.tick(self.dictionary.catalog, now)
                out += self.auto_splits.tick(now)
            case RollbackWritten(keyspace):
                self._hold_back(keyspace)
            case DictionaryWritten(end):
                self.dictionary.wrote(end)
            case QueuesTrimmed():
                out += self.trimmer.trimmed(event)
            case WrittenTold(id_):
                index = self.dictionary.catalog.index(id_)
                out += self.auto_splits.told(event, self.sources.get(index.keyspace) if index else None)
        out += self._bounds.handle(event)
        out += self.rollbacks.handle(event)
        out += self.stability.handle(event)
        out += self.jobs.handle(event)
        out += self.builds.handle(event, self.stability.nodes.live())
        out += self.copies.handle(event)
        out += self.layouts.handle(event)
        return self._settle(out, event.now)

    @property
    def looks_soon(self) -> bool:
        """Whether timestamps wait for nothing but a look at a source."""
        streams = self.stability.streams.values()
        return any(UNTIL_JUDGED in (stream.hold, stream.floor) for stream in streams)

    def keyspaces(self) -> list[str]:
        """Keyspaces with indexes: those whose source is watched."""
        catalog = self.dictionary.catalog
        return sorted({index.keyspace for index in catalog.indexes()})

    def _settle(self, out: Iterable[Instruction | CommonSnapshot], now: int) -> list[Instruction]:
        """Let news for builds reach them, and put the write before what follows from it."""
        result: list[Instruction] = []
        pending = list(out)
        while pending or self.dictionary.changed:
            following: list[Instruction] = []
            for one in pending:
                if isinstance(one, CommonSnapshot):
                    following += self.builds.handle(one, self.stability.nodes.live())
                else:
                    following.append(one)
            write = self.dictionary.drain()
            pending = []
            if write is not None:
                result.append(write)
                pending = self.stability.catalog_changed(self.dictionary.catalog, now)
            result += following
        return result

    def _heard(self, message: Message, now: int) -> list[Instruction]:
        match message:
            case NodeHeartbeat():
                self._remember_node(message, now)
                return [*self.builds.registry.unique.heard(message)]
            case Progress():
                return self._give_up_suspended(message, now)
            case BuildProgress() | JobProgress():
                self.speakers.driver(message)
                return []
            case _:
                return []

    def _remember_node(self, message: NodeHeartbeat, now: int) -> None:
        """Write down what a node says of itself, when that is news."""
        known = self.dictionary.catalog.records.get(f"node/{message.node}")
        if not isinstance(known, NodeRecord):
            known = NodeRecord(message.node, message.url, now)
        self.dictionary.put(
            replace(known, url=message.url, zone=message.zone, roles=message.roles, protocol=message.protocol)
        )

    def _too_old(self, message: NodeHeartbeat, now: int) -> list[Instruction]:
        """A word of a node that does not speak the version of the protocol that is in use, once."""
        self._remember_node(message, now)
        if not self.dictionary.changed:
            return []
        used = self.dictionary.catalog.protocol
        text = (
            f"node {message.node} speaks version {message.protocol} of the protocol, and version {used} is "
            "in use: it is passed over until it is upgraded"
        )
        return [Note("error", "node-too-old", message.node, text)]

    def _check_lateness(self, source: SourceStatus) -> list[Instruction]:
        """Late projectors of a compacted topic: hold timestamps back (R27), give up indexes (R26)."""
        stream = self.stability.streams.get(source.keyspace)
        if stream is None or not stream.ready:
            self._lateness.forget(source.keyspace)
            if stream is not None:
                stream.hold = None
            return []
        if stream.hold is UNTIL_JUDGED and source.exists and not source.compacted:
            stream.hold = None
        content, read, fresh_at = stream.content, stream.progress.timestamp(), stream.progress.fresh_at()
        if stream.floor is not None:  # no timestamp is known yet, only what was fresh before
            content, fresh_at = Timestamp(), stream.progress.keyspace.fresh_at
        if not source.exists or content is None or not stream.progress.heard or stream.halted:
            return []  # (a coordinator that was away must first hear how far projectors have come meanwhile)
        verdict = self._lateness.judge(source, content, read, fresh_at, again=_again(stream))
        out: list[Instruction] = []
        if verdict.hold is not None and stream.hold is None:
            text = (
                f"projectors of {source.keyspace} are late; the next timestamp comes when they have caught up"
            )
            out.append(Note("warning", "timestamps-held", source.keyspace, text))
        stream.hold = verdict.hold
        for index in stream.ready if verdict.failure else ():
            out += self._fail(index, verdict.failure, source.sampled_at)
        return out

    def _hold_until_looked(self) -> None:
        """At the start of a term: nobody may have read for long. The first look at a source, once projectors
        have said where they are, tells whether it was too long."""
        for stream in self.stability.streams.values():
            if stream.ready and (stream.content is not None or stream.floor is not None):
                stream.hold = UNTIL_JUDGED

    def _hold_back(self, keyspace: str) -> None:
        """After a rollback: until the first look at the source says how much is read again."""
        source, stream = self.sources.get(keyspace), self.stability.streams.get(keyspace)
        if stream is not None and stream.ready and (source is None or source.compacted):
            stream.hold = UNTIL_JUDGED

    def _give_up_suspended(self, message: Progress, now: int) -> list[Instruction]:
        """Indexes that a projector sends nothing for any more (R18): their queues have a hole that nobody
        fills. A report that does not know the index's present version speaks of an earlier build of it."""
        known = max((line.version for line in message.partitions), default=0)
        out: list[Instruction] = []
        for id_, reasons in sorted(message.skipped.items()):
            index = self.dictionary.catalog.index(id_)
            if index is None or index.state not in EMITTING or not 0 < index.version <= known:
                continue
            if not reasons.get(QUEUE_UNAVAILABLE):
                continue
            reason = (
                "one of its queues took nothing for too long (setting projector.queue_unavailable_s) while "
                "others did; it was left behind, so that they go on: build it again"
            )
            build = self.builds.registry.active(index) if index.state != "READY" else None
            out += self.builds.registry.fail(build, reason, now) if build else self._fail(index, reason, now)
        return out

    def _fail(self, index: IndexRecord, reason: str, now: int) -> list[Instruction]:
        """Give up an index that can never be right again."""
        left = self.builds.leave_rebuilds(index, f"index {index.name} failed: {reason}", now)
        return [*left, *fail_index(self.dictionary, index, reason)]

    def _source_changed(self, source: SourceStatus) -> list[Instruction]:
        self.sources[source.keyspace] = source
        known = self.dictionary.catalog.keyspace(source.keyspace)
        if known is None or known.topic_id != source.topic_id or source.partitions <= known.partitions:
            return []
        self.dictionary.put(replace(known, partitions=source.partitions))
        text = f"topic {known.name} has {source.partitions} partitions now, it had {known.partitions}"
        return [Note("info", "partitions-added", known.name, text)]


def _again(stream: StabilityStream) -> bool:
    """Whether a keyspace was rolled back, and no timestamp has covered the end since."""
    return stream.progress.keyspace.incarnation > 0 and not stream.progress.fresh_at()
