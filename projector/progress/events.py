"""What can happen to a projector's partitions (events), and what its shell is told to do then (instructions).

They are all that passes between `projector.progress.tracker` (pure) and `projector.service.projector` (the
shell). Offsets are next offsets (exclusive).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Phase = Literal["WAITING", "DRAINING", "LOCATING", "COMMITTING", "RUNNING", "CHECKING", "IDLE", "STOPPED"]


class Key(NamedTuple):
    """A source partition."""

    keyspace: str
    partition: int

    def __str__(self) -> str:
        return f"{self.keyspace}[{self.partition}]"


class Reached(NamedTuple):
    """Where a poll brought a partition: next offset, and the leader epoch of the last record below it, or of
    the marker there (-1 unknown).

    Attributes:
        tail: offsets between that record and `end`: transaction markers, which may be of a later epoch.
            0 when that is known: `epoch` is theirs then.
    """

    end: int
    epoch: int
    tail: int = 0


# --- events --------------------------------------------------------------------------------------------


class KeyspaceChanged(NamedTuple):
    """The catalog says something new of a keyspace.

    Attributes:
        version: newest catalog version.
        emits_from: smallest version among the indexes that emit, 0 when none does: a partition at version v
            emits if 0 < emits_from <= v.
        incarnation: counts rollbacks; with a higher one every partition is taken over again (R30).
        topic_id: of the source topic; with another one too.
    """

    keyspace: str
    version: int
    emits_from: int
    incarnation: int = 0
    topic_id: str = ""


class Assigned(NamedTuple):
    """The group gave us a partition, and its place is on the log.

    Attributes:
        offset: its committed next offset, or where a rollback has cut before it; None when it never had a
            commit.
        version: catalog version in the commit; 0 when there is none.
        epoch: leader epoch of the last record below `offset`.
        incarnation: under which it is read from here on; a later one than the catalog's waits for the
            catalog.
        tail: as in `Reached`.
        leader_epoch: of the leader that was asked about the place, -1 when none could be.
    """

    key: Key
    offset: int | None
    version: int
    epoch: int
    incarnation: int = 0
    tail: int = 0
    leader_epoch: int = -1


class Refused(NamedTuple):
    """A partition that we own but must not read: its history is not the one of its place (R15).

    Attributes:
        offset, epoch, incarnation: where it stands.
        lost: what was read is no longer on the log; False while the topic only is not there.
        topic_id: of the topic as it is now.
    """

    key: Key
    offset: int
    version: int
    reason: str
    epoch: int = -1
    incarnation: int = 0
    lost: bool = False
    topic_id: str = ""


class Revoked(NamedTuple):
    """The partition is no longer ours."""

    key: Key


class Located(NamedTuple):
    """Answer to `Locate`: live reading begins here, above a record of this leader epoch."""

    key: Key
    offset: int
    epoch: int = -1


class Doubted(NamedTuple):
    """The leader has changed, or the place cannot be read: is what was read still on the log? (R15)

    Attributes:
        epoch: of the records that came, -1 when none did.
        bare: end of a range past the place in which no record came, and whose leader epoch is not known; -1
            when there is none.
    """

    key: Key
    epoch: int = -1
    bare: int = -1


class Checked(NamedTuple):
    """Answer to `Check`: the place is on the log of this leader."""

    key: Key
    leader_epoch: int


class Polled(NamedTuple):
    """A poll was projected and its messages handed to the sender.

    Attributes:
        poll: number of the poll, ascending.
        messages: how many messages must be acknowledged; 0 acknowledges at once.
        reached: where each partition in it ends.
    """

    poll: int
    messages: int
    reached: dict[Key, Reached]


class Delivered(NamedTuple):
    """Messages of a poll are in their queues, or need not be (a dropped index, R18)."""

    poll: int
    messages: int = 1


class SendFailed(NamedTuple):
    """A message of a poll will never be in its queue."""

    poll: int


class CommitDone(NamedTuple):
    """The broker took the commit."""

    key: Key
    offset: int
    epoch: int
    version: int
    incarnation: int = 0


class CommitFailed(NamedTuple):
    """The broker refused the commit, or the answer is not known. `fenced`: another generation has taken
    over."""

    key: Key
    version: int
    fenced: bool
    incarnation: int = 0


class CommitDue(NamedTuple):
    """Time to commit what is acknowledged, and to try again what failed."""


Event = (
    KeyspaceChanged
    | Assigned
    | Refused
    | Revoked
    | Located
    | Doubted
    | Checked
    | Polled
    | Delivered
    | SendFailed
    | CommitDone
    | CommitFailed
    | CommitDue
)


# --- instructions --------------------------------------------------------------------------------------


class PausePartition(NamedTuple):
    """Stop reading the partition."""

    key: Key


class ReadFrom(NamedTuple):
    """Read the partition from this offset on, whatever it was doing."""

    key: Key
    offset: int


class TakeOver(NamedTuple):
    """Give up what is known of the partition, look up its commit again, and answer with `Assigned` or
    `Refused`: its history has changed."""

    key: Key


class Check(NamedTuple):
    """Ask whether the partition's place is on the log; answer with `Checked` or `Refused`."""

    key: Key


class Locate(NamedTuple):
    """Look up where live reading of the partition begins; answer with `Located`."""

    key: Key


class Commit(NamedTuple):
    """Commit a place; answer with `CommitDone` or `CommitFailed`. `activation`: wait for the answer."""

    key: Key
    offset: int
    epoch: int
    version: int
    activation: bool
    incarnation: int = 0
    tail: int = 0


class AnnounceActivation(NamedTuple):
    """The partition works under `version` from `offset` on: send an empty segment and the report (R13,
    R14)."""

    key: Key


class Rewound(NamedTuple):
    """Polls in flight were given up: what they sent will be sent again."""

    polls: int


Instruction = PausePartition | ReadFrom | TakeOver | Check | Locate | Commit | AnnounceActivation | Rewound
