"""What a topic's log says of its own past, and which places are still on it. Pure.

Every record carries the *leader epoch* under which it was written; a new leader has a higher one. A log is a
chain of branches (epoch, end): an epoch's records lie between the end of the branch before and its own. After
an unclean election the new leader's log lacks what it had not copied, and its epoch begins lower than the old
one's records reached. So a place (offset, epoch of the record below it) is on the log if the log has that
epoch and it reaches that far (KIP-101, KIP-320). "The log has a record at that offset" is not enough: it may
be another one.

Two looks at one log may differ by what was appended; a branch that another one follows never grows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keytide.model.timestamp import Place


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """One partition's log.

    Attributes:
        low: first offset that is still there.
        high: its end for readers (high watermark).
        leader_epoch: of its leader now.
        branches: (epoch, end) in ascending order, down to some epoch or to the first offset; empty when they
            are not to be had (then offsets alone are judged).
        stable: its end for read_committed readers.
    """

    low: int
    high: int
    leader_epoch: int = -1
    branches: tuple[tuple[int, int], ...] = ()
    stable: int = 0

    def parting(self, place: Place) -> Place | None:
        """None when the place is on this log (its tail as well); else where its history and the log's part,
        as (first offset that may differ, epoch of the log from there on). The offset is an upper bound where
        the log has nothing at all of the place's epoch.

        A place of unknown epoch, or one below everything that is left, is judged by its offset alone.
        """
        if place.offset <= 0:
            return None
        if place.epoch < 0 or not self.branches:
            return None if place.offset <= self.high else Place(self.high, self._after(place.epoch))
        below = [branch for branch in self.branches if branch[0] <= place.epoch]
        epoch, end = below[-1] if below else (place.epoch, self.low)
        if epoch == place.epoch and (end >= place.offset or place.offset <= self.low):
            return None
        if epoch != place.epoch:
            end = min(end, place.offset - 1)  # the record below it is another one here, if there is one
        return Place(min(end, place.offset), self._after(place.epoch))

    def epoch_below(self, offset: int) -> int:
        """The epoch of the record below an offset of this log, -1 when it is not known. For a position that
        lies past its last record, that of the marker there (the branches must go down far enough)."""
        return next((epoch for epoch, end in self.branches if end >= offset > 0), -1)

    def _after(self, epoch: int) -> int:
        """The first epoch of this log past `epoch`: what the place's branch was replaced by."""
        return next((later for later, _ in self.branches if later > epoch), max(self.leader_epoch, epoch + 1))


@dataclass(frozen=True, slots=True)
class LogHistory:
    """One topic's logs at one moment.

    Attributes:
        topic_id: Kafka's id of the topic, "" when it does not exist.
        partitions: by number.
    """

    topic_id: str = ""
    partitions: Mapping[int, PartitionHistory] = field(default_factory=dict)

    def parting(self, partition: int, place: Place) -> Place | None:
        """As `PartitionHistory.parting`; a partition that the topic has not is an empty log."""
        return self.partitions.get(partition, PartitionHistory(0, 0)).parting(place)

    def stale(self, partition: int, epoch: int) -> bool:
        """Whether the leader that answered is older than one that was heard of: it was replaced, does not
        know it yet, and its log says nothing. (In one topic, epochs never go back.)"""
        known = self.partitions.get(partition)
        return known is not None and 0 <= known.leader_epoch < epoch

    def diverging(self, places: Mapping[int, Place]) -> dict[int, Place]:
        """The partitions whose place is no longer on the log, with where the histories part."""
        found = {partition: self.parting(partition, place) for partition, place in sorted(places.items())}
        return {partition: parting for partition, parting in found.items() if parting is not None}
