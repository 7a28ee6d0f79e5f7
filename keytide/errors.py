"""The three families of errors, and `invariant`, the assertion that stays on in production.

Every error that Keytide raises on purpose belongs to one of three families (after h11, which says whose fault
it was, and distributed's worker state machine, whose exceptions carry the entity's story):

* `RetryableError`: something outside is away for a while (a broker, a node, a snapshot that is not there
yet). Try again.
* `CallerError`: the other side asked for something that cannot be had. It says what to do next; trying again
is no use.
* `InvariantViolationError`: our bug. The process that finds it stops and tells the story; it never goes on
with wrong data.

HTTP servers turn the first two into RFC 9457 problem details through `problem_type`, `status` and
`next_step`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no such value: it has none of its own for text that is no UTF-8,
nor for what is nested too deep."""


class KeytideError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        problem_type: the RFC 9457 `type`, a short kebab-case word that clients may match on.
        status: the HTTP status that goes with it.
        next_step: what the reader should do now; empty when the message says it all.
        extra: further members of the problem document.
    """

    problem_type = "error"
    status = 500

    def __init__(
        self,
        message: str,
        *,
        problem_type: str | None = None,
        status: int | None = None,
        next_step: str = "",
        **extra: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.problem_type = problem_type or type(self).problem_type
        self.status = status or type(self).status
        self.next_step = next_step
        self.extra: dict[str, Any] = extra

    def problem(self) -> dict[str, Any]:
        """The error as an RFC 9457 problem document."""
        document: dict[str, Any] = {
            "type": self.problem_type,
            "title": self.problem_type.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.message,
        }
        if self.next_step:
            document["next_step"] = self.next_step
        document.update(self.extra)
        return document


class RetryableError(KeytideError):
    """Something outside is away for a while; the same call may go through later."""

    problem_type = "unavailable"
    status = 503


class CallerError(KeytideError):
    """The other side asked for something that cannot be had; the message says what to do instead."""

    problem_type = "bad-request"
    status = 400


class HistoryChangedError(CallerError):
    """A rollback has taken back what was read: the session or the page saw a snapshot that is void now, or a
    demanded offset was lost with its branch."""

    problem_type = "history-changed"
    status = 409


class ConfigurationError(CallerError):
    """A setting, file or environment that cannot work."""

    problem_type = "configuration"


class InvariantViolationError(KeytideError):
    """Our bug: something that must always hold did not. Never caught to go on."""

    problem_type = "invariant-violated"

    def __init__(self, name: str, story: str) -> None:
        super().__init__(f"invariant {name} does not hold: {story}")
        self.name = name
        self.story = story


def invariant(condition: object, name: str, story: str | Callable[[], str] = "") -> None:
    """Assert, in production too, that `condition` holds.

    Args:
        condition: what must be true.
        name: the invariant's name as ARCHITECTURE.md lists it (Untorn, Monotonic, Stable, Mirror, Published,
        Contiguous, ...).
        story: what happened, or a callable that tells it (called only on failure, so it may be costly).

    Raises:
        InvariantViolationError: if it does not hold.
    """
    if not condition:
        raise InvariantViolationError(name, story() if callable(story) else story)
