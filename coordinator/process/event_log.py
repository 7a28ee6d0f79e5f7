"""What happened lately: the lines of `GET /v1/events`."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

from coordinator.core.instructions import Note

log = logging.getLogger(__name__)

EVENTS_KEPT = 1_000

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
