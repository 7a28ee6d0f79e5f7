"""The driver of one repair: its progress, its report, its end.

As that of a verification (`streaming.verify.driver`), which it is but for the work itself: no checkpoint, a
driver that is started again begins again with the first look. The report lists the differences of the first
look, each with what was done about it, and says what the last look found.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final

from keytide.catalog.catalog import IndexRecord, JobRecord
from keytide.kafka.topics import admin
from keytide.process.clock import now_ms
from streaming.repair.comparison import LiveComparison
from streaming.repair.corrections import Planned, count_actions
from streaming.repair.repair import NotRepairedError, Repair, Repaired, summary
from streaming.repair.slices import SliceChannel
from streaming.verify import report
from streaming.verify.core.difference import is_clean
from streaming.verify.documents import Scene
from streaming.verify.driver import KafkaSource, MetadataFollower, VerifyDriver, has_origin, indexes_of
from streaming.verify.slices import Slices
from streaming.verify.source import SourceReader
from streaming.verify.verification import Verification

_LOOK: Final = 0.4
"""What the first look is of the whole, about; the last one is as much."""


class RepairDriver(VerifyDriver):
    """Runs one repair to its end."""

    def _work(self) -> None:
        with ExitStack() as stack:
            following = MetadataFollower(self._settings, self._id, self._stop)
            stack.callback(following.close)
            job = following.wanted()
            (index,) = indexes_of(following.catalog(), job)
            slices = Slices(following.catalog, [index.id])
            stack.callback(slices.close)
            scene = Scene(
                keyspace=job.keyspace,
                indexes=(index,),
                slices=slices,
                facts=KafkaSource(stack.enter_context(admin(self._settings)), following, job.keyspace),
                limit=self._settings.repair.documents,
                tell=self._tell_of_look,
                stopped=self._stop.is_set,
            )
            name = f"{self._id}-{self._run_id}"
            channel = SliceChannel(self._settings, index, name)
            stack.callback(channel.close)
            origins = has_origin(following.catalog(), [index])
            looks = LiveComparison(scene, self._reader_of, origins=origins, began=self._look_begins)
            repair = Repair(
                index, name, looks, channel, self._settings.repair, self._tell_of_round, self._stop.is_set
            )
            began = now_ms()
            done = Repaired()
            try:
                repair.run(done, dry_run=job.dry_run)
            except NotRepairedError:
                self._write_repaired(job, index, done, began)
                raise
            self._write_repaired(job, index, done, began)
            self._detail = summary(done, dry_run=job.dry_run)
            self._share, self._state = 1.0, "DONE"

    def _reader_of(self, documents: int) -> SourceReader:
        reader = self._reader(documents)
        self._total = 0  # (several looks: records read say nothing of how far it is)
        return reader

    def _look_begins(self, verification: Verification) -> None:
        self._verification = verification
        self._base = 0.0 if self._share == 0.0 else 1.0 - _LOOK

    def _tell_of_look(self, detail: str, share: float) -> None:
        self._tell(detail, self._base + _LOOK * share)

    def _tell_of_round(self, detail: str) -> None:
        self._tell(detail, max(self._share, 0.0))

    _base = 0.0

    def _write_repaired(self, job: JobRecord, index: IndexRecord, done: Repaired, began: int) -> None:
        first, last = done.first, done.last
        if first is None or last is None:
            return
        found = report.summary(job, [index], first, began, now_ms())
        found["repair"] = {
            "dry_run": job.dry_run,
            "rounds": done.rounds,
            "actions": count_actions(done.planned),
            "corrected": done.corrected,
            "spared": done.spared,
            "void": done.void,
            "after": {
                "snapshot": last.pin.number,
                "counts": last.counts,
                "clean": is_clean(last.counts),
            },
        }
        report.write(self.folder, found, first.differences, [index], actions_of(done.planned))
        self._snapshot, self._counts = last.pin.number, last.counts


def actions_of(plans: Iterable[Planned]) -> dict[bytes, dict[str, Any]]:
    """Document id -> what was done about it, or would be: slice -> action, of the last round that did any."""
    found: dict[bytes, dict[str, Any]] = {}
    for one in plans:
        actions = found.setdefault(one.correction.id, {"actions": {}})["actions"]
        actions[str(one.slice)] = one.action
    return found
