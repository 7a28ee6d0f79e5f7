"""Vector timestamps: for every source partition of a keyspace, the next offset and the branch that it belongs
to.

A timestamp names a moment of the whole keyspace: everything below its offsets has happened, nothing at or
past them has. A missing component is offset 0 (a partition that was added later starts there). Timestamps are
only partially ordered: `covers` is "at or past in every partition".

Source: the timestamp vectors of Couchbase's secondary index design
(`secondary/docs/design/markdown/terminology.md`), with (leader epoch, topic id) in the place of the vbuuid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

UNKNOWN_EPOCH = -1
TABLE_PARTITION: Final = 0xFFFF_FFFF
"""Stands for the source partition of a version that is a row of the table that a build began with
(`keytide.catalog.table_origin`). Such a version is older than every record of every partition, and that a
document has both is nothing strange. (The largest number that a stored record has room for; numbers of
partitions in Kafka are below 2^31.)"""


class Place(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A place in one source partition.

    Attributes:
        offset: the next offset, exclusive: everything below it is included.
        epoch: the leader epoch of the last record below it, or of the marker there; -1 when unknown.
        tail: offsets between that record and `offset`: transaction markers and the like, which may be of a
            later epoch. Only for asking whether the place is on a log (`keytide.kafka.history`).
    """

    offset: int
    epoch: int = UNKNOWN_EPOCH
    tail: int = 0


ORIGIN = Place(0)


class Timestamp(msgspec.Struct, frozen=True, array_like=True):
    """A vector timestamp over the partitions of one keyspace. Immutable.

    Attributes:
        places: partition number to `Place`; a partition that is not named is at offset 0.
        topic_id: Kafka's id of the topic, "" when unknown. A topic that was deleted and made anew has another
        one.
    """

    places: dict[int, Place] = {}
    topic_id: str = ""

    @classmethod
    def of(cls, offsets: Mapping[int, int], topic_id: str = "") -> Timestamp:
        """A timestamp from plain next offsets (no epochs)."""
        return cls({partition: Place(offset) for partition, offset in offsets.items()}, topic_id)

    def place(self, partition: int) -> Place:
        return self.places.get(partition, ORIGIN)

    def offset(self, partition: int) -> int:
        place = self.places.get(partition)
        return 0 if place is None else place.offset

    def offsets(self) -> dict[int, int]:
        """Next offsets by partition, in partition order."""
        return {partition: self.places[partition].offset for partition in sorted(self.places)}

    def covers(self, other: Timestamp) -> bool:
        """Whether this is at or past `other` in every partition."""
        mine = self.places  # asked for at every message: a loop takes half as long as `all`
        for partition, place in other.places.items():
            if mine.get(partition, ORIGIN).offset < place.offset:
                return False
        return True

    def same_cut(self, other: Timestamp) -> bool:
        """Whether both name the same offsets."""
        return self == other or (self.covers(other) and other.covers(self))  # (equal is soon told)

    def merge_max(self, other: Timestamp) -> Timestamp:
        """The earliest timestamp that covers both."""
        return self._merge(other, larger=True)

    def merge_min(self, other: Timestamp) -> Timestamp:
        """The latest timestamp that both cover."""
        return self._merge(other, larger=False)

    def _merge(self, other: Timestamp, *, larger: bool) -> Timestamp:
        merged: dict[int, Place] = {}
        for partition in sorted(self.places.keys() | other.places.keys()):
            mine, theirs = self.place(partition), other.place(partition)
            merged[partition] = mine if (mine.offset >= theirs.offset) is larger else theirs
        return Timestamp(merged, self.topic_id or other.topic_id)

    def advance(self, partition: int, place: Place) -> Timestamp:
        """This timestamp with one component replaced."""
        return Timestamp({**self.places, partition: place}, self.topic_id)

    def as_json(self) -> dict[str, dict[str, int]]:
        """As answers and reports have it: source partition -> {offset, epoch}."""
        return {
            str(partition): {"offset": place.offset, "epoch": place.epoch}
            for partition, place in sorted(self.places.items())
        }

    def documents_to(self, other: Timestamp) -> int:
        """How many offsets lie between this and a later timestamp (0 for partitions where it is not
        later)."""
        return sum(max(0, place.offset - self.offset(p)) for p, place in other.places.items())


def smallest(timestamps: Iterable[Timestamp]) -> Timestamp:
    """The latest timestamp that all of `timestamps` cover; the zero timestamp for none."""
    result: Timestamp | None = None
    for timestamp in timestamps:
        result = timestamp if result is None else result.merge_min(timestamp)
    return result or Timestamp()
