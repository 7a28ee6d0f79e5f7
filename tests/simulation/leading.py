"""A coordinator's leader, as far as slices notice: merges progress, stamps, publishes common numbers (by the
real `Holdings`). A deposed leader goes on for a while under its old term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.holdings import Holdings
from keytide.messages import Published, StabilityTimestamp
from keytide.timestamp import Timestamp
from tests.simulation.projecting import KEYSPACE
from tests.simulation.topics import SLICES, SNAPSHOTS_KEPT
from tests.simulation.wire import TOPIC_ID

if TYPE_CHECKING:
    from tests.simulation.world import World


class SimLeader:
    """One term.

    Args:
        start: what it takes over: nothing below it is lost (it reads control first).
    """

    def __init__(self, world: World, term: int, start: Timestamp) -> None:
        self.world = world
        self.term = term
        self.timestamp = start
        self.alive = True
        self._holdings = Holdings(SNAPSHOTS_KEPT, 32)
        self._published: dict[str, int] = {}

    def progress(self, acked: dict[int, int]) -> None:
        """A projector's report; progress only grows."""
        self.timestamp = self.timestamp.merge_max(Timestamp.of(acked, TOPIC_ID))

    def stamp(self) -> None:
        """Issue a timestamp, changed or not (R7)."""
        if self.alive:
            now = self.world.schedule.now
            self.world.topics.control.append(
                StabilityTimestamp(KEYSPACE, self.term, 0, self.timestamp, now, now)
            )

    def acknowledged(self, index: str, slice_number: int, number: int) -> None:
        """A slice holds a number; publish the newest that all slices of a READY index have held."""
        if not self.alive:
            return
        self._holdings.acknowledge(str(slice_number), index, [slice_number], number)
        number = self._holdings.newest_common(index, SLICES)
        if number <= self._published.get(index, -1):
            return
        if self.world.ready(index, number):
            self._published[index] = number
            self._holdings.passed(index, number)
            self.world.topics.control.append(Published(KEYSPACE, self.term, 0, {index: number}))
            self.world.check_published(index, number)
