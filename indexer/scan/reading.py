"""Reading slices: what one node asks another (and itself), as MessagePack over HTTP."""

from __future__ import annotations

import msgspec

from keytide.timestamp import Timestamp

TIP = -1
"""In place of a snapshot number: each slice's newest state."""


class ReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """Read from some slices of one index, all held by the node that is asked.

    Attributes:
        number, incarnation: the snapshot; `TIP` for the newest state of each slice.
        slices: slice numbers.
        spans: disjoint (low, high) spans in ascending order.
        after: per slice in `slices`, the entry key behind which to go on (in the direction of the read), b""
        for the start.
        limit: entries per slice; 0 only counts.
        lease, lease_ms: when not empty, keep the snapshot for the holder of this name for so long.
    """

    index: str
    number: int
    incarnation: int
    slices: list[int]
    spans: list[tuple[bytes, bytes | None]]
    after: list[bytes]
    reverse: bool
    limit: int
    lease: str = ""
    lease_ms: int = 0


class SliceReply(msgspec.Struct, frozen=True, array_like=True):
    """What one slice gives.

    Attributes:
        number: the snapshot read; -1 when the state is unnumbered (tip).
        entries: (entry key, value) in the direction of the read.
        more: whether there may be further entries behind the last.
        count: entries counted, when the request's limit was 0.
        gone: the slice does not hold the snapshot (it was dropped, or the slice restarted); nothing was read.
        newest: the newest snapshot number that the slice holds.
    """

    slice: int
    number: int
    timestamp: Timestamp
    entries: list[tuple[bytes, bytes]]
    more: bool
    count: int
    gone: bool
    newest: int


class ReadReply(msgspec.Struct, frozen=True, array_like=True):
    """Answers for the request's slices, in its order."""

    slices: list[SliceReply]


encoder = msgspec.msgpack.Encoder()
request_decoder = msgspec.msgpack.Decoder(ReadRequest)
reply_decoder = msgspec.msgpack.Decoder(ReadReply)
