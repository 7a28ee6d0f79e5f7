"""What the driver of a build has done: its journal, in Kafka, so that a driver on any machine goes on (R54).
Pure but for waiting; Kafka is an argument (`streaming.drivers.kafka_journal`).

Theory of operation
===================
The topic `<cluster>.builds` is compacted, and a build's journal is one record under its id, whole each time
(as Kafka Connect keeps the offsets of its sources), with the attempt of the driver that wrote it: which start
of which leader. A driver shuts out every other one of its build (`keytide.kafka.fenced_writer`), writes
something to learn how far the topic goes at least, reads it to there, and writes what it has found under its
own attempt. From then on it writes the journal before the ends of a micro-batch are sent, and after.

Of two drivers at once (a coordinator that was cut off from Kafka still has its own, and may start others) the
one with the higher attempt goes on. Whoever is shut out, fences in turn and looks: where a higher attempt has
written it ends for good, else it goes on; Kafka shuts out, too, who has no other one. So the lower one can
begin no micro-batch that is not written down once the higher one has read. It may at most send the ends of
the one that is, which the higher one does again as it is, and slices take either.

Journals of builds that are over are removed by drivers that come later, when they read the topic anyway.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from keytide.errors import KeytideError
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.fenced_writer import ShutOutError
from keytide.model.timestamp import Timestamp
from keytide.wire.entry_sums import NO_ENTRIES, EntrySums
from streaming.core.sizing import SizedBatch
from streaming.drivers.failures import StoppedError
from streaming.drivers.outage import Outage

log = logging.getLogger(__name__)

_T = TypeVar("_T")
RETRY_S: Final = 0.2
END: Final = "end"
"""Key of a tombstone that says nothing: where it stands, the topic goes to at least."""


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
        sums: of each target, of what was projected for it in the first `summed` micro-batches; [] for none.
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
    sums: list[EntrySums] = []
    summed: int = 0

    def add_sums(self, batch: int, sums: Sequence[EntrySums] | None) -> None:
        """Take in those of a micro-batch, once; None where they are not known. What comes behind a gap is
        left out: then nobody knows what all of it sums up to."""
        if sums is not None and batch == self.summed:
            before = self.sums or [NO_ENTRIES] * len(sums)
            self.sums = [one.plus(more) for one, more in zip(before, sums, strict=True)]
            self.summed = batch + 1

    def projected(self, targets: int) -> list[EntrySums] | None:
        """Of each target, of all that was projected for it; None when that is not known, or proves nothing: a
        later micro-batch may have had slices remove what an earlier one brought, and one that did not would
        store exactly what was projected."""
        if self.nothing_to_read is not None:
            return [NO_ENTRIES] * targets
        whole = self.finished == 0 and self.summed == 1
        return list(self.sums) if whole and len(self.sums) == targets else None

    @property
    def pending(self) -> SizedBatch | None:
        """A micro-batch that some slices may have, and others not: it comes first, as it is."""
        return self.newest if self.newest is not None and not self.newest.done else None

    @property
    def finished(self) -> int:
        """Number of the last micro-batch that is done, -1 when none."""
        return max(self.newest.finished if self.newest else -1, 0 if self.table_read else -1)


class DisplacedError(StoppedError):
    """A later driver works on the build."""


class JournalRecord(msgspec.Struct):
    """A build's journal in the topic.

    Attributes:
        attempt: which start of a driver wrote it (`keytide.process.attempt`).
    """

    attempt: tuple[int, int]
    journal: Journal


class JournalKeeper(Protocol):
    """Where the journal of a build is between starts of its driver."""

    def load(self) -> Journal:
        """What was kept last; an empty one when nothing was. No earlier start of the driver can keep anything
        from then on.

        Raises:
            RetryableError: it cannot be had now.
            DisplacedError: a later driver works on the build.
        """

    def keep(self, journal: Journal) -> None:
        """Keep this one, whole or not at all.

        Raises:
            RetryableError: it is not known whether it is kept.
            DisplacedError: a later driver works on the build.
        """


class JournalTopic(Protocol):
    """The journals of all builds, as one driver may write its own.

    Attributes:
        shut_out: nothing can be written before the next `fence`.
    """

    shut_out: bool

    def fence(self) -> None:
        """Shut every other driver of the build out.

        Raises:
            KafkaUnavailableError: no answer in time.
        """

    def write(self, records: Sequence[tuple[str, bytes | None]]) -> int:
        """Write records (None: a tombstone), all or none. Returns the offset behind the last of them, -1 when
        that is not known.

        Raises:
            ShutOutError: it is not known whether they were written; so nothing will be.
            KafkaUnavailableError: the same, and it may be tried again.
        """

    def read(self, end: int) -> dict[str, bytes]:
        """The newest record of each key, as far as an offset at least.

        Raises:
            KafkaUnavailableError: they cannot be read now.
        """

    def hand_over(self) -> None:
        """Another thread goes on."""


class EarlierKeeper(Protocol):
    """What an earlier release has left on this machine."""

    def load(self) -> Journal | None:
        """None when there is none, or not all of it."""

    def remove(self) -> None:
        """It counts no more."""


class FencedJournal:
    """Keeps the journal of a build in the topic. Any thread may keep.

    Args:
        attempt: which start of the driver this is.
        earlier: taken over when there is nothing in the topic.
        over: of some builds those that are over.
        away_s: Kafka may be away so long while something is kept.
        wait: waits so many seconds; True when the driver is to end.
        now: seconds, of a clock that only goes on.
    """

    def __init__(
        self,
        topic: JournalTopic,
        build: str,
        attempt: tuple[int, int],
        earlier: EarlierKeeper,
        over: Callable[[Iterable[str]], list[str]],
        away_s: float,
        wait: Callable[[float], bool],
        now: Callable[[], float],
    ) -> None:
        self._topic = topic
        self._build = build
        self._attempt = attempt
        self._earlier = earlier
        self._over = over
        self._away_s = away_s
        self._wait = wait
        self._now = now
        self._lock = threading.Lock()
        self._found: Mapping[str, bytes] | None = None
        self._displaced = False

    def load(self) -> Journal:
        journal = self._insist(self._take, 0.0)  # (who loads waits, and begins anew)
        self._earlier.remove()
        return journal

    def keep(self, journal: Journal) -> None:
        self._insist(lambda found: self._write(journal), self._away_s)

    def _insist(self, work: Callable[[Mapping[str, bytes]], _T], away_s: float) -> _T:
        """Do something that writes, as the only one who may, until it is done.

        Args:
            work: gets what was found in the topic.
        """
        outage = Outage(away_s)
        with self._lock:
            try:
                while True:
                    try:
                        return work(self._held())
                    except KafkaUnavailableError as away:
                        why = away.message
                    except ShutOutError as shut_out:
                        why = f"Kafka has shut the driver out: {shut_out.message}"
                    log.warning("the journal of build %s is not written yet: %s", self._build, why)
                    if outage.over(0, self._now()):
                        raise KafkaUnavailableError(
                            f"the journal of build {self._build} is not written: {why}"
                        )
                    if self._wait(RETRY_S):
                        raise StoppedError
            finally:
                self._topic.hand_over()

    def _held(self) -> Mapping[str, bytes]:
        """What is in the topic, when nobody else writes there any more: fenced once, and looked after each
        time, before anything of the journal is written."""
        if self._displaced:
            raise DisplacedError
        if self._topic.shut_out or self._found is None:
            self._found = None
            self._topic.fence()
            self._found = self._look()
        return self._found

    def _look(self) -> Mapping[str, bytes]:
        end = self._topic.write([(END, None)])
        if end < 0:
            raise KafkaUnavailableError("how far the topic goes is not known")
        found = self._topic.read(end)
        record = self._record(found)
        if record is not None and record.attempt > self._attempt:
            self._displaced = True
            log.warning(
                "build %s: start %d of term %d works on it; this one, %d of term %d, ends",
                *(self._build, *reversed(record.attempt), *reversed(self._attempt)),
            )
            raise DisplacedError
        return found

    def _record(self, found: Mapping[str, bytes]) -> JournalRecord | None:
        data = found.get(self._build)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=JournalRecord)
        except msgspec.MsgspecError as error:
            log.error("what is there as the journal of build %s is none: %s", self._build, error)
            return None

    def _take(self, found: Mapping[str, bytes]) -> Journal:
        """What was kept last, as this driver's from now on; with it go the journals that nobody needs."""
        record = self._record(found)
        journal = (record.journal if record else self._earlier.load()) or Journal()
        gone = self._over(one for one in found if one != self._build)
        self._write(journal, gone)
        return journal

    def _write(self, journal: Journal, gone: Sequence[str] = ()) -> None:
        data = msgspec.json.encode(JournalRecord(self._attempt, journal))
        self._topic.write([(self._build, data), *((one, None) for one in gone)])
