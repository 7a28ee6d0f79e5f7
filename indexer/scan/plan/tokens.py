"""Session and page tokens: MessagePack, signed with the cluster's secret, base64url. Pure.

Opaque to readers and useless on another cluster. A session token says for each keyspace which snapshot its
holder has seen; a held token names a snapshot that is kept for its holder; a page token names everything that
the next page needs, so that a page is answered by any node from the same snapshot.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from keytide.catalog.history import History
from keytide.errors import UNDECODABLE, CallerError, HistoryChangedError
from keytide.model.timestamp import Timestamp

_SIGNATURE_BYTES: Final = 12

Saw = tuple[int, ...]
"""What the holder has seen of one keyspace: number (-1 for none) and incarnation of the newest snapshot;
then, if it has read newest states (`tip`), their incarnation and, partition by partition, the offset that one
of them reached. (Flat, so that tokens of those who do not are as they were before there was this.)"""
Seen = dict[str, Saw]
"""By keyspace."""
Histories = Callable[[str], History]
"""The rollbacks of a keyspace, as far as this node knows."""


def tip_of(saw: Saw) -> tuple[int, Timestamp] | None:
    """Incarnation and timestamp of the newest states that were seen, None without any."""
    if len(saw) < 3:
        return None
    return saw[2], Timestamp.of({partition: offset for partition, offset in enumerate(saw[3:]) if offset})


def saw_tip(incarnation: int, timestamp: Timestamp) -> Saw:
    """What the reader of a tip has seen.

    Args:
        timestamp: the earliest that covers all states that were read.
    """
    partitions = max(timestamp.places, default=-1) + 1
    return (-1, incarnation, incarnation, *map(timestamp.offset, range(partitions)))


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Base of all tokens; each kind has a tag of its own."""


class SessionToken(Token, frozen=True, tag="s"):
    """What its holder has seen."""

    seen: Seen


class PageToken(Token, frozen=True, tag="p"):
    """Where a scan goes on.

    Attributes:
        index: index id.
        number, incarnation: the snapshot that all pages come from.
        fresh_at: from when its staleness counts (ms), 0 when unknown.
        spans: (low, high) entry-key spans of the whole scan.
        nodes: (node id, its slices): the copies that keep the snapshot; of a slice with several the one
            that is asked first comes first.
        after: entry key of the last row given; the next page begins behind it in the scan's direction.
        seen: what the session had seen with the first page.
        filter, distinct: as `Target` has them.
        offset: rows that are still to be left out.
        hold, lease_ms: of the held snapshot that is read, "" and 0 when it is none.
        validate: whether rows are compared with a primary.
    """

    index: str
    number: int
    incarnation: int
    fresh_at: int
    spans: list[tuple[bytes, bytes | None]]
    nodes: list[tuple[str, list[int]]]
    after: bytes
    reverse: bool
    limit: int
    columns: list[str] | None
    seen: Seen
    filter: bytes = b""
    distinct: bool = False
    offset: int = 0
    hold: str = ""
    lease_ms: int = 0
    validate: bool = False
    in_order: int = 0


class KeyedPageToken(PageToken, frozen=True, tag="p"):
    """A page token that says, too, which keys the entries must have one of. (Without, it is a `PageToken`.)

    Attributes:
        keys: canonical keys; empty for all entries.
    """

    keys: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, token: PageToken, keys: frozenset[bytes]) -> PageToken:
        """A token with these keys."""
        if not keys and type(token) is PageToken:
            return token
        members = msgspec.structs.astuple(token)[: len(PageToken.__struct_fields__)]
        return cls(*(*members, keys)) if keys else PageToken(*members)


class HeldToken(Token, frozen=True, tag="h"):
    """A held snapshot.

    Attributes:
        index: index id.
        hold: under which id its lease goes.
        number, incarnation, fresh_at: the snapshot, as in `PageToken`.
        nodes: (node id, its slices): the copies that hold it, of all slices, as in `PageToken`.
        lease_ms: how long it is held after its last use.
        seen: what the session had seen when it was taken.
    """

    index: str
    hold: str
    number: int
    incarnation: int
    fresh_at: int
    nodes: list[tuple[str, list[int]]]
    lease_ms: int
    seen: Seen


