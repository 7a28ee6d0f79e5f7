"""What runs the tasks of one driver: Spark, its start, its actions and its end; or, for little, the driver
itself.

Actions of Spark run in another thread, so that the caller's is free as soon as the driver is asked to end: it
still has to give back what it holds elsewhere, and only then ends Spark, which takes longer.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, Protocol, TypeVar

from keytide.process.worker import Worker
from keytide.settings.settings import Settings
from streaming.drivers.failures import StoppedError
from streaming.drivers.rate_gate import LocalClient, RateGate, TaskClient, gate_of
from streaming.drivers.stages import LocalStages, SparkStages, Stages
from streaming.spark import session as spark

POLL_S: Final = 0.1
TASKS_PER_CORE: Final = 4

T = TypeVar("T")


class Engine(Protocol):
    """Runs the tasks of one driver.

    Attributes:
        parallelism: tasks that run at once.
        partitions: of the shuffle.
        gate: of the rate limit.
        client: what tasks say to the gate what they read by.
        stages: runs tasks.
    """

    parallelism: int
    partitions: int
    gate: RateGate
    client: TaskClient
    stages: Stages

    def run(self, action: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
        """Run what asks `stages` for something; what it brings.

        Args:
            meanwhile: called now and then.

        Raises:
            StoppedError: the driver is asked to end, or `meanwhile` says so; so are the tasks.
        """
        ...

    def close(self) -> None:
        """End it."""
        ...


class LocalEngine:
    """The driver's own process, one task after the other (`Engine`).

    Args:
        stop: set when the driver is to end.
        most_bytes: as of `LocalStages`.
    """

    parallelism = 1
    partitions = 1

    def __init__(self, stop: threading.Event, most_bytes: int = 0) -> None:
        self._stop = stop
        self._closed = False
        self._meanwhile: Callable[[], object] = lambda: None
        self.gate = RateGate()
        self.client: TaskClient = LocalClient(self.gate, self._heed)
        self.stages: Stages = LocalStages(self._heed, most_bytes)

    def run(self, action: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
        self._meanwhile = meanwhile
        try:
            return action()
        finally:
            self._meanwhile = lambda: None

    def _heed(self) -> None:
        if self._closed or self._stop.is_set():
            raise StoppedError
        self._meanwhile()

    def close(self) -> None:
        """End it: tasks that another thread runs end as if the driver was asked to."""
        self._closed = True
        self.gate.close()


class SparkEngine:
    """A session in this process (`Engine`).

    Args:
        scratch: folder for shuffle files; what a driver that was killed left there goes.
        stop: set when the driver is to end.
        app: its name in Spark; "" for the usual one.
        rows: whether rows of a table go through the JVM.
        connector: whether it needs Spark's Kafka connector.

    Raises:
        StoppedError: the driver is asked to end.
    """

    def __init__(
        self,
        settings: Settings,
        scratch: Path,
        stop: threading.Event,
        *,
        app: str = "",
        rows: bool = False,
        connector: bool = True,
    ) -> None:
        self._stop = stop
        self._scratch = scratch
        self._threads = ThreadPoolExecutor(1, "spark")
        self._warming: Worker | None = None
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        options = spark.session_options(settings, scratch, rows=rows)
        if app:
            options["spark.app.name"] = app
        if not connector:
            options.setdefault("spark.jars", "")
        self.session = self._wait(lambda: spark.start_session(options, settings.build.jars), lambda: None)
        self.parallelism: int = self.session.sparkContext.defaultParallelism
        self.partitions = 1
        gate = gate_of(self.session)
        self.gate: RateGate = gate
        self.client: TaskClient = gate.client
        self.stages: Stages = SparkStages(self.session)

    def shuffle(self, partitions: int) -> None:
        """Set how many partitions the shuffle has."""
        self.partitions = partitions
        self.session.conf.set("spark.sql.shuffle.partitions", str(partitions))

    def warm_up(self) -> None:
        """Have Python workers started while something else is waited for."""
        self._warming = spark.warm_up(self.session, self.partitions)

    def run(self, action: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
        try:
            return self._wait(action, meanwhile)
        except StoppedError:
            self.session.sparkContext.cancelAllJobs()
            raise

    def _wait(self, action: Callable[[], T], meanwhile: Callable[[], object]) -> T:
        meanwhile()
        work = self._threads.submit(action)
        while not wait([work], POLL_S).done:
            if self._stop.is_set():
                raise StoppedError
            meanwhile()
        return work.result()

    def close(self) -> None:
        """End Spark: some seconds."""
        self.gate.close()
        if self._warming is not None:
            self._warming.wait()
        self.session.stop()
        self._threads.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)
