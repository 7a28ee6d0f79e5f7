"""Orders that change all the time, an index on them, and readers who compare it with its source meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from typing import Any, Final, Self

from tests.integration.world import World, wait_for

TOPIC: Final = "orders"
INDEX: Final = "orders_customer"


def order(chance: random.Random, _: int) -> tuple[str, Any]:
    id_ = f"order{chance.randrange(5_000)}"
    if chance.random() < 0.1:
        return id_, None
    return id_, {"customer": f"c{chance.randrange(200)}", "total": chance.randrange(10_000)}


def by_customer(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["customer"], document["total"]]


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
