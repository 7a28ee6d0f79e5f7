"""Builds that wait for their turn, and how one begins. Pure.

A build starts when the limits of builds at once (cluster and node) allow it, enough nodes are live, and
nothing is left of an earlier build of its indexes. The splits of RANGE indexes are found first, if they are
not given (`sampling`). Its topics are made before anything says that it runs:
projectors emit as soon as they see the new version. The source is sampled after that; its end is the load
timestamp (R24).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from coordinator.builds.pausing import BuildPausing
from coordinator.builds.registry import BuildLimits, BuildRegistry
from coordinator.builds.sampling import SplitSampling
from coordinator.catalog.placement import TooFewNodesError, counts, nodes_of, place
from coordinator.core.events import BuildPrepared, PrepareFailed
from coordinator.core.instructions import Instruction, Note, PrepareBuild, StartDriver
from coordinator.core.nodes import HeardNodes
from coordinator.core.source_status import SourceStatus
from coordinator.sources.layout_sources import NAMED, Seed, forgotten, seed_of
from coordinator.sources.source_checks import open_transactions, waiting_words
from coordinator.sources.table_origins import refused
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.model.protocol import LAYOUTS
from keytide.model.timestamp import Timestamp
from keytide.model.words import few

AGAIN_MS = 1_000
"""Before a build is prepared again whose source was another topic than is known."""


class BuildAdmission:
    """QUEUED to BACKFILL."""

    def __init__(
        self,
        registry: BuildRegistry,
        limits: BuildLimits,
        pausing: BuildPausing,
        sampling: SplitSampling,
        nodes: HeardNodes,
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._nodes = nodes
        self._pausing = pausing
        self._sampling = sampling

    def try_start(self, record: BuildRecord, live_nodes: list[str], now: int) -> list[Instruction]:
        """Begin a queued build if it may; else say what it waits for."""
        run = self._registry.run(record.id)
        if not record.paused and (run.preparing or run.finding or now < run.again_at):
            return []
        indexes = self._registry.indexes(record)
        placement, run.waiting_for = self._placement(record, indexes, live_nodes, now)
        if run.waiting_for:
            return []
        if self._sampling.wanted(record):
            return self._sampling.begin(record)
        run.preparing, run.placement = True, placement
        run.incarnation = self._registry.incarnation(record.keyspace)
        topics = self._registry.dictionary.topics
        queues = tuple((topics.mutations(index.id), index.slices) for index in indexes)
        backfill = tuple((topics.backfill(index.id, record.id), index.slices) for index in indexes)
        if record.rebuild:
            return [PrepareBuild(record.id, record.keyspace, backfill, queues)]
        return [PrepareBuild(record.id, record.keyspace, queues + backfill)]

    def _placement(
        self, record: BuildRecord, indexes: list[IndexRecord], live_nodes: list[str], now: int
    ) -> tuple[dict[str, list[list[str]]], str]:
        """Where the slices of a build will be, by index id; and what it waits for, in words, "" when it may
        begin."""
        if record.paused:
            return {}, f"the end of its pause ({record.paused}): keytide build resume {record.id}"
        if trouble := self._pausing.trouble(record, now):
            return {}, trouble.text
        if record.keyspace in self._registry.halted:
            return {}, f"the examination of the history of {record.keyspace}"
        if turn := self._registry.turn(record, (), self._limits):
            return {}, turn
        if record.rebuild:
            placement = {i.id: [i.placement[n] for n in record.slices_of(i)] for i in indexes if i.placement}
            if away := [one for one in _slots(placement) if not set(one) & set(live_nodes)]:
                return {}, f"indexer nodes: {', '.join(nodes_of(away))} are not live"
        elif any(index.version for index in indexes):
            return {}, "the removal of what an earlier build left"
        elif awaited := self._nodes.awaited(self._registry.dictionary.catalog):
            return {}, awaited
        else:
            try:
                catalog = self._registry.dictionary.catalog
                load, zones, closed = (
                    counts(live_nodes, catalog.indexes()),
                    catalog.zones(),
                    catalog.closed(),
                )
                placement = {
                    i.id: place(i.slices, i.definition.replicas, load, zones, closed, i.definition.spread)
                    for i in indexes
                }
            except TooFewNodesError as error:
                return {}, f"indexer nodes: {error.message}"
        return placement, self._registry.turn(record, nodes_of(_slots(placement)), self._limits)

    def prepare_failed(self, event: PrepareFailed) -> list[Instruction]:
        """The topics could not be made: the next tick tries again."""
        run = self._registry.run(event.build)
        run.preparing = False
        return [Note("warning", "build-waits", event.build, f"topics cannot be made yet: {event.error}")]

    def prepared(self, event: BuildPrepared) -> list[Instruction]:
        """Topics are there, the source is sampled: begin."""
        record = self._registry.find(event.build, "QUEUED")
        if record is None:
            return []  # cancelled meanwhile, which has ordered the topics' removal
        run = self._registry.run(event.build)
        run.preparing = False
        if record.paused:
            return []  # meanwhile: it is prepared again when it is resumed
        incarnation = self._registry.incarnation(record.keyspace)
        if run.incarnation != incarnation or record.keyspace in self._registry.halted:
            return []  # what was sampled may be of a history that is over: the next tick prepares it again
        closed = self._registry.dictionary.catalog.closed()
        if not record.rebuild and not closed.isdisjoint(nodes_of(_slots(run.placement))):
            return []  # meanwhile: the next tick places its slices anew
        if self._another_topic(record.keyspace, event):
            run.again_at = event.now + AGAIN_MS
            run.waiting_for = f"the end of what was built on the topic that {record.keyspace} was before"
            return []
        seed = self._seed(record)
        if seed.waits:
            run.again_at, run.waiting_for = event.now + AGAIN_MS, seed.waits
            return []
        source, origin = event.source, None if seed.layout else record.origin
        reason = self._check_keyspace(record, event) or self._forgotten(record, seed, source)
        if origin is not None and not reason:
            rollbacks = self._registry.dictionary.catalog.rollbacks(record.keyspace)
            reason = refused(origin, source, rollbacks)
        if reason:
            return self._registry.fail(record, reason, event.now)
        load = Timestamp.of(source.high, source.topic_id)
        if record.rebuild:
            record = self._begin_rebuild(record, load, event)
        else:
            self._begin_build(record)
        earliest = Timestamp.of(origin.offsets if origin else source.earliest, source.topic_id)
        if seed.layout:  # its entries are of all that the old one was built from
            earliest = self._earliest(seed.layout) or earliest
        record = self._registry.move(
            record,
            "start",
            load_timestamp=load,
            earliest=earliest,
            started_at=event.now,
            documents_total=0 if seed.layout else earliest.documents_to(load),
            incarnation=incarnation,
            seed=seed.layout,
        )
        run.waiting_for = waiting_words(open_transactions(load, source))
        names = ", ".join(self._registry.names(record))
        text = f"build {record.id} of {names} reads {record.documents_total:,} documents of {record.keyspace}"
        if origin is not None:
            text += f", after the table {origin.path or origin.format}"
        if seed.layout:
            text = f"build {record.id} of {names} begins with the entries of {seed.layout}"
        return [StartDriver(record.id), Note("info", "build-started", record.id, text)]

    def _seed(self, record: BuildRecord) -> Seed:
        """What it begins with."""
        indexes = self._registry.indexes(record)
        if record.rebuild or len(indexes) != 1:
            return Seed(why="it is no build of one new layout")
        if not self._limits.seed_layouts:
            return Seed(why="build.seed_layouts is off")
        catalog = self._registry.dictionary.catalog
        if catalog.cluster is not None and catalog.cluster.protocol < LAYOUTS:
            return Seed(why="it was asked for under a release that reads the source")
        old = catalog.index(indexes[0].replaces)
        if old is not None and (half := self._registry.half_rebuilt(old)):
            return Seed(waits=f"the rebuild of slices {few(sorted(half), NAMED)} of {old.id}")
        return seed_of(catalog, self._nodes, indexes[0])

    def _forgotten(self, record: BuildRecord, seed: Seed, source: SourceStatus) -> str:
        """Why a new layout that begins with the source would lack what the old one has; "" when it would
        not."""
        catalog = self._registry.dictionary.catalog
        for index in () if seed.layout or record.rebuild else self._registry.indexes(record):
            old = catalog.index(index.replaces) if index.replaces else None
            if old is None or not source.exists:
                continue
            if reason := forgotten(catalog, old, source.earliest, source.topic_id):
                return f"{reason}, and it cannot begin with theirs: {seed.why}"
        return ""

    def _earliest(self, layout: str) -> Timestamp | None:
        """What a layout was built from."""
        catalog = self._registry.dictionary.catalog
        index = catalog.index(layout)
        build = catalog.build(index.build or "") if index is not None else None
        return build.earliest if build is not None else None

    def _begin_build(self, record: BuildRecord) -> None:
        """From now on projectors emit for its indexes, and nodes hold their slices."""
        dictionary, run = self._registry.dictionary, self._registry.run(record.id)
        version = dictionary.bump(record.keyspace).version
        for index in self._registry.indexes(record):
            dictionary.put(
                replace(
                    index,
                    state="BUILDING",
                    version=version,
                    reason="",
                    placement=run.placement[index.id],
                    slice_builds={},
                    copies={},
                    leaving={},
                    splits=self._sampling.splits(record, index),
                )
            )

    def _begin_rebuild(self, record: BuildRecord, load: Timestamp, event: BuildPrepared) -> BuildRecord:
        """From now on its slices belong to this build. Projectors notice nothing: what they send for these
        slices behind the queue's end, as it was before the source was sampled, has every offset at or past
        the load timestamp. So that is the low-watermark."""
        dictionary = self._registry.dictionary
        positions: dict[str, dict[int, int]] = {}
        for index in self._registry.indexes(record):
            mine = dict.fromkeys(record.slices_of(index), record.id)
            copies = {number: ids for number, ids in index.copies.items() if number not in mine}
            leaving = {number: one for number, one in index.leaving.items() if number not in mine}
            builds = {**index.slice_builds, **mine}
            dictionary.put(replace(index, slice_builds=builds, copies=copies, leaving=leaving))
            ends = event.queue_ends[dictionary.topics.mutations(index.id)]
            positions[index.id] = {number: ends[number] for number in mine}
        return replace(record, queue_positions=positions, low_watermark=load.offsets())

    def _another_topic(self, keyspace: str, event: BuildPrepared) -> bool:
        """Whether the source is another topic than other indexes know it as: they are rolled back, or
        removed, first."""
        dictionary = self._registry.dictionary
        known = dictionary.catalog.keyspace(keyspace)
        if known is None or not event.source.exists or known.topic_id == event.source.topic_id:
            return False
        return any(index.version for index in dictionary.catalog.indexes(keyspace))

    def _check_keyspace(self, record: BuildRecord, event: BuildPrepared) -> str:
        """Bring the keyspace's record up to date; why that cannot be done, else ""."""
        dictionary, source = self._registry.dictionary, event.source
        keyspace = dictionary.catalog.keyspace(record.keyspace)
        if keyspace is None or not source.exists:
            return f"topic {record.keyspace} does not exist"
        dictionary.put(replace(keyspace, topic_id=source.topic_id, partitions=source.partitions))
        return ""


def _slots(placement: Mapping[str, Sequence[Sequence[str]]]) -> list[Sequence[str]]:
    """The nodes of each slice, over all indexes."""
    return [nodes for slots in placement.values() for nodes in slots]
