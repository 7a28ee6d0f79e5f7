"""The registry of builds. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from coordinator.builds.eta import BuildPace
from coordinator.builds.retirement import retire
from coordinator.catalog.dictionary import Dictionary
from coordinator.catalog.registry import Registry, Transitions, final
from coordinator.core.failure_detector import START_MS
from coordinator.core.instructions import DeleteTopics, Instruction, Note, RemoveBuildFolder, StopDriver
from coordinator.jobs.registry import JobLimits
from coordinator.unique.violations import Uniqueness
from keytide.catalog.records import BuildRecord, BuildState, IndexRecord
from keytide.errors import CallerError
from keytide.model.timestamp import Timestamp

TRANSITIONS: Transitions[BuildState] = {
    "QUEUED": {"start": "BACKFILL", "fail": "FAILED", "cancel": "CANCELLED"},
    "BACKFILL": {"end": "CATCHUP", "pause": "PAUSED", "fail": "FAILED", "cancel": "CANCELLED"},
    "PAUSED": {"resume": "BACKFILL", "fail": "FAILED", "cancel": "CANCELLED"},
    "CATCHUP": {"ready": "READY", "fail": "FAILED", "cancel": "CANCELLED"},
    "READY": {},
    "FAILED": {},
    "CANCELLED": {},
}
FINAL = final(TRANSITIONS)
FINISHED_KEPT = 50
"""Finished builds that the dictionary keeps, so that it does not grow for ever."""
RATE_WINDOW_MS = 15_000
"""Over which the rate of a build is measured."""


class NoSuchBuildError(CallerError):
    """No build has that id."""

    problem_type = "build-not-found"
    status = 404


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Settings of builds (reasons in `keytide.settings.settings`).

    Attributes:
        back_off_ms: wait before a dead driver is started again; doubles with each time.
        rebuild_wait_ms: slices that are lost within this time are rebuilt together.
        spark_pause_ms: the first pause of a build whose driver dies again and again; doubles with each time.
        settle_ms: no build is resumed by the system earlier than this after it paused, or after a term began
            (until nodes, disks and sources have been heard).
        driver_disk_bytes: free on the disk of the drivers' folders, or builds pause.
        node_disk_bytes: free on the disk of every node that a build fills slices on, or it pauses.
        away_ms: a source that cannot be looked at for this long has its builds pause; drivers sit out less.
        batches_ahead: micro-batches that a driver may be ahead of the slowest slice.
        rebuild_check_ms: between looks at all slices.
        rebuild_pause_ms: before a failed rebuild is tried again; doubles with each time.
        lost_grace_ms: a node that is told of a build may say for as long that its slice is LOST: then it
            means it.
        verify: builds that do not say are READY only verified; `full`: by a second read of the source.
        default_replicas: of indexes whose statement does not say.
        seed_layouts: new layouts begin with the slices of the old ones, where those hold what is needed.
        jobs: settings of verifications and repairs.
    """

    concurrent: int = 2
    concurrent_per_node: int = 1
    transaction_limit_ms: int = 900_000
    restarts: int = 5
    back_off_ms: int = 1_000
    rebuild_wait_ms: int = 5_000
    spark_pause_ms: int = 10_000
    settle_ms: int = 5_000
    driver_disk_bytes: int = 0
    node_disk_bytes: int = 0
    batches_ahead: int = 10
    away_ms: int = 60_000
    verify: bool | Literal["full"] = False
    default_replicas: int = 0
    seed_layouts: bool = True
    rebuild_check_ms: int = 200
    rebuild_pause_ms: int = 10_000
    lost_grace_ms: int = 10_000
    jobs: JobLimits = field(default_factory=JobLimits)


Cause = Literal["", "room", "node-room", "kafka-room", "kafka", "spark", "behind", "turn"]
"""Why the system has a build pause; "" when that is not known (any more)."""


