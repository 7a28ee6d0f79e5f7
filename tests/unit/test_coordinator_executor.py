"""The coordinator's executor: order, and what may wait without holding up the rest."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from coordinator.core.events import (
    BuildPrepared,
    DictionaryWritten,
    Event,
    PrepareFailed,
    SourceSampled,
    TopicsDeleted,
)
from coordinator.core.instructions import DeleteTopics, PrepareBuild, SampleSource, SendEnds, Write
from coordinator.process import executor as executor_module
from coordinator.process.executor import InstructionExecutor, ReplyWhenDone
from keytide.kafka.admin import KafkaUnavailableError
from keytide.model.timestamp import Place, Timestamp
from keytide.settings.settings import load_settings
from keytide.wire.messages import BuildEnd, RepairEnd

LIMIT_S = 10.0


class _Work:
    """Kafka's admin side, as far as the executor uses it; refuses to delete topics while it is told to."""

    def __init__(self) -> None:
        self.refuses = True
        self.done: list[tuple[str, Any]] = []

    def close(self) -> None:
        """Nothing is under way."""

    def delete(self, topics: Iterable[str]) -> None:
        if self.refuses:
            raise KafkaUnavailableError("topic deletion is disabled")
        self.done.append(("delete", tuple(topics)))

    def make_queues(self, queues: Iterable[tuple[str, int]]) -> None:
        self.done.append(("make", tuple(queues)))

    def sample(self, keyspace: str) -> Any:
        return keyspace

    def sample_settled(self, keyspace: str) -> Any:
        return self.sample(keyspace)

    def lost(self, keyspace: str, read: Timestamp) -> dict[int, Place]:
        self.done.append(("lost", read))
        return dict(read.places)


class Rig:
    """An executor that runs, what it posted, and a way to wait until it has done all that it was given."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.failures: list[BaseException] = []
        nothing: Any = _Nothing()
        writer: Any = _Writer()
        settings = load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0})
        self.executor = InstructionExecutor(settings, writer, nothing, self.events.put, self.failures.append)
        self.work = _Work()
        self.executor._work = self.work  # type: ignore[assignment]
        self.executor.open()

    def settle(self) -> None:
        """Wait until everything before this is done."""
        future: Future[str] = Future()
        self.executor.put(ReplyWhenDone(future, "done"))
        assert future.result(LIMIT_S) == "done"


class _Nothing:
    def stop(self) -> None: ...


class _Writer(_Nothing):
    """Of the metadata topic: every record has an offset."""

    def __init__(self) -> None:
        self.end = 20

    def write(self, records: Sequence[tuple[str, Any]]) -> int:
        self.end += len(records)
        return self.end


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(executor_module, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(executor_module, "REMOVAL_PAUSE_S", 0.01)
    rig = Rig()
    yield rig
    rig.executor.close()
    assert rig.failures == []


def test_a_sample_for_a_build_tells_what_it_has_read_and_the_log_has_no_more(rig: Rig) -> None:
    read = Timestamp({0: Place(7, 0)}, "t1")
    rig.executor.put(SampleSource("people", "b8", read))
    rig.settle()
    event = rig.events.get_nowait()
    assert isinstance(event, SourceSampled)
    assert (event.build, event.lost) == ("b8", {0: Place(7, 0)})
    assert rig.work.done == [("lost", read)]


def test_each_write_is_told_in_order_with_its_end(rig: Rig) -> None:
    rig.executor.put(Write((("term", None), ("copy/c1", None))))
    rig.executor.put(Write((("copy/c2", None),)))
    rig.settle()
    told = [rig.events.get_nowait() for _ in range(2)]
    assert [one.end for one in told if isinstance(one, DictionaryWritten)] == [22, 23]


def test_a_topic_that_cannot_be_deleted_holds_nothing_up(rig: Rig) -> None:
    rig.executor.put(DeleteTopics(("m.a-1",), "a-1"))
    rig.settle()
    rig.work.refuses = False
    assert isinstance(rig.events.get(timeout=LIMIT_S), TopicsDeleted)
    assert rig.work.done == [("delete", ("m.a-1",))]


def test_a_build_waits_for_the_removal_of_its_topics(rig: Rig) -> None:
    prepare = PrepareBuild("b2", "people", (("m.a-1", 2), ("f.a-1", 2)))
    rig.executor.put(DeleteTopics(("m.a-1",), "a-1"))
    rig.executor.put(prepare)
    first = rig.events.get(timeout=LIMIT_S)
    assert isinstance(first, PrepareFailed)
    assert "m.a-1" in first.error
    rig.work.refuses = False
    assert isinstance(rig.events.get(timeout=LIMIT_S), TopicsDeleted)
    rig.executor.put(prepare)
    assert isinstance(rig.events.get(timeout=LIMIT_S), BuildPrepared)
    assert [what for what, _ in rig.work.done] == ["delete", "make"]


class _Queues:
    """A producer to queues that have no leader for the first few sends."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.sent = 0

    def produce(self, *_: Any, **__: Any) -> None:
        self.sent += 1

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        return int(self.sent <= self.refusals)


def test_the_end_of_a_repairs_round_holds_nothing_up(rig: Rig) -> None:
    """Kafka is away: it is asked for again with a later heartbeat."""
    rig.executor.put(SendEnds((("m.a-1", 1, RepairEnd("a-1", 1, "j3-1-1", 0, 0)),)))
    rig.settle()


def test_the_end_of_a_build_is_sent_until_it_has_arrived_whatever_is_sent_with_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds, rounds = _Queues(6), _Queues(0)
    made = list[_Queues]()

    def make(*_: object, **__: object) -> _Queues:
        made.append(builds)
        return builds

    rig.executor._producer = builds  # type: ignore[assignment]
    rig.executor._round_ends = rounds  # type: ignore[assignment]
    monkeypatch.setattr(executor_module, "producer", make)
    build, repair = BuildEnd("b8", "a-1", 0, 1, 2), RepairEnd("a-1", 1, "j3-1-1", 0, 0)
    rig.executor.put(SendEnds((("f.a-1", 0, build), ("m.a-1", 1, repair))))
    rig.executor.put(SendEnds((("m.a-1", 1, repair),)))
    rig.settle()
    assert (builds.sent, rounds.sent) == (8, 1)
    assert len(made) == 1, "after two in vain: the first one may have lost its brokers for good"
