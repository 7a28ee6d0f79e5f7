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
from keytide.collation import MISSING, decode_key, to_json_value
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
        shown: whether a stable scan of the key has the document; None when it was not looked for, or has
            more rows than were looked at.
    """

    key: list[Any]
    shown: bool | None = None


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
    entries = [ProjectedEntry([to_json_value(part) for part in key]) for key in keys if MISSING not in key]
    return IndexEntries(RecordOutcome("entries", len(projected.keys)), entries)


def looked_for(
    known: Mapping[str, IndexEntries],
    traces: Sequence[IndexTrace],
    indexes: Mapping[str, IndexRecord],
    document: str,
    connect: Callable[[], Client],
) -> dict[str, IndexEntries]:
    """The same, with what stable scans show. Nothing is raised when no node answers: it is told."""
    found = dict(known)
    wanted = [
        one
        for one in traces
        if one.state == "READY" and known[one.id].entries and indexes[one.id].definition.using != "spatial"
    ]
    if not wanted:
        return found
    try:
        with connect() as client:
            for one in wanted:
                shown = [
                    ProjectedEntry(entry.key, _shows(client, one.index, entry.key, document))
                    for entry in known[one.id].entries
                ]
                found[one.id] = IndexEntries(known[one.id].outcome, shown)
    except KeytideError as error:
        for one in wanted:
            if found[one.id] is known[one.id]:
                found[one.id] = msgspec.structs.replace(known[one.id], trouble=error.message)
    return found


def _shows(client: Client, index: str, key: list[Any], document: str) -> bool | None:
    page = client.page(index, equals=key, columns=["id"], limit=ROWS_LOOKED_AT)
    if any(row.id == document for row in page.rows):
        return True
    return None if page.page else False
