"""What each source partition has polled, sent, acknowledged, committed and activated. Pure.

Theory of operation: a *poll* is one batch of records, of many partitions, projected once and sent as some
messages (one or more per slice of every index). Per partition four places move forward in this order:

    committed <= acked <= position          (next offsets)

* `position`: the end of what was polled and handed to the sender. The next segment starts here (R9).
* `acked`: every message of every poll up to here is in its queue. Polls end in any order, partitions move in
  order.
* `committed`: the source offset that the consumer group keeps. A new owner, and a restart, resume here.

After any failed send everything past `acked` is read and sent again (R10).

A partition works under one catalog `version` at a time, and that version is part of its commit (R13). Its
life:

    WAITING     the commit names a version or incarnation that the catalog here does not have yet: nothing is
                read
    DRAINING    a newer version is in the catalog: nothing is polled until nothing is in flight
    LOCATING    nothing was emitted so far: the shell looks up where live reading begins
    COMMITTING  the fenced commit (position, new version) is under way
    RUNNING     segments are sent for the indexes that emit at `version`
    CHECKING    the leader has changed: nothing is read until the shell has asked whether `position` is on its
                log (R15)
    IDLE        no index emits at `version`: nothing is read
    STOPPED     history is not what the place says (another topic, offsets lost): nothing is read, and it is
                told

A rollback (a higher incarnation in the catalog, or another topic) ends all of these at once, whatever is
under way: the keyspace's partitions are taken over again, at their commits or at the cut, whichever is
earlier. What is in flight then still arrives, under the old incarnation, and slices cut it there (R30); a
commit of the old incarnation that is answered later says nothing of the new life. A projector that has not
heard yet goes on under the old incarnation: nothing that it sends past the cut counts, and its commits name
their incarnation, so whoever takes over after it begins at the cut again.

`handle(event)` returns instructions for the shell, which performs them in order and feeds back what came of
them. The shell reads partitions whose phase is RUNNING and no others; records of any other partition that it
may still have in hand must be thrown away.
"""

from __future__ import annotations

from typing import NamedTuple

from keytide.errors import invariant
from projector.progress.events import (
    AnnounceActivation,
    Assigned,
    Check,
    Checked,
    CommitDone,
    CommitDue,
    CommitFailed,
    Delivered,
    Doubted,
    Event,
    Instruction,
    Key,
    KeyspaceChanged,
    Locate,
    Located,
    PausePartition,
    Polled,
    ReadFrom,
    Refused,
    Revoked,
    Rewound,
    SendFailed,
    TakeOver,
)
from projector.progress.partition import PartitionState


class _View(NamedTuple):
    version: int
    emits_from: int
    incarnation: int = 0
    topic_id: str = ""

    def emits(self, version: int) -> bool:
        return 0 < self.emits_from <= version


_UNKNOWN = _View(0, 0)


