"""Checks the bases of a node's slices against their checksums, beside everything else.

A page that goes bad on the disk is met when somebody reads it, or never. So each base is read as a whole now
and then (and at every opening, by the store). One base at a time, on a thread of its own: the disk is to
serve scans, not this. What a check finds is acted upon in the ingest thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from indexer.slices import SliceKey, SliceRunner
from indexer.store.interface import StoreDamagedError
from keytide.errors import RetryableError

log = logging.getLogger(__name__)


class Scrubber:
    """Used by the ingest thread.

    Args:
        interval_ms: between two checks of a slice; the first comes that long after it was opened.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval = interval_ms
        self._thread = ThreadPoolExecutor(1, "scrub")
        self._due: dict[SliceKey, int] = {}
        self._at_work: tuple[SliceKey, Future[None]] | None = None

    def look_after(self, runners: Mapping[SliceKey, SliceRunner], now: int) -> None:
        """Take note of a check that has ended, and begin the next that is due."""
        if self._at_work is not None:
            key, check = self._at_work
            if not check.done():
                return
            self._at_work = None
            self._ended(runners[key], check, now)
        self._due = {key: self._due.get(key, now + self._interval) for key in runners}
        for key, runner in runners.items():
            if now >= self._due[key] and not runner.core.applied.building and runner.core.state != "LOST":
                self._due[key] = now + self._interval
                self._at_work = (key, self._thread.submit(runner.store.verify))
                return

    def leave(self, key: SliceKey) -> None:
        """The slice is about to be closed: wait until its check has ended."""
        if self._at_work is not None and self._at_work[0] == key:
            wait([self._at_work[1]])
            self._at_work = None

    def close(self) -> None:
        """Wait for what is at work."""
        self._thread.shutdown()

    def _ended(self, runner: SliceRunner, check: Future[None], now: int) -> None:
        try:
            check.result()
        except StoreDamagedError as error:
            runner.lose(error.message, now, damaged=True)
        except RetryableError as error:
            log.warning("slice %s/%d could not be checked: %s", *runner.key, error)
