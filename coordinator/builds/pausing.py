"""Builds that pause: on request, and by themselves while something is in the way. Pure.

Theory of operation. A pause stops the driver; its journal and the slices keep what is done, so that at
most the micro-batch under way is read again. The operator's pause lasts until the operator ends it, whatever
becomes of coordinators meanwhile. The system's own pause ends when its reason is gone:

    room        the disk of the drivers' folders is nearly full
    node-room   so is the disk of a node that the build fills slices on
    kafka-room  so is a disk that Kafka has the cluster's topics on
    kafka       the source cannot be looked at
    spark       the driver has died again and again; it is tried again after growing pauses
    behind      slices do not keep up with the driver (a slow disk): their backfill queues would grow for ever
    turn        the operator has resumed it, and as many others run as may

Each of them begins at one measure and ends at another, so that a build does not flutter. What a driver has on
its disk goes with it, so that there seems to be room as soon as it pauses: a disk that is full again before a
micro-batch is finished has the build pause for longer and longer, too. A build that pauses
does not count against the limits of builds at once. What pauses still pays for its time: tombstones and open
transactions are counted on (R24, R26), for the source does not pause.

Only a build that reads can pause (BACKFILL), or one that has not begun (QUEUED): it then keeps its state and
does not start. In CATCHUP there is no driver of the build to stop, but one of its verification (`jobs`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits, BuildRegistry, Cause
from coordinator.core.events import RoomSeen, SourceAway
from coordinator.core.failure_detector import START_MS
from coordinator.core.instructions import Instruction, Note, StartDriver, StopDriver
from coordinator.core.nodes import HeardNode, HeardNodes
from coordinator.core.queue_sizes import QueueSizes
from coordinator.sources.source_checks import finished, target
from keytide.catalog.records import BuildRecord

LONGEST_PAUSE_MS = 300_000
"""Of those that grow: before something is tried again that did not get on the last time."""
BY_OPERATOR = "on request"


class PauseReason(NamedTuple):
    """Why a build cannot run now.

    Attributes:
        text: for people, with what to do.
    """

    cause: Cause
    text: str


class BuildPausing:
    """Pauses and resumes builds.

    Args:
        nodes: what indexer nodes say.
        sizes: what Kafka says of its disks.

    Attributes:
        room: the disk of the drivers' folders, as last seen; None before.
    """

    def __init__(
        self, registry: BuildRegistry, limits: BuildLimits, nodes: HeardNodes, sizes: QueueSizes
    ) -> None:
        self._sizes = sizes
        self._registry = registry
        self._limits = limits
        self._nodes = nodes
        self.room: RoomSeen | None = None
        self._away: dict[str, SourceAway] = {}
        self._began = 0

    @property
    def away(self) -> dict[str, str]:
        """Keyspaces whose source cannot be looked at now, with why."""
        return {keyspace: event.error for keyspace, event in self._away.items()}

    # --- what is heard --------------------------------------------------------------------------------------

    def source_away(self, event: SourceAway) -> None:
        """A source could not be looked at; since when is kept."""
        known = self._away.get(event.keyspace)
        self._away[event.keyspace] = dataclasses.replace(event, since=known.since) if known else event

    def source_seen(self, keyspace: str) -> None:
        """It could."""
        self._away.pop(keyspace, None)

    # --- by themselves --------------------------------------------------------------------------------------

    def tick(self, record: BuildRecord, now: int) -> list[Instruction]:
        """Have a build pause that something is in the way of; resume one when that is gone."""
        self._began = self._began or now
        if record.state == "BACKFILL":
            found = None if self._registry.run(record.id).sampling else self.trouble(record, now)
            return self._held_up(record, found, now) if found else []
        by_itself = record.state == "PAUSED" and record.paused_by == "system"
        due = max(self._registry.run(record.id).resume_at, self._began + self._limits.settle_ms)
        if not by_itself or now < due:
            return []
        return self._resume(record, now)

    def _held_up(self, record: BuildRecord, found: PauseReason, now: int) -> list[Instruction]:
        """Something is in the way of a build that reads: pause; for longer each time that a disk was full
        before a micro-batch was finished."""
        if found.cause not in ("room", "node-room", "kafka-room"):
            return self.pause(record, "system", found.text, now, found.cause)
        run, text = self._registry.run(record.id), found.text
        run.futile = run.futile + 1 if record.batches <= run.futile_batches else 0
        run.futile_batches = record.batches
        if run.futile:
            text += "; no micro-batch was finished since the last time: it takes more room than that"
        out = self.pause(record, "system", text, now, found.cause)
        run.resume_at = now + min(self._limits.settle_ms << min(run.futile, 16), LONGEST_PAUSE_MS)
        return out

    def lost_spark(self, record: BuildRecord, story: str, now: int) -> list[Instruction]:
        """The driver has died too often: pause, and try again later and later."""
        run = self._registry.run(record.id)
        times = run.restarts - self._limits.restarts
        wait = min(self._limits.spark_pause_ms << min(times, 16), LONGEST_PAUSE_MS)
        run.restarts += 1
        text = (
            f"Spark is lost: the driver died {run.restarts} times without finishing a micro-batch; it is "
            f"tried again in {wait / 1000:g} s (or at once: keytide build resume {record.id}); its log is "
            f"builds/{record.id}/driver.log in the coordinator's data folder; at last: {story}"
        )
        out = self.pause(record, "system", text, now, "spark")
        run.resume_at = now + wait
        return out

    def trouble(self, record: BuildRecord, now: int) -> PauseReason | None:
        """What is in the way of a build that runs, or pauses; None when nothing is."""
        pauses = record.state == "PAUSED"
        return next(self._troubles(record, now, pauses), None)

    def _troubles(self, record: BuildRecord, now: int, pauses: bool) -> Iterator[PauseReason]:
        """All that is in the way.

        Args:
            pauses: it does already, and wants a quarter more than what it would begin to pause at.
        """
        away = self._away.get(record.keyspace)
        if away is not None and (pauses or now - away.since >= self._limits.away_ms):
            yield PauseReason("kafka", f"Kafka does not answer: {away.error}; it goes on when Kafka does")
        room, needed = self.room, _more(self._limits.driver_disk_bytes, pauses)
        if room is not None and room.free < needed:
            text = f"the disk of {room.folder} is full: {_left(room.free, needed)}; make room there"
            yield PauseReason("room", text)
        needed = _more(self._limits.node_disk_bytes, pauses)
        for name, node in self._filled_on(record):
            if node.live and node.heartbeat.disk_free < needed:
                text = (
                    f"the disk of node {name} is full: {_left(node.heartbeat.disk_free, needed)}; make room"
                )
                yield PauseReason("node-room", f"{text} there, or drop what is not needed")
        for disk in self._sizes.full:
            text = f"{disk.words} is full: {_left(disk.free, _more(self._sizes.least, pauses))}; make room"
            yield PauseReason("kafka-room", f"{text} there (setting coordinator.kafka_disk_free_bytes)")
        yield from self._behind(record, pauses)

    def _behind(self, record: BuildRecord, pauses: bool) -> Iterator[PauseReason]:
        """Slices that have too much to load still."""
        most = self._limits.batches_ahead
        for name, node in self._filled_on(record):
            for status in node.heartbeat.slices if node.live else ():
                ours = status.build == record.id and status.state == "BUILDING"
                waits = record.batches - (status.batch + 1)
                if ours and waits > (most // 2 if pauses else most):
                    text = (
                        f"slice {status.slice} of {status.index} on node {name} is {waits} micro-batches "
                        "behind the driver (is its disk slow?); it goes on when the slice has caught up "
                        "(setting build.batches_ahead)"
                    )
                    yield PauseReason("behind", text)

    def _filled_on(self, record: BuildRecord) -> list[tuple[str, HeardNode]]:
        """The nodes that hold slices which a build fills, as far as they are heard."""
        names = self._registry.nodes(record)
        return [(name, node) for name in names if (node := self._nodes.by_id.get(name)) is not None]

    # --- both ways ------------------------------------------------------------------------------------------

    def pause(
        self, record: BuildRecord, by: str, reason: str, now: int, cause: Cause = ""
    ) -> list[Instruction]:
        """Have a build pause, or change who has it pause and why.

        Args:
            by: `operator` or `system`.
        """
        run = self._registry.run(record.id)
        run.cause, run.resume_at = cause, now + self._limits.settle_ms
        known, out = record.paused, list[Instruction]()
        changes = {"paused": reason, "paused_by": by}
        if record.state == "BACKFILL":
            record = self._registry.move(record, "pause", **changes, **_kept(record))
            self._mark(record, "PAUSED")
            run.sampling, run.exited_at, run.failing = False, 0, ""
            run.waiting_for, run.silent_ms = "", -START_MS
            out.append(StopDriver(record.id))
        else:
            if record.state == "QUEUED" and not known:
                out.append(StopDriver(record.id))  # of its sample, which is taken again
                run.finding, run.exited_at = False, 0
                record = replace(record, phase="")
            record = replace(record, **changes)
            self._registry.put(record)
        if known == reason:
            return out
        text = f"build {record.id} of {', '.join(self._registry.names(record))} pauses: {reason}"
        level: Literal["info", "warning"] = "info" if by == "operator" else "warning"
        return [*out, Note(level, "build-paused", record.id, text)]

    def resume(self, record: BuildRecord, now: int) -> list[Instruction]:
        """The operator wants it to go on. What is in the way of it now has it pause by itself."""
        run = self._registry.run(record.id)
        run.restarts, run.restarts_batches, run.resume_at = 0, record.batches, 0
        run.futile_batches = -1
        if record.state == "QUEUED":
            self._registry.put(replace(record, paused="", paused_by=""))
            return [_resumed(record, "waits for its turn again")]
        return self._resume(record, now)

    def _resume(self, record: BuildRecord, now: int) -> list[Instruction]:
        """Let a build go on, unless something is in the way of it."""
        run, found = self._registry.run(record.id), self.trouble(record, now)
        turn = self._registry.turn(record, self._registry.nodes(record), self._limits)
        if found is None and turn:
            found = PauseReason("turn", f"it waits for {turn}")
        if found is not None:
            same = record.paused_by == "system" and run.cause == found.cause
            return [] if same else self.pause(record, "system", found.text, now, found.cause)
        run.cause = ""
        record = self._registry.move(record, "resume", paused="", paused_by="")
        self._mark(record, "BUILDING")
        run.history.clear()
        run.pace.forget()
        return [StartDriver(record.id), _resumed(record, "goes on where it was")]

    def _mark(self, record: BuildRecord, state: str) -> None:
        """Indexes that are being built follow their build; those that serve while slices of them are rebuilt
        do not."""
        other = {"PAUSED": "BUILDING", "BUILDING": "PAUSED"}[state]
        for index in self._registry.indexes(record):
            if index.build == record.id and index.state == other:
                self._registry.dictionary.put(replace(index, state=state))


def _kept(record: BuildRecord) -> dict[str, int]:
    """What finished micro-batches have brought; the rest is read again."""
    documents = finished(record, record.backfill_timestamp.merge_min(target(record)))
    counted = record.documents_done
    size = record.bytes_done * documents // counted if counted else 0
    return {"documents_done": documents, "bytes_done": min(size, record.bytes_done)}


def _resumed(record: BuildRecord, text: str) -> Note:
    return Note("info", "build-resumed", record.id, f"build {record.id} {text}")


def _more(limit: int, pauses: bool) -> int:
    return limit + limit // 4 if pauses else limit


def _left(free: int, needed: int) -> str:
    return f"{free >> 20} MiB left, {needed >> 20} are needed"