class Tracker:
    """State of all partitions of one projector process.

    Attributes:
        partitions: those that are ours.
        outstanding: messages not yet acknowledged by poll, in order of poll; polls that were given up are not
            in it.
    """

    def __init__(self) -> None:
        self.partitions: dict[Key, PartitionState] = {}
        self.outstanding: dict[int, int] = {}
        self._views: dict[str, _View] = {}

    def handle(self, event: Event) -> list[Instruction]:
        """Take in what happened; what is to be done now, in order.

        Raises:
            InvariantViolationError: Contiguous or FIFO order is broken.
        """
        match event:
            case KeyspaceChanged():
                return self._changed(event)
            case Assigned():
                return self._assigned(event)
            case Refused():
                return self._refused(event)
            case Revoked(key):
                self.partitions.pop(key, None)
                return []
            case Located():
                return self._located(event)
            case Doubted():
                return self._doubted(event)
            case Checked(key, leader_epoch):
                return self._checked(key, leader_epoch)
            case Polled():
                return self._polled(event)
            case Delivered(poll, messages):
                return self._delivered(poll, messages)
            case SendFailed(poll):
                return self._rewind() if poll in self.outstanding else []
            case CommitDone():
                return self._committed(event)
            case CommitFailed():
                return self._commit_failed(event)
            case CommitDue():
                return self._tick()

    def running(self) -> list[PartitionState]:
        """Partitions that are read, in order."""
        return [state for _, state in sorted(self.partitions.items()) if state.phase == "RUNNING"]

    def settled(self, keys: list[Key]) -> bool:
        """Whether nothing of these partitions is in flight."""
        return not any(self.partitions[key].flight for key in keys if key in self.partitions)

    def _view(self, key: Key) -> _View:
        return self._views.get(key.keyspace, _UNKNOWN)

    # --- assignment, rollback and activation

    def _changed(self, event: KeyspaceChanged) -> list[Instruction]:
        old = self._views.get(event.keyspace)
        view = self._views[event.keyspace] = _View(*event[1:])
        states = self._of(event.keyspace)
        if old is None or (view.incarnation <= old.incarnation and view.topic_id == old.topic_id):
            return [instruction for state in states for instruction in self._step(state)]
        todo: list[Instruction] = []
        for state in states:
            del self.partitions[state.key]
            todo += [PausePartition(state.key), TakeOver(state.key)]
        return todo

    def _of(self, keyspace: str) -> list[PartitionState]:
        return [state for key, state in sorted(self.partitions.items()) if key.keyspace == keyspace]

    def _assigned(self, event: Assigned) -> list[Instruction]:
        key = event.key
        offset = -1 if event.offset is None else event.offset
        state = PartitionState(
            key,
            "WAITING",
            event.version,
            offset,
            offset,
            offset,
            position_epoch=event.epoch,
            acked_epoch=event.epoch,
            position_tail=event.tail,
            acked_tail=event.tail,
            incarnation=event.incarnation,
            checked_epoch=event.leader_epoch,
            activated_at=max(offset, 0),
        )
        self.partitions[key] = state
        return self._step(state) or [PausePartition(key)]

    def _refused(self, event: Refused) -> list[Instruction]:
        """A place that was never taken over, or one that was read from: then what is in flight still
        counts."""
        state = self.partitions.get(event.key)
        if state is None:
            at = event.offset
            state = PartitionState(event.key, "STOPPED", event.version, at, at, at, event.epoch, event.epoch)
            state.incarnation = event.incarnation
            self.partitions[event.key] = state
        state.phase, state.reason = "STOPPED", event.reason
        state.lost, state.topic_id = event.lost, event.topic_id
        return [PausePartition(event.key)]

    def _doubted(self, event: Doubted) -> list[Instruction]:
        state = self.partitions.get(event.key)
        if state is None or state.phase != "RUNNING":
            return []
        state.phase, state.doubted_epoch, state.bare = "CHECKING", event.epoch, event.bare
        return [PausePartition(event.key), Check(event.key)]

    def _checked(self, key: Key, leader_epoch: int) -> list[Instruction]:
        state = self.partitions.get(key)
        if state is None or state.phase != "CHECKING":
            return []
        state.phase, state.checked_epoch = "RUNNING", leader_epoch
        return self._step(state) or [ReadFrom(key, state.position)]

    def _step(self, state: PartitionState) -> list[Instruction]:
        """Bring a partition as far as it can go without an answer from outside."""
        key, view = state.key, self._view(state.key)
        match state.phase:
            case "WAITING" if state.incarnation > view.incarnation:
                return []
            case "WAITING" if state.version <= view.version and view.version > 0:
                if state.version < view.version:
                    return [PausePartition(key), *self._drained(state)]
                return self._settle(state)
            case "RUNNING" | "IDLE" if state.version < view.version:
                state.phase = "DRAINING"
                return [PausePartition(key), *([] if state.flight else self._drained(state))]
            case "RUNNING" if not view.emits(state.version):
                state.phase = "IDLE"  # the last index was dropped; the version that says so is on its way
                return [PausePartition(key)]
            case "IDLE" if view.emits(state.version):
                return self._settle(state)
            case "DRAINING" if not state.flight:
                return self._drained(state)
        return []

    def _drained(self, state: PartitionState) -> list[Instruction]:
        """Nothing is in flight: activate the newest version, here or, when nothing was emitted so far, at the
        end."""
        view = self._view(state.key)
        if view.emits(view.version) and (state.position < 0 or not view.emits(state.version)):
            state.phase = "LOCATING"
            return [Locate(state.key)]
        return self._commit_activation(state)

    def _located(self, event: Located) -> list[Instruction]:
        state = self.partitions.get(event.key)
        if state is None or state.phase != "LOCATING":
            return []
        if event.offset >= state.position or state.committed < 0:  # (a place that was never committed)
            state.at(event.offset, event.epoch)
        return self._commit_activation(state)

    def _commit_activation(self, state: PartitionState) -> list[Instruction]:
        """A keyspace whose indexes are all gone needs a commit too: DROP waits for it (R19)."""
        state.phase = "COMMITTING"
        return [state.activation(self._view(state.key).version)]

    def _settle(self, state: PartitionState) -> list[Instruction]:
        """The commit for `version` stands: read on, or rest when nothing emits."""
        view = self._view(state.key)
        if not view.emits(state.version):
            state.phase = "IDLE"
            return [PausePartition(state.key), AnnounceActivation(state.key)]
        state.phase = "RUNNING"
        return [ReadFrom(state.key, state.position), AnnounceActivation(state.key)]

    # --- sending

    def _polled(self, event: Polled) -> list[Instruction]:
        for key, reached in event.reached.items():
            state = self.partitions[key]
            invariant(state.phase == "RUNNING", "Contiguous", lambda s=state: f"poll of {s}")  # type: ignore[misc]
            invariant(
                reached.end >= state.position,
                "Contiguous",
                lambda s=state, r=reached: f"{s.key} polled to {r.end}, position {s.position}",  # type: ignore[misc]
            )
            state.position, state.position_epoch, state.position_tail = reached
            state.flight.append((event.poll, reached))
        self.outstanding[event.poll] = event.messages
        return self._advance() if event.messages == 0 else []

    def _delivered(self, poll: int, messages: int) -> list[Instruction]:
        left = self.outstanding.get(poll)
        if left is None:
            return []  # given up by a rewind
        invariant(left >= messages, "Acknowledged", f"poll {poll}: {messages} deliveries, {left} outstanding")
        self.outstanding[poll] = left - messages
        return self._advance() if left == messages else []

    def _advance(self) -> list[Instruction]:
        """Move `acked` over finished polls, in order; a drained partition goes on with its activation."""
        todo: list[Instruction] = []
        for state in self.partitions.values():
            flight = state.flight
            while flight and self.outstanding.get(flight[0][0], 0) == 0:
                _, reached = flight.popleft()
                if reached.end >= state.acked:
                    state.acked, state.acked_epoch, state.acked_tail = reached
            if state.phase == "DRAINING" and not flight:
                todo += self._step(state)
        for poll in [poll for poll, left in self.outstanding.items() if left == 0]:
            del self.outstanding[poll]
        return todo

    def _rewind(self) -> list[Instruction]:
        """A send failed: give up all that is in flight and send everything again that is not acknowledged.

        R10 says "from the last commit"; `acked` is at or past it, and below it nothing is missing anywhere.
        It keeps the order of the three places, so that a commit never goes back.
        """
        todo: list[Instruction] = [Rewound(len(self.outstanding))]
        self.outstanding.clear()
        for _, state in sorted(self.partitions.items()):
            state.give_up()
            if state.phase == "RUNNING":
                todo.append(ReadFrom(state.key, state.position))
            elif state.phase == "DRAINING":
                todo += self._drained(state)
        return todo

    # --- commits

    def _committed(self, event: CommitDone) -> list[Instruction]:
        state = self.partitions.get(event.key)
        if state is None or not state.awaits(event.incarnation):
            return []
        state.commit_pending = False
        state.committed = max(state.committed, event.offset)
        if state.phase != "COMMITTING" or event.version <= state.version:
            return []
        state.version, state.activated_at = event.version, event.offset
        state.position, state.position_epoch = event.offset, event.epoch
        state.acked, state.acked_epoch = event.offset, event.epoch
        return self._settle(state) if event.version >= self._view(event.key).version else self._drained(state)

    def _commit_failed(self, event: CommitFailed) -> list[Instruction]:
        state = self.partitions.get(event.key)
        if state is None or not state.awaits(event.incarnation):
            return []
        state.commit_pending = False
        if state.phase == "COMMITTING" and event.version > state.version:
            state.phase = "DRAINING"  # the next tick tries again, unless the partition is taken away
            return []
        return self._rewind() if event.fenced else []

    def _tick(self) -> list[Instruction]:
        todo: list[Instruction] = []
        for key, state in sorted(self.partitions.items()):
            if state.phase == "LOCATING":
                todo.append(Locate(key))
            elif state.phase in ("WAITING", "DRAINING"):
                todo += self._step(state)
            if (
                state.phase in ("RUNNING", "DRAINING")
                and state.acked > state.committed
                and not state.commit_pending
            ):
                state.commit_pending = True
                todo.append(state.commit())
        return todo
