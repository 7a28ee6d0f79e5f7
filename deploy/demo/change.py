"""What the demo writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One write of a document.

    Attributes:
        at: local time of the event, minutes since 2013-01-01 00:00; events are replayed in this order.
        id: the document id, e.g. `2013-01-01/UA1545/EWR/0`, or an airport's.
        value: the document as JSON.
    """

    at: int
    id: str
    value: bytes
