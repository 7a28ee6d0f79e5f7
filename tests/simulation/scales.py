"""The product's waits, scaled to a world whose storm is over after three seconds."""

from __future__ import annotations

from coordinator.builds import rebuild as rebuilding
from coordinator.queues import trimming
from coordinator.rollback import rollback


def install() -> None:
    """Shorten them, in this process."""
    rollback.RETRY_MS = rollback.PAUSE_MS = 60
    rebuilding.CHECK_MS = 40
    rebuilding.PAUSE_MS = 200
    rebuilding.LOST_GRACE_MS = 400
    trimming.SETTLING_MS = 150
