"""The record times behind a commit, for the freshness metric."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from keytide.wire.messages import Heard, Segment

_KEPT: Final = 256
"""Record times that wait for their number to be published; only the metric suffers when there are more."""


class WaitingTimes:
    """The record times of one slice whose number is not published yet."""

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []

    def committed(self, number: int, segments: Iterable[Segment]) -> None:
        """A snapshot brought these segments."""
        self._times += [(number, one) for one in newest_times(segments)]
        del self._times[:-_KEPT]

    def published(self, number: int) -> Iterator[int]:
        """The times (ms) up to a number, which are forgotten."""
        while self._times and self._times[0][0] <= number:
            yield self._times.pop(0)[1]

    def clear(self) -> None:
        """Forget all: numbers are void."""
        self._times.clear()


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
