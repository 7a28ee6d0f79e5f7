"""Where reading begins: commits as they are written, checked and read back, and the first offset of a new
activation. Pure.

Theory of operation: a commit says offset, leader epoch, catalog version, topic id and incarnation (R13, R15,
R30). On assignment it is first cut where later rollbacks have cut (`beginning`), then held against what the
topic's log is now (`take_over`). What does not fit is refused with a reason and never guessed.

A commit of an older incarnation is worth what lies below the cut, whoever made it: a projector that had not
heard of the rollback, one that died before it could, or a commit that was answered late. So commits need no
other fence than the group's.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.model.timestamp import Place
from projector.progress.events import Assigned, Checked, Key, Located, Refused

log = logging.getLogger(__name__)


class Committed(NamedTuple):
    """A commit as the group keeps it; offset None when there is none."""

    offset: int | None
    epoch: int
    metadata: str


class CommitMetadata(msgspec.Struct, frozen=True):
    """The JSON text in a commit.

    Attributes:
        v: catalog version that the partition works under from this offset on.
        topic_id: Kafka's id of the topic that the offset belongs to.
        epoch: leader epoch of the last record below the offset, -1 when unknown.
        i: incarnation under which it was read.
        t: offsets between that record and the offset (`projector.progress.events.Reached.tail`).
    """

    v: int
    topic_id: str
    epoch: int = -1
    i: int = 0
    t: int = 0


def encode_metadata(version: int, topic_id: str, epoch: int, incarnation: int = 0, tail: int = 0) -> str:
    return msgspec.json.encode(CommitMetadata(version, topic_id, epoch, incarnation, tail)).decode()


def decode_metadata(text: str) -> CommitMetadata:
    """What a commit says; version 0 for one that is not ours (an operator moved the offsets)."""
    try:
        return msgspec.json.decode(text, type=CommitMetadata)
    except msgspec.MsgspecError:
        return CommitMetadata(0, "")


class Beginning(NamedTuple):
    """Where reading should go on, as far as the commit and the dictionary know.

    Attributes:
        place: None when there never was a commit.
        tail: of the place, as in `CommitMetadata.t`.
        version, topic_id: of the commit; the topic id is the dictionary's where a rollback has cut.
        incarnation: under which reading goes on; one later than the dictionary's waits for it.
        cut: a rollback lies between the commit and now, and takes something of it back.
    """

    place: Place | None
    tail: int
    version: int
    topic_id: str
    incarnation: int
    cut: bool = False


def beginning(key: Key, commit: Committed, catalog: Catalog) -> Beginning:
    """The commit, cut where rollbacks since have cut."""
    said = decode_metadata(commit.metadata)
    record = catalog.keyspace(key.keyspace)
    incarnation = record.incarnation if record else 0
    if commit.offset is None:
        return Beginning(None, 0, said.v, said.topic_id, incarnation)
    if said.v == 0:
        log.warning("%s: the commit at %d is not ours; did another tool make it?", key, commit.offset)
    place = Place(commit.offset, commit.epoch, said.t)
    limit = History.of(catalog, key.keyspace).limit(said.i)
    if limit is None:
        return Beginning(place, said.t, said.v, said.topic_id, max(said.i, incarnation))
    topic_id = record.topic_id if record else ""
    if limit.offset(key.partition) >= place.offset:
        return Beginning(place, said.t, said.v, topic_id, incarnation)
    return Beginning(
        limit.place(key.partition), limit.place(key.partition).tail, said.v, topic_id, incarnation, cut=True
    )


def take_over(
    key: Key, begin: Beginning, history: LogHistory, parting: Place | None, catalog: Catalog
) -> Assigned | Refused:
    """What to make of a partition that the group gave us.

    Args:
        history: of the topic now; empty when there is none.
        parting: where the log and `begin` part, None when it is on the log.
    """
    place = begin.place or Place(0)
    record = catalog.keyspace(key.keyspace)
    if begin.incarnation > (record.incarnation if record else 0):  # the catalog here is behind: wait for it
        return Assigned(key, place.offset, begin.version, place.epoch, begin.incarnation, begin.tail)
    known = history.partitions.get(key.partition)
    if not history.topic_id:
        return Refused(key, place.offset, begin.version, "the topic is gone", place.epoch, begin.incarnation)
    ours = record.topic_id if record else ""
    lost = ""
    if ours not in ("", history.topic_id):
        lost = "the topic was deleted and made anew: offsets of the old one mean nothing in it"
    elif parting is not None and begin.topic_id in ("", history.topic_id):
        lost = _in_words(place, parting)
    if lost or known is None:
        return Refused(
            key,
            place.offset,
            begin.version,
            lost or "the topic has no such partition yet",
            place.epoch,
            begin.incarnation,
            bool(lost),
            history.topic_id,
        )
    if begin.place is None or begin.topic_id not in ("", history.topic_id):
        # (A commit from before the topic was made anew, of a keyspace that had no index then.)
        return Assigned(key, None, 0, -1, begin.incarnation, 0, known.leader_epoch)
    if place.offset < known.low:
        expired = known.low - place.offset
        log.warning("%s: up to %d records expired at %d before they were read", key, expired, known.low)
    epoch, tail = place.epoch, begin.tail
    if epoch < 0:  # what is there is what counts from now on
        epoch, tail = known.epoch_below(place.offset), 0
    return Assigned(key, place.offset, begin.version, epoch, begin.incarnation, tail, known.leader_epoch)


def _in_words(place: Place, parting: Place) -> str:
    return (
        f"what was read up to offset {place.offset} (leader epoch {place.epoch}) is no longer on the log: "
        f"from {parting.offset} on it has other records, or none (leader epoch {parting.epoch})"
    )


def check(
    key: Key, place: Place, incarnation: int, history: LogHistory, parting: Place | None, catalog: Catalog
) -> Checked | Refused:
    """What to make of a place that is being read from, after its leader has changed."""
    record, known = catalog.keyspace(key.keyspace), history.partitions.get(key.partition)
    reason = ""
    if record and record.topic_id and history.topic_id != record.topic_id:
        reason = "the topic was deleted and made anew while it was read"
    elif parting is not None or known is None:
        reason = _in_words(place, parting or Place(0))
    if reason or known is None:
        return Refused(
            key, place.offset, 0, reason, place.epoch, incarnation, lost=True, topic_id=history.topic_id
        )
    return Checked(key, known.leader_epoch)


def first_place(key: Key, known: PartitionHistory, catalog: Catalog, *, has_commit: bool) -> Located:
    """Where live reading of a partition begins, for which nothing was emitted so far.

    At the end: history is the backfill's. But a partition that came after a build sampled its load timestamp
    is none of that build's: it is read from position 0. And one that was activated before, whose commit is
    gone (the group's offsets expire when no projector runs for long, and Kafka forgets them with a topic that
    is deleted), goes on from its first activation, or from where a rollback since has cut: from the beginning
    of a topic that was made anew. Slices cut off what they have.
    """
    record = catalog.keyspace(key.keyspace)
    indexes = catalog.emitting(key.keyspace, record.version) if record else []
    builds = [build for build in (catalog.build(index.build or "") for index in indexes) if build is not None]
    if any(key.partition not in build.load_timestamp.places for build in builds):
        return Located(key, 0)
    history = History.of(catalog, key.keyspace)
    marks = []
    for build in builds:
        if key.partition in build.low_watermark:
            limit = history.limit(build.incarnation)
            cut = build.low_watermark[key.partition] if limit is None else limit.offset(key.partition)
            marks.append(min(cut, build.low_watermark[key.partition]))
    if marks and not has_commit:
        log.error("%s: its commit is gone; reading again from %d", key, min(marks))
        return Located(key, min(marks))
    return Located(key, known.stable, known.epoch_below(known.stable))
