"""The registry of jobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from coordinator.catalog.dictionary import Dictionary
from coordinator.catalog.registry import ConflictError, Registry, Transitions, final
from coordinator.core.failure_detector import START_MS
from keytide.catalog.records import JobRecord, JobState
from keytide.errors import CallerError

TRANSITIONS: Final[Transitions[JobState]] = {
    "QUEUED": {"start": "RUNNING", "cancel": "CANCELLED"},
    "RUNNING": {"done": "DONE", "fail": "FAILED", "cancel": "CANCELLED"},
    "DONE": {},
    "FAILED": {},
    "CANCELLED": {},
}
FINAL: Final = final(TRANSITIONS)
DRAIN: Final = "drain-"
"""Begins the id of a node's drain, which is listed with the jobs; the node's follows."""
PREPARED: Final = 2.0
"""Percent of a job before it reads anything of the source: they say nothing of its pace."""
GONE_MS: Final = 5_000
"""A driver is gone when another was heard for so long after its last word: two may live at once, one of them
a coordinator's that leads no more."""
HARMLESS: Final = frozenset({"UNPROVABLE"})
"""Classes of differences that say nothing against an index."""


class NoSuchJobError(CallerError):
    """No job has that id."""

    problem_type = "job-not-found"
    status = 404


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Settings of jobs (reasons in `keytide.settings.settings`).

    Attributes:
        back_off_ms: wait before a dead driver is started again; doubles with each time.
        interval_ms: between verifications of an index; 0 for none by themselves.
        waiting: jobs that may be queued or under way at once.
    """

    concurrent: int = 1
    restarts: int = 3
    back_off_ms: int = 1_000
    interval_ms: int = 0
    kept: int = 50
    waiting: int = 100


@dataclass(slots=True)
class JobRun:
    """What this coordinator knows of a job beside its record.

    Attributes:
        reported: `attempt` and `sent_at` of the newest report, so that an older one does not count.
        heard: name of a driver (`JobProgress.run`) -> when it was heard last; those that are not gone.
        earlier: names of the drivers that were heard before this start.
        began_at: the first report since this start; 0 before that.
        error: what it says is in its way; "" when nothing.
        silent_ms: since it said something, as far as others were heard meanwhile; below 0 while it starts.
        exited_at: when it ended well without having said what it found.
        failing: it says that its job can never work: why.
        no_room: it was not started, for its disk is full.
        held: none runs: its build pauses, or something was in its way. Other jobs may have its place.
        due: when one that is held is tried again at the earliest.
        wait_ms: the last wait before that.
        tries: starts in vain since a driver has read anything of the source.
        story: how the last one ended.
    """

    reported: tuple[tuple[int, int], int] = ((0, 0), 0)
    heard: dict[str, int] = field(default_factory=dict)
    earlier: frozenset[str] = frozenset()
    began_at: int = 0
    error: str = ""
    silent_ms: int = -START_MS
    exited_at: int = 0
    failing: str = ""
    no_room: str = ""
    held: bool = False
    due: int = 0
    wait_ms: int = 0
    tries: int = 0
    story: str = ""

    def begin(self, delay_ms: int = 0) -> None:
        """A driver is started after a delay."""
        self.began_at, self.silent_ms, self.exited_at = 0, -START_MS - delay_ms, 0
        self.held, self.error, self.story = False, "", ""
        self.earlier = frozenset(self.heard)

    def hear(self, driver: str, now: int) -> None:
        """A driver has said something. (The last word of an earlier one is no first word of this one.)"""
        self.heard = {one: at for one, at in self.heard.items() if now - at < GONE_MS} | {driver: now}
        if driver not in self.earlier:
            self.silent_ms, self.began_at = 0, self.began_at or now

    def gone(self, driver: str, now: int) -> bool:
        """Whether another driver works in place of this one."""
        newest = max(self.heard.values(), default=0)
        return newest - self.heard.get(driver, self.began_at or now) >= GONE_MS


class JobRegistry(Registry[JobRecord, JobRun]):
    """All jobs of a cluster."""

    kind, invariant, transitions, missing = "job", "JobState", TRANSITIONS, NoSuchJobError

    def __init__(self, dictionary: Dictionary, limits: JobLimits) -> None:
        super().__init__(dictionary, dictionary.catalog.job, dictionary.catalog.jobs, JobRun)
        self._limits = limits

    def get(self, id_: str) -> JobRecord:
        copy = self.dictionary.catalog.copy_record(id_)
        if copy is not None:  # (it is listed with the jobs)
            index = self.dictionary.catalog.index(copy.index)
            name = index.name if index is not None else copy.index
            raise ConflictError(
                f"job {id_} is a copy of slice {copy.slice} of {name} that is being filled on node "
                f"{copy.node}: it has no report, and ends when it counts",
                problem_type="job-is-copy",
                next_step=f"to have fewer copies: ALTER INDEX {name} SET (replicas=N)",
            )
        if id_.startswith(DRAIN) or f"rebalance/{id_}" in self.dictionary.catalog.records:
            raise ConflictError(
                f"job {id_} moves copies of slices: it has no report",
                problem_type="job-moves-copies",
                next_step=f"see `keytide job show {id_}`",
            )
        return super().get(id_)

    def waiting_for(self, record: JobRecord) -> str:
        """What a job waits for, in words; "" when it works."""
        if record.state in FINAL:
            return ""
        if self.pauses(record):
            return f"build {record.build} to be resumed (keytide build resume {record.build})"
        run = self.run(record.id)
        if record.state == "RUNNING" and not run.held:
            return run.no_room
        if story := run.error or run.story:
            return f"{story}; tried again after {run.wait_ms / 1000:g} s, log {log_of(record)}"
        return f"its turn: {self._limits.concurrent} at once (setting verify.concurrent)"

    def pauses(self, record: JobRecord) -> bool:
        """Whether the build that waits for it pauses."""
        build = self.dictionary.catalog.build(record.build) if record.build else None
        return build is not None and bool(build.paused)

    def left_ms(self, record: JobRecord, now: int) -> float | None:
        """Until a job is over, by the pace of its present driver; None when that cannot be told."""
        if record.state != "RUNNING" or record.percent <= PREPARED:
            return None
        run = self.run(record.id)
        if run.held or not run.began_at:
            return None
        return (now - run.began_at) / record.percent * (100 - record.percent)


def faults_of(counts: dict[str, int]) -> int:
    """How many differences say that an index is not right."""
    return sum(count for kind, count in counts.items() if kind not in HARMLESS)


def log_of(record: JobRecord) -> str:
    """Where the log of its drivers is, in the coordinator's data folder."""
    return f"jobs/{record.id}/driver.log"
