"""Reading a share: what moves the position, what fails the build, what is tried again."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from projector.core.projection import SourceBatch
from streaming.drivers import failures
from streaming.spark.checkpoint import Extent, Range
from streaming.stages import source_reader as reading

TIME = 1_700_000_000_000


class Record:
    """A message of librdkafka: a record, or an event."""

    def __init__(self, offset: int, error: int | None = None, size: int = 10) -> None:
        self._offset, self._error, self._size = offset, error, size

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k%d" % self._offset

    def value(self) -> bytes | None:
        return None if self._offset % 5 == 4 else b"v" * self._size

    def timestamp(self) -> tuple[int, int]:
        return 1, TIME + self._offset


class FakeConsumer:
    """Gives what it was given, up to the limit of each call; then nothing."""

    def __init__(self, messages: list[Record]) -> None:
        self.messages = messages
        self.assigned: list[Any] = []
        self.closed = False
        self.broken = False
        self.overrides: dict[str, Any] = {}

    def assign(self, places: list[Any]) -> None:
        self.assigned = places

    def consume(self, limit: int, timeout: float) -> list[Record]:
        if self.broken:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        taken, self.messages = self.messages[:limit], self.messages[limit:]
        return taken

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Message", Record)


def read(
    monkeypatch: pytest.MonkeyPatch,
    messages: list[Record],
    start: int,
    end: int,
    broken: bool = False,
    **changes: Any,
) -> tuple[list[SourceBatch], FakeConsumer]:
    fake = FakeConsumer(messages)
    fake.broken = broken

    def made(*_: Any, **overrides: Any) -> FakeConsumer:
        fake.overrides = overrides
        return fake

    monkeypatch.setattr(reading, "consumer", made)
    try:
        batches = list(reading.read_extent(load_settings(), "people", Extent(2, start, end), **changes))
    finally:
        assert fake.closed or start >= end
    return batches, fake


def offsets(batches: list[SourceBatch]) -> list[int]:
    return [offset for batch in batches for offset in list(batch.offsets)]


def test_all_of_an_extent_and_nothing_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, fake = read(monkeypatch, [Record(offset) for offset in range(3, 5_000)], 3, 4_200)
    assert offsets(batches) == list(range(3, 4_200))
    assert [place.offset for place in fake.assigned] == [3]
    assert {batch.partition for batch in batches} == {2}
    first = batches[0]
    assert (first.ids[0], first.values[1], list(first.times[:2])) == (b"k3", None, [TIME + 3, TIME + 4])


def test_a_record_past_the_end_or_the_end_of_the_log_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last offsets of an extent are a marker, aborted or cleaned: no record comes from there."""
    batches, _ = read(monkeypatch, [Record(1), Record(2), Record(9)], 0, 7)
    assert offsets(batches) == [1, 2]
    eof = KafkaError._PARTITION_EOF
    batches, _ = read(monkeypatch, [Record(1), Record(3, eof), Record(4), Record(7, eof)], 0, 7)
    assert offsets(batches) == [1, 4]
    batches, _ = read(monkeypatch, [Record(7, eof)], 0, 7)
    assert not batches
    batches, _ = read(monkeypatch, [], 7, 7)
    assert not batches, "nothing is asked for"


@pytest.mark.parametrize(
    ("code", "kind", "reason", "never"),
    [
        (KafkaError._AUTO_OFFSET_RESET, reading.OffsetsLostError, "offsets-lost", True),
        (KafkaError.OFFSET_OUT_OF_RANGE, reading.OffsetsLostError, "offsets-lost", True),
        (KafkaError._LOG_TRUNCATION, reading.SourceStalledError, "kafka-away", False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, reading.AccessRefusedError, "access-refused", True),
    ],
)
def test_what_is_gone_or_refused_fails_the_build_and_another_log_is_read_anew(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], reason: str, never: bool
) -> None:
    with pytest.raises(kind) as raised:
        read(monkeypatch, [Record(1), Record(2, code)], 0, 7)
    # Spark hands on the text of what a task raised.
    text = f"Job aborted: Traceback ...\nstreaming.reading.{kind.__name__}: {raised.value}"
    assert failures.diagnose(text)[::2] == (reason, never)


def test_what_retention_removed_is_left_out_when_not_all_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka goes to the first offset that is there, and says nothing."""
    batches, fake = read(monkeypatch, [Record(n) for n in range(400, 600)], 0, 500, whole=False)
    assert offsets(batches) == list(range(400, 500))
    assert fake.overrides["auto_offset_reset"] == "earliest"
    batches, _ = read(monkeypatch, [Record(600)], 0, 500, whole=False)
    assert not batches, "all of it is gone"
    _, fake = read(monkeypatch, [Record(7, KafkaError._PARTITION_EOF)], 0, 7)
    assert fake.overrides["auto_offset_reset"] == "error"


def test_a_log_that_is_begun_again_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends below the position: the first offset that is there lies before it."""
    with pytest.raises(reading.SourceStalledError, match="not come as far"):
        read(monkeypatch, [Record(n) for n in range(10)], 400, 500, whole=False)


def test_a_reading_is_ended_from_outside_while_kafka_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(3))

    def heed() -> None:
        if next(looks, None) is None:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        read(monkeypatch, [Record(0)], 0, 500, heed=heed)


def test_what_passes_is_waited_for_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    down = KafkaError._ALL_BROKERS_DOWN
    batches, _ = read(monkeypatch, [Record(0), Record(0, down), Record(1), Record(2)], 0, 3)
    assert offsets(batches) == [0, 1, 2]
    monkeypatch.setattr(reading, "STALL_LIMIT_S", 0.0)
    with pytest.raises(reading.SourceStalledError, match="gives nothing at 1"):
        read(monkeypatch, [Record(0), Record(0, down)], 0, 3)
    with pytest.raises(reading.SourceStalledError):
        read(monkeypatch, [], 0, 3, broken=True)


def test_a_batch_of_large_documents_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, _ = read(monkeypatch, [Record(n, size=100_000) for n in range(1_400)], 0, 1_400)
    assert len(batches[0].ids) == reading.FIRST_DOCUMENTS
    assert max(len(batch.ids) for batch in batches[1:]) <= reading.BATCH_BYTES // 80_000 + 1
    assert reading.affordable(SourceBatch(0, -1, 0, 1, [0], [b"k"], [None], [0])) == reading.BATCH_DOCUMENTS


def test_a_micro_batch_has_an_extent_for_each_partition_with_anything_new() -> None:
    covered = Range(Timestamp.of({0: 5, 1: 7}), Timestamp.of({0: 9, 1: 7, 2: 3}))
    assert covered.extents == [Extent(0, 5, 9), Extent(2, 0, 3)]
    assert len(covered.extents) == 2
