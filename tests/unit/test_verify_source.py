"""Reading the source for verification: in which parts, how fast, and what becomes of it when the driver is
asked to end: what is held on slices is given back before Spark ends."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import BuildRecord, JobRecord
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.process.worker import Worker
from keytide.settings.settings import Settings, load_settings
from projector.core.projection import SourceBatch
from streaming.core import micro_batches as core
from streaming.drivers import lifecycle, rate_gate
from streaming.drivers.engine import LocalEngine, SparkEngine
from streaming.drivers.failures import StoppedError
from streaming.slices.pins import Pin
from streaming.spark.checkpoint import Extent
from streaming.verify import driver, tasks
from streaming.verify.core.newest import IndexPlan, decode
from streaming.verify.source import LEAST_EXTENT, MOST_EXTENT, SourceRanges, SourceReader
from streaming.verify.tasks import SourceTasks, VerifyWork, decode_found
from tests.unit.scan_world import World
from tests.unit.test_pacing import hang_up
from tests.waiting import wait_for

LIMIT_S = 20.0
TOPIC = "users"


def no_limit() -> int:
    return 0


def world() -> World:
    return World(f"CREATE INDEX i ON {TOPIC} (city) WITH (slices=2)")


def work(**changes: Any) -> VerifyWork:
    index = world().index("i")
    fields = {
        "definitions": ((index.id, msgspec.json.encode(index.definition)),),
        "indexes": (IndexPlan(index.id, Partitioning.of(index.definition)),),
        "bits": 4,
        "range_bits": 1,
        "routes": (0, 1),
        "until": {0: 1_000, 1: 1_000},
    }
    return VerifyWork(**{**fields, **changes})


def batch(partition: int, start: int, end: int) -> SourceBatch:
    """A record at each offset, of a document of its own; every fifth one is a deletion."""
    numbers = range(start, end)
    return SourceBatch(
        *(partition, -1, start, end, list(numbers)),
        ids=[b"d%d-%d" % (partition, n) for n in numbers],
        values=[None if n % 5 == 4 else b'{"city":"c%d"}' % (n % 7) for n in numbers],
        times=[1_700_000_000_000 + n for n in numbers],
    )


class Log:
    """Takes the place of Kafka: what was asked for, and how."""

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.batch = 100

    def __call__(
        self,
        settings: Settings,
        topic: str,
        extent: Extent,
        *,
        whole: bool = True,
        heed: Callable[[], None] = lambda: None,
    ) -> Iterator[SourceBatch]:
        assert (topic, whole) == (TOPIC, False)
        self.extents.append(extent)
        for start in range(extent.start, extent.end, self.batch):
            heed()
            yield batch(extent.partition, start, min(extent.end, start + self.batch))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(tasks, "read_extent", made)
    return made


# --- parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "parts"),
    [
        ({0: 10}, [1]),
        ({0: 8 * LEAST_EXTENT}, [8]),
        ({0: 8 * LEAST_EXTENT + 1}, [8]),
        ({0: 4 * LEAST_EXTENT, 1: 4 * LEAST_EXTENT, 3: 7}, [4, 4, 1]),
        ({0: 100 * MOST_EXTENT}, [100]),
        ({}, []),
    ],
)
def test_partitions_are_read_in_parts_that_keep_all_cores_busy(
    ends: dict[int, int], parts: list[int]
) -> None:
    starts = dict.fromkeys(ends, 3)
    reading = SourceRanges.of(TOPIC, starts, {partition: end + 3 for partition, end in ends.items()})
    extents = reading.extents(8)
    by_partition = [[one for one in extents if one.partition == partition] for partition in ends]
    assert [len(some) for some in by_partition] == parts
    for partition, some in zip(ends, by_partition, strict=True):
        edges = [(one.start, one.end) for one in some]
        assert edges[0][0] == 3
        assert edges[-1][1] == ends[partition] + 3
        assert all(before[1] == after[0] for before, after in pairwise(edges))
        assert max(end - start for start, end in edges) <= MOST_EXTENT


class Told:
    """Takes what tasks say."""

    def __init__(self) -> None:
        self.documents = self.shares = 0

    def read(self, documents: int, size: int) -> None:
        assert size > 0
        self.documents += documents

    def finished(self) -> None:
        self.shares += 1

    def heed(self) -> None: ...


def test_tasks_read_their_extents_themselves_and_say_so(log: Log) -> None:
    client: Any = Told()
    shares = SourceTasks(load_settings(), TOPIC, [Extent(0, 0, 250), Extent(1, 100, 300)], client)
    number = [pa.RecordBatch.from_arrays([pa.array([1])], names=["id"])]
    rows = list(tasks.read_and_gather(work(), shares, number))
    versions = [decode(row.column("body")[0].as_py()) for row in rows]
    assert log.extents == [Extent(1, 100, 300)]
    assert sorted(n for some in versions for n in some.column("offset").to_pylist()) == list(range(100, 300))
    assert {row.column("place")[0].as_py() for row in rows} == {0, 1}
    assert client.documents == 200
    ids = frozenset({b"d1-150", b"d1-299", b"d1-154"})
    (row,) = tasks.read_and_find(work(ids=ids, until={1: 200}), shares, number)
    found = decode_found(row.column("body")[0].as_py())
    before, later = decode(found.before), decode(found.later)
    assert before.column("offset").to_pylist() == [150, 154]
    assert len(before.column("entries").flatten()) == 1, "the other one is a deletion"
    assert later.column("offset").to_pylist() == [299]
    assert (client.documents, client.shares) == (400, 2)


def test_a_share_is_finished_though_it_has_fewer_records_than_offsets(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a compacted source has."""
    monkeypatch.setattr(tasks, "read_extent", lambda *_, **__: iter([batch(0, 7, 9)]))
    gate = rate_gate.ListeningGate()
    try:
        shares = SourceTasks(load_settings(), TOPIC, [Extent(0, 0, 250), Extent(0, 250, 500)], gate.client)
        gate.begin(500, 2)
        for number, all_read in ((0, False), (1, True)):
            list(shares.read([pa.RecordBatch.from_arrays([pa.array([number])], names=["id"])]))
            assert gate.all_read is all_read
        assert gate.documents == 4
    finally:
        hang_up()
        gate.close()


