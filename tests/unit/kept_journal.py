"""The journal of a build's driver, kept in memory."""

from __future__ import annotations

import msgspec

from streaming.drivers.journal import Journal
from streaming.drivers.progress import Status


class KeptJournal:
    """As a topic would have it.

    Attributes:
        data: as it is there; empty before anything was kept.
    """

    def __init__(self) -> None:
        self.data = b""

    def load(self) -> Journal:
        return msgspec.json.decode(self.data, type=Journal) if self.data else Journal()

    def keep(self, journal: Journal) -> None:
        self.data = msgspec.json.encode(journal)

    def status(self) -> Status:
        """Of a driver that goes on from there."""
        status = Status()
        status.take_over(self)
        return status
