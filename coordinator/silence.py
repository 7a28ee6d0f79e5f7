"""How long a driver may say nothing. Pure.

A driver reports twice a second from its start on; one that says nothing for long stands still. But its
reports come through Kafka, and to a coordinator that may itself stand still: only time in which somebody was
heard counts, and no more of it than one step from look to look.
"""

from __future__ import annotations

from typing import Final

START_MS: Final = 60_000
"""A driver that is started has so much more time for its first word: it loads libraries, behind everything
else on its machine."""
SILENT_MS: Final = 60_000
"""A driver that says nothing for this long is given up."""
HEARING_MS: Final = 2_000
"""Reports are heard while the last one, of whomever, is not older: nodes send two a second."""
STEP_MS: Final = 1_000
"""No more than this from one look to the next counts as silence."""


class Hearing:
    """Whether reports are heard."""

    def __init__(self) -> None:
        self._heard_at = 0

    def heard(self, now: int) -> None:
        """A report came, of whomever."""
        self._heard_at = now

    def silence(self, since: int, now: int) -> int:
        """Of the time since the last look, what counts as silence of one who was not heard in it.
        Milliseconds."""
        return min(now - since, STEP_MS) if now - self._heard_at <= HEARING_MS else 0
