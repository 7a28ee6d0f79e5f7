"""What a segment does with one record: which keys it brings to its slice, or the line of the skip ledger."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from keytide.wire.columns import puts_columns
from keytide.wire.messages import Segment, Skip

ChangeKind = Literal["keys", "removal", "skip", "not-heard"]


class RecordChange(NamedTuple):
    """What becomes of a record in one slice.

    Attributes:
        kind: `keys`: it puts some; `removal`: it is heard, and what the slice holds of the document goes;
            `skip`: likewise, with a line in the slice's skip ledger; `not-heard`: the slice is told nothing
            of it: its id cannot be used, or lets the slice hold nothing of the document (R16).
        keys: the canonical keys that it brings.
        skip: the line.
    """

    kind: ChangeKind
    keys: tuple[bytes, ...] = ()
    skip: Skip | None = None


def change_of(segment: Segment, offset: int) -> RecordChange | None:
    """What a segment does with the record at an offset; None for one that it does not span."""
    if not segment.start <= offset < segment.end:
        return None
    skip = next((one for one in segment.skips if one.offset == offset), None)
    if skip is not None:
        return RecordChange("skip", skip=skip)
    if segment.heard is None:
        return RecordChange("not-heard")
    offsets = np.frombuffer(segment.heard.offsets, "<u4")
    ordinal = int(np.searchsorted(offsets, offset - segment.start))
    if ordinal == len(offsets) or int(offsets[ordinal]) != offset - segment.start:
        return RecordChange("not-heard")
    if segment.puts is None:
        return RecordChange("removal")
    puts = puts_columns(segment.puts)
    low, high = (int(np.searchsorted(puts.ordinals, ordinal, side)) for side in ("left", "right"))
    return RecordChange("keys", tuple(puts.keys[low:high])) if high > low else RecordChange("removal")
