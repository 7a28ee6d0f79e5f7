"""What runs in Spark's Python workers: both stages of a micro-batch, as functions over Arrow batches.

Theory of operation
===================
    Kafka rows of a share -> `project_share` -> rows of the shuffle, by slot -> `deliver_slots` -> summaries

The first stage projects (`streaming.share`), hands blocks of sorted entries to the shuffle, and sends what
every slice must hear, and lines for skip ledgers, straight to the backfill queues. The second merges the
blocks of each slot and sends put chunks. Both hand back summaries (`streaming.core`); those of the first
stage travel through the shuffle as a row, so that exactly those count whose share went into the result.

A task sends with an idempotent producer, under a name that no other attempt has, and returns only when
everything is acknowledged. So it may fail anywhere and be run again: what a dead attempt has sent is never
named in a batch end.

Rows of the shuffle: route (an integer that Spark's hash partitioning takes to the right task), slot
(number; negative for the kinds below), first (entry key of a block), body.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, Producer
from pyspark.accumulators import Accumulator

from keytide.definition import IndexDefinition
from keytide.errors import RetryableError
from keytide.kafka import producer
from keytide.messages import Heard, Message, RemovalChunk, Skip, encode, split
from keytide.settings import Settings
from keytide.topics import Topics
from projector.core import KeyspacePlan
from streaming.core import ForeignSummary, ShareSummary, Slot, SlotSummary, Summary
from streaming.runs import Block, Merge, Place, blocks, cuts, decode_block, encode_block, put_chunk
from streaming.share import PORTION_BYTES, Portion, Share, hash_ranges, heard_pieces, repeated

SUMMARY = -1
"""A row whose body is an encoded summary."""
HASHES = -2
"""A row whose body is u64[n]: sorted hashes of the documents of one portion."""

ROW = "route int, slot int, first binary, body binary"
_ROW_SCHEMA = pa.schema(
    [("route", pa.int32()), ("slot", pa.int32()), ("first", pa.binary()), ("body", pa.binary())]
)
_SKIPS_PER_CHUNK = 5_000
_FLUSH_LIMIT_S = 600.0

_encode_summary = msgspec.msgpack.Encoder().encode
_decode_summary: msgspec.msgpack.Decoder[Summary] = msgspec.msgpack.Decoder(Summary)


class DeliveryError(RetryableError):
    """A message did not get into its backfill queue; the task fails and is run again."""

    problem_type = "delivery-failed"


@dataclass(frozen=True)
class Work:
    """What the tasks of one micro-batch must know; pickled with them.

    Attributes:
        definitions: index id -> its definition as JSON.
        routes: route of each shuffle partition (`streaming.core.exact_routes`).
        heard: whether all slices hear all documents (R21): in every micro-batch after the first.
        settings: without secrets that only other parts need.
    """

    build: str
    run: str
    batch: int
    slots: tuple[Slot, ...]
    definitions: tuple[tuple[str, bytes], ...]
    routes: tuple[int, ...]
    heard: bool
    settings: Settings = field(repr=False)
    portion_bytes: int = PORTION_BYTES

    def route(self, slot: int) -> int:
        return self.routes[slot % len(self.routes)]

    def place(self, slot: int, attempt: str) -> Place:
        index, number = self.slots[slot]
        return Place(self.build, index, number, self.run, self.batch, attempt)


class Sender:
    """Sends the messages of one task attempt to the backfill queues."""

    def __init__(self, work: Work) -> None:
        self.attempt = uuid.uuid4().hex[:20]
        self._work = work
        self._producer = task_producer(work.settings)
        self._topics = {
            index: Topics(work.settings.cluster).backfill(index, work.build) for index, _ in work.slots
        }
        self._part_bytes = work.settings.topics.part_bytes
        self._messages = 0
        self._failed: list[KafkaError] = []

    def send(self, slot: int, message: Message) -> None:
        index, number = self._work.slots[slot]
        self._messages += 1
        for data in split(encode(message), self._part_bytes, self.attempt, self._messages):
            self._produce(self._topics[index], number, data)

    def _produce(self, topic: str, partition: int, data: bytes) -> None:
        deadline = time.monotonic() + _FLUSH_LIMIT_S
        while not self._failed:
            try:
                self._producer.produce(topic, data, partition=partition, on_delivery=self._delivered)
                self._producer.poll(0)
                return
            except BufferError:  # the queue of librdkafka is full: Kafka is slower than we are
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    break
        self._fail()

    def finish(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            DeliveryError: something is not.
        """
        if self._producer.flush(_FLUSH_LIMIT_S) or self._failed:
            self._fail()

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._failed.append(error)

    def _fail(self) -> None:
        _producer_for.cache_clear()  # this one may be beyond repair: the next attempt gets a new one
        reason = self._failed[0] if self._failed else f"no answer within {_FLUSH_LIMIT_S:.0f} s"
        raise DeliveryError(f"a chunk of micro-batch {self._work.batch} was not delivered: {reason}")


@functools.lru_cache(maxsize=1)
def _producer_for(settings: str) -> Producer:
    return producer(Settings.model_validate_json(settings))


def task_producer(settings: Settings) -> Producer:
    """One producer for all tasks that a worker process runs, one after the other."""
    return _producer_for(settings.model_dump_json())


@functools.lru_cache(maxsize=1)
def plan_of(definitions: tuple[tuple[str, bytes], ...]) -> KeyspacePlan:
    """The compiled indexes of a build, once per worker process."""
    return KeyspacePlan(
        (index, msgspec.json.decode(definition, type=IndexDefinition)) for index, definition in definitions
    )


# --- first stage --------------------------------------------------------------------------------


