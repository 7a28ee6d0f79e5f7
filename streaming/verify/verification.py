"""One verification: indexes of one keyspace at a snapshot against the source, in both directions.

Theory of operation
===================
1. A snapshot T is held on every slice (`slices`).
2. Slices sum up what they hold by bucket of document id, while the source up to T is read, projected and
   summed up the same way (`source`, `newest`). Only these sums come together here.
3. Buckets that differ are looked at in groups of bounded size, document by document (`documents`). The same
   is done for documents that share a key of a UNIQUE index.
4. Other copies of a slice are summed up, too, and compared with the one that the source was compared with:
   where their sums differ, the documents are found by reading both.
5. What cannot be judged, because a newer record lies past T and the source is compacted, is judged again at a
   newer snapshot, a few times.

So a clean index costs one read of the source, whatever its size, and nothing is reported that live writes,
compaction or retention explain. Writes and scans go on meanwhile; nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt

from keytide.model.timestamp import TABLE_PARTITION
from keytide.wire import digests
from keytide.wire.digests import DuplicateKey, Sums
from streaming.core import micro_batches as core
from streaming.slices.pins import Pin, SliceKey
from streaming.verify.core.difference import DifferenceClass
from streaming.verify.documents import (
    DocumentComparison,
    IndexOutcome,
    VerificationContext,
    VerificationResult,
)
from streaming.verify.source import SourceRanges, SourceReader
from streaming.verify.tasks import VerifyWork

RANGE_DOCUMENTS: Final = 50_000
"""Of one range of the shuffle, about: what a task holds at once."""
_ALL_OFFSETS: Final = 1 << 62


class Verification:
    """Verifies indexes of one keyspace.

    Args:
        reader: makes the reader of the source, told how many records there are.
    """

    def __init__(self, context: VerificationContext, reader: Callable[[int], SourceReader]) -> None:
        self._context = context
        self._make_reader = reader
        self._reader: SourceReader | None = None

    @property
    def documents(self) -> int:
        """Records read so far."""
        return self._reader.documents() if self._reader is not None else 0

    def run(self, pin: Pin | None = None) -> VerificationResult:
        """Verify.

        Args:
            pin: the snapshot, held for the caller; else one is chosen and given back.

        Raises:
            RetryableError: something was away, or changed: nothing is known, begin again.
        """
        self._context.tell("holding a snapshot of every slice", 0.0)
        held = pin or self._context.slices.pin(self._context.stopped)
        try:
            return self._verify(held)
        finally:
            if pin is None:
                self._context.slices.release(held)

    def _verify(self, pin: Pin) -> VerificationResult:
        self._context.source.check(pin.timestamp, pin.incarnation)
        began = time.monotonic()
        starts = self._context.starts()
        reading = SourceRanges.of(self._context.keyspace, starts, pin.timestamp.offsets())
        entries = sum(pin.entries.values())
        documents = min(reading.documents, 4 * entries + reading.documents // 16)
        bits = digests.bits_for(max(documents, entries))
        with ThreadPoolExecutor(1, thread_name_prefix="digests") as pool:
            floors = {partition: start for partition, start in starts.items() if start > 0}
            if self._context.origins:
                floors[TABLE_PARTITION] = _ALL_OFFSETS
            summed = pool.submit(lambda: list(self._context.slices.digests(pin, bits, floors)))
            self._context.tell("reading the source", 0.02)
            reader = self._reader = self._make_reader(reading.documents)
            work = self._work(reader, bits, documents, pin)
            expected, distinct = self._expected(reader, reading, work)
            self._context.tell("waiting for the sums of slices", 0.9)
            outcome = VerificationResult(
                pin, {i.id: IndexOutcome(i.id, pin.entries.get(i.id, 0)) for i in self._context.indexes}
            )
            sums = summed.result()
            found, shared = self._differing(sums, expected, outcome)
            self._context.tell("comparing copies of slices", 0.91)
            by_place = {place: mine for place, mine, _, _ in sums}
            apart = list(self._context.slices.apart(pin, bits, floors, by_place))
        comparison = DocumentComparison(self._context, reader, work, outcome, began)
        comparison.judge_buckets(found, distinct >> bits)
        comparison.judge_duplicates(shared)
        comparison.judge_undecided()
        comparison.judge_copies(apart)
        outcome.documents = reader.documents()
        self._context.source.check(pin.timestamp, pin.incarnation)
        for index in outcome.indexes.values():
            if index.unproven:
                kind = DifferenceClass.UNPROVABLE.value
                index.counts[kind] = index.counts.get(kind, 0) + index.unproven
        return outcome

    def _work(self, reader: SourceReader, bits: int, documents: int, pin: Pin) -> VerifyWork:
        range_bits = min(bits, max(0, (documents // RANGE_DOCUMENTS).bit_length()))
        return VerifyWork(
            definitions=self._context.definitions,
            indexes=self._context.plans,
            bits=bits,
            range_bits=range_bits,
            routes=tuple(core.exact_routes(reader.partitions)),
            until=pin.timestamp.offsets(),
        )

    def _expected(
        self, reader: SourceReader, reading: SourceRanges, work: VerifyWork
    ) -> tuple[dict[str, npt.NDArray[np.uint64]], int]:
        """The sums of the source: index id -> u64[slices, FIELDS, buckets]; and how many documents it has."""
        distinct = 0
        total = {
            plan.id: np.zeros((plan.rule.slices, digests.FIELDS, 1 << work.bits), np.uint64)
            for plan in self._context.plans
        }
        width = 1 << (work.bits - work.range_bits)
        for place, counted in reader.sums(reading, work):
            distinct += counted.documents
            for plan, sums in zip(self._context.plans, counted.sums, strict=True):
                part = np.frombuffer(sums, "<u8").reshape(plan.rule.slices, digests.FIELDS, width)
                total[plan.id][:, :, place * width : (place + 1) * width] += part
        return total, distinct

    def _differing(
        self,
        summed: Iterable[tuple[SliceKey, Sums, int, list[DuplicateKey]]],
        expected: Mapping[str, npt.NDArray[np.uint64]],
        outcome: VerificationResult,
    ) -> tuple[dict[str, dict[int, int]], list[tuple[str, DuplicateKey]]]:
        """Index id -> bucket that differs -> about how many entries it has; and keys that are shared."""
        found: dict[str, dict[int, int]] = {}
        shared: list[tuple[str, DuplicateKey]] = []
        for (index, number), sums, unproven, duplicates in summed:
            source = expected[index][number]
            outcome.indexes[index].unproven += unproven
            shared += [(index, one) for one in duplicates]
            mine = found.setdefault(index, {})
            for bucket in digests.differing(sums, source).tolist():
                size = max(int(sums[digests.ENTRIES, bucket]), int(source[digests.ENTRIES, bucket]), 1)
                mine[bucket] = mine.get(bucket, 0) + size
        for index, buckets in found.items():
            outcome.indexes[index].buckets = len(buckets)
        return found, shared
