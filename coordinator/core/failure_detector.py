"""How long who may say nothing. Pure.

A driver reports twice a second from its start on; one that says nothing for long stands still. But its
reports come through Kafka, and to a coordinator that may itself stand still: only time in which somebody was
heard counts, and no more of it than one step from look to look.

Nodes and projectors say something several times a second too, and `FailureDetector` counts their silence
alike: by a clock that goes on by one step from tick to tick at most, so that a leader which itself stood
still holds nothing against the others, and that stands while Kafka confirms nothing of what the leader itself
says.
"""

from __future__ import annotations

from collections.abc import Hashable
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


class ReportWatch:
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


DETECTOR_STEP_MS: Final = 500
"""No more than this from tick to tick counts as silence of nodes and projectors."""
DEAF_MS: Final = 1_000
"""While Kafka has confirmed nothing for this long (the leader says something every 300 ms), nobody can be
heard."""
GRACE_MS: Final = 5_000
"""When Kafka is back: its other clients, too, come back within this."""
BEATS: Final = 2
"""Words after which one who was suspected is trusted again: a single one may have been long on its way."""


class FailureDetector:
    """Who was not heard for how long.

    Args:
        limit_ms: who says nothing for longer is suspected.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._clock = 0
        self._ticked_at: int | None = None
        self._grace = 0
        self._confirmed = False
        self._heard: dict[Hashable, int] = {}
        self._suspected: dict[Hashable, int] = {}
        self.kafka_silence = 0

    @property
    def deaf(self) -> bool:
        """Whether nobody can be heard now: Kafka does not answer."""
        return self.kafka_silence > DEAF_MS

    @property
    def kafka_suspected(self) -> bool:
        return self.kafka_silence > self._limit_ms

    def confirmed(self) -> None:
        """Kafka has taken what the leader said. (Until the first time nothing is known, and nothing held
        against it.)"""
        self._confirmed, self.kafka_silence = True, 0

    def tick(self, now: int) -> None:
        """Time has passed; `now` in milliseconds, by a clock that may jump."""
        before, self._ticked_at = self._ticked_at, now
        step = 0 if before is None else max(0, min(now - before, DETECTOR_STEP_MS))
        if self._confirmed:
            self.kafka_silence += step
        if self.deaf:
            self._grace = GRACE_MS
            return
        self._clock += max(0, step - self._grace)
        self._grace = max(0, self._grace - step)
        for subject in self._heard:
            if self.silence(subject) > self._limit_ms:
                self._suspected.setdefault(subject, 0)

    def heard(self, subject: Hashable) -> None:
        """Somebody has said something."""
        self._heard[subject] = self._clock
        if subject in self._suspected:
            self._suspected[subject] += 1
            if self._suspected[subject] >= BEATS:
                del self._suspected[subject]

    def silence(self, subject: Hashable) -> int:
        """For how long somebody has said nothing, in milliseconds that count; since the first tick for one
        who was never heard."""
        return self._clock - self._heard.get(subject, 0)

    def suspected(self, subject: Hashable) -> bool:
        """Whether somebody stands still, is gone, or is cut off."""
        return subject in self._suspected or self.silence(subject) > self._limit_ms
