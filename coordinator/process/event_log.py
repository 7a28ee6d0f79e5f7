"""What happened lately: the lines of `GET /v1/events`, and the newest timestamps in the control topic at the
start of a term."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from coordinator.core.events import ControlTail, Note
from keytide.errors import KeytideError
from keytide.kafka.topics import KafkaUnavailableError, TopicReader, admin, list_offsets
from keytide.model.topics import Topics
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings
from keytide.wire.messages import Published, StabilityTimestamp, decode

log = logging.getLogger(__name__)

EVENTS_KEPT = 1_000
TAIL_MESSAGES = 4_000
"""Messages of the control topic that a new term looks at: with one timestamp every 10 ms more than 20 s."""

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True, slots=True)
class Line:
    """One event as users see it. `number` counts from 1 in this term."""

    number: int
    at: int
    note: Note

    def as_json(self, term: int) -> dict[str, Any]:
        note = self.note
        return {
            "number": self.number,
            "term": term,
            "at": self.at,
            "level": note.level,
            "kind": note.kind,
            "subject": note.subject,
            "text": note.text,
        }


class EventRing:
    """The newest events, in memory and in the log."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=EVENTS_KEPT)
        self._number = 0

    def add(self, note: Note, now: int) -> None:
        self._number += 1
        self._lines.append(Line(self._number, now, note))
        log.log(_LEVELS[note.level], "%s: %s", note.kind, note.text)

    def after(self, number: int, limit: int) -> list[Line]:
        """The first `limit` events with a higher number, oldest first; with number 0 the newest `limit`."""
        lines = [line for line in self._lines if line.number > number]
        return lines[-limit:] if number == 0 else lines[:limit]


def read_control_tail(settings: Settings) -> ControlTail:
    """The newest timestamps and common snapshots in the control topic. What a lower term wrote behind a
    higher one does not count.

    Raises:
        KafkaUnavailableError: not read within the request time-out.
    """
    topic = Topics(settings.cluster).control
    timeout = float(settings.coordinator.request_timeout_s)
    with admin(settings) as client:
        end = list_offsets(client, topic, [0], timeout=timeout)[0]
        begin = list_offsets(client, topic, [0], earliest=True, timeout=timeout)[0]
    stamps: list[tuple[int, StabilityTimestamp]] = []
    published: list[Published] = []
    if begin < end:
        reader = TopicReader(settings, topic, {0: max(begin, end - TAIL_MESSAGES)})
        deadline = time.monotonic() + timeout
        term = 0
        try:
            while reader.positions.get(0, -1) < end:
                if time.monotonic() > deadline:
                    raise KafkaUnavailableError(f"{topic} was not read to its end within {timeout:.0f} s")
                for message in reader.poll(0.1):
                    try:
                        decoded = decode(message.value() or b"")
                    except KeytideError as error:
                        log.error("%s offset %s: %s", topic, message.offset(), error)
                        continue
                    if not isinstance(decoded, StabilityTimestamp | Published) or decoded.term < term:
                        continue
                    term = decoded.term
                    if isinstance(decoded, Published):
                        published.append(decoded)
                    else:
                        stamps.append((message.offset() or 0, decoded))
        finally:
            reader.close()
    return ControlTail(tuple(stamps), tuple(published), now_ms())
