"""When each hop of a record was, or what it waits for: the logs of the topics put together.

Theory of operation: a record is projected (its segments are in the queues of all slices), its progress is
reported (all queues have it), a stability timestamp covers it, every slice says that it holds that number or
a later one, and a common number is published. Each hop presupposes those before it. So one of which no
message is left, though a later one was, is `past`: topics keep their messages for a while only. One of which
there is no message, and none of a later one, is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from keytide.trace.logs import ControlLog, NumberedTimestamp, QueueLog, ReportLog
from keytide.trace.records import (
    UNKNOWN,
    DocumentTrace,
    IndexTrace,
    RecordOutcome,
    SourceRecord,
    TracedHop,
    TracedIndex,
    TracedSlice,
)

Queues = Mapping[tuple[str, int], QueueLog]
"""(index id, slice) -> its mutation queue."""

SILENT_MS = 5_000
"""A projector says where it stands four times a second."""
NAMED = 5
"""So many slices that are waited for are named."""


class TraceInput:
    """What a trace is made of.

    Args:
        indexes: those of the keyspace that are looked at.
        outcomes: by index id, what the record projects to, for indexes whose queues do not tell any more.
        now: ms.
    """

    def __init__(
        self,
        record: SourceRecord,
        indexes: Sequence[TracedIndex],
        control: ControlLog,
        reports: ReportLog,
        queues: Queues,
        outcomes: Mapping[str, RecordOutcome],
        now: int,
    ) -> None:
        self.record = record
        self.indexes = indexes
        self.control = control
        self.reports = reports
        self.queues = queues
        self.outcomes = outcomes
        self.now = now
        self.stamp: NumberedTimestamp | None = control.covering(record.partition, record.end)


def trace(keyspace: str, document: str, known: TraceInput) -> DocumentTrace:
    """What became of a record."""
    slices = {one.id: _slices(known, one) for one in known.indexes}
    projected = {one.id: _projected(known, one, slices[one.id]) for one in known.indexes}
    sent = [one.at for one in projected.values() if one.state == "done"]
    waited = any(one.state == "waiting" for one in projected.values())
    reported = _after(_reported(known), None if waited or not sent else max(filter(None, sent)))
    stamped = _after(_stamped(known), _done_at(reported))
    traces = []
    for index in known.indexes:
        committed = _after(_committed(known, index, slices[index.id]), _done_at(stamped))
        published = _after(_published(known, index), _done_at(committed))
        hops = [projected[index.id], reported, stamped, committed, published]
        if not index.emits:
            hops = [TracedHop(one.hop, "none", detail=f"the index is {index.state}") for one in hops]
        shown = index.state == "READY"
        traces.append(
            IndexTrace(
                index.name,
                index.id,
                index.state,
                index.reason,
                _outcome(known, index, slices[index.id]),
                known.control.holds(index.id, known.record.partition, known.record.end) if shown else False,
                known.control.published[index.id].newest if shown else None,
                hops,
                slices[index.id],
            )
        )
    number = None if known.stamp is None else known.stamp.number
    return DocumentTrace(keyspace, document, known.record, number, traces)


def _after(hop: TracedHop, before: int | None) -> TracedHop:
    """A hop with the time that it took, where both ends are known."""
    if hop.state != "done" or hop.at is None or before is None:
        return hop
    return replace(hop, took_ms=hop.at - before)


def _done_at(hop: TracedHop) -> int | None:
    return hop.at if hop.state == "done" else None


# --- slices -----------------------------------------------------------------------------------------------


def _slices(known: TraceInput, index: TracedIndex) -> list[TracedSlice]:
    return [_slice(known, index, number, nodes) for number, nodes in enumerate(index.placement)]


def _slice(known: TraceInput, index: TracedIndex, number: int, nodes: Sequence[str]) -> TracedSlice:
    queue = known.queues.get((index.id, number))
    sent = [] if queue is None else queue.sent
    first = sent[0] if sent else None
    skip = first.change.skip if first is not None else None
    held: list[int] = []
    missing = list(nodes)
    if known.stamp is not None:
        for node in nodes:
            copy = (index.id, number, node)
            rise = known.reports.acknowledged[copy].first(known.stamp.number)
            status = known.reports.statuses.get(copy)
            if rise is not None:
                held.append(rise.at)
            if rise is not None or (status is not None and status.number >= known.stamp.number):
                missing.remove(node)
    return TracedSlice(
        number,
        None if first is None else first.change.kind,
        0 if first is None else len(first.change.keys),
        "" if skip is None else f"{skip.reason}: {skip.detail}",
        None if first is None else first.at,
        max(0, len(sent) - 1),
        min(held, default=None),
        missing,
    )


def _outcome(known: TraceInput, index: TracedIndex, slices: Sequence[TracedSlice]) -> RecordOutcome:
    """What the record means to an index: what its queues say, else what it projects to."""
    if not slices or any(one.change is None for one in slices):
        return known.outcomes.get(index.id, UNKNOWN)
    for one in slices:
        if one.change == "skip":
            reason, _, detail = one.skip.partition(": ")
            return RecordOutcome("skipped", reason=reason, detail=detail)
    if known.record.deleted:
        return RecordOutcome("deleted")
    keys = sum(one.keys for one in slices)
    if keys:
        return RecordOutcome("entries", keys)
    told = known.outcomes.get(index.id, UNKNOWN)
    return told if told.kind == "left-out" else RecordOutcome("left-out")


# --- hops -------------------------------------------------------------------------------------------------


def _projected(known: TraceInput, index: TracedIndex, slices: Sequence[TracedSlice]) -> TracedHop:
    if index.brought_by:
        return TracedHop("projected", "none", detail=f"build {index.brought_by} has read it from the source")
    sent = [one.sent_at for one in slices if one.sent_at is not None]
    again = max((one.sent_again for one in slices), default=0)
    if sent and len(sent) == len(slices):
        at = max(sent)
        with_keys = sum(one.change == "keys" for one in slices)
        detail = f"to {len(slices)} slices, with entries to {with_keys}"
        if again:
            detail += f"; sent {again + 1} times, which changes nothing"
        return TracedHop("projected", "done", at, at - known.record.time, detail)
    reported = known.reports.reported(known.record.partition, known.record.end)
    if reported is not None or known.stamp is not None:
        left = f"; {len(sent)} of {len(slices)} still have it" if sent else ""
        return TracedHop(
            "projected", "past", detail=f"queues keep no segments that slices need no more{left}"
        )
    waiting, step = _projector(known, index)
    if sent:
        waiting = f"it is in the queues of {len(sent)} of {len(slices)} slices; {waiting}"
    return TracedHop("projected", "waiting", waiting_for=waiting, next_step=step)


def _projector(known: TraceInput, index: TracedIndex) -> tuple[str, str]:
    """Where the projector stands, and what to do."""
    partition, progress = known.record.partition, known.reports.progress.get(known.record.partition)
    if progress is None:
        step = "see `keytide status`; start a projector, or see its log"
        return f"no projector has told of partition {partition}", step
    if index.id in progress.suspended:
        return (
            f"the projector {progress.projector} sends nothing for it any more: a queue of it took nothing",
            f"`keytide index build {index.name}`",
        )
    line = progress.line
    where = f"the projector {progress.projector} is at offset {line.acked:,} of partition {partition}"
    behind = max(line.end, known.record.end) - line.acked
    waiting = f"{where}, {behind:,} records behind"
    if line.version < index.version:
        waiting += ", and has not yet begun to send for the index"
    silent = known.now - progress.at
    if silent > SILENT_MS:
        step = f"it has said nothing for {silent / 1000:,.0f} s: see its log"
        return waiting, f"{step}, and `keytide status`"
    return waiting, "nothing, if it comes further; else see `keytide status` and its log"


def _reported(known: TraceInput) -> TracedHop:
    record = known.record
    found = known.reports.reported(record.partition, record.end)
    if found is not None and found.after:
        return TracedHop("reported", "done", found.at, detail=f"all queues have it, up to {found.value:,}")
    if found is not None or known.stamp is not None:
        at = None if found is None else found.at
        return TracedHop("reported", "past", at, detail="reports of then are not kept any more")
    progress = known.reports.progress.get(record.partition)
    place = "" if progress is None else f" (they have what is below {progress.line.acked:,})"
    return TracedHop(
        "reported",
        "waiting",
        waiting_for=f"that the queues of all indexes of the keyspace have it{place}",
        next_step="see `keytide status`, and the projector's log if it comes no further",
    )


def _stamped(known: TraceInput) -> TracedHop:
    stamp, partition = known.stamp, known.record.partition
    if stamp is not None:
        detail = f"number {stamp.number:,}, up to offset {stamp.timestamp.offset(partition):,}"
        if stamp.after:
            return TracedHop("stamped", "done", stamp.at, detail=detail)
        return TracedHop("stamped", "past", stamp.at, detail=f"{detail}; older ones are not kept any more")
    waiting = "no timestamp of the keyspace is kept: none was issued for hours"
    if known.control.stamps:
        newest = known.control.stamps[-1]
        waiting = (
            f"not covered by a timestamp yet: the newest, {newest.number:,}, is at offset "
            f"{newest.timestamp.offset(partition):,} of partition {partition}"
        )
    return TracedHop(
        "stamped", "waiting", waiting_for=waiting, next_step="`keytide status` says what holds timestamps up"
    )


def _committed(known: TraceInput, index: TracedIndex, slices: Sequence[TracedSlice]) -> TracedHop:
    stamp = known.stamp
    if stamp is None:
        return TracedHop("committed", "waiting", waiting_for="a timestamp that covers it")
    missing = [(one.slice, node) for one in slices for node in one.missing]
    without = [one for one in slices if len(one.missing) == len(index.placement[one.slice])]
    shown = known.control.holds(index.id, known.record.partition, known.record.end)
    if without and not shown:
        named = [_missing(known, index, slice_number, node, stamp) for slice_number, node in missing[:NAMED]]
        more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        return TracedHop(
            "committed",
            "waiting",
            waiting_for="; ".join(named) + more,
            next_step=f"`keytide index show {index.name}` says how its slices are",
        )
    late = f"; {len(missing)} copies have not said so" if missing else ""
    detail = f"all {len(slices)} slices hold {stamp.number:,} or a later number{late}"
    times = [one.committed_at for one in slices if one.committed_at is not None]
    at = max(times) if len(times) == len(slices) else None
    if at is not None and stamp.after and known.reports.since <= stamp.at:
        return TracedHop("committed", "done", at, detail=detail)
    return TracedHop("committed", "past", at, detail=f"{detail}; reports of then are not kept any more")


def _missing(known: TraceInput, index: TracedIndex, number: int, node: str, stamp: NumberedTimestamp) -> str:
    status = known.reports.statuses.get((index.id, number, node))
    if status is None:
        how = "the node has not told of it lately"
    else:
        how = f"{status.state}{f': {status.reason}' if status.reason else ''}, at {status.number:,}"
    return f"slice {number} on {node} has not said that it holds {stamp.number:,} ({how})"


def _published(known: TraceInput, index: TracedIndex) -> TracedHop:
    if index.state != "READY":
        return TracedHop(
            "published",
            "waiting",
            waiting_for=f"nothing is published of an index that is {index.state}",
            next_step="`keytide build list` says how far its build is",
        )
    stamp = known.stamp
    if stamp is None:
        return TracedHop("published", "waiting", waiting_for="a timestamp that covers it")
    found = known.control.published[index.id].first(stamp.number)
    if found is not None and stamp.after:
        return TracedHop("published", "done", found.at, detail=f"number {found.value:,}")
    if found is not None:
        return TracedHop("published", "past", found.at, detail=f"number {found.value:,} or an earlier one")
    newest = known.control.published[index.id].newest
    return TracedHop(
        "published",
        "waiting",
        waiting_for=f"number {stamp.number:,} or a later one; "
        + ("nothing was said lately" if newest is None else f"the newest is {newest:,}"),
        next_step=f"`keytide index show {index.name}` says how its slices are",
    )
