"""Looking for the newest stability timestamp that is still on the log (see `coordinator.rollback.rollback`).

Timestamps are tried newest first: those that the leader remembers, then those in the control topic, read
backwards in chunks. Kafka is asked once for the past of the topic as far back as the remembered timestamps
need it, and once more for all of it when they are not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from coordinator.core.events import HistoryExamined
from coordinator.core.instructions import ExamineHistory
from coordinator.kafka.control_topic import Said, control_range, entitled, read_control
from keytide.catalog.history import History
from keytide.kafka.admin import KafkaUnavailableError, admin, describe_topics
from keytide.kafka.history import log_history, partings
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Place, Timestamp
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings
from keytide.wire.messages import StabilityTimestamp

TIMEOUT_S = 10.0
CHUNK_MESSAGES = 20_000
"""Of the control topic, per step backwards: with a timestamp every 10 ms about three minutes."""

Diverging = Callable[[Mapping[int, Place]], dict[int, Place]]
"""The partitions whose place is not on the log any more, with where the histories part."""


class ExaminationResult(NamedTuple):
    """The newest timestamp on the log, and where histories part."""

    number: int
    timestamp: Timestamp
    lost: dict[int, Place]


def newest_on_log(
    stamps: Iterable[tuple[int, Timestamp]], stood: Mapping[int, Place], ask: Diverging
) -> ExaminationResult:
    """The first of `stamps` (newest first) of which every place is on the log; number -1 and the zero
    timestamp when there is none."""
    lost = ask(stood) if stood else {}
    for number, timestamp in stamps:
        if any(timestamp.offset(partition) > place.offset for partition, place in lost.items()):
            continue
        gone = ask(timestamp.places)
        if not gone:
            return ExaminationResult(number, timestamp, lost)
        for partition, place in gone.items():
            lost[partition] = min(place, lost.get(partition, place), key=lambda one: one.offset)
    return ExaminationResult(-1, Timestamp(), lost)


def examine(settings: Settings, job: ExamineHistory) -> HistoryExamined:
    """Carry an examination out; blocks.

    Raises:
        RetryableError: Kafka is away, or a partition has no leader.
    """
    with admin(settings) as client:
        info = describe_topics(client, [job.keyspace], TIMEOUT_S).get(job.keyspace)
    if info is None or (job.topic_id and info.id != job.topic_id):
        topic_id, partitions = (info.id, info.partitions) if info else ("", 0)
        return HistoryExamined(job.keyspace, topic_id, partitions, -1, Timestamp(), {}, "", now_ms())

    log_now = _Log(settings, job.keyspace, [*(stamp.places for _, stamp in job.stamps), job.stood])
    if log_now.history.topic_id != info.id:  # it was deleted between the two looks
        return HistoryExamined(
            job.keyspace, log_now.history.topic_id, 0, -1, Timestamp(), {}, "the topic changes", now_ms()
        )

    named = [*(stamp.places for _, stamp in job.stamps), job.stood]
    if any(log_now.history.stale(p, place.epoch) for places in named for p, place in places.items()):
        raise KafkaUnavailableError(f"a leader of {job.keyspace} that was replaced still answers")

    def candidates() -> Iterator[tuple[int, Timestamp]]:
        yield from job.stamps
        oldest = job.stamps[-1][0] if job.stamps else None
        yield from control_backwards(settings, job.keyspace, job.topic_id, job.history, oldest)

    found = newest_on_log(candidates(), job.stood, log_now.diverging)
    return HistoryExamined(job.keyspace, info.id, info.partitions, *found, "", now_ms())


class _Log:
    """The past of a topic's partitions, asked for as far back as it is needed.

    Args:
        places: of which it is needed first.
    """

    def __init__(self, settings: Settings, topic: str, places: Iterable[Mapping[int, Place]]) -> None:
        self._settings = settings
        self._topic = topic
        self._down_to: dict[int, int] = {}
        for one in places:
            for partition, place in one.items():
                if place.epoch >= 0:
                    self._down_to[partition] = min(place.epoch, self._down_to.get(partition, place.epoch))
        self.history: LogHistory = log_history(settings, topic, TIMEOUT_S, down_to=self._down_to)

    def diverging(self, places: Mapping[int, Place]) -> dict[int, Place]:
        """The partitions whose place is not on the log any more, with where the histories part."""
        if any(0 <= place.epoch < self._down_to.get(p, 0) for p, place in places.items()):
            again = log_history(self._settings, self._topic, TIMEOUT_S)
            if again.topic_id != self.history.topic_id:
                raise KafkaUnavailableError(f"topic {self._topic} changes while it is examined")
            self.history, self._down_to = again, {}
        return partings(self._settings, self._topic, self.history, places, TIMEOUT_S)


def control_backwards(
    settings: Settings, keyspace: str, topic_id: str, history: History, before: int | None
) -> Iterator[tuple[int, Timestamp]]:
    """The timestamps of a keyspace in the control topic that hold in this history, newest first, below number
    `before`.

    What a deposed leader wrote behind its successor does not count. A chunk shows that only together with
    the one before it, so timestamps of a chunk are given when the earlier one is read as well.
    """
    begin, end = control_range(settings, TIMEOUT_S)
    end = end if before is None else max(begin, min(end, before))
    later: list[Said] = []
    while end > begin or later:
        start = max(begin, end - CHUNK_MESSAGES)
        read = read_control(settings, start, end) if end > start else []
        earlier = [one for one in read if one[0] < end]
        for number, message in reversed(standing([*earlier, *later])):
            if end <= number and holds(message, number, keyspace, topic_id, history):
                yield number, message.timestamp
        later, end = earlier, start


def standing(messages: Iterable[Said]) -> list[tuple[int, StabilityTimestamp]]:
    """The timestamps among messages of the control topic that their leader was entitled to, in order."""
    return [(number, one) for number, one in entitled(messages) if isinstance(one, StabilityTimestamp)]


def holds(message: StabilityTimestamp, number: int, keyspace: str, topic_id: str, history: History) -> bool:
    """Whether a timestamp belongs to this keyspace and its present history."""
    theirs = message.timestamp.topic_id
    return (
        message.keyspace == keyspace
        and history.number_holds(number, message.incarnation)
        and not (topic_id and theirs and theirs != topic_id)
    )
