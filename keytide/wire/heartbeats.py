"""Heartbeats of nodes that say only what has changed (R53). Pure.

Theory of operation. A node has many slices, and the timestamp of a slice has a place for every partition of
its source: said again in every heartbeat that is most of what is reported in a large cluster. So a node
counts its heartbeats, and says the next one as what has changed since the one before (`HeartbeatChanges`).
Whoever reads them keeps of each node the whole of what it said last, and follows only from one heartbeat to
the very next one of the same process. Where one is missing, or reading began in the middle, what changes say
cannot be known: it is left alone until all is said again (`NodeHeartbeat`). That is

* with the first heartbeat to the leader of a term, who has heard nothing yet, and with every one to a leader
  that does not understand changes;
* with the one after a heartbeat that did not arrive, as far as its sender knows;
* whenever slices came or went, or a source became another one;
* with every `WHOLE_EACH`th, and when the last one is `WHOLE_MS` old: for drivers, which begin to read at any
  time, and for a leader that has missed one.

A heartbeat's number says nothing of another process of the same node, by `started_at`. Changes of one that
has not said all yet show that it has begun (`begun`): what the process before has said holds no more.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from keytide.model.protocol import CHANGES
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.messages import HeartbeatChanges, NodeHeartbeat, SliceStatus, TimestampChange

WHOLE_EACH: Final = 10
"""Who speaks more often, because states change or it is set so (`indexer.heartbeat_ms`), says all sooner."""
WHOLE_MS: Final = 5_000
"""Half of what a repair waits for a silent node, also one of the release before, which takes nothing else. A
leader that has missed it waits as long at most (R37); that is seldom, for it begins to read before nodes hear
of its term. Each two seconds would cost a sixth of what changes save (`benchmarks/scale.py`)."""
UNTOLD: Final = 0
"""The number of what is known of a process that has not said all yet: its heartbeats count from 1."""

_FIELDS: Final = msgspec.structs.fields(SliceStatus)
_NAMES: Final = SliceStatus.__struct_fields__
_TIMESTAMP: Final = _NAMES.index("timestamp")


class HeartbeatWriter:
    """The heartbeats of one process of a node, as they are sent."""

    def __init__(self) -> None:
        self._sequence = 0
        self._term = 0
        self._last: NodeHeartbeat | None = None
        self._whole_at = 0
        self._due = WHOLE_EACH

    def write(self, beat: NodeHeartbeat, term: int, protocol: int) -> NodeHeartbeat | HeartbeatChanges:
        """What to send of a heartbeat: what has changed since the one before, or all of it.

        Args:
            beat: the whole of it, without its number.
            term: of the leader, as far as the node has heard.
            protocol: up to which version of the protocol that one speaks.
        """
        self._sequence += 1
        beat = replace(beat, sequence=self._sequence if protocol >= CHANGES else -1)
        before, self._last = self._last, beat
        new_leader, self._term = term != self._term, term
        due = self._sequence >= self._due or not 0 <= beat.sent_at - self._whole_at < WHOLE_MS
        if due:
            self._due = self._sequence + WHOLE_EACH
        message = None if new_leader or before is None or due else _changes(before, beat)
        if message is None:
            self._whole_at = beat.sent_at
        return message or beat

    def lost(self) -> None:
        """A heartbeat did not arrive: nobody can follow to the next one."""
        self._last = None


def follow(known: NodeHeartbeat | None, message: NodeHeartbeat | HeartbeatChanges) -> NodeHeartbeat | None:
    """All that a node says with a heartbeat.

    Args:
        known: what it said with the last one that could be followed, as this function gave it; None when it
            was not heard yet.

    Returns:
        None when `message` has been heard already, or changes something else than `known`: then that stays
        the last that is known.
    """
    if isinstance(message, NodeHeartbeat):
        numbered = known is not None and known.started_at == message.started_at and message.sequence >= 0
        return None if known is not None and numbered and message.sequence <= known.sequence else message
    if known is None or known.started_at != message.started_at or known.sequence == UNTOLD:
        return None
    if known.sequence != message.sequence - 1:
        return None
    try:
        slices = _followed(known.slices, message)
    except (msgspec.ValidationError, LookupError, TypeError, ValueError):
        return None  # of no release that this one knows
    return replace(
        known,
        sequence=message.sequence,
        sent_at=message.sent_at,
        memory=message.memory,
        disk_free=message.disk_free,
        catalog_offset=message.catalog_offset,
        slices=slices,
    )


def begun(known: NodeHeartbeat, message: HeartbeatChanges) -> NodeHeartbeat:
    """What is known of a process that has not said all yet: that it has begun, and nothing of its slices.

    Args:
        known: what another process of the node has said.
        message: of the process.
    """
    return replace(
        known,
        started_at=message.started_at,
        sequence=UNTOLD,
        sent_at=message.sent_at,
        memory=message.memory,
        disk_free=message.disk_free,
        catalog_offset=-1,
        slices=[],
    )


def _changes(before: NodeHeartbeat, beat: NodeHeartbeat) -> HeartbeatChanges | None:
    """What a heartbeat changes; None when that cannot be said."""
    if min(before.sequence, beat.sequence) < 0 or _constant(before) != _constant(beat):
        return None
    slices: dict[int, dict[int, Any]] = {}
    timestamps: list[TimestampChange] = []
    found: dict[tuple[int, int], int] = {}
    for position, (was, now) in enumerate(zip(before.slices, beat.slices, strict=True)):
        changed = {
            field: value
            for field, name in enumerate(_NAMES)
            if (value := getattr(now, name)) != getattr(was, name)
        }
        if _TIMESTAMP in changed:
            key = id(was.timestamp), id(now.timestamp)  # (slices that committed one timestamp share it)
            if key not in found:
                change = _timestamp_change(was.timestamp, now.timestamp)
                if change is None:
                    return None
                found[key] = len(timestamps)
                timestamps.append(change)
            changed[_TIMESTAMP] = found[key]
        if changed:
            slices[position] = changed
    return HeartbeatChanges(
        beat.node,
        beat.started_at,
        beat.sequence,
        beat.sent_at,
        beat.memory,
        beat.disk_free,
        beat.catalog_offset,
        slices,
        timestamps,
    )


def _constant(beat: NodeHeartbeat) -> tuple[object, ...]:
    """What changes do not speak of."""
    slices = [(status.index, status.slice) for status in beat.slices]
    return beat.node, beat.url, beat.started_at, beat.zone, beat.roles, beat.protocol, slices


def _timestamp_change(before: Timestamp, now: Timestamp) -> TimestampChange | None:
    """None when it is one of another topic, or lacks a partition."""
    if before.topic_id != now.topic_id or before.places.keys() - now.places.keys():
        return None
    steps: list[int] = []
    places = {one: place for one, place in now.places.items() if one not in before.places}
    for partition in sorted(before.places):
        was, place = before.places[partition], now.places[partition]
        steps.append(place.offset - was.offset)
        if (was.epoch, was.tail) != (place.epoch, place.tail):
            steps[-1], places[partition] = 0, place
    return TimestampChange(steps, places)


def _followed(slices: list[SliceStatus], message: HeartbeatChanges) -> list[SliceStatus]:
    found = list(slices)
    timestamps: dict[int, Timestamp] = {}  # (who had one together have one together again)
    for position, changed in message.slices.items():
        was, values = found[position], dict[str, Any]()
        for field, value in changed.items():
            if field == _TIMESTAMP:
                if value not in timestamps:
                    timestamps[value] = _stepped(was.timestamp, message.timestamps[value])
                values["timestamp"] = timestamps[value]
            elif field < len(_FIELDS):  # (a later release has further ones)
                values[_NAMES[field]] = msgspec.convert(value, _FIELDS[field].type)
        found[position] = replace(was, **values)
    return found


def _stepped(before: Timestamp, change: TimestampChange) -> Timestamp:
    places = {
        partition: Place(was.offset + step, was.epoch, was.tail) if step else was
        for (partition, was), step in zip(sorted(before.places.items()), change.steps, strict=True)
    }
    return Timestamp(places | change.places, before.topic_id)
