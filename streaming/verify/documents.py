"""Looking at documents one by one: of buckets that differ, that share a key, or that had changed meanwhile.

Theory of operation
===================
The source is read for the chosen documents alone, up to its end, so that it shows what came after the
snapshot; slices give their rows of them; each document is judged (`comparing`). A group is bounded: so is
what the driver holds. Once the limit of differences is reached, the rest is counted as not examined: an index
that is wrong everywhere is built anew, not listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import msgspec

from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.wire import digests
from keytide.wire.columns import hashes_of
from keytide.wire.digests import DuplicateKey
from streaming.slices.pins import Pin, SliceKey
from streaming.verify.core.comparing import (
    CHANGES_TOO_FAST,
    NOTHING,
    Evidence,
    SourceDocument,
    indexed_documents_of,
    is_proven,
    judge,
    source_documents_of,
)
from streaming.verify.core.difference import NOT_EXAMINED, Difference, DifferenceClass, IndexedDocument
from streaming.verify.core.newest import IndexPlan, decode, joined, reduced
from streaming.verify.slices import SliceClient
from streaming.verify.source import KafkaSource, SourceRanges, SourceReader
from streaming.verify.tasks import VerifyWork

GROUP_DOCUMENTS: Final = 50_000
"""With entries, judged at once: what the driver holds of them."""
GROUP_VERSIONS: Final = 500_000
"""Of the source, at once: with entries or, as most are where an index is partial, without."""
ROUNDS: Final = 4
"""Newer snapshots at which what could not be decided is judged again."""


class IndexOutcome(msgspec.Struct):
    """What was found of one index.

    Attributes:
        entries: that it has at the snapshot.
        unproven: entries whose version lies below the source's first offset, or in the table that the build
            began with: the source says nothing of them.
        buckets: of document ids that differed.
        not_examined: of these, left when the limit of differences was reached.
        unlisted: differences that were found beyond that limit.
        counts: class -> how many were found.
    """

    index: str
    entries: int = 0
    unproven: int = 0
    buckets: int = 0
    not_examined: int = 0
    unlisted: int = 0
    counts: dict[str, int] = {}


@dataclass
class VerificationResult:
    """What a verification found.

    Attributes:
        documents: records read.
        differences: up to the limit.
    """

    pin: Pin
    indexes: dict[str, IndexOutcome]
    documents: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Class -> how many, over all indexes; what the source says nothing of is UNPROVABLE. And how many
        buckets were NOT_EXAMINED: what nobody has looked at is not right."""
        total: dict[str, int] = {}
        for outcome in self.indexes.values():
            left = {NOT_EXAMINED: outcome.not_examined} if outcome.not_examined else {}
            for kind, count in (outcome.counts | left).items():
                total[kind] = total.get(kind, 0) + count
        return dict(sorted(total.items()))


@dataclass(frozen=True)
class VerificationContext:
    """What a verification works with.

    Attributes:
        keyspace: the topic.
        indexes: their records, by id.
        slices: asks the nodes.
        source: asks Kafka.
        limit: differences that are listed.
        origins: whether a build of one of the indexes began with a table.
        tell: called with what is done now, in words, and how much of the whole (0 to 1).
        stopped: asked now and then.
    """

    keyspace: str
    indexes: tuple[IndexRecord, ...]
    slices: SliceClient
    source: KafkaSource
    limit: int
    origins: bool = False
    tell: Callable[[str, float], None] = lambda _, __: None
    stopped: Callable[[], bool] = lambda: False

    @cached_property
    def plans(self) -> tuple[IndexPlan, ...]:
        """What tasks must know of the indexes."""
        return tuple(IndexPlan(one.id, Partitioning.of(one.definition, one.splits)) for one in self.indexes)

    @cached_property
    def definitions(self) -> tuple[tuple[str, bytes], ...]:
        """Index id -> its definition as JSON, in the same order."""
        return tuple((one.id, msgspec.json.encode(one.definition)) for one in self.indexes)

    def starts(self) -> dict[int, int]:
        """Source partition -> from where index and source are compared: the first offset that is there, but
        not below a table that the index began with. Of the records that it stands for some may be there
        still; the index has its rows in their place."""
        taken = self.slices.tables_taken_at()
        return {
            partition: max(start, taken.get(partition, 0))
            for partition, start in self.source.earliest().items()
        }