@dataclass(slots=True)
class BuildRun:
    """What this coordinator knows of a build beside its record.

    Attributes:
        waiting_for: what it waits for, in words; "" when it works.
        preparing: its topics are being made.
        incarnation: of the keyspace, when that was ordered.
        again_at: not to be ordered again before this.
        placement: where its slices will be, by index id, until the records say it.
        finding: a sample is being taken for the splits of its RANGE indexes.
        asked: which splits that is for, by index id (`IndexDefinition.wanted_splits`).
        splits: what was found, by index id, until the records say it: for which splits, and these.
        sampling: the driver has passed, the source's end is being looked up.
        reported: `attempt` and `sent_at` of the newest report, so that an older one does not count.
        restarts: starts of the driver after it died, since `restarts_batches` micro-batches were finished.
        failing: the driver says that its build can never work: why; "" when it does not.
        failing_at: since when.
        cause: why the system has it pause.
        resume_at: when a build that pauses by itself is tried again at the earliest.
        futile: pauses for a full disk since `futile_batches` micro-batches were finished.
        arrived: index ids that could be READY, and wait for their verification.
        common_at: when a snapshot that brings all was first common to what could be used of its slices.
        exited_at: when the driver ended well without having said PASSED.
        silent_ms: for how long its driver has said nothing while others were heard; below 0 while it starts.
        counted_at: up to when that is counted.
        written_at: when progress was last written.
        history: (ms, documents done) of the last reports, for the rate.
        pace: how fast it works in each phase, for the estimate of its end.
        driver_phase: what its driver says that it does.
        open_until: how far the source can be read while a transaction is open below the load timestamp;
            nothing while none is.
    """

    waiting_for: str = ""
    preparing: bool = False
    incarnation: int = 0
    again_at: int = 0
    placement: dict[str, list[list[str]]] = field(default_factory=dict)
    finding: bool = False
    asked: dict[str, str] = field(default_factory=dict)
    splits: dict[str, tuple[str, tuple[bytes, ...]]] = field(default_factory=dict)
    sampling: bool = False
    reported: tuple[tuple[int, int], int] = ((0, 0), 0)
    restarts: int = 0
    restarts_batches: int = -1
    failing: str = ""
    failing_at: int = 0
    cause: Cause = ""
    resume_at: int = 0
    futile: int = 0
    futile_batches: int = -1
    arrived: set[str] = field(default_factory=set)
    common_at: int = 0
    exited_at: int = 0
    silent_ms: int = -START_MS
    counted_at: int = 0
    written_at: int = 0
    history: list[tuple[int, int]] = field(default_factory=list)
    pace: BuildPace = field(default_factory=BuildPace)
    driver_phase: str = ""
    open_until: Timestamp = field(default_factory=Timestamp)

    def count(self, now: int, documents: int) -> None:
        """Note how many documents are done, for the rate."""
        self.history.append((now, documents))
        while len(self.history) > 2 and now - self.history[1][0] >= RATE_WINDOW_MS:
            del self.history[0]

    def rate(self) -> float:
        """Documents per second over the last `RATE_WINDOW_MS`; 0 when it cannot be told."""
        if len(self.history) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self.history[0], self.history[-1]
        return max(0.0, (last - first) * 1000 / (last_at - first_at)) if last_at > first_at else 0.0


