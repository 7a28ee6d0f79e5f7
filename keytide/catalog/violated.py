"""What a dictionary keeps of violations of UNIQUE."""

from __future__ import annotations

import msgspec

from keytide.wire.messages import UniqueViolation


class Violated(msgspec.Struct, frozen=True):
    """Why a build has failed a UNIQUE index: its slices are gone, and this is what is left to look at.

    Attributes:
        count: keys that several documents have.
        exact: there are so many; else at least so many.
        keys: some of them, ascending.
    """

    count: int
    exact: bool
    keys: list[UniqueViolation]
