"""What the coordinator asks nodes for when somebody reads a list of an index: lines of its skip ledger, its
violations, what is written to its slices, or a sample of its geometries. Bodies are MessagePack, on one
internal route of every node. Pure.

Lists are read page by page, in an order that does not depend on where slices lie: the skip ledger by
(partition, offset), violations by key. Each page is read from what the slices hold at that moment.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from keytide.wire.messages import UniqueViolation

LISTS_PATH: Final = "/internal/v1/lists"
LARGEST_PAGE: Final = 1_000
"""Lines, or keys, on one page."""
REASONS_LIMIT: Final = 100_000
"""Lines of each slice that are looked at to count them by reason: some tenths of a second."""


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Place = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ListAsk(msgspec.Struct, frozen=True):
    """A page of the slices of one index that lie on a node.

    Attributes:
        index: id.
        after: go on behind this (partition, offset) of the skip ledger.
        after_key: go on behind this key's violation.
        limit: so many at most.
        reasons: count lines by reason, too.
    """

    what: Literal["skipped", "violations", "load", "map"]
    index: str
    slices: list[_Count]
    limit: _Count
    after: tuple[_Partition, _Place] | None = None
    after_key: bytes | None = None
    reasons: bool = False


class SkippedLine(msgspec.Struct, frozen=True):
    """A version that could not be indexed, and why."""

    partition: int
    offset: int
    id: bytes
    reason: str
    detail: str


class WrittenValue(msgspec.Struct, frozen=True):
    """A partition value, encoded, ascending: between `least` and `most` of the entries that were written are
    its."""

    value: bytes
    least: float
    most: float


class WrittenSlice(msgspec.Struct, frozen=True):
    """What was written to a slice in the last minutes, by a sample (`indexer.slice.write_load`).

    Attributes:
        known: entries say which value they came by; else there are none here.
        total: entries; what is older weighs less.
        heavy: the values with most of them, the heaviest first.
        before, listed: values of some entries of the window before and of this one, in the order in which
            they were written, each for as many.
    """

    slice: int
    known: bool = True
    total: float = 0.0
    heavy: list[WrittenValue] = []
    before: tuple[bytes, ...] = ()
    listed: tuple[bytes, ...] = ()


BoundingBox = tuple[float, float, float, float]
"""(west, south, east, north) of a geometry; west > east where it crosses the antimeridian."""


class ListPage(msgspec.Struct, frozen=True):
    """What a node has of it.

    Attributes:
        lines: of the skip ledger, in order.
        violations: in order.
        more: there is more behind.
        reasons: reason -> lines.
        counted_all: `reasons` are of all lines.
        written: of each slice that was asked for.
        boxes: of some geometries of a spatial index, each once, spread over where there are any.
    """

    lines: list[SkippedLine] = []
    violations: list[UniqueViolation] = []
    more: bool = False
    reasons: dict[str, int] = {}
    counted_all: bool = True
    written: list[WrittenSlice] = []
    boxes: list[BoundingBox] = []


ask_decoder: Final = msgspec.msgpack.Decoder(ListAsk)
page_decoder: Final = msgspec.msgpack.Decoder(ListPage)
encoder: Final = msgspec.msgpack.Encoder()
