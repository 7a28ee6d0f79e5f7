"""The messages that tell of a record, out of topics that have far more.

Theory of operation: numbers and offsets in `control` rise together, so the first timestamp that covers the
record is found by halving: whatever clocks say, some twenty small reads. Its time then says where in
`reports` to look, and that of the report where in the mutation queues: a little before, and further back as
long as the first thing that was read is past the record already. What is needed of the present state (where
the projector stands, how copies are) is at the ends of `control` and `reports`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from deploy.trace.stretches import Say, Stretch, Stretches
from keytide.catalog.history import History
from keytide.errors import KeytideError
from keytide.model.topics import Topics
from keytide.trace.logs import ControlLog, NumberedTimestamp, QueueLog, ReportLog
from keytide.trace.records import SourceRecord, TracedIndex
from keytide.wire.messages import StabilityTimestamp
from keytide.wire.parts import Assembler

HALVED_TO: Final = 200
"""Messages of `control` that are read one after the other."""
TAIL: Final = 2_000
"""Messages at the end of `control`: with one timestamp every 10 ms, ten seconds; what is published is said
again within these."""
LATE_MS: Final = 60_000
"""A record that is indexed later than this is looked for from where it was stamped, not from its own time."""
CLOCKS_MS: Final = 2_000
"""What clocks may differ by."""
BACK_MS: Final = 5_000
FURTHER: Final = 4
FARTHEST_MS: Final = 1_200_000
AFTER_MS: Final = 10_000
"""Copies that say later than this that they hold the number are looked for at the end of `reports` alone."""
PRESENT_MS: Final = 7_000
"""Nodes say everything of their slices every five seconds."""


class LogSearch:
    """Looks for the messages that tell of a record.

    Args:
        say: is told what is read.
        now: ms.
    """

    def __init__(
        self,
        stretches: Stretches,
        topics: Topics,
        keyspace: str,
        history: History,
        record: SourceRecord,
        say: Say,
        now: int,
    ) -> None:
        self._stretches = stretches
        self._topics = topics
        self._keyspace = keyspace
        self._history = history
        self._record = record
        self._say = say
        self._now = now

    # --- control ------------------------------------------------------------------------------------------

    def control(self, ready: Sequence[TracedIndex]) -> ControlLog:
        """The first timestamp that covers the record, what was published from there on of some indexes, and
        what is published now. Raises as `Stretches.read`."""
        topic, record = self._topics.control, self._record
        self._say(f"reading {topic}")
        low, high = self._stretches.bounds(topic)[0]
        start, covered = self._halve(topic, low, high)
        if not covered:
            start = max(low, min(start, high - TAIL))
        log = ControlLog(self._keyspace, self._history, whole=start == 0)
        position = start
        for offset, at, message in self._stretches.messages(topic, (start, high)):
            log.read(offset, at, message)
            position = offset + 1
            stamp = log.covering(record.partition, record.end)
            if stamp is not None and all(log.published[one.id].first(stamp.number) for one in ready):
                break
        for offset, at, message in self._stretches.messages(topic, (max(position, high - TAIL), high)):
            log.read(offset, at, message)
        return log

    def _halve(self, topic: str, low: int, high: int) -> tuple[int, bool]:
        """Where to read on from, at or a little before the first timestamp that covers the record, and
        whether there is one."""
        covered = False
        while high - low > HALVED_TO:
            middle = (low + high) // 2
            found = next(self._stamps(topic, middle, high), None)
            if found is None:
                high = middle
            elif found[1].timestamp.offset(self._record.partition) >= self._record.end:
                high, covered = middle, True
            else:
                low = found[0]
        if not covered:
            covered = any(
                one.timestamp.offset(self._record.partition) >= self._record.end
                for _, one in self._stamps(topic, low, high)
            )
        return low, covered

    def _stamps(self, topic: str, start: int, end: int) -> Iterator[tuple[int, StabilityTimestamp]]:
        for offset, _, message in self._stretches.messages(topic, (start, end)):
            if (
                isinstance(message, StabilityTimestamp)
                and message.keyspace == self._keyspace
                and self._history.number_holds(offset, message.incarnation)
            ):
                yield offset, message

    # --- reports ------------------------------------------------------------------------------------------

    def reports(self, control: ControlLog, indexes: Sequence[TracedIndex]) -> ReportLog:
        """When the record's progress was reported and which copies have acknowledged its number, and how
        projectors and copies are now. Raises as `Stretches.read`."""
        topic, record = self._topics.reports, self._record
        self._say(f"reading {topic}")
        bounds = self._stretches.bounds(topic)
        stamp = control.covering(record.partition, record.end)
        around = stamp.at if stamp is not None and stamp.after else self._now
        back, until = around - self._begin(around), self._last(control, indexes)
        while True:
            start = self._stretches.at(topic, around - back, bounds)[0]
            log = ReportLog(self._keyspace, self._history, since=around - back if start else 0)
            position = self._follow(log, topic, (start, bounds[0][1]), stamp, until, indexes)
            if log.since and start == bounds[0][0]:  # Kafka may have deleted what is older than this
                log.since = max(log.since, log.begins)
            found = log.reported(record.partition, record.end)
            enough = record.partition in log.progress if found is None else found.after
            if enough or start <= bounds[0][0] or back >= FARTHEST_MS:
                break
            back *= FURTHER
        present = self._stretches.at(topic, self._now - PRESENT_MS, bounds)[0]
        for _, at, message in self._stretches.messages(topic, (max(position, present), bounds[0][1])):
            log.read(at, message)
        return log

    def _last(self, control: ControlLog, indexes: Sequence[TracedIndex]) -> int:
        """Until when the first acknowledgements of all slices were made, ms."""
        stamp = control.covering(self._record.partition, self._record.end)
        if stamp is None:
            return self._now
        found = [control.published[one.id].first(stamp.number) for one in indexes]
        times = [one.at for one in found if one is not None]
        return max(times, default=stamp.at) + AFTER_MS if len(times) == len(indexes) else self._now

    def _follow(
        self,
        log: ReportLog,
        topic: str,
        stretch: Stretch,
        stamp: NumberedTimestamp | None,
        until: int,
        indexes: Sequence[TracedIndex],
    ) -> int:
        """Read until all copies have acknowledged, or long enough; where that was."""
        copies = [
            (one.id, number, node)
            for one in indexes
            for number, nodes in enumerate(one.placement)
            for node in nodes
        ]
        position = stretch[0]
        for offset, at, message in self._stretches.messages(topic, stretch):
            log.read(at, message)
            position = offset + 1
            if stamp is None or at < stamp.at:
                continue
            if at > until or all(log.acknowledged[copy].first(stamp.number) for copy in copies):
                break
        return position

    # --- mutation queues ----------------------------------------------------------------------------------

    def queues(
        self, control: ControlLog, reports: ReportLog, indexes: Sequence[TracedIndex]
    ) -> dict[tuple[str, int], QueueLog]:
        """By (index id, slice), the segments of about the time at which the record was sent. Raises as
        `Stretches.read`."""
        record = self._record
        reported = reports.reported(record.partition, record.end)
        stamp = control.covering(record.partition, record.end)
        if reported is not None and reported.after:
            until = around = reported.at
        elif stamp is not None and stamp.after:
            until = around = stamp.at
        else:
            until = around = self._now
        found: dict[tuple[str, int], QueueLog] = {}
        for index in indexes:
            if index.emits and not index.brought_by:
                logs = self._queue(index, around, until + CLOCKS_MS)
                found |= {(index.id, number): log for number, log in logs.items()}
        return found

    def _queue(self, index: TracedIndex, around: int, until: int) -> dict[int, QueueLog]:
        topic, record = self._topics.mutations(index.id), self._record
        self._say(f"reading the mutation queues of {index.name}")
        if self._stretches.topic(topic) is None:
            return {}
        bounds = self._stretches.bounds(topic, index.slices)
        ends = self._stretches.at(topic, until, bounds)
        back = around - self._begin(around)
        while True:
            starts = self._stretches.at(topic, around - back, bounds)
            logs = self._segments(topic, {one: (starts[one], ends[one]) for one in bounds}, index)
            firsts = {one: log.ends[record.partition].first(record.end) for one, log in logs.items()}
            late = [
                one
                for one, first in firsts.items()
                if first is not None and not first.after and starts[one] > bounds[one][0]
            ]
            if not late or back >= FARTHEST_MS:
                return logs
            back *= FURTHER

    def _segments(
        self, topic: str, stretches: Mapping[int, Stretch], index: TracedIndex
    ) -> dict[int, QueueLog]:
        target = (self._record.partition, self._record.offset)
        logs = {number: QueueLog(self._history, index.version, target) for number in stretches}
        parts = {number: Assembler() for number in stretches}
        for message in self._stretches.read(topic, stretches):
            number = message.partition() or 0
            try:
                whole = parts[number].feed(message.value() or b"", message.offset() or 0)
            except KeytideError:
                continue  # of a release that this one does not know
            if whole is not None:
                logs[number].read(message.timestamp()[1], whole[0])
        return logs

    # --- all ----------------------------------------------------------------------------------------------

    def _begin(self, around: int) -> int:
        """From when on to read of what happened before a moment: the record's own time, where that may be
        what it says."""
        likely = around - LATE_MS <= self._record.time <= around + CLOCKS_MS
        return self._record.time - CLOCKS_MS if likely else around - BACK_MS
