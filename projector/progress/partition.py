"""What a projector knows of one source partition (`projector.progress.tracker` moves it). Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from keytide.model.timestamp import Place
from projector.progress.events import Commit, Key, Phase, Reached


@dataclass(slots=True)
class PartitionState:
    """One source partition that is ours. Offsets are next offsets."""

    key: Key
    phase: Phase
    version: int
    position: int
    acked: int
    committed: int
    position_epoch: int = -1
    acked_epoch: int = -1
    position_tail: int = 0
    """Offsets below `position` that hold no record (`Reached.tail`)."""
    acked_tail: int = 0
    incarnation: int = 0
    """Of the keyspace, when it was taken over: everything that it sends and commits names it."""
    checked_epoch: int = -1
    """Leader epoch whose log has `position`: records of a later one are looked at before they are sent; -1
    when that could not be asked."""
    doubted_epoch: int = -1
    """Of the records for whose sake it is CHECKING."""
    bare: int = -1
    """End of a range past `position` without a record that was seen before the last look at `position`: what
    was there then is no other log's."""
    lost: bool = False
    """STOPPED because what was read is no longer on the log."""
    topic_id: str = ""
    """Of the topic that was found when it was STOPPED."""
    activated_at: int = 0
    """Where `version` began (its commit), or the commit that we took over: a component of the
    low-watermark."""
    reason: str = ""
    commit_pending: bool = False
    flight: deque[tuple[int, Reached]] = field(default_factory=deque)
    """Polls in flight in order: (poll, where it ends)."""

    @property
    def place(self) -> Place:
        """The end of what was read."""
        return Place(self.position, self.position_epoch, self.position_tail)

    def commit(self) -> Commit:
        """The commit of what is acknowledged."""
        return Commit(
            self.key,
            self.acked,
            self.acked_epoch,
            self.version,
            activation=False,
            incarnation=self.incarnation,
            tail=self.acked_tail,
        )

    def activation(self, version: int) -> Commit:
        """The fenced commit that activates a catalog version (R13); nothing is in flight."""
        return Commit(
            self.key,
            max(self.position, 0),
            self.position_epoch,
            version,
            activation=True,
            incarnation=self.incarnation,
            tail=self.position_tail,
        )

    def give_up(self) -> None:
        """Forget what is in flight: the next to be read is the first that is not acknowledged."""
        self.flight.clear()
        self.bare = -1  # (another place than the one that was looked at)
        self.position, self.position_epoch, self.position_tail = (
            self.acked,
            self.acked_epoch,
            self.acked_tail,
        )

    def at(self, offset: int, epoch: int) -> None:
        """Nothing was sent so far: begin here."""
        self.position = self.acked = offset
        self.position_epoch = self.acked_epoch = epoch
        self.position_tail = self.acked_tail = 0

    def awaits(self, incarnation: int) -> bool:
        """Whether an answer to a commit is one to a commit of ours. A partition may be taken over again while
        a commit of before is under way; were its answer taken for ours, a partition that had no commit when
        it was taken over would pass for one that had, and be read from its end."""
        return incarnation == self.incarnation and (self.commit_pending or self.phase == "COMMITTING")

    def strange(self, epochs: Iterable[int]) -> int | None:
        """The first of the epochs of records past `position` whose log was not looked at yet, None when there
        is none. Epochs only grow along a log: records of an older leader than those before show another
        log."""
        known, below = self.checked_epoch, self.position_epoch
        return next((epoch for epoch in epochs if epoch > known >= 0 or 0 <= epoch < below), None)

    def unlooked(self, end: int, epoch: int) -> bool:
        """Whether a range without a record, up to `end` and next to the last record, may be another log's:
        nothing in it shows the leader epoch of its log, and the place below was not looked at since it came.

        Args:
            epoch: of what lies below `end`, -1 when it is not known.
        """
        return epoch < 0 <= self.checked_epoch and end > self.bare
