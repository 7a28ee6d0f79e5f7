"""Listens to a cluster's `control` topic: when stability timestamps, published numbers and terms come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from benchmarks.asking import SOON_S
from benchmarks.patience import limit
from keytide.errors import invariant
from keytide.model.topics import Topics
from keytide.wire.messages import Leading, Published, StabilityTimestamp, decode


class Heard(NamedTuple):
    """What was new at a moment, by the monotonic clock.

    Attributes:
        term: of the leader that said it.
        number: the newest that was published until then; -1 before the first.
    """

    at: float
    term: int
    number: int


class Stamps:
    """Listens to `control`: when stability timestamps of the benchmark's keyspace come, when a term begins,
    and, where it has one index, when a number is published that is newer than any before."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-stamps",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
                "reconnect.backoff.max.ms": 100,
            }
        )
        topic = Topics("keytide").control
        end = self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
        self._consumer.assign([TopicPartition(topic, 0, end)])
        self._changed = threading.Condition()
        self._stop = False
        self.times: list[float] = []
        self._heard: list[Heard] = [Heard(time.monotonic(), -1, -1)]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop:
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            said = decode(message.value() or b"")
            with self._changed:
                if isinstance(said, StabilityTimestamp):
                    self.times.append(time.monotonic())
                if isinstance(said, Leading | Published):
                    self._note(said)
                self._changed.notify_all()

    def _note(self, said: Leading | Published) -> None:
        """(A leader that was replaced may say something still: that is nothing new.)"""
        newest = self._heard[-1]
        number = max(said.numbers.values(), default=-1) if isinstance(said, Published) else -1
        if said.term > newest.term or (said.term == newest.term and number > newest.number):
            self._heard.append(Heard(time.monotonic(), said.term, max(number, newest.number)))

    def wait_after(self, moment: float) -> float:
        """When the first timestamp after `moment` came; waits for it."""
        with self._changed:
            invariant(
                self._changed.wait_for(lambda: bool(self.times) and self.times[-1] > moment, limit(SOON_S)),
                "BenchmarkStamps",
                "no stability timestamp comes",
            )
            return next(at for at in self.times if at > moment)

    @property
    def newest(self) -> Heard:
        """What was new last."""
        with self._changed:
            return self._heard[-1]

    def wait_term(self, term: int) -> float:
        """When a term after this one began; waits for it."""
        return self._first(lambda one: one.term > term, f"nobody leads after term {term}")

    def wait_number(self, heard: Heard) -> float:
        """When a number newer than one was published under a later term; waits for it."""
        return self._first(
            lambda one: one.term > heard.term and one.number > heard.number, "no new number is published"
        )

    def _first(self, is_it: Callable[[Heard], bool], otherwise: str) -> float:
        with self._changed:
            found = self._changed.wait_for(
                lambda: [one.at for one in self._heard if is_it(one)], limit(SOON_S)
            )
        invariant(bool(found), "BenchmarkStamps", otherwise)
        return found[0]

    def longest(self, begin: float, end: float) -> float:
        """The longest time in a stretch of it, its bounds included, without a new number: seconds."""
        with self._changed:
            pairs = pairwise(self._heard)
            risen = [now.at for before, now in pairs if now.number > before.number]
        times = [begin, *(at for at in risen if begin < at < end), end]
        return max(later - earlier for earlier, later in pairwise(times))

    def between(self, begin: float, end: float) -> list[float]:
        """Seconds between the timestamps of a stretch of time, its bounds included."""
        with self._changed:
            times = [begin, *(at for at in self.times if begin < at < end), end]
        return [later - earlier for earlier, later in pairwise(times)]

    def __enter__(self) -> Stamps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()
        self._consumer.close()
