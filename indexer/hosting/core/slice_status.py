"""What a node's heartbeat says of one slice."""

from __future__ import annotations

from indexer.slice.core import SliceCore
from indexer.store.interface import UNNUMBERED, SliceStore
from indexer.unique.watch import UniqueWatch
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import SliceStatus


def running(
    core: SliceCore, store: SliceStore, fold_error: str, disk_bytes: int, unique: UniqueWatch | None = None
) -> SliceStatus:
    """Of a slice that is open."""
    counts, reason = store.counts, core.reason or fold_error
    state = "STOPPED" if core.reason and core.state != "LOST" else core.state
    return SliceStatus(
        index=core.index,
        slice=core.slice,
        state=state,
        reason=reason,
        timestamp=core.applied.timestamp,
        number=core.number,
        batch=core.applied.batch,
        entries=counts.entries,
        bytes=disk_bytes,
        skipped=counts.skips,
        queue_documents=core.queue_documents,
        queue_position=store.durable.queue_position,
        gap_drops=core.gap_drops,
        foreign_partition_ids=counts.foreign,
        build=core.applied.build if core.applied.building else "",
        incarnation=core.incarnation,
        queue_horizon=queue_horizon(core, store),
        undo_steps=store.undo_steps,
        violations=unique.violations if unique else 0,
        judged=unique.judged if unique else UNNUMBERED,
        violated=unique.some() if unique else [],
        repair=core.repair(store.durable),
        listed=unique.listed if unique else 0,
        undo_given_up=store.undo_given_up,
    )


def queue_horizon(core: SliceCore, store: SliceStore) -> int:
    """First offset of its mutation queue that a slice may ever need again, steps back included (R33, R34);
    -1 when that is not known: only its end tells a build where it goes on."""
    horizon = store.horizon
    if core.state == "LOST" or core.applied.building or horizon.building:
        return -1
    return horizon.queue_position


def absent(
    key: tuple[str, int], state: str, reason: str, incarnation: int = 0, copy: str = ""
) -> SliceStatus:
    """Of a slice that is not open: STOPPED when that is tried again, LOST when it is no use."""
    return SliceStatus(
        index=key[0],
        slice=key[1],
        state=state,
        reason=reason,
        timestamp=Timestamp(),
        number=UNNUMBERED,
        batch=-1,
        entries=0,
        bytes=0,
        skipped=0,
        queue_documents=0,
        queue_position=0,
        gap_drops=0,
        foreign_partition_ids=0,
        incarnation=incarnation,
        copy=copy,
    )
