"""Claiming a term, and writing to the metadata topic under it.

Theory of operation. Only one coordinator may write the dictionary: all of a cluster use one transactional id
(`keytide.kafka.fenced_writer`). So a claim is: fence, read the dictionary to its end (nobody else can add to
it now), write the next term. A coordinator that sees a higher term in the topic stops; readers ignore what it
may still send of its lower term. When to claim: `coordinator.election.standby`.

Being fenced alone does not mean that another one leads. So a coordinator that was fenced asks the dictionary.
While no higher term is there it fences whoever has the id now, looks again, and goes on: of two that fence
each other the one with the highest term leads, and one that has not written its term yet finds its claim
refused, and stands by again. Records are whole, so what it does not know the fate of is written once more.

Of several that stand by and see the leader end, one claims first. Another one that finds a term which it did
not see end leaves it alone, so that a leader that ends is followed by one, not by each in turn.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import secrets
import threading
import uuid
from collections.abc import Sequence

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import ClusterRecord, Record, TermRecord, encode_record, record_key
from keytide.errors import CallerError
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.fenced_writer import FencedWriter, NeverAnsweredError, ShutOutError
from keytide.kafka.topics import CatalogReader
from keytide.model.protocol import SPOKEN
from keytide.model.topics import Topics
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0


class FencedError(CallerError):
    """Another coordinator of this cluster has taken over."""

    problem_type = "coordinator-fenced"
    status = 503

    def __init__(self, cluster: str, detail: str) -> None:
        super().__init__(
            f"another coordinator of cluster {cluster!r} has taken over ({detail}); this one stops",
            next_step="start it again to have it stand by; another cluster needs another name (`cluster`)",
        )


class MetadataWriter:
    """Writes records in transactions. One thread at a time.

    Args:
        settings: where Kafka is; its `cluster` names the topic and the transactional id.

    Attributes:
        term: the term under which it writes; 0 while it is being claimed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        topic = Topics(settings.cluster).metadata
        self._writer = FencedWriter(settings, topic, f"{settings.cluster}-coordinator", self._stopping)
        self.term = 0

    def fence(self) -> None:
        """Shut every other coordinator out.

        Raises:
            KafkaUnavailableError: no answer in time.
        """
        self._writer.fence()

    def withdraw(self) -> None:
        """Leave the transactional id to whom it was taken from, who fences this one in turn."""
        self._writer.shut_out = True

    def write(self, records: Sequence[tuple[str, Record | None]]) -> int:
        """Write records (None: a tombstone) in one transaction; tries until it is committed, or `stop` is
        called.

        Returns:
            The offset behind the last of them, as Kafka has told it; -1 when it has not.

        Raises:
            FencedError: another coordinator has taken over; nothing was written.
            KafkaUnavailableError: stopped while Kafka was away; it is not known whether it was written.
        """
        pause_s = _RETRY_PAUSE_S
        while (end := self._try(records)) is None:
            if self._stopping.wait(pause_s):
                raise KafkaUnavailableError("stopped while Kafka did not take metadata")
            if self._writer.shut_out:  # (each look makes clients)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                if pause_s == _LONGEST_PAUSE_S:
                    gc.collect()  # (those that were never answered lie in cycles until then)
        return end

    def _try(self, records: Sequence[tuple[str, Record | None]]) -> int | None:
        """One attempt; None when it was undone and is to be tried again."""
        try:
            if self._writer.shut_out:
                self._regain()
            return self._writer.write(
                [(key, None if record is None else encode_record(record)) for key, record in records]
            )
        except KafkaUnavailableError as away:
            log.warning("metadata cannot be written yet: %s", away.message)
        except ShutOutError as shut_out:
            if not self.term and isinstance(shut_out, NeverAnsweredError):
                raise KafkaUnavailableError(shut_out.message) from shut_out
            if not self.term:
                raise FencedError(self._settings.cluster, shut_out.message) from shut_out
            log.warning("Kafka has given up a transaction of this coordinator: %s", shut_out.message)
        return None

    def _regain(self) -> None:
        """Go on under the same term, if nobody has claimed a higher one.

        Raises:
            FencedError: somebody has.
            KafkaUnavailableError: no answer in time.
        """
        self._check_term()  # before anybody is fenced who leads
        self.fence()
        self._writer.shut_out = True  # until it is known that nobody has claimed one meanwhile
        self._check_term()
        self._writer.shut_out = False
        log.info("no other coordinator has claimed a term: this one goes on with term %d", self.term)

    def _check_term(self) -> None:
        term = read_catalog(self._settings).term
        if term > self.term:
            raise FencedError(self._settings.cluster, f"term {term}")

    def hand_over(self) -> None:
        """Another thread writes from now on."""
        self._writer.hand_over()

    def stop(self) -> None:
        """Make a `write` that waits for Kafka give up."""
        self._stopping.set()


def claim_term(
    settings: Settings, writer: MetadataWriter, holder: str, ended: int | None = None
) -> tuple[int, Catalog]:
    """Become the leader: fence the others, read the dictionary, write the next term.

    Args:
        holder: who claims it (`standby.this_process`).
        ended: the highest term that is known to be over; None to claim whoever leads.

    Returns:
        The term, and the dictionary (the claim included).

    Raises:
        KafkaUnavailableError: Kafka is away.
        FencedError: another one claimed at the same time.
    """
    writer.term = 0
    if ended is not None:
        _leave_alone(settings, read_catalog(settings), ended)
    writer.fence()
    catalog = read_catalog(settings)
    if ended is not None and catalog.term > ended:
        writer.withdraw()
        _leave_alone(settings, catalog, ended)
    now = now_ms()
    records: list[Record] = [TermRecord(catalog.term + 1, holder, now, SPOKEN)]
    if catalog.cluster is None:
        records.append(ClusterRecord(uuid.uuid4().hex, secrets.token_hex(32), now))
    writer.write([(record_key(record), record) for record in records])
    for record in records:
        catalog.put(record_key(record), record)
    catalog.offset += len(records) + 1  # and the transaction's marker
    writer.term = catalog.term
    return catalog.term, catalog


def _leave_alone(settings: Settings, catalog: Catalog, ended: int) -> None:
    if catalog.term > ended:
        raise FencedError(settings.cluster, f"term {catalog.term} was claimed meanwhile")


def read_catalog(settings: Settings) -> Catalog:
    """The dictionary as it is now.

    Raises:
        KafkaUnavailableError: no answer in time.
    """
    with contextlib.closing(CatalogReader(settings)) as reader:
        return reader.start(float(settings.coordinator.request_timeout_s)).copy()
