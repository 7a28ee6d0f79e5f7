"""Server-sent events, a chunk at a time (WHATWG HTML, 9.2). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keytide.errors import CallerError

MAX_EVENT_BYTES: Final = 256 << 20
"""An event larger than this is given up: it would not fit into memory as rows."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its name, its data, and the newest id that came with it or before."""

    name: str
    data: str
    id: str | None


class EventParser:
    """From chunks to events. Comments (heartbeats) and unknown fields are left out.

    Attributes:
        id: the newest that is complete; it may have come without an event, with a heartbeat.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._id: str | None = None
        self.id: str | None = None

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that a chunk completes.

        Raises:
            CallerError: an event is larger than `MAX_EVENT_BYTES`.
            ValueError: no UTF-8.
        """
        self._rest += chunk
        events = []
        if b"\n" in chunk:
            *lines, rest = self._rest.split(b"\n")
            self._rest = rest
            for line in lines:
                event = self._line(line.removesuffix(b"\r").decode())
                if event is not None:
                    events.append(event)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise CallerError(
                f"more has changed from one snapshot to the next than {MAX_EVENT_BYTES} bytes can tell",
                problem_type="event-too-large",
                next_step="follow a smaller selection, or scan it again",
            )
        return events

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
            self._size += len(value)
        elif name == "id":
            self._id = value
        return None

    def _end(self) -> ServerEvent | None:
        """What an empty line ends: an event if there was data."""
        name, data = self._name or "message", self._data
        self._name, self._data, self._size, self.id = "", [], 0, self._id
        return ServerEvent(name, "\n".join(data), self._id) if data else None
