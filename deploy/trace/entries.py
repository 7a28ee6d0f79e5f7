"""What a record projects to, and whether scans show it now.

The record is projected by `projector.core.projection`, the very code that fills indexes, so what it means to
an index is known however little the queues still have. Its entries are then looked for by stable scans of
their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from deploy.trace.source import FoundRecord
from keytide.catalog.records import IndexRecord
from keytide.client import Client
from keytide.collation import MISSING, Value, decode_key, to_json_value
from keytide.errors import KeytideError
from keytide.trace.records import IndexTrace, RecordOutcome
from projector.core.projection import KeyspacePlan, Projected, SourceBatch, project

KEYS_LOOKED_FOR: Final = 5
"""Of one index: an array that is unnested may have thousands."""
ROWS_LOOKED_AT: Final = 1_000
"""Of one key."""


class ProjectedEntry(msgspec.Struct, frozen=True):
    """An entry that the record projects to.

    Attributes:
        key: its parts; MISSING as null.
        shown: whether a stable scan of the key has the document; None when that was not looked for.
        why: it was not looked for.
    """

    key: list[Any]
    shown: bool | None = None
    why: str = ""


class IndexEntries(msgspec.Struct, frozen=True):
    """Of one index.

    Attributes:
        entries: the first of them.
        trouble: why they could not be looked for, "" when they could.
    """

    outcome: RecordOutcome
    entries: list[ProjectedEntry]
    trouble: str = ""


def entries_of(found: FoundRecord, indexes: Sequence[IndexRecord]) -> dict[str, IndexEntries]:
    """By index id, what a record projects to."""
    record = found.record
    plan = KeyspacePlan((one.id, one.definition) for one in indexes)
    batch = SourceBatch(
        record.partition,
        -1,
        record.offset,
        record.end,
        [record.offset],
        [found.key],
        [found.value],
        [record.time],
    )
    projected = project(batch, plan).indexes
    return {one.id: _entries(projected[one.id], one, record.deleted) for one in indexes}


def _entries(projected: Projected, index: IndexRecord, deleted: bool) -> IndexEntries:
    for skip in projected.skips:
        return IndexEntries(RecordOutcome("skipped", reason=skip.reason, detail=skip.detail), [])
    if deleted:
        return IndexEntries(RecordOutcome("deleted"), [])
    for reason in projected.left_out:
        return IndexEntries(RecordOutcome("left-out", reason=reason), [])
    structure = index.definition.structure
    keys = [
        decode_key(key, structure.parts, structure.descending)[0] for key in projected.keys[:KEYS_LOOKED_FOR]
    ]
    entries = [ProjectedEntry([to_json_value(part) for part in key], why=_why(index, key)) for key in keys]
    return IndexEntries(RecordOutcome("entries", len(projected.keys)), entries)


def _why(index: IndexRecord, key: Sequence[Value]) -> str:
    """Why an entry is not looked for by its key, "" when it is."""
    if index.definition.structure_type.has_places:
        return "a place is no key to look for"
    if MISSING in key:
        return "a part that is MISSING cannot be looked for"
    return "" if index.state == "READY" else f"the index is {index.state}"


def looked_for(
    known: Mapping[str, IndexEntries],
    traces: Sequence[IndexTrace],
    document: str,
    connect: Callable[[], Client],
) -> dict[str, IndexEntries]:
    """The same, with what stable scans show. Nothing is raised when no node answers: it is told."""
    found = dict(known)
    wanted = [one for one in traces if any(not entry.why for entry in known[one.id].entries)]
    if not wanted:
        return found
    try:
        with connect() as client:
            for one in wanted:
                shown = [
                    entry if entry.why else _looked_for(client, one.index, entry.key, document)
                    for entry in known[one.id].entries
                ]
                found[one.id] = IndexEntries(known[one.id].outcome, shown)
    except KeytideError as error:
        for one in wanted:
            if found[one.id] is known[one.id]:
                found[one.id] = msgspec.structs.replace(known[one.id], trouble=error.message)
    return found


def _looked_for(client: Client, index: str, key: list[Any], document: str) -> ProjectedEntry:
    looked_at = 0
    for row in client.scan(index, equals=key, columns=["id"], limit=ROWS_LOOKED_AT + 1):
        if row.id == document:
            return ProjectedEntry(key, True)
        looked_at += 1
    if looked_at > ROWS_LOOKED_AT:
        return ProjectedEntry(key, None, f"more than {ROWS_LOOKED_AT:,} documents have this key")
    return ProjectedEntry(key, False)
