"""Kafka's word on which topic has a name reaches the control loop at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from coordinator.core.events import TopicSeen
from coordinator.core.instructions import ConfirmTopic
from coordinator.process import topic_ids
from coordinator.process.service import CoordinatorService
from coordinator.process.topic_ids import TopicIds
from keytide.settings.settings import load_settings


class Answers:
    """Kafka's admin client: the answer to a question comes when it is given."""

    def __init__(self) -> None:
        self.owed: Future[Any] = Future()

    def describe_topics(self, *_: object, **__: object) -> dict[str, Future[Any]]:
        return {"people": self.owed}

    def close(self) -> None:
        pass


def test_an_answer_ends_the_wait_for_it() -> None:
    posted: list[TopicSeen] = []
    client = Answers()
    with mock.patch.object(topic_ids, "admin", return_value=client):
        ids = TopicIds(load_settings(), posted.append, cast(Callable[[BaseException], None], print))
    ids._carry_out(ConfirmTopic("people", 7))
    assert not ids.wait_for_answer(), "there is no answer yet"
    with mock.patch.object(topic_ids, "MOMENT_S", 60.0):
        began = monotonic()
        giver = Thread(target=client.owed.set_result, args=(SimpleNamespace(topic_id="topic-1"),))
        giver.start()
        assert ids.wait_for_answer()
        assert monotonic() - began < 30
        giver.join()
    (answer,) = posted
    assert (answer.keyspace, answer.ask, answer.topic_id, answer.error) == ("people", 7, "topic-1", "")
    assert not ids.wait_for_answer(), "it was told of once"


class Loop:
    """What the control loop of a coordinator works with; `turns` remembers what it waited for."""

    def __init__(self, asks: bool) -> None:
        self.turns: list[str] = []
        self._stopping = Event()
        self._inbox: deque[Any] = deque()
        self._identity = SimpleNamespace(check=lambda: None)
        self._control = SimpleNamespace(poll=lambda: 0)
        self._reports = SimpleNamespace(poll=self._poll)
        self._topic_ids = SimpleNamespace(wait_for_answer=self._wait)
        self._sources = SimpleNamespace(watch=lambda *_, **__: None)
        self._leader = SimpleNamespace(
            stability=SimpleNamespace(next_due=lambda _: 1, asks=asks),
            handle=lambda event: [],
            keyspaces=list,
            looks_soon=False,
        )

    def _owned(self) -> Any:
        return self._leader

    def _say(self, _leader: object) -> None:
        pass

    def _carry_out(self, _instructions: object) -> None:
        pass

    def _take(self, _leader: object, item: str) -> None:
        self.turns.append(item)
        self._stopping.set()

    def _wait(self) -> bool:
        self.turns.append("asked")
        self._inbox.append("answer")
        return True

    def _poll(self, _limit: int, timeout: float) -> list[Any]:
        self.turns.append(f"reports {timeout * 1000:g}")
        if len(self.turns) > 3:
            self._stopping.set()
        return []


def test_while_kafka_is_asked_the_loop_waits_for_its_answer_and_not_for_reports() -> None:
    loop = Loop(asks=True)
    CoordinatorService._run(cast(CoordinatorService, loop))
    assert loop.turns == ["asked", "reports 0", "answer"]
    loop = Loop(asks=False)
    CoordinatorService._run(cast(CoordinatorService, loop))
    assert set(loop.turns) == {"reports 1"}