def test_the_driver_reads_alone_what_the_tasks_would(log: Log) -> None:
    reader = SourceReader(load_settings(), LocalEngine(threading.Event()), no_limit)
    reading = SourceRanges(TOPIC, {0: (0, 250), 1: (100, 300)})
    counted = dict(reader.sums(reading, work()))
    assert sum(one.documents for one in counted.values()) == reader.documents() == 450
    (found,) = reader.find(reading, work(ids=frozenset({b"d1-150"})))
    assert decode(found.before).column("offset").to_pylist() == [150]
    assert log.extents == 2 * [Extent(0, 0, 250), Extent(1, 100, 300)]


# --- the rate limit ---------------------------------------------------------------------------------------


def test_the_driver_alone_keeps_the_limit_and_feels_a_new_one(log: Log) -> None:
    limit = 200
    reader = SourceReader(load_settings(), LocalEngine(threading.Event()), lambda: limit)
    reading = threading.Thread(
        target=lambda: list(reader.sums(SourceRanges(TOPIC, {0: (0, 100_000)}), work())), daemon=True
    )
    began = time.monotonic()
    reading.start()
    wait_for(lambda: reader.documents() >= 100, "half a second's documents")
    read = reader.documents()
    assert read <= 5 * limit * max(1.0, time.monotonic() - began)
    assert reading.is_alive()
    limit = 0
    reading.join(LIMIT_S)
    assert not reading.is_alive()
    assert reader.documents() == 100_000


def test_a_job_has_the_limit_of_the_build_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = world()
    build = BuildRecord("b8", TOPIC, ["i-1"], "CATCHUP", Timestamp(), 0, rate_limit=5_000)

    class Catalog:
        def __init__(self, settings: Settings) -> None: ...

        def start(self) -> None: ...

        def hand_over(self) -> None: ...

        def poll(self, timeout: float) -> bool:
            time.sleep(0.01)
            return True

        def snapshot(self) -> Any:
            return made.catalog

        def close(self) -> None: ...

    class Identity:
        def __init__(self, settings: Settings) -> None: ...

        def look(self) -> None: ...

    monkeypatch.setattr(lifecycle, "KafkaIdentity", Identity)
    monkeypatch.setattr(lifecycle, "CatalogReader", Catalog)
    made.record(build)
    for job, limit in (("j1", 5_000), ("j2", 0), ("j3", 0)):
        if job != "j3":
            wanted_by = build.id if job == "j1" else ""
            made.record(JobRecord(job, "verify", TOPIC, ["i-1"], "RUNNING", 0, build=wanted_by))
        following = lifecycle.MetadataFollower(load_settings())
        try:
            one = driver.VerifyDriver(load_settings(data_dir=str(tmp_path)), job, threading.Event())
            one._metadata = following
            assert one._rate_limit() == limit
        finally:
            following.close()


