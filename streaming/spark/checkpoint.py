"""Spark's streaming checkpoint, as far as a backfill needs to read it.

Theory of operation
===================
Where a build goes on is in its journal (`streaming.drivers.journal`), so each start of its query gets an
empty folder, and begins where the journal says. What it plans from there is in the checkpoint only. A folder
(Spark 4.0.0; the formats have been the same since 2.1) has

    sources/0/0    written once, before the first micro-batch: the offsets that reading began at
    offsets/<n>    written before micro-batch n runs: the offsets that it ends at (exclusive)

(Micro-batches here are Spark's: the driver cuts them, `streaming.core.sizing`.)

Each is a line `v1` (in sources/0/0 after a zero byte that Spark 2.1 wanted), then JSON. An offsets file has
a line of metadata and then a line for each source, here one: {"<topic>": {"<partition>": offset}}. So
micro-batch n covers [offsets/<n-1>, offsets/<n>), the first one [sources/0/0, offsets/0). Spark makes these
files by renaming finished ones, so that what can be seen is whole, and keeps the newest 100 batches at
least (`spark.sql.streaming.minBatchesToRetain`), so the one before the newest is there.

If another Spark ever writes something else, parsing fails loudly (`CheckpointError`) and nothing is sent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from keytide.errors import KeytideError
from keytide.model.timestamp import Timestamp

VERSION = "v1"


class CheckpointError(KeytideError):
    """The checkpoint is not in the form that this release reads; the build must start anew."""

    problem_type = "checkpoint-unreadable"


class Extent(NamedTuple):
    """What one task reads: offsets [start, end) of one source partition."""

    partition: int
    start: int
    end: int


class Range(NamedTuple):
    """The offsets of one micro-batch: from `start` to `end`, exclusive."""

    start: Timestamp
    end: Timestamp

    @property
    def extents(self) -> list[Extent]:
        """What is to be read of each source partition that the micro-batch reads anything from."""
        return [
            Extent(p, self.start.offset(p), place.offset)
            for p, place in sorted(self.end.places.items())
            if place.offset > self.start.offset(p)
        ]


def parse_offsets(text: str, topic: str, topic_id: str = "") -> Timestamp:
    """The timestamp in the content of `offsets/<n>` or `sources/0/0`.

    Raises:
        CheckpointError: it is something else.
    """
    lines = text.lstrip("\0").splitlines()
    if len(lines) < 2 or lines[0] != VERSION:
        raise CheckpointError(
            f"an offsets file of Spark's checkpoint begins with {text[:40]!r}, not {VERSION!r}"
        )
    try:
        offsets = json.loads(lines[-1])[topic]
        return Timestamp.of({int(p): int(offset) for p, offset in sorted(offsets.items())}, topic_id)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"no offsets of topic {topic} in Spark's checkpoint: {lines[-1][:200]!r} ({error!r})"
        ) from error


class Checkpoint:
    """Reads the checkpoint of one query over one topic.

    Args:
        folder: the query's `checkpointLocation`, on a file system of this machine.
    """

    def __init__(self, folder: Path, topic: str, topic_id: str = "") -> None:
        self.folder = folder
        self._topic = topic
        self._topic_id = topic_id

    def begin(self) -> Timestamp | None:
        """Where reading began; None before the first start."""
        return self._read(self.folder / "sources" / "0" / "0")

    def range(self, batch: int) -> Range:
        """The offsets of what Spark has planned as its micro-batch `batch`.

        Raises:
            CheckpointError: it is not planned, or the one before it was purged.
        """
        start = self._read(self.folder / "offsets" / str(batch - 1)) if batch else self.begin()
        end = self._read(self.folder / "offsets" / str(batch))
        if start is None or end is None:
            raise CheckpointError(f"{self.folder} does not say what micro-batch {batch} covers")
        return Range(start, end)

    def _read(self, file: Path) -> Timestamp | None:
        try:
            text = file.read_text()
        except FileNotFoundError:
            return None
        return parse_offsets(text, self._topic, self._topic_id)
