"""Work on copies of slices, as JSON documents of jobs: fillings, drains, rebalances. Pure.

None of them has a driver or a report. A copy is here until it counts or is given up, a drain as long as its
node is drained, a rebalance as long as it is remembered.
"""

from __future__ import annotations

from typing import Any, Final

from coordinator.jobs.registry import DRAIN, NoSuchJobError
from coordinator.leader import Leader
from coordinator.views.absent_nodes import waits_for
from coordinator.views.slices import ALMOST, HeardCopy, filling, progress
from keytide.catalog.copies import CopyRecord, Move, RebalanceRecord
from keytide.catalog.records import IndexRecord, NodeRecord

Document = dict[str, Any]
BLANK: Final[Document] = {
    "keyspace": None,
    "indexes": [],
    "build": None,
    "copy": None,
    "drain": None,
    "rebalance": None,
    "rate": None,
    "dry_run": False,
    "snapshot": None,
    "percent": None,
    "documents_done": None,
    "documents_total": None,
    "eta_s": None,
    "counts": {},
    "clean": None,
    "detail": "",
    "waiting_for": "",
    "attempts": 1,
    "error": None,
    "report": None,
    "finished_at": None,
}
"""What is so of all that has no driver, unless it says something else."""


def all_of(leader: Leader, now: int) -> list[Document]:
    """Whatever is under way, or over and remembered."""
    catalog = leader.dictionary.catalog
    copies = [
        copy(leader, index, one, one.record, now)
        for index in catalog.indexes()
        for one in filling(leader, index)
        if one.record is not None
    ]
    drains = [drain(leader, one, now) for one in catalog.nodes() if one.drained_at]
    return [*copies, *drains, *(rebalance(leader, one, now) for one in catalog.rebalances())]


def by_id(leader: Leader, id_: str, now: int) -> Document | None:
    """What has this id; a drain also when its node may have slices again. None: nothing here.

    Raises:
        NoSuchJobError: it is a drain's, and there is no such node.
    """
    if id_.startswith(DRAIN):
        node = leader.dictionary.catalog.records.get(f"node/{id_.removeprefix(DRAIN)}")
        if not isinstance(node, NodeRecord):
            raise NoSuchJobError(
                f"there is no job {id_}, for there is no node {id_.removeprefix(DRAIN)!r}",
                next_step="see `keytide node list`",
            )
        return drain(leader, node, now)
    return next((one for one in all_of(leader, now) if one["id"] == id_), None)


def _timed(id_: str, kind: str, state: str, begun_at: int, ended_at: int, now: int) -> Document:
    return {
        "id": id_,
        "kind": kind,
        **BLANK,
        "state": state,
        "created_at": begun_at,
        "started_at": begun_at,
        "finished_at": ended_at or None,
        "seconds": round(max(0, (ended_at or now) - begun_at) / 1000, 1),
    }


# --- copies that are being filled ---------------------------------------------------------------------------


def copy(leader: Leader, index: IndexRecord, found: HeardCopy, record: CopyRecord, now: int) -> Document:
    """A copy of a slice that is being filled; `documents_done` and the like are null, rows are in `copy`."""
    done, part_of = progress(found, now), _part_of(leader, record)
    instead = f", in place of the one on node {record.replaces} ({part_of})" if record.replaces else ""
    where = f"slice {record.slice} on node {record.node}, from node {record.source}{instead}"
    return {
        **_timed(record.id, "copy", "RUNNING" if found.status else "QUEUED", record.created_at, 0, now),
        "keyspace": index.keyspace,
        "indexes": [index.name],
        "copy": {
            "slice": record.slice,
            "node": record.node,
            "source": record.source,
            "why": record.why,
            "replaces": record.replaces or None,
            "part_of": part_of,
            "rows_done": done["rows_done"],
            "rows_total": done["rows_total"],
            "rate": record.rate or None,
        },
        "rate": record.rate or None,
        "percent": done["percent"],
        "eta_s": done["eta_s"],
        "detail": f"{where}: {_doing(found)}",
        "waiting_for": waits_for(leader, "", (record.node, record.source)),
    }


def _part_of(leader: Leader, record: CopyRecord) -> str | None:
    """The job that a move is of: a rebalance, or the drain of the node that it leaves."""
    if not record.replaces:
        return None
    return record.rebalance or DRAIN + record.replaces


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


# --- drains -------------------------------------------------------------------------------------------------


