"""Checks the bases of a node's slices against their checksums, beside everything else.

A page that goes bad on the disk is met when somebody reads it, or never. So each base is read as a whole now
and then (and at every opening, by the store). One base at a time, on a thread of its own: the disk is to
serve scans, not this. What a check finds is acted upon in the ingest thread. Nobody waits for a check: when
its slice is closed meanwhile, what becomes of it is not asked any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from indexer.slices import SliceKey, SliceRunner
from indexer.store.interface import SliceStore, StoreDamagedError
from keytide.errors import RetryableError

log = logging.getLogger(__name__)


class _Check:
    """One check at work.

    Attributes:
        error: how it ended, None when all is well.
    """

    def __init__(self, key: SliceKey, store: SliceStore) -> None:
        self.key = key
        self.error: BaseException | None = None
        self._store = store
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._store.verify()
        except BaseException as error:  # noqa: BLE001 - raised again in the ingest thread, if it still matters
            self.error = error


class Scrubber:
    """Used by the ingest thread.

    Args:
        interval_ms: between two checks of a slice; the first comes that long after it was opened.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval = interval_ms
        self._due: dict[SliceKey, int] = {}
        self._at_work: _Check | None = None
        self._left: _Check | None = None

    def look_after(self, runners: Mapping[SliceKey, SliceRunner], now: int) -> None:
        """Take note of a check that has ended, and begin the next that is due."""
        if self._left is not None and self._left.done():
            self._left = None
        if self._at_work is not None and self._at_work.done():
            check, self._at_work = self._at_work, None
            self._ended(runners[check.key], check.error, now)
        if self._at_work is not None or self._left is not None:
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

    def _ended(self, runner: SliceRunner, error: BaseException | None, now: int) -> None:
        match error:
            case None:
                log.info("slice %s/%d is as it was written", *runner.key)
            case StoreDamagedError():
                runner.lose(error.message, now, damaged=True)
            case RetryableError():
                log.warning("slice %s/%d could not be checked: %s", *runner.key, error)
            case _:
                raise error
