"""What the driver of a build has done: its journal, in Kafka, so that a driver on any machine goes on (R54).

Theory of operation
===================
The topic `<cluster>.builds` is compacted, and a build's journal is one record under its id, whole each time
(as Kafka Connect keeps the offsets of its sources). A driver first shuts out every other one of its build
(`keytide.kafka.fenced_writer`), then reads, and from then on writes it before the ends of a micro-batch are
sent, and after. So of two drivers at once (a coordinator that was cut off from Kafka still has its own) only
the later one can begin a micro-batch that is not written down; the earlier one may at most send the ends of
the one that is, which the later one does again as it is, and slices take either.

Kafka may shut a driver out though there is no other one. It then looks: nobody else has written, so it fences
once more and goes on.

Journals of builds that are over are removed by drivers that come later, when they read the topic anyway.
Earlier releases kept them on the coordinator's machine, in `progress.json` and Spark's checkpoint; a build
that was under way then is taken over from there, once.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from keytide.catalog.catalog import Catalog
from keytide.errors import KeytideError, RetryableError
from keytide.kafka.admin import REQUEST_TIMEOUT_S, KafkaUnavailableError, admin, list_offsets
from keytide.kafka.fenced_writer import FencedWriter, ShutOutError
from keytide.kafka.topics import TopicReader
from keytide.model.timestamp import Timestamp
from keytide.model.topics import Topics
from keytide.settings.settings import Settings
from streaming.core.micro_batches import over
from streaming.core.sizing import SizedBatch
from streaming.drivers.failures import StoppedError
from streaming.drivers.outage import Outage

log = logging.getLogger(__name__)

RETRY_S: Final = 0.2
READ_WAIT_MS: Final = 50
"""The end of the topic is a transaction's marker, which only the end-of-partition event tells; the broker
gives it after this time."""


class JournalLostError(KeytideError):
    """Kafka does not have the journal of the build; it must begin again."""

    problem_type = "journal-lost"


class Journal(msgspec.Struct, rename={"newest": "piece"}):
    """What was done through all starts of a build's driver.

    Attributes:
        first_read_at: milliseconds, 0 before anything was read (R26).
        begin: the offsets that reading began at; None before that is settled.
        nothing_to_read: where the source began and ended when the build turned out to have nothing to read:
            then micro-batch 0 is empty.
        read: the end of the last micro-batch whose ends may have been sent, with leader epochs
            (`streaming.core.log_identity`).
        table_read: the table, or the layout, that the build begins with is in the queues, as micro-batch 0.
        table_documents: rows of it.
        newest: the newest micro-batch whose ends may have been sent; None before the first (or a table's).
        size: documents that the next driver's first micro-batch has; 0 before any was begun.
    """

    first_read_at: int = 0
    documents: int = 0
    bytes: int = 0
    entries: dict[str, int] = {}
    skipped: dict[str, dict[str, int]] = {}
    begin: dict[int, int] | None = None
    nothing_to_read: dict[int, int] | None = None
    read: Timestamp = Timestamp()
    table_read: bool = False
    table_documents: int = 0
    newest: SizedBatch | None = None
    size: int = 0
    left_out: dict[str, dict[str, int]] = {}

    @property
    def pending(self) -> SizedBatch | None:
        """A micro-batch that some slices may have, and others not: it comes first, as it is."""
        return self.newest if self.newest is not None and not self.newest.done else None

    @property
    def finished(self) -> int:
        """Number of the last micro-batch that is done, -1 when none."""
        return max(self.newest.finished if self.newest else -1, 0 if self.table_read else -1)


class JournalKeeper(Protocol):
    """Where the journal of a build is between starts of its driver."""

    def load(self) -> Journal:
        """What was kept last; an empty one when nothing was. From then on no other keeper of the build can
        keep anything.

        Raises:
            RetryableError: it cannot be had now.
        """

    def keep(self, journal: Journal) -> None:
        """Keep this one, whole or not at all.

        Raises:
            RetryableError: it is not known whether it is kept, or another one has loaded since.
        """


class KafkaJournal:
    """Keeps it in Kafka. Any thread may keep.

    Args:
        catalog: the dictionary as it is now.
        left: folder in which earlier releases kept the journal.
        stopping: set when the driver is to end.
    """

    def __init__(
        self,
        settings: Settings,
        build: str,
        catalog: Callable[[], Catalog],
        left: EarlierJournal,
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._build = build
        self._catalog = catalog
        self._left = left
        self._stopping = stopping
        self._lock = threading.Lock()
        self._topic = Topics(settings.cluster).builds
        self._writer = FencedWriter(settings, self._topic, f"{settings.cluster}-build-{build}", stopping)
        self._kept: bytes | None = None

    def load(self) -> Journal:
        with self._lock:
            try:
                self._writer.fence()
                found = read_journals(self._settings)
                self._kept = found.get(self._build)
                self._sweep(found)
            finally:
                self._writer.hand_over()
        journal = msgspec.json.decode(self._kept, type=Journal) if self._kept else self._left.load()
        if self._kept is None and journal is not None:
            self.keep(journal)
        self._left.remove()
        return journal or Journal()

    def keep(self, journal: Journal) -> None:
        data = msgspec.json.encode(journal)
        outage = Outage(2 * self._settings.build.kafka_away_s)
        with self._lock:
            try:
                while not self._try(data):
                    if self._stopping.wait(RETRY_S):
                        raise StoppedError
                    if outage.over(0, time.monotonic()):
                        raise KafkaUnavailableError(f"{self._topic} is not written")
            finally:
                self._writer.hand_over()

    def _try(self, data: bytes) -> bool:
        """Whether it is kept now."""
        try:
            if self._writer.shut_out:
                self._writer.fence()
                self._check(data)
            self._writer.write([(self._build, data)])
        except KafkaUnavailableError as away:
            log.warning("the journal of build %s is not kept yet: %s", self._build, away.message)
            return False
        except ShutOutError as shut_out:
            log.warning("Kafka has shut the driver of build %s out: %s", self._build, shut_out.message)
            return False
        self._kept = data
        return True

    def _check(self, data: bytes) -> None:
        """Nobody else has written: what is there is what was kept last, or (unheard) is to be kept now."""
        if read_journals(self._settings).get(self._build) not in (self._kept, data):
            raise RetryableError(f"another driver works on build {self._build}")

    def _sweep(self, found: Mapping[str, bytes]) -> None:
        """Remove the journals of builds that are over. (Should it fail, the next driver does it.)"""
        catalog = self._catalog()
        gone = [one for one in found if one != self._build and over(catalog, one, self._build)]
        if gone:
            with contextlib.suppress(KafkaUnavailableError, ShutOutError):
                self._writer.write([(one, None) for one in gone])


def read_journals(settings: Settings) -> dict[str, bytes]:
    """The journals of all builds, encoded.

    Raises:
        KafkaUnavailableError: they cannot be read now.
    """
    topic, deadline = Topics(settings.cluster).builds, time.monotonic() + REQUEST_TIMEOUT_S
    with admin(settings) as client:
        # Not to where transactions of other builds end it now: a record of this one's may be behind.
        end = list_offsets(client, topic, [0], read_committed=False)[0]
    found: dict[str, bytes] = {}
    with contextlib.closing(TopicReader(settings, topic, {0: 0}, fetch_wait_max_ms=READ_WAIT_MS)) as reader:
        while reader.positions.get(0, -1) < end:
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(f"{topic} was not read to its end {end}")
            for record in reader.poll(0.1):
                key, value = (record.key() or b"").decode(), record.value()
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
    return found


class EarlierJournal:
    """What an earlier release has left on this machine.

    Args:
        folder: of the build's driver.
        begin: where reading began, says Spark's checkpoint there; None when it is not there.
    """

    def __init__(self, folder: Path, begin: Callable[[Path], Mapping[int, int] | None]) -> None:
        self._file = folder / "progress.json"
        self._checkpoint = folder / "checkpoint"
        self._begin = begin

    def load(self) -> Journal | None:
        """None when there is none, or not all of it."""
        try:
            journal = msgspec.json.decode(self._file.read_bytes(), type=Journal)
        except FileNotFoundError:
            return None
        begin = self._begin(self._checkpoint)
        journal.begin = None if begin is None else dict(begin)
        begun = begin is not None or journal.table_read or journal.nothing_to_read is not None
        return journal if begun else None

    def remove(self) -> None:
        """It counts no more: were that release to come back, the build would begin again."""
        self._file.unlink(missing_ok=True)
        shutil.rmtree(self._checkpoint, ignore_errors=True)
