"""The driver of one verification: what the job is, its progress, its report, its end.

Theory of operation
===================
The main thread verifies (`verification`). One thread follows the metadata, so that nodes that move are found
and a job that is cancelled ends; one reports twice a second. The report is written before DONE is said. There
is no checkpoint: a driver that is started again begins again, with a newer snapshot.

A driver that is asked to end holds something on slices: it ends what it does at once, and gives that back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord, JobRecord
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.kafka.admin import admin
from keytide.model.protocol import SPOKEN
from keytide.process.clock import now_ms
from keytide.process.sync_points import reach
from keytide.process.worker import Worker, logged
from keytide.wire.messages import JobProgress
from streaming.drivers.engine import Engine, SparkEngine
from streaming.drivers.failures import StoppedError
from streaming.drivers.lifecycle import Driver, MetadataFollower
from streaming.slices.pins import Pin
from streaming.verify import report
from streaming.verify.documents import VerificationContext, VerificationResult
from streaming.verify.slices import SliceClient
from streaming.verify.source import KafkaSource, SourceReader
from streaming.verify.verification import Verification

STOP_S: Final = 0.1
"""How soon a driver that is asked to end begins to."""


class VerifyDriver(Driver):
    """Runs one verification to its end (`streaming.drivers.lifecycle.Driver`)."""

    kind = "job"

    def prepare(self) -> None:
        self._run_id = f"{os.getpid()}-{now_ms()}"
        self._state, self._detail, self._error, self._fraction = "RUNNING", "starts", "", 0.0
        self._snapshot, self._total = -1, 0
        self._counts: dict[str, int] = {}
        self._verification: Verification | None = None

    def failed(self, never: bool, note: str) -> None:
        self._error = note
        self._state = "FAILED" if never else "RUNNING"

    def report(self) -> JobProgress:
        verification = self._verification
        documents = verification.documents if verification is not None else 0
        fraction = self._fraction
        if self._total and 0.02 <= fraction < 0.9:
            fraction = 0.02 + 0.88 * min(1.0, documents / self._total)
        return JobProgress(
            job=self._id,
            run=self._run_id,
            state=self._state,
            snapshot=self._snapshot,
            percent=100 * fraction,
            documents=documents,
            documents_total=self._total,
            counts=self._counts,
            detail=self._detail,
            error=self._error,
            sent_at=self.sent_at(),
            attempt=self.attempt,
            protocol=SPOKEN,
        )

    def _tell(self, detail: str, fraction: float) -> None:
        self._detail, self._fraction = detail, fraction

    def work(self, held: ExitStack) -> None:
        indexes, context = self.open(held, self._settings.verify.max_differences, self._tell)
        began = now_ms()
        self._verification = Verification(context, self._reader)
        pin = context.slices.pin(self._stop.is_set)
        self._snapshot = pin.number
        with self._held(context.slices, pin):
            reach("verify-pinned")
            outcome = self._verification.run(pin)
            reach("verify-compared")
            self._write(indexes, outcome, began)
        reach("verify-done")

    def open(
        self, held: ExitStack, limit: int, tell: Callable[[str, float], None]
    ) -> tuple[tuple[IndexRecord, ...], VerificationContext]:
        """The indexes of the job, and what is worked with, closed by `held`.

        Args:
            limit, tell: as `VerificationContext` has them.

        Raises:
            StoppedError: the job is not to be done.
        """
        self._metadata = MetadataFollower(self._settings, self._stop_if_unwanted)
        held.callback(self._metadata.close)
        catalog = self._metadata.catalog()
        self._job = wanted_job(catalog, self._id)
        indexes = indexes_of(catalog, self._job)
        nodes = BlockingNodeClient(self._settings.security.tls_authority)
        slices = SliceClient(self._metadata.catalog, [index.id for index in indexes], nodes)
        held.callback(slices.close)
        client = held.enter_context(admin(self._settings))
        return indexes, VerificationContext(
            keyspace=self._job.keyspace,
            indexes=indexes,
            slices=slices,
            source=KafkaSource(client, self._metadata.catalog, self._job.keyspace),
            limit=limit,
            origins=has_origin(catalog, indexes),
            tell=tell,
            stopped=self._stop.is_set,
        )

    def _stop_if_unwanted(self, catalog: Catalog) -> None:
        try:
            self.check_led(catalog)
            wanted_job(catalog, self._id)
        except StoppedError:
            self._stop.set()

    def _rate_limit(self) -> int:
        """Documents per second that the build may read that waits for the job; 0 for no limit."""
        catalog = self._metadata.catalog()
        job = catalog.job(self._id)
        build = catalog.build(job.build) if job is not None else None
        return build.rate_limit if build is not None else 0

    @contextmanager
    def _held(self, slices: SliceClient, pin: Pin) -> Iterator[None]:
        """Hold a snapshot, until the end or until the driver is asked to end: what slices are being asked of
        it ends then, too."""

        def watch() -> None:
            while not watching.stopping.wait(STOP_S):
                if self._stop.is_set():
                    slices.release(pin)
                    return

        watching = Worker("stop", logged, watch)
        watching.open()
        try:
            yield
        finally:
            watching.close()
            slices.release(pin)

    def _reader(self, documents: int) -> SourceReader:
        self._total = documents
        return SourceReader(self._settings, self._engine_for(documents), self._rate_limit)

    def _engine_for(self, documents: int) -> Engine:
        """Spark where there is much, one session for all readings of the job; else this process."""
        local = documents <= self._settings.verify.local_documents
        if self.engine is not None and (local or isinstance(self.engine, SparkEngine)):
            return self.engine
        if local:
            return self.start_local()
        engine = self.start_spark(app="keytide-verify", connector=False)  # tasks read Kafka themselves
        engine.shuffle(2 * max(2, engine.parallelism))
        engine.warm_up()
        return engine

    def _write(self, indexes: Sequence[IndexRecord], outcome: VerificationResult, began: int) -> None:
        found = report.summary(self._job, indexes, outcome, began, now_ms())
        report.write(self.folder, found, outcome.differences, indexes)
        self._counts = outcome.counts
        if not found["complete"]:
            self._detail = "more differs than is listed"
        self._fraction, self._state = 1.0, "DONE"
        self.log.info("job %s: %s", self._id, self._counts or "nothing differs")


def wanted_job(catalog: Catalog, job: str) -> JobRecord:
    """The job's record.

    Raises:
        StoppedError: it is not to be done.
    """
    record = catalog.job(job)
    if record is None or record.state != "RUNNING":
        raise StoppedError
    return record


def indexes_of(catalog: Catalog, job: JobRecord) -> tuple[IndexRecord, ...]:
    """The indexes of a job that are still there, by id.

    Raises:
        StoppedError: none is.
    """
    found = [catalog.index(id_) for id_ in sorted(job.indexes)]
    indexes = tuple(index for index in found if index is not None and index.placement)
    if not indexes:
        raise StoppedError
    return indexes


def has_origin(catalog: Catalog, indexes: Sequence[IndexRecord]) -> bool:
    """Whether a build that filled a slice of these began with a table, or may have: nobody knows of one that
    is forgotten."""
    for index in indexes:
        for name in {index.build or "", *index.slice_builds.values()} - {""}:
            build = catalog.build(name)
            if build is not None and build.origin is not None:
                return True
    return False
