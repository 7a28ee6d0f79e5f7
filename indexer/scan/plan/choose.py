"""Which snapshot a stable scan reads. Pure.

The endpoint knows, from `control`, the newest number that every slice of an index holds (Published) and the
timestamp behind each recent number. A request may demand more: a session that has seen a later number,
offsets that must be included, a bound on staleness. `unmet` says what is still missing, in words that end in
an error or an explanation.
"""

from __future__ import annotations

from dataclasses import dataclass

from indexer.scan.plan.tokens import Saw, tip_of
from indexer.scan.request.request import AtLeast, Moment, OffsetAndEpoch
from keytide.catalog.history import History
from keytide.errors import CallerError, HistoryChangedError, RetryableError
from keytide.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class Stamp:
    """A snapshot as `control` announced it.

    Attributes:
        fresh_at: from when its staleness counts (ms), 0 when unknown.
        tip: of newest states, the earliest timestamp that covers all that were read (`timestamp` is the
            latest that all of them cover).
    """

    number: int
    incarnation: int
    timestamp: Timestamp
    fresh_at: int
    tip: Timestamp | None = None


class TimestampNotReachedError(RetryableError):
    """The wait for a demanded moment ran out."""

    problem_type = "timestamp-not-reached"
    status = 504


class PageSnapshotGoneError(CallerError):
    """The snapshot of a page token is no longer held."""

    problem_type = "snapshot-gone"
    status = 410


class UnknownIndexError(CallerError):
    """No index bears the name."""

    problem_type = "unknown-index"
    status = 404


class IndexNotReadyError(RetryableError):
    """The index has no snapshot to answer from: it is being built, or slices that the scan needs are catching
    up, rolled back, or rebuilt."""

    problem_type = "index-not-ready"
    status = 503


class RollingBackError(IndexNotReadyError):
    """The keyspace was rolled back, and its slices hold no common snapshot since (R32). Soon over."""


def check_history(seen: Saw | None, history: History) -> None:
    """Raise `HistoryChangedError` if what a session saw was rolled back.

    Args:
        seen: what the session has seen of the keyspace; None for nothing.
        history: of the keyspace.
    """
    if seen is None:
        return
    tip = tip_of(seen)
    if not history.number_holds(*seen[:2]):
        what = f"snapshot {seen[0]}"
    elif tip is not None and not history.holds(tip[1], tip[0]):
        what = "some of the newest states"
    else:
        return
    raise HistoryChangedError(
        f"the source lost records: {what}, which the session has seen, was rolled back",
        next_step="read again what depends on it, then go on without the session token",
    )


def check_branches(at_least: AtLeast, history: History) -> None:
    """Raise `HistoryChangedError` if a demanded place, named with its leader epoch, was lost."""
    for partition, place in (at_least or {}).items():
        if isinstance(place, OffsetAndEpoch) and history.on_lost_branch(partition, place.offset, place.epoch):
            raise HistoryChangedError(
                f"the source lost records: offset {place.offset} of partition {partition} under epoch "
                f"{place.epoch} is not in it any more",
                next_step="write again what is missing, and demand the offset that it then gets",
            )


def check_partitions(at_least: AtLeast, partitions: int) -> dict[int, int]:
    """`at_least` as plain next offsets.

    Raises:
        CallerError (422): a partition that the keyspace does not have.
    """
    wanted: dict[int, int] = {}
    for partition, place in (at_least or {}).items():
        if not 0 <= partition < partitions:
            raise CallerError(
                f"the keyspace has no partition {partition}, it has {partitions}",
                status=422,
                problem_type="unknown-partition",
                next_step=f"name partitions 0 to {partitions - 1}",
            )
        wanted[partition] = place if isinstance(place, int) else place.offset
    return wanted


def unmet(
    stamp: Stamp | None,
    moment: Moment,
    seen: Saw | None,
    at_least: dict[int, int],
    incarnation: int,
    now: int,
) -> str | None:
    """What `stamp` lacks for a request, or None when it satisfies it.

    Args:
        stamp: the newest published snapshot; None when there is none.
        seen: what the session has seen of this keyspace.
        at_least: from `check_partitions`.
        incarnation: the keyspace's, as the metadata has it (R32).
        now: milliseconds.
    """
    if stamp is None:
        return "a snapshot that all slices hold"
    if stamp.incarnation != incarnation:
        return f"a snapshot since the rollback (newest: {stamp.number}, from before it)"
    if seen is not None and (stamp.incarnation, stamp.number) < (seen[1], seen[0]):
        return f"snapshot {seen[0]}, which the session has seen (newest: {stamp.number})"
    tip = tip_of(seen) if seen is not None else None
    if tip is not None and not stamp.timestamp.covers(tip[1]):
        return "a snapshot that covers the newest states that the session has seen"
    for partition, offset in at_least.items():
        if stamp.timestamp.offset(partition) < offset:
            return f"offset {offset} of partition {partition} (indexed: {stamp.timestamp.offset(partition)})"
    if moment.max_staleness_ms is not None and now - stamp.fresh_at > moment.max_staleness_ms:
        age = f"{now - stamp.fresh_at} ms" if stamp.fresh_at else "of unknown age"
        return f"a snapshot at most {moment.max_staleness_ms} ms old (newest: {age})"
    return None
