"""The product's waits, scaled to a world whose storm is over after three seconds."""

from __future__ import annotations

from coordinator.builds import rebuild as rebuilding
from coordinator.queues import trimming
from coordinator.rollback import rollback
from projector.service import lookups, membership
from projector.service import projector as service


def install() -> None:
    """Shorten them, in this process."""
    rollback.RETRY_MS = rollback.PAUSE_MS = 60
    rebuilding.CHECK_MS = 40
    rebuilding.PAUSE_MS = 200
    rebuilding.LOST_GRACE_MS = 400
    trimming.SETTLING_MS = 150
    lookups.RETRY_S = 0.1
    membership.REVOKE_WAIT_S = 0.06
    service.FIRST_BACKOFF_S, service.LONGEST_BACKOFF_S = 0.02, 0.2
    service.HOLD_S = 0.15
    service.SEEK_LIMIT_S = 0.6