class BuildRegistry(Registry[BuildRecord, BuildRun]):
    """All builds of a cluster.

    Attributes:
        halted: keyspaces whose history is being examined: no build of them begins or is judged.
        unique: what is known of equal keys in UNIQUE indexes.
    """

    kind, invariant, transitions, missing = "build", "BuildState", TRANSITIONS, NoSuchBuildError

    def __init__(self, dictionary: Dictionary) -> None:
        super().__init__(dictionary, dictionary.catalog.build, dictionary.catalog.builds, BuildRun)
        self.halted: set[str] = set()
        self.unique = Uniqueness(dictionary)
        self._most: dict[str, int] = {}

    def active(self, index: IndexRecord) -> BuildRecord | None:
        """The build of an index that is queued or under way."""
        record = self.find(index.build or "")
        return record if record and record.state not in FINAL and index.id in record.indexes else None

    def running(self, rebuilds_only: bool = False) -> list[BuildRecord]:
        """Builds that count against the limits of builds at once: those that read, or are about to."""
        found = [one for one in self.all() if one.state == "BACKFILL" or self._begins(one)]
        return [one for one in found if one.rebuild] if rebuilds_only else found

    def _begins(self, record: BuildRecord) -> bool:
        if record.state != "QUEUED":
            return False
        run = self.run(record.id)
        return run.preparing or run.finding

    def nodes(self, record: BuildRecord) -> list[str]:
        """The nodes that hold slices which a build fills, or will."""
        planned = self.run(record.id).placement
        found: set[str] = set()
        for index in self.indexes(record):
            placed = [index.placement[n] for n in record.slices_of(index)] if index.placement else None
            found.update(*(planned.get(index.id, []) if placed is None else placed))
        return sorted(found)

    def turn(self, record: BuildRecord, nodes: Iterable[str], limits: BuildLimits) -> str:
        """What turn a build has to wait for, in words; "" when it is its turn. A rebuild
        brings back what readers had: it waits for nothing but others of its kind.

        Args:
            nodes: where its slices are.
        """
        running = self.running(rebuilds_only=record.rebuild)
        if len(running) >= limits.concurrent:
            return f"its turn: {len(running)} builds run (setting build.concurrent)"
        for node in nodes:
            busy = [other.id for other in running if node in self.nodes(other)]
            if len(busy) >= limits.concurrent_per_node:
                return f"its turn on node {node}: {' and '.join(busy)} (setting build.concurrent_per_node)"
        return ""

    def rebuilds(self, index: str) -> list[BuildRecord]:
        """Rebuilds of slices of an index that are queued or under way."""
        return [one for one in self.all() if index in one.slices and one.state not in FINAL]

    def half_rebuilt(self, index: IndexRecord) -> set[int]:
        """Slices that a rebuild has begun to fill and not brought back: it is under way, or was given up.
        They may serve, but what they hold is not to be gone on with."""
        builds = {number: self.find(id_) for number, id_ in index.slice_builds.items()}
        return {number for number, one in builds.items() if one is not None and one.state != "READY"}

    def last_rebuild(self, index: str, slice_number: int) -> BuildRecord | None:
        """The newest rebuild of a slice that is known."""
        return next((one for one in reversed(self.all()) if slice_number in one.slices.get(index, ())), None)

    def note_progress(self, record: BuildRecord) -> None:
        super().note_progress(record)
        self._most[record.id] = self.most_done(record)

    def most_done(self, record: BuildRecord) -> int:
        """The most documents that were done at any time of this term: a pause takes off the record what it
        throws away, and a counter must not fall."""
        return max(record.documents_done, self._most.get(record.id, 0))

    def move(self, record: BuildRecord, action: str, **changes: Any) -> BuildRecord:
        if TRANSITIONS[record.state].get(action) in FINAL:
            changes = {"phase": "", "paused": "", "paused_by": "", **changes}
        return super().move(record, action, **changes)

    def fail(self, record: BuildRecord, reason: str, now: int) -> list[Instruction]:
        """End a build that can never be right; its indexes become FAILED, but for those that are READY
        already (a rebuild of their slices is tried again: `rebuild`)."""
        record = self.move(record, "fail", error=reason, finished_at=now)
        text = f"build {record.id} of {', '.join(self.names(record))} failed: {reason}"
        return [*self._abandon(record, "FAILED", reason), Note("error", "build-failed", record.id, text)]

    def cancel(self, record: BuildRecord, reason: str, now: int) -> list[Instruction]:
        """End a build that is not wanted any more; its indexes are DEFERRED again, but for those that are
        READY already."""
        why = "; ".join(filter(None, (record.error, reason)))
        record = self.move(record, "cancel", error=why, finished_at=now)
        text = f"build {record.id} of {', '.join(self.names(record))} was cancelled: {reason}"
        return [*self._abandon(record, "DEFERRED", ""), Note("info", "build-cancelled", record.id, text)]

    def end_to_begin_again(self, record: BuildRecord, reason: str, now: int) -> list[Instruction]:
        """End a build that is to begin again as another one; its indexes are DEFERRED meanwhile."""
        record = self.move(record, "cancel", error=f"begun again: {reason}", finished_at=now)
        text = f"build {record.id} of {', '.join(self.names(record))} begins again: {reason}"
        return [*self._abandon(record, "DEFERRED", ""), Note("warning", "build-restarted", record.id, text)]

    def incarnation(self, keyspace: str) -> int:
        """Of a keyspace, now."""
        record = self.dictionary.catalog.keyspace(keyspace)
        return record.incarnation if record else 0

    def _abandon(
        self, record: BuildRecord, state: Literal["DEFERRED", "FAILED"], reason: str
    ) -> list[Instruction]:
        backfill = self.dictionary.topics.backfill
        topics = tuple(backfill(index.id, record.id) for index in self.indexes(record))
        out: list[Instruction] = [StopDriver(record.id), DeleteTopics(topics)]
        for index in self.indexes(record):
            if index.violated is not None and index.state == "FAILED":
                continue  # it has failed by itself, before its build
            if index.state not in ("READY", "DROPPING") and index.build == record.id:
                out += retire(self.dictionary, index, state, reason)
        return [*out, *self.finish(record)]

    def finish(self, record: BuildRecord) -> list[Instruction]:
        """Forget the folder of a build that is over, and the oldest finished builds."""
        indexes = self.dictionary.catalog.indexes()
        used = {build for index in indexes for build in (index.build, *index.slice_builds.values()) if build}
        over = [build for build in self.all() if build.state in FINAL]
        gone = self._forget(over, FINISHED_KEPT, used)
        for id_ in gone:
            self._most.pop(id_, None)
        return [RemoveBuildFolder(record.id), *(RemoveBuildFolder(id_, forgotten=True) for id_ in gone)]
