"""Whether what a build reads is of one log, and of the one that it has read before. Pure (R15, R28).

Theory of operation
===================
Spark reads offsets and knows nothing of leader epochs. After an unclean election the same offsets are other
records, and nobody else need notice: projectors may have read none of the lost ones. So the driver looks at
the source's past (`keytide.model.log_history`) itself, before its first micro-batch and after each one is
read, before the batch's ends are sent:

* *lost*: the place that it had read up to, with its leader epoch, is not on the log any more, or the log ends
  below what the batch covers. What slices have is of another branch: the build must begin again.
* *mixed*: a partition's leader has changed since the look before, so what was read may be of either log. The
  batch is run again; nothing of it counts without its end (R22).
* else all of the batch is of the log that was looked at, and its end gets that log's leader epochs. They are
  written down before the batch's ends are sent, and are part of every report: when the driver has passed,
  the coordinator looks once more whether they are on the log. From then on it knows how far the build has
  read, and holds what is lost against that.

An election that lost nothing mixes nothing below its beginning: where the new leader was next after the one
that was looked at, and has that one's epoch past the end of the batch, both have the same records there.
"""

from __future__ import annotations

from keytide.errors import KeytideError
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.model.timestamp import Place, Timestamp

_NOTHING = PartitionHistory(0, 0)


class ReadLostError(KeytideError):
    """What the build has read is no longer on the log: it must begin again, from its beginning."""

    problem_type = "read-lost"


def lost(read: Timestamp, now: LogHistory) -> str:
    """Why what was read up to `read` is not on the log, "" when it is."""
    found = now.diverging({p: place for p, place in read.places.items() if place.epoch >= 0})
    return "; ".join(
        f"partition {p} was read up to offset {read.offset(p)} (leader epoch {read.place(p).epoch}), and has "
        f"other records, or none, from {parting.offset} on (leader epoch {parting.epoch})"
        for p, parting in found.items()
    )


def cut_short(end: Timestamp, now: LogHistory) -> str:
    """Why a micro-batch up to `end` cannot be read any more, "" when it can."""
    ends = {p: now.partitions.get(p, _NOTHING).high for p in end.places}
    return "; ".join(
        f"partition {p} ends at {high}, and had records up to {end.offset(p)}"
        for p, high in sorted(ends.items())
        if high < end.offset(p)
    )


def stale(before: LogHistory, now: LogHistory) -> list[int]:
    """Partitions of which a leader answered that was replaced before the look before."""
    return [p for p, known in sorted(before.partitions.items()) if now.stale(p, known.leader_epoch)]


def mixed(before: LogHistory, now: LogHistory, start: Timestamp, end: Timestamp) -> list[int]:
    """Partitions of which what was read of [start, end) between two looks may be of two logs."""
    return [
        p
        for p in sorted(end.places)
        if end.offset(p) > start.offset(p)
        and not _same(before.partitions.get(p, _NOTHING), now.partitions.get(p, _NOTHING), end.offset(p))
    ]


def _same(before: PartitionHistory, now: PartitionHistory, end: int) -> bool:
    if before.leader_epoch == now.leader_epoch:
        return True
    reach = dict(now.branches).get(before.leader_epoch, 0)
    return now.leader_epoch == before.leader_epoch + 1 and reach >= end


def known(position: Timestamp, read: Timestamp) -> Timestamp:
    """A position with the leader epochs that are known of `read`."""
    places = {p: read.places.get(p, place) for p, place in position.places.items()}
    same = {p: place for p, place in places.items() if place.offset == position.offset(p)}
    return Timestamp({**position.places, **same}, position.topic_id)


def placed(end: Timestamp, read: Timestamp, now: LogHistory) -> Timestamp:
    """The end of a micro-batch with the leader epochs of the log that it was read from.

    Args:
        read: what was read before, whose places stay where nothing came.
    """
    places: dict[int, Place] = {}
    for p, place in sorted(end.places.items()):
        old = read.places.get(p)
        epoch = now.partitions.get(p, _NOTHING).epoch_below(place.offset)
        places[p] = old if old is not None and old.offset >= place.offset else Place(place.offset, epoch)
    return Timestamp(places, end.topic_id)
