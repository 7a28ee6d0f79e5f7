"""What the control topic says, folded for one node. Pure.

Messages of terms lower than the newest seen, and of older incarnations, are ignored (R3). Stamps are kept for
the newest numbers only: a scan needs those that are published or that a session has seen.

Read by the endpoint's thread while the ingest thread writes: each change is one assignment or one dictionary
operation, and readers copy nothing and iterate nothing.
"""

from __future__ import annotations

from typing import Final

from keytide.messages import Published, StabilityTimestamp
from keytide.timestamp import Timestamp

STAMPS_KEPT: Final = 4_096
"""Stamps per keyspace: at one every 10 ms the last 40 seconds, about a kilobyte each."""

Stamp = tuple[int, Timestamp, int]
"""(incarnation, timestamp, fresh_at)."""


class Control:
    """The newest stamps and published numbers.

    Args:
        term: newest term known at the start (from the metadata).
    """

    def __init__(self, term: int = 0) -> None:
        self.term = term
        self._incarnations: dict[str, int] = {}
        self._stamps: dict[str, dict[int, Stamp]] = {}
        self._published: dict[str, int] = {}

    def raise_term(self, term: int) -> None:
        """The metadata shows a term."""
        self.term = max(self.term, term)

    def stamped(self, number: int, message: StabilityTimestamp) -> bool:
        """Take in a stability timestamp; False when it is to be ignored."""
        if not self._valid(message.keyspace, message.term, message.incarnation):
            return False
        stamps = self._stamps.setdefault(message.keyspace, {})
        stamps[number] = (message.incarnation, message.timestamp, message.fresh_at)
        while len(stamps) > STAMPS_KEPT:
            del stamps[next(iter(stamps))]
        return True

    def publish(self, message: Published) -> dict[str, int]:
        """Take in published numbers; returns those that are new, by index id."""
        if not self._valid(message.keyspace, message.term, message.incarnation):
            return {}
        new = {
            index: number
            for index, number in message.numbers.items()
            if number > self._published.get(index, -1)
        }
        self._published.update(new)
        return new

    def stamp(self, keyspace: str, number: int) -> Stamp | None:
        return self._stamps.get(keyspace, {}).get(number)

    def published(self, index: str) -> int | None:
        return self._published.get(index)

    def forget_index(self, index: str) -> None:
        """An index was dropped."""
        self._published.pop(index, None)

    def _valid(self, keyspace: str, term: int, incarnation: int) -> bool:
        if term < self.term or incarnation < self._incarnations.get(keyspace, 0):
            return False
        self.term = term
        self._incarnations[keyspace] = incarnation
        return True
