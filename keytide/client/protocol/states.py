"""What is being read: where a scan, a query or a tail has got to, and what may be done with it. Pure.

A result is read once, and in one way: by its rows, by its batches or as a whole. Anything else would read
from another place, or another snapshot, than its reader believes, and raises `MisuseError`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from keytide.client.protocol.answers import AnswerBase, Event, Hold, MisuseError, TimeVector
from keytide.client.protocol.arrow import ArrowParts
from keytide.client.protocol.calls import HttpReply
from keytide.client.protocol.server_sent_events import EventParser
from keytide.errors import KeytideError


@dataclass(frozen=True, slots=True)
class Head:
    """From which moment a result comes."""

    snapshot: int | None
    timestamp: TimeVector
    session: str
    staleness_ms: int | None

    @classmethod
    def of(cls, answer: AnswerBase) -> Head:
        return cls(answer.snapshot, answer.timestamp, answer.session, answer.staleness_ms)

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> Head:
        """Of a stream, whose body has no place for it.

        Raises:
            ValueError: they are not there, or no numbers and JSON.
        """
        try:
            snapshot = headers.get("keytide-snapshot") or "null"
            staleness = headers.get("keytide-staleness-ms") or "null"
            return cls(
                msgspec.json.decode(snapshot, type=int | None),
                msgspec.json.decode(headers["keytide-timestamp"], type=TimeVector),
                headers["keytide-session"],
                msgspec.json.decode(staleness, type=int | None),
            )
        except (KeyError, msgspec.MsgspecError) as error:
            raise ValueError(f"a stream without its moment in the headers: {error}") from error


@dataclass(slots=True)
class ResultState:
    """A result on its way.

    Attributes:
        index: the index's name, "" of a query.
        request: its members, as the caller gave them.
        way: how it is read: "" before it is.
        turn: which node is asked first (see `NodeAddresses`), once something was asked.
        head: from which moment, once that is known.
        last: nothing is left to be asked for.
        over: everything was given to the caller.
    """

    index: str
    request: dict[str, Any]
    way: str = ""
    turn: int | None = None
    head: Head | None = None
    last: bool = False
    over: bool = False

    def read(self, way: str, *, whole: bool = False) -> None:
        """The caller wants to read in some way (from the beginning if `whole`).

        Raises:
            MisuseError: it was read already, or is read in another way.
        """
        if self.over or (self.way and (whole or self.way != way)):
            how = "was read to its end" if self.over else f"is being read as {self.way}"
            raise MisuseError(
                f"this result {how}: a result is read once",
                next_step="ask again, or keep its rows in a list; in `snapshot()`, all see one moment",
            )
        self.way = way

    def known(self) -> Head:
        """From which moment the rows come.

        Raises:
            MisuseError: nothing has been read yet.
        """
        if self.head is None:
            raise MisuseError(
                "the snapshot is chosen when the result is read, and nothing of it was read yet",
                next_step="read a row first",
            )
        return self.head


@dataclass(slots=True)
class ScanState(ResultState):
    """Of a scan.

    Attributes:
        page_size: rows fetched at once.
        left: rows that the caller still wants, None for all.
        page: token of the next page.
        reply, parts, ready, lines: of a stream: its open answer, what came of it in Arrow's form, batches
            that nobody has taken yet, the beginning of a line of JSON.
    """

    page_size: int = 1_000
    left: int | None = None
    page: str | None = None
    reply: HttpReply | None = None
    parts: ArrowParts = field(default_factory=ArrowParts)
    ready: deque[Any] = field(default_factory=deque)
    lines: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class QueryState(ResultState):
    """Of a SELECT: the next page's token, and what its first answer said of columns and index."""

    page: str | None = None
    columns: list[str] | None = None
    served_by: str | None = None
    first_rows: list[list[Any]] | None = None


@dataclass(slots=True)
class HoldState:
    """Of a held snapshot: what is to be held, and the hold once there is one."""

    index: str
    request: dict[str, Any]
    hold: Hold | None = None
    over: bool = False


@dataclass(slots=True)
class TailState:
    """Of a tail.

    Attributes:
        token: of the newest event that the caller was given: where to go on.
        sent, resets: the session that the newest event covers (see `Sessions.seen`).
        turn: which node is asked first, as of a result.
        failures: in a row, without an event.
        heard: how many pieces came over the connection.
        end: why there are no more events, if a node said so.
    """

    index: str
    request: dict[str, Any]
    token: str | None
    sent: str | None = None
    resets: int = 0
    turn: int | None = None
    failures: int = 0
    heard: int = 0
    reply: HttpReply | None = None
    parser: EventParser = field(default_factory=EventParser)
    ready: deque[Event] = field(default_factory=deque)
    over: bool = False
    end: KeytideError | None = None


def taken(rows: list[Any], state: ScanState) -> list[Any]:
    """A page's rows, of which no more are given than the caller wants."""
    if state.left is None:
        return rows
    rows = rows[: state.left]
    state.left -= len(rows)
    return rows
