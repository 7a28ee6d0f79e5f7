"""Tasks in the driver's own process: what comes back, what ends them, and what one plan of a query covers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from keytide.model.timestamp import Timestamp
from streaming.backfill.queries import planned
from streaming.drivers.engine import LocalEngine
from streaming.drivers.failures import BuildImpossibleError, StoppedError
from streaming.drivers.stages import LocalStages, OutOfRoomError, Shuffle

ROW = "route int, key binary, body binary"
LIMIT_S = 20.0


def rows(*values: tuple[int, bytes, bytes]) -> pa.RecordBatch:
    columns: list[Any] = [pa.array([value[column] for value in values]) for column in range(3)]
    return pa.RecordBatch.from_arrays(columns, names=["route", "key", "body"])


def first(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each task gives a key of its own to each of two tasks of the second stage, in one batch and in two."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            key = b"%d" % (9 - number)
            yield rows((7, key, b"x" * number), (3, key, b"y" * number))
            yield rows((7, key + b"\x00", b"z"))


def second(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(list(batches))
    assert len(set(table.column("route").to_pylist())) == 1
    keys = table.column("key").to_pylist()
    assert keys == sorted(keys)
    yield rows((0, b" ".join(keys), b"".join(table.column("body").to_pylist())))


SHUFFLE = Shuffle(first, second, ROW, 2, ("key",))


def test_a_shuffle_brings_each_task_its_rows_in_order() -> None:
    found = list(LocalStages(lambda: None).shuffle(3, SHUFFLE))
    assert found == [
        {"route": 0, "key": b"7 8 9", "body": b"yyy"},
        {"route": 0, "key": b"7 7\x00 8 8\x00 9 9\x00", "body": b"xxzxzz"},
    ]
    assert [row["key"] for row in LocalStages(lambda: None).run(2, first, ROW)] == [
        *(b"9", b"9", b"9\x00"),
        *(b"8", b"8", b"8\x00"),
    ]


def test_a_shuffle_that_is_too_large_is_given_up() -> None:
    with pytest.raises(OutOfRoomError):
        list(LocalStages(lambda: None, 50_000).shuffle(100, SHUFFLE))
    assert list(LocalStages(lambda: None, 1 << 20).shuffle(100, SHUFFLE))


def test_many_small_rows_take_their_room_and_little_time() -> None:
    """Each row is a batch of its own: what that takes counts, and sorting copies no bodies."""
    count = 5_000

    def many(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in numbers:
            for number in range(count):
                yield rows((0, b"%05d" % ((number * 7919) % count), b"x"))

    def counting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = [key for batch in batches for key in batch.column("key").to_pylist()]
        assert keys == sorted(keys)
        yield rows((len(keys), b"", b""))

    shuffle = Shuffle(many, counting, ROW, 1, ("key",))
    (found,) = LocalStages(lambda: None).shuffle(1, shuffle)
    assert found["route"] == count
    with pytest.raises(OutOfRoomError):
        list(LocalStages(lambda: None, 500 * count).shuffle(1, shuffle))


def test_tasks_end_when_the_driver_is_asked_to() -> None:
    stop = threading.Event()
    engine = LocalEngine(stop)
    read: list[int] = []

    def task(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            read.extend(batch.column(0).to_pylist())
            yield batch
            stop.set()

    try:
        with pytest.raises(StoppedError):
            engine.run(lambda: list(engine.stages.run(5, task, ROW)))
        assert read == [0]
    finally:
        engine.close()


def test_a_task_that_waits_for_the_rate_limit_hears_what_goes_on() -> None:
    """A new limit, and the end."""
    stop = threading.Event()
    engine = LocalEngine(stop)
    waits: list[int] = []

    def meanwhile() -> None:
        waits.append(engine.gate.documents)
        if len(waits) == 3:
            engine.gate.limit(0)

    try:
        engine.gate.begin(10_000, 1)
        engine.gate.limit(10)
        engine.run(lambda: engine.client.read(10_000, 0), meanwhile)
        assert (len(waits), engine.gate.documents) == (4, 10_000)
        engine.gate.begin(10_000, 1)
        engine.gate.limit(10)
        with pytest.raises(StoppedError):
            engine.run(lambda: engine.client.read(10_000, 0), stop.set)
    finally:
        engine.close()


def test_tasks_end_with_their_engine_also_where_they_wait_for_the_rate_limit() -> None:
    """As when the build is cancelled: nobody asks the driver to end then."""
    engine = LocalEngine(threading.Event())
    ended = threading.Event()

    def reads() -> None:
        with pytest.raises(StoppedError):
            engine.run(lambda: engine.client.read(10_000, 0))
        ended.set()

    engine.gate.begin(10_000, 1)
    engine.gate.limit(1)
    threading.Thread(target=reads, daemon=True).start()
    engine.close()
    assert ended.wait(LIMIT_S)


def test_a_plan_covers_what_is_behind_the_place_that_was_reached() -> None:
    start = Timestamp.of({0: 5, 1: 7}, "t")
    assert planned(start, {0: 5, 1: 7}, "t") is None
    found = planned(start, {0: 9, 1: 7}, "t")
    assert found is not None
    assert [tuple(one) for one in found.extents] == [(0, 5, 9)]
    assert found.end.topic_id == "t"
    with pytest.raises(BuildImpossibleError, match=r"partitions \[1\]"):
        planned(start, {0: 9, 1: 6}, "t")
