"""Orders that change all the time, an index on them, and readers and followers who compare it with its source
meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from typing import Any, Final, Self

from tests.integration.world import World, wait_for
from tests.oracle import Source, rows_of, shown

TOPIC: Final = "orders"
INDEX: Final = "orders_customer"


def order(chance: random.Random, _: int) -> tuple[str, Any]:
    id_ = f"order{chance.randrange(5_000)}"
    if chance.random() < 0.1:
        return id_, None
    return id_, {"customer": f"c{chance.randrange(200)}", "total": chance.randrange(10_000)}


def by_customer(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["customer"], document["total"]]


class Follower:
    """The tail of the index through one node, whose events are applied to the rows that it began with, in a
    thread until it is stopped: none removes what is not there, or adds what is. It must not end.

    Args:
        through: number of the node.
    """

    def __init__(self, world: World, through: int) -> None:
        self._world, self._through = world, through
        self._stop, self._asked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
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
                    if self._stop.is_set():
                        return
            raise AssertionError("the tail has ended")
        except BaseException as error:
            self.error = error
            raise

    def check(self) -> None:
        """Wait until its rows were compared with the source, at the timestamp of a later event."""
        self._asked.set()
        wait_for(lambda: not self._asked.is_set() or self.error is not None, "a tail goes on", 60)
        assert self.error is None, self.error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


class Readers:
    """Scans of the whole index through one node after the other, page by page, compared with the source, in a
    thread until it is stopped. None may fail but through a node that is away.

    Args:
        through: numbers of the nodes that are asked.
    """

    def __init__(self, world: World, through: Iterable[int]) -> None:
        self._world, self._through = world, list(through)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None
        self.scans = 0

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for node in self._through:
                    self._world.check(INDEX, TOPIC, by_customer, (False, True), node=node)
                    self.scans += 1
        except BaseException as error:
            self.error = error
            raise

    def go_on(self, scans: int = 6) -> None:
        """Wait until so many more have ended."""
        until = self.scans + scans
        wait_for(lambda: self.scans >= until or self.error is not None, "scans go on", 120)
        assert self.error is None, self.error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
