"""What moves copies, as far as commands and views ask it: records in the dictionary, and counts that a test
gives."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coordinator.catalog.registry import ConflictError
from coordinator.copies.moving import Moves, NoSuchNodeError
from coordinator.core.instructions import Instruction
from coordinator.jobs.registry import NoSuchJobError
from coordinator.leader import Leader
from keytide.catalog.copies import Move, RebalanceRecord, RebalanceState
from keytide.catalog.records import NodeRecord


class MovesDouble:
    """In the place of `Moves` of a leader.

    Attributes:
        on: node -> how many copies are on it.
        planned: what a rebalance would begin with.
    """

    def __init__(self, patch: pytest.MonkeyPatch, leader: Leader) -> None:
        self.on: dict[str, int] = {}
        self.planned: list[Move] = []
        self.waiting = leader.copies.moves.waiting
        self._dictionary = leader.dictionary
        for name in (
            "drain",
            "undrain",
            "copies_on",
            "sketch",
            "check_none_runs",
            "carry_out",
            "find",
            "cancel",
        ):
            patch.setattr(Moves, name, (lambda method: lambda _, *given: method(*given))(getattr(self, name)))

    def drain(self, node: str, now: int) -> tuple[NodeRecord, list[Instruction]]:
        record = self._node(node)
        record = record if record.drained_at else replace(record, drained_at=now)
        self._dictionary.put(record)
        return record, []

    def undrain(self, node: str) -> tuple[NodeRecord, list[Instruction]]:
        record = replace(self._node(node), drained_at=0)
        self._dictionary.put(record)
        return record, []

    def copies_on(self, node: str) -> int:
        return self.on.get(node, 0)

    def sketch(self) -> MovesDouble:
        return self

    def plan(self) -> list[Move]:
        return self.planned

    def check_none_runs(self) -> None:
        if any(one.state == "RUNNING" for one in self._dictionary.catalog.rebalances()):
            raise ConflictError("a rebalance is running")

    def carry_out(self, moves: list[Move], now: int) -> tuple[RebalanceRecord, list[Instruction]]:
        self.check_none_runs()
        state: RebalanceState = "RUNNING" if moves else "DONE"
        left = list(range(len(moves)))
        id_ = f"r{self._dictionary.number()}"
        record = RebalanceRecord(id_, state, now, moves, left, finished_at=0 if left else now)
        self._dictionary.put(record)
        return record, []

    def find(self, id_: str) -> RebalanceRecord:
        for one in self._dictionary.catalog.rebalances():
            if one.id == id_:
                return one
        raise NoSuchJobError(f"there is no rebalance {id_}")

    def cancel(self, id_: str, now: int) -> tuple[RebalanceRecord, list[Instruction]]:
        record = self.find(id_)
        if record.state != "RUNNING":
            raise ConflictError(f"rebalance {id_} is over")
        record = replace(record, state="CANCELLED", finished_at=now)
        self._dictionary.put(record)
        return record, []

    def _node(self, name: str) -> NodeRecord:
        record = self._dictionary.catalog.records.get(f"node/{name}")
        if not isinstance(record, NodeRecord):
            raise NoSuchNodeError(f"there is no node {name}", next_step="see `keytide node list`")
        return record
