"""Jobs: verification and repair of indexes, by drivers of their own, one step at a time. Pure.

Theory of operation. The way of a job:

    QUEUED      waits for its turn (`verify.concurrent`); jobs that a build waits for go first
    RUNNING     its driver works (`python -m streaming.<kind> --job ID`), and reports
    DONE        its report is written, whatever it found; FAILED, CANCELLED

A job has no checkpoint: after the death of its driver, or a restart of the coordinator, it begins again, up
to a limit of times. A driver that says nothing for long hangs: it is killed, and counts as one that died. A
job ends by itself when what it is for is gone: an index that is no longer READY, the build that waited for
it. Progress alone is kept in memory; a new leader begins the job again anyway.

A build would be thrown away with its job. So where a driver ends because something was in its way (a node, a
disk, Spark), which passes, the job of a build stays RUNNING and is *held*: it is tried again after growing
waits, for ever, and other jobs have its place meanwhile. So it is where no driver could be started, or none
has said a word: the order to start it may be waiting in the executor, behind what Kafka does not take. It is
held, too, while its build pauses. A job by hand or by schedule ends after its limit of times: whoever asked
can ask again, and the schedule does.

With `verify.interval_s`, the READY index that was verified longest ago is verified next, whenever that is
longer ago than the interval and no other such job is under way.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from coordinator.catalog.dictionary import Dictionary
from coordinator.catalog.registry import ConflictError
from coordinator.core import drivers
from coordinator.core.events import DriverExited, Event, Reported, Tick
from coordinator.core.failure_detector import SILENT_MS, START_MS, ReportWatch
from coordinator.core.instructions import Instruction, Note, RemoveJobFolder, StartDriver, StopDriver
from coordinator.jobs.registry import FINAL, JobLimits, JobRegistry, faults_of, log_of
from coordinator.jobs.repair_rounds import RepairRounds
from keytide.catalog.records import IndexRecord, JobKind, JobRecord
from keytide.wire.messages import JobProgress, NodeHeartbeat

CHECK_MS: Final = 200
"""Between looks at all jobs."""
LONGEST_WAIT_MS: Final = 60_000
"""Before the job of a build is tried again."""


class Jobs(JobRegistry):
    """The state machine of all jobs. Records are read from and put into the dictionary, as with builds."""

    def __init__(self, dictionary: Dictionary, limits: JobLimits) -> None:
        super().__init__(dictionary, limits)
        self._checked_at = 0
        self._reports_heard = ReportWatch()
        self._rounds = RepairRounds(self)

    # --- requests -----------------------------------------------------------------------------------------

    def request(
        self, kind: JobKind, indexes: list[IndexRecord], now: int, *, build: str = "", dry_run: bool = False
    ) -> JobRecord:
        """Queue a job over indexes of one keyspace.

        Raises:
            ConflictError: one of them is not READY (unless it is for their build), the same is under way,
                or too many jobs wait.
        """
        names = ", ".join(index.name for index in indexes)
        waiting = [one for one in self.all() if one.state not in FINAL]
        if not build:
            for index in indexes:
                if index.state != "READY":
                    raise ConflictError(
                        f"index {index.name} is {index.state}; only a READY index can be "
                        + ("verified" if kind == "verify" else "repaired"),
                        problem_type="index-not-ready",
                        next_step=f"build it first: keytide index build {index.name}",
                    )
            ids = {index.id for index in indexes}
            same = [one for one in waiting if one.kind == kind and ids & set(one.indexes)]
            if same:
                raise ConflictError(
                    f"{same[0].kind} {same[0].id} of {names} is under way",
                    problem_type="job-under-way",
                    next_step=f"see `keytide job show {same[0].id}`, or cancel it",
                )
            if len(waiting) >= self._limits.waiting:
                raise ConflictError(
                    f"{len(waiting)} jobs are queued or under way",
                    problem_type="too-many-jobs",
                    next_step="wait for some of them, or cancel some (`keytide job list`)",
                )
        keyspace = self.dictionary.catalog.keyspace(indexes[0].keyspace)
        record = JobRecord(
            id=f"j{self.dictionary.number()}",
            kind=kind,
            keyspace=indexes[0].keyspace,
            indexes=[index.id for index in indexes],
            state="QUEUED",
            created_at=now,
            build=build,
            incarnation=keyspace.incarnation if keyspace else 0,
            dry_run=dry_run,
        )
        self.put(record)
        return record

    def cancel(self, record: JobRecord, reason: str, now: int) -> list[Instruction]:
        """End a job that is not over.

        Raises:
            ConflictError: it is over.
        """
        if record.state in FINAL:
            raise ConflictError(
                f"job {record.id} is over, it is {record.state}",
                problem_type="job-over",
                next_step="there is nothing to cancel",
            )
        names = ", ".join(self.names(record))
        self.move(record, "cancel", error=reason, finished_at=now)
        text = f"{record.kind} {record.id} of {names} was cancelled: {reason}"
        return [StopDriver(record.id), Note("info", "job-cancelled", record.id, text), *self._forget_oldest()]

    # --- events -------------------------------------------------------------------------------------------

    def recover(self) -> list[Instruction]:
        """At the start of a term: what was under way begins again, as many at once as may."""
        running = [one for one in self.all() if one.state == "RUNNING"]
        able = sorted((one for one in running if not self.pauses(one)), key=lambda one: not one.build)
        able = able[: self._limits.concurrent]
        for one in running:
            self.run(one.id).held = one not in able
        return [StartDriver(one.id, 0, one.kind) for one in able]

    def handle(self, event: Event) -> list[Instruction]:
        """One event; what follows."""
        match event:
            case Tick(now):
                return self._tick(now)
            case Reported(message, now):
                self._reports_heard.heard(now)
                if isinstance(message, JobProgress):
                    return self._progress(message, now)
                return self._rounds.heard(message, now) if isinstance(message, NodeHeartbeat) else []
            case DriverExited():
                return self._exited(event)
            case _:
                return []

    def _tick(self, now: int) -> list[Instruction]:
        if now - self._checked_at < CHECK_MS:
            return []
        passed = self._reports_heard.silence(self._checked_at, now)
        self._checked_at = now
        out: list[Instruction] = []
        for record in self.all():
            if record.state in FINAL:
                continue
            if reason := self._not_wanted(record):
                out += self.cancel(record, reason, now)
            elif record.state == "RUNNING":
                out += self._watch(record, passed, now)
        self._schedule(now)
        return out + self._start(now)

    def _watch(self, record: JobRecord, passed: int, now: int) -> list[Instruction]:
        """A job that is RUNNING: whether its driver may, and does.

        Args:
            passed: milliseconds since the last look that count as silence.
        """
        run = self.run(record.id)
        if self.pauses(record):
            run.due = 0  # it is tried at once when the build goes on
            if run.held:
                return []
            self._hold(record)
            return [StopDriver(record.id)]
        if run.held:
            return []
        if run.exited_at:
            if now - run.exited_at <= drivers.EXIT_GRACE_MS:
                return []
            return self._died(record, "it ended without having said what it found", now)
        run.silent_ms += passed
        if run.silent_ms < SILENT_MS:
            return []
        if record.build and not run.began_at:
            story = f"its driver has said nothing in the {(START_MS + SILENT_MS) // 1000} s since its start"
            return [StopDriver(record.id), *self._wait(record, story, now)]
        story = f"it has said nothing for {SILENT_MS // 1000} s, and was killed"
        return [StopDriver(record.id), *self._died(record, story, now)]

    def _hold(self, record: JobRecord) -> None:
        """No driver of it runs any more, for now; what the last one did counts for nothing."""
        run = self.run(record.id)
        run.held, run.exited_at, run.no_room = True, 0, ""
        self.note_progress(replace(record, percent=0.0, documents=0, counts={}, detail=""))

    def _not_wanted(self, record: JobRecord) -> str:
        """Why a job has lost its purpose, "" when it has not."""
        if record.build:
            build = self.dictionary.catalog.build(record.build)
            waits = build is not None and build.state == "CATCHUP" and build.verification == record.id
            return "" if waits else f"build {record.build} does not wait for it any more"
        for id_ in record.indexes:
            index = self.dictionary.catalog.index(id_)
            if index is None or index.state != "READY":
                return f"index {index.name if index else id_} is {index.state if index else 'gone'}"
        return ""

    def _start(self, now: int) -> list[Instruction]:
        """Begin what may begin, and what was held and may go on."""
        out: list[Instruction] = []
        held = {one.id for one in self.all() if one.state == "RUNNING" and self.run(one.id).held}
        running = sum(one.state == "RUNNING" and one.id not in held for one in self.all())
        waiting = [one for one in self.all() if one.state == "QUEUED" or one.id in held]
        for record in sorted(waiting, key=lambda one: not one.build):
            if running >= self._limits.concurrent:
                break
            run = self.run(record.id)
            if self.pauses(record) or now < run.due:
                continue
            running += 1
            run.begin()
            out.append(StartDriver(record.id, 0, record.kind))
            if record.state == "QUEUED":
                record = self.move(record, "start", started_at=now, attempts=1)
                text = f"{record.kind} {record.id} of {', '.join(self.names(record))} begins"
                out.append(Note("info", "job-started", record.id, text))
        return out

    def _schedule(self, now: int) -> None:
        """Queue the next verification that is due by the interval."""
        interval = self._limits.interval_ms
        waiting = [one for one in self.all() if one.state not in FINAL]
        if not interval or len(waiting) >= self._limits.waiting or any(not one.build for one in waiting):
            return
        catalog = self.dictionary.catalog
        ready = [one for one in catalog.indexes() if one.state == "READY" and catalog.bears_name(one)]
        oldest = min(ready, key=lambda index: (self._tried_at(index), index.id), default=None)
        if oldest is not None and now - self._tried_at(oldest) >= interval:
            self.request("verify", [oldest], now)

    def _tried_at(self, index: IndexRecord) -> int:
        """When an index was verified last, or that was tried."""
        tried = [one.finished_at for one in self.all() if one.kind == "verify" and index.id in one.indexes]
        return max([index.verified_at or index.created_at, *tried])

    def _progress(self, message: JobProgress, now: int) -> list[Instruction]:
        record = self.find(message.job)
        if record is None or record.state != "RUNNING":
            return []
        run = self.run(record.id)
        run.hear(message.run, now)
        if (message.attempt, message.sent_at) < run.reported:
            return []
        run.reported, run.no_room, run.error = (message.attempt, message.sent_at), "", message.error
        if run.held and message.state != "DONE":
            return []  # the last word of a driver that has ended
        if message.documents:
            run.tries = 0
        record = replace(
            record,
            snapshot=message.snapshot,
            percent=round(message.percent, 1),
            documents=message.documents,
            documents_total=message.documents_total,
            counts=message.counts,
            detail=message.detail,
        )
        self.note_progress(record)
        if message.state == "FAILED":
            run.failing = message.error or "the driver gave no reason"
        return self._done(record, now) if message.state == "DONE" else []

    def _done(self, record: JobRecord, now: int) -> list[Instruction]:
        record = self.move(record, "done", percent=100.0, finished_at=now)
        names = ", ".join(self.names(record))
        faults = faults_of(record.counts)
        found = ", ".join(f"{count:,} {kind}" for kind, count in sorted(record.counts.items())) or "nothing"
        text = f"{record.kind} {record.id} of {names} is done"
        if record.kind == "verify":
            text += f" at snapshot {record.snapshot}: {found}"
            for id_ in record.indexes:
                index = self.dictionary.catalog.index(id_)
                if index is not None:
                    self.dictionary.put(replace(index, verified_at=now, verification=record.id))
        elif record.detail:
            text += f": {record.detail}"
        out: list[Instruction] = [Note("info", "job-done", record.id, text)]
        if faults and record.kind == "verify":
            text = f"{names}: {found}; see GET /v1/jobs/{record.id}/report, or keytide job report {record.id}"
            out.append(Note("error", "index-differs", record.id, text))
        return [*out, *self._forget_oldest()]

    def _exited(self, event: DriverExited) -> list[Instruction]:
        record = self.find(event.build)
        if record is None or record.state != "RUNNING":
            return []
        run = self.run(record.id)
        if run.held:
            return []  # it ended as it was to be stopped
        if event.status == drivers.NEVER_AGAIN:
            return self._fail(record, run.failing or event.tail or "the driver gave no reason", event.now)
        if event.status == drivers.NO_ROOM:
            run.no_room = event.tail
            run.begin(drivers.NO_ROOM_PAUSE_MS)
            return [StartDriver(record.id, drivers.NO_ROOM_PAUSE_MS, record.kind)]
        if event.status == 0:
            run.exited_at = event.now
            return []
        if event.status in (drivers.AGAIN, drivers.NOT_STARTED) and record.build:
            return self._wait(record, event.tail, event.now)
        return self._died(record, drivers.end_of(event), event.now)

    def _wait(self, record: JobRecord, tail: str, now: int) -> list[Instruction]:
        """Something was in the way of the driver of a build's job: try again later and later."""
        run = self.run(record.id)
        run.story = tail.strip().rpartition("\n")[2] or f"its driver ended with status {drivers.AGAIN}"
        run.wait_ms = min(self._limits.back_off_ms << min(run.tries, 16), LONGEST_WAIT_MS)
        run.due = now + run.wait_ms
        run.tries += 1
        self._hold(record)
        if run.tries > 1:
            return []
        text = f"{record.kind} {record.id} of {', '.join(self.names(record))} waits: "
        return [Note("warning", "job-waits", record.id, text + self.waiting_for(record))]

    def _died(self, record: JobRecord, story: str, now: int) -> list[Instruction]:
        if record.attempts > self._limits.restarts:
            why = (
                f"its driver died {record.attempts} times (setting verify.restarts); its log is "
                f"{log_of(record)} in the coordinator's data folder; at last: {story}"
            )
            if not record.build:
                names = " ".join(self.names(record))
                why += f"; when that is put right: keytide index {record.kind} {names}"
            return self._fail(record, why, now)
        delay = drivers.back_off(self._limits.back_off_ms, record.attempts - 1)
        self.run(record.id).begin(delay)
        self.put(replace(record, attempts=record.attempts + 1, percent=0.0, documents=0, counts={}))
        text = f"the driver of {record.kind} {record.id} died and begins again in {delay / 1000:g} s: {story}"
        return [
            StartDriver(record.id, delay, record.kind),
            Note("warning", "job-restarted", record.id, text),
        ]

    def _fail(self, record: JobRecord, reason: str, now: int) -> list[Instruction]:
        names = ", ".join(self.names(record))
        self.move(record, "fail", error=reason, finished_at=now)
        text = f"{record.kind} {record.id} of {names} failed: {reason}"
        return [StopDriver(record.id), Note("error", "job-failed", record.id, text), *self._forget_oldest()]

    def _forget_oldest(self) -> list[Instruction]:
        """Forget the jobs that have been over for longest, with their reports, but for an index's last
        verification."""
        catalog = self.dictionary.catalog
        used = {index.verification for index in catalog.indexes()}
        used |= {build.verification for build in catalog.builds()}
        over = sorted((one for one in self.all() if one.state in FINAL), key=lambda one: one.finished_at)
        return [RemoveJobFolder(id_) for id_ in self._forget(over, self._limits.kept, used)]
