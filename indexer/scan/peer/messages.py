"""Reading slices: what one node asks another (and itself), as MessagePack over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from indexer.scan.peer.health import PeerHealth
from keytide.errors import CallerError, RetryableError
from keytide.model.entry import Entry as Entry
from keytide.model.timestamp import Timestamp

TIP: Final = -1
"""In place of a snapshot number: each slice's newest state."""

Number = Annotated[int, msgspec.Meta(ge=TIP, le=(1 << 63) - 1)]
UInt31 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""Decoding holds messages to these; what only a whole message shows is checked by `wellformed`."""

HOLDER: Final = "pages"
"""The name under which slices keep snapshots for page tokens; for a hold it is its id."""


class UnknownTaskError(RetryableError):
    """A node of another release is asked for what it cannot do, or does not understand."""

    problem_type = "node-unavailable"


class IndexUnknownHereError(RetryableError):
    """A node holds slices of an index that its metadata does not have (any more)."""

    problem_type = "index-not-ready"


class ReadSpan(msgspec.Struct, frozen=True, gc=False):
    """What of an index is read.

    Attributes:
        slices: slice numbers.
        spans: disjoint (low, high) spans in ascending order.
        after: per slice in `slices`, the entry key behind which to go on (in the direction of the read), b""
            for the start.
    """

    index: str
    slices: list[int]
    spans: list[tuple[bytes, bytes | None]]
    after: list[bytes]
    reverse: bool


class ReadPaging(msgspec.Struct, frozen=True, gc=False):
    """How much of it, for whom, and whether it goes on.

    Attributes:
        limit: entries per slice; 0 only counts.
        skip: entries to leave out before the first that is given (only of use when one slice is asked).
        lease_ms: when not 0 and a slice has more than it gives, keep the snapshot of all these slices for so
            long: a page token will most likely follow.
        in_use: this is not the first page.
        hold: id of the held snapshot that this read belongs to: its lease is renewed in any case.
        within_ms: how long the answer is waited for; 0 when that is not known.
        client: for whom it is (`indexer.scan.plan.leases`).
        room: bytes of keys and values that a slice gives, by the entry that exceeds them; 0 for any.
    """

    limit: int
    skip: int = 0
    lease_ms: int = 0
    in_use: bool = False
    hold: str = ""
    within_ms: int = 0
    client: str = ""
    room: int = 0


class ReadConsistency(msgspec.Struct, frozen=True, gc=False):
    """From which moment.

    Attributes:
        number, incarnation: the snapshot; `TIP` for the newest state of each slice.
        passed: of newest states: the snapshot number that a slice must have passed since its start; -1 for
            any.
        covers: of newest states: source partition -> offset that they must have reached.
    """

    number: int
    incarnation: int
    passed: int = -1
    covers: dict[int, int] = {}


class ReadShape(msgspec.Struct, frozen=True, gc=False):
    """Which entries, and what is made of them.

    Attributes:
        filter: JSON of the predicate that entries must satisfy (`keytide.definition.expression`), b"" for
            none.
        keys: only entries with one of these canonical keys; empty for all. (Apart from the filter, which is
            the same for many readers.)
        distinct: only the first entry of each key, in the direction of the read.
        keys_only: give entries without their values.
        examine: give nothing, but look whether every entry is one that can have been written; a slice with
            one that cannot is `DOUBTED`.
        task, body: instead of giving or counting entries, have this task (`indexer.scan.local.tasks`) work on
            each slice, with these arguments, which only it understands.
    """

    filter: bytes = b""
    distinct: bool = False
    keys_only: bool = False
    examine: bool = False
    task: str = ""
    body: bytes = b""
    keys: frozenset[bytes] = frozenset()


class ReadRequest(msgspec.Struct, frozen=True, gc=False):
    """Read from some slices of one index, all held by the node that is asked. Between nodes it goes as a
    `ReadMessage`."""

    span: ReadSpan
    paging: ReadPaging
    consistency: ReadConsistency
    shape: ReadShape = ReadShape()


class ReadMessage(msgspec.Struct, frozen=True, array_like=True):
    """A `ReadRequest` as nodes send it: flat, in the order in which its members came to be."""

    index: str
    number: Number
    incarnation: UInt31
    slices: list[UInt31]
    spans: list[tuple[bytes, bytes | None]]
    after: list[bytes]
    reverse: bool
    limit: UInt31
    lease_ms: UInt31 = 0
    in_use: bool = False
    examine: bool = False
    filter: bytes = b""
    distinct: bool = False
    skip: UInt31 = 0
    keys_only: bool = False
    hold: str = ""
    task: str = ""
    body: bytes = b""
    within_ms: int = 0
    client: str = ""
    passed: Number = -1
    covers: dict[UInt31, Annotated[int, msgspec.Meta(ge=0)]] = {}

    def __post_init__(self) -> None:
        if len(self.after) != len(self.slices):
            raise ValueError("one `after` per slice")

    @classmethod
    def of(cls, request: ReadRequest) -> ReadMessage:
        """The message of a request. (What has neither keys nor a bound in bytes is sent as ever.)"""
        members, keys, room = _in_order(request), request.shape.keys, request.paging.room
        return LaterReadMessage(*(*members, keys, room)) if keys or room else cls(*members)

    def request(self) -> ReadRequest:
        """The request that this is the message of."""
        keys, room = (self.keys, self.room) if isinstance(self, LaterReadMessage) else (frozenset[bytes](), 0)
        return ReadRequest(
            ReadSpan(self.index, self.slices, self.spans, self.after, self.reverse),
            ReadPaging(
                self.limit,
                self.skip,
                self.lease_ms,
                self.in_use,
                self.hold,
                self.within_ms,
                self.client,
                room,
            ),
            ReadConsistency(self.number, self.incarnation, self.passed, self.covers),
            ReadShape(self.filter, self.distinct, self.keys_only, self.examine, self.task, self.body, keys),
        )


class LaterReadMessage(ReadMessage, frozen=True, array_like=True):
    """A `ReadMessage` with what came later. Protocol version 4 knows of `keys`, which entries are compared
    with; a release that does not know of `room` passes it over, and gives all."""

    keys: frozenset[bytes] = frozenset()
    room: Annotated[int, msgspec.Meta(ge=0)] = 0


_in_order: Final = attrgetter(
    *("span.index", "consistency.number", "consistency.incarnation", "span.slices", "span.spans"),
    *("span.after", "span.reverse", "paging.limit", "paging.lease_ms", "paging.in_use", "shape.examine"),
    *("shape.filter", "shape.distinct", "paging.skip", "shape.keys_only", "paging.hold", "shape.task"),
    *("shape.body", "paging.within_ms", "paging.client", "consistency.passed", "consistency.covers"),
)
"""The members of a request as a message has them."""


class SliceReply(msgspec.Struct, frozen=True, array_like=True):
    """What one slice gives.

    Attributes:
        number: the snapshot read; -1 when the state is unnumbered (tip).
        entries: (entry key, value) in the direction of the read.
        more: whether there may be further entries behind the last.
        count: entries counted, when the request's limit was 0.
        gone: the slice does not hold the snapshot (it was dropped, or the slice restarted), or is not in
            order; nothing was read.
        newest: the newest snapshot number that the slice holds, -1 when none.
        incarnation: of the snapshot read; of a tip scan, of the history that its states belong to.
        state, reason: when it is gone because the slice is not in order: `LOST` (only a rebuild helps),
            `BUILDING`, `STOPPED`, and why; `DOUBTED` when what was read contradicts itself.
        reached: behind which key to go on; b"" for the last entry's. A read that filters, skips or goes from
            key to key looks at a bounded number of entries, and may find none for long.
        skipped: how many entries were left out of those that the request was to `skip`.
        examined: how many entries were looked at, where that is more than what is given.
        result: what the request's task has worked out.
    """

    slice: int
    number: int
    timestamp: Timestamp
    entries: list[tuple[bytes, bytes]]
    more: bool
    count: int
    gone: bool
    newest: int
    incarnation: int = -1
    state: str = ""
    reason: str = ""
    reached: bytes = b""
    skipped: int = 0
    examined: int = 0
    result: bytes = b""


class ReadReply(msgspec.Struct, frozen=True, array_like=True):
    """Answers for the request's slices, in its order; `leased` tells whether their snapshot is now kept."""

    slices: list[SliceReply]
    leased: bool = False


