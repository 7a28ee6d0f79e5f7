"""What makes copies move: nodes that are drained, and rebalances. Pure (R42, R43).

Theory of operation. A move is a copy that is filled and names another one that it takes the place of
(`CopyRecord.replaces`): when it counts, the other one leaves (`coordinator.copies.copies`). Which moves there
are to be is in the dictionary, too: of a node that is drained every copy moves, and a rebalance has its list.
So a leader that takes over goes on with both. A move whose reason is gone is given up at the next look.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from coordinator.builds.registry import BuildRegistry
from coordinator.catalog.registry import ConflictError
from coordinator.copies.balancing import PlannedNode, PlannedSlice, Sketch
from coordinator.copies.beginning import Beginnings
from coordinator.copies.choosing import TURN, Choosing, Purpose
from coordinator.copies.leaving import LeavingCopies
from coordinator.copies.reports import CopyReports, Slice
from coordinator.core.instructions import Instruction, Note
from coordinator.core.nodes import HeardNodes
from coordinator.jobs.registry import NoSuchJobError
from keytide.catalog.copies import CopyRecord, Move, RebalanceRecord
from keytide.catalog.records import IndexRecord, NodeRecord
from keytide.errors import CallerError, RetryableError
from keytide.model.hints import did_you_mean
from keytide.model.protocol import MOVES

KEPT: Final = 10
"""Rebalances that are over and still shown."""
ATTEMPTS: Final = 3
"""A move of a rebalance that has come to nothing so often is left out: the next one plans anew."""
WRITTEN: Final = 100
"""About so often a rebalance is written while it goes on: with all its moves it may be large."""


class NoSuchNodeError(CallerError):
    """No indexer node has that name."""

    problem_type = "node-not-found"
    status = 404


class Moves:
    """Drains nodes and rebalances.

    Args:
        registry: whose dictionary is changed.
        beginnings: begins copies.
        leaving: lets them go.
        room: bytes that stay free on a disk.

    Attributes:
        waiting: node that is drained -> what its next copies wait for, in words.
        held_up: rebalance that is running -> what its next moves wait for, in words.
    """

    def __init__(
        self,
        registry: BuildRegistry,
        nodes: HeardNodes,
        reports: CopyReports,
        beginnings: Beginnings,
        leaving: LeavingCopies,
        room: int,
    ) -> None:
        self.waiting: dict[str, str] = {}
        self.held_up: dict[str, str] = {}
        self._registry = registry
        self._dictionary = registry.dictionary
        self._nodes = nodes
        self._reports = reports
        self._beginnings = beginnings
        self._leaving = leaving
        self._room = room
        self._emptied: set[str] = set()

    # --- what is asked --------------------------------------------------------------------------------------

    def drain(self, node: str, now: int) -> tuple[NodeRecord, list[Instruction]]:
        """Have all copies on a node move to others, and place no more on it. Again: nothing is changed.

        Raises:
            NoSuchNodeError: there is no node of that name.
            ConflictError: no other node is live that may have slices.
            RetryableError: this leader has not heard all nodes yet.
            UpgradeNeededError: somebody does not know of copies that move.
        """
        record = self._node(node)
        if record.drained_at:
            return record, []
        self._dictionary.use_protocol(MOVES, "a drain", without=node)
        if not self._heard_nodes() - {node}:
            raise _too_few("other ")
        record = replace(record, drained_at=max(1, now))
        self._dictionary.put(record)
        text = f"node {node} is drained: its {self.copies_on(node)} copies of slices move to other nodes"
        return record, [Note("info", "node-drains", node, text)]

    def undrain(self, node: str) -> tuple[NodeRecord, list[Instruction]]:
        """A node may have slices again; what moves off it is given up, what has left it stays away.

        Raises:
            NoSuchNodeError: there is no node of that name.
        """
        record = self._node(node)
        if not record.drained_at:
            return record, []
        record = replace(record, drained_at=0, drain_rate=0)
        self._dictionary.put(record)
        self.waiting.pop(node, None)
        return record, [Note("info", "node-undrained", node, f"node {node} may have slices again")]

    def copies_on(self, node: str) -> int:
        """How many copies lie on a node: those that count, that leave it, and of builds under way. A drain
        is done when there are none."""
        return sum(
            node in (*nodes, *index.leaving.get(number, ()))
            for index in self._dictionary.catalog.indexes()
            for number, nodes in enumerate(index.placement)
        )

    def sketch(self) -> Sketch:
        """What a rebalance would be planned from now. Copies on nodes that are drained move without; those on
        nodes that have the role for slices no more move by it. Slices with a copy on a node that is silent
        stay as they are, for it may come back.

        Raises:
            ConflictError: no node is live that may have slices.
            RetryableError: this leader has not heard all nodes yet.
        """
        catalog, open_ = self._dictionary.catalog, self._heard_nodes()
        if not open_:
            raise _too_few()
        here = open_ | (set(self._nodes.live()) & catalog.closed() - catalog.drained())
        nodes = [
            PlannedNode(one.id, one.zone, self._nodes.by_id[one.id].heartbeat.disk_free)
            for one in catalog.nodes()
            if one.id in open_
        ]
        moving = catalog.copies_of_slices()
        slices = [
            self._planned(index, number, moving.get((index.id, number), []), here)
            for index in catalog.indexes()
            for number in range(len(index.placement))
        ]
        return Sketch(slices, nodes, self._room)

    def check_none_runs(self) -> None:
        """See that a rebalance can begin.

        Raises:
            ConflictError: one is running.
        """
        for one in self._running():
            raise ConflictError(
                f"{one.id} is running",
                problem_type="rebalance-running",
                next_step=f"wait for it (`keytide job show {one.id}`), or cancel it",
            )

    def carry_out(self, moves: list[Move], now: int) -> tuple[RebalanceRecord, list[Instruction]]:
        """Begin a rebalance (it is DONE at once when there is nothing to move). Raises as
        `check_none_runs`, and `UpgradeNeededError` as `drain`."""
        self.check_none_runs()
        if moves:
            self._dictionary.use_protocol(MOVES, "a rebalance")
        record = RebalanceRecord(
            id=f"rebalance-{self._dictionary.number()}",
            state="RUNNING",
            created_at=now,
            moves=moves,
            left=list(range(len(moves))),
        )
        if not moves:
            record = _over(record, now, "nodes have about as much already: nothing moves")
        self._dictionary.put(record)
        for old in [one for one in self._dictionary.catalog.rebalances() if one.state != "RUNNING"][:-KEPT]:
            self._dictionary.delete(f"rebalance/{old.id}")
        size = sum(move.bytes for move in moves)
        text = f"{record.id} is to move {len(moves)} copies of slices, {size / 1e6:,.1f} MB"
        return record, [Note("info", "rebalance-begun", record.id, text)]

    def find(self, id_: str) -> RebalanceRecord:
        """A rebalance.

        Raises:
            NoSuchJobError: there is none of that id.
        """
        known = self._dictionary.catalog.records.get(f"rebalance/{id_}")
        if not isinstance(known, RebalanceRecord):
            raise NoSuchJobError(
                f"there is no rebalance {id_!r}", next_step="`keytide job list` shows what there is"
            )
        return known

    def cancel(self, id_: str, now: int) -> tuple[RebalanceRecord, list[Instruction]]:
        """End a rebalance: moves that are not done are given up, those that are stay.

        Raises:
            NoSuchJobError: there is none of that id.
            ConflictError: it is over.
        """
        record = self.find(id_)
        if record.state != "RUNNING":
            raise ConflictError(
                f"{id_} is over, it is {record.state}",
                problem_type="job-over",
                next_step="there is nothing to cancel",
            )
        record = replace(_over(record, now, "cancelled on request"), state="CANCELLED")
        self._dictionary.put(record)
        return record, [Note("info", "rebalance-cancelled", id_, f"{id_} is cancelled on request")]

    # --- what follows ---------------------------------------------------------------------------------------

    def unwanted(self, record: CopyRecord, index: IndexRecord) -> str:
        """Why a copy that is being filled is not wanted any more, "" when it is."""
        catalog = self._dictionary.catalog
        if record.node in catalog.closed():
            return "its node is drained, or has not the role index any more"
        if record.replaces not in index.placement[record.slice] or record.replaces in catalog.drained():
            return ""
        running = {one.id for one in self._running()}
        return "" if record.rebalance in running else "it is not to be moved any more"

    def begin(self, now: int) -> list[Instruction]:
        """Begin the moves that are due, as many as may be at once."""
        catalog = self._dictionary.catalog
        drained, running = sorted(catalog.drained()), self._running()
        self.held_up = {}
        self._emptied.intersection_update(drained)
        if not drained and not running:
            return []
        choosing = self._beginnings.choosing()
        out: list[Instruction] = []
        for node in drained:
            out += self._drain(node, choosing, now)
        for rebalance in running:
            out += self._go_on(rebalance, choosing, now)
        return out

    def _drain(self, node: str, choosing: Choosing, now: int) -> list[Instruction]:
        """Move the copies on a node."""
        self.waiting.pop(node, None)
        if not self.copies_on(node):
            if node in self._emptied:
                return []
            self._emptied.add(node)
            return [Note("info", "node-drained", node, f"node {node} has no slices any more")]
        out: list[Instruction] = []
        rate = self._node(node).drain_rate
        for index_id, number in self._held(node):
            index = self._reports.open(index_id, number)
            if index is None:
                _wait(self.waiting, node, self._reports.closed(index_id, number))
                continue
            slice_ = f"slice {number} of {index.name}"
            if self._nodes.gone(node):
                words = f"no other copy of {slice_} holds what is published"
                _wait(self.waiting, node, f"node {node}, which is silent, to come back: {words}")
                continue
            if len(index.placement[number]) > index.definition.replicas + 1:
                # It leaves without another one in its place.
                _wait(self.waiting, node, f"{slice_} to have no more copies than it is to have")
                continue
            if any(one.replaces == node for one in choosing.filled.get((index_id, number), ())):
                continue
            words, begun = self._beginnings.begin(index, number, choosing, now, Purpose(node, rate=rate))
            _wait(self.waiting, node, words)
            out += begun
        _wait(self.waiting, node, self._leaving.waiting.get(node, ""))
        return out

    def _go_on(self, record: RebalanceRecord, choosing: Choosing, now: int) -> list[Instruction]:
        """The next moves of a rebalance."""
        out: list[Instruction] = []
        left, dropped = list(record.left), record.dropped
        # One that is started again, or that this leader has not heard yet, has its moves later.
        expected = self._nodes.expected(self._dictionary.catalog)
        for at in record.left:
            move = record.moves[at]
            if any(one.rebalance for one in choosing.filled.get((move.index, move.slice), ())):
                continue
            known = self._dictionary.catalog.index(move.index)
            nodes = known.placement[move.slice] if known and move.slice < len(known.placement) else []
            done = move.target in nodes and move.source not in nodes
            if done or self._outdated(move, nodes, expected):
                left.remove(at)
                dropped += not done
                continue
            index = self._reports.open(move.index, move.slice)
            if index is None:
                _wait(self.held_up, record.id, self._reports.closed(move.index, move.slice))
                continue
            if choosing.busy(move.target):  # so most are: there may be thousands, and each look costs time
                _wait(self.held_up, record.id, TURN)
                continue
            purpose = Purpose(move.source, move.target, record.id, record.rate)
            words, begun = self._beginnings.begin(index, move.slice, choosing, now, purpose)
            _wait(self.held_up, record.id, words)
            out += begun
        if left and (len(record.left) - len(left)) * WRITTEN < len(record.moves):
            return out  # what is done is seen of the placement, too
        record = replace(record, left=left, dropped=dropped)
        if not left:
            text = f"{len(record.moves) - dropped} of {len(record.moves)} copies have moved"
            text += f"; {dropped} have not, for what they were planned for has changed" if dropped else ""
            record = _over(record, now, text)
            out.append(Note("info", "rebalance-done", record.id, f"{record.id} is done: {text}"))
        self._dictionary.put(record)
        return out

    def _outdated(self, move: Move, nodes: list[str], expected: set[str]) -> bool:
        """Whether a move makes no sense any more, or comes to nothing again and again."""
        if move.source not in nodes or move.target in nodes or move.target not in expected:
            return True
        return self._beginnings.failures((move.index, move.slice), move.target) >= ATTEMPTS

    # --- what there is --------------------------------------------------------------------------------------

    def _running(self) -> list[RebalanceRecord]:
        return [one for one in self._dictionary.catalog.rebalances() if one.state == "RUNNING"]

    def _node(self, name: str) -> NodeRecord:
        known = self._dictionary.catalog.records.get(f"node/{name}")
        if not isinstance(known, NodeRecord):
            names = [one.id for one in self._dictionary.catalog.nodes()]
            raise NoSuchNodeError(
                f"there is no indexer node {name!r}",
                next_step=did_you_mean(name, names, "`keytide node list` shows them"),
            )
        return known

    def _heard_nodes(self) -> set[str]:
        """Live nodes that may have slices.

        Raises:
            RetryableError: others may be live, and were not heard yet.
        """
        catalog = self._dictionary.catalog
        if awaited := self._nodes.awaited(catalog):
            raise RetryableError(
                f"what can move is not known before {awaited}", next_step="try again in a few seconds"
            )
        return self._nodes.expected(catalog).intersection(self._nodes.live())

    def _held(self, node: str) -> Iterator[Slice]:
        """The slices of which a node has a copy that counts."""
        for index in self._dictionary.catalog.indexes():
            for number, nodes in enumerate(index.placement):
                if node in nodes:
                    yield index.id, number

    def _planned(
        self, index: IndexRecord, number: int, moving: list[CopyRecord], here: set[str]
    ) -> PlannedSlice:
        """A slice as it will lie when what is under way is done. `here`: live nodes, not drained."""
        nodes = list(index.placement[number])
        said = [self._reports.counted(index, number, node) for node in nodes]
        entries = max((one.entries for one in said if one is not None), default=0)
        size = max((one.bytes for one in said if one is not None), default=0)
        serves = any(self._reports.serves(index, number, node) for node in nodes)
        movable = index.state == "READY" and serves and not moving and here.issuperset(nodes)
        for record in moving:
            nodes = [one for one in nodes if one != record.replaces] + [record.node]
        return PlannedSlice(index.id, number, tuple(nodes), entries, size, movable)


def _too_few(other: str = "") -> ConflictError:
    return ConflictError(
        f"no {other}indexer node is live that may have slices",
        problem_type="too-few-nodes",
        next_step="start another one, undrain one, or give one the role `index` (`keytide node list`)",
    )


def _wait(found: dict[str, str], who: str, words: str) -> None:
    """Note what somebody waits for: of several things the first, but rather another one than its turn."""
    if words and found.get(who, TURN) == TURN:
        found[who] = words


def _over(record: RebalanceRecord, now: int, detail: str) -> RebalanceRecord:
    return replace(record, state="DONE", finished_at=now, detail=detail)
