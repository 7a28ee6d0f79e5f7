"""The driver of one repair: its progress, its report, its end.

As that of a verification (`streaming.verify.driver`), which it is but for the work itself: no checkpoint, a
driver that is started again begins again with the first look. The report lists the differences of the first
look, each with what was done about it, and says what the last look found.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final

from keytide.catalog.records import IndexRecord
from keytide.process.clock import now_ms
from keytide.process.sync_points import reach
from streaming.repair.corrections import Planned, count_actions
from streaming.repair.repair import LiveComparison, NotRepairedError, Repair, Repaired, summary
from streaming.repair.slices import SliceChannel
from streaming.verify import report
from streaming.verify.core.difference import is_clean
from streaming.verify.driver import VerifyDriver
from streaming.verify.source import SourceReader
from streaming.verify.verification import Verification

_COMPARING: Final = 0.4
"""What the first comparison is of the whole, about; the last one is as much."""


class RepairDriver(VerifyDriver):
    """Runs one repair to its end."""

    def work(self, held: ExitStack) -> None:
        (index,), context = self.open(
            held,
            self._settings.repair.documents,
            lambda detail, fraction: self._tell(detail, self._base + _COMPARING * fraction),
        )
        name = f"{self._id}-{self._run_id}"
        channel = SliceChannel(self._settings, index, self._metadata.catalog, name)
        held.callback(channel.close)
        comparison = LiveComparison(context, self._reader_of, self._comparison_begins)
        repair = Repair(
            *(index, name, comparison, channel, self._settings.repair),
            lambda detail: self._tell(detail, max(self._fraction, 0.0)),
            self._stop.is_set,
        )
        began, dry_run = now_ms(), self._job.dry_run
        done = Repaired()
        try:
            repair.run(done, dry_run=dry_run)
        except NotRepairedError:
            self._write_repaired(index, done, began)
            raise
        self._write_repaired(index, done, began)
        self._detail = summary(done, dry_run=dry_run)
        self._fraction, self._state = 1.0, "DONE"
        reach("verify-done")

    def _reader_of(self, documents: int) -> SourceReader:
        reader = self._reader(documents)
        self._total = 0  # (several comparisons: records read say nothing of how far it is)
        return reader

    def _comparison_begins(self, verification: Verification) -> None:
        self._verification = verification
        self._base = 0.0 if self._fraction == 0.0 else 1.0 - _COMPARING

    _base = 0.0

    def _write_repaired(self, index: IndexRecord, done: Repaired, began: int) -> None:
        first, last = done.first, done.last
        if first is None or last is None:
            return
        found = report.summary(self._job, [index], first, began, now_ms())
        found["repair"] = {
            "dry_run": self._job.dry_run,
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
