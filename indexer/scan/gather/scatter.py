"""Scattering: one request to every node that is needed, for slices of one index at one snapshot.

Everything that reads slices goes through `ask`: entries (`gather`), and with `ask_task` whatever else is
worked out on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from indexer.scan.gather.failover import CopyRequests
from indexer.scan.peer.messages import (
    TIP,
    ReadConsistency,
    ReadPaging,
    ReadReply,
    ReadRequest,
    ReadShape,
    ReadSpan,
    SliceReader,
    SliceReply,
)
from indexer.scan.plan.errors import SnapshotMissingError
from indexer.scan.plan.selection import Shape, Stamp, slices_ahead
from indexer.scan.plan.tokens import PageToken, Saw, Seen, by_node, copies_of, tip_of
from keytide.collation import Span
from keytide.http.node_protocol import NodeUnavailableError
from keytide.model.timestamp import Timestamp

CLIENT: Final[ContextVar[str]] = ContextVar("client", default="")
"""For whom the request that is being answered is: what is kept for it counts as this client's."""


def monotonic() -> float:
    """Seconds, by the clock of the event loop that answers the request: of no meaning but for waits."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Target:
    """What to read, where, and for how long to wait. Made on the event loop, whose clock it goes by.

    Attributes:
        nodes: slice -> id of the node to ask.
        others: slice -> nodes with further copies of it, to ask when that one does not do.
        leaving: slice -> nodes whose copies count no longer, to ask when none of those answers.
        lease_ms: how long the snapshot is to be kept if there is a next page, 0 for not at all.
        in_use: this is not the first page.
        timeout_s: how long all of it may take, from now on.
        until: the end of that (`monotonic`, which is also that of `time` on real event loops).
        filter: JSON of the predicate that entries must satisfy, b"" for none.
        keys: the canonical keys that entries must have one of; empty for all.
        distinct: one entry per key.
        hold: id of the held snapshot that this is, "" when it is none.
        in_order: how the order of slices is that of their entries: 1 the same, -1 the other way round, 0 not.
        saw: of newest states: what the reader's session has seen of the keyspace, which they must not be
            behind.
        elsewhere: slices that another copy has answered for, and goes on answering for: shared by all reads
            of this target, and noted by them.
    """

    index: str
    number: int
    incarnation: int
    spans: Sequence[Span]
    nodes: Mapping[int, str]
    timeout_s: float
    lease_ms: int = 0
    in_use: bool = False
    filter: bytes = b""
    distinct: bool = False
    hold: str = ""
    in_order: int = 0
    until: float = 0.0
    saw: Saw = ()
    others: Mapping[int, Sequence[str]] = field(default_factory=dict)
    leaving: Mapping[int, Sequence[str]] = field(default_factory=dict)
    elsewhere: dict[int, str] = field(default_factory=dict)
    keys: frozenset[bytes] = frozenset()

    def __post_init__(self) -> None:
        if not self.until:
            object.__setattr__(self, "until", monotonic() + self.timeout_s)

    @classmethod
    def of(
        cls,
        token: PageToken,
        shape: Shape,
        saw: Saw,
        timeout_s: float,
        lease_ms: int,
        keys: frozenset[bytes] = frozenset(),
    ) -> Target:
        """What a later page reads. Slices that lie behind it are not asked any more.

        Args:
            shape: of the index.
            saw: what the session has seen of its keyspace, the token's pages included.
            lease_ms: how long its snapshot is kept, unless it is a held one.
            keys: the target's.
        """
        copies = copies_of(token.nodes)
        nodes = {number: there[0] for number, there in copies.items()}
        if token.in_order:
            ahead = slices_ahead(shape, token.after, token.reverse)
            # A token means that there is more: when none of its slices lies ahead, the splits are not those
            # that it was made under (the index was built anew), and any slice can tell that the snapshot is
            # gone.
            nodes = {number: node for number, node in nodes.items() if number in ahead} or nodes
        return cls(
            token.index,
            token.number,
            token.incarnation,
            [Span(low, high) for low, high in token.spans],
            nodes,
            timeout_s,
            token.lease_ms or lease_ms,
            True,
            token.filter,
            token.distinct,
            token.hold,
            token.in_order,
            saw=saw,
            others={number: there[1:] for number, there in copies.items() if there[1:]},
            keys=keys,
        )

    def page_token(
        self,
        stamp: Stamp,
        seen: Seen,
        kept: Mapping[int, Sequence[str]],
        *,
        after: bytes,
        reverse: bool,
        limit: int,
        offset: int,
        columns: Sequence[str] | None = None,
        validate: bool = False,
    ) -> PageToken:
        """What the page behind a first page of this needs, beside the keys.

        Args:
            seen: what the session has seen with the first page.
            kept: slice -> the copies that keep the snapshot.
            after, offset: where it goes on, and what of the offset is left.
        """
        return PageToken(
            self.index,
            stamp.number,
            stamp.incarnation,
            stamp.fresh_at,
            [(span.low, span.high) for span in self.spans],
            by_node(kept),
            after,
            reverse,
            limit,
            list(columns) if columns is not None else None,
            seen,
            self.filter,
            self.distinct,
            offset,
            self.hold,
            self.lease_ms if self.hold else 0,
            validate,
            self.in_order,
        )

    @property
    def left_s(self) -> float:
        """How long a node may be waited for: at least a moment, for what is asked in vain is not told apart
        from what was not asked."""
        return max(0.001, min(self.timeout_s, self.until - monotonic()))

    @property
    def within_ms(self) -> int:
        """How long a node that is asked now may take: its answer that it had too little time is to arrive in
        time."""
        left_s = self.left_s
        return max(1, int((left_s - min(0.1, left_s / 10)) * 1000))

    def node_of(self, number: int) -> str:
        """Where a slice is read now."""
        return self.elsewhere.get(number) or self.nodes[number]

    def copies(self, number: int) -> list[str]:
        """All copies of a slice that may be asked, the one that is read now first."""
        first, there = self.node_of(number), [self.nodes[number], *self.others.get(number, ())]
        return [first, *(node for node in there if node != first)]

    def check(self, node: str, reply: SliceReply) -> None:
        """Raise unless a slice has answered from this snapshot.

        Raises:
            SnapshotMissingError: it does not hold that.
            NodeUnavailableError: the node has answered from another one.
        """
        if reply.gone:
            raise SnapshotMissingError(reply.slice, node, reply.newest, reply.state, reply.reason)
        if reply.incarnation != self.incarnation or (reply.number != self.number != TIP):
            raise NodeUnavailableError(
                f"node {node} answered from snapshot {reply.number} of incarnation {reply.incarnation}, "
                f"and was asked for {self.number} of {self.incarnation}",
                node=node,
                next_step="run the same release on every node",
            )

    def at(self, copies: Mapping[int, Sequence[str]]) -> Target:
        """The same, read at these copies, and nothing read yet."""
        return replace(
            self,
            nodes={number: copies[number][0] for number in self.nodes},
            others={number: copies[number][1:] for number in self.nodes if len(copies[number]) > 1},
            elsewhere={},
        )

    def by_node(self, slices: Iterable[int] | None = None) -> dict[str, list[int]]:
        """Node -> the slices that are read there, of `slices` or all."""
        grouped: dict[str, list[int]] = {}
        places = {**self.nodes, **self.elsewhere} if self.elsewhere else self.nodes
        for number in self.nodes if slices is None else slices:
            grouped.setdefault(places[number], []).append(number)
        return grouped


@dataclass(slots=True)
class SliceAnswers:
    """What slices have answered, while it grows. Whoever asks them for something of its own adds to it.

    Attributes:
        read: slice -> entries read there.
        replies: slice -> its last reply, without entries of use.
        leased: slice -> the nodes that keep the snapshot under the target's lease.
        rounds: how often slices were asked.
    """

    read: dict[int, int] = field(default_factory=dict)
    replies: dict[int, SliceReply] = field(default_factory=dict)
    leased: dict[int, set[str]] = field(default_factory=dict)
    rounds: int = 0

    def timestamps(self) -> list[Timestamp]:
        """Of each slice's snapshot."""
        return [reply.timestamp for reply in self.replies.values()]

    def kept_everywhere(self, target: Target) -> bool:
        """Whether every slice keeps the snapshot, and has no other copy."""
        return not target.others and len(self.leased) == len(target.nodes)

    def kept(self, target: Target) -> dict[int, list[str]]:
        """Slice -> the copies that keep the snapshot, the one that is read first: all that are known of one
        that was kept before."""
        if not target.others and not target.elsewhere:
            return {number: [node] for number, node in target.nodes.items()}  # (most have no copies)
        if target.in_use:
            return {number: target.copies(number) for number in target.nodes}
        return {
            number: [one for one in target.copies(number) if one in self.leased.get(number, ())]
            or [target.node_of(number)]
            for number in target.nodes
        }

    def take(self, node: str, reply: SliceReply, *, leased: bool) -> None:
        """A slice has answered."""
        self.replies[reply.slice] = reply
        if leased:
            self.leased.setdefault(reply.slice, set()).add(node)