# --- Spark ------------------------------------------------------------------------------------------------


class FakeSpark:
    """A session, its context, its configuration; and frames whose action is a function."""

    def __init__(self) -> None:
        self.cancelled, self.stopped = threading.Event(), threading.Event()
        self.conf = self
        self.sparkContext = SimpleNamespace(defaultParallelism=2, cancelAllJobs=self.cancelled.set)

    def get(self, name: str, default: str) -> str:
        return {"spark.driver.host": "127.0.0.1"}.get(name, default)

    def set(self, name: str, value: str) -> None: ...

    def stop(self) -> None:
        self.stopped.set()

    @staticmethod
    def frame(action: Callable[[], list[Any]]) -> Any:
        return SimpleNamespace(collect=action)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    made = FakeSpark()

    def start(options: dict[str, str], jars: Any = ()) -> FakeSpark:
        assert "TieredStopAtLevel=1" in options["spark.driver.extraJavaOptions"], "no rows go through the JVM"
        return made

    def warm_up(session: Any, partitions: int) -> Worker:
        worker = Worker("warm-up", None, lambda: None)
        worker.open()
        return worker

    monkeypatch.setattr("streaming.spark.session.start_session", start)
    monkeypatch.setattr("streaming.spark.session.warm_up", warm_up)
    hang_up()
    yield made
    hang_up()


def later(seconds: float, action: Callable[[], None]) -> None:
    threading.Timer(seconds, action).start()


def test_an_action_ends_as_soon_as_the_driver_is_asked_to(session: FakeSpark, tmp_path: Path) -> None:
    stop = threading.Event()
    engine = SparkEngine(load_settings(), tmp_path / "scratch", stop)

    def action() -> list[Any]:
        assert session.cancelled.wait(LIMIT_S)
        raise RuntimeError("Job 0 cancelled")

    later(0.2, stop.set)
    began = time.monotonic()
    with pytest.raises(StoppedError):
        engine.run(session.frame(action).collect)
    assert time.monotonic() - began < LIMIT_S / 2
    assert session.cancelled.is_set()
    assert not session.stopped.is_set(), "that takes longer: others have to be told first"
    engine.close()
    assert session.stopped.is_set()
    assert not (tmp_path / "scratch").exists()


