"""Lost history on a single broker: acknowledged records are cut off the end of a partition's log, on disk.

Theory of operation. An unclean election leaves a log that is shorter than it was, and a new leader epoch. The
same comes of cutting the log's files while the broker is dead: at its next start it recovers what is there,
and begins a new epoch, since it was not stopped in order. So what reads the topic meets exactly what it would
meet after an unclean election, without three brokers.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct(">qi")
_EPOCH_AT = 12
_LAST_DELTA_AT = 23
"""Where in a batch of records (format 2) its leader epoch and the delta of its last offset are."""


class Cut(NamedTuple):
    """A log that has lost its end.

    Attributes:
        end: its next offset now.
        had: its next offset before.
        epoch: the leader epoch of the last record that was lost.
    """

    end: int
    had: int
    epoch: int


def batches(segment: Path) -> list[tuple[int, int, int]]:
    """(position, first offset, next offset) of each batch in a segment's file."""
    data = segment.read_bytes()
    found, at = [], 0
    while at + _HEAD.size + 15 <= len(data):
        base, length = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if length <= 0 or end > len(data):
            break  # preallocated, or torn by the kill
        (delta,) = struct.unpack_from(">i", data, at + _LAST_DELTA_AT)
        found.append((at, base, base + delta + 1))
        at = end
    return found


def cut(logs: Path, topic: str, partition: int, lose: int) -> Cut:
    """Cut at least `lose` offsets off the end of a partition; the broker must be dead.

    Args:
        logs: the broker's `log.dirs`.

    Returns:
        What became of the log.

    Raises:
        ValueError: the last segment does not have so many.
    """
    folder = logs / f"{topic}-{partition}"
    segment = max(folder.glob("*.log"))
    found = batches(segment)
    end = found[-1][2] if found else 0
    keep = [batch for batch in found if batch[2] <= end - lose]
    if not keep:
        raise ValueError(
            f"{segment} has {len(found)} batches up to offset {end}: {lose} are too many to lose"
        )
    position = found[len(keep)][0]
    (epoch,) = struct.unpack_from(">i", segment.read_bytes(), found[-1][0] + _EPOCH_AT)
    with segment.open("r+b") as file:
        file.truncate(position)
    for stale in (*folder.glob("*.snapshot"), *folder.glob("*index")):
        stale.unlink()  # made again from the log
    return Cut(keep[-1][2], end, epoch)
