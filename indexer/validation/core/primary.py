"""What a primary is asked and what it answers. Pure.

A primary holds documents by id. It is asked for the document of every row of a page, with the version that
the row comes from (a place in the source topic), because one question decides what a difference means: does
the primary already have that version? If it does, and the document says otherwise, the row is stale. If it
does not, the row is the newer of the two, and nothing can be said yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from keytide.errors import CallerError, RetryableError
from keytide.model.timestamp import Timestamp

UNKNOWN_OFFSET: Final = -1
"""In place of an offset: the slice holds no version of the document (any more)."""


class AnsweredDocument(NamedTuple):
    """A document, and the version of it that the index shows.

    Attributes:
        partition, offset: of the record that the version came with; -1 when not known.
    """

    id: bytes
    partition: int = -1
    offset: int = UNKNOWN_OFFSET


class PrimaryAnswer(NamedTuple):
    """What the primary says of a document.

    Attributes:
        document: as JSON; None when there is none.
        position: next offset, in the partition that was asked with, up to which the primary is known to have
            what the topic has. None: the primary is where documents are written first, so it is always ahead.
        why: why nothing can be said, "" when something can.
    """

    document: bytes | None = None
    position: int | None = None
    why: str = ""


class PrimaryUnreachableError(RetryableError):
    """The primary does not answer, or not in time."""

    problem_type = "primary-unreachable"


class PrimaryMisconfiguredError(CallerError):
    """What the settings say of the primary cannot be: no such table, no such driver, ..."""

    problem_type = "primary-misconfigured"
    status = 422


class NoPrimaryError(CallerError):
    """A row cannot be validated where no primary is set."""

    problem_type = "no-primary"
    status = 422


class Primary(Protocol):
    """Documents by id. All methods block; `documents` may be called by several threads at once."""

    def documents(
        self, asked: Sequence[AnsweredDocument], fields: Collection[str], since: Timestamp, timeout_s: float
    ) -> list[PrimaryAnswer]:
        """The documents of `asked`, in its order.

        Args:
            asked: different ids.
            fields: the top-level fields that matter: others may be left out of documents.
            since: of the snapshot that the rows come from: the index has everything below it.
            timeout_s: the answer is of no use later.

        Raises:
            PrimaryUnreachableError, PrimaryMisconfiguredError.
        """
        ...

    def close(self) -> None:
        """Let go of all connections; calls under way may fail."""
        ...