@dataclass
class DocumentComparison:
    """Looks at documents one by one.

    Attributes:
        reader: of the source.
        work: of the reading before.
        outcome: gets the differences.
        began: when the reading began (`time.monotonic`).
    """

    context: VerificationContext
    reader: SourceReader
    work: VerifyWork
    outcome: VerificationResult
    began: float
    _undecided: dict[str, set[bytes]] = field(default_factory=dict)
    _suspects: dict[tuple[str, bytes], object] = field(default_factory=dict)
    _sharers: dict[tuple[str, bytes], object] = field(default_factory=dict)
    _shared: dict[tuple[str, bytes], set[bytes]] = field(default_factory=dict)

    @property
    def _full(self) -> bool:
        return len(self.outcome.differences) >= self.context.limit

    def judge_buckets(self, found: Mapping[str, Mapping[int, int]], documents: int) -> None:
        """Judge the documents of buckets that differ, group by group, until the limit is reached; the source
        has so many `documents` in a bucket, about."""
        most = max(1, GROUP_VERSIONS // max(1, documents))
        sizes: dict[int, int] = {}
        for mine in found.values():
            for bucket, size in mine.items():
                sizes[bucket] = sizes.get(bucket, 0) + size
        left = sorted(sizes)
        while left and not self._full:
            group: list[int] = []
            size = 0
            while left and (not group or size + sizes[left[0]] <= GROUP_DOCUMENTS) and len(group) < most:
                size += sizes[left[0]]
                group.append(left.pop(0))
            self.context.tell(f"looking at {len(group) + len(left)} buckets that differ", 0.92)
            wanted = {index: sorted(set(group) & mine.keys()) for index, mine in found.items()}
            self._judge(self.outcome.pin, wanted, {})
            if sum(map(len, self._undecided.values())) >= self.context.limit:
                self.judge_undecided()  # (what waits is held in memory)
        for index, mine in found.items():
            self.outcome.indexes[index].not_examined = len(set(left) & mine.keys())

    def judge_duplicates(self, duplicates: Sequence[tuple[str, DuplicateKey]]) -> None:
        """Judge documents that share a key: it counts when their newest versions do, and nothing came
        later."""
        for index, one in duplicates[: self.context.limit]:
            self._shared.setdefault((index, one.key), set()).update(one.ids)
        for index, _ in duplicates[self.context.limit :]:
            self.outcome.indexes[index].unlisted += 1
        self._judge_shared(self.outcome.pin)

    def judge_undecided(self) -> None:
        """Judge what could not be decided at newer snapshots."""
        for _ in range(ROUNDS):
            if not (self._undecided or self._shared):
                return
            undecided, self._undecided = self._undecided, {}
            self.context.tell("looking again at what has changed since", 0.97)
            ends = Timestamp.of(self.context.source.ends(), self.outcome.pin.timestamp.topic_id)
            pin = self.context.slices.pin(self.context.stopped, ends)
            try:
                if undecided:
                    self._judge(pin, {}, undecided)
                self._judge_shared(pin)
            finally:
                self.context.slices.release(pin)
        undecided, self._undecided = self._undecided, {}
        for index, ids in sorted(undecided.items()):
            for docid in sorted(ids):
                self._suspects.pop((index, docid), None)
                self._add(Difference(DifferenceClass.UNPROVABLE, index, docid, reason=CHANGES_TOO_FAST))
        shared, self._shared = self._shared, {}
        for (index, _), some in sorted(shared.items()):
            first, *others = sorted(some)
            reason = f"{len(some)} documents may have one key: {CHANGES_TOO_FAST}"
            self._add(
                Difference(DifferenceClass.UNPROVABLE, index, first, others=tuple(others), reason=reason)
            )

    def judge_copies(self, apart: Iterable[tuple[SliceKey, str, list[int]]]) -> None:
        """Name the documents of which copies of a slice hold something else, group by group of buckets until
        the limit is reached.

        Args:
            apart: as `SliceClient.apart` has them.
        """
        pin = self.outcome.pin
        entries = max(1, sum(pin.entries.values()))
        size = max(1, GROUP_DOCUMENTS * (1 << self.work.bits) // entries)
        for place, node, buckets in apart:
            outcome, asked = self.outcome.indexes[place[0]], pin.nodes[place]
            for done in range(0, len(buckets), size):
                group = buckets[done : done + size]
                one = None if self._full else self._copy(pin.on(place, asked), place, group)
                try:
                    other = None if one is None else self._copy(pin.on(place, node), place, group)
                except RetryableError:  # (it has restarted, say: its sums have told that it differs)
                    other = None
                if one is None or other is None:
                    outcome.not_examined += len(buckets) - done
                    break
                for docid in sorted(one.keys() | other.keys()):
                    mine, theirs = one.get(docid), other.get(docid)
                    if _content(mine) == _content(theirs):
                        continue
                    self._add(
                        Difference(
                            DifferenceClass.COPIES_DIFFER,
                            place[0],
                            docid,
                            expected=mine.entries if mine is not None else (),
                            found=theirs.entries if theirs is not None else (),
                            version=mine.version if mine is not None else None,
                            reason=f"the copy of slice {place[1]} on node {node} has something else than the "
                            f"one on node {asked}",
                        )
                    )

    def _copy(self, pin: Pin, place: SliceKey, buckets: Sequence[int]) -> dict[bytes, IndexedDocument]:
        """What one copy holds of the documents of some buckets."""
        slices = self.context.slices
        ((_, entries, back),) = slices.rows(pin, [place], self.work.bits, buckets, [])
        return dict(indexed_documents_of(place[1], entries, back))

    def _add(self, difference: Difference) -> None:
        index = self.outcome.indexes[difference.index]
        index.counts[difference.kind.value] = index.counts.get(difference.kind.value, 0) + 1
        if len(self.outcome.differences) >= self.context.limit:
            index.unlisted += 1
        else:
            self.outcome.differences.append(difference)

    def _judge(
        self, pin: Pin, buckets: Mapping[str, Sequence[int]], ids: Mapping[str, Iterable[bytes]]
    ) -> None:
        """Judge documents at a snapshot: for each index those of its buckets, or of its ids."""
        truths = self.source_documents(pin, buckets, ids)
        held = self.indexed_documents(pin, buckets, ids)
        evidence = self.evidence()
        for index in self.context.indexes:
            mine = set(buckets.get(index.id, ()))
            wanted = set(ids.get(index.id, ()))
            known = {docid for docid, truth in truths.items() if truth.entries.get(index.id)}
            candidates = sorted(known | {docid for name, docid in held if name == index.id})
            inside = self._buckets_of(candidates)
            for docid, bucket in zip(candidates, inside, strict=True):
                if bucket not in mine and docid not in wanted:
                    continue
                holdings = held.get((index.id, docid), [])
                truth = truths.get(docid, NOTHING)
                verdict = judge(index.id, docid, holdings, truth, evidence)
                suspect = self._suspects.pop((index.id, docid), None)
                if isinstance(verdict, Difference):
                    seen = (holdings, truth.version)
                    harmless = verdict.kind is DifferenceClass.UNPROVABLE
                    if harmless or suspect == seen or is_proven(holdings, truth, evidence):
                        self._add(verdict)
                        continue
                    self._suspects[index.id, docid] = seen
                if verdict is not None:
                    self._undecided.setdefault(index.id, set()).add(docid)

    def _buckets_of(self, ids: Sequence[bytes]) -> list[int]:
        found: list[int] = digests.buckets_of(hashes_of(ids, len(ids)), self.work.bits).tolist()
        return found

    def _judge_shared(self, pin: Pin) -> None:
        """Those that share a key by the source itself are reported; what changed past the snapshot is looked
        at once more."""
        if not self._shared:
            return
        ids = {docid for some in self._shared.values() for docid in some}
        truths = self.source_documents(pin, {}, {"": ids})
        compacted = self.evidence().compacted
        structures = {one.id: one.definition.structure for one in self.context.indexes}
        left: dict[tuple[str, bytes], set[bytes]] = {}
        for (index, key), some in sorted(self._shared.items()):
            having = {
                docid: truths.get(docid, NOTHING).having(index, key, structures[index])
                for docid in sorted(some)
            }
            owners = [docid for docid, entries in having.items() if entries]
            if len(owners) < 2:
                continue
            settled = [docid for docid in owners if not truths[docid].later]
            seen = [(docid, truths[docid].version) for docid in settled]
            once_more = compacted and self._sharers.get((index, key)) != seen
            if len(settled) < 2 or once_more:
                self._sharers[index, key] = seen
                left[index, key] = some
                continue
            truth, entries = truths[settled[0]], tuple(having[settled[0]])
            reason = f"{len(settled)} documents have this key"
            self._add(
                Difference(
                    *(DifferenceClass.DUPLICATE_UNIQUE, index, settled[0], (), entries, truth.version),
                    others=tuple(settled[1:]),
                    reason=reason,
                )
            )
        self._shared = left

    def source_documents(
        self, pin: Pin, buckets: Mapping[str, Sequence[int]], ids: Mapping[str, Iterable[bytes]]
    ) -> dict[bytes, SourceDocument]:
        """What the source has, up to its end now, of documents of buckets and ids."""
        work = replace(
            self.work,
            until=pin.timestamp.offsets(),
            buckets=tuple(sorted({bucket for some in buckets.values() for bucket in some})),
            ids=frozenset(docid for some in ids.values() for docid in some),
        )
        ends = self.context.source.ends()
        reading = SourceRanges.of(self.context.keyspace, self.context.starts(), ends)
        found = self.reader.find(reading, work)
        before = reduced(joined([decode(one.before) for one in found]))
        later = joined([decode(one.later) for one in found])
        return source_documents_of(before, later, [plan.id for plan in self.work.indexes])

    def indexed_documents(
        self, pin: Pin, buckets: Mapping[str, Sequence[int]], ids: Mapping[str, Iterable[bytes]]
    ) -> dict[tuple[str, bytes], list[IndexedDocument]]:
        """What slices hold: (index id, document id) -> by slice."""
        held: dict[tuple[str, bytes], list[IndexedDocument]] = {}
        for index in sorted({*buckets, *ids}):
            mine, wanted = sorted(buckets.get(index, ())), sorted(ids.get(index, ()))
            if not mine and not wanted:
                continue
            places = [place for place in pin.nodes if place[0] == index]
            for (_, number), entries, back in self.context.slices.rows(
                pin, places, self.work.bits, mine, wanted
            ):
                for docid, holding in indexed_documents_of(number, entries, back):
                    held.setdefault((index, docid), []).append(holding)
        return held

    def evidence(self) -> Evidence:
        """What may have been lost up to now."""
        kept = self.context.source.deletions_kept_ms()
        took = (time.monotonic() - self.began) * 1000
        return Evidence(self.context.starts(), kept is not None, kept is not None and took >= kept)


def _content(held: IndexedDocument | None) -> object:
    """What copies must agree on; not a deletion that is remembered, which each forgets in its own time."""
    if held is None or not (held.entries or held.keys):
        return None
    version = held.version
    return held.entries, held.keys, (version.partition, version.offset) if version is not None else None
