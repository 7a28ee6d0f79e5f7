"""Which indexer nodes live, by their heartbeats, and what they say of the copies that the dictionary names.
Pure.

A slice may lie on several nodes. What a node says of its copy counts when the dictionary names that copy, by
its id (R48): one that is still being filled (R41), or leaves and has not gone yet (R42), is not waited for.

That a node lives and what it has are told apart (R53). Whatever its process says shows that it lives. What it
has is not known before that process has said all; until then, and no longer than it is heard, nobody goes by
what its copies lack (`unheard`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from coordinator.core.failure_detector import FailureDetector
from coordinator.core.instructions import Instruction, Note
from keytide.catalog.catalog import Catalog
from keytide.wire.heartbeats import UNTOLD, begun, follow
from keytide.wire.messages import HeartbeatChanges, NodeHeartbeat, SliceStatus

_OUT_OF_SERVICE = {
    "STOPPED": ("slice-stopped", "has stopped"),
    "LOST": ("slice-lost", "has lost its data and serves nothing until it is filled or rebuilt"),
}

WHOLE: Final = frozenset({"CATCHUP", "LIVE", "STOPPED"})
"""States of a copy that has got all rows that it was to get, and goes on by its queue alone."""

Replica = tuple[str, str, int]
"""(node, index id, slice): a copy, as long as nothing else takes its place."""


def node_subject(name: str) -> tuple[str, str]:
    """A node, for the failure_detector."""
    return ("node", name)


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
    _slices: dict[tuple[str, int], SliceStatus] = field(init=False)

    def __post_init__(self) -> None:
        self._slices = {(status.index, status.slice): status for status in self.heartbeat.slices}

    @property
    def told(self) -> bool:
        """Whether its process has said all since it began; else nothing is known of its slices."""
        return self.heartbeat.sequence != UNTOLD

    def slice(self, index: str, slice_number: int) -> SliceStatus | None:
        return self._slices.get((index, slice_number))


class HeardNodes:
    """All nodes that were heard in this term.

    Args:
        timeout_ms: a node without a heartbeat for this long is not live.
        failure_detector: counts silence.
        gone_ms: a node that has been silent for longer is not expected back.

    Attributes:
        by_id: all of them.
        lost: (index id, slice) of which every copy that counts is LOST, or on a node that is not expected
            back; one at least is LOST on a live node. Not while one that leaves is whole, for it is about to
            count again (R43): it would lack what is published without it.
        version: changes whenever `counts` or `lost` says something else of somebody.
    """

    def __init__(self, timeout_ms: int, failure_detector: FailureDetector, gone_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._failure_detector = failure_detector
        self._gone_ms = gone_ms
        self.by_id: dict[str, HeardNode] = {}
        self.lost: frozenset[tuple[str, int]] = frozenset()
        self.version = 0
        self._counted: dict[Replica, str] = {}
        self._others: dict[Replica, str] = {}
        """Those that are named and do not count: that are being filled, or leave."""
        self._leaving: dict[Replica, str] = {}
        self._beside: dict[tuple[str, int], list[tuple[str, str]]] = {}
        self._placed: dict[tuple[str, int], list[str]] = {}
        self._gone: frozenset[str] = frozenset()
        self._said_by_slice: dict[tuple[str, int], dict[str, SliceStatus]] = {}
        self._said_by_node: dict[str, dict[tuple[str, int], SliceStatus]] = {}
        """Of live nodes, what they say of copies that count: by slice and node, and by node and slice."""
        self._unheard: frozenset[str] = frozenset()
        """Of those that copies are on, at the last look."""
        self._set_back: dict[str, NodeHeartbeat] = {}
        """What a process says that began before the one that is known, by its clock."""
        self._live: list[str] = []
        self._serving: dict[Replica, int] = {}
        """Copies that serve, with their incarnation."""

    def catalog_changed(self, catalog: Catalog) -> list[Replica]:
        """Take over which copies the dictionary names. Returns those that are other ones now, or none."""
        before = self._counted | self._others
        self._placed = {
            (index.id, number): nodes
            for index in catalog.indexes()
            for number, nodes in enumerate(index.placement)
        }
        self._counted = {
            (node, index.id, number): index.copy_of(number, node)
            for index in catalog.indexes()
            for number, nodes in enumerate(index.placement)
            for node in nodes
        }
        self._leaving = {
            (node, index.id, number): one.copy
            for index in catalog.indexes()
            for number, leaving in index.leaving.items()
            for node, one in leaving.items()
        }
        filled = {(one.node, one.index, one.slice): one.id for one in catalog.copies()}
        self._others = filled | self._leaving
        self._beside = {}
        for (node, index_id, number), copy in self._others.items():
            self._beside.setdefault((index_id, number), []).append((node, copy))
        self._changed()
        now = self._counted | self._others
        return [replica for replica, copy in before.items() if now.get(replica) != copy]

    def in_full(self, message: NodeHeartbeat | HeartbeatChanges) -> NodeHeartbeat | None:
        """What a node says with a heartbeat, all of it (R53). None when that is not known, or is known
        already: then nothing is heard but that the node lives. Of another process than the one that is known
        it is nothing yet (`keytide.wire.heartbeats.begun`)."""
        node = message.node
        known = self.by_id.get(node)
        before = known.heartbeat if known is not None else None
        if before is not None and message.started_at < before.started_at:
            # Of before its restart; unless that falls silent: then the node's clock was set back. So it is no
            # sign of life of that, and its changes are followed all the same.
            found = follow(self._set_back.get(node), message)
            if found is not None:
                self._set_back[node] = found
            if known is not None and known.live:
                return None
        else:
            found = follow(before, message)
        if found is not None:
            return found
        if before is not None and message.started_at != before.started_at:
            return begun(before, message) if isinstance(message, HeartbeatChanges) else None
        self._failure_detector.heard(node_subject(node))
        return None

    def heartbeat(self, message: NodeHeartbeat, now: int) -> tuple[bool, list[Instruction]]:
        """Take a heartbeat in. Returns whether it comes from a new start of the node, and what to tell."""
        node = self.by_id.get(message.node)
        if node is not None and node.live and message.started_at < node.heartbeat.started_at:
            # From before its restart. Unless that is silent: then the node's clock was set back.
            return False, []
        restarted = node is None or message.started_at != node.heartbeat.started_at
        if restarted:
            self._set_back.pop(message.node, None)
        unheard = self.unheard([message.node])
        notes: list[Instruction] = []
        if node is None or not node.live:
            text = f"node {message.node} serves at {message.url}"
            notes.append(Note("info", "node-live", message.node, text))
        elif restarted:
            text = f"node {message.node} was restarted"
            notes.append(Note("warning", "node-restarted", message.node, text))
        notes += _stopped_slices(node, message)
        self._failure_detector.heard(node_subject(message.node))
        self.by_id[message.node] = HeardNode(message, now, live=True)
        self.version += node is None or self.unheard([message.node]) != unheard
        self._gone -= {message.node}
        self._take_over([message.node])
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
        nodes = self._nodes()
        gone = frozenset(node for node in nodes if self.gone(node))
        if notes or gone != self._gone:
            self._gone = gone
            self._changed()
        unheard = frozenset(self.unheard(nodes))
        if unheard != self._unheard:
            self._unheard = unheard
            self.version += 1
        return notes

    def live(self) -> list[str]:
        """Ids of live nodes, sorted."""
        return list(self._live)

    def unheard(self, nodes: Iterable[str]) -> list[str]:
        """Those of which is not known what they have now, and that are not known to be silent; sorted. This
        term is not old enough for that, or they say what has changed of what was not heard."""
        return sorted(filter(self._is_unheard, nodes))

    def _is_unheard(self, node: str) -> bool:
        known = self.by_id.get(node)
        if known is not None and known.live and known.told:
            return False
        return self._failure_detector.silence(node_subject(node)) <= self._timeout_ms

    def gone(self, node: str) -> bool:
        """Whether a node has been silent for so long that it is not expected back."""
        return self.silent_for(node, self._gone_ms)

    def silent_for(self, node: str, ms: int) -> bool:
        """Whether a node has been silent for longer, of what counts as silence."""
        return self._failure_detector.silence(node_subject(node)) > ms

    def expected(self, catalog: Catalog) -> set[str]:
        """Nodes that may have slices, but for those that are not expected back."""
        return {one.id for one in catalog.nodes() if not self.gone(one.id)} - catalog.closed()

    def awaited(self, catalog: Catalog) -> str:
        """What to wait for before slices are placed, in words: who leads since a moment ago has heard some
        nodes and not the others, and all slices would come to lie on those. "" for nothing."""
        names = ", ".join(self.unheard(self.expected(catalog)))
        return names and f"word of {names}, which this coordinator, that has begun to lead, has not heard yet"

    def _nodes(self) -> set[str]:
        """All that copies which count, or leave, are on."""
        return {node for nodes in self._placed.values() for node in nodes} | {one[0] for one in self._leaving}

    def names(self, node: str, index: str, slice_number: int) -> bool:
        """Whether what a node says of a slice now is of a copy that the dictionary names. As long as it has
        not said which it is, one that counts is taken for that."""
        replica = node, index, slice_number
        known = self.by_id.get(node)
        status = known.slice(index, slice_number) if known else None
        if status is None:
            return replica in self._counted
        return status.copy == self._counted.get(replica, self._others.get(replica))

    def has_whole(self, index: str, slice_number: int) -> bool:
        """Whether a copy of a slice that does not count, yet or any more, is on a live node and has all
        rows; or leaves, and is on a node that is silent and may come back, or has not said yet what it
        has."""
        key = index, slice_number
        for node, copy in self._beside.get(key, ()):
            known = self.by_id.get(node)
            unknown = known is None or not known.live or not known.told
            if self._is_whole(node, key, copy) or (
                unknown and (node, *key) in self._leaving and not self.gone(node)
            ):
                return True
        return False

    def copy_serves(self, node: str, index: str, slice_number: int, incarnation: int) -> bool:
        """Whether a copy takes part in pacing: it counts, on a live node, reading its queue, with a snapshot,
        rolled back as far as the keyspace is."""
        return self._serving.get((node, index, slice_number), -1) == incarnation

    def counts(self, node: str, index: str, slice_number: int, incarnation: int) -> bool:
        """Whether no number is published that this copy lacks, unless it lags (R37): it serves, or whether
        it does is not known, and its node is not known to be silent."""
        return self.copy_serves(node, index, slice_number, incarnation) or self._is_unheard(node)

    def _changed(self) -> None:
        """Look at everything anew."""
        known = self._serving
        self._said_by_slice, self._said_by_node, self._serving = {}, {}, {}
        lost, self.lost, version = self.lost, frozenset(), self.version
        self._take_over(self.by_id)
        self.version = version + ((self._serving, self.lost) != (known, lost))

    def _take_over(self, names: Iterable[str]) -> None:
        """Look at what some nodes say by now. (A heartbeat costs what its node has, not what all have.)"""
        touched: set[tuple[str, int]] = set()
        changed = False
        for name in names:
            before, says = self._said_by_node.get(name, {}), dict[tuple[str, int], SliceStatus]()
            node = self.by_id[name]
            for status in node.heartbeat.slices if node.live else ():
                if (name, status.index, status.slice) in self._others:
                    touched.add((status.index, status.slice))
                if self._counted.get((name, status.index, status.slice)) == status.copy:
                    says[status.index, status.slice] = status
            for key in before.keys() - says.keys():
                del self._said_by_slice[key][name]
                if not self._said_by_slice[key]:
                    del self._said_by_slice[key]
            for key, status in says.items():
                self._said_by_slice.setdefault(key, {})[name] = status
            for key in before.keys() | says.keys():
                changed |= self._serves_now((name, *key), says.get(key))
            self._said_by_node[name] = says
            touched |= before.keys() | says.keys()
        self._live = sorted(name for name, node in self.by_id.items() if node.live)
        lost = {key for key in touched if self._is_lost(key, self._said_by_slice.get(key, {}).values())}
        if lost != self.lost & touched:
            self.lost = (self.lost - touched) | lost
            changed = True
        self.version += changed

    def _serves_now(self, replica: Replica, status: SliceStatus | None) -> bool:
        """Note whether a copy serves, and in which incarnation; whether that is another than before."""
        before = self._serving.get(replica)
        if status is None or status.state != "LIVE" or status.number < 0:
            self._serving.pop(replica, None)
            return before is not None
        self._serving[replica] = status.incarnation
        return before != status.incarnation

    def _is_lost(self, key: tuple[str, int], said: Collection[SliceStatus]) -> bool:
        """Whether nobody can go on with a slice. `said`: of its copies that count, on live nodes."""
        if not said or any(status.state != "LOST" for status in said):
            return False
        if len(said) + sum(node in self._gone for node in self._placed[key]) < len(self._placed[key]):
            return False
        return not any(
            (node, *key) in self._leaving and self._is_whole(node, key, copy)
            for node, copy in self._beside.get(key, ())
        )

    def _is_whole(self, node: str, key: tuple[str, int], copy: str) -> bool:
        """Whether a copy is on a live node, and has all rows."""
        known = self.by_id.get(node)
        status = known.slice(*key) if known and known.live else None
        return status is not None and status.copy == copy and status.state in WHOLE

    def said(self, index: str, slice_number: int) -> list[SliceStatus]:
        """What live nodes say of the copies of a slice that count, in the order of their names."""
        return [status for _, status in sorted(self._said_by_slice.get((index, slice_number), {}).items())]


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
