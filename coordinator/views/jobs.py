"""Jobs as JSON documents, for the API. Pure.

Work on copies of slices is shown among them (`coordinator.views.copies`).
"""

from __future__ import annotations

from typing import Any

from coordinator.jobs.registry import FINAL, faults_of
from coordinator.leader import Leader
from coordinator.views import copies
from coordinator.views.absent_nodes import alone, waits_for
from keytide.catalog.records import IndexRecord, JobRecord

Document = dict[str, Any]


def job(leader: Leader, record: JobRecord, now: int) -> Document:
    """One job."""
    end = record.finished_at or now
    left = leader.jobs.left_ms(record, now)
    return {
        **copies.BLANK,
        "id": record.id,
        "kind": record.kind,
        "keyspace": record.keyspace,
        "indexes": leader.jobs.names(record),
        "build": record.build or None,
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


def jobs(leader: Leader, now: int) -> list[Document]:
    """All jobs, oldest first, with the work on copies of slices."""
    found = [job(leader, record, now) for record in leader.jobs.all()]
    return sorted([*found, *copies.all_of(leader, now)], key=lambda one: one["created_at"])


def by_id(leader: Leader, id_: str, now: int) -> Document:
    """One job.

    Raises:
        NoSuchJobError: there is none of that id.
    """
    return copies.by_id(leader, id_, now) or job(leader, leader.jobs.get(id_), now)


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
