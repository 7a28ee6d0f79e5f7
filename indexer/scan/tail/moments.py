"""The moments that a tail tells: each held for it on every slice, and named by a token to go on from.

The snapshots that are compared must be held by the same nodes: a later one is held where the one before is.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from indexer.scan.gather.gather import count
from indexer.scan.gather.holds import SnapshotHold
from indexer.scan.gather.reads import Reads
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import PageSnapshotGoneError, SnapshotMissingError
from indexer.scan.plan.leases import TAIL
from indexer.scan.plan.selection import Selection
from indexer.scan.plan.tokens import HeldToken, InvalidTokenError, Seen, Token, verify
from indexer.scan.plan.waiting import Gone
from indexer.scan.request.request import Column, Moment, Question
from keytide.errors import RetryableError

_encode = msgspec.json.Encoder().encode


class TailRequest(Question, frozen=True):
    """Query of `GET /v1/indexes/{name}/tail`."""

    columns: Annotated[list[Column] | None, Meta(description="what each row holds")] = None
    initial: Annotated[bool, Meta(description="tell the rows of the first snapshot, too")] = False
    events: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="how many events to tell, the first one included; without it the tail has no end"),
    ] = None
    resume: Annotated[
        str | None,
        Meta(description="id of the event behind which to go on; the header `Last-Event-ID` says the same"),
    ] = msgspec.field(default=None, name="from")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consistency != "stable":
            raise ValueError("a tail goes from snapshot to snapshot: only `stable` is possible")
        if self.explain:
            raise ValueError("a tail explains nothing")
        if self.resume is not None and self.at is not None:
            raise ValueError("a tail goes on either from `from` or from `at`")


class TailToken(Token, frozen=True, tag="t"):
    """Where a tail goes on.

    Attributes:
        held: the snapshot that was told.
        selection: digest of what is tailed: a token resumes nothing else.
    """

    held: HeldToken
    selection: bytes


@dataclass(frozen=True, slots=True)
class Told:
    """A moment that was told: the snapshot, held for the tail, and the session after it."""

    held: SnapshotHold
    seen: Seen


async def first_moment(
    shared: Reads, index: Scannable, selection: Selection, request: TailRequest, seen: Seen, gone: Gone
) -> Told:
    """The moment that a tail begins with: the one that is asked for, held for the tail unless it is held
    already.

    Raises:
        KeytideError, ReaderGoneError: as `Reads.read`.
    """
    slices = selection.slices or range(index.shape.slices)
    if request.at is not None:
        held = shared.named_hold(index, request.at, seen)
        # Of no spans nothing is read but the timestamp, and whether the hold lasts.
        agreed = await shared.holds.read(
            held,
            Selection((), tuple(slices)),
            shared.timeout_s(request),
            lambda target: count(target, shared.nodes),
        )
        held = replace(held, stamp=agreed.stamp)
        return Told(held, shared.seen_too(seen, index, held.stamp))
    lease_ms = shared.settings.tail_lease_s * 1000
    held = await shared.hold(index, slices, request, seen, gone, lease_ms, kind=TAIL)
    return Told(held, shared.seen_too(seen, index, held.stamp))


async def resumed_moment(
    shared: Reads, index: Scannable, selection: Selection, request: TailRequest, resume: str, seen: Seen
) -> Told:
    """The moment that a token names, under a hold of its own: the tail that told it may still go on, to a
    reader who is not there any more, and lets go of it then.

    Raises:
        SnapshotGoneError: it is not held any more.
        HistoryChangedError: it was rolled back.
        InvalidTokenError: it is no token of a tail of this.
    """
    token = verify(resume, TailToken, shared.directory.secret())
    if token.selection != digest_of(selection, request.columns):
        raise InvalidTokenError(
            "the token is of a tail of something else",
            next_step="resume with the selection and columns that the tail began with",
        )
    told = SnapshotHold.of(token.held)
    index.check_snapshot(told.index, told.stamp.number, told.stamp.incarnation, seen)
    slices, timeout_s = sorted(told.copies), shared.timeout_s(request)
    own = replace(told, hold=TAIL + secrets.token_hex(8), own=True)
    try:
        still: dict[int, set[str]] = {}
        await shared.holds.keep(told.target(Selection((), slices), timeout_s), still)
        own = own.at(still)
        first: dict[int, set[str]] = {}
        await shared.holds.keep(replace(own.target(Selection((), slices), timeout_s), in_use=False), first)
        own = own.at(first)
    except BaseException as error:
        await asyncio.shield(shared.holds.give_back(own, timeout_s))
        if isinstance(error, SnapshotMissingError):
            raise gone_by(error.slice, told) from error
        raise
    return Told(own, token.held.seen)


async def later_moment(
    shared: Reads, index: Scannable, before: Told, gone: Gone, timeout_s: float
) -> Told | None:
    """The newest common snapshot, held where the one before is, and on further copies; None when it is that
    one.

    Raises:
        HistoryChangedError: the one before was rolled back.
        KeytideError: as `Reads.read`.
    """
    was = before.held
    index.check_snapshot(was.index, was.stamp.number, was.stamp.incarnation, before.seen)
    held = await shared.hold(
        index,
        sorted(was.copies),
        Moment(),
        before.seen,
        gone,
        was.lease_ms,
        kind=TAIL,
        timeout_s=timeout_s,
        copies={
            number: [*there, *(node for node in index.placement[number] if node not in there)]
            for number, there in was.copies.items()
        },
    )
    if held.stamp.number == was.stamp.number:
        await shared.holds.give_back(held, timeout_s)
        return None
    return Told(held, shared.seen_too(before.seen, index, held.stamp))


async def same_moment(
    shared: Reads, index: Scannable, selection: Selection, told: Told, timeout_s: float
) -> Told | None:
    """A moment, held in another layout that was made of the slices of its own (R45); None where a slice there
    does not hold it, or does not say so in time."""
    slices = selection.slices or range(index.shape.slices)
    held = replace(
        told.held,
        index=index.id,
        hold=TAIL + secrets.token_hex(8),
        copies={number: index.placement[number] for number in slices},
        own=True,
    )
    kept: dict[int, set[str]] = {}
    try:
        await shared.holds.keep(replace(held.target(Selection((), slices), timeout_s), in_use=False), kept)
    except BaseException as error:
        shared.holds.drop(held, timeout_s)
        if isinstance(error, SnapshotMissingError | RetryableError):
            return None
        raise
    return Told(held.at(kept), told.seen)


def digest_of(selection: Selection, columns: Sequence[str] | None) -> bytes:
    """What tells two selections apart."""
    spans = [(span.low, span.high) for span in selection.spans]
    shown = None if columns is None else sorted(columns)
    told = [str(spans), list(selection.slices), shown, *(key.hex() for key in selection.keys)]
    return hashlib.sha256(_encode(told)).digest()[:12]


def gone_by(slice_number: int, held: SnapshotHold) -> PageSnapshotGoneError:
    """What a reader is told when a slice does not hold the moment told last any more."""
    return PageSnapshotGoneError(
        f"slice {slice_number} no longer holds snapshot {held.stamp.number}, which the tail told last",
        next_step="begin again without a token, with initial=true: what happened in between cannot be told",
    )
