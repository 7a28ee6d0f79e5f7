"""The simulated world: source, projectors, coordinators, nodes, builds, readers, and what befalls them.

`World(plan).run()` lets the plan's steps happen, then heals (no more faults, no more writes) and lets
everything drain: first safety, then liveness. The plan decides everything; the trace digest tells whether two
runs were the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from coordinator.core.events import DriverExited
from coordinator.core.instructions import DriverTask
from coordinator.core.source_status import SourceStatus
from indexer.hosting.slice_runner import SliceKey, SliceRunner
from indexer.store.interface import UNNUMBERED, Applied, SliceStore, StoreSnapshot
from keytide.catalog.history import History
from keytide.catalog.records import (
    BuildRecord,
    ClusterRecord,
    IndexRecord,
    KeyspaceRecord,
    NodeRecord,
    Record,
    record_key,
)
from keytide.catalog.table_origin import TableOrigin
from keytide.errors import CallerError
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import (
    HeartbeatChanges,
    Message,
    NodeHeartbeat,
    Published,
    SliceStatus,
    StabilityTimestamp,
)
from projector.progress.commits import Committed, encode_metadata
from streaming.spark.checkpoint import Range
from tests.memory_store.store import MemorySliceStore
from tests.simulation import altering, layouts, moving, steering
from tests.simulation.chance import RETENTION, Chance, Plan
from tests.simulation.checkers import BrokenError, Checkers
from tests.simulation.clock import Clock
from tests.simulation.consumers import Group
from tests.simulation.coordinators import SimCoordinator
from tests.simulation.copying import SimFillings
from tests.simulation.drivers import Remains, SimDriver, SimSampler
from tests.simulation.kafka import Kafka, Reader
from tests.simulation.mishaps import KilledError, Mishaps
from tests.simulation.nodes import Reopenable, SimNode
from tests.simulation.projectors import TOPICS, SimProjector
from tests.simulation.readers import SECRET, Endpoint, Pages, Readers
from tests.simulation.repairs import Repairs
from tests.simulation.scheduler import SimLoop
from tests.simulation.source import (
    KEYSPACE,
    PARTITIONS,
    Layout,
    Source,
    creation,
    definition,
    layout,
    layout_of,
    spatial,
    splits_of,
)
from tests.simulation.story import story
from tests.simulation.tables import Tables
from tests.simulation.uniqueness import Uniqueness

NODES = ("n0", "n1")
LONGEST_STEP_MS = 30
CATCH_UP_MS = 300
LOCK_MS = 20
"""How often a driver that waits for another one looks whether that has ended."""
HEAL_ROUNDS = 120
PATIENT_ROUNDS = 40
"""After so many rounds of the heal time runs faster: whoever waits for a long limit is not stuck."""
INDEXES = ("b", "c")
FIRST = "a"
TABLE_SHARE = 0.8
"""Of the builds of a plan with tables."""
FIRST_BUILD = "b0"
StoreFactory = Callable[[str, SliceKey, Applied], Reopenable]
"""(node, slice, initial state) -> a store."""


def memory_store(_node: str, _key: SliceKey, initial: Applied) -> Reopenable:
    """Folds often, and steps back over a few folds only."""
    return MemorySliceStore(initial, fold_age_ms=60, undo_folds=2)


def _wanted(build: BuildRecord, partition: int) -> int:
    """How far the backfill must read."""
    return max(build.load_timestamp.offset(partition), build.low_watermark.get(partition, 0))


def _lacks(build: BuildRecord, partition: int, kept: int) -> bool:
    """Whether retention took what a build has not told to have read, and must read. (While it lacks other
    partitions its driver reads on behind that, and fails it, too, when that is gone.)"""
    read = max(build.backfill_timestamp.offset(partition), build.earliest.offset(partition))
    by_driver = build.error.startswith("the source deleted records")
    return read < (kept if by_driver else min(kept, _wanted(build, partition)))


class World:
    """Everything, and the clock.

    Attributes:
        storm: faults strike, producers write.
        healed: the plan is over, and everybody does all that there is to do at once. (During the warm-up
            there is no storm either, but parts go their usual pace.)
        disks: node -> slice -> what is on its disk.
        fillings: node -> what is there of copies that are not whole.
        copy_ids: of what is on a disk and was filled from another node's.
        machines: names of all nodes.
        cut_off: drivers of coordinators that were deposed, and do not know it yet.
        left: stores of copies whose slices were in order, and which the dictionary did not name any more.
        sampled: build -> where the source began each time that the build was prepared.
        begins: build -> from where on its driver could read: where the source began when it was taken up.
        read: build -> how far any of its drivers has read, or begun to.
        missed: builds that can never be right any more: retention took what none of their drivers has read.
        truth: the dictionary as it is, which no part of the cluster knows.
        seen: what has happened how often.
    """

    def __init__(self, plan: Plan, new_store: StoreFactory = memory_store) -> None:
        self.plan = plan
        self.machines = NODES if not plan.moves else (*NODES, "n2")
        self.clock = Clock()
        self.note = self.clock.note
        self.loop = SimLoop(self.clock)
        self.chance = Chance(plan.seed)
        self.storm, self.healed = True, False
        self.kafka = Kafka(Source(layout=layout(plan.ranged, plan.spread)))
        self.kafka.source.compacted = "compaction" in plan.faults
        self.checkers = Checkers(self.kafka.source)
        self.checkers.origin = self._origin
        self.checkers.layout = self._layout_named
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._layouts_of = 0
        if RETENTION in plan.faults:
            self.checkers.begin = lambda build: self.begins.get(build, {})
            self.checkers.begins = self._begins
        self.sampled: dict[str, list[dict[int, int]]] = {}
        self.begins: dict[str, dict[int, int]] = {}
        self.read: dict[str, dict[int, int]] = {}
        self.missed: set[str] = set()
        self.tables = Tables(self.kafka.source)
        self.uniqueness = Uniqueness(self.kafka.source, self.layout_of_slice)
        self.seen: Counter[str] = Counter()
        self.new_store = new_store
        self.disks: dict[str, dict[SliceKey, Reopenable]] = {name: {} for name in self.machines}
        self.fillings = {name: SimFillings() for name in self.machines}
        self.copy_ids: dict[tuple[str, SliceKey], str] = {}
        self.mishaps = Mishaps(self)
        self.damaged: set[tuple[str, SliceKey]] = set()
        self.left: set[SliceStore] = set()
        self.aside: set[tuple[str, SliceKey]] = set()
        self.remains: dict[str, Remains] = {}
        self.drivers: dict[str, SimDriver | SimSampler] = {}
        self.cut_off: list[SimDriver] = []
        self.truth = Reader(self.kafka)
        self._control_term = 0
        self._late: dict[str, int] = {}
        self._away = ("", 0)
        self._bootstrap()
        self.truth.read()
        self.repairs = Repairs(self)
        self.nodes = {name: SimNode(self, name) for name in self.machines}
        self._endpoints: dict[str, Endpoint] = {}
        self.readers = Readers(self)
        self.coordinators = [SimCoordinator(self)]
        self.group = Group(self)
        self.projectors = [SimProjector(self, name) for name in ("p", "q")]
        for partition in range(PARTITIONS):
            self.group.give(partition, self.chance.pick(self.projectors).name)

    def _bootstrap(self) -> None:
        """A cluster with one index, which is READY."""
        topic_id = self.kafka.source.topic_id
        zero = Timestamp.of(dict.fromkeys(range(PARTITIONS), 0), topic_id)
        copies = 1 if self.plan.replicas else 0
        placement = [
            [NODES[(number + copy) % len(NODES)] for copy in range(1 + copies)]
            for number in range(self.kafka.source.layout.slices)
        ]
        # (UNIQUE does not go with geometries, nor with partitions of several slices.)
        unique = not self.plan.repairs and not spatial() and not self.plan.spread
        first = replace(definition(FIRST, copies, self.plan.ranged, self.plan.spread), unique=unique)
        records: list[Record] = [
            ClusterRecord("sim", SECRET.hex(), self.clock.now, SPOKEN),
            *(NodeRecord(name, f"http://{name}", self.clock.now, protocol=SPOKEN) for name in self.machines),
            BuildRecord(
                FIRST_BUILD,
                KEYSPACE,
                [FIRST],
                "READY",
                zero,
                self.clock.now,
                low_watermark=zero.offsets(),
                final_timestamp=zero,
                ended=True,
            ),
            IndexRecord(
                FIRST,
                first,
                "READY",
                1,
                placement,
                FIRST_BUILD,
                self.clock.now,
                splits=first.encoded_splits,
                hears_by_id=self.kafka.source.layout.rule.by_id and not unique,
            ),
            KeyspaceRecord(KEYSPACE, topic_id, PARTITIONS, 1),
        ]
        self.kafka.metadata += [(record_key(record), record) for record in records]
        self.kafka.make(TOPICS.mutations(FIRST), first.slices)
        for number, holders in enumerate(placement):
            for node in holders:
                initial = Applied(timestamp=Timestamp({}, topic_id), build=FIRST_BUILD)
                self.disks[node][FIRST, number] = self.new_store(node, (FIRST, number), initial)
        for partition in range(PARTITIONS):
            self.kafka.committed[partition] = Committed(0, -1, encode_metadata(1, topic_id, -1))

    # --- what actors ask ----------------------------------------------------------------------------------

    def fault(self, name: str, share: float) -> bool:
        """Whether a fault strikes now."""
        return self.storm and name in self.plan.faults and self.chance.happens(share)

    @property
    def leader(self) -> SimCoordinator:
        return self.coordinators[-1]

    def names(self) -> list[str]:
        """Names of all indexes."""
        self.truth.read()
        return [index.name for index in self.truth.catalog.indexes()] or [FIRST]

    def endpoint(self, node: str) -> Endpoint:
        """The scan endpoint of a node as it lives now."""
        known, sim = self._endpoints.get(node), self.nodes[node]
        if known is None or known.lives != sim.lives:
            known = self._endpoints[node] = self.loop.within(lambda: Endpoint(self, sim))
        return known

    def _layout(self, index: str, build: str) -> Layout:
        """How the entries of an index lie that a build has filled, whole or in part."""
        records = self.kafka.metadata
        for _, record in records[self._layouts_of :]:
            if isinstance(record, IndexRecord) and record.state in ("BUILDING", "READY"):
                found = layout_of(record)
                for one in (record.build or "", *record.slice_builds.values()):
                    self._layouts[record.id, one] = found
        self._layouts_of = len(records)
        return self._layouts[index, build]

    def layout_of_slice(self, key: SliceKey) -> Layout:
        """That of the index of a slice, which is READY."""
        self.truth.read()
        index = self.truth.catalog.index(key[0])
        assert index is not None
        return self._layout(index.id, index.build_of(key[1]))

    def _layout_named(self, name: str) -> Layout:
        """That of the index of a name."""
        self.truth.read()
        index = self.truth.catalog.index_by_name(name)
        return self.kafka.source.layout if index is None else layout_of(index)

    def valid_from(self, key: SliceKey, build: str) -> Timestamp | None:
        """From where on a slice must equal the source: without compaction also while it is built."""
        if not self.kafka.source.compacted:
            return Timestamp()
        self.truth.read()
        record = self.truth.catalog.build(build)
        return record.final_timestamp if record is not None else None

    def away(self, topic: str) -> bool:
        """Whether a topic takes nothing now."""
        if topic in self.kafka.deleted and topic == self._away[0]:
            self._away = ("", 0)
        return topic == self._away[0] and self.clock.now < self._away[1]

    def broken(self, name: str, story: str) -> None:
        raise BrokenError(name, story)

    # --- what actors tell ---------------------------------------------------------------------------------

    def report(self, message: Message) -> None:
        """To the reports topic: lost, late or at once."""
        if self.fault("lost-report", 0.08):
            return
        reports, now = self.kafka.reports, self.clock.now
        sender = str(getattr(message, "node", "") or getattr(message, "projector", "") or "driver")
        before = self._late.get(sender, 0)
        at = max(before, now + (self.chance.below(150) if self.fault("late-report", 0.15) else 0))
        if before < at == now:
            reports.append(message)
        else:  # in order, as every producer sends
            self._late[sender] = at
            self.clock.after(at - now, lambda: reports.append(message))
        if isinstance(message, NodeHeartbeat | HeartbeatChanges) and self.fault("duplicate", 0.05):
            reports.append(message)

    def committed(
        self, node: str, key: SliceKey, before: Applied, snapshot: StoreSnapshot, corrected: bool = False
    ) -> None:
        """A store has committed."""
        applied = snapshot.applied
        name = f"{node}:{key[0]}/{key[1]}"
        self.note(
            "commit", name, applied.number, applied.incarnation, applied.timestamp.offsets(), applied.batch
        )
        if applied.building:
            self.seen["batches"] += 1
        elif before.building:
            self.seen["switches"] += 1
        elif applied.number == UNNUMBERED:
            self.seen["unnumbered"] += 1
        valid_from = self.valid_from(key, applied.build)
        muted = self.repairs.muted(node, key)
        layout = self._layout(key[0], applied.build)
        self.checkers.committed(name, layout, key[1], before, snapshot, valid_from, muted, corrected)

    def stepped_back(self, node: str, key: SliceKey, before: Applied, after: Applied, done: bool) -> None:
        """A store was taken back to a state that still holds."""
        name = f"{node}:{key[0]}/{key[1]}"
        self.note("back", name, before.timestamp.offsets(), after.timestamp.offsets(), done)
        self.seen["stepped back" if done else "cannot step back"] += 1
        self.repairs.stepped_back(node, key, after)

    def held(self, node: SimNode, incarnation: int, number: int, key: SliceKey) -> None:
        self.checkers.held(node, incarnation, number, key)

    def stamped(self, message: StabilityTimestamp | Published) -> None:
        """A message is in the control topic."""
        self._control_term = max(self._control_term, message.term)

    def published(self, message: Published) -> None:
        self.truth.read()
        if message.term < self._control_term:
            return  # of a leader that was deposed: nobody heeds it
        for index, number in sorted(message.numbers.items()):
            if self.truth.catalog.index(index) is not None:
                self.seen["published"] += 1
                history = self._history(message.incarnation)
                self.checkers.published(index, number, history, self._serving(index), self.runs)

    def _serving(self, index: str) -> list[int]:
        """The slices of an index that are not lost, as the leader knows it, nor being rebuilt."""
        leader, record = self.leader.leader, self.truth.catalog.index(index)
        if record is None:
            return []
        serving = []
        for number, holders in enumerate(record.placement):
            states, live = [], []
            for node in holders:
                known = leader.stability.nodes.by_id.get(node)
                status = known.slice(index, number) if known else None
                states.append(status.state if status else "")
                live += states[-1:] if known and known.live else []
            # (Lost is what is lost on every node that lives: one that is silent for now may have it.)
            states = live if any(live) else states
            build = self.truth.catalog.build(record.build_of(number))
            # (When a rebuild ends the others are ahead of it by a number or two.)
            filled = build is None or (
                build.state == "READY" and self.clock.now - build.finished_at > CATCH_UP_MS
            )
            heard = [state for state in states if state]
            if filled and heard and any(state not in ("LOST", "BUILDING") for state in heard):
                serving.append(number)
        return serving

    def _history(self, incarnation: int) -> History:
        """The keyspace's rollbacks up to one."""
        self.truth.read()
        known = [one for one in self.truth.catalog.rollbacks(KEYSPACE) if one.incarnation <= incarnation]
        return History(known, incarnation=incarnation)

    def runs(self, runner: SliceRunner) -> bool:
        """Whether a slice still lives as it was."""
        return runner.core.state in ("LIVE", "CATCHUP") and any(
            node.hosting.runners.get(runner.key) is runner and (name, runner.key) not in self.damaged
            for name, node in self.nodes.items()
        )

    def destroyed(self, node: str, key: SliceKey, store: SliceStore) -> None:
        """A node has deleted what it has of a slice."""
        self.truth.read()
        index = self.truth.catalog.index(key[0])
        if index is not None and index.state == "DROPPING" and self.truth.catalog.layouts(index.name):
            if index.replaced_by:
                self.seen["layouts gone"] += 1
                self._deleted(store, f"node {node} has deleted slice {key[1]} of the layout {index.id}")
            return
        if index is None or index.state != "READY" or key[1] in index.slice_builds:
            return
        if node in index.copies_kept(key[1]) or (node, key) in self.damaged:
            return
        self.seen["copies gone"] += 1
        self.left.add(store)
        self._deleted(store, f"node {node} has deleted its copy of slice {key[1]}")

    def _deleted(self, store: SliceStore, story: str) -> None:
        """What was in a store is gone: nobody may have to read from it yet who has no other copy."""
        for pages in self.readers.pages:
            copies = next((some for some in pages.copies.values() if any(x.store is store for x in some)), [])
            if copies and self.clock.now < pages.until and not any(map(self.runs, copies)):
                self._let_go(pages, story)

    def snapshot_gone(self, pages: Pages, story: str) -> None:
        """A later page found its snapshot gone: that needs a reason on every copy that its token names."""
        self.truth.read()
        index = self.truth.catalog.index_by_name(pages.index)
        alive = all(
            any(self.runs(one) or one.store in self.left for one in copies)
            for copies in pages.copies.values()
        )
        if alive and index is not None and index.state == "READY" and self.clock.now < pages.until:
            self._let_go(pages, story)
        self.seen["snapshot gone"] += 1

    def _let_go(self, pages: Pages, story: str) -> None:
        """A leased snapshot is not there any more: only a rollback, or a clock, is a reason."""
        history = History.of(self.truth.catalog, KEYSPACE)
        if history.number_holds(pages.number, pages.incarnation) and not self.seen["clock jumped"]:
            raise BrokenError("Stable", f"a leased snapshot of {pages.index} was let go: {story}")

    def wrote(self, coordinator: SimCoordinator, records: Sequence[tuple[str, Record | None]]) -> None:
        """A transaction of the dictionary was tried."""
        fate = "wrote" if coordinator.alive else "was fenced"
        self.note("dictionary", coordinator.term, fate, [key for key, _ in records])
        self.seen["fenced"] += not coordinator.alive
        for _, record in records if coordinator.alive else ():
            if isinstance(record, BuildRecord) and record.id != FIRST_BUILD and RETENTION in self.plan.faults:
                self._ended(record)
            elif isinstance(record, IndexRecord) and record.state == "BUILDING":
                self._begun(record)

    def _begun(self, record: IndexRecord) -> None:
        """A build of a whole index has begun, or goes on: it has the slices that its definition says now."""
        if record.splits != splits_of(record.definition):
            story = f"{record.definition.statement} parts at {record.splits}"
            raise BrokenError("Parted", f"{record.id}, of {story}")
        if len(record.placement) != record.slices:
            raise BrokenError("Parted", f"{record.id} has {record.slices} slices on {record.placement}")
        for topic in (TOPICS.mutations(record.id), TOPICS.backfill(record.id, record.build or "")):
            queues = self.kafka.queues.get(topic)
            if queues is not None and len(queues) < record.slices:
                raise BrokenError("Parted", f"{topic} has {len(queues)} queues, not {record.slices}")

    def _ended(self, record: BuildRecord) -> None:
        """A build fails for what retention took when it needed that, and only then; one that is READY tells
        from where on it could read (R29)."""
        told, begin = record.earliest.offsets(), self.begins.get(record.id, {})
        if record.state == "READY":
            self.seen["later builds"] += any(begin.values())
            if told != begin:
                raise BrokenError("Loaded", f"build {record.id} tells that it begins at {told}, not {begin}")
            if record.id in self.missed:
                raise BrokenError("Loaded", f"build {record.id} is READY without what retention took")
        elif record.state == "FAILED" and "deleted" in record.error:
            self.seen["builds too late"] += 1
            if told not in (begin, *self.sampled.get(record.id, ())):
                raise BrokenError("Loaded", f"build {record.id} tells that it begins at {told}, not {begin}")
            if not any(_lacks(record, *kept) for kept in self.kafka.source.kept_from.items()):
                raise BrokenError("Loaded", f"build {record.id} has missed nothing: {record.error}")
        elif record.state == "FAILED" and record.id in self.missed and "gave no reason" not in record.error:
            raise BrokenError("Loaded", f"build {record.id} has missed what went, and says {record.error}")

    def looked(self, coordinator: SimCoordinator) -> None:
        """A leader has sampled the source: it knows of what is gone (R29)."""
        for build in coordinator.leader.dictionary.catalog.builds() if coordinator.alive else ():
            if build.id in self.missed and build.state in ("BACKFILL", "PAUSED"):
                raise BrokenError("Loaded", f"build {build.id} goes on without what retention took")

    # --- builds -------------------------------------------------------------------------------------------

    def start_driver(self, build: str, owner: SimCoordinator, task: DriverTask = "backfill") -> None:
        if (there := self.drivers.get(build)) is not None:  # the lock on its folder
            if there.task != task:  # of another step of the build, which ends by itself: this one waits
                self.clock.after(LOCK_MS, lambda: owner.start_driver(build, task))
            return
        if task == "sample":
            self.drivers[build] = SimSampler(self, build, owner.term)
            return
        remains = self.remains.setdefault(build, Remains())
        self.drivers[build] = SimDriver(self, build, remains, owner.term)

    def stop_driver(self, build: str, term: int) -> None:
        """A coordinator stops its own drivers only."""
        driver = self.drivers.get(build)
        if driver is not None and driver.term == term:
            del self.drivers[build]
            driver.crash()

    def _step_drivers(self, crash: bool = False) -> None:
        for build, driver in sorted(self.drivers.items()):
            if crash:
                self.stop_driver(build, driver.term)
                self._exited(build, -9, driver.task)
            elif not driver.step():
                self.drivers.pop(build, None)
                self._exited(build, driver.status, driver.task)
        self.cut_off = [driver for driver in self.cut_off if driver.step()]

    def _exited(self, build: str, status: int, task: DriverTask) -> None:
        self.leader.tell(DriverExited(build, status, "", self.leader.now, task))

    def build(self) -> None:
        """CREATE INDEX, or BUILD INDEX again."""
        leader, now = self.leader, self.leader.now
        known = {index.name: index for index in leader.leader.dictionary.catalog.indexes()}
        name = self.chance.pick(INDEXES)
        try:
            facts = self.kafka.source.facts(now)
            if self.plan.tables and self.chance.happens(TABLE_SHARE):
                self._build_from_table(name, name in known, facts)
            elif name not in known:
                statement = creation(name, self.plan.ranged, self.plan.spread)
                leader.ask(leader.leader.commands.execute(statement, facts, now))
            else:
                leader.ask(leader.leader.commands.build([name], 0, now))
            self.checkers.asked[name] = self.kafka.source.ends()
        except CallerError:
            self.seen["refused"] += 1

    def _build_from_table(self, name: str, known: bool, facts: SourceStatus) -> None:
        leader, now = self.leader, self.leader.now
        if not known:
            deferred = creation(name, self.plan.ranged, self.plan.spread, deferred=True)
            leader.ask(leader.leader.commands.execute(deferred, facts, now))
        origin = self.tables.take(self.chance, now)
        leader.ask(leader.leader.commands.build([name], 0, now, origin, facts))
        self.seen["table"] += 1

    def _origin(self, build: str) -> TableOrigin | None:
        """The table that a build began with."""
        self.truth.read()
        record = self.truth.catalog.build(build)
        return record.origin if record is not None else None

    def _begins(self, name: str) -> list[dict[int, int]]:
        """From where on the builds of an index's slices could read."""
        self.truth.read()
        index = self.truth.catalog.index_by_name(name)
        if index is None:
            return []
        return [self.begins.get(index.build_of(number), {}) for number in range(index.slices)]

    def _retain(self) -> None:
        """Retention strikes: a build has read that, or needs none of it, or has missed it."""
        source = self.kafka.source
        partition = source.retain(
            self.chance, {p: self.kafka.committed[p].offset or 0 for p in source.ends()}
        )
        if partition is None:
            return
        kept = source.kept_from[partition]
        self.note("retention", partition, kept)
        self.seen[RETENTION] += 1
        self.truth.read()
        for build, begin in self.begins.items():
            record, read = self.truth.catalog.build(build), self.read.get(build, begin)
            if record is None or record.state not in ("BACKFILL", "PAUSED"):
                continue
            if read[partition] < min(kept, _wanted(record, partition)):
                self.missed.add(build)

    def has_begun(self, build: str, covered: Range) -> None:
        """A driver reads a micro-batch."""
        read = self.read.setdefault(build, {})
        for partition, end in covered.end.offsets().items():
            read[partition] = max(end, read.get(partition, 0))

    def _drop(self) -> None:
        try:
            self.leader.ask(self.leader.leader.commands.drop(self.chance.pick(INDEXES), self.leader.now))
        except CallerError:
            self.seen["refused"] += 1

    # --- what happens -------------------------------------------------------------------------------------

    def run(self) -> None:
        """The plan, then calm; everything must have drained."""
        clock, chance = self.clock, self.chance
        self._warm_up()
        for number, (action, seed) in enumerate(self.plan.steps, 1):
            self.note("step", number, action)
            chance.begin(seed)
            try:
                clock.run_until(clock.now + chance.below(LONGEST_STEP_MS))
                self._act(action)
            except KilledError as killed:
                self.mishaps.bury(killed)
        self._heal()
        self._drain()
        if self.plan.restart_at_end:
            self.note("restart")
            for node in self.nodes.values():
                node.crash()
            self._drain()

    def _warm_up(self) -> None:
        """A few documents, and a first snapshot."""
        self.storm = False
        for _ in range(5):
            self.note("write", self.kafka.source.write(self.chance, self.clock.now))
        for _ in range(3):
            self._round(25)
        self.storm = True

    def _round(self, ms: int) -> None:
        """Everybody does all that there is to do. (After the heal the first projector has all partitions.)"""
        self.clock.run_until(self.clock.now + ms)
        for number, projector in enumerate(self.projectors):
            if number == 0 or not self.healed:
                projector.turn()
            projector.tick()
        self._step_drivers()
        self.leader.step()
        for node in self.nodes.values():
            node.step()

    def _act(self, action: str) -> None:
        chance = self.chance
        self.seen[action] += 1
        match action:
            case "write":
                self.note("write", self.kafka.source.write(chance, self.clock.now))
            case "poll":
                chance.pick(self.projectors).turn()
            case "tick":
                chance.pick(self.projectors).tick()
            case "node":
                machines = self.machines
                first = chance.below(len(machines) + 1)
                for node in machines if first == len(machines) else machines[first : first + 1]:
                    self.nodes[node].step()
            case "lead":
                self.leader.step()
                if len(self.coordinators) > 1 and chance.below(2):
                    self.coordinators[-2].step_if_alive()
            case "driver":
                if self.fault(RETENTION, 0.25):
                    self._retain()
                self._step_drivers()
            case "scan":
                self.readers.step()
            case "build":
                self.build()
            case "spoil":
                self.repairs.spoil()
            case "repair":
                self.repairs.step()
            case "steer":
                steering.steer(self)
            case "move":
                moving.move(self)
            case "layout":
                layouts.relayout(self)
            case "alter":
                altering.alter(self)
            case "expire":
                self._expire()
            case "killed" | "clock-jump":
                self.mishaps.strike(action)
            case _:
                self.note("fault", action)
                self._strike(action)

    def _strike(self, fault: str) -> None:
        chance = self.chance
        match fault:
            case "node-crash":
                self.nodes[chance.pick(self.machines)].crash()
            case "projector-crash":
                chance.pick(self.projectors).crash()
            case "driver-crash":
                self._step_drivers(crash=True)
            case "rebalance":
                name = chance.pick(self.projectors).name
                self.group.give(chance.below(PARTITIONS), name, politely=chance.below(2) == 0)
            case "new-leader":
                self.depose()
            case "compaction":
                limits = {p: self.kafka.committed[p].offset or 0 for p in range(PARTITIONS)}
                self.kafka.source.clean(chance, limits)
            case "election":
                chance.pick(self.kafka.source.logs).elect()
            case "drop":
                self._drop()
            case "silence":
                self.nodes[chance.pick(self.machines)].silent_until = self.clock.now + chance.below(900)
            case "truncate":
                self._note_loss("truncated", self.kafka.source.truncate(chance, self._told()))
            case "recreate":
                self.kafka.source.recreate()
                self.kafka.committed = [Committed(None, -1, "")] * PARTITIONS
                self._note_loss("recreated", 0)
                for _ in range(chance.below(9)):  # producers go on
                    self.note("write", self.kafka.source.write(chance, self.clock.now))
            case "disk-loss" | "damage":
                node = chance.pick(self.machines)
                if self.disks[node]:
                    key = chance.pick(sorted(self.disks[node]))
                    self.note(fault, node, key)
                    if fault == "damage":
                        self.damaged.add((node, key))
                    else:
                        del self.disks[node][key]
                        self.copy_ids.pop((node, key), None)
                        self.nodes[node].crash()
            case "late-control":
                self.nodes[chance.pick(self.machines)].late_until = self.clock.now + chance.below(900)
            case "queue-away":
                self.truth.read()
                others = [index.id for index in self.truth.catalog.indexes() if index.id != FIRST]
                if others:
                    for_ever = 1 << 40 if chance.below(2) else 0
                    until = self.clock.now + chance.below(3_000) + for_ever
                    self._away = (TOPICS.mutations(chance.pick(others)), until)
            case _:
                raise ValueError(fault)

    def _told(self) -> set[int]:
        """Partitions of which the leader knows a leader epoch. (What is lost of another one, when only a
        build has read it, is noticed by nobody: a limit that docs/simulation.md names.)"""
        stream = self.leader.leader.stability.streams[KEYSPACE]
        return {p for p, state in stream.progress.partitions.items() if state.place.epoch >= 0}

    def _note_loss(self, what: str, partition: int | None) -> None:
        if partition is not None:
            self.note(what, self.kafka.source.topic_id, partition, self.kafka.source.ends())
            self.seen[what] += 1

    def depose(self) -> None:
        """A new leader takes over; the old one does not know yet."""
        self._end_cut_off()
        for build, driver in sorted(self.drivers.items()):
            if isinstance(driver, SimDriver) and driver.term % 2:  # they go on until their coordinator knows
                self.cut_off.append(driver)
                del self.drivers[build]
            else:
                self.stop_driver(build, driver.term)
        self.coordinators.append(SimCoordinator(self))

    def _end_cut_off(self) -> None:
        """Coordinators that were deposed end, and their drivers with them."""
        for old in self.coordinators[:-1]:
            old.stop()
        for driver in self.cut_off:
            driver.crash()
        self.cut_off.clear()

    def _expire(self) -> None:
        """Everything stops at once, and comes back when Kafka has removed what it keeps for a time only."""
        self.note("fault", "expire")
        for projector in self.projectors:
            projector.crash()
        self.clock.run_until(self.clock.now + 60)  # (what they had sent has arrived)
        # (Who lost source, commits and control at once cannot know it: docs/simulation.md names the limit.)
        self.kafka.expire(commits="truncate" not in self.plan.faults and not self.chance.below(4))
        self.seen["expired"] += 1
        for node in self.nodes.values():
            node.crash()
        self.depose()
        self._end_cut_off()

    def _heal(self) -> None:
        self.storm, self.healed = False, True
        self.mishaps.end()
        self.note("healed")
        self._end_cut_off()
        for node in self.nodes.values():
            node.silent_until = node.late_until = 0
        for partition in range(PARTITIONS):
            self.group.give(partition, self.projectors[0].name)

    def _drain(self) -> None:
        """Rounds in which everybody does all that there is to do, until nothing is left."""
        self.chance.begin(self.plan.seed)
        reason = "nothing was tried"
        for number in range(HEAL_ROUNDS):
            steering.settle(self)
            moving.settle(self)
            if self.plan.layouts:
                layouts.read(self)
            self._round(self.plan.calm_ms if number < PATIENT_ROUNDS else 2_000)
            self.repairs.step()
            reason = self._left() or self.repairs.left() or self._unscannable()
            if not reason:
                return
        raise BrokenError("Stuck", reason)

    def _left(self) -> str:
        """What has not drained yet, "" when everything has."""
        self.truth.read()
        catalog = self.truth.catalog
        for build in catalog.builds():
            if build.state in ("QUEUED", "BACKFILL", "CATCHUP", "PAUSED"):
                return f"build {build.id} is {build.state}"
        ends = self.kafka.source.ends()
        statuses = {
            (name, (one.index, one.slice)): one
            for name, node in self.nodes.items()
            for one in node.statuses()
        }
        for index in catalog.indexes():
            if index.state == "DROPPING" or (index.state in ("DEFERRED", "FAILED") and index.version):
                return f"index {index.id} is {index.state} and its topics are not gone"
            if index.state != "READY":
                continue
            for number, holders in enumerate(index.placement):
                key = (index.id, number)
                reasons = [self._behind(key, node, statuses.get((node, key)), ends) for node in holders]
                if any(reasons):
                    return "; ".join(reasons)
                if len(holders) <= index.definition.replicas:
                    return f"{index.id}/{number} has copies on {holders} only"
        filled = "; ".join(f"copy {copy.id} is being filled" for copy in catalog.copies())
        return filled or moving.left(self) or layouts.left(self)

    def _behind(self, key: SliceKey, node: str, status: SliceStatus | None, ends: dict[int, int]) -> str:
        """Why a copy is not where the source is, "" when it is."""
        name = f"{key[0]}/{key[1]} on {node}"
        if status is None:
            return f"{name} does not run"
        if status.state == "LOST":
            return f"LOST is {name}: {status.reason}"
        at = status.timestamp
        if status.state != "LIVE" or any(at.offset(p) != end for p, end in ends.items()):
            return (
                f"{name} is {status.state} {status.reason} at {at}, number {status.number}, the end is {ends}"
            )
        return self.uniqueness.left(name, self.nodes[node].hosting.runners[key])

    def _unscannable(self) -> str:
        """Which READY index cannot be scanned through every node, "" when all can."""
        session = self.readers.sessions[0]
        for index in self.truth.catalog.indexes():
            if index.state != "READY":
                continue
            for node in sorted(self.nodes):
                if not self.readers.scan(self.endpoint(node), index.name, session, paged=False):
                    return f"{index.name} cannot be scanned through {node}"
        return ""


def run(plan: Plan, new_store: StoreFactory = memory_store) -> World:
    """One history.

    Raises:
        FailedError: what is broken, with its story.
    """
    world = World(plan, new_store)
    try:
        world.run()
    except Exception as error:
        raise FailedError(world, error) from error
    return world


class FailedError(AssertionError):
    """A history went wrong; `cause` is the error that it ended in."""

    def __init__(self, world: World, cause: Exception) -> None:
        super().__init__(story(world, cause))
        self.world = world
        self.cause = cause
