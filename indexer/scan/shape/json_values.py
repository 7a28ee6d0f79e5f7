"""Values that readers get, as JSON bytes. Any thread.

Numbers are written as they are, integers of any size exactly. But an expression may give an integer (`n * n`)
that has more digits than Python writes, and than JSON readers take: that is told, and is nobody's bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from keytide.errors import CallerError

_encoder = msgspec.json.Encoder()


class TooManyDigitsError(CallerError):
    """An integer in the answer has more than 4300 digits."""

    problem_type = "too-many-digits"
    status = 422


def encode(value: Any) -> bytes:
    """A value as JSON.

    Raises:
        TooManyDigitsError: there is such an integer in it.
    """
    try:
        return _encoder.encode(value)
    except ValueError as error:
        raise _told(error) from error


def encode_lines(rows: Iterable[Any]) -> bytes:
    """Rows as lines of JSON. Raises as `encode`."""
    try:
        return _encoder.encode_lines(rows)
    except ValueError as error:
        raise _told(error) from error


def _told(error: ValueError) -> Exception:
    """What a reader is told of an error of the encoder."""
    if "digits" not in str(error):
        return error
    return TooManyDigitsError(
        "an integer in the answer has more than 4300 digits, which JSON readers do not take",
        next_step="leave the key out (`columns`), select around it, or index CAST(... AS double precision)",
    )
