"""What is wrong with a history of clients: pure, and knows nothing of Keytide but what it promises. After
Jepsen's bank, set and session tests.

Theory of operation. A document is a transfer: it takes an amount from one account and gives it to another
one, so an index has two postings of it, mostly in different slices, whose sum is zero. There is no
transaction over several documents in a source; what is promised is that a scan is *one* cut: at timestamp T
it holds exactly what the newest version of every document below T makes, in every slice. So at each snapshot
all amounts sum up to zero, and each document has both postings of one version: the newest that was
acknowledged below T.

A document has one writer, which waits for each acknowledgement before it writes the document again, and
leaves it alone for ever when none came. Such a last write may have happened or not: either is right.

There are several indexes on the topic, of different kinds (`indexes`); what was read of any of them is here
as postings, of all accounts or of some, so what is right does not depend on the kind. The indexes of a topic
share the numbers of their snapshots: under one number all are one cut, and a session goes back in none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

ANY_NODE: Final = -1
"""Number of the host of a read that any node may answer: it demands what its client wrote."""
TOLD = 20
"""Violations at most that `violations` gives: the first one is what counts."""
_FAULT, _GONE = 500, 410
_WAITS = frozenset({429, 502, 503, 504})
"""Answers to a read through any node: what it demands may take until a host is back."""


class Posting(NamedTuple):
    """What one version of a transfer does to one account."""

    id: str
    account: str
    amount: int
    version: int


Postings = frozenset[Posting]
NONE: Postings = frozenset()


@dataclass(frozen=True, slots=True)
class TransferWrite:
    """One version of a transfer that a client wrote; versions of a document count from 1.

    Attributes:
        postings: none for a delete.
        begun, ended: seconds on the clock of all clients; `ended` is None when no acknowledgement came.
        partition, offset: where it is, -1 when no acknowledgement came.
    """

    id: str
    version: int
    postings: Postings
    begun: float
    ended: float | None = None
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """One scan of an index, of the postings of all accounts or of some.

    Attributes:
        session: whose; reads of a session come one after the other.
        index: its name.
        node: number of the host whose node answered, or `ANY_NODE`.
        snapshot, offsets: its number, and its timestamp: partition -> next offset.
        accounts: whose postings it is to have, all of them; None for everybody's.
        at_least: what was demanded of `offsets`.
        last: demanded was all that there is, after all clients had ended.
    """

    session: str
    index: str
    node: int
    begun: float
    ended: float
    snapshot: int
    offsets: Mapping[int, int]
    postings: tuple[Posting, ...]
    accounts: frozenset[str] | None = None
    at_least: Mapping[int, int] = field(default_factory=dict)
    last: bool = False

    def part(self, postings: Postings) -> Postings:
        """Those of its accounts."""
        if self.accounts is None:
            return postings
        return frozenset(one for one in postings if one.account in self.accounts)


@dataclass(frozen=True, slots=True)
class RefusedRead:
    """A scan that failed, tries of the client included.

    Attributes:
        node: as of `SnapshotRead`.
        status: of HTTP.
    """

    node: int
    index: str
    begun: float
    ended: float
    status: int
    why: str


@dataclass(slots=True)
class Strike:
    """What a nemesis did, from its beginning until all was well again.

    Attributes:
        hosts: whose nodes may refuse scans meanwhile.
        bears: one copy of each slice and a majority of brokers are left, so no other node may.
    """

    what: str
    hosts: frozenset[int]
    bears: bool
    begun: float
    recovered: float = math.inf


@dataclass(slots=True)
class ClientHistory:
    """Everything that clients did and saw. Several threads may append.

    Attributes:
        indexes: names of all that are read; each has to be in the end.
    """

    indexes: tuple[str, ...]
    writes: list[TransferWrite] = field(default_factory=list)
    reads: list[SnapshotRead] = field(default_factory=list)
    refused: list[RefusedRead] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)


class Violation(NamedTuple):
    """Something that must not be; `kind` is one word for what it is."""

    kind: str
    story: str


def violations(history: ClientHistory) -> list[Violation]:
    """What is wrong, nothing when all is right; `TOLD` at most of each check.

    Kinds: `sum` (amounts do not sum up to zero), `twice`, `unasked` (of an account that was not asked for),
    `unwritten` (what nobody had written), `torn` (not all postings of one version), `lost`, `stale` (an older
    version than the cut has), `ahead` (a newer one), `snapshot` (one number, two answers), `session` (went
    back, or less than was demanded), `unfinished` (no read of the end of an index), `refused`.
    """
    checks = (_sums, _cuts, _snapshots, _sessions, _ends, _refusals)
    found: list[Violation] = []
    for check in checks:
        for one, _ in zip(check(history), range(TOLD), strict=False):
            found.append(one)
    return found


def _told(read: SnapshotRead) -> str:
    return f"{read.index} at snapshot {read.snapshot} by {read.session} at {read.begun:.3f} s"


def _sums(history: ClientHistory) -> Iterator[Violation]:
    for read in history.reads:
        total = sum(posting.amount for posting in read.postings)
        if total and read.accounts is None:
            yield Violation("sum", f"{_told(read)} sums up to {total}")
        for posting, times in Counter(read.postings).items():
            if times > 1:
                yield Violation("twice", f"{_told(read)} has {posting} {times} times")
            if read.accounts is not None and posting.account not in read.accounts:
                yield Violation("unasked", f"{_told(read)} has {posting}")


class _Document:
    """What was written of one document."""

    def __init__(self, writes: Iterable[TransferWrite]) -> None:
        ordered = sorted(writes, key=lambda one: one.version)
        self.versions = {one.version: one for one in ordered}
        self.known = [one for one in ordered if one.ended is not None]
        self.unknown = [one for one in ordered if one.ended is None]
        self._offsets = [one.offset for one in self.known]

    def newest(self, offsets: Mapping[int, int] | None) -> TransferWrite | None:
        """The last acknowledged version below a timestamp, of all for None."""
        if offsets is None or not self.known:
            return self.known[-1] if self.known else None
        at = bisect_left(self._offsets, offsets.get(self.known[0].partition, 0))
        return self.known[at - 1] if at else None


def _documents(history: ClientHistory) -> dict[str, _Document]:
    written: dict[str, list[TransferWrite]] = defaultdict(list)
    for write in history.writes:
        written[write.id].append(write)
    return {id_: _Document(writes) for id_, writes in written.items()}


def _cuts(history: ClientHistory) -> Iterator[Violation]:
    """Each answer is the cut that it says it is; the last ones have everything that was acknowledged."""
    documents = _documents(history)
    for read in history.reads:
        found: dict[str, set[Posting]] = defaultdict(set)
        for posting in read.postings:
            found[posting.id].add(posting)
        for id_ in documents.keys() | found.keys():
            kind = _wrong(documents.get(id_), frozenset(found.get(id_, ())), read)
            if kind:
                yield Violation(kind, f"{_told(read)} has of {id_}: {sorted(found.get(id_, ()))}")


def _wrong(document: _Document | None, found: Postings, read: SnapshotRead) -> str:
    """What is wrong with what a read has of a document, "" for nothing."""
    if document is None:
        return "unwritten"
    newest = document.newest(None if read.last else read.offsets)
    right = NONE if newest is None else read.part(newest.postings)
    if found == right or any(
        found == read.part(one.postings) and one.begun <= read.ended for one in document.unknown
    ):
        return ""
    if not found:
        return "lost"
    made = [document.versions.get(posting.version) for posting in found]
    for posting, write in zip(found, made, strict=True):
        if write is None or posting not in write.postings or write.begun > read.ended:
            return "unwritten"
    versions = {posting.version for posting in found}
    if len(versions) > 1 or found != read.part(document.versions[versions.pop()].postings):
        return "torn"
    return "ahead" if newest is None or next(iter(found)).version > newest.version else "stale"


def _snapshots(history: ClientHistory) -> Iterator[Violation]:
    """A number is one state of all indexes, whichever node answers."""
    first: dict[int, dict[frozenset[str] | None, tuple[SnapshotRead, Postings]]] = defaultdict(dict)
    for read in history.reads:
        shown = frozenset(read.postings)
        others = first[read.snapshot]
        for other, other_shown in others.values():
            if other.offsets != read.offsets:
                story = f"is at {read.offsets}, and at {other.offsets} is {_told(other)}"
            elif differ := other.part(shown) ^ read.part(other_shown):
                story = f"differs in {sorted(differ)[:4]} from {_told(other)}"
            else:
                continue
            yield Violation("snapshot", f"{_told(read)} {story}")
            break
        others.setdefault(read.accounts, (read, shown))


def _sessions(history: ClientHistory) -> Iterator[Violation]:
    sessions: dict[str, list[SnapshotRead]] = defaultdict(list)
    for read in history.reads:
        sessions[read.session].append(read)
        if _before(read.offsets, read.at_least):
            yield Violation("session", f"{_told(read)} is at {read.offsets}, demanded: {read.at_least}")
    for reads in sessions.values():
        for one, next_one in pairwise(sorted(reads, key=lambda read: read.begun)):
            if next_one.snapshot < one.snapshot or _before(next_one.offsets, one.offsets):
                yield Violation("session", f"{_told(next_one)} comes after {_told(one)}")


def _before(offsets: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Whether a timestamp lacks something of another one."""
    return any(offsets.get(partition, 0) < offset for partition, offset in other.items())


