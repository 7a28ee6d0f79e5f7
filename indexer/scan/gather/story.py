"""What is told of a read: which snapshot, how it was chosen, what each slice has read."""

from __future__ import annotations

from typing import Any

from indexer.scan.gather.scatter import Agreed, AskedT, SliceAnswers
from indexer.scan.peer.messages import TIP


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
                "node": agreed.target.node_of(number),
                "newest": _numbered(gathered.replies[number].newest),
                "snapshot": _numbered(gathered.replies[number].number),
                "rows_read": gathered.read.get(number, 0),
            }
            for number in sorted(agreed.target.nodes)
            if number in gathered.replies  # slices in the order of entries are read as far as they are needed
        ],
    }


def _numbered(number: int) -> int | None:
    return None if number == TIP else number


def add_answers(to: SliceAnswers, part: SliceAnswers) -> None:
    """Add what slices have answered to a part of a read."""
    for number, count in part.read.items():
        to.read[number] = to.read.get(number, 0) + count
    to.replies.update(part.replies)
    for number, nodes in part.leased.items():
        to.leased.setdefault(number, set()).update(nodes)
    to.rounds += part.rounds
