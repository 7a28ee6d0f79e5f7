"""How drivers end, and when they are started again. Pure."""

from __future__ import annotations

from typing import Final

from coordinator.core.events import DriverExited

AGAIN: Final = 1
"""Exit status of a driver that something was in the way of, or that does not know what it was."""
NEVER_AGAIN: Final = 3
"""Exit status of a driver that knows that its build or job can never work."""
READ_LOST: Final = 4
"""Exit status of a driver that has read what is not on the source's log any more."""
JOURNAL_LOST: Final = 5
"""Exit status of a driver that does not find the journal of what its build has read."""
SEED_UNFIT: Final = 6
"""Exit status of a driver whose build cannot begin with the slices that it was to begin with."""
NO_ROOM: Final = 74
"""In place of an exit status (as EX_IOERR); drivers themselves never use it: it was not started, for its disk
is full."""
NOT_STARTED: Final = 127
"""In place of an exit status: there is no process, or no log (`coordinator.process.driver_supervisor`)."""
EXIT_GRACE_MS: Final = 10_000
"""A driver that has ended well is given this long for its last report to arrive."""
NO_ROOM_PAUSE_MS: Final = 5_000
"""Between looks whether there is room for a driver on its disk."""
MAX_BACK_OFF_MS: Final = 30_000


def end_of(event: DriverExited) -> str:
    """How a driver ended, in words."""
    if event.status == NOT_STARTED:
        return f"it could not be started: {event.tail}"
    how = f"status {event.status}" if event.status > 0 else f"signal {-event.status}"
    return f"it ended with {how}. {event.tail}" if event.tail else f"it ended with {how}"


def back_off(first_ms: int, times: int) -> int:
    """How long to wait, in ms, before a driver is started again that has died `times` times before."""
    return min(first_ms << times, MAX_BACK_OFF_MS)
