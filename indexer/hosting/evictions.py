"""Tells of what full slices have let go of: nothing else shows that a queue is kept for it (R4)."""

from __future__ import annotations

import logging
from typing import Final

from indexer.hosting.metrics import NodeMetrics
from indexer.slice.core import SliceCore

log = logging.getLogger(__name__)

EVERY_MS: Final = 10_000
"""Between lines of the log, of one slice."""


class Evictions:
    """Of one slice.

    Args:
        metrics: has the counter.
    """

    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics
        self._counted = self._told = self._told_at = 0

    def look(self, core: SliceCore, now: int) -> None:
        """Count what is new, and write a line of the log when the last one is old enough."""
        self._metrics.evicted.inc(core.evicted - self._counted)
        self._counted = core.evicted
        if core.evicted > self._told and now - self._told_at >= EVERY_MS:
            words = (
                "slice %s/%d was full, and let go of %d documents that no timestamp reaches; its queue is "
                "kept from offset %d on until they come again"
            )
            count = core.evicted - self._told
            log.warning(words, core.index, core.slice, count, core.applied.queue_position)
            self._told, self._told_at = core.evicted, now
