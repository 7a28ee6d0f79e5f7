"""Keys of a UNIQUE index that several documents have: suspects, and which of them are violations. Pure.

Theory of operation
===================
All entries with one key lie in one slice (the index is partitioned by its key), so a slice decides alone. At
every commit it is told which keys have several documents now (`put`), in which versions. A document *holds* a
key from the first numbered commit at which it was seen to, for as long as every version of it that is heard
brings that key again: then it has had the key all the time. (Unless the log cleaner took versions away before
they were heard: where offsets are missing, a new version begins anew.) A key is a *suspect* while it has
several documents, and a *violation* once two of them have held it since a number that is settled (R35,
`coordinator.unique.settlement`): both had it at one moment, when the source's ends were sampled. Whatever
else makes two documents show one key, such as a value that moves from one to the other in another partition,
is gone by then, and the suspect with it.

Nothing of this is stored. What a slice holds says which keys have several documents; a slice that was opened,
built or rolled back looks for them once (`indexer.unique.watch`), and since when they are held counts anew:
reports come a moment later, never wrongly. So no crash, fold or step back can leave anything stale.

Keys with NULL or MISSING in a part are equal to none, as in PostgreSQL; they never come here.

Bounds: so many keys are listed, with so many documents each. Those beyond are counted only. A key here is
what is told of it (`keytide.collation.told_key`), which has a limit in bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from keytide.wire.messages import DuplicateDocument, StabilityTimestamp, UniqueViolation

POINTS_KEPT: Final = 1024
"""Timestamps that settle more than the one before; one comes with each sample of the source, a second apart.
A slice that is further behind settles nothing until it is nearer."""
_NEW: Final = -1
"""Held since the next numbered commit."""


@dataclass(frozen=True, slots=True)
class UniqueLimits:
    """Bounds of one slice (reasons in `keytide.settings.settings`).

    Attributes:
        keys: that are listed.
        documents: listed of each.
    """

    keys: int = 1_000
    documents: int = 100


class SettledNumbers:
    """What each timestamp settles, as the leader says.

    Args:
        term: the newest term known; messages of lower ones are ignored.
    """

    __slots__ = ("_incarnation", "_numbers", "_settled", "_term")

    def __init__(self, term: int = 0) -> None:
        self._term = term
        self._incarnation = 0
        self._numbers: list[int] = []
        self._settled: list[int] = []

    def stamped(self, number: int, message: StabilityTimestamp) -> None:
        """A timestamp was heard, under this number."""
        if message.term < self._term or message.incarnation < self._incarnation:
            return
        begins, self._term = message.term > self._term, message.term
        if message.incarnation > self._incarnation:
            self._incarnation = message.incarnation
            self._numbers, self._settled = [], []
        if not self._numbers:
            if message.settled < 0:
                return
        elif number <= self._numbers[-1]:
            return
        elif message.settled <= self._settled[-1] and not begins:
            return  # contents of one leader only grow: what an earlier timestamp settles, this one does
        # (What a new leader issues may lie before what the last one did, and settles what it says itself.)
        self._numbers.append(number)
        self._settled.append(message.settled)
        if len(self._numbers) > POINTS_KEPT:
            del self._numbers[0], self._settled[0]

    def by(self, number: int, incarnation: int) -> int:
        """The number that timestamp `number` settles, -1 when none."""
        if incarnation != self._incarnation:
            return -1
        at = bisect_right(self._numbers, number)
        return self._settled[at - 1] if at else -1


class _Suspect:
    """A key with several documents.

    Attributes:
        documents: by id; those that are listed.
        since: id -> number from which on it holds the key, `_NEW` for the next one.
        more: there are further ones.
        stem: what its entry keys begin with.
    """

    __slots__ = ("documents", "more", "since", "stem")

    def __init__(self, stem: bytes) -> None:
        self.stem = stem
        self.documents: dict[bytes, DuplicateDocument] = {}
        self.since: dict[bytes, int] = {}
        self.more = False


class Suspects:
    """The keys of one slice that several documents have.

    Attributes:
        full: a key was met that cannot be listed: what is listed is not all there is.
        overflowed: the same, since this was cleared.
        unlisted: how many there were beyond those listed, when they were last counted.
        moved: documents have come to or gone from `documents` since this was cleared.
    """

    def __init__(self, limits: UniqueLimits) -> None:
        self._limits = limits
        self.full = False
        self.overflowed = False
        self.unlisted = 0
        self.moved = False
        self._keys: dict[bytes, _Suspect] = {}
        self._of: dict[bytes, set[bytes]] = {}
        self._new: set[bytes] = set()
        self._undecided: set[bytes] = set()
        self._violations: dict[bytes, int] = {}
        self._settled = -1
        self._listing: list[bytes] | None = None
        self._told = b""

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    @property
    def documents(self) -> Iterable[bytes]:
        """Ids of the documents that are listed."""
        return self._of.keys()

    @property
    def room(self) -> int:
        """How many more keys can be listed."""
        return max(0, self._limits.keys - len(self._keys))

    @property
    def violations(self) -> int:
        """How many keys are violations; those beyond the listed ones as they were last counted."""
        return len(self._violations) + self.unlisted

    @property
    def proven(self) -> int:
        """How many keys are listed as violations."""
        return len(self._violations)

    def stem(self, key: bytes) -> bytes:
        """What the entry keys of a listed key begin with."""
        return self._keys[key].stem

    def keys_of(self, docid: bytes) -> Iterable[bytes]:
        """The listed keys that a document has."""
        return self._of.get(docid, ())

    def put(
        self,
        key: bytes,
        documents: Sequence[DuplicateDocument],
        kept: Mapping[bytes, frozenset[bytes]],
        gaps: Mapping[int, int],
        more: bool = False,
        stem: bytes = b"",
    ) -> None:
        """Who has a key at the present commit.

        Args:
            documents: fewer than two: it is no suspect (any more).
            kept: id -> keys that every version heard since the last commit brings, of documents that were
                heard of. A version without them ends what the document holds.
            gaps: partition -> where the last offsets end that brought no record.
            more: there are further documents.
            stem: of the key.
        """
        if len(documents) < 2:
            self._drop(key)
            return
        known = self._keys.get(key)
        if known is None:
            if not self.room:
                self.full = self.overflowed = True
                return
            known = self._keys[key] = _Suspect(stem)
        before, since = known.documents, known.since
        known.documents, known.since, known.more = {}, {}, more
        for one in documents:
            old = before.get(one.id)
            known.documents[one.id] = one
            known.since[one.id] = since[one.id] if old and _holds(old, one, key, kept, gaps) else _NEW
            if one.id not in self._of:
                self._of[one.id], self.moved = set(), True
            self._of[one.id].add(key)
        for gone in before.keys() - known.documents.keys():
            self._leave(gone, key)
        self._violations.pop(key, None)
        self._undecided.add(key)
        self._new.add(key)
        self._listing = None

    def numbered(self, number: int, settled: int) -> None:
        """The present commit is snapshot `number`, whose timestamp settles `settled`."""
        touched, self._new = self._new, set()
        for key in touched & self._keys.keys():
            since = self._keys[key].since
            since.update({docid: number for docid, at in since.items() if at == _NEW})
        advanced, self._settled = settled != self._settled, settled
        for key in self._undecided if advanced else touched & self._undecided:
            held = sorted(at for at in self._keys[key].since.values() if at != _NEW)
            if len(held) > 1 and held[1] <= settled:
                self._violations[key] = held[1]
                self._listing = None
        self._undecided -= self._violations.keys()

    def violation(self, key: bytes) -> UniqueViolation:
        """One of the violations."""
        known = self._keys[key]
        documents = [one for _, one in sorted(known.documents.items())]
        return UniqueViolation(key, self._violations[key], documents, known.more)

    def listing(self) -> list[bytes]:
        """The keys that are violations, in order; another list when anything of them has changed."""
        if self._listing is None:
            self._listing = sorted(self._violations)
        return self._listing

    def some(self, keys: int, documents: int, size: int) -> list[UniqueViolation]:
        """The next few of the violations, cut to so many documents; in time all come.

        Args:
            size: of all keys together, in bytes; one key is told in any case (of LONGEST_TOLD at most).
        """
        listing = self.listing()
        at = bisect_right(listing, self._told)
        chosen = listing[at : at + keys]
        chosen += listing[: min(at, keys - len(chosen))]
        sizes = accumulate(map(len, chosen))
        chosen = [key for key, total in zip(chosen, sizes, strict=True) if key is chosen[0] or total <= size]
        self._told = chosen[-1] if chosen else b""
        found = [self.violation(key) for key in chosen]
        return [
            UniqueViolation(
                one.key, one.number, one.documents[:documents], one.more or len(one.documents) > documents
            )
            for one in found
        ]

    def _drop(self, key: bytes) -> None:
        known = self._keys.pop(key, None)
        if known is None:
            return
        for docid in known.documents:
            self._leave(docid, key)
        self._undecided.discard(key)
        if self._violations.pop(key, None) is not None:
            self._listing = None

    def _leave(self, docid: bytes, key: bytes) -> None:
        keys = self._of[docid]
        keys.discard(key)
        if not keys:
            del self._of[docid]
            self.moved = True


def _holds(
    old: DuplicateDocument,
    new: DuplicateDocument,
    key: bytes,
    kept: Mapping[bytes, frozenset[bytes]],
    gaps: Mapping[int, int],
) -> bool:
    """Whether a document has had a key all the time between two versions."""
    if old.partition != new.partition:
        return False
    if old.offset == new.offset:
        return True
    return key in kept.get(new.id, ()) and old.offset >= gaps.get(new.partition, 0)