def _ends(history: ClientHistory) -> Iterator[Violation]:
    """Without a read of the end, nothing is known of what was lost last."""
    ended = max((write.ended or write.begun for write in history.writes), default=0.0)
    whole = {one.index for one in history.reads if one.last and one.accounts is None and one.begun >= ended}
    for index in history.indexes:
        if index not in whole:
            yield Violation("unfinished", f"no read of all of {index} after the last write")


def _refusals(history: ClientHistory) -> Iterator[Violation]:
    for refused in history.refused:
        meanwhile = [
            strike
            for strike in history.strikes
            if strike.begun <= refused.ended and refused.begun <= strike.recovered
        ]
        if not _excused(refused, meanwhile):
            during = ", ".join(strike.what for strike in meanwhile) or "nothing"
            by = "any host" if refused.node == ANY_NODE else f"host {refused.node + 1}"
            story = (
                f"{refused.index} by {by} from {refused.begun:.3f} to {refused.ended:.3f} s, during {during}"
            )
            yield Violation("refused", f"{story}: {refused.status} {refused.why}")


def _excused(refused: RefusedRead, meanwhile: Iterable[Strike]) -> bool:
    if refused.status == _GONE:  # one copy alone was found in time to keep the snapshot, and is lost
        return any(True for _ in meanwhile)
    if refused.node == ANY_NODE and refused.status in _WAITS:
        return True
    return any(
        refused.node in strike.hosts
        or (refused.node == ANY_NODE and strike.hosts)
        or (not strike.bears and refused.status != _FAULT)
        for strike in meanwhile
    )
