"""Answers as readers see them (docs/reference): JSON bytes, put together from encoded parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from indexer.scan.peer.messages import TIP
from indexer.scan.plan.agreement import Agreed, AskedT
from indexer.scan.plan.choose import Stamp
from indexer.scan.shape.json_values import encode as encode
from keytide.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer, and what the metrics count of it.

    Attributes:
        body: JSON.
        rows: how many rows are in it.
        index: the index's name.
    """

    body: bytes
    rows: int
    index: str
    consistency: str


class AnswerMaker:
    """Writes answers. The timestamp of a snapshot is the same for many scans, and is written once."""

    def __init__(self) -> None:
        self._timestamp: Timestamp | None = None
        self._timestamp_json = msgspec.Raw(b"{}")

    def head(self, stamp: Stamp, session: str, now: int) -> dict[str, Any]:
        """The members that every answer has."""
        return {
            "snapshot": _numbered(stamp.number),
            "timestamp": self._timestamp_of(stamp.timestamp),
            "session": session,
            "staleness_ms": max(0, now - stamp.fresh_at) if stamp.fresh_at else None,
        }

    def _timestamp_of(self, timestamp: Timestamp) -> msgspec.Raw:
        if timestamp is not self._timestamp:
            places = {
                str(partition): {"offset": place.offset, "epoch": place.epoch}
                for partition, place in sorted(timestamp.places.items())
            }
            self._timestamp, self._timestamp_json = timestamp, msgspec.Raw(encode(places))
        return self._timestamp_json


def explain(agreed: Agreed[AskedT], slices: int) -> dict[str, Any]:
    """How the snapshot was chosen, which slices were asked (of how many), what each read."""
    gathered = agreed.gathered
    return {
        "snapshot": _numbered(agreed.stamp.number),
        "waited_ms": agreed.waited_ms,
        "waited_for": agreed.waited_for,
        "slices_of_index": slices,
        "rounds": gathered.rounds,
        "slices": [
            {
                "slice": number,
                "node": node,
                "newest": _numbered(gathered.replies[number].newest),
                "snapshot": _numbered(gathered.replies[number].number),
                "rows_read": gathered.read.get(number, 0),
            }
            for number, node in sorted(agreed.target.nodes.items())
            if number in gathered.replies  # slices in the order of entries are read as far as they are needed
        ],
    }


def _numbered(number: int) -> int | None:
    return None if number == TIP else number
