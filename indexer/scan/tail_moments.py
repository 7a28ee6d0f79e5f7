"""The moments that a tail tells: each held for it on every slice, and named by a token to go on from.

The snapshots that are compared must be held by the same nodes: a later one is held where the one before is.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from indexer.scan.choose import SnapshotGoneError
from indexer.scan.directory import Scannable
from indexer.scan.gather import Gathered, count
from indexer.scan.held import Held
from indexer.scan.leases import keep_everywhere
from indexer.scan.news import Gone, Patience
from indexer.scan.request import Moment
from indexer.scan.scatter import SnapshotMissingError, Target
from indexer.scan.selection import Selection
from indexer.scan.shared import Shared, check_snapshot
from indexer.scan.tail_request import TailRequest
from indexer.scan.tokens import HeldToken, InvalidTokenError, Seen, Token, verify

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

    held: Held
    own: bool
    seen: Seen


async def first_moment(
    shared: Shared, index: Scannable, selection: Selection, request: TailRequest, seen: Seen, gone: Gone
) -> Told:
    """The moment that a tail begins with: the one that is asked for, held for the tail unless it is held
    already.

    Raises:
        KeytideError, ReaderGoneError: as `Shared.read`.
    """
    if request.at is not None:
        return Told(shared.held(index, request.at, seen), False, seen)
    slices = selection.slices or range(index.shape.slices)
    lease_ms = shared.settings.tail_lease_s * 1000
    with Patience(shared.timeout_s(request), gone) as patience:
        held = await shared.holds.take(index, slices, request, seen, patience, lease_ms)
    return Told(held, True, shared.seen_too(seen, index, held.stamp))


async def resumed_moment(
    shared: Shared, index: Scannable, selection: Selection, request: TailRequest, resume: str, seen: Seen
) -> Told:
    """The moment that a token names.

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
    held = Held.of(token.held)
    check_snapshot(index, held.index, held.stamp.number, held.stamp.incarnation, seen)
    everywhere = held.target(Selection((), sorted(held.nodes)), shared.timeout_s(request))
    try:
        await keep_everywhere(everywhere, shared.nodes, ())
    except SnapshotMissingError as missing:
        raise gone_by(missing.slice, held) from missing
    return Told(held, True, token.held.seen)


async def later_moment(
    shared: Shared, index: Scannable, before: Told, gone: Gone, timeout_s: float
) -> Told | None:
    """The newest common snapshot, held where the one before is; None when it is that one.

    Raises:
        HistoryChangedError: the one before was rolled back.
        KeytideError: as `Shared.read`.
    """
    was = before.held
    check_snapshot(index, was.index, was.stamp.number, was.stamp.incarnation, before.seen)
    hold = secrets.token_hex(8)

    async def work(target: Target) -> Gathered:
        there = replace(target, spans=(), nodes={one: was.nodes[one] for one in target.nodes}, hold=hold)
        counted = await count(there, shared.nodes)
        await keep_everywhere(there, shared.nodes, counted.leased)
        return counted

    everywhere = Selection((), sorted(was.nodes))
    with Patience(timeout_s, gone) as patience:
        agreed = await shared.agreement.read(
            index, everywhere, Moment(), before.seen, patience, was.lease_ms, work
        )
    held = Held(index.id, hold, agreed.stamp, was.nodes, was.lease_ms, before.seen)
    if held.stamp.number == was.stamp.number:
        await shared.holds.give_back(held, timeout_s)
        return None
    return Told(held, True, shared.seen_too(before.seen, index, held.stamp))


def digest_of(selection: Selection, columns: Sequence[str] | None) -> bytes:
    """What tells two selections apart."""
    spans = [(span.low, span.high) for span in selection.spans]
    shown = None if columns is None else sorted(columns)
    return hashlib.sha256(_encode([str(spans), list(selection.slices), shown])).digest()[:12]


def gone_by(slice_number: int, held: Held) -> SnapshotGoneError:
    """What a reader is told when a slice does not hold the moment told last any more."""
    return SnapshotGoneError(
        f"slice {slice_number} no longer holds snapshot {held.stamp.number}, which the tail told last",
        next_step="begin again without a token, with initial=true: what happened in between cannot be told",
    )
