"""What holds the queue of a slice back, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coordinator.core.instructions import QueueCopy


class QueueHolder(NamedTuple):
    """What holds the queue of a slice.

    Attributes:
        by: for people.
        offset: the first offset that stays; None: nothing goes, or it goes by age alone.
    """

    by: str
    offset: int | None = None


def holder_of(copies: Sequence[QueueCopy], silent: Sequence[str]) -> QueueHolder:
    """What holds the queue of a slice by what counts for it.

    Args:
        silent: nodes with a copy that have said nothing for longer than queues are kept.
    """
    if unsaid := [
        f"{copy.who}, which cannot say what it may need: {copy.why}" for copy in copies if copy.why
    ]:
        return QueueHolder("; ".join(unsaid))
    age = f"topics.queue_retention_s, as {' and '.join(silent)} said nothing for longer" if silent else ""
    if not copies:
        return QueueHolder(age or "no copy that counts has data")
    first = min(copies, key=lambda copy: copy.horizon)
    by = f"{first.who}, which may need {first.horizon}"
    return QueueHolder(f"{by}; and {age}" if age else by, first.horizon)