class LeaseRequest(msgspec.Struct, frozen=True, array_like=True):
    """Keep the snapshot of some slices of one index for at least `lease_ms` from now; with a `hold`, 0 gives
    it back. `in_use`, `hold` and `client` as in `ReadPaging`; `idle`: whoever had the hold is gone, and may
    come again."""

    index: str
    number: Number
    incarnation: UInt31
    slices: list[UInt31]
    lease_ms: UInt31
    in_use: bool
    hold: str = ""
    client: str = ""
    idle: bool = False


class LeaseReply(msgspec.Struct, frozen=True, array_like=True):
    """The slices of the request whose snapshot is not held (any more)."""

    missing: list[int]


encoder = msgspec.msgpack.Encoder()
read_decoder = msgspec.msgpack.Decoder[ReadMessage](LaterReadMessage)
read_reply_decoder = msgspec.msgpack.Decoder(ReadReply)
lease_decoder = msgspec.msgpack.Decoder(LeaseRequest)
lease_reply_decoder = msgspec.msgpack.Decoder(LeaseReply)


class OutOfTimeError(RetryableError):
    """The time that a request may take is over. No node is to blame for that."""

    problem_type = "query-timeout"
    status = 504


class HistoryAheadError(RetryableError):
    """A node knows of a rollback that voids what it is asked for, and the one that asks does not yet."""

    problem_type = "history-ahead"
    status = 503