def test_a_driver_that_is_asked_to_end_does_not_wait_for_the_start_of_spark(
    session: FakeSpark, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go, stop = threading.Event(), threading.Event()
    monkeypatch.setattr(
        "streaming.spark.session.start_session", lambda options, jars: go.wait(LIMIT_S) and session
    )
    later(0.2, stop.set)
    began = time.monotonic()
    with pytest.raises(StoppedError):
        SparkEngine(load_settings(), tmp_path / "scratch", stop)
    assert time.monotonic() - began < LIMIT_S / 2
    go.set()


def test_what_an_action_brings_or_raises_is_the_callers(session: FakeSpark, tmp_path: Path) -> None:
    engine = SparkEngine(load_settings(), tmp_path / "scratch", threading.Event())
    try:
        rows: list[Any] = engine.run(session.frame(lambda: [1, 2]).collect)
        assert rows == [1, 2]
        with pytest.raises(ZeroDivisionError):
            engine.run(session.frame(lambda: [1 // 0]).collect)
        assert not session.cancelled.is_set()
    finally:
        engine.close()


def test_tasks_of_spark_keep_the_limit_and_feel_a_new_one(session: FakeSpark, tmp_path: Path) -> None:
    limit = 200
    engine = SparkEngine(load_settings(), tmp_path / "scratch", threading.Event())
    reader = SourceReader(load_settings(), engine, lambda: limit)
    seen: list[int] = []

    def read(client: Any) -> list[Any]:
        client.read(40_000, 1)
        return []

    def faster() -> None:
        nonlocal limit
        seen.append(reader.documents())
        limit = 0

    try:
        for number in range(2):
            shares = reader._begin(SourceRanges(TOPIC, {0: (0, 40_000)}))
            if not number:
                later(1.0, faster)
            reader._run(functools.partial(read, shares.client))
        assert 0 < seen[0] <= 1_000
        assert reader.documents() == 80_000, "of all readings"
        assert SourceReader(load_settings(), engine, no_limit).documents() == 0
    finally:
        engine.close()


# --- the end of the driver --------------------------------------------------------------------------------


class Ending:
    """A driver whose parts take down in which order they end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.told: list[str] = []
        self.released = threading.Event()
        self.reading = threading.Event()
        self.stop = threading.Event()
        self.spark_ends = threading.Event()
        self.spark_ends.set()
        made, ending = world(), self
        index = made.index("i")
        made.record(JobRecord("j1", "verify", TOPIC, [index.id], "RUNNING", 0))

        class Following:
            def __init__(self, *_: Any) -> None: ...

            def catalog(self) -> Any:
                return made.catalog

            def close(self) -> None: ...

        class Slices:
            def __init__(self, *_: Any) -> None: ...

            def pin(self, stopped: Any) -> Pin:
                return Pin(7, 0, Timestamp(), "h", {})

            def release(self, pin: Pin) -> None:
                if not ending.released.is_set():
                    ending.told.append("given back")
                    ending.released.set()

            def close(self) -> None: ...

        class Verification:
            documents = 0

            def __init__(self, context: Any, reader: Callable[[int], Any], **_: Any) -> None:
                self._reader = reader

            def run(self, pin: Pin) -> Any:
                assert self._reader(10**9) is not None
                ending.reading.set()
                return ending.run()

        class Spark:
            parallelism, partitions, gate = 2, 4, SimpleNamespace(documents=0, begin=lambda *_: None)

            def __init__(self, *_: Any, **__: Any) -> None: ...

            def shuffle(self, partitions: int) -> None: ...

            def warm_up(self) -> None: ...

            def close(self) -> None:
                assert ending.spark_ends.wait(LIMIT_S)
                ending.told.append("Spark ended")

        class Reporter:
            def __init__(self, settings: Settings, report: Callable[[], Any]) -> None:
                self._report = report

            def send(self, message: Any = None) -> None:
                ending.told.append(f"said {self._report().state}")

            def close(self) -> None:
                ending.told.append("silent")

        for module, name, fake in (
            (driver, "MetadataFollower", Following),
            (driver, "SliceClient", Slices),
            (driver, "Verification", Verification),
            (lifecycle, "SparkEngine", Spark),
            (lifecycle, "DriverReporter", Reporter),
            (driver, "admin", lambda _: nullcontext()),
        ):
            monkeypatch.setattr(module, name, fake)
        self.run: Callable[[], Any] = lambda: None
        self.driver = driver.VerifyDriver(load_settings(data_dir=str(tmp_path)), "j1", self.stop)


def test_what_is_held_is_given_back_before_spark_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ending = Ending(monkeypatch, tmp_path)

    def stopped() -> None:
        assert ending.stop.wait(LIMIT_S)
        raise StoppedError

    ending.run = stopped
    later(0.1, ending.stop.set)
    assert ending.driver.run() == core.EXIT_STOPPED
    assert ending.told == ["given back", "said RUNNING", "Spark ended", "silent"]


def test_what_is_held_is_given_back_while_something_else_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slices that are being asked answer until the snapshot is gone."""
    ending = Ending(monkeypatch, tmp_path)

    def asked() -> None:
        assert ending.released.wait(LIMIT_S)
        raise RetryableError("the snapshot is not held")

    ending.run = asked
    later(0.1, ending.stop.set)
    assert ending.driver.run() == core.EXIT_STOPPED
    assert ending.told == ["given back", "said RUNNING", "Spark ended", "silent"]


def test_a_failure_gives_back_and_ends_spark_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ending = Ending(monkeypatch, tmp_path)

    def failed() -> None:
        raise RetryableError("a node is away")

    ending.run = failed
    assert ending.driver.run() == core.EXIT_RETRY
    assert ending.told == ["given back", "said RUNNING", "Spark ended", "silent"]


def test_a_spark_that_does_not_end_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ending = Ending(monkeypatch, tmp_path)

    def failed() -> None:
        raise RetryableError("a node is away")

    ending.run = failed
    ending.spark_ends.clear()
    monkeypatch.setattr(lifecycle, "END_S", 0.1)
    try:
        assert ending.driver.run() == core.EXIT_RETRY
        assert ending.told == ["given back", "said RUNNING", "silent"]
    finally:
        ending.spark_ends.set()