AskedT = TypeVar("AskedT", bound=SliceAnswers)


@dataclass(frozen=True, slots=True)
class Agreed(Generic[AskedT]):
    """A gathered read of one agreed snapshot, and the story of the choice."""

    stamp: Stamp
    target: Target
    gathered: AskedT
    waited_ms: int
    waited_for: list[str]


async def ask(
    target: Target, nodes: SliceReader, requests: Mapping[str, ReadRequest], asked: SliceAnswers
) -> list[SliceReply]:
    """Send every node its request, and note in `asked` what came. Of a slice with several copies another one
    is asked when one does not answer, or does not hold the snapshot (R36).

    Args:
        requests: node -> what to ask it, all of the target's snapshot.

    Raises:
        SnapshotMissingError: a slice does not hold the snapshot.
        RetryableError: a node did not answer.
    """
    asked.rounds += 1
    several = bool(target.others or target.leaving)
    if several:
        # Of newest states a slice that has answered already stays: another copy may be behind what was shown.
        stay = asked.replies if target.number == TIP else ()
        further = {number: target.copies(number)[1:] for number in target.nodes if number not in stay}
        leaving = {number: there for number, there in target.leaving.items() if number not in stay}
        answers = await CopyRequests(target, nodes, requests, further, leaving).run()
    else:
        replies = await _ask_all(nodes, requests, target.left_s)
        answers = [(node, reply.leased, one) for node, reply in replies.items() for one in reply.slices]
    found: list[SliceReply] = []
    for node, leased, one in answers:
        if not several:
            target.check(node, one)
        elif node != target.node_of(one.slice):
            target.elsewhere[one.slice] = node
        asked.take(node, one, leased=leased)
        found.append(one)
    return found


