"""Checks the bases of a node's slices against their checksums, beside everything else.

A page that goes bad on the disk is met when somebody reads it, or never. So each base is read as a whole now
and then (and at every opening, by the store). One base at a time, on a thread of its own: the disk is to
serve scans, not this. What a check finds is acted upon in the ingest thread. Nobody waits for a check: when
its slice is closed meanwhile, what becomes of it is not asked any more.

When what a read got contradicts itself, its slice is *doubted* (`SnapshotRing.report_doubt`), and checked
next: its base against the checksums, and, for deltas have none, all entries of its newest commit against the
back index and the counts (Mirror). What that finds is damage. When it finds nothing the slice stays in
service: the fault was the request's, or a bug's. A slice is not checked again for a doubt within
`indexer.doubt_pause_s`, so that nobody can keep the disk busy by asking. A doubt stays until a check has
looked: one that could not (the disk is full, too many snapshots are open) comes again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from indexer.hosting.slice_runner import SliceKey, SliceRunner
from indexer.store.integrity.mirror import check_mirror
from indexer.store.interface import SliceStore, StoreDamagedError, StoreSnapshot
from keytide.errors import InvariantViolationError, RetryableError
from keytide.process.worker import Worker

log = logging.getLogger(__name__)

AGAIN_MS = 1_000
"""After a check that could not begin."""


class _Check(Worker):
    """One check at work; `check` raises what it has found wrong.

    Args:
        commit: its rows are compared, too, and it is closed; None when nobody doubts them.
        doubt: what a read has met.
    """

    def __init__(
        self, key: SliceKey, store: SliceStore, commit: StoreSnapshot | None = None, doubt: str = ""
    ) -> None:
        super().__init__("scrub", None, self._verify)
        self.key = key
        self.doubt = doubt
        self._store = store
        self._commit = commit
        self.open()

    def _verify(self) -> None:
        try:
            self._store.verify()
            if self._commit is not None:
                check_mirror(self._commit)
        except InvariantViolationError as error:
            raise StoreDamagedError(error.message) from error
        finally:
            if self._commit is not None:
                self._commit.close()


class Scrubber:
    """Used by the ingest thread.

    Args:
        interval_ms: between two checks of a slice; the first comes that long after it was opened.
        doubt_pause_ms: between two checks of a slice because of doubts.
    """

    def __init__(self, interval_ms: int, doubt_pause_ms: int) -> None:
        self._interval = interval_ms
        self._doubt_pause = doubt_pause_ms
        self._rests_until: dict[SliceKey, int] = {}
        self._due: dict[SliceKey, int] = {}
        self._at_work: _Check | None = None
        self._left: _Check | None = None

    def look_after(self, runners: Mapping[SliceKey, SliceRunner], now: int) -> None:
        """Take note of a check that has ended, and begin the next that is due."""
        if self._left is not None and not self._left.running:
            self._left = None
        if self._at_work is not None and not self._at_work.running:
            check, self._at_work = self._at_work, None
            self._ended(runners[check.key], check, now)
        if self._at_work is not None or self._left is not None:
            return
        self._rests_until = {key: at for key, at in self._rests_until.items() if key in runners}
        if any(self._check_doubted(runner, now) for runner in runners.values()):
            return
        self._due = {key: self._due.get(key, now + self._interval) for key in runners}
        for key, runner in runners.items():
            if now >= self._due[key] and not runner.core.applied.building and runner.core.state != "LOST":
                self._due[key] = now + self._interval
                self._at_work = _Check(key, runner.store)
                return

    def leave(self, key: SliceKey) -> None:
        """The store of a slice is about to be closed."""
        if self._at_work is not None and self._at_work.key == key:
            self._left, self._at_work = self._at_work, None

    def _check_doubted(self, runner: SliceRunner, now: int) -> bool:
        """Begin to check a slice that a reader doubts; whether that was done."""
        key, core = runner.key, runner.core
        if now < self._rests_until.get(key, now) or core.applied.building:
            return False
        doubt = runner.ring.take_doubt() if core.state != "LOST" else ""
        if not doubt:
            return False
        try:
            commit = runner.store.snapshot()
        except StoreDamagedError as error:
            runner.lose(error.message, now, damaged=True)
            return False
        except RetryableError as error:
            self._rests_until[key] = now + AGAIN_MS
            self._not_checked(runner, doubt, error)
            return False
        self._rests_until[key] = now + self._doubt_pause
        log.warning("slice %s/%d is checked, for a read has met: %s", *key, doubt)
        self._at_work = _Check(key, runner.store, commit, doubt)
        return True

    def _ended(self, runner: SliceRunner, check: _Check, now: int) -> None:
        try:
            check.check()
        except StoreDamagedError as error:
            runner.lose(error.message, now, damaged=True)
        except RetryableError as error:
            self._not_checked(runner, check.doubt, error)
        else:
            if check.doubt:
                log.error(
                    "slice %s/%d is as it was written, and yet a read has met: %s", *runner.key, check.doubt
                )
            else:
                log.info("slice %s/%d is as it was written", *runner.key)

    def _not_checked(self, runner: SliceRunner, doubt: str, error: RetryableError) -> None:
        """The doubt, if there is one, stays."""
        why = f", which a read doubts ({doubt})," if doubt else ""
        log.warning("slice %s/%d%s could not be checked: %s", *runner.key, why, error)
        if doubt:
            runner.ring.report_doubt(doubt)
