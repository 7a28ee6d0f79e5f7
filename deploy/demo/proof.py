"""What the indexes held and were asked at several moments, and the proof: their topic read again with
kafka-python and plain Python, every row compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.demo.nearby import SpatialAnswer, unlike
from deploy.demo.oracle import ExpectedRow, differences, read_versions
from keytide.client import Client

PAGE: Final = 20_000


@dataclass(slots=True)
class Taken:
    """A whole index as scanned.

    Attributes:
        offsets: source partition -> next offset.
    """

    index: str
    moment: str
    snapshot: int | None
    offsets: dict[int, int]
    rows: list[ExpectedRow]
    seconds: float


@dataclass(frozen=True, slots=True)
class ProofLine:
    """What came of comparing an index or an answer with its topic.

    Attributes:
        seconds: that reading the rows took; None where it is not told.
        wrong: what differs, in words.
    """

    what: str
    moment: str
    snapshot: int | None
    rows: int
    seconds: float | None
    wrong: list[str]

    @property
    def verdict(self) -> str:
        return f"{len(self.wrong)}+ differences" if self.wrong else "zero differences"


def take(client: Client, index: str, moment: str, **demands: Any) -> Taken:
    """A whole index, page by page, from one snapshot."""
    began = time.monotonic()
    page = client.page(index, limit=PAGE, columns=["key", "id"], **demands)
    snapshot, offsets = page.snapshot, {int(p): place["offset"] for p, place in page.timestamp.items()}
    rows: list[ExpectedRow] = [(row.key, row.id) for row in page.rows]
    while page.page is not None:
        page = client.page(index, page=page.page)
        rows += [(row.key, row.id) for row in page.rows]
    return Taken(index, moment, snapshot, offsets, rows, time.monotonic() - began)


def prove(
    bootstrap: str, topic: str, told: Sequence[Taken | SpatialAnswer], tell: Callable[[int], None]
) -> list[ProofLine]:
    """Compare all that was told of one topic with it, each at its own timestamp.

    Args:
        tell: told how many records have been read.
    """
    told = sorted(told, key=lambda one: sum(one.offsets.values()))
    moments: list[dict[int, int]] = []
    for one in told:
        if not moments or moments[-1] != one.offsets:
            moments.append(one.offsets)
    states = read_versions(bootstrap, topic, list(moments), tell)
    found = []
    for one in told:
        state = states[moments.index(one.offsets)]
        if isinstance(one, Taken):
            wrong = differences(one.index, state, one.rows)
            found.append(ProofLine(one.index, one.moment, one.snapshot, len(one.rows), one.seconds, wrong))
        else:
            wrong = unlike(one, state)
            found.append(ProofLine(one.question.title, one.moment, one.snapshot, len(one.rows), None, wrong))
    return found