def copies_of(nodes: Sequence[tuple[str, Sequence[int]]]) -> dict[int, list[str]]:
    """Slice -> the nodes that a token names for it."""
    copies: dict[int, list[str]] = {}
    for node, slices in nodes:
        for number in slices:
            copies.setdefault(number, []).append(node)
    return copies


def by_node(copies: Mapping[int, Sequence[str]]) -> list[tuple[str, list[int]]]:
    """What a token names for slices with these copies: the first of each, then the second of each, and so on.
    (Releases that know of one copy take the last one that is named, which keeps the snapshot, too.)"""
    each = list(copies.values())
    if each and each.count(each[0]) == len(each):  # (so of most: all slices are at the same nodes)
        return [(node, list(copies)) for node in each[0]]
    ranks: dict[tuple[int, str], list[int]] = {}
    for number, nodes in copies.items():
        for rank, node in enumerate(nodes):
            ranks.setdefault((rank, node), []).append(number)
    return [(node, slices) for (_, node), slices in sorted(ranks.items(), key=lambda one: one[0][0])]


TokenT = TypeVar("TokenT", bound=Token)
_encoder = msgspec.msgpack.Encoder()


class InvalidTokenError(CallerError):
    """Not a token of this cluster."""

    problem_type = "invalid-token"
    status = 422


def sign(token: Token, secret: bytes) -> str:
    """The token as the string that readers hold."""
    body = _encoder.encode(token)
    return base64.urlsafe_b64encode(_signature(body, secret) + body).decode().rstrip("=")


def verify(text: str, kind: type[TokenT], secret: bytes) -> TokenT:
    """The token in `text`.

    Raises:
        InvalidTokenError: forged, damaged, of another kind or of another cluster.
    """
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if hmac.compare_digest(signature, _signature(body, secret)):
            return msgspec.msgpack.decode(body, type=kind)
    except (binascii.Error, ValueError, *UNDECODABLE):
        pass
    raise InvalidTokenError(
        "the token was not made by this cluster, or is damaged",
        next_step="leave the token out to start a new session or scan",
    )


def newest(one: Seen, other: Seen, histories: Histories) -> Seen:
    """What has been seen by the two together (Monotonic). Of one incarnation that is the larger number; a
    later incarnation outweighs any number, unless the older one is void: that is kept until its holder is
    told. Of tips it is what covers both."""
    seen = dict(one)
    for keyspace, saw in other.items():
        held = seen.get(keyspace)
        if held is None:
            seen[keyspace] = saw
            continue
        history = histories(keyspace)
        earlier, later = sorted((held[:2], saw[:2]), key=lambda saw: (saw[0] >= 0, saw[1], saw[0]))
        told = earlier[0] < 0 or earlier[1] == later[1] or history.number_holds(*earlier)
        seen[keyspace] = (*(later if told else earlier), *_newest_tip(held, saw, history))
    return seen


def _newest_tip(one: Saw, other: Saw, history: History) -> Saw:
    """The part of tips in what two have seen together."""
    tips = sorted((tip for tip in (tip_of(one), tip_of(other)) if tip is not None), key=lambda tip: tip[0])
    if len(tips) == 2:
        (before, earlier), (now, later) = tips
        if before == now or history.holds(earlier, before):
            tips = [(now, later.merge_max(earlier))]
    return saw_tip(*tips[0])[2:] if tips else ()


def check_history(seen: Saw | None, history: History) -> None:
    """Raise `HistoryChangedError` if what a session saw was rolled back.

    Args:
        seen: what the session has seen of the keyspace; None for nothing.
        history: of the keyspace.
    """
    if seen is None:
        return
    tip = tip_of(seen)
    if not history.number_holds(*seen[:2]):
        what = f"snapshot {seen[0]}"
    elif tip is not None and not history.holds(tip[1], tip[0]):
        what = "some of the newest states"
    else:
        return
    raise HistoryChangedError(
        f"the source lost records: {what}, which the session has seen, was rolled back",
        next_step="read again what depends on it, then go on without the session token",
    )


def _signature(body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256")[:_SIGNATURE_BYTES]