async def ask_task(
    target: Target, nodes: SliceReader, task: str, body: bytes, asked: SliceAnswers
) -> dict[int, bytes]:
    """Have a task (`indexer.scan.local.tasks`) work on every slice of the target, once.

    Returns:
        Slice -> what the task has worked out there. (`asked.replies` has the rest of the replies.)

    Raises:
        As `ask`.
    """
    requests = requests_of(target, target.nodes, {}, task=task, body=body)
    return {one.slice: one.result for one in await ask(target, nodes, requests, asked)}


def requests_of(
    target: Target,
    slices: Iterable[int],
    after: Mapping[int, bytes],
    *,
    reverse: bool = False,
    limit: int = 0,
    examine: bool = False,
    skip: int = 0,
    room: int = 0,
    keys_only: bool = False,
    task: str = "",
    body: bytes = b"",
) -> dict[str, ReadRequest]:
    """What to ask every node that is needed for some slices of a target (`ask`).

    Args:
        after: slice -> behind which key to go on; from the start where it says nothing.
        limit, skip, room: as in `ReadPaging`.
        examine, keys_only, task, body: as in `ReadShape`.
    """
    spans = [(span.low, span.high) for span in target.spans]
    saw = target.saw if target.number == TIP else ()
    tip, lease_ms, hold = tip_of(saw), target.lease_ms, target.hold
    paging = ReadPaging(limit, skip, lease_ms, target.in_use, hold, target.within_ms, CLIENT.get(), room)
    consistency = ReadConsistency(
        target.number,
        target.incarnation,
        saw[0] if saw else -1,
        tip[1].offsets() if tip is not None else {},
    )
    shape = ReadShape(target.filter, target.distinct, keys_only, examine, task, body, target.keys)
    return {
        node: ReadRequest(
            ReadSpan(target.index, numbers, spans, [after.get(number, b"") for number in numbers], reverse),
            paging,
            consistency,
            shape,
        )
        for node, numbers in target.by_node(slices).items()
    }


async def _ask_all(
    nodes: SliceReader, requests: Mapping[str, ReadRequest], timeout_s: float
) -> dict[str, ReadReply]:
    """All nodes' replies. Other nodes work while this one reads its own slices."""
    others = [node for node in requests if node != nodes.here]
    tasks = [asyncio.ensure_future(nodes.read(node, requests[node], timeout_s)) for node in others]
    try:
        replies = {}
        if nodes.here in requests:
            if tasks:
                await asyncio.sleep(0)  # let the requests go out first
                for task in filter(asyncio.Future.done, tasks):
                    task.result()  # (it may be none that is asked here)
            replies[nodes.here] = await nodes.read_here(requests[nodes.here])
        replies.update(zip(others, await asyncio.gather(*tasks), strict=True) if tasks else ())
        return replies
    finally:
        for task in tasks:
            task.cancel()
