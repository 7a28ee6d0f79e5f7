"""What the system dictionary says of copies of slices beside those that an index's record names
(`keytide.catalog.records`): those that are being filled, that leave, that are to move."""

from __future__ import annotations

from typing import Literal

import msgspec

RebalanceState = Literal["RUNNING", "DONE", "CANCELLED"]


class LeavingCopy(msgspec.Struct, frozen=True):
    """A copy of a slice that counts no longer, and still answers pages whose tokens name it (R42).

    Attributes:
        copy: its id, "" of one that a build has filled.
        acknowledged: all endpoints were heard to have read that it leaves; it leases nothing that nobody has
            leased.
    """

    copy: str = ""
    acknowledged: bool = False


class CopyRecord(msgspec.Struct, frozen=True):
    """Key `copy/<id>`: a copy of a slice that is being filled from another one. A null value once it
    counts (then the index's record names it), or was given up.

    Attributes:
        id: never used again.
        index: id of a READY index.
        node: that it is filled on.
        source: the node whose copy it is filled from.
        need: first offset of the slice's mutation queue that it may need: the source's horizon, as reported
            before this was written. Only ever lowered.
        incarnation: of the keyspace, when it was begun.
        why: `lost` (the node had a copy, and lost it), `wanted` (the slice has fewer copies than it is to
            have), `moved` (it takes the place of another one).
        replaces: the node whose copy leaves when this one counts, "" for none.
        rebalance: the rebalance that it is of, "" for none.
        rate: bytes per second that it is filled with at most; 0: as its node's setting says.
    """

    id: str
    index: str
    slice: int
    node: str
    source: str
    need: int
    incarnation: int
    created_at: int
    why: Literal["lost", "wanted", "moved"] = "wanted"
    replaces: str = ""
    rebalance: str = ""
    rate: int = 0


class Move(msgspec.Struct, frozen=True):
    """One copy of a slice goes from a node to another one.

    Attributes:
        bytes: that it took on its disk when the move was planned.
    """

    index: str
    slice: int
    source: str
    target: str
    bytes: int = 0


class RebalanceRecord(msgspec.Struct, frozen=True):
    """Key `rebalance/<id>`: moves that were planned together, and are carried out a few at a time.

    Attributes:
        moves: all of them, in the order in which they begin.
        left: those that are not done, by their place in `moves`.
        dropped: how many came to nothing: what they were planned for is not there any more.
        detail: what came of it, in words.
        rate: of each of its copies (`CopyRecord.rate`).
    """

    id: str
    state: RebalanceState
    created_at: int
    moves: list[Move]
    left: list[int]
    dropped: int = 0
    finished_at: int = 0
    detail: str = ""
    rate: int = 0
