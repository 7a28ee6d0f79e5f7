"""The source topic itself as the primary: the record that a row comes from, and what came after it.

Theory of operation
===================
The index has everything below the snapshot's timestamp, so the newest version of a document is either the one
that the row comes from or a record at or past that timestamp. These are few while the index keeps up. So a
page is looked up in two steps:

* *ahead*: everything from the timestamp to the end of the log, in every partition, up to `look_ahead`
  records; of each id that is asked for the newest counts. It is the primary's document.
* *proof*: of the others the record at the row's own (partition, offset). That the document at this place
  projects to the row shows that the entry is one that the topic has brought. Places near each other are read
  in one run.

Nothing is said (`why`) where the log cannot tell: it ends further away than `look_ahead`, or the record is
gone by retention or compaction, which keeps the newest record of an id and nothing else, so that a gap alone
proves neither that a row is right nor that it is wrong. Another document at that place, however, cannot be
what the entry comes from: it is answered as none.

A consumer belongs to one thread, so each call takes one that is free, or makes one; it is assigned for the
call only, and fetches nothing in between.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from time import monotonic
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from indexer.validation.core.primary import (
    UNKNOWN_OFFSET,
    AnsweredDocument,
    PrimaryAnswer,
    PrimaryUnreachableError,
)
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.clients import Consumer
from keytide.kafka.topics import consumer, drain
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import Settings

TOO_FAR: Final = "log-end-too-far"
RECORD_GONE: Final = "record-gone"
TWO_PARTITIONS: Final = "two-partitions"
NO_VERSION: Final = "no-version"

RUN_GAP: Final = 200
"""Records between two places that are read over rather than sought behind: a seek takes a round to the
broker, in which thousands of records come."""
FETCH_WAIT_MS: Final = 10
"""How long the broker waits at the end of a partition before it says so."""
FETCH_BYTES: Final = 256 * 1024
"""Fetched at once of a partition: a run is short."""
BATCH: Final = 2_000
POLL_S: Final = 0.1

_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class _Record(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class _Stretch(NamedTuple):
    """Offsets [start, end) of a partition; without an end, to the end of the log."""

    partition: int
    start: int
    end: int | None


class TopicPrimary:
    """Documents of one keyspace in its own topic.

    Args:
        keyspace: the topic.
        settings: where Kafka is, and `primary.<keyspace>`.
    """

    def __init__(self, keyspace: str, settings: Settings) -> None:
        self._topic = keyspace
        self._settings = settings
        self._look_ahead = settings.primary[keyspace].look_ahead
        self._lock = threading.Lock()
        self._free: list[Consumer] = []
        self._closed = False

    def documents(
        self, asked: Sequence[AnsweredDocument], fields: Collection[str], since: Timestamp, timeout_s: float
    ) -> list[PrimaryAnswer]:
        """As `Primary.documents`; documents are whole, whatever the fields."""
        ends_at = monotonic() + timeout_s
        client = self._take()
        try:
            answers = _Answers(asked)
            starts = [
                _Stretch(partition, since.offset(partition), None)
                for partition in self._partitions(client, timeout_s)
            ]
            budget = self._look_ahead
            reading = _PartitionRanges(client, self._topic, starts, ends_at)
            for records in reading:
                answers.ahead(records)
                budget -= len(records)
                if budget < 0:
                    return answers.all(TOO_FAR)
            if reading.lost:
                return answers.all(RECORD_GONE)
            for stretches in _waves(answers.unproven()):
                for records in _PartitionRanges(client, self._topic, stretches, ends_at):
                    answers.proof(records)
            return answers.all("")
        except KafkaException as error:
            raise PrimaryUnreachableError(f"topic {self._topic} cannot be read: {error}") from error
        except KafkaUnavailableError as error:
            raise PrimaryUnreachableError(error.message, next_step=error.next_step) from error
        finally:
            client.unassign()
            self._give_back(client)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for client in free:
            client.close()

    def _partitions(self, client: Consumer, timeout_s: float) -> list[int]:
        """The topic's partitions.

        Raises:
            KafkaException: Kafka does not answer, or has no such topic.
        """
        topic = client.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        return sorted(topic.partitions)

    def _take(self) -> Consumer:
        with self._lock:
            if self._free:
                return self._free.pop()
        return consumer(
            self._settings, fetch_wait_max_ms=FETCH_WAIT_MS, max_partition_fetch_bytes=FETCH_BYTES
        )

    def _give_back(self, client: Consumer) -> None:
        with self._lock:
            if not self._closed:
                client.hand_over()
                self._free.append(client)
                return
        client.close()


class _Answers:
    """What is known of the documents that are asked for, while records come.

    Args:
        asked: different ids.
    """

    def __init__(self, asked: Sequence[AnsweredDocument]) -> None:
        self._asked = asked
        self._by_id = {one.id: one for one in asked}
        self._by_place: dict[tuple[int, int], list[AnsweredDocument]] = {}
        for one in asked:
            self._by_place.setdefault((one.partition, one.offset), []).append(one)
        self._found: dict[bytes, PrimaryAnswer] = {}

    def ahead(self, records: Iterable[_Record]) -> None:
        """Records past the snapshot, in offset order."""
        for record in records:
            one = self._by_id.get(record.key) if record.key is not None else None
            if one is None:
                continue
            if one.partition != record.partition and one.offset != UNKNOWN_OFFSET:
                self._found[one.id] = PrimaryAnswer(why=TWO_PARTITIONS)
            elif not self._found.get(one.id, _NOTHING).why:
                self._found[one.id] = PrimaryAnswer(record.value, record.offset + 1)

    def unproven(self) -> list[AnsweredDocument]:
        """Those that nothing came for, and whose place is known."""
        return [one for one in self._asked if one.id not in self._found and one.offset != UNKNOWN_OFFSET]

    def proof(self, records: Iterable[_Record]) -> None:
        """Records at the places of rows, among others."""
        for record in records:
            for one in self._by_place.get((record.partition, record.offset), ()):
                if one.id not in self._found:
                    value = record.value if record.key == one.id else None
                    self._found[one.id] = PrimaryAnswer(value, record.offset + 1)

    def all(self, why: str) -> list[PrimaryAnswer]:
        """The answers; `why` is said of all if it is not empty."""
        if why:
            return [PrimaryAnswer(why=why)] * len(self._asked)
        return [
            self._found.get(one.id)
            or PrimaryAnswer(why=NO_VERSION if one.offset == UNKNOWN_OFFSET else RECORD_GONE)
            for one in self._asked
        ]


_NOTHING: Final = PrimaryAnswer()


class _PartitionRanges:
    """Reads stretches of different partitions to their ends; iterates over what comes.

    Attributes:
        lost: stretches that do not begin on the log (any more).

    Raises:
        PrimaryUnreachableError: not within the time.
        KafkaException: a partition cannot be read.
    """

    def __init__(self, client: Consumer, topic: str, stretches: Sequence[_Stretch], ends_at: float) -> None:
        self._client = client
        self._ends_at = ends_at
        self._open = {one.partition: one for one in stretches}
        self.lost: set[int] = set()
        client.assign([TopicPartition(topic, one.partition, one.start) for one in stretches])

    def __iter__(self) -> _PartitionRanges:
        return self

    def __next__(self) -> list[_Record]:
        if not self._open:
            raise StopIteration
        left = self._ends_at - monotonic()
        if left <= 0:
            raise PrimaryUnreachableError(
                "the topic was not read in time", next_step="try again, or allow more with timeout_ms"
            )
        found: list[_Record] = []
        for message in drain(self._client, BATCH, min(left, POLL_S)):
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            stretch = self._open.get(partition)
            if stretch is None:
                continue
            if error is None:
                if stretch.start <= offset and (stretch.end is None or offset < stretch.end):
                    found.append(_Record(partition, offset, message.key(), message.value()))
                if stretch.end is not None and offset + 1 >= stretch.end:
                    del self._open[partition]
            elif error.code() == KafkaError._PARTITION_EOF:
                del self._open[partition]
            elif error.code() in _OUT_OF_RANGE:
                self.lost.add(partition)
                del self._open[partition]
            elif not error.retriable():
                raise KafkaException(error)
        return found


def _waves(places: Sequence[AnsweredDocument]) -> list[list[_Stretch]]:
    """Stretches that have all places in them, grouped so that each group has one of a partition at most."""
    runs: dict[int, list[_Stretch]] = {}
    for partition, offset in sorted((one.partition, one.offset) for one in places):
        of_partition = runs.setdefault(partition, [])
        if of_partition and offset - (of_partition[-1].end or 0) <= RUN_GAP:
            of_partition[-1] = of_partition[-1]._replace(end=offset + 1)
        else:
            of_partition.append(_Stretch(partition, offset, offset + 1))
    longest = max(map(len, runs.values()), default=0)
    return [[some[at] for some in runs.values() if at < len(some)] for at in range(longest)]
