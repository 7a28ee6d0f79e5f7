"""Which indexer nodes live, by their heartbeats. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coordinator.core.failure_detector import FailureDetector
from coordinator.core.instructions import Instruction, Note
from keytide.wire.messages import NodeHeartbeat, SliceStatus

_OUT_OF_SERVICE = {
    "STOPPED": ("slice-stopped", "has stopped"),
    "LOST": ("slice-lost", "has lost its data and serves nothing until it is rebuilt"),
}


def node_subject(name: str) -> tuple[str, str]:
    """A node, for the failure_detector."""
    return ("node", name)


_NOBODY: Final = node_subject("")
"""Silent since the first look, as all are who were never heard."""


@dataclass(slots=True)
class HeardNode:
    """One node as last heard.

    Attributes:
        heartbeat: its newest one.
        heard_at: when that came, by the coordinator's clock.
        live: a heartbeat came within the limit.
    """

    heartbeat: NodeHeartbeat
    heard_at: int
    live: bool

    def slice(self, index: str, slice_number: int) -> SliceStatus | None:
        for status in self.heartbeat.slices:
            if status.index == index and status.slice == slice_number:
                return status
        return None


class HeardNodes:
    """All nodes that were heard in this term.

    Args:
        timeout_ms: a node without a heartbeat for this long is not live.
        failure_detector: counts silence.

    Attributes:
        by_id: all of them.
        lost: (index id, slice) that are LOST on every live node that has them.
        version: changes whenever `counts` or `lost` says something else of somebody.
    """

    def __init__(self, timeout_ms: int, failure_detector: FailureDetector) -> None:
        self._timeout_ms = timeout_ms
        self._failure_detector = failure_detector
        self.by_id: dict[str, HeardNode] = {}
        self.lost: frozenset[tuple[str, int]] = frozenset()
        self.version = 0
        self._unheard_count = True
        self._live: list[str] = []
        self._live_slices: dict[tuple[str, str, int], int] = {}

    def heartbeat(self, message: NodeHeartbeat, now: int) -> tuple[bool, list[Instruction]]:
        """Take a heartbeat in. Returns whether it comes from a new start of the node, and what to tell."""
        node = self.by_id.get(message.node)
        if node is not None and node.live and message.started_at < node.heartbeat.started_at:
            # From before its restart. Unless that is silent: then the node's clock was set back.
            return False, []
        restarted = node is None or message.started_at != node.heartbeat.started_at
        notes: list[Instruction] = []
        if node is None or not node.live:
            text = f"node {message.node} serves at {message.url}"
            notes.append(Note("info", "node-live", message.node, text))
        elif restarted:
            text = f"node {message.node} was restarted"
            notes.append(Note("warning", "node-restarted", message.node, text))
        notes += _stopped_slices(node, message)
        self._failure_detector.heard(node_subject(message.node))
        self.version += node is None
        self.by_id[message.node] = HeardNode(message, now, live=True)
        self._changed()
        return restarted, notes

    def tick(self) -> list[Instruction]:
        """Declare silent nodes dead."""
        notes: list[Instruction] = []
        for name, node in sorted(self.by_id.items()):
            silence = self._failure_detector.silence(node_subject(name))
            if node.live and silence > self._timeout_ms:
                node.live = False
                text = f"node {name} has been silent for {silence} ms"
                notes.append(Note("warning", "node-lost", name, text))
        if notes:
            self._changed()
        if self._unheard_count and self._failure_detector.silence(_NOBODY) > self._timeout_ms:
            self._unheard_count = False
            self.version += 1
        return notes

    def live(self) -> list[str]:
        """Ids of live nodes, sorted."""
        return list(self._live)

    def slice_serves(self, node: str, index: str, slice_number: int, incarnation: int) -> bool:
        """Whether a replica takes part in pacing: on a live node, reading its queue, with a snapshot, rolled
        back as far as the keyspace is."""
        return self._live_slices.get((node, index, slice_number), -1) == incarnation

    def counts(self, node: str, index: str, slice_number: int, incarnation: int) -> bool:
        """Whether no number is published that this copy lacks, unless it lags (R37): it serves, or was not
        heard in this term, which is not old enough to know that it is silent."""
        if node not in self.by_id:
            return self._unheard_count
        return self.slice_serves(node, index, slice_number, incarnation)

    def _changed(self) -> None:
        known = self._live_slices, self.lost
        self._live = sorted(name for name, node in self.by_id.items() if node.live)
        self._live_slices = {
            (name, status.index, status.slice): status.incarnation
            for name, node in self.by_id.items()
            if node.live
            for status in node.heartbeat.slices
            if status.state == "LIVE" and status.number >= 0
        }
        self.lost = frozenset(
            key for key, found in self.slices().items() if all(one.state == "LOST" for one in found)
        )
        self.version += (self._live_slices, self.lost) != known

    def slices(self) -> dict[tuple[str, int], list[SliceStatus]]:
        """What live nodes say of each slice, by index id and number."""
        found: dict[tuple[str, int], list[SliceStatus]] = {}
        for _, node in sorted(self.by_id.items()):
            for status in node.heartbeat.slices if node.live else ():
                found.setdefault((status.index, status.slice), []).append(status)
        return found


def _stopped_slices(before: HeardNode | None, message: NodeHeartbeat) -> list[Instruction]:
    """A word for each slice that has stopped, or lost its data, since the last heartbeat."""
    notes: list[Instruction] = []
    for status in message.slices:
        if status.state not in _OUT_OF_SERVICE:
            continue
        known = before.slice(status.index, status.slice) if before else None
        if known is None or known.state != status.state:
            where = f"slice {status.slice} of {status.index} on node {message.node}"
            kind, words = _OUT_OF_SERVICE[status.state]
            notes.append(Note("error", kind, status.index, f"{where} {words}: {status.reason}"))
    return notes
