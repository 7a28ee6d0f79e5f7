"""What a trace is made of, and what it tells. Times are milliseconds since the epoch."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.trace.changes import ChangeKind

HopName = Literal["projected", "reported", "stamped", "committed", "published"]
HopState = Literal["done", "past", "waiting", "none"]
OutcomeKind = Literal["entries", "deleted", "skipped", "left-out", "unknown"]


class SourceRecord(msgspec.Struct, frozen=True):
    """The newest record of a document.

    Attributes:
        time: the record's timestamp.
        time_is: `create` (its producer's clock) or `append` (the broker's).
        deleted: it has no value: it deletes the document.
        bytes: of its value.
    """

    partition: int
    offset: int
    time: int
    time_is: Literal["create", "append"]
    deleted: bool
    bytes: int

    @property
    def end(self) -> int:
        """The next offset: what has it has everything below this."""
        return self.offset + 1


class RecordOutcome(msgspec.Struct, frozen=True):
    """What a record means to an index.

    Attributes:
        kind: `unknown`: neither its queue nor the record tells.
        keys: how many entries it has.
        reason, detail: of `skipped` and `left-out`.
    """

    kind: OutcomeKind
    keys: int = 0
    reason: str = ""
    detail: str = ""


UNKNOWN: Final = RecordOutcome("unknown")
OVER: Final = frozenset({"READY", "FAILED", "CANCELLED"})
"""States of builds that read no more."""


class TracedIndex(msgspec.Struct, frozen=True):
    """An index that the record is looked for in.

    Attributes:
        name: what to call it (`Catalog.shown_names`).
        emits: projectors send for it.
        placement: for each slice, the nodes whose copies count.
        brought_by: id of the build that has read the record: then it is in no mutation queue; "" where the
            projector is to send it.
    """

    id: str
    name: str
    state: str
    reason: str
    version: int
    emits: bool
    placement: list[list[str]]
    brought_by: str = ""

    @property
    def slices(self) -> int:
        return len(self.placement)


class TracedHop(msgspec.Struct, frozen=True):
    """One hop.

    Attributes:
        state: `done`; `past`: it was, and when is not known any more; `waiting`; `none`: there is none.
        at: when it was done; of `past` when it was at the latest, if that is known.
        took_ms: since the hop before, where both times are known. Clocks of several machines may differ.
        detail: what is known of it.
        waiting_for: what it waits for.
        next_step: what to do then.
    """

    hop: HopName
    state: HopState
    at: int | None = None
    took_ms: int | None = None
    detail: str = ""
    waiting_for: str = ""
    next_step: str = ""


class TracedSlice(msgspec.Struct, frozen=True):
    """What became of the record in one slice.

    Attributes:
        change: what the segment does there; None when it is not (or no more) in the queue.
        keys: how many it brings.
        sent_at: of the first segment that has it.
        sent_again: how often it was sent once more.
        committed_at: when the first of the slice's copies said that it holds the number.
        missing: nodes whose copies have not said so.
    """

    slice: int
    change: ChangeKind | None
    keys: int
    skip: str
    sent_at: int | None
    sent_again: int
    committed_at: int | None
    missing: list[str]


class IndexTrace(msgspec.Struct, frozen=True):
    """The record's way into one index.

    Attributes:
        shown: whether stable scans of it include the record now; None when that cannot be said.
        published: the number that they read now; None when none is published.
        hops: all five, in their order; `reported` and `stamped` are those of the keyspace.
    """

    index: str
    id: str
    state: str
    reason: str
    outcome: RecordOutcome
    shown: bool | None
    published: int | None
    hops: list[TracedHop]
    slices: list[TracedSlice]


class DocumentTrace(msgspec.Struct, frozen=True):
    """What became of the newest record of a document.

    Attributes:
        number: the first stability timestamp that covers it, as far as is known; None when none does yet.
    """

    keyspace: str
    document: str
    record: SourceRecord
    number: int | None
    indexes: list[IndexTrace]


def traced_index(catalog: Catalog, record: IndexRecord, partition: int, offset: int) -> TracedIndex:
    """What the dictionary says of an index, for the record at a place."""
    build = catalog.build(record.build or "")
    brought = False
    if build is not None:
        first = build.low_watermark.get(partition)
        # A partition that a finished build does not know came later, and is in the queues from its beginning.
        brought = build.state not in OVER if first is None else offset < first
    emitting = catalog.emitting(record.keyspace, record.version)
    return TracedIndex(
        record.id,
        catalog.shown_names()[record.id],
        record.state,
        record.reason,
        record.version,
        any(one.id == record.id for one in emitting),
        record.placement,
        record.build or "" if brought else "",
    )
