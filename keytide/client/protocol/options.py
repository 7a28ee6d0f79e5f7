"""What a reader may ask for (docs/reference), as the keyword arguments of both clients. Pure.

The types are for editors and type checkers; what a node does not understand, it refuses by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

Inclusion = Literal["both", "low", "high", "neither"]
Consistency = Literal["stable", "tip"]
Column = Literal["key", "id", "include"]
ColumnType = Literal["text", "bigint", "double", "boolean", "json"]


class ProducedOffsets(Protocol):
    """What a producer was told of its writes: `keytide.client.Writes`."""

    @property
    def topic(self) -> str | None: ...

    def at_least(self) -> dict[str, Any]: ...


class SnapshotHandle(Protocol):
    """A snapshot that nodes hold for a reader: what `Client.snapshot` gives."""

    @property
    def at(self) -> str: ...


AtLeastOffsets = Mapping[Any, Any] | ProducedOffsets
"""Source partition -> next offset (or `{"offset": n, "epoch": n}`, as the timestamps of answers are), or what
a producer wrote."""


class MomentOptions(TypedDict, total=False):
    """From which moment in time to read.

    Attributes:
        consistency: `stable` (one agreed snapshot of all slices, the default) or `tip` (each slice's newest
            state).
        at_least: what the snapshot must include at least.
        session: token of an earlier answer, instead of the client's own session.
        max_staleness_ms: how old the snapshot may be at most.
        timeout_ms: longest wait for such a snapshot and for the slices.
        at: a held snapshot: read exactly that one.
        explain: add how the snapshot was chosen.
    """

    consistency: Consistency | None
    at_least: AtLeastOffsets | None
    session: str | None
    max_staleness_ms: int | None
    timeout_ms: int | None
    at: str | SnapshotHandle | None
    explain: bool | None


class SpanOptions(TypedDict, total=False):
    """One of several stretches of an index."""

    equals: Sequence[Any] | None
    low: Sequence[Any] | None
    high: Sequence[Any] | None
    inclusion: Inclusion | None
    prefix: str | None


class NearOptions(TypedDict, total=False):
    """What lies around a place.

    Attributes:
        point: `[lon, lat]`, or any GeoJSON geometry.
        metres: how far away at most (units, of a plane).
        limit: only so many, the nearest first, each with its distance: `Client.page` gives them.
    """

    point: Sequence[float] | Mapping[str, Any]
    metres: float | None
    limit: int | None


GeometryLike = Sequence[float] | Mapping[str, Any]
"""A GeoJSON geometry, a point `[lon, lat]`, or a box `[west, south, east, north]`."""


class QuestionOptions(MomentOptions, total=False):
    """Which entries, and from which moment: what counts take.

    Attributes:
        equals: leading key parts that must be equal.
        low, high, inclusion: bounds by leading key parts, and which of them belong to the range.
        prefix: strings that begin so, in the key part after `equals`.
        spans: several of these at once; overlaps are read once.
        within, contains, intersects, near: of a spatial index, the places that lie within one, contain it,
            meet it, or lie around it; one of these, in place of keys.
        srid: the system that the place is in: refused if that of the index is another one.
        slices: read these slices only, for readers that divide the work.
    """

    equals: Sequence[Any] | None
    low: Sequence[Any] | None
    high: Sequence[Any] | None
    inclusion: Inclusion | None
    prefix: str | None
    spans: Sequence[SpanOptions] | None
    within: GeometryLike | None
    contains: GeometryLike | None
    intersects: GeometryLike | None
    near: NearOptions | None
    srid: int | None
    slices: Sequence[int] | None


class CountOptions(QuestionOptions, total=False):
    """What a count may be told besides.

    Attributes:
        distinct: count keys instead of entries.
    """

    distinct: bool | None


class ScanOptions(QuestionOptions, total=False):
    """What a scan may be told besides.

    Attributes:
        reverse: descending key order.
        offset: rows to leave out at the start.
        distinct: one row per key.
        columns: which of `key`, `id`, `include` a row has.
        validate: check rows against the primary.
    """

    reverse: bool | None
    offset: int | None
    distinct: bool | None
    columns: Sequence[Column] | None
    validate: bool | None


class PageOptions(ScanOptions, total=False):
    """What one answer may be told besides.

    Attributes:
        limit: rows at most.
        page: token of an earlier answer: its next page, with nothing else.
    """

    limit: int | None
    page: str | None


class AggregateOptions(QuestionOptions, total=False):
    """What an aggregate may be told besides.

    Attributes:
        group_by: SQL expressions over what the index holds; none for one group.
        reverse: groups in descending order of their keys.
        limit, offset: groups to give, and to leave out at the start.
    """

    group_by: Sequence[str] | None
    reverse: bool | None
    limit: int | None
    offset: int | None


class TailOptions(QuestionOptions, total=False):
    """What a tail may be told besides. The moment is that of its first event.

    Attributes:
        initial: begin with all rows of the first snapshot.
        columns: which of `key`, `id`, `include` a row has.
    """

    initial: bool | None
    columns: Sequence[Column] | None
