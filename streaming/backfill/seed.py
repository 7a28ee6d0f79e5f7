"""What a new layout begins with: the slices of the old one, at one snapshot, sent as micro-batch 0 (R44).

Theory of operation
===================
The newest snapshot that is at or past everything that the build must reach is held on every slice of the old
layout, and all entries and lines of skip ledgers are read of it, each with the version that it has there.
They go to the new slices as a table's rows would (`streaming.backfill.table_origin`), and meet what the new
layout's own queues bring from its activation on, which lies before the snapshot: the newest version of each
document decides, as ever. So nothing of the source is read; what was deleted since is told by the queues.

When the snapshot is lost (a node restarts, the keyspace is rolled back), or a node does not answer, all is
read again, at a newer one: what was sent has another attempt's name and never counts (R22). Slices that have
got their end keep it, others get that of the next: each is complete up to where its end says.

No Spark is needed: pages are merged in the driver (`streaming.core.seeding`). It reads some pages ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby, pairwise
from typing import Final, Protocol, TypeVar

import pyarrow as pa

from keytide.catalog.records import IndexRecord
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.wire.digests import SkippedVersion
from keytide.wire.messages import Message, RemovalChunk, Skip
from router.core import hash_modulo
from streaming.backfill.batches import Seeded
from streaming.core import runs
from streaming.core.micro_batches import SeedUnfitError, SettledBatch
from streaming.core.seeding import SlicePage, in_order, page_of, shared_out
from streaming.drivers.failures import StoppedError
from streaming.drivers.progress import Status
from streaming.drivers.rate_gate import RateGate
from streaming.slices.entries import SliceEntries
from streaming.slices.pins import Pin
from streaming.stages.work import BatchWork, ChunkSender

LEAST_MERGED: Final = 64 * 1024
"""Bytes of a new slice that are held at least, before they are merged and sent."""
SLICES_AT_ONCE: Final = 8
"""That are asked for their next page."""

_T = TypeVar("_T")


def pin_of(slices: SliceEntries, goal: Timestamp, incarnation: int) -> Pin:
    """The newest snapshot of all slices that is at or past `goal`, held until one renewal is due.

    Args:
        incarnation: of the keyspace, that the build is of.

    Raises:
        RetryableError: there is none now.
        SeedUnfitError: what it has cannot be gone on with elsewhere.
    """
    pin = slices.try_pin(goal)
    if pin.incarnation != incarnation:
        slices.release(pin)
        raise RetryableError(f"snapshot {pin.number} is of another history than the build")
    if pin.foreign:
        slices.release(pin)
        raise SeedUnfitError(f"{pin.foreign:,} documents were met in two source partitions")
    return pin


class SeedReader:
    """Reads the slices of one layout for the build of another one. Blocks.

    Args:
        index: the one that is built.
        incarnation: of the keyspace, that the build is of.
        slices: those that are read.
        gate: of the rate limit; counts what is read.
        ending: set when the driver is to end.
    """

    def __init__(
        self,
        index: IndexRecord,
        incarnation: int,
        slices: SliceEntries,
        gate: RateGate,
        status: Status,
        ending: threading.Event,
    ) -> None:
        self._index = index
        self._incarnation = incarnation
        self._slices = slices
        self._gate = gate
        self._status = status
        self._ending = ending

    def read(self, work: BatchWork, goal: Timestamp) -> Seeded:
        """Send everything at a snapshot that covers `goal`.

        Raises:
            StoppedError: the driver is to end.
            RetryableError: there is no such snapshot now, or not any more; something does not answer.
        """
        self._status.rows_total = 0
        pin = pin_of(self._slices, goal, self._incarnation)
        self._status.enter("RUNNING")
        try:
            self._slices.keep(pin)
            rows = sum(pin.entries.values())
            self._status.rows_total = rows
            self._gate.begin(rows, 1)
            sender = ChunkSender(work)
            sending = Sending(self._index, sender, work.header, work.settings.build.chunk_bytes)
            for page in self._pages(pin):
                self._read(len(page.ids), page.entries.nbytes)
                sending.add(page)
            sending.end_entries()
            for place in sorted(pin.nodes):
                for lines in self._slices.skips(pin, place):
                    self._read(0, 0)
                    sending.skip(lines)
            sender.finish()
            return Seeded(sending.settled(rows), pin.timestamp)
        finally:
            self._slices.release(pin)

    def _read(self, rows: int, size: int) -> None:
        """Returns when as much may be read."""
        self._gate.hear(rows, size, 0)
        if self._ending.is_set():
            raise StoppedError

    def _pages(self, pin: Pin) -> Iterator[SlicePage]:
        places = sorted(pin.nodes)
        with ThreadPoolExecutor(min(len(places), SLICES_AT_ONCE), "seed") as threads:
            yield from in_order(
                [_ahead(threads, map(page_of, self._slices.entries(pin, place))) for place in places]
            )


def _ahead(threads: ThreadPoolExecutor, items: Iterator[_T]) -> Iterator[_T]:
    """The same, the next one always on its way."""
    coming: Future[_T | None] = threads.submit(next, items, None)

    def drawn() -> Iterator[_T]:
        nonlocal coming
        while (item := coming.result()) is not None:
            coming = threads.submit(next, items, None)
            yield item

    return drawn()


class Sender(Protocol):
    """Sends messages to the slices of the index that is built (`streaming.stages.work.ChunkSender`).

    Attributes:
        attempt: names what it sends.
    """

    attempt: str

    def send(self, target: int, message: Message) -> None: ...


class Sending:
    """One attempt: what it sends, and what it still merges.

    Args:
        header: makes that of a chunk, of slice and attempt.
    """

    def __init__(
        self,
        index: IndexRecord,
        sender: Sender,
        header: Callable[[int, str], runs.ChunkHeader],
        chunk_bytes: int,
    ) -> None:
        self._index = index
        self._sender = sender
        self._header = header
        self._chunk_bytes = chunk_bytes
        slices = index.definition.slices
        limit = max(LEAST_MERGED, runs.MERGE_BYTES // slices)
        self._merges = [runs.Merge(limit) for _ in range(slices)]
        self._chunks = [0] * slices
        self._entries = [0] * slices
        self._skipped: dict[str, int] = {}

    def add(self, page: SlicePage) -> None:
        """Share out a page."""
        for number, block in shared_out(page, self._index.definition, self._index.splits):
            for entries in self._merges[number].add(block):
                self._put(number, entries)

    def end_entries(self) -> None:
        """There are no more pages."""
        for number, merge in enumerate(self._merges):
            for entries in merge.finish():
                self._put(number, entries)

    def _put(self, number: int, entries: pa.RecordBatch) -> None:
        header = self._header(number, self._sender.attempt)
        for start, end in pairwise(runs.cuts(entries, self._chunk_bytes)):
            part = entries.slice(start, end - start)
            self._send(number, runs.put_chunk(header, self._chunks[number], part))
        self._entries[number] += entries.num_rows

    def skip(self, lines: Sequence[SkippedVersion]) -> None:
        """Send a page of lines of a skip ledger, by source partition."""
        for partition, some in groupby(lines, lambda line: line.partition):
            by_slice: dict[int, list[Skip]] = {}
            skips = [Skip(-1, line.offset, line.id, line.reason, line.detail) for line in some]
            places = hash_modulo([skip.id for skip in skips], len(self._merges)).tolist()
            for skip, number in zip(skips, places, strict=True):
                by_slice.setdefault(number, []).append(skip)
                self._skipped[skip.reason] = self._skipped.get(skip.reason, 0) + 1
            for number, mine in sorted(by_slice.items()):
                header = self._header(number, self._sender.attempt)
                self._send(number, RemovalChunk(*header, self._chunks[number], partition, 0, None, mine))

    def _send(self, number: int, message: Message) -> None:
        self._chunks[number] += 1
        self._sender.send(number, message)

    def settled(self, rows: int) -> SettledBatch:
        """What was done.

        Args:
            rows: that were read.
        """
        winners = [{self._sender.attempt: chunks} for chunks in self._chunks]
        skipped = {self._index.id: self._skipped} if self._skipped else {}
        return SettledBatch(winners, self._entries, rows, b"", skipped, {})
