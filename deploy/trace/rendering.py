"""A trace as people see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from rich.markup import escape

from deploy.trace.entries import IndexEntries
from keytide.cli.output import out, table
from keytide.trace.records import DocumentTrace, IndexTrace, RecordOutcome, TracedHop, TracedSlice

MARKS: Final = {"done": "done", "past": "past", "waiting": "WAITS", "none": "-"}
SLICE_COLUMNS: Final = ("slice", "change", "keys", "sent", "committed", "not yet")


def show(trace: DocumentTrace, entries: Mapping[str, IndexEntries]) -> None:
    """Print it: the record, and for each index its hops, and the slices that have something of it."""
    record = trace.record
    what = "deletes it" if record.deleted else f"{record.bytes:,} bytes"
    by = "its producer's" if record.time_is == "create" else "the broker's"
    out.print(
        f"[bold]{escape(trace.document)}[/bold] of {escape(trace.keyspace)}: newest record in partition "
        f"{record.partition} at offset {record.offset:,} ({what}), written {_moment(record.time)} by {by} "
        "clock",
        highlight=False,
    )
    if not trace.indexes:
        out.print("the keyspace has no index", style="yellow")
    for index in trace.indexes:
        _show_index(trace, index, entries[index.id])


def _show_index(trace: DocumentTrace, index: IndexTrace, entries: IndexEntries) -> None:
    out.print()
    rows: list[list[object]] = [["written", _clock(trace.record.time), "", "done", ""]]
    rows += [[hop.hop, _clock(hop.at), _took(hop), MARKS[hop.state], hop.detail] for hop in index.hops]
    table(f"{index.index} ({index.state})", ("hop", "at", "ms", "state", "what"), rows, exact=True)
    telling = [one for one in index.slices if one.change in ("keys", "skip") or one.sent_again]
    if telling:
        table("Slices with something of it", SLICE_COLUMNS, [_slice(one) for one in telling])
    for hop in index.hops:
        if hop.state == "waiting":
            out.print(f"[yellow]{hop.hop} waits:[/yellow] {escape(hop.waiting_for)}", highlight=False)
            if hop.next_step:
                out.print(f"  what to do: {escape(hop.next_step)}", highlight=False)
            break  # those behind it wait for it
    out.print(f"[bold]{escape(verdict(index))}[/bold]", highlight=False)
    for entry in entries.entries:
        seen = {True: "in stable scans", False: "not in stable scans", None: "not looked for"}[entry.shown]
        seen += f": {entry.why}" if entry.why else ""
        out.print(f"  {escape(json.dumps(entry.key, ensure_ascii=False))}: {seen}", highlight=False)
    if entries.trouble:
        out.print(f"  scans could not be asked: {escape(entries.trouble)}", style="yellow", highlight=False)


def verdict(index: IndexTrace) -> str:
    """What the record means to an index, and whether scans go by it."""
    means = _means(index.outcome)
    if index.state != "READY":
        why = f": {index.reason}" if index.reason else ""
        return f"{means}; the index is {index.state}{why}"
    if index.shown is None:
        return f"{means}; whether stable scans include this record cannot be said"
    at = "" if index.published is None else f" (they read snapshot {index.published:,})"
    do = "include" if index.shown else "do not yet include"
    return f"{means}; stable scans {do} this record{at}"


def _means(outcome: RecordOutcome) -> str:
    match outcome.kind:
        case "entries":
            return "1 entry" if outcome.keys == 1 else f"{outcome.keys:,} entries"
        case "deleted":
            return "it deletes the document: no entries"
        case "skipped":
            return f"skipped: {outcome.reason}: {outcome.detail} (a line in the skip ledger)"
        case "left-out":
            return "no entries: the definition leaves it out" + (
                f" ({outcome.reason})" if outcome.reason else ""
            )
        case "unknown":
            return "what it means to the index is not known"


def _slice(one: TracedSlice) -> list[object]:
    change = one.skip or one.change
    again = f" and {one.sent_again} times more" if one.sent_again else ""
    return [
        one.slice,
        change,
        one.keys,
        _clock(one.sent_at) + again,
        _clock(one.committed_at),
        ", ".join(one.missing) or "-",
    ]


def _took(hop: TracedHop) -> str:
    return "" if hop.took_ms is None else f"{hop.took_ms:,}"


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")


def _clock(ms: int | None) -> str:
    if ms is None:
        return ""
    return datetime.fromtimestamp(ms / 1000).astimezone().time().isoformat(timespec="milliseconds")
