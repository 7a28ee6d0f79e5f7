"""The end of a build: BACKFILL to CATCHUP to READY. Pure.

Theory of operation. In CATCHUP slices read their mutation queues until every copy of each (of which:
`copies`) holds a snapshot past everything that the backfill was to bring. Then the indexes could answer.
Unless the build says otherwise they are verified first. Where its driver says that every copy stores what was
projected for it, by sums (R55), they are. Else, or where the build asks for that, one job, when all have come
so far (`coordinator.jobs.jobs`), compares them with the source, read once for all of them, at a snapshot of
its own choice. They are READY when it has found nothing; what the source no longer can prove (UNPROVABLE) is
no reason against them, but shown. Else the build fails, with the report's address: an index that is wrong
when it is new points at a bug, or at a source that was changed in ways that nobody tells. Whatever is in the
way of the job meanwhile, a node that is away or a disk that is full, the build waits for it
(`coordinator.jobs.jobs`).

Single slices that are rebuilt are not verified: their index serves, and a job for one slice would read the
whole source as well. The next verification of the index covers them.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from coordinator.builds.copies import away
from coordinator.builds.registry import BuildRegistry
from coordinator.builds.retirement import fail_index
from coordinator.core.events import CommonSnapshot, SourceSampled
from coordinator.core.instructions import DeleteTopics, Instruction, Note, SendEnds
from coordinator.core.nodes import HeardNodes
from coordinator.jobs.jobs import Jobs
from coordinator.jobs.registry import FINAL, faults_of
from coordinator.sources.source_checks import unbuildable
from coordinator.unique.violations import failure
from keytide.catalog.records import BuildRecord, IndexRecord, JobRecord
from keytide.catalog.violated import Violated
from keytide.errors import invariant
from keytide.model.timestamp import Timestamp
from keytide.wire.entry_sums import EQUAL
from keytide.wire.messages import BuildEnd

COMMON: Final = "a snapshot that every slice holds"
"""What a build waits for first, once it has read everything."""
MOST_NAMED: Final = 8
"""Copies that are named in a message."""


class BuildCompletion:
    """What happens to a build when its driver has passed both timestamps.

    Args:
        nodes: what indexer nodes say.
    """

    def __init__(self, registry: BuildRegistry, jobs: Jobs, nodes: HeardNodes) -> None:
        self._nodes = nodes
        self._registry = registry
        self._jobs = jobs

    def source_ends(self, event: SourceSampled) -> list[Instruction]:
        """The source's end, taken after the final micro-batch was read (R25): the stable one, for nobody can
        read past it, and the log cleaner does not go there either."""
        record = self._registry.find(event.build, "BACKFILL")
        if record is None:
            return []
        run = self._registry.run(record.id)
        run.sampling = False
        if record.keyspace in self._registry.halted:
            run.exited_at = event.now  # a driver that ended for nothing is started again
            return []
        if reason := unbuildable(record, event.source):
            return self._registry.fail(record, reason, event.now)
        final = Timestamp.of(event.source.stable, event.source.topic_id)
        record = self._registry.move(record, "end", ended=True, final_timestamp=final)
        run.waiting_for = COMMON
        text = f"build {record.id} has read everything; slices switch to their mutation queues"
        return [self.build_end(record), Note("info", "build-catchup", record.id, text)]

    def build_end(self, record: BuildRecord) -> SendEnds:
        """The end of the build for each slice (R23); it may be sent again."""
        dictionary = self._registry.dictionary
        return SendEnds(
            tuple(
                (
                    dictionary.topics.backfill(index.id, record.id),
                    number,
                    BuildEnd(
                        record.id,
                        index.id,
                        number,
                        dictionary.catalog.term,
                        record.batches,
                        record.queue_positions.get(index.id, {}).get(number, 0),
                    ),
                )
                for index in self._registry.indexes(record)
                if index.state == ("READY" if record.rebuild else "BUILDING")
                for number in record.slices_of(index)
            )
        )

    def common(self, event: CommonSnapshot) -> list[Instruction]:
        """Every slice of an index holds a snapshot: READY when it covers the load timestamp and R25's end."""
        index = self._registry.dictionary.catalog.index(event.index)
        record = self._registry.find(index.build or "", "CATCHUP") if index else None
        if index is None or record is None or index.state != "BUILDING":
            return []
        final = record.final_timestamp or Timestamp()
        invariant(
            record.ended and final.places, "BuildState", f"build {record.id} is in CATCHUP without its end"
        )
        if not event.timestamp.covers(record.load_timestamp) or not event.timestamp.covers(final):
            return []
        run = self._registry.run(record.id)
        run.common_at = run.common_at or event.now
        waited, given_up = away(self._nodes, index, run.common_at)
        if waited:
            run.waiting_for = COMMON
            return []
        waits, violated = self._registry.unique.verdict(index, event.number, event.now)
        if violated is not None:
            return self._refuse(record, index, violated, event.now)
        if waits:
            run.waiting_for = f"the slices' verdict on equal keys of {index.name}"
            return []
        if record.verify and not self._proven(record):
            run.arrived.add(index.id)
            verdict = self._verified(record, event.now)
            if verdict is not None:
                return verdict
            index = self._registry.dictionary.catalog.index(index.id) or index
        self._registry.dictionary.put(replace(index, state="READY"))
        text = f"index {index.name} answers scans from snapshot {event.number} on"
        if given_up:
            missing = ", ".join(f"slice {number} on node {node}" for number, node in given_up[:MOST_NAMED])
            text += f"; copies are missing, whose nodes say nothing: {missing}"
        topic = self._registry.dictionary.topics.backfill(index.id, record.id)
        out: list[Instruction] = [DeleteTopics((topic,)), Note("info", "index-ready", index.name, text)]
        return out + self.finish_if_ready(record, event.now)

    def _refuse(
        self, record: BuildRecord, index: IndexRecord, violated: Violated, now: int
    ) -> list[Instruction]:
        """An index that violates UNIQUE fails; the others of its build go on without it. The build fails when
        there are none."""
        reason = failure(index, violated)
        index = replace(index, violated=violated)
        self._registry.dictionary.put(index)
        others = [one for one in self._registry.indexes(record) if one.id != index.id]
        if not any(one.state in ("BUILDING", "READY") for one in others):
            return self._registry.fail(record, "; ".join(filter(None, (record.error, reason))), now)
        self._registry.put(replace(record, error="; ".join(filter(None, (record.error, reason)))))
        topic = self._registry.dictionary.topics.backfill(index.id, record.id)
        out = [*fail_index(self._registry.dictionary, index, reason), DeleteTopics((topic,))]
        return out + self.finish_if_ready(self._registry.get(record.id), now)

    @staticmethod
    def _proven(record: BuildRecord) -> bool:
        """Whether sums have shown that slices store what was projected (R55): nothing is read again."""
        return record.compared == EQUAL and not record.verify_full

    def _verified(self, record: BuildRecord, now: int) -> list[Instruction] | None:
        """None when the build's indexes were verified, and nothing was wrong; else what follows."""
        run = self._registry.run(record.id)
        building = [index for index in self._registry.indexes(record) if index.state == "BUILDING"]
        job = self._jobs.find(record.verification) if record.verification else None
        if job is None or (job.state in FINAL and self._is_void(record, job)):
            if late := [index.name for index in building if index.id not in run.arrived]:
                run.waiting_for = f"{', '.join(late)}: all indexes of a build are verified together"
                return []
            job = self._jobs.request("verify", building, now, build=record.id)
            self._registry.put(replace(record, phase="verifying", verification=job.id))
            run.waiting_for = f"verification {job.id}"
            if not record.compared:
                return []
            text = f"build {record.id} reads its source once more: {record.compared}"
            return [Note("info", "build-read-again", record.id, text)]
        return self._judged(record, job, now)

    def _judged(self, record: BuildRecord, job: JobRecord, now: int) -> list[Instruction] | None:
        """The same, by the verification that was asked for."""
        if job.state in ("QUEUED", "RUNNING"):
            doing = self._jobs.waiting_for(job) or f"{job.percent:.0f} %: {job.detail or 'starts'}"
            self._registry.run(record.id).waiting_for = f"verification {job.id} ({doing})"
            return []
        again = "build again, or, to have the indexes unverified, with --no-verify"
        report = f"GET /v1/jobs/{job.id}/report, or keytide job report {job.id}"
        if job.state != "DONE":
            reason = f"verification {job.id} is {job.state}: {job.error}; when that is put right, {again}"
            return self._registry.fail(record, reason, now)
        if not faults_of(job.counts):
            return None
        found = ", ".join(f"{count:,} {kind}" for kind, count in sorted(job.counts.items()))
        reason = (
            f"verification {job.id} found differences from the source: {found}; see {report}; then {again}"
        )
        return self._registry.fail(record, reason, now)

    def tick(self, record: BuildRecord, now: int) -> list[Instruction]:
        """A build in CATCHUP whose verification has failed fails, also while no snapshot is made. Not while
        the source's history is in doubt, nor for what was found of one that is void."""
        job = self._jobs.find(record.verification) if record.verification else None
        if job is None or record.keyspace in self._registry.halted or self._is_void(record, job):
            return []
        return self._judged(record, job, now) or []

    def _is_void(self, record: BuildRecord, job: JobRecord) -> bool:
        """Whether the source was rolled back since a verification was asked for: it is done once more."""
        keyspace = self._registry.dictionary.catalog.keyspace(record.keyspace)
        return keyspace is not None and job.incarnation < keyspace.incarnation

    def finish_if_ready(self, record: BuildRecord, now: int) -> list[Instruction]:
        """End a build in CATCHUP when none of its indexes is on the way any more (one that got READY may
        have failed since)."""
        if any(index.state == "BUILDING" for index in self._registry.indexes(record)):
            return []
        done = record.documents_total
        record = self._registry.move(record, "ready", finished_at=now, documents_done=done, phase="")
        seconds = (now - record.started_at) / 1000
        text = f"build {record.id} is over after {seconds:.1f} s: {record.documents_total:,} documents"
        if record.verification:
            text += ", verified"
        elif record.verify and self._proven(record):
            text += ", verified by sums"
        for index in self._registry.indexes(record):
            text += _left_out_words(index.name, record.left_out.get(index.id, {}))
        if record.error:
            text += f"; {record.error}"
        return [*self._registry.finish(record), Note("info", "build-ready", record.id, text)]

    def rebuilt(self, record: BuildRecord, now: int) -> list[Instruction]:
        """End a rebuild: its slices serve again."""
        indexes = self._registry.indexes(record)
        topics = tuple(self._registry.dictionary.topics.backfill(index.id, record.id) for index in indexes)
        record = self._registry.move(record, "ready", finished_at=now, documents_done=record.documents_total)
        text = f"{words(record, indexes)} serve again, {(now - record.started_at) / 1000:.1f} s after build "
        text += f"{record.id} began"
        note = Note("info", "slices-rebuilt", record.id, text)
        return [DeleteTopics(topics), *self._registry.finish(record), note]


def _left_out_words(name: str, reasons: dict[str, int]) -> str:
    """What an index has no entries of."""
    told = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    return f"; left out of {name}: {told}" if told else ""


def words(record: BuildRecord, indexes: list[IndexRecord]) -> str:
    """The slices of a rebuild, for people."""
    return " and ".join(
        f"slices {', '.join(map(str, record.slices_of(index)))} of {index.name}" for index in indexes
    )