def project_share(
    work: Work, progress: Accumulator[int] | None, records: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Kafka rows of one share to rows of the shuffle; its summary comes last, all acknowledged.

    Args:
        progress: counts documents as they are read (Spark hands it on at the end of each task).
    """
    first_slots: dict[str, int] = {}
    slices: dict[str, int] = {}
    for number, (index, _) in enumerate(work.slots):
        first_slots.setdefault(index, number)
        slices[index] = slices.get(index, 0) + 1
    share = Share(plan_of(work.definitions), first_slots, slices, work.portion_bytes)
    stage = _FirstStage(work)
    for batch in records:
        share.add(batch)
        if progress is not None:
            progress.add(batch.num_rows)
        if share.full:
            yield from stage.portion(share.portion())
    yield from stage.portion(share.portion())
    yield stage.summary(share)


class _FirstStage:
    """Sends what slices hear, and makes the rows of the shuffle."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._sender = Sender(work)
        self._chunks: dict[int, int] = {}
        self._entries: dict[int, int] = {}

    def portion(self, portion: Portion) -> Iterator[pa.RecordBatch]:
        """Send the removal chunks of a portion; the rows that it brings to the shuffle."""
        work = self._work
        if work.heard:
            for base, heard in heard_pieces(portion, work.settings.topics.segment_target_bytes):
                for slot in range(len(work.slots)):
                    self._send(slot, portion.partition, base, heard, [])
        else:
            ranges = hash_ranges(portion.hashes, len(work.routes))
            for route, hashes in zip(work.routes, ranges, strict=True):
                if len(hashes):
                    yield _row(route, HASHES, b"", hashes.tobytes())
        for slot, skips in sorted(portion.skips.items()):
            for start in range(0, len(skips), _SKIPS_PER_CHUNK):
                self._send(slot, portion.partition, 0, None, skips[start : start + _SKIPS_PER_CHUNK])
        for slot, entries in sorted(portion.entries.items()):
            self._entries[slot] = self._entries.get(slot, 0) + entries.num_rows
            for first, block in blocks(entries, work.settings.build.chunk_bytes):
                yield _row(work.route(slot), slot, first, encode_block(block))

    def _send(self, slot: int, partition: int, base: int, heard: Heard | None, skips: list[Skip]) -> None:
        place = self._work.place(slot, self._sender.attempt)
        sequence = self._chunks.get(slot, 0)
        self._chunks[slot] = sequence + 1
        self._sender.send(
            slot,
            RemovalChunk(
                place.build,
                place.index,
                place.slice,
                place.run,
                place.batch,
                place.attempt,
                sequence,
                partition,
                base,
                heard,
                skips,
            ),
        )

    def summary(self, share: Share) -> pa.RecordBatch:
        """Wait for the acknowledgements, then say what was done."""
        self._sender.finish()
        summary = ShareSummary(
            self._sender.attempt, share.documents, self._chunks, self._entries, share.skipped, share.left_out
        )
        return _row(self._work.routes[0], SUMMARY, b"", _encode_summary(summary))


# --- second stage --------------------------------------------------------------------------------


def deliver_slots(work: Work, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the shuffle, ordered by (slot, first), to put chunks in the queues; gives summaries back."""
    stage = _SecondStage(work)
    for batch in rows:
        slots, firsts, bodies = batch.column("slot"), batch.column("first"), batch.column("body")
        for position in range(batch.num_rows):
            slot, body = slots[position].as_py(), bodies[position].as_buffer()
            if slot == SUMMARY:
                yield _row(0, SUMMARY, b"", body.to_pybytes())
            elif slot == HASHES:
                stage.hashes.append(np.frombuffer(body.to_pybytes(), np.uint64))
            else:
                stage.block(slot, Block(firsts[position].as_py(), decode_block(body)))
    for summary in stage.finish():
        yield _row(0, SUMMARY, b"", _encode_summary(summary))


class _SecondStage:
    """Merges and sends slot after slot."""

    def __init__(self, work: Work) -> None:
        self.hashes: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        self._work = work
        self._sender = Sender(work)
        self._slot = -1
        self._merge = Merge()
        self._chunks = self._entries = 0
        self._done: list[SlotSummary] = []

    def block(self, slot: int, block: Block) -> None:
        if slot != self._slot:
            self._end_slot()
            self._slot = slot
        for entries in self._merge.add(block):
            self._send(entries)

    def _send(self, entries: pa.RecordBatch) -> None:
        place = self._work.place(self._slot, self._sender.attempt)
        edges = cuts(entries, self._work.settings.build.chunk_bytes)
        for start, end in pairwise(edges):
            self._sender.send(self._slot, put_chunk(place, self._chunks, entries.slice(start, end - start)))
            self._chunks += 1
        self._entries += entries.num_rows

    def _end_slot(self) -> None:
        if self._slot >= 0:
            for entries in self._merge.finish():
                self._send(entries)
            self._done.append(SlotSummary(self._slot, self._sender.attempt, self._chunks, self._entries))
        self._merge = Merge()
        self._chunks = self._entries = 0

    def finish(self) -> list[Summary]:
        """Send the rest and wait for the acknowledgements; what was done."""
        self._end_slot()
        self._sender.finish()
        return [*self._done, ForeignSummary(repeated(self.hashes))]


def _row(route: int, slot: int, first: bytes, body: bytes) -> pa.RecordBatch:
    columns = [
        pa.array([route], pa.int32()),
        pa.array([slot], pa.int32()),
        pa.array([first], pa.binary()),
        pa.array([body], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ROW_SCHEMA)


def read_summary(body: bytes) -> Summary:
    """The summary in the body of a row that `deliver_slots` gave back."""
    return _decode_summary.decode(body)
