"""Who looks whether a reader stands still: one client, however often it asks."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from keytide.kafka.clients import AdminClient, Consumer, Producer
from keytide.kafka.end_watch import ASK_S, IN_VAIN, EndWatch


class AnsweringAdmin(AdminClient):
    """Answers as the test says; a real client in all else."""

    def __init__(self, made: list[AnsweringAdmin]) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        made.append(self)
        self.end: int | None = 0

    def __len__(self) -> int:
        """Nothing waits in it, as in one whose broker is there."""
        return 0

    def list_offsets(self, *asked: Any, **_: Any) -> Any:
        answer: Future[Any] = Future()
        if self.end is None:
            answer.set_exception(KafkaException("nobody there"))
        else:
            answer.set_result(SimpleNamespace(offset=self.end))
        return dict.fromkeys(asked[0], answer)


class WatchWorld:
    def __init__(self) -> None:
        self.clients: list[AnsweringAdmin] = []
        self.now = 0.0
        self.watch = EndWatch(self.make, "topic", lambda: self.now)
        self.end: int | None = 0

    def make(self) -> AnsweringAdmin:
        return AnsweringAdmin(self.clients)

    def ask(self, position: int) -> bool:
        """A question that is due, and its answer."""
        self.now += ASK_S
        for one in self.clients:
            one.end = self.end
        assert not self.watch.stands_still(position)
        return self.watch.stands_still(position)


@pytest.fixture
def world() -> WatchWorld:
    return WatchWorld()


def test_one_client_asks_all_questions(world: WatchWorld) -> None:
    for _ in range(5):
        assert not world.ask(0)
    assert len(world.clients) == 1
    world.watch.close()


def test_a_reader_stands_still_when_two_answers_find_it_at_one_place(world: WatchWorld) -> None:
    world.ask(0)
    world.end = 7
    assert not world.ask(3)
    assert not world.ask(5), "it reads on"
    assert world.ask(5)
    assert not world.ask(7), "there is no more"
    world.watch.close()


def test_another_client_asks_when_one_is_not_answered(world: WatchWorld) -> None:
    world.ask(0)
    world.end = None
    for _ in range(IN_VAIN):
        world.ask(0)
    world.end = 0
    world.ask(0)
    assert len(world.clients) == 2
    world.watch.close()


@pytest.mark.parametrize("kind", [AdminClient, Producer, Consumer])
def test_a_client_is_true_whatever_waits_in_it(kind: type) -> None:
    """librdkafka's clients have a length, that of their queue: `client or make()` would drop an idle one."""
    idle: Any = type("Idle", (kind,), {"__len__": lambda _: 0})
    assert idle.__new__(idle)
