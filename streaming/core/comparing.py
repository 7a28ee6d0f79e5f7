"""Whether slices store what a build has projected for them, by sums (`keytide.wire.entry_sums`). Pure.

Theory of operation
===================
Tasks sum up what they project, before it is sorted, packed and sent, for each slice. Of an attempt that did
not count nothing comes in, for sums travel with the summaries that name the winners (R22); of a micro-batch
that is run again they count once. Slices sum up what their stores have made durable. Where each document is
projected once, both are the same.

Nothing is concluded where slices may have had to remove something: of more than one micro-batch, and where a
task's spill brought a newer version than an earlier one. A slice that did not would store exactly what was
projected. Sums are never the same where the slice stores something else than was projected, but by a
collision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from keytide.wire.entry_sums import EQUAL, EntrySums
from streaming.core.micro_batches import SliceTarget

NAMED: Final = 3
"""Copies that are named."""
UNKNOWN: Final = (
    "sums prove nothing of more than one micro-batch, of one whose tasks replaced what they had sent, or of "
    "what was not summed up"
)


class SliceCopy(NamedTuple):
    """A copy of a slice that a build fills: the number of its target, and its node."""

    target: int
    node: str


class CopySums(NamedTuple):
    """What a copy stores; None, and why, where it has not told."""

    copy: SliceCopy
    sums: EntrySums | None
    why: str = ""


def verdict(targets: Sequence[SliceTarget], projected: Sequence[EntrySums], held: Iterable[CopySums]) -> str:
    """`EQUAL` when every copy of every target stores what was projected; else why not, for people.

    Args:
        projected: of each target.
        held: of every copy.
    """
    compared: set[int] = set()
    reasons: list[str] = []
    for (number, node), sums, why in held:
        index, slice_number = targets[number]
        name = f"slice {slice_number} of {index} on node {node}"
        wanted = projected[number]
        compared.add(number)
        if sums is None:
            reasons.append(f"{name} was not compared: {why}")
        elif sums.entries != wanted.entries:
            reasons.append(f"{name} stores {sums.entries:,} entries, and {wanted.entries:,} were projected")
        elif sums != wanted:
            reasons.append(f"{name} stores other entries than were projected")
    if missing := len(targets) - len(compared):
        reasons.append(f"{missing} slices have no copy")
    if not reasons:
        return EQUAL
    more = f"; and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
    return "; ".join(reasons[:NAMED]) + more
