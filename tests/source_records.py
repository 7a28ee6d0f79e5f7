"""Records of a source as the stages take them."""

from __future__ import annotations

from collections.abc import Sequence

from projector.core.projection import SourceBatch

RecordOf = tuple[int, int, bytes | None, bytes | None]
"""Offset, time (milliseconds), id and value."""


def source_batch(partition: int, records: Sequence[RecordOf]) -> SourceBatch:
    """Some records of one partition, ascending; at least one."""
    offsets, times, ids, values = (list(column) for column in zip(*records, strict=True))
    return SourceBatch(partition, -1, offsets[0], offsets[-1] + 1, offsets, ids, values, times)
