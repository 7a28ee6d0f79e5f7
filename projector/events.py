"""What can happen to a projector's partitions (events), and what its shell is told to do then (instructions).

They are all that passes between `projector.tracker` (pure) and `projector.service` (the shell). Offsets are
next offsets (exclusive).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Phase = Literal["WAITING", "DRAINING", "LOCATING", "COMMITTING", "RUNNING", "IDLE", "STOPPED"]


class Key(NamedTuple):
    """A source partition."""

    keyspace: str
    partition: int

    def __str__(self) -> str:
        return f"{self.keyspace}[{self.partition}]"


class Reached(NamedTuple):
    """Where a poll brought a partition: next offset, and the leader epoch of the last record below it (-1
    unknown)."""

    end: int
    epoch: int


# --- events --------------------------------------------------------------------------------------------


class KeyspaceChanged(NamedTuple):
    """The catalog says something new of a keyspace.

    Attributes:
        version: newest catalog version.
        emits_from: smallest version among the indexes that emit, 0 when none does: a partition at version v
            emits if 0 < emits_from <= v.
    """

    keyspace: str
    version: int
    emits_from: int


class Assigned(NamedTuple):
    """The group gave us a partition.

    Attributes:
        offset: its committed next offset; None when it never had a commit.
        version: catalog version in the commit; 0 when there is none.
        epoch: leader epoch in the commit.
    """

    key: Key
    offset: int | None
    version: int
    epoch: int


class Refused(NamedTuple):
    """A partition that we own but must not read: its history is not the one of its commit (R15)."""

    key: Key
    offset: int
    version: int
    reason: str


class Revoked(NamedTuple):
    """The partition is no longer ours."""

    key: Key


class Located(NamedTuple):
    """Answer to `Locate`: live reading begins here."""

    key: Key
    offset: int


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


class CommitFailed(NamedTuple):
    """The broker refused the commit, or the answer is not known. `fenced`: another generation has taken
    over."""

    key: Key
    version: int
    fenced: bool


class Tick(NamedTuple):
    """Time to commit what is acknowledged, and to try again what failed."""


Event = (
    KeyspaceChanged
    | Assigned
    | Refused
    | Revoked
    | Located
    | Polled
    | Delivered
    | SendFailed
    | CommitDone
    | CommitFailed
    | Tick
)


# --- instructions --------------------------------------------------------------------------------------


class Pause(NamedTuple):
    """Stop reading the partition."""

    key: Key


class ReadFrom(NamedTuple):
    """Read the partition from this offset on, whatever it was doing."""

    key: Key
    offset: int


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


class Activated(NamedTuple):
    """The partition works under `version` from `offset` on: send an empty segment and the report (R13,
    R14)."""

    key: Key


class Rewound(NamedTuple):
    """Polls in flight were given up: what they sent will be sent again."""

    polls: int


Instruction = Pause | ReadFrom | Locate | Commit | Activated | Rewound
