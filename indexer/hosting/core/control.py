"""What the control topic says, folded for one node. Pure.

Messages of terms lower than the newest seen are ignored (R3), and so are those of another incarnation than
the dictionary shows: older ones are void, newer ones come again (R7) once the dictionary has told of the
rollback. So what is kept is always of one history. A rollback voids what was kept past it (R31). Stamps are
kept for the newest numbers only: a scan needs those that are published or that a session has seen.

Read by the endpoint's thread while the ingest thread writes: each change is one assignment or one dictionary
operation, and readers copy nothing and iterate nothing.
"""

from __future__ import annotations

from typing import Final

from keytide.catalog.history import History
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import Published, StabilityTimestamp

STAMPS_KEPT: Final = 4_096
"""Stamps per keyspace: at one every 10 ms the last 40 seconds, about a kilobyte each."""

_NOBODY: Final[frozenset[str]] = frozenset()
KeyspaceStamp = tuple[int, Timestamp, int]
"""(incarnation, timestamp, fresh_at)."""


class Control:
    """The newest stamps and published numbers.

    Args:
        term: newest term known at the start (from the metadata).
    """

    def __init__(self, term: int = 0) -> None:
        self.term = term
        self._histories: dict[str, History] = {}
        self._stamps: dict[str, dict[int, KeyspaceStamp]] = {}
        self._published: dict[str, tuple[int, str, int]] = {}
        """Index id -> (number, keyspace, incarnation)."""
        self._behind: dict[str, dict[str, dict[str, list[int]]]] = {}
        """By keyspace, as the newest `Published` has them."""

    def raise_term(self, term: int) -> None:
        """The metadata shows a term."""
        self.term = max(self.term, term)

    def show_history(self, keyspace: str, history: History) -> None:
        """The dictionary tells which rollbacks a keyspace has gone through: what they void is forgotten."""
        if self._histories.get(keyspace) == history:
            return
        self._histories[keyspace] = history
        self._stamps[keyspace] = {
            number: stamp
            for number, stamp in self._stamps.get(keyspace, {}).items()
            if history.number_holds(number, stamp[0])
        }
        self._published = {
            index: one
            for index, one in self._published.items()
            if one[1] != keyspace or history.number_holds(one[0], one[2])
        }

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
        new: dict[str, int] = {}
        for index, number in message.numbers.items():
            known = self._published.get(index)
            if known is None or number > known[0]:
                new[index] = number
                self._published[index] = (number, message.keyspace, message.incarnation)
        self._behind[message.keyspace] = message.behind
        return new

    def stamp(self, keyspace: str, number: int) -> KeyspaceStamp | None:
        return self._stamps.get(keyspace, {}).get(number)

    def published(self, index: str) -> int | None:
        """The newest common number of an index: from before a rollback until there is a newer one."""
        known = self._published.get(index)
        return None if known is None else known[0]

    def behind(self, index: str, slice_number: int) -> frozenset[str]:
        """The nodes whose copies of a slice the leader did not wait for, but for another one."""
        known = self._published.get(index)
        behind = None if known is None else self._behind.get(known[1])
        if not behind:
            return _NOBODY
        return frozenset(node for node, of in behind.items() if slice_number in of.get(index, ()))

    def forget_index(self, index: str) -> None:
        """An index was dropped."""
        self._published.pop(index, None)

    def _valid(self, keyspace: str, term: int, incarnation: int) -> bool:
        if term < self.term:
            return False
        self.term = term
        history = self._histories.get(keyspace)
        return incarnation == (history.incarnation if history is not None else 0)
