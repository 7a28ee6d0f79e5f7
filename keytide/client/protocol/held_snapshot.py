"""Held snapshots: what both clients' readers of them share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keytide.client.protocol.answers import Hold, MisuseError, Timestamp


@dataclass(slots=True)
class HoldState:
    """What is to be held, and the hold once there is one."""

    index: str
    request: dict[str, Any]
    hold: Hold | None = None
    over: bool = False


class HeldReader:
    """A snapshot's facts, and requests that name it."""

    def __init__(self, held: HoldState) -> None:
        self._held = held

    @property
    def index(self) -> str:
        return self._held.index

    @property
    def at(self) -> str:
        """Its token."""
        return self._known().at

    @property
    def snapshot(self) -> int:
        """Its number."""
        return self._known().snapshot

    @property
    def timestamp(self) -> Timestamp:
        """Its place in the source."""
        return self._known().timestamp

    @property
    def session(self) -> str:
        """Token of a session that has seen it."""
        return self._known().session

    @property
    def slices(self) -> int:
        """How many slices the index has: `slices=[n]` of a scan reads one of them."""
        return self._known().slices

    def _known(self) -> Hold:
        if self._held.hold is None or self._held.over:
            raise MisuseError(
                "the snapshot was given back" if self._held.over else "the snapshot is not held yet",
                next_step="read from it inside of `with client.snapshot(...) as at:`",
            )
        return self._held.hold

    def _request(self) -> dict[str, Any]:
        if self._held.hold is not None:
            raise MisuseError("a snapshot is held once", next_step="call `client.snapshot(...)` again")
        return self._held.request

    def _begin(self, hold: Hold) -> None:
        self._held.hold = hold

    def _end(self) -> str:
        at = self.at
        self._held.over = True
        return at

    def _with(self, request: Mapping[str, Any]) -> Any:
        """A request that reads from here."""
        return {**request, "at": self.at}
