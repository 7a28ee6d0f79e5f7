"""What a reader may ask of the scan endpoint (CONTRACT §5), decoded and checked in one go.

The OpenAPI page shows the schemas that msgspec derives from these types, so that what is shown and what is
checked cannot differ.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Inclusion = Literal["both", "low", "high", "neither"]
Consistency = Literal["stable", "tip"]
Column = Literal["key", "id", "include"]
KeyParts = list[Any]
"""Leading key parts: JSON values as they are, integers of any size exactly."""


class OffsetAndEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in a source partition, as answers show it: the next offset and the leader epoch."""

    offset: Annotated[int, Meta(ge=0)]
    epoch: Annotated[int, Meta(ge=-1)] = -1


AtLeast = dict[int, Annotated[int, Meta(ge=0)] | OffsetAndEpoch] | None
"""Source partition -> next offset, with or without the leader epoch under which it was written."""


class Question(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which entries, and from which moment in time.

    At most one of `equals`, `low`/`high`, `prefix` (which may follow `equals`); nothing selects the whole
    index.
    """

    equals: Annotated[
        KeyParts | None, Meta(description="leading key parts that must be equal", examples=[["Boston"]])
    ] = None
    low: Annotated[KeyParts | None, Meta(description="lower bound: leading key parts")] = None
    high: Annotated[KeyParts | None, Meta(description="upper bound: leading key parts")] = None
    inclusion: Annotated[Inclusion, Meta(description="which of the bounds belong to the range")] = "both"
    prefix: Annotated[
        str | None,
        Meta(description="strings that begin so, in the key part after `equals` (without it the first)"),
    ] = None
    consistency: Annotated[
        Consistency,
        Meta(description="`stable`: one agreed snapshot of all slices; `tip`: each slice's newest state"),
    ] = "stable"
    at_least: Annotated[
        AtLeast,
        Meta(
            description="source partition -> next offset (record offset + 1) that the snapshot must include; "
            "with the leader epoch, an offset that the source has lost is told at once (409)",
            examples=[{"0": 4711}],
        ),
    ] = None
    session: Annotated[
        str | None,
        Meta(description="token of an earlier answer: never see an older snapshot than that one"),
    ] = None
    max_staleness_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="how old the snapshot may be at most")
    ] = None
    timeout_ms: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="longest wait for such a snapshot and for the slices"),
    ] = None
    explain: Annotated[bool, Meta(description="add how the snapshot was chosen")] = False

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            return
        if self.equals is not None:
            raise ValueError("give either `equals` or `low`/`high`, not both")
        if self.prefix is not None:
            raise ValueError("give either `prefix` or `low`/`high`, not both")


class ScanRequest(Question, frozen=True):
    """Body of `POST /v1/indexes/{name}/scan`."""

    reverse: Annotated[bool, Meta(description="rows in descending key order")] = False
    limit: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="rows per page")] = None
    columns: Annotated[list[Column] | None, Meta(description="what each row holds")] = None
    page: Annotated[
        str | None,
        Meta(description="token of an earlier answer: its next page; the selection is in the token"),
    ] = None


class CountRequest(Question, frozen=True):
    """Body of `POST /v1/indexes/{name}/count`."""