def drain(leader: Leader, node: NodeRecord, now: int) -> Document:
    """The drain of a node. How many copies it began with nobody has noted, so it has no percent."""
    left, id_ = leader.copies.moves.copies_on(node.id), DRAIN + node.id
    if not node.drained_at:
        document = _timed(id_, "drain", "CANCELLED", 0, 0, now)
        detail = f"node {node.id} is not drained: it may have slices"
        none = {"created_at": None, "started_at": None, "seconds": None}
        return {**document, **none, "drain": {"node": node.id, "copies": left}, "detail": detail}
    detail = f"node {node.id} has {_copies(left)} still" if left else f"node {node.id} has no copies any more"
    return {
        **_timed(id_, "drain", "RUNNING" if left else "DONE", node.drained_at, 0, now),
        "drain": {"node": node.id, "copies": left},
        "rate": node.drain_rate or None,
        "percent": None if left else 100.0,
        "detail": detail,
        "waiting_for": leader.copies.moves.waiting.get(node.id, "") if left else "",
    }


def drain_state(leader: Leader, node: NodeRecord) -> str | None:
    """`draining`, `drained`, or null of a node that may have slices."""
    if not node.drained_at:
        return None
    return "draining" if leader.copies.moves.copies_on(node.id) else "drained"


def _copies(count: int) -> str:
    return f"{count:,} cop{'y' if count == 1 else 'ies'}"


# --- rebalances ---------------------------------------------------------------------------------------------


def rebalance(leader: Leader, record: RebalanceRecord, now: int) -> Document:
    """A rebalance: `percent` is of the bytes that its moves copy."""
    catalog = leader.dictionary.catalog
    left, total = set(record.left), sum(one.bytes for one in record.moves)
    under_way = _under_way(leader, record, now)
    done = sum(one.bytes for at, one in enumerate(record.moves) if at not in left)
    bytes_done = done + sum(
        round(one.bytes * under_way.get((one.index, one.slice, one.target), 0.0) / 100)
        for at, one in enumerate(record.moves)
        if at in left
    )
    ended = len(record.moves) - len(left)
    percent, eta = 100.0, None
    if record.state != "DONE" and left:
        percent = min(ALMOST, 100 * (bytes_done / total if total else ended / len(record.moves)))
    if record.state == "RUNNING" and 0 < bytes_done < total:
        eta = round(max(0, now - record.created_at) * (total - bytes_done) / bytes_done / 1000, 1)
    known = {one.id: one.name for one in catalog.indexes()}
    filled = [one for one in catalog.copies() if one.rebalance == record.id]
    held_up = leader.copies.moves.held_up.get(record.id, "") if record.state == "RUNNING" else ""
    moved = f"{ended - record.dropped:,} of {len(record.moves):,} moves are done"
    dropped = f"{record.dropped:,} came to nothing" if record.dropped else ""
    return {
        **_timed(record.id, "rebalance", record.state, record.created_at, record.finished_at, now),
        "indexes": list(dict.fromkeys(known[one.index] for one in record.moves if one.index in known)),
        "rebalance": {
            "moves_total": len(record.moves),
            "moves_done": ended - record.dropped,
            "moves_left": len(left),
            "dropped": record.dropped,
            "bytes_done": bytes_done,
            "bytes_total": total,
        },
        "rate": record.rate or None,
        "percent": round(percent, 1),
        "eta_s": eta,
        "detail": ", ".join(filter(None, (moved, dropped, record.detail))),
        "waiting_for": waits_for(
            leader, held_up, (node for one in filled for node in (one.node, one.source))
        ),
    }


def _under_way(leader: Leader, record: RebalanceRecord, now: int) -> dict[tuple[str, int, str], float]:
    """(index id, slice, target) of each copy that a rebalance fills now -> percent."""
    if record.state != "RUNNING":
        return {}
    of = {one.index for one in record.moves}
    return {
        (index.id, one.slice, one.node): progress(one, now)["percent"]
        for index in leader.dictionary.catalog.indexes()
        if index.id in of
        for one in filling(leader, index)
        if one.record is not None and one.record.rebalance == record.id
    }


def plan(leader: Leader, moves: list[Move]) -> Document:
    """What a rebalance would begin with."""
    known = {one.id: one.name for one in leader.dictionary.catalog.indexes()}
    return {
        "moves": [
            {
                "index": known.get(one.index, one.index),
                "slice": one.slice,
                "source": one.source,
                "target": one.target,
                "bytes": one.bytes,
            }
            for one in moves
        ],
        "bytes": sum(one.bytes for one in moves),
    }
