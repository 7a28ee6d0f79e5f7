"""What a repair brings to a slice: what is heard of its documents, and when a correction counts. Pure.

Theory of operation
===================
A repair finds out from the source what a slice must hold of some documents at a timestamp T, and the slice
has gone on by the time it is told. Of a document of which it has heard since, its own knowledge is newer, and
the correction must not touch it. The store alone cannot tell: a document that was deleted since T, or moved
to another slice, leaves nothing behind that would say so, and a correction would raise the dead. So (ADR 19):

    RepairWatch   from here on the slice remembers what it hears of these documents: (document, source
                  partition, offset), a few bytes each
    ...           the repair samples the ends of the source, after the watch is in the queues, and takes a T
                  at or past them: every version at or past T lies behind the watch in the queue
    Corrections   the truth at T. Once the slice has applied T, and has read in the queue all that it has
                  applied past T, it corrects those of which nothing was heard in [T, what is applied), and
                  spares the others
    RepairEnd     it forgets

What decides is the order of the queue alone, not the moment of reading: the position that a restart reads
from stays at the watch until the round is over (R6), so whoever reads the queue again, after a crash or a
rollback, comes to the same end. For the same reason segments are taken down here as they lie in the queue,
duplicates too; of those of an older incarnation only what holds.

A slice that cannot judge (it has begun to read behind the watch, the watch took too long or heard too much, a
rollback has voided T) leaves everything as it is and says so; the repair looks again and does another round.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from indexer.store.interface import UNNUMBERED, Applied
from keytide.catalog.history import History
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.columns import hashes_of, heard_hashes, heard_offsets
from keytide.wire.corrections import correction_ids
from keytide.wire.messages import Corrections, RepairEnd, RepairStatus, RepairWatch, Segment

HEARD_LIMIT: Final = 1_000_000
"""Versions remembered in one round, 24 bytes each. A round that hears more of its documents is given up."""
WATCH_LIMIT_MS: Final = 3_600_000
"""How long a watch may hold back the queue position: a repair that died does not end its round."""

_Ints = npt.NDArray[np.int64]


class DueCorrections(NamedTuple):
    """Corrections that may be made now.

    Attributes:
        spared: ordinals of the documents that must be left as they are.
    """

    corrections: Corrections
    spared: frozenset[int]


@dataclass(slots=True)
class _RepairRound:
    """One round.

    Attributes:
        position: queue offset of its first message.
        read: source partition -> ranges that segments behind it had, apart from each other and ascending.
        hashes: u64[w], ascending, of its documents.
        heard: (index into `hashes`, source partition, offset) of what was heard of them, in blocks i64[3, n].
        versions: how many that are.
        since: when it was seen first, by the shell's clock.
    """

    job: str
    round: int
    position: int
    hashes: npt.NDArray[np.uint64]
    read: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    heard: list[_Ints] = field(default_factory=list)
    versions: int = 0
    ending: bool = False
    since: int | None = None

    @property
    def name(self) -> tuple[str, int]:
        return (self.job, self.round)


class Correcting:
    """The repairs of one slice.

    Args:
        history: of the keyspace.
        number: of the newest snapshot in the state that the slice was opened with.

    Attributes:
        status: of the last round that was heard of, None when none; says nothing of what is durable.
    """

    def __init__(self, history: History, number: int = UNNUMBERED) -> None:
        self.status: RepairStatus | None = None
        self._made: tuple[Applied, int] | None = None
        """The state that the last change was made in, and the newest snapshot's number then."""
        self._opened = number
        self._history = history
        self._watch: _RepairRound | None = None
        self._pending: deque[Corrections] = deque()
        self._making: Corrections | None = None

    def again(self) -> Correcting:
        """Another one, to hear the queue once more: what was corrected is made again then, changes nothing,
        and is as durable as it was."""
        other = Correcting(self._history, self._opened)
        other._made = self._made
        return other

    # --- messages --------------------------------------------------------------

    def message(self, message: RepairWatch | Corrections | RepairEnd, position: int) -> None:
        """A message of a repair, at a queue offset. One that comes again changes nothing."""
        watch = self._watch
        known = watch is not None and watch.name == (message.job, message.round)
        match message:
            case RepairWatch():
                if not known:
                    self._begin(message, position)
            case Corrections():
                if not known or not self._history.holds(message.timestamp, message.incarnation):
                    self._void(message)
                elif message.sequence >= self._brought():
                    self._pending.append(message)
            case RepairEnd():
                if watch is not None and known:
                    watch.ending = True
                    self._forget_if_over()

    def hear(self, segment: Segment, limit: Place | None) -> None:
        """A segment, as it lies in the queue.

        Args:
            limit: where its branch ends in its source partition, None when it goes on.
        """
        watch = self._watch
        if watch is None:
            return
        end = segment.end if limit is None else min(segment.end, limit.offset)
        _join(watch.read.setdefault(segment.partition, []), segment.start, end)
        if segment.heard is None:
            return
        hashes = heard_hashes(segment.heard)
        places = np.searchsorted(watch.hashes, hashes)
        places[places == len(watch.hashes)] = 0
        rows = np.flatnonzero(watch.hashes[places] == hashes)
        if not len(rows):
            return
        offsets = heard_offsets(segment.heard, segment.start)[rows]
        block = np.stack([places[rows], np.full(len(rows), segment.partition), offsets]).astype(np.int64)
        if limit is not None:
            block = block[:, offsets < limit.offset]
        watch.heard.append(block)
        watch.versions += block.shape[1]
        if watch.versions > HEARD_LIMIT:
            self._give_up()

    def expire(self, now: int) -> None:
        """Give up a round that takes too long."""
        watch = self._watch
        if watch is None:
            return
        if watch.since is None:
            watch.since = now
        if now - watch.since > WATCH_LIMIT_MS:
            self._give_up()

    # --- what follows from it --------------------------------------------------------------

    def next(self, applied: Timestamp) -> DueCorrections | None:
        """Corrections to make on the state at `applied`; None when none can be made now."""
        watch = self._watch
        if watch is None or not self._pending or self._making is not None:
            return None
        if not applied.covers(self._pending[0].timestamp):
            return None
        if not self._has_read(self._pending[0].timestamp, applied):
            return None  # what is applied past it was heard before a restart, and is heard again
        corrections = self._making = self._pending.popleft()
        ids = correction_ids(corrections)
        hashes = hashes_of(ids, len(ids))
        newer = watch.hashes[self._heard_between(corrections.timestamp, applied)]
        spared = np.isin(hashes, newer) | ~np.isin(hashes, watch.hashes)
        return DueCorrections(corrections, frozenset(np.flatnonzero(spared).tolist()))

    def made(self, corrected: int, spared: int, applied: Applied, number: int) -> None:
        """The corrections that `next` gave are committed.

        Args:
            corrected: documents that have changed.
            applied: the state with them.
            number: of the newest snapshot, which is without them.
        """
        made, self._making = self._making, None
        if corrected:
            self._made = (applied, max(number, self._opened))
        known = self.status
        if made is not None and known is not None and (known.job, known.round) == (made.job, made.round):
            self.status = replace(
                known,
                sequences=known.sequences + 1,
                corrected=known.corrected + corrected,
                spared=known.spared + spared,
            )
        self._forget_if_over()

    def told(self, durable: Applied) -> RepairStatus | None:
        """For the heartbeat.

        Args:
            durable: the state that a crash goes back to.
        """
        if self.status is None or self._made is None:
            return self.status
        made, number = self._made
        further = durable.timestamp.covers(made.timestamp) and not made.timestamp.covers(durable.timestamp)
        if further or durable.number > number:  # (commits without a number look alike: a later state tells)
            self._made = None
            return self.status
        return replace(self.status, durable=False)

    def first_position(self) -> int | None:
        """Queue offset where the open round begins, None when none is (R6)."""
        return None if self._watch is None else self._watch.position

    # --- details --------------------------------------------------------------

    def _begin(self, message: RepairWatch, position: int) -> None:
        self._pending.clear()
        self._watch = None
        hashes = np.unique(np.frombuffer(message.hashes, "<u8"))
        watching = len(hashes) > 0 and message.incarnation <= self._history.incarnation
        if watching:
            self._watch = _RepairRound(message.job, message.round, position, hashes)
        self.status = RepairStatus(message.job, message.round, watching)

    def _brought(self) -> int:
        """The sequence that comes next."""
        making, watch = self._making, self._watch
        mine = making is not None and watch is not None and watch.name == (making.job, making.round)
        return len(self._pending) + mine + (self.status.sequences if self.status else 0)

    def _void(self, message: Corrections) -> None:
        known = self.status
        if known is None or (known.job, known.round) != (message.job, message.round):
            if self._watch is not None:
                return  # of a round that is over
            known = RepairStatus(message.job, message.round, watching=False)
        self.status = replace(known, sequences=known.sequences + 1, void=known.void + message.count)

    def _heard_between(self, low: Timestamp, high: Timestamp) -> _Ints:
        """Documents (indexes into the watch's hashes) of which a version in [low, high) was heard."""
        if self._watch is None or not self._watch.heard:
            return np.empty(0, np.int64)
        documents, partitions, offsets = heard = np.concatenate(self._watch.heard, axis=1)
        self._watch.heard = [heard]
        newer = np.zeros(len(documents), np.bool_)
        for partition in np.unique(partitions).tolist():
            within = (offsets >= low.offset(partition)) & (offsets < high.offset(partition))
            newer |= (partitions == partition) & within
        return np.unique(documents[newer])

    def _has_read(self, low: Timestamp, high: Timestamp) -> bool:
        """Whether segments behind the watch had all of [low, high)."""
        ranges = {} if self._watch is None else self._watch.read
        for partition, place in high.places.items():
            start, end = low.offset(partition), place.offset
            if start < end and not any(a <= start and end <= b for a, b in ranges.get(partition, ())):
                return False
        return True

    def _give_up(self) -> None:
        pending, self._watch = list(self._pending), None
        self._pending.clear()
        if self.status is not None:
            self.status = replace(self.status, watching=False)
        for message in pending:
            self._void(message)

    def _forget_if_over(self) -> None:
        if self._watch is not None and self._watch.ending and not self._pending and self._making is None:
            self._watch = None
            if self.status is not None:
                self.status = replace(self.status, watching=False)


def _join(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    """Add [start, end) to ranges that are apart from each other and ascending."""
    if start >= end:
        return
    touching = [one for one in ranges if one[0] <= end and start <= one[1]]
    low = min([start, *(one[0] for one in touching)])
    high = max([end, *(one[1] for one in touching)])
    ranges[:] = sorted([*(one for one in ranges if one not in touching), (low, high)])
