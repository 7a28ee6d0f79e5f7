"""The slices of an index and their copies: what nodes say of each, and which one stands for its slice. Pure.

All copies of a slice hold the same, so what is summed over an index takes one copy of each slice: the one
that says most of it, for it is live and has its data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from coordinator.leader import Leader
from coordinator.views.loads import rates
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import SliceStatus

Document = dict[str, Any]

ALMOST = 99.9
"""Percent of a copy that has all rows, and does not count yet."""


class HeardCopy(NamedTuple):
    """A copy of a slice.

    Attributes:
        live: its node is.
        status: what that last said of it; None when it has said nothing of this very copy.
        record: of one that is being filled; None of one that counts, or leaves.
        leaves: it counts no longer, and still answers pages that name it.
    """

    slice: int
    node: str
    live: bool
    status: SliceStatus | None
    record: CopyRecord | None = None
    leaves: bool = False

    @property
    def serves(self) -> bool:
        """Whether it has a snapshot, and its node is live."""
        status = self.status
        return self.live and status is not None and status.state == "LIVE" and status.number >= 0

    @property
    def lost(self) -> bool:
        return self.status is not None and self.status.state == "LOST"


def counted(leader: Leader, index: IndexRecord, number: int) -> list[HeardCopy]:
    """The copies of a slice that count, in the order of the placement."""
    return [_heard(leader, index, number, node) for node in index.placement[number]]


def filling(leader: Leader, index: IndexRecord, number: int = -1) -> list[HeardCopy]:
    """The copies of an index, or of one slice of it, that are being filled, the oldest first."""
    mine = [one for one in leader.dictionary.catalog.copies() if one.index == index.id]
    mine.sort(key=lambda one: (len(one.id), one.id))
    return [_heard(leader, index, one.slice, one.node, one) for one in mine if number in (-1, one.slice)]


def leaving(leader: Leader, index: IndexRecord, number: int) -> list[HeardCopy]:
    """The copies of a slice that leave, by node."""
    return [
        _heard(leader, index, number, name, leaves=True) for name in sorted(index.leaving.get(number, ()))
    ]


def _heard(
    leader: Leader,
    index: IndexRecord,
    number: int,
    name: str,
    record: CopyRecord | None = None,
    *,
    leaves: bool = False,
) -> HeardCopy:
    """What is known of a copy. What its node says of another one that it has had there is nothing."""
    node = leader.stability.nodes.by_id.get(name)
    status = node.slice(index.id, number) if node is not None else None
    heard = HeardCopy(number, name, node is not None and node.live, status, record, leaves)
    return heard if status is None or status.copy == _id(index, heard) else heard._replace(status=None)


def _id(index: IndexRecord, copy: HeardCopy) -> str:
    """Of a copy, "" of one that a build has filled."""
    if copy.record is not None:
        return copy.record.id
    if copy.leaves:
        return index.leaving[copy.slice][copy.node].copy
    return index.copy_of(copy.slice, copy.node)


def representatives(leader: Leader, index: IndexRecord) -> list[HeardCopy | None]:
    """Of each slice the copy that stands for it, None where none was heard."""
    found: list[HeardCopy | None] = []
    for number in range(index.slices if index.placement else 0):
        heard = [one for one in counted(leader, index, number) if one.status is not None]
        # (Smaller ones say more of their slice.)
        found.append(min(heard, key=lambda one: (one.lost, not one.live, not one.serves), default=None))
    return found


def slice_statuses(leader: Leader, index: IndexRecord) -> list[SliceStatus | None]:
    """What was last heard of each slice, None of one that was not heard."""
    return [one.status if one is not None else None for one in representatives(leader, index)]


def nodes_to_ask(leader: Leader, index: IndexRecord) -> list[str]:
    """Of each slice the node to ask about it: one that is live, if any is."""
    live = set(leader.stability.nodes.live())
    return [
        copy.node if copy is not None else next((one for one in nodes if one in live), nodes[0])
        for copy, nodes in zip(representatives(leader, index), index.placement, strict=True)
    ]


def lost_slices(leader: Leader, index: IndexRecord) -> list[int]:
    """Slices of an index whose data is lost or being rebuilt, ascending."""
    lost = {number for id_, number in leader.stability.nodes.lost if id_ == index.id}
    rebuilt = (build.slices[index.id] for build in leader.builds.registry.rebuilds(index.id))
    return sorted(lost.union(*rebuilt))


def copy_counts(leader: Leader, index: IndexRecord) -> dict[str, int]:
    """How many copies of slices an index is to have, and has: `counted` by the dictionary, those of them that
    serve and that are lost, those that are being filled, and those that leave."""
    copies = [one for number in range(len(index.placement)) for one in counted(leader, index, number)]
    return {
        "wanted": len(index.placement) * (index.definition.replicas + 1),
        "counted": len(copies),
        "serving": sum(one.serves for one in copies),
        "filling": len(filling(leader, index)),
        "lost": sum(one.lost for one in copies),
        "leaving": sum(map(len, index.leaving.values())),
    }


def index_slices(leader: Leader, index: IndexRecord, ends: Timestamp, now: int) -> list[Document]:
    """The slices of an index, each copy: those that count, then those that are being filled, or leave. Their
    load is that of all copies together, and their queue is one (`queue_held_from`: the first offset that
    stays; None where nothing goes, or by age alone).

    Args:
        ends: of the source.
    """
    rebuilds = leader.builds.registry.rebuilds(index.id)
    loads = rates(leader, index)
    hot = leader.loads.hot(index)
    holders = leader.trimmer.holders(index, now)
    documents: list[Document] = []
    for number in range(len(index.placement)):
        rebuild = next((one.id for one in rebuilds if number in one.slices[index.id]), None)
        counting, gone = counted(leader, index, number), leaving(leader, index, number)
        for copy in (*counting, *filling(leader, index, number), *gone):
            load = {
                "writes_per_s": loads[number]["writes_per_s"],
                "reads_per_s": loads[number]["reads_per_s"],
                "hot": [one.measure for one in hot if one.slice == number],
            }
            told = _copy(index, copy, ends)
            queue = {"queue_held_by": holders[number].by, "queue_held_from": holders[number].offset}
            documents.append({**told, **queue, "rebuild": rebuild, **progress(copy, now), **load})
    return documents


def _copy(index: IndexRecord, copy: HeardCopy, ends: Timestamp) -> Document:
    status = copy.status
    return {
        "slice": copy.slice,
        "node": copy.node,
        "copy": _id(index, copy) or None,
        "counted": copy.record is None and not copy.leaves,
        "live": copy.live,
        "state": "LEAVING" if copy.leaves else status.state if status else None,
        "incarnation": status.incarnation if status else None,
        "undo_steps": status.undo_steps if status else None,
        "undo_given_up": status.undo_given_up if status else None,
        "reason": status.reason if status else "",
        "build": index.build_of(copy.slice) or None,
        "entries": status.entries if status else None,
        "bytes": status.bytes if status else None,
        "snapshot": status.number if status and status.number >= 0 else None,
        "lag_documents": status.timestamp.documents_to(ends) if status and status.number >= 0 else None,
        "queue_documents": status.queue_documents if status else None,
        "queue_position": status.queue_position if status else None,
        "queue_horizon": status.queue_horizon if status and status.queue_horizon >= 0 else None,
        "gap_drops": status.gap_drops if status else None,
        "leases": status.leases if status and status.leases >= 0 else None,
    }


def progress(copy: HeardCopy, now: int) -> Document:
    """How far a copy is that is being filled; nulls of one that counts, and where it cannot be told.
    `eta_s`: until it has all rows, by its pace since it was begun."""
    status, record = copy.status, copy.record
    rows, total = (status.rows, status.rows_total) if status is not None else (0, 0)
    fills = status is not None and status.state == "FILLING"
    if record is None:
        percent = eta = None
    elif status is None or status.state not in ("FILLING", "CATCHUP", "LIVE"):
        percent, eta = 0.0, None
    elif fills:
        percent = round(min(ALMOST, 100 * rows / total), 1) if total else 0.0
        elapsed = max(0, now - record.created_at)
        eta = round(elapsed * (total - rows) / rows / 1000, 1) if rows and total >= rows else None
    else:
        percent, eta = ALMOST, None
    return {
        "source": record.source if record is not None else None,
        "percent": percent,
        "rows_done": rows if fills else None,
        "rows_total": total if fills and total else None,
        "eta_s": eta,
    }
