"""How far a mutation queue may be deleted, checked where it is deleted, whatever was ordered. Pure (R34).

The order is made from what nodes say that their slices may ever need again. This looks at another thing that
they say: what each copy of the slice that counts has durably read.
"""

from __future__ import annotations

from coordinator.core.instructions import QueueLimit
from keytide.errors import invariant


def stays_from(limit: QueueLimit, end: int, young: int | None = None) -> int:
    """First offset that stays.

    Args:
        end: of the queue.
        young: first offset that is young enough to be kept; None when age does not matter.

    Raises:
        InvariantViolationError: QueueKept: a copy of the slice that counts has not read that far.
    """
    keep = min(end, *([limit.before] if limit.before >= 0 else []), *([] if young is None else [young]))
    least = min((copy.position for copy in limit.copies), default=None)
    invariant(
        (keep <= least) if least is not None else young is not None,
        "QueueKept",
        lambda: f"{limit.topic} [{limit.partition}] would be deleted up to {keep}, {because(limit)}",
    )
    return keep


def because(limit: QueueLimit) -> str:
    """Why so much may go, for the log."""
    if not limit.copies:
        return "by age alone: no copy of the slice counts"
    first = min(limit.copies, key=lambda copy: copy.horizon)
    age = ", and by age" if limit.older_than else ""
    return (
        f"bounded by {first.who}, which may need {first.horizon} and has durably read up to {first.position} "
        f"({len(limit.copies)} count){age}"
    )
