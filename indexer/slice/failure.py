"""Why a slice cannot go on by itself. Raised inside its core, and turned there into a `Stop` or a `Lose` with
the reason."""

from __future__ import annotations

from keytide.errors import CallerError, KeytideError


class CannotGoOnError(CallerError):
    """What the slice reads cannot be right; the message says what to do."""

    problem_type = "slice-stopped"


class GoneError(CannotGoOnError):
    """What the slice needs is gone for good: only a rebuild helps."""

    problem_type = "slice-lost"


def unreadable(queue: str, position: int, error: KeytideError) -> CannotGoOnError:
    """For a record that is no message that this release reads."""
    return CannotGoOnError(f"{queue}, offset {position}: {error.message}")
