"""Rounds of repairs that nobody is there to end. Pure.

Theory of operation. In a round of a repair slices remember what they hear of its documents, and hold back
their queue position for that, until the repair's driver says that the round is over or an hour has passed
(`indexer.slice.corrections`). A driver that was killed, with a job that was cancelled or has failed or is
begun again by another driver, says nothing. Nodes say in their heartbeats which slices watch for whom: where
that is a driver that is gone, the slice is told in its place. To be told twice, or too late, does it no harm.
"""

from __future__ import annotations

from typing import Final

from coordinator.core.instructions import Instruction, SendEnds
from coordinator.jobs.registry import FINAL, JobRegistry
from keytide.wire.messages import NodeHeartbeat, RepairEnd

GRACE_MS: Final = 5_000
"""After a repair: slices may hear from it that it is over, and say so, this much later."""
AGAIN_MS: Final = 10_000
"""Before a slice that still watches is told again."""


class RepairRounds:
    """Ends rounds of repairs that are over.

    Args:
        registry: of all jobs.
    """

    def __init__(self, registry: JobRegistry) -> None:
        self._registry = registry
        self._told: dict[tuple[str, int, str, int], int] = {}
        """(index, slice, repair, round) -> when."""

    def heard(self, message: NodeHeartbeat, now: int) -> list[Instruction]:
        """What the slices of a node say."""
        self._told = {key: at for key, at in self._told.items() if now - at < AGAIN_MS}
        dictionary = self._registry.dictionary
        ends: list[tuple[str, int, RepairEnd]] = []
        for one in message.slices:
            told = one.repair
            if told is None or not told.watching or not self._is_over(told.job, now):
                continue
            index = dictionary.catalog.index(one.index)
            key = (one.index, one.slice, told.job, told.round)
            if index is None or index.state != "READY" or key in self._told:
                continue
            self._told[key] = now
            end = RepairEnd(one.index, one.slice, told.job, told.round, one.incarnation)
            ends.append((dictionary.topics.mutations(one.index), one.slice, end))
        return [SendEnds(tuple(ends))] if ends else []

    def _is_over(self, name: str, now: int) -> bool:
        """Whether a repair's driver is gone.

        Args:
            name: of job and driver, as slices know it. (Of a job that is forgotten nothing is known.)
        """
        job, _, driver = name.partition("-")
        record = self._registry.find(job)
        if record is None or record.state == "QUEUED":
            return False
        if record.state in FINAL:
            return now - record.finished_at >= GRACE_MS
        return self._registry.run(job).gone(driver, now)
