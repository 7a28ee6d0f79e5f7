"""Why a document has no entries: skipped (it cannot be indexed, and goes to the ledger) or left out (by the
definition)."""

from __future__ import annotations

from typing import Final

from keytide.collation import NotIndexableError
from keytide.errors import CallerError
from keytide.geometry import NotAGeometryError
from keytide.model.entry import MAX_KEY_BYTES

MAX_ELEMENTS: Final = 10_000
"""Entries of one document in one index."""
MAX_ENTRIES_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the stored keys and values of one document in one index."""
MAX_DETAIL: Final = 300
"""Characters of a detail in the skip ledger."""

LEADING_KEY_MISSING: Final = "leading-key-missing"
NOTHING_TO_UNNEST: Final = "nothing-to-unnest"
WHERE_NOT_TRUE: Final = "where-not-true"


class SkippedError(CallerError):
    """A document that cannot be in an index; `problem_type` is the reason in the skip ledger."""


class KeyTooLargeError(SkippedError):
    problem_type = "key-too-large"

    def __init__(self, size: int) -> None:
        super().__init__(f"the key takes {size} bytes, more than {MAX_KEY_BYTES}")


class TooManyElementsError(SkippedError):
    problem_type = "too-many-elements"

    def __init__(self) -> None:
        super().__init__(
            f"the document makes more than {MAX_ELEMENTS} entries, or {MAX_ENTRIES_BYTES} bytes of them"
        )


FAILURES: Final = (SkippedError, ArithmeticError, ValueError, TypeError, LookupError, RecursionError)
"""What projecting one document may raise; NotIndexableError is a ValueError. A broken invariant is not
among them."""


def explain(ordinal: int, error: Exception) -> tuple[int, str, str]:
    """(ordinal, reason, detail) of a failure."""
    if isinstance(error, SkippedError | NotIndexableError | NotAGeometryError):
        return ordinal, error.problem_type, error.message[:MAX_DETAIL]
    return ordinal, "not-projectable", f"{type(error).__name__}: {error}"[:MAX_DETAIL]
