"""The rate limit of builds: the bucket by its clock, the gate with clients in its own process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as replace_record

from keytide.catalog.records import BuildRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from streaming.backfill import driver as driving
from streaming.backfill.batches import run_through
from streaming.backfill.course import BuildCourse
from streaming.core.micro_batches import SettledBatch
from streaming.core.rate import CREDIT_S, TokenBucket
from streaming.drivers import rate_gate
from streaming.drivers.engine import SparkEngine
from streaming.drivers.rate_gate import ListeningGate
from tests.unit.kept_journal import KeptJournal
from tests.waiting import wait_for

LIMIT_S = 20.0


def test_without_a_limit_everything_goes() -> None:
    bucket = TokenBucket(0.0)
    assert bucket.take(1_000_000, 0.0) == 1_000_000


def test_a_bucket_holds_its_limit_over_half_a_minute() -> None:
    """Whatever is asked for, in whatever pieces, and with gaps of a second without reading."""
    bucket = TokenBucket(0.0)
    bucket.limit(1_000, 0.0)
    taken, now = 0, 0.0
    while now < 30:
        taken += bucket.take(20_000, now)
        now += 1.3 if int(now) % 7 == 0 else 0.05
    assert 0.9 * 30_000 <= taken <= 1.1 * 30_000


def test_what_is_not_taken_is_kept_for_a_moment_only() -> None:
    bucket = TokenBucket(0.0)
    bucket.limit(1_000, 0.0)
    assert bucket.take(1, 0.0) == 0
    assert bucket.take(10**9, 3_600.0) == CREDIT_S * 1_000


def test_a_new_limit_begins_with_nothing_and_the_same_changes_nothing() -> None:
    bucket = TokenBucket(0.0)
    bucket.limit(1_000, 0.0)
    bucket.limit(1_000, 1.0)
    bucket.limit(10, 2.0)
    assert bucket.take(100, 2.0) == 0
    assert bucket.take(100, 3.0) == 10
    bucket.limit(0, 3.0)
    assert bucket.take(100, 3.0) == 100


def test_a_small_limit_lets_single_documents_through() -> None:
    bucket = TokenBucket(0.0)
    bucket.limit(1, 0.0)
    assert sum(bucket.take(5, 0.1 * step) for step in range(101)) == 10


def hang_up() -> None:
    """Close this process's connections to gates."""
    for line in rate_gate._connections.values():
        if line is not None:
            line.close()
    rate_gate._connections.clear()


@pytest.fixture
def gate() -> Iterator[ListeningGate]:
    hang_up()
    with_gate = ListeningGate()
    yield with_gate
    with_gate.close()
    hang_up()


def test_a_gate_counts_what_tasks_read(gate: ListeningGate) -> None:
    gate.begin(150, 2)
    gate.client.read(100, 5_000)
    assert (gate.documents, gate.bytes, gate.all_read) == (100, 5_000, False)
    gate.client.finished()
    gate.client.read(100, 5_000)  # an attempt that is run again counts no further than there is
    assert (gate.documents, gate.bytes) == (150, 7_500)
    gate.client.finished()
    assert gate.all_read
    gate.begin(10, 1)
    assert (gate.documents, gate.bytes, gate.all_read) == (0, 0, False)


def test_a_new_limit_is_felt_by_a_task_that_waits(gate: ListeningGate) -> None:
    gate.begin(10_000, 1)
    gate.limit(100)
    reading = threading.Thread(target=gate.client.read, args=(10_000, 0), daemon=True)
    reading.start()
    wait_for(lambda: 0 < gate.documents < 10_000)
    assert reading.is_alive()
    gate.limit(0)
    reading.join(LIMIT_S)
    assert not reading.is_alive()
    assert gate.documents == 10_000


def test_a_new_limit_is_felt_while_the_table_is_read(
    gate: ListeningGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of a build follows the metadata there, too."""
    made: Any = driving.BackfillDriver.__new__(driving.BackfillDriver)
    made._settings = load_settings()
    made.build = BuildRecord("b8", "users", ["i-1"], "BACKFILL", Timestamp(), 0, rate_limit=10)
    gate.begin(10_000, 1)
    gate.limit(10)

    def follow() -> None:
        if gate.documents:
            made.build = replace_record(made.build, rate_limit=0)
        time.sleep(0.01)

    async def run_table() -> None:
        gate.client.read(10_000, 0)

    made.follow = follow
    monkeypatch.setattr(driving, "read_table", lambda *_: None)
    engine: Any = SparkEngine.__new__(SparkEngine)
    engine.session, engine.gate = None, gate
    engine._stop, engine._threads = threading.Event(), ThreadPoolExecutor(1)
    made._spark, made._tasks, made._limit = engine, SimpleNamespace(), gate.limit
    nothing: Any = SimpleNamespace()
    course = BuildCourse(nothing, 1, nothing, nothing, made, nothing)
    began = time.monotonic()
    run_through(made.run_table(TableOrigin("parquet", {0: 1}), run_table, course._follow))
    assert gate.documents == 10_000
    assert time.monotonic() - began < LIMIT_S


def test_tasks_that_wait_are_let_go_when_the_driver_ends(gate: ListeningGate) -> None:
    gate.begin(1_000, 1)
    gate.limit(1)
    reading = threading.Thread(target=gate.client.read, args=(1_000, 0), daemon=True)
    reading.start()
    wait_for(lambda: gate.documents > 0)
    gate.close()
    reading.join(LIMIT_S)
    assert not reading.is_alive()


def test_what_no_meter_said_is_waited_for_after_the_micro_batch(gate: ListeningGate) -> None:
    gate.begin(40, 1)
    gate.limit(100)
    began = time.monotonic()
    gate.settle(40)
    assert time.monotonic() - began >= 0.35
    gate.settle(40)  # it has been said by now
    assert gate.documents == 40


def test_a_gate_is_found_under_another_address_than_it_listens_at() -> None:
    """As behind a translation of addresses: spark.driver.host is none of this machine's."""
    made = ListeningGate("192.0.2.1", "127.0.0.1")
    try:
        assert made.client.host == "192.0.2.1"
        socket.create_connection(("127.0.0.1", made.client.port)).close()
    finally:
        made.close()


def test_strangers_are_not_heard(gate: ListeningGate) -> None:
    gate.begin(100, 1)
    stranger = replace(gate.client, token=b"x" * len(gate.client.token))
    stranger.read(50, 50)
    assert gate.documents == 0
    hang_up()


def test_a_worker_that_reaches_no_gate_reads_on(gate: ListeningGate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    replace(gate.client, port=port).read(50, 50)
    assert gate.documents == 0


def test_a_micro_batch_begins_with_nothing_read(gate: ListeningGate) -> None:
    status = KeptJournal().status()
    status.gate = gate
    status.begin_batch()
    gate.begin(1_000, 1)
    gate.client.read(1_000, 9_000)
    assert status.report("b8", "r", 0).documents == 1_000
    outcome = SettledBatch([], [], 1_000, b"", {}, {})
    status.finish_batch(0, Timestamp(), [], outcome)
    status.end_batch()
    status.begin_batch()
    report = status.report("b8", "r", 0)
    assert (report.documents, report.bytes, report.phase) == (1_000, 9_000, "reading"), "not twice"
