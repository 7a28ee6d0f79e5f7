"""When waiting is over: what could get on and does not is stuck, what is slow is not.

A build waits for its turn, begins again after a rollback, and Spark takes long to start on busy cores. How
long that takes says nothing of whether it is right; that it gets nowhere does. Where faults strike all the
time, not all time is a chance: a driver that is killed ten seconds after its start could not have done
anything. So only spells without a fault count that are as long as a driver needs to start and finish a
micro-batch, which is measured before the first fault; and only what a fault cannot take away counts as
progress, in states that were not seen before: a driver that begins from zero again and again moves, and gets
nowhere.
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
    """Runs out when nothing new was reached although it could have been.

    Args:
        moves: changes when something gets on; None when that cannot be told now. What it was before does not
            count again.
        still_s: seconds of spells without a fault.
        most_s: seconds at all: what moves for ever is no better.
        struck: when the last fault struck, or was over, by `clock`; None for never.
        needed: how long a spell must be, seconds.
    """

    def __init__(
        self,
        moves: Callable[[], Hashable | None],
        still_s: float,
        most_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        struck: Callable[[], float | None] = lambda: None,
        needed: Callable[[], float] = lambda: LOOK_S,
    ) -> None:
        self._moves, self._clock, self._struck, self._needed = moves, clock, struck, needed
        self._still_s, self._most_s = still_s, most_s
        self._began = self._spell = self._look_at = clock()
        self._chances = 0.0
        self._seen: set[Hashable] = set()

    @property
    def over(self) -> bool:
        """Whether it has run out."""
        now = self._clock()
        self._spell = max(self._spell, self._struck() or 0.0)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            reached = self._moves()
            if reached is not None and reached not in self._seen:
                self._seen.add(reached)
                self._spell, self._chances = now, 0.0
        if now - self._spell >= self._needed():
            self._chances += now - self._spell
            self._spell = now
        return self._chances > self._still_s or now - self._began > self._most_s


def builds_of(coordinator: str) -> Hashable | None:
    """How far the builds of a cluster are that are not over, in what lasts: what a micro-batch under way has
    read does not. None when the coordinator does not answer."""
    try:
        with Admin(coordinator) as admin:
            builds = admin.call("GET", "/v1/builds")
    except KeytideError:
        return None
    return tuple(
        (one["id"], one["state"], one["phase"], one["batches"], _verified(one))
        for one in builds
        if one["state"] not in OVER
    )


def _verified(build: dict[str, object]) -> object:
    """How far its verification is."""
    return build["percent"] if build["state"] == "CATCHUP" else None
