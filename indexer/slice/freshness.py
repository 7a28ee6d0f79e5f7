"""The record times behind a commit, for the freshness metric."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from keytide.wire.messages import Heard, Segment


def newest_times(segments: Iterable[Segment]) -> list[int]:
    """For each segment with documents the time (ms) of its last record: a sample, so that no document is
    looked at."""
    return [_last_time(segment.heard) for segment in segments if segment.heard and segment.heard.count]


def _last_time(heard: Heard) -> int:
    if not heard.times:
        return heard.time_base
    wide = len(heard.times) == 8 * heard.count
    delta: int = struct.unpack_from("<q" if wide else "<I", heard.times, -8 if wide else -4)[0]
    return heard.time_base + delta
