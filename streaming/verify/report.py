"""The report of a verification: a summary as JSON, and the differences, one a line, as people read them.

Keys and included columns are decoded; an entry that cannot be decoded is shown as its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from keytide.catalog.records import IndexRecord, JobRecord
from keytide.collation import decode_key, to_json_value
from keytide.errors import InvariantViolationError
from keytide.model.entry import unpack_value
from streaming.verify.core.difference import Difference, SliceEntry, VersionPlace, is_clean
from streaming.verify.documents import VerificationResult

REPORT_NAME: Final = "report.json"
DIFFERENCES_NAME: Final = "differences.ndjson"

Document = dict[str, Any]
_encode = msgspec.json.Encoder().encode


def summary(
    job: JobRecord, indexes: Sequence[IndexRecord], outcome: VerificationResult, began: int, ended: int
) -> Document:
    """What was found, counted. Times are milliseconds since the epoch."""
    counts = outcome.counts
    names = {index.id: index.name for index in indexes}
    return {
        "job": job.id,
        "kind": job.kind,
        "build": job.build or None,
        "keyspace": job.keyspace,
        "snapshot": outcome.pin.number,
        "incarnation": outcome.pin.incarnation,
        "timestamp": outcome.pin.timestamp.as_json(),
        "documents_read": outcome.documents,
        "counts": counts,
        "clean": is_clean(counts),
        "listed": len(outcome.differences),
        "complete": not any(one.not_examined or one.unlisted for one in outcome.indexes.values()),
        "indexes": [
            {
                "id": one.index,
                "name": names.get(one.index, one.index),
                "entries": one.entries,
                "unproven": one.unproven,
                "buckets_differing": one.buckets,
                "not_examined": one.not_examined,
                "unlisted": one.unlisted,
                "counts": one.counts,
            }
            for one in outcome.indexes.values()
        ],
        "started_at": began,
        "finished_at": ended,
        "seconds": round((ended - began) / 1000, 1),
    }


def line(difference: Difference, indexes: Mapping[str, IndexRecord]) -> Document:
    """One difference."""
    index = indexes[difference.index]
    found: Document = {
        "kind": difference.kind.value,
        "index": index.name,
        "id": difference.id.decode(errors="replace"),
        "expected": [_entry(entry, index) for entry in difference.expected],
        "found": [_entry(entry, index) for entry in difference.found],
        "version": _version(difference.version),
        "held": {str(number): _version(version) for number, version in sorted(difference.held.items())},
        "reason": difference.reason,
    }
    if difference.others:
        found["others"] = [other.decode(errors="replace") for other in difference.others]
    return found


def write(
    folder: Path,
    found: Document,
    differences: Sequence[Difference],
    indexes: Sequence[IndexRecord],
    more: Mapping[bytes, Document] | None = None,
) -> None:
    """Write the report; the summary comes last, so that where it is, all is there.

    Args:
        more: document id -> what else is to be said of its difference.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_id = {index.id: index for index in indexes}
    with (folder / DIFFERENCES_NAME).open("wb") as file:
        for one in differences:
            file.write(_encode(line(one, by_id) | (more or {}).get(one.id, {})) + b"\n")
    new = folder / f"{REPORT_NAME}.new"
    with new.open("wb") as file:
        file.write(msgspec.json.format(_encode(found)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / REPORT_NAME)


def _version(version: VersionPlace | None) -> Document | None:
    return None if version is None else msgspec.structs.asdict(version)


def _entry(entry: SliceEntry, index: IndexRecord) -> Document:
    definition = index.definition
    try:
        key, value = definition.structure.in_full(entry.key, entry.value)
        forms, include = unpack_value(value)
        values, _ = decode_key(key, len(definition.keys), definition.descending, forms)
        shown: Document = {"key": [to_json_value(value) for value in values], "slice": entry.slice}
        if include is not None:
            shown["include"] = msgspec.json.decode(include)
    except (InvariantViolationError, UnicodeDecodeError, msgspec.DecodeError):
        shown = {"key": [], "slice": entry.slice, "bytes": [entry.key.hex(), entry.value.hex()]}
    return shown
