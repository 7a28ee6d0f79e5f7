"""When waiting is over: what stands still is stuck, what is slow is not.

A build waits for its turn, begins again after a rollback, and Spark takes a minute to start on busy cores.
How long that takes says nothing of whether it is right; that nothing moves any more does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from keytide.cli.admin import Admin
from keytide.errors import KeytideError

LOOK_S = 2.0
"""Between looks at what moves."""
OVER = frozenset({"READY", "FAILED", "CANCELLED"})


class Patience:
    """Runs out when nothing has moved for a while.

    Args:
        moves: changes when something moves; None when that cannot be told now.
        still_s: seconds without a change.
        most_s: seconds at all: what moves for ever is no better.
    """

    def __init__(
        self,
        moves: Callable[[], Hashable | None],
        still_s: float,
        most_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._moves, self._clock = moves, clock
        self._still_s, self._most_s = still_s, most_s
        self._began = self._moved_at = clock()
        self._look_at = self._began
        self._seen: Hashable | None = None

    @property
    def over(self) -> bool:
        """Whether it has run out."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            seen = self._moves()
            if seen is not None and seen != self._seen:
                self._seen, self._moved_at = seen, now
        return now - self._moved_at > self._still_s or now - self._began > self._most_s


def builds_of(coordinator: str) -> Hashable | None:
    """How far the builds of a cluster are that are not over; None when the coordinator does not answer."""
    try:
        with Admin(coordinator) as admin:
            builds = admin.call("GET", "/v1/builds")
    except KeytideError:
        return None
    return tuple(
        (one["id"], one["state"], one["phase"], one["batches"], one["documents_done"])
        for one in builds
        if one["state"] not in OVER
    )
