"""How long a build will still take, from what it has shown of itself. Pure.

Theory of operation. A build works in phases, micro-batch after micro-batch: its driver reads documents, then
sorts and sends what came of them; slices load that; at the end they catch up with the stream, and a job
verifies. A rate measured over everything would jump with each change of phase, and promise nothing left to do
when the last document is read. So each phase has a pace of its own, in seconds per document: reading by the
last `WINDOW_MS` that were spent reading, sorting by all micro-batches so far. What a phase has not shown yet
is taken as a part of reading's pace (on a machine with two cores sorting took about a half, and loading a
quarter, of the time of reading).

What is left is then the documents that each phase still has before it, at its pace. Where that says nothing,
there is no estimate: before anything was read, while the build waits or pauses, and while slices catch up
with the stream, which ends when the stream lets them. While the job verifies, its own pace says the rest
(`coordinator.jobs.registry`).
"""

from __future__ import annotations

from collections import deque

WINDOW_MS = 20_000
"""Of reading; long enough for some reports, short enough to follow a change of the rate."""
LEAST_MS = 2_000
"""Of reading, before anything is said."""
SORT_PART = 0.5
LOAD_PART = 0.25


class BuildPace:
    """The pace of one build, by the reports of its driver.

    All times are milliseconds, by the coordinator's clock.
    """

    def __init__(self) -> None:
        self._at = 0
        self._phase = ""
        self._read_ms = 0
        self._sort_ms = 0
        self._sorting_ms = 0
        self._sort_began = 0
        self._sorted = 0
        self._finished = 0
        self._reading: deque[tuple[int, int]] = deque()

    def forget(self) -> None:
        """The build pauses, or begins to read at another rate: what was shown counts no more, but for
        sorting."""
        self._at, self._phase, self._read_ms = 0, "", 0
        self._reading.clear()

    def report(self, now: int, phase: str, documents: int, finished: int) -> None:
        """Take a report in.

        Args:
            phase: what the driver does now.
            documents: that it has read, the micro-batch under way included.
            finished: those of finished micro-batches.
        """
        passed = max(0, now - self._at) if self._at else 0
        if self._phase == "reading":
            self._read_ms += passed
        elif self._phase == "sorting":
            self._sorting_ms += passed
        if finished > self._finished:
            if self._sorting_ms:  # (one that ended between two reports has shown nothing)
                self._sorted += finished - self._finished
                self._sort_ms += self._sorting_ms
            self._finished, self._sorting_ms = finished, 0
        if phase == "sorting" and self._phase != "sorting":
            self._sort_began = now
        if phase == "reading" or self._phase == "reading":
            self._reading.append((self._read_ms, documents))
            while len(self._reading) > 2 and self._read_ms - self._reading[1][0] >= WINDOW_MS:
                self._reading.popleft()
        self._at, self._phase = now, phase

    def read_pace(self) -> float | None:
        """Milliseconds per document read; None when it cannot be told."""
        if len(self._reading) < 2:
            return None
        (first_ms, first), (last_ms, last) = self._reading[0], self._reading[-1]
        if last_ms - first_ms < LEAST_MS or last <= first:
            return None
        return (last_ms - first_ms) / (last - first)

    def left_ms(self, now: int, documents: int, total: int, rate_limit: int = 0) -> float | None:
        """Until everything is read, sorted and loaded; None when it cannot be told.

        Args:
            documents: read so far.
            rate_limit: documents per second; 0 for none.
        """
        pace = self.read_pace()
        if pace is None:
            return None
        if rate_limit:
            pace = max(pace, 1000 / rate_limit)
        to_read = max(0, total - documents)
        to_sort = max(0, total - self._finished)
        batch = max(documents - self._finished, 0) or min(to_sort, self._finished)
        sort = self._sort_ms / self._sorted if self._sorted else SORT_PART * pace
        spent = now - self._sort_began if self._phase == "sorting" else 0
        sorting = to_sort * sort
        return to_read * pace + max(0.0, sorting - min(spent, batch * sort)) + batch * LOAD_PART * pace
