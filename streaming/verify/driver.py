"""The driver of one verification: what the job is, its progress, its report, its end.

Theory of operation
===================
The main thread verifies (`verification`). One thread follows the metadata, so that nodes that move are found
and a job that is cancelled ends; one reports twice a second. The report is written before DONE is said. There
is no checkpoint: a driver that is started again begins again, with a newer snapshot.

A driver that is asked to end has three seconds, and holds something on slices. So it ends what it does at
once, gives back what it holds, and only then ends Spark. The same order holds for every other end. What it
came to is said before Spark ends, and said again until it has: a driver that is silent is taken for dead. But
not for ever, or a Spark that does not end would never be given up.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from keytide.catalog.catalog import Catalog, IndexRecord, JobRecord
from keytide.errors import RetryableError
from keytide.kafka.clients import AdminClient
from keytide.kafka.identity import KafkaIdentity
from keytide.kafka.topics import CatalogReader, admin, describe_topics, list_offsets, topic_config
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.process.sync_points import reach
from keytide.settings.settings import Settings
from keytide.wire.messages import JobProgress
from streaming.core import micro_batches as core
from streaming.drivers import failures
from streaming.drivers.progress import DriverReporter, StoppedError
from streaming.verify import report
from streaming.verify.documents import Scene, VerificationResult
from streaming.verify.slices import Pin, Slices
from streaming.verify.source import DriverReader, Engine, SourceReader, SparkReader
from streaming.verify.verification import Verification

log = logging.getLogger(__name__)

FOLLOW_S: Final = 0.2
STOP_S: Final = 0.1
"""How soon a driver that is asked to end begins to."""
END_S: Final = 60.0
"""For so long the end of Spark, which takes some seconds, is waited for."""


class MetadataFollower:
    """The metadata as it is now, read in a thread of its own.

    Args:
        stop: set when the job is not wanted any more.
    """

    def __init__(self, settings: Settings, job: str, stop: threading.Event) -> None:
        KafkaIdentity(settings).look()
        self._reader = CatalogReader(settings)
        self._job = job
        self._stop = stop
        self._end = threading.Event()
        self._reader.start()
        self._catalog = self._reader.snapshot()
        self._reader.hand_over()
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._thread.start()

    def catalog(self) -> Catalog:
        """The dictionary as last read; not to be changed."""
        return self._catalog

    def wanted(self) -> JobRecord:
        """The job's record.

        Raises:
            StoppedError: it is not to be done.
        """
        record = self._catalog.job(self._job)
        if record is None or record.state != "RUNNING":
            raise StoppedError
        return record

    def rate_limit(self) -> int:
        """Documents per second that the build may read that waits for the job; 0 for no limit."""
        job = self._catalog.job(self._job)
        build = self._catalog.build(job.build) if job is not None else None
        return build.rate_limit if build is not None else 0

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                changed = self._reader.poll(FOLLOW_S)
            except RetryableError as error:
                log.warning("the metadata cannot be read: %s", error.message)
                self._end.wait(FOLLOW_S)
                continue
            if changed:
                self._catalog = self._reader.snapshot()
                job = self._catalog.job(self._job)
                if job is None or job.state != "RUNNING":
                    self._stop.set()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._reader.close()


class KafkaSource:
    """What Kafka says of a keyspace (`streaming.verify.documents.SourceQuestions`)."""

    def __init__(self, client: AdminClient, following: MetadataFollower, keyspace: str) -> None:
        self._admin = client
        self._following = following
        self._keyspace = keyspace

    def _partitions(self) -> range:
        record = self._following.catalog().keyspace(self._keyspace)
        if record is None:
            raise failures.BuildImpossibleError(f"keyspace {self._keyspace} is not in the metadata")
        return range(record.partitions)

    def earliest(self) -> dict[int, int]:
        return list_offsets(self._admin, self._keyspace, self._partitions(), earliest=True)

    def ends(self) -> dict[int, int]:
        return list_offsets(self._admin, self._keyspace, self._partitions())

    def deletions_kept_ms(self) -> int | None:
        config = topic_config(self._admin, self._keyspace)
        if "compact" not in config.get("cleanup.policy", ""):
            return None
        return int(config["delete.retention.ms"])

    def check(self, timestamp: Timestamp, incarnation: int) -> None:
        info = describe_topics(self._admin, [self._keyspace]).get(self._keyspace)
        if info is None or (timestamp.topic_id and info.id != timestamp.topic_id):
            raise RetryableError(f"topic {self._keyspace} is not the one that the index is of")
        record = self._following.catalog().keyspace(self._keyspace)
        if record is not None and record.incarnation > incarnation:
            raise RetryableError(f"keyspace {self._keyspace} was rolled back meanwhile")
        ends = self.ends()
        short = [p for p, place in timestamp.places.items() if ends.get(p, place.offset) < place.offset]
        if short:
            raise RetryableError(f"partitions {short} of {self._keyspace} end below the snapshot")


class VerifyDriver:
    """Runs one verification to its end.

    Args:
        settings: `data_dir` has the job's folder.
        job: the job's id.
        stop: set to have the driver end at the next opportunity.
    """

    def __init__(self, settings: Settings, job: str, stop: threading.Event) -> None:
        self._settings = settings
        self._id = job
        self._stop = stop
        self._run_id = f"{os.getpid()}-{now_ms()}"
        self.folder: Path = settings.data_dir.resolve() / "jobs" / job
        self.folder.mkdir(parents=True, exist_ok=True)
        self._state, self._detail, self._error, self._share = "RUNNING", "starts", "", 0.0
        self._snapshot, self._total = -1, 0
        self._counts: dict[str, int] = {}
        self._verification: Verification | None = None
        self._engine: Engine | None = None
        self._rate: Callable[[], int] = lambda: 0

    def run(self) -> int:
        """Run to the end; returns the exit status (`streaming.core.micro_batches`)."""
        reporter = DriverReporter(self._settings, self._report)
        try:
            self._work()
            reach("verify-done")
            return core.EXIT_PASSED
        except StoppedError:
            log.info("job %s: the driver was stopped", self._id)
            return core.EXIT_STOPPED
        except Exception as error:
            if self._stop.is_set():
                return core.EXIT_STOPPED
            failure = failures.diagnose(error)
            log.error("job %s: %s: %s", self._id, failure.reason, failure.message)
            log.debug("job %s", self._id, exc_info=error)
            self._error = f"{failure.reason}: {failure.message}"
            self._state = "FAILED" if failure.never else "RUNNING"
            return core.EXIT_NEVER if failure.never else core.EXIT_RETRY
        finally:
            reporter.send()
            ending = threading.Thread(target=self._end_spark, name="end", daemon=True)
            ending.start()
            ending.join(END_S)
            reporter.close()

    def _end_spark(self) -> None:
        if self._engine is not None:
            try:
                self._engine.close()
            except Exception as error:  # its JVM has died: the job is over, whatever it came to
                log.debug("job %s: Spark had ended before", self._id, exc_info=error)

    def _report(self) -> JobProgress:
        verification = self._verification
        documents = verification.documents if verification is not None else 0
        share = self._share
        if self._total and 0.02 <= share < 0.9:
            share = 0.02 + 0.88 * min(1.0, documents / self._total)
        return JobProgress(
            job=self._id,
            run=self._run_id,
            state=self._state,
            snapshot=self._snapshot,
            percent=100 * share,
            documents=documents,
            documents_total=self._total,
            counts=self._counts,
            detail=self._detail,
            error=self._error,
            sent_at=now_ms(),
        )

    def _tell(self, detail: str, share: float) -> None:
        self._detail, self._share = detail, share

    def _work(self) -> None:
        with ExitStack() as stack:
            following = MetadataFollower(self._settings, self._id, self._stop)
            stack.callback(following.close)
            job = following.wanted()
            self._rate = following.rate_limit
            indexes = indexes_of(following.catalog(), job)
            slices = Slices(following.catalog, [index.id for index in indexes])
            stack.callback(slices.close)
            began = now_ms()
            scene = Scene(
                keyspace=job.keyspace,
                indexes=indexes,
                slices=slices,
                facts=KafkaSource(stack.enter_context(admin(self._settings)), following, job.keyspace),
                limit=self._settings.verify.max_differences,
                tell=self._tell,
                stopped=self._stop.is_set,
            )
            origins = has_origin(following.catalog(), indexes)
            self._verification = Verification(scene, self._reader, origins=origins)
            pin = slices.pin(self._stop.is_set)
            self._snapshot = pin.number
            stack.enter_context(self._held(slices, pin))
            reach("verify-pinned")
            outcome = self._verification.run(pin)
            reach("verify-compared")
            self._write(job, indexes, outcome, began)

    @contextmanager
    def _held(self, slices: Slices, pin: Pin) -> Iterator[None]:
        """Hold a snapshot, until the end or until the driver is asked to end: what slices are being asked of
        it ends then, too."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(STOP_S):
                if self._stop.is_set():
                    slices.release(pin)
                    return

        watching = threading.Thread(target=watch, name="stop", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
            slices.release(pin)

    def _reader(self, documents: int) -> SourceReader:
        self._total = documents
        if documents <= self._settings.verify.local_documents:
            return DriverReader(self._settings, self._stop, self._rate)
        if self._engine is None:
            self._engine = Engine(self._settings, self.folder / "scratch", self._stop, self._rate)
        return SparkReader(self._engine)

    def _write(
        self, job: JobRecord, indexes: Sequence[IndexRecord], outcome: VerificationResult, began: int
    ) -> None:
        found = report.summary(job, indexes, outcome, began, now_ms())
        report.write(self.folder, found, outcome.differences, indexes)
        self._counts = outcome.counts
        if not found["complete"]:
            self._detail = "more differs than is listed"
        self._share, self._state = 1.0, "DONE"
        log.info("job %s: %s", self._id, self._counts or "nothing differs")


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
