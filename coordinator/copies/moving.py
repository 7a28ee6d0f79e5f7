"""What makes copies move: nodes that are drained, and rebalances. Pure (R42, R43).

Theory of operation. A move is a copy that is filled and names another one that it takes the place of
(`CopyRecord.replaces`): when it counts, the other one leaves (`coordinator.copies.copies`). Which moves there
are to be is in the dictionary, too: of a node that is drained every copy moves, and a rebalance has its list.
So a leader that takes over goes on with both.
"""

from __future__ import annotations

from coordinator.core.instructions import Instruction
from keytide.catalog.records import Move, NodeRecord, RebalanceRecord
from keytide.errors import CallerError


class NoSuchNodeError(CallerError):
    """No indexer node has that name."""

    problem_type = "node-not-found"
    status = 404


class NoSuchRebalanceError(CallerError):
    """No rebalance has that id."""

    problem_type = "job-not-found"
    status = 404


class Moves:
    """Drains nodes and rebalances.

    Attributes:
        waiting: node that is drained -> what its next copies wait for, in words.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}

    def drain(self, node: str, now: int) -> tuple[NodeRecord, list[Instruction]]:
        """Have all copies on a node move to others, and place no more on it. Again: nothing is changed.

        Raises:
            NoSuchNodeError: there is no node of that name.
            ConflictError: no other node is live that may have slices.
        """
        raise NotImplementedError

    def undrain(self, node: str) -> tuple[NodeRecord, list[Instruction]]:
        """A node may have slices again; what moves off it is given up, what has left it stays away.

        Raises:
            NoSuchNodeError: there is no node of that name.
        """
        raise NotImplementedError

    def copies_on(self, node: str) -> int:
        """How many copies lie on a node: those that count, that leave it, and of builds under way. A drain
        is done when there are none."""
        raise NotImplementedError

    def plan(self) -> list[Move]:
        """The moves that a rebalance would begin with now."""
        raise NotImplementedError

    def rebalance(self, now: int) -> tuple[RebalanceRecord, list[Instruction]]:
        """Begin a rebalance (it is DONE at once when there is nothing to move).

        Raises:
            ConflictError: one is running.
        """
        raise NotImplementedError

    def find(self, id_: str) -> RebalanceRecord:
        """A rebalance.

        Raises:
            NoSuchRebalanceError: there is none of that id.
        """
        raise NotImplementedError

    def cancel(self, id_: str, now: int) -> tuple[RebalanceRecord, list[Instruction]]:
        """End a rebalance: moves that are not done are given up, those that are stay.

        Raises:
            NoSuchRebalanceError: there is none of that id.
            ConflictError: it is over.
        """
        raise NotImplementedError
