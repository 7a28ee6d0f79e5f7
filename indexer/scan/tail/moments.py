"""The moments that a tail tells: each held for it on every slice, and named by a token to go on from.

The snapshots that are compared must be held by the same nodes: a later one is held where the one before is.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from indexer.scan.gather.gather import Gathered, count
from indexer.scan.gather.reads import Reads, check_snapshot
from indexer.scan.gather.scatter import SnapshotMissingError, Target
from indexer.scan.plan.choose import PageSnapshotGoneError, Stamp
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.holds import SnapshotHold
from indexer.scan.plan.leases import TAIL, keep_everywhere
from indexer.scan.plan.selection import Selection
from indexer.scan.plan.tokens import HeldToken, InvalidTokenError, Seen, Token, verify
from indexer.scan.plan.waiting import Deadline, Gone
from indexer.scan.request.request import Moment
from indexer.scan.tail.request import TailRequest
from keytide.model.timestamp import Timestamp

_encode = msgspec.json.Encoder().encode


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
    own: bool
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
        held = shared.held(index, request.at, seen)
        # Of no spans nothing is read but the timestamp, and whether the hold lasts.
        agreed = await shared.read_held(
            held,
            Selection((), tuple(slices)),
            shared.timeout_s(request),
            lambda target: count(target, shared.nodes),
        )
        held = replace(held, stamp=agreed.stamp)
        return Told(held, False, shared.seen_too(seen, index, held.stamp))
    lease_ms = shared.settings.tail_lease_s * 1000
    with Deadline(shared.timeout_s(request), gone) as patience:
        held = await shared.holds.take(index, slices, request, seen, patience, lease_ms, TAIL)
    return Told(held, True, shared.seen_too(seen, index, held.stamp))


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
    check_snapshot(index, told.index, told.stamp.number, told.stamp.incarnation, seen)
    slices, timeout_s = sorted(told.nodes), shared.timeout_s(request)
    own = replace(told, hold=TAIL + secrets.token_hex(8))
    try:
        await keep_everywhere(told.target(Selection((), slices), timeout_s), shared.nodes, ())
        await keep_everywhere(_first_use(own.target(Selection((), slices), timeout_s)), shared.nodes, ())
    except BaseException as error:
        await asyncio.shield(shared.holds.give_back(own, timeout_s))
        if isinstance(error, SnapshotMissingError):
            raise gone_by(error.slice, told) from error
        raise
    return Told(own, True, token.held.seen)


def _first_use(target: Target) -> Target:
    return replace(target, in_use=False)


async def later_moment(
    shared: Reads, index: Scannable, before: Told, gone: Gone, timeout_s: float
) -> Told | None:
    """The newest common snapshot, held where the one before is; None when it is that one.

    Raises:
        HistoryChangedError: the one before was rolled back.
        KeytideError: as `Reads.read`.
    """
    was = before.held
    check_snapshot(index, was.index, was.stamp.number, was.stamp.incarnation, before.seen)
    hold = TAIL + secrets.token_hex(8)

    async def work(target: Target) -> Gathered:
        there = replace(target, spans=(), nodes={one: was.nodes[one] for one in target.nodes}, hold=hold)
        try:
            counted = await count(there, shared.nodes)
            await keep_everywhere(there, shared.nodes, counted.leased)
        except BaseException:
            await asyncio.shield(shared.holds.give_back(held_at(there), timeout_s))
            raise
        return counted

    def held_at(target: Target) -> SnapshotHold:
        stamp = Stamp(target.number, target.incarnation, Timestamp(), 0)
        return SnapshotHold(index.id, hold, stamp, was.nodes, was.lease_ms, before.seen)

    everywhere = Selection((), sorted(was.nodes))
    with Deadline(timeout_s, gone) as patience:
        agreed = await shared.agreement.read(
            index, everywhere, Moment(), before.seen, patience, was.lease_ms, work
        )
    held = replace(held_at(agreed.target), stamp=agreed.stamp)
    if held.stamp.number == was.stamp.number:
        await shared.holds.give_back(held, timeout_s)
        return None
    return Told(held, True, shared.seen_too(before.seen, index, held.stamp))


def digest_of(selection: Selection, columns: Sequence[str] | None) -> bytes:
    """What tells two selections apart."""
    spans = [(span.low, span.high) for span in selection.spans]
    shown = None if columns is None else sorted(columns)
    return hashlib.sha256(_encode([str(spans), list(selection.slices), shown])).digest()[:12]


def gone_by(slice_number: int, held: SnapshotHold) -> PageSnapshotGoneError:
    """What a reader is told when a slice does not hold the moment told last any more."""
    return PageSnapshotGoneError(
        f"slice {slice_number} no longer holds snapshot {held.stamp.number}, which the tail told last",
        next_step="begin again without a token, with initial=true: what happened in between cannot be told",
    )
