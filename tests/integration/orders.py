"""Orders that change all the time, an index on them, and readers and followers who compare it with its source
meanwhile."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from keytide.process.worker import Worker
from tests.integration.world import World
from tests.oracle import Source, rows_of, shown
from tests.waiting import wait_for

TOPIC: Final = "orders"
INDEX: Final = "orders_customer"
PAUSE_S: Final = 0.2
"""Between two scans of a reader: without it, comparing takes what the cluster needs."""


def order(chance: random.Random, _: int) -> tuple[str, Any]:
    id_ = f"order{chance.randrange(5_000)}"
    if chance.random() < 0.1:
        return id_, None
    return id_, {"customer": f"c{chance.randrange(200)}", "total": chance.randrange(10_000)}


def by_customer(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["customer"], document["total"]]


class Watcher(ABC):
    """Looks at the index in a thread while the block runs; whoever waits for more of it is told its error."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._worker = Worker(type(self).__name__, None, self._run)

    @abstractmethod
    def _run(self) -> None:
        """Look, until it is to stop."""

    def _wait(self, condition: Callable[[], bool], what: str, limit_s: float) -> None:
        """Wait for something that it brings about."""
        wait_for(lambda: condition() or not self._worker.running, what, limit_s)
        self._worker.check()

    def __enter__(self) -> Self:
        self._worker.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close(60)


class Follower(Watcher):
    """The tail of the index through one node, whose events are applied to the rows that it began with: none
    removes what is not there, or adds what is. It must not end.

    Args:
        through: number of the node.
    """

    def __init__(self, world: World, through: int) -> None:
        super().__init__(world)
        self._through = through
        self._asked = threading.Event()

    def _run(self) -> None:
        rows: set[str] = set()
        source = Source(self._world.bootstrap, TOPIC)
        with self._world.client(self._through) as client, client.tail(INDEX, initial=True) as tail:
            for event in tail:
                removed, added = (
                    {repr((row.key, row.id)) for row in side} for side in (event.removed, event.added)
                )
                assert removed <= rows, f"removed what was not there: {sorted(removed - rows)[:3]}"
                assert not added & rows, f"added what was there: {sorted(added & rows)[:3]}"
                rows = rows - removed | added
                if self._asked.is_set():
                    offsets = {int(p): place["offset"] for p, place in event.timestamp.items()}
                    assert rows == set(map(repr, shown(rows_of(source.newest(offsets), by_customer))))
                    self._asked.clear()
                if self._worker.stopping.is_set():
                    return
        raise AssertionError("the tail has ended")

    def check(self) -> None:
        """Wait until its rows were compared with the source, at the timestamp of a later event."""
        self._asked.set()
        self._wait(lambda: not self._asked.is_set(), "a tail goes on", 60)


class Readers(Watcher):
    """Scans of the whole index through one node after the other, page by page, compared with the source. None
    may fail but through a node that is away.

    Args:
        through: numbers of the nodes that are asked.
    """

    def __init__(self, world: World, through: Iterable[int]) -> None:
        super().__init__(world)
        self._through = list(through)
        self.scans = 0

    def _run(self) -> None:
        while not self._worker.stopping.is_set():
            for node in self._through:
                self._world.check(INDEX, TOPIC, by_customer, (False, True), node=node)
                self.scans += 1
                self._worker.stopping.wait(PAUSE_S)

    def go_on(self, scans: int = 6) -> None:
        """Wait until so many more have ended."""
        until = self.scans + scans
        self._wait(lambda: self.scans >= until, "scans go on", 120)
