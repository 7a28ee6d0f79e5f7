"""The life of a driver: what it is told, when it stops, how it fails, what it reports.

Theory of operation
===================
A driver is `python -m streaming.<task> --<build or job> ID`. It is told by its settings, by the metadata,
which a thread of its own follows, and by SIGTERM. It works in the main thread, keeps its files in a folder of
its build or job (or in one of its own, while another driver that stands still has that), and is started again
by the coordinator unless its exit status says otherwise:

    0    it has done what it was to do
    1    something was away: start it again
    3    it can never work: the reason is in the last report and on stderr
    4, 5 what a build has read is lost, or the journal that says what it was: the build must begin again
    143  it was asked to stop, or is not wanted any more

However it ends, first what the driver holds elsewhere is given back, then what it came to is said, and only
then Spark ends, which takes some seconds: a driver that is asked to end has three. It is said again until
Spark has ended, for a driver that is silent is taken for dead. But not for ever, or a Spark that does not end
would never be given up.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, ClassVar, Final, Literal, TypeVar

from keytide.catalog.catalog import Catalog
from keytide.errors import RetryableError
from keytide.kafka.identity import KafkaIdentity
from keytide.kafka.topics import CatalogReader
from keytide.process.attempt import this_attempt
from keytide.process.clock import now_ms
from keytide.process.program import begin, log_to_stderr
from keytide.process.worker import Worker, logged
from keytide.settings.settings import Settings, load_settings
from keytide.wire.messages import BuildProgress, JobProgress
from streaming.core import micro_batches as core
from streaming.core.log_identity import ReadLostError
from streaming.drivers.engine import Engine, LocalEngine, SparkEngine
from streaming.drivers.failures import DriverFailure, StoppedError, diagnose
from streaming.drivers.journal import JournalLostError
from streaming.drivers.outage import Outage
from streaming.drivers.progress import DriverReporter
from streaming.drivers.without_pandas import do_without_pandas

FOLLOW_S: Final = 0.2
LOCK_LIMIT_S: Final = 5.0
"""For so long another driver may be ending before it is taken for one that stands still."""
BESIDE: Final = "beside-"
"""How folders begin that drivers have in place of one that is taken."""
LOCK_POLL_S: Final = 0.1
END_S: Final = 60.0
"""For so long the end of Spark, which takes some seconds, is waited for."""

log = logging.getLogger(__name__)

_EngineT = TypeVar("_EngineT", bound=Engine)


class MetadataFollower:
    """The metadata as it is now, read in a thread of its own.

    Args:
        changed: called in that thread with the dictionary, after each change.

    Raises:
        RetryableError: Kafka does not answer, or there is no coordinator yet.
    """

    def __init__(self, settings: Settings, changed: Callable[[Catalog], None] = lambda _: None) -> None:
        KafkaIdentity(settings).look()
        self._changed = changed
        self._outage_s = 2 * settings.build.kafka_away_s
        self._reader = CatalogReader(settings)
        try:
            self._reader.start()
        except BaseException:
            self._reader.close()
            raise
        self._catalog = self._reader.snapshot()
        self._reader.hand_over()
        self._worker = Worker("metadata", None, self._follow)
        self._worker.open()

    def catalog(self) -> Catalog:
        """The dictionary as last read; not to be changed.

        Raises:
            Exception: what ended reading it: it could not be read for twice `build.kafka_away_s`, or a bug.
        """
        self._worker.check()  # the driver must not go by old metadata for ever
        return self._catalog

    def _follow(self) -> None:
        outage = Outage(self._outage_s)
        while not self._worker.stopping.is_set():
            try:
                changes = self._reader.poll(FOLLOW_S)
            except RetryableError as error:
                if outage.over(0, time.monotonic()):
                    raise
                log.warning("the metadata cannot be read: %s", error.message)
                self._worker.stopping.wait(FOLLOW_S)
                continue
            outage = Outage(self._outage_s)
            if changes:
                self._catalog = self._reader.snapshot()
                self._changed(self._catalog)

    def close(self) -> None:
        self._worker.close()
        self._reader.close()


def exit_status(error: Exception, failure: DriverFailure) -> int:
    """How a driver that failed ends (`streaming.core.micro_batches`). Pure."""
    if isinstance(error, ReadLostError):
        return core.EXIT_READ_LOST
    if isinstance(error, JournalLostError):
        return core.EXIT_JOURNAL_LOST
    if isinstance(error, core.SeedUnfitError):
        return core.EXIT_SEED_UNFIT
    return core.EXIT_NEVER if failure.never else core.EXIT_RETRY


class Driver:
    """One start of a driver.

    Args:
        settings: `data_dir` has the folder of the build or job, at every start the same.
        of: id of the build or job.
        stop: set to have the driver end at the next opportunity.
        now: seconds, of a clock that only goes on.

    Attributes:
        kind: what it works for.
        stands_back: it runs behind other processes, by `build.nice`, from the beginning; False: it does so
            itself, when it knows by how much.
        folder: of its build or job, at every start the same: reports are there.
        files: of what it works with, and the next start does not need: that folder, or one in it.
        attempt: which start of it this is, for its reports.
        engine: what runs its tasks; None before the first.
        log: of its module.
    """

    kind: ClassVar[Literal["build", "job"]]
    stands_back: ClassVar[bool] = True

    def __init__(
        self,
        settings: Settings,
        of: str,
        stop: threading.Event,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._id = of
        self._stop = stop
        self._now = now
        self.engine: Engine | None = None
        self._locked: IO[str] | None = None
        self._said_at = 0
        self.attempt = this_attempt()
        self.log = logging.getLogger(type(self).__module__)
        self.folder: Path = settings.data_dir.resolve() / f"{self.kind}s" / of
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files = self.folder
        self.prepare()

    def prepare(self) -> None:
        """Make what reports are made of, before anything is done."""

    @property
    def title(self) -> str:
        """What it is called in its log."""
        return f"{self.kind} {self._id}"

    def _lock(self) -> None:
        """Take the lock of the build or job, so that two drivers never share its files: coordinators of one
        machine may share a folder. It is let go of when what runs the tasks has ended, or goes with the
        process.

        A driver that was stopped (SIGSTOP) keeps its lock, and must not hold up the one in its place: that
        takes a folder of its own. What both would write elsewhere is fenced there (R54).
        """
        deadline = self._now() + LOCK_LIMIT_S
        while not self._locks(self.folder):
            if self._now() > deadline:
                beside = self.folder / f"{BESIDE}{'.'.join(map(str, self.attempt))}"
                beside.mkdir(exist_ok=True)
                if not self._locks(beside):
                    raise RetryableError(f"another driver works on {self.title}, as the same start of it")
                self.files = beside
                self.log.warning(
                    "%s: another driver has not let go of its folder; this one works beside it", self.title
                )
                return
            if self._stop.wait(LOCK_POLL_S):
                raise StoppedError

    def _locks(self, folder: Path) -> bool:
        file = (folder / "lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._locked = file
        return True

    def check_led(self, catalog: Catalog) -> None:
        """End where another coordinator leads than the one that started this driver: it starts its own.

        Raises:
            StoppedError: it does.
        """
        term, _ = self.attempt
        if 0 < term < catalog.term:
            self.log.info("%s: term %d has begun, this driver is of term %d", self.title, catalog.term, term)
            raise StoppedError

    def sent_at(self) -> int:
        """For a report: milliseconds that do not go back when the clock is set back."""
        self._said_at = max(self._said_at, now_ms())
        return self._said_at

    def run(self) -> int:
        """Run to the end; returns the exit status."""
        self._reporter = DriverReporter(self._settings, self.report)
        try:
            self._lock()
            with ExitStack() as held:
                self.work(held)
            return core.EXIT_PASSED
        except StoppedError:
            self.log.info("%s: the driver was stopped", self.title)
            return core.EXIT_STOPPED
        except Exception as error:
            if self._stop.is_set():
                return core.EXIT_STOPPED  # work that is cancelled fails in many ways
            failure = self.diagnose(error)
            self.log.error("%s: %s: %s", self.title, failure.reason, failure.message)
            self.log.debug("%s", self.title, exc_info=error)
            self.failed(failure.never, f"{failure.reason}: {failure.message}")
            return exit_status(error, failure)
        finally:
            self._reporter.send()
            ending = Worker("end", logged, self._end)
            ending.open()
            ending.wait(END_S)
            self._reporter.close()

    def _end(self) -> None:
        if self.engine is not None:
            try:
                self.engine.close()
            except Exception as error:  # its JVM has died: it is over, whatever it came to
                self.log.debug("%s: Spark had ended before", self.title, exc_info=error)
        if self.files != self.folder:
            shutil.rmtree(self.files, ignore_errors=True)
        if self._locked is not None:
            self._locked.close()

    def start_spark(
        self, scratch: str = "scratch", *, app: str = "", rows: bool = False, connector: bool = True
    ) -> SparkEngine:
        """Start Spark, which is ended with the driver; as `SparkEngine`, with its files in a folder of the
        driver's.

        Raises:
            StoppedError: the driver is asked to end.
        """
        folder = self.files / scratch
        engine = SparkEngine(self._settings, folder, self._stop, app=app, rows=rows, connector=connector)
        return self._begun(engine)

    def start_local(self, most_bytes: int = 0) -> LocalEngine:
        """Have tasks run in this process, as `LocalEngine`; Spark, or another one, ends."""
        return self._begun(LocalEngine(self._stop, most_bytes))

    def _begun(self, engine: _EngineT) -> _EngineT:
        before, self.engine = self.engine, engine
        if before is not None:
            before.close()
        return engine

    def work(self, held: ExitStack) -> None:
        """Do what the driver is for.

        Args:
            held: takes what must be given back, or closed, however that ends.

        Raises:
            StoppedError: it is not wanted any more, or asked to end.
            Exception: it failed; `failures.diagnose` says what that means.
        """
        raise NotImplementedError

    def diagnose(self, error: Exception) -> DriverFailure:
        """What a failure means."""
        return diagnose(error)

    def report(self) -> BuildProgress | JobProgress | None:
        """The present report, called from any thread; None for nothing to say."""
        return None

    def failed(self, never: bool, note: str) -> None:
        """Have reports say why the driver ends, and whether another start can help."""


def run_driver(driver: type[Driver], name: str, description: str) -> int:
    """The process of a driver, `python -m <name>`: its arguments, log, signals and manners; returns the exit
    status."""
    begin()
    do_without_pandas()
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument(f"--{driver.kind}", dest="id", required=True, help=f"id of the {driver.kind}")
    parsed = parser.parse_args()
    level = os.environ.get("KEYTIDE_LOG", "INFO")
    log_to_stderr(level)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    settings = load_settings()
    if driver.stands_back:
        os.nice(settings.build.nice)  # Spark's processes are children of this one
    return driver(settings, parsed.id, stop).run()
