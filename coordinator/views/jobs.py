"""Jobs as JSON documents, for the API. Pure.

A copy of a slice that is being filled is shown among them. It has no driver, report or end state: when it
counts, or is given up, it is a job no more.
"""

from __future__ import annotations

from typing import Any

from coordinator.jobs.registry import FINAL, faults_of
from coordinator.leader import Leader
from coordinator.views.absent_nodes import alone, waits_for
from coordinator.views.slices import HeardCopy, filling, progress
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord, JobRecord

Document = dict[str, Any]


def job(leader: Leader, record: JobRecord, now: int) -> Document:
    """One job."""
    end = record.finished_at or now
    left = leader.jobs.left_ms(record, now)
    return {
        "id": record.id,
        "kind": record.kind,
        "keyspace": record.keyspace,
        "indexes": leader.jobs.names(record),
        "build": record.build or None,
        "copy": None,
        "state": record.state,
        "dry_run": record.dry_run,
        "snapshot": record.snapshot if record.snapshot >= 0 else None,
        "percent": record.percent,
        "documents_done": record.documents,
        "documents_total": record.documents_total,
        "eta_s": None if left is None else round(left / 1000, 1),
        "counts": record.counts,
        "clean": faults_of(record.counts) == 0 if record.state == "DONE" else None,
        "detail": record.detail,
        "waiting_for": _waiting_for(leader, record),
        "attempts": record.attempts,
        "error": record.error or None,
        "report": f"/v1/jobs/{record.id}/report" if record.state == "DONE" else None,
        "created_at": record.created_at,
        "started_at": record.started_at or None,
        "finished_at": record.finished_at or None,
        "seconds": round((end - record.started_at) / 1000, 1) if record.started_at else None,
    }


def _waiting_for(leader: Leader, record: JobRecord) -> str:
    """What a job waits for; while a driver works, the nodes too that it cannot ask."""
    words = leader.jobs.waiting_for(record)
    if record.state != "RUNNING" or leader.jobs.run(record.id).held:
        return words
    indexes = filter(None, map(leader.dictionary.catalog.index, record.indexes))
    return waits_for(leader, words, (name for index in indexes for name in alone(leader, index)))


def copy(leader: Leader, index: IndexRecord, found: HeardCopy, record: CopyRecord, now: int) -> Document:
    """A copy of a slice that is being filled; `documents_done` and the like are null, rows are in `copy`."""
    done = progress(found, now)
    detail, begun = _doing(found), found.status is not None
    return {
        "id": record.id,
        "kind": "copy",
        "keyspace": index.keyspace,
        "indexes": [index.name],
        "build": None,
        "copy": {
            "slice": record.slice,
            "node": record.node,
            "source": record.source,
            "why": record.why,
            "rows_done": done["rows_done"],
            "rows_total": done["rows_total"],
        },
        "state": "RUNNING" if begun else "QUEUED",
        "dry_run": False,
        "snapshot": None,
        "percent": done["percent"],
        "documents_done": None,
        "documents_total": None,
        "eta_s": done["eta_s"],
        "counts": {},
        "clean": None,
        "detail": f"slice {record.slice} on node {record.node}, from node {record.source}: {detail}",
        "waiting_for": waits_for(leader, "", (record.node, record.source)),
        "attempts": 1,
        "error": None,
        "report": None,
        "created_at": record.created_at,
        "started_at": record.created_at,
        "finished_at": None,
        "seconds": round(max(0, now - record.created_at) / 1000, 1),
    }


def _doing(found: HeardCopy) -> str:
    """What becomes of a copy now."""
    status = found.status
    if status is None:
        return "not begun"
    match status.state:
        case "FILLING":
            total = f" of {status.rows_total:,}" if status.rows_total else ""
            return f"{status.rows:,}{total} rows"
        case "CATCHUP":
            return "all rows are there, it reads its queue"
        case "LIVE":
            return "it counts when it holds the newest snapshot that is published"
        case state:
            return ": ".join(filter(None, (state, status.reason)))


def copies(leader: Leader, now: int) -> list[Document]:
    """All copies that are being filled, the oldest first."""
    found = [
        copy(leader, index, one, one.record, now)
        for index in leader.dictionary.catalog.indexes()
        for one in filling(leader, index)
        if one.record is not None
    ]
    return sorted(found, key=lambda one: (one["created_at"], one["id"]))


def jobs(leader: Leader, now: int) -> list[Document]:
    """All jobs, oldest first, and the copies that are being filled."""
    found = [job(leader, record, now) for record in leader.jobs.all()]
    return sorted([*found, *copies(leader, now)], key=lambda one: one["created_at"])


def shown(leader: Leader, id_: str, now: int) -> Document:
    """One job, or one copy that is being filled.

    Raises:
        NoSuchJobError: there is none of that id.
    """
    found = next((one for one in copies(leader, now) if one["id"] == id_), None)
    return found or job(leader, leader.jobs.get(id_), now)


def verification(leader: Leader, record: IndexRecord) -> Document | None:
    """An index's last verification; null when there was none."""
    if not record.verification:
        return None
    known = leader.jobs.find(record.verification)
    return {
        "job": record.verification,
        "at": record.verified_at,
        "clean": faults_of(known.counts) == 0 if known is not None and known.state in FINAL else None,
        "counts": known.counts if known is not None else None,
    }