class MalformedRequestError(CallerError):
    """Bytes from another node that are no request of this release."""

    problem_type = "invalid-request"
    status = 422

    def __init__(self, message: str) -> None:
        super().__init__(message, next_step="run the same release on all parts of the cluster")


class JointRead(msgspec.Struct, frozen=True, gc=False):
    """The first entries of some slices of this node, all in one: without filters and the like.

    Attributes:
        slices: in their order, if theirs is that of their entries.
        in_order: whether it is: they are read one after the other.
        spans, after: as in `ReadSpan`, of all slices; few.
        count: entries, over all slices.
        lease_ms, in_use, client: as in `ReadPaging`; the snapshot is kept if as many are found.
        keys: as in `ReadShape`: nothing is read where there are others in the spans.
    """

    index: str
    slices: tuple[int, ...]
    in_order: bool
    number: int
    incarnation: int
    spans: list[tuple[bytes, bytes | None]]
    after: bytes
    reverse: bool
    count: int
    lease_ms: int
    in_use: bool
    client: str
    keys: frozenset[bytes] = frozenset()


class JointSpans(msgspec.Struct, frozen=True, gc=False):
    """One entry at least of each document that has some in some spans of some slices of this node, which are
    of a spatial index, if they are few.

    Attributes:
        lows, highs: of each span, disjoint and ascending.
        most: entries that are looked at.
    """

    index: str
    slices: tuple[int, ...]
    number: int
    incarnation: int
    lows: list[bytes]
    highs: list[bytes]
    most: int


class JointPage(NamedTuple):
    """What a `JointRead` has found, in their order; or a `JointSpans`, slice by slice.

    Attributes:
        read: slice -> how many entries were looked at.
        replies: of the slices that were read, as far as their snapshots go: shared, not to be changed.
        leased: whether they keep the snapshot.
    """

    entries: list[Entry]
    read: dict[int, int]
    replies: Mapping[int, SliceReply]
    leased: bool


class SliceReader(Protocol):
    """Reads slices wherever they lie; `indexer.scan.gather.peers.Peers` asks real nodes.

    Every method raises `NodeUnavailableError`, or the error that the node answered with (`HistoryAheadError`
    as such).
    """

    @property
    def here(self) -> str:
        """Id of this node, whose slices are read without HTTP."""
        ...

    @property
    def health(self) -> PeerHealth:
        """What was seen of the other nodes."""
        ...

    def first_here(self, asked: JointRead) -> JointPage | None:
        """Of slices of this node, at once; None when they are to be read by `read_here`, which also tells
        what is the matter."""
        ...

    def within_here(self, asked: JointSpans) -> JointPage | None:
        """The same of all entries of some spans; None when they are too many, too."""
        ...

    async def read_here(self, request: ReadRequest) -> ReadReply: ...

    async def read(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        """Of another node."""
        ...

    async def lease(self, node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply: ...
