"""Both stages of a micro-batch without Spark and Kafka: exactly the newest versions come out.

`micro_batch` stands in for Spark: it runs the first stage on every share, takes the rows to the task that
their route names, orders them as Spark would, runs the second stage, and settles.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from keytide.catalog.partitioning import Partitioning
from keytide.collation import encode_key
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.settings.settings import load_settings
from keytide.wire.columns import hashes_of, heard_ids, heard_offsets, heard_times, unpack
from keytide.wire.messages import Message, PutChunk, RemovalChunk
from projector.core.projection import SourceBatch
from router.core import hash_modulo, slices_of
from streaming.core import micro_batches as core
from streaming.core import runs, versions
from streaming.core.extent_projection import ExtentProjection, heard_columns
from streaming.drivers.stages import LocalStages
from streaming.stages import tasks
from streaming.stages.work import BatchWork, plan_of, rules_of, targets_by_index
from tests import share
from tests.source_records import source_batch

TIME = 1_700_000_000_000


class Record(NamedTuple):
    partition: int
    offset: int
    time: int
    key: bytes | None
    value: bytes | None


def definition(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


BY_A = definition("CREATE INDEX by_a ON s (a) WITH (slices=4)")
BY_ID = definition("CREATE INDEX by_id ON s (a) PARTITION BY HASH(id) WITH (slices=3)")
BY_TAG = definition("CREATE INDEX by_tag ON s (UNNEST(tags)) INCLUDE (a) WITH (slices=3)")


class Sent:
    """Takes the place of the sender: keeps what is sent, by slot."""

    messages: list[tuple[int, Message]]
    numbers: Iterator[int]

    def __init__(self, work: BatchWork) -> None:
        self.attempt = f"attempt-{next(Sent.numbers)}"
        self._work = work
        self._finished = False

    def send(self, slot: int, message: Message) -> None:
        assert not self._finished
        Sent.messages.append((slot, message))

    def finish(self) -> None:
        self._finished = True


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> None:
    Sent.messages, Sent.numbers = [], itertools.count()
    monkeypatch.setattr(tasks, "ChunkSender", Sent)


def work(indexes: dict[str, IndexDefinition], **changes: object) -> BatchWork:
    settings = load_settings(build={"chunk_bytes": 300}, topics={"segment_target_bytes": 400})
    fields: dict[str, object] = {
        "build": "b",
        "run": "r",
        "batch": 0,
        "targets": tuple(core.targets_of({name: range(index.slices) for name, index in indexes.items()})),
        "definitions": tuple((name, msgspec.json.encode(index)) for name, index in sorted(indexes.items())),
        "routes": tuple(core.exact_routes(3)),
        "heard": False,
        "settings": settings,
    }
    return BatchWork(**{**fields, **changes})  # type: ignore[arg-type]


def batch_of(records: list[Record]) -> SourceBatch:
    return source_batch(records[0].partition, [(r.offset, r.time, r.key, r.value) for r in records])


def shares(records: list[Record]) -> list[list[Record]]:
    by_partition: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_partition[record.partition].append(record)
    return [by_partition[partition] for partition in sorted(by_partition)]


def batches_of(records: list[Record], size: int) -> Iterator[SourceBatch]:
    for start in range(0, len(records), size):
        yield batch_of(records[start : start + size])


@pytest.fixture(params=["spark", "local"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether rows go to tasks as Spark sends them, or by the product's own shuffle."""
    if request.param == "local":
        monkeypatch.setattr(sys.modules[__name__], "micro_batch", local_micro_batch)


def local_micro_batch(todo: BatchWork, records: list[Record], size: int = 7) -> core.SettledBatch:
    some = shares(records)

    def project(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for number in batch.column(0).to_pylist():
                yield from tasks.project_extent(todo, None, batches_of(some[number], size))

    found = LocalStages(lambda: None).shuffle(len(some), tasks.batch_shuffle(todo, project))
    return tasks.settled(todo, found, len(some))


def micro_batch(todo: BatchWork, records: list[Record], size: int = 7) -> core.SettledBatch:
    by_task: dict[int, list[tuple[int, int, bytes, bytes, int]]] = defaultdict(list)
    numbers = itertools.count()
    for part in shares(records):
        for row in tasks.project_extent(todo, None, batches_of(part, size)):
            route, slot, kind, first, body = (column[0].as_py() for column in row.columns)
            task = core.spark_hash(route) % len(todo.routes)
            by_task[task].append((slot, kind, first, body, next(numbers)))
    summaries: list[core.Summary] = []
    for task in range(len(todo.routes)):
        rows = [tasks.row(0, slot, kind, first, body) for slot, kind, first, body, _ in sorted(by_task[task])]
        summaries += [
            tasks.read_summary(row.column("body")[0].as_py()) for row in tasks.deliver_targets(todo, rows)
        ]
    return core.settle(len(todo.targets), len(shares(records)), summaries)


class Entry(NamedTuple):
    key: bytes
    docid: bytes
    partition: int
    offset: int
    time: int


def delivered(outcome: core.SettledBatch) -> dict[int, list[Entry]]:
    """SliceTarget -> entries of the winners' put chunks, in the order of their chunks."""
    counts = [dict.fromkeys(won, 0) for won in outcome.winners]
    entries: dict[int, list[Entry]] = defaultdict(list)
    for slot, message in Sent.messages:
        assert isinstance(message, PutChunk | RemovalChunk)
        if message.attempt not in counts[slot]:
            continue
        if isinstance(message, PutChunk):
            assert message.sequence == counts[slot][message.attempt]
            ids = unpack(np.frombuffer(message.id_lengths, np.uint8), message.ids)
            keys = unpack(np.frombuffer(message.key_lengths, "<u2"), message.keys)
            for at, (docid, key) in enumerate(zip(ids, keys, strict=True)):
                numbers = (
                    int(np.frombuffer(column, kind)[at])
                    for column, kind in (
                        (message.partitions, "<u4"),
                        (message.offsets, "<u8"),
                        (message.times, "<i8"),
                    )
                )
                entries[slot].append(Entry(key, docid, *numbers))
        counts[slot][message.attempt] += 1
    assert counts == outcome.winners, "the batch end must name what arrived"
    return entries


def naive(records: list[Record]) -> dict[bytes, Record]:
    """The newest version of each document that has one."""
    newest: dict[bytes, Record] = {}
    for record in records:
        if not record.key:
            continue
        known = newest.get(record.key)
        if (
            known is None
            or known.partition == record.partition
            or (record.time, record.partition, record.offset) > (known.time, known.partition, known.offset)
        ):
            newest[record.key] = record
    return newest


def expected_by_a(records: list[Record]) -> dict[int, list[Entry]]:
    entries: dict[int, list[Entry]] = defaultdict(list)
    for docid, record in naive(records).items():
        try:
            document = json.loads(record.value) if record.value is not None else None
        except ValueError:
            continue
        if isinstance(document, dict) and "a" in document:
            key = encode_key([document["a"]])
            slot = int(slices_of([key], Partitioning.of(BY_A))[0])
            entries[slot].append(Entry(key, docid, record.partition, record.offset, record.time))
    for found in entries.values():
        found.sort(key=lambda entry: entry.key + entry.docid)
    return entries


def random_records(seed: int, count: int, *, partitions: int = 3, mixed: bool = False) -> list[Record]:
    """Updates, deletes, bad and keyless records; `mixed` lets a document appear in any partition."""
    chosen = random.Random(seed)
    offsets = [chosen.randrange(1000) for _ in range(partitions)]
    records = []
    for number in range(count):
        docid = b"doc-%d" % chosen.randrange(60)
        partition = chosen.randrange(partitions) if mixed else sum(docid) % partitions
        offsets[partition] += chosen.choice([1, 1, 1, 5])
        value: bytes | None = json.dumps({"a": chosen.choice([1, 2.5, "x", None, -7]), "n": number}).encode()
        kind = chosen.random()
        if kind < 0.1:
            value = None
        elif kind < 0.15:
            value = b"{not json"
        elif kind < 0.2:
            value = b'{"n": 1}'
        key = None if kind > 0.98 else docid
        time = TIME + (chosen.randrange(500) if mixed else number)
        records.append(Record(partition, offsets[partition], time, key, value))
    return records


@pytest.mark.parametrize("seed", share.seeds(24))
def test_the_newest_version_of_each_document_and_nothing_else(seed: int) -> None:
    records = random_records(seed, 400)
    todo = work({"i-1": BY_A})
    outcome = micro_batch(todo, records)
    assert outcome.foreign == b""
    assert delivered(outcome) == expected_by_a(records)
    assert outcome.documents == len(records)
    assert outcome.entries == [len(delivered(outcome)[slot]) for slot in range(4)]
    assert outcome.skipped["i-1"]["not-json"] == sum(
        r.value == b"{not json" and r.key is not None for r in records
    )
    assert outcome.skipped["i-1"]["bad-id"] == sum(r.key is None for r in records)
    assert outcome.left_out["i-1"]["leading-key-missing"] > 0


@pytest.mark.parametrize("seed", share.seeds(16))
def test_a_share_in_portions_gives_the_same(seed: int) -> None:
    """Also when every Arrow batch is a portion of its own."""
    records = random_records(seed, 300, partitions=2)
    for limit in (1, 3_000):
        Sent.messages = []
        outcome = micro_batch(work({"i-1": BY_A}, spill_bytes=limit), records, size=11)
        assert outcome.foreign == b"", "two portions of one share are not two partitions"
        assert delivered(outcome) == expected_by_a(records)


@pytest.mark.parametrize("seed", share.seeds(16))
def test_a_document_in_two_partitions_is_noticed_and_resolved(seed: int) -> None:
    records = random_records(seed, 300, mixed=True)
    todo = work({"i-1": BY_A})
    hashes = np.sort(np.frombuffer(micro_batch(todo, records).foreign, np.uint64))
    assert len(hashes) > 10
    rows: list[dict[str, Any]] = [
        row
        for share in shares(records)
        for batch in tasks.find_versions(hashes.tobytes(), batches_of(share, 50))
        for row in batch.to_pylist()
    ]
    losers = versions.losers_of(
        (row["id"], versions.Version(row["time"], row["partition"], row["offset"])) for row in rows
    )
    Sent.messages = []
    outcome = micro_batch(work({"i-1": BY_A}, losers=losers), records)
    assert delivered(outcome) == expected_mixed(records)


def expected_mixed(records: list[Record]) -> dict[int, list[Entry]]:
    """In a partition the last version counts, between partitions the newest by (time, partition, offset)."""
    last = {(record.key, record.partition): record for record in records if record.key}
    return expected_by_a(sorted(last.values(), key=lambda r: (r.time, r.partition, r.offset)))


def test_every_slice_hears_every_document_of_later_micro_batches() -> None:
    records = random_records(1, 200)
    outcome = micro_batch(work({"i-1": BY_A, "j-2": BY_TAG}, batch=1, heard=True), records)
    newest = {docid: (r.partition, r.offset, r.time) for docid, r in naive(records).items()}
    heard, pieces = heard_by_slot(outcome)
    assert heard == dict.fromkeys(range(7), newest), "tombstones and bad documents included"
    assert pieces > 3 * 7, "heard columns are cut to fit messages"
    delivered(outcome)


def test_where_ids_decide_a_slice_hears_of_its_own_documents_of_later_micro_batches() -> None:
    records = random_records(1, 200)
    outcome = micro_batch(work({"i-1": BY_ID, "j-2": BY_A}, batch=1, heard=True), records)
    newest = {docid: (r.partition, r.offset, r.time) for docid, r in naive(records).items()}
    heard, _ = heard_by_slot(outcome)
    for slot in range(7):
        mine = {one: place for one, place in newest.items() if hashes_of([one], 1)[0] % np.uint64(3) == slot}
        assert heard[slot] == (mine if slot < 3 else newest)
    delivered(outcome)


def heard_by_slot(outcome: core.SettledBatch) -> tuple[dict[int, dict[bytes, tuple[int, int, int]]], int]:
    """By slot the documents that were heard, with (partition, offset, time); and in how many messages."""
    heard: dict[int, dict[bytes, tuple[int, int, int]]] = defaultdict(dict)
    pieces = 0
    for slot, message in Sent.messages:
        if isinstance(message, RemovalChunk) and message.heard is not None:
            assert message.attempt in outcome.winners[slot]
            pieces += 1
            columns = zip(
                heard_ids(message.heard),
                heard_offsets(message.heard, message.base).tolist(),
                heard_times(message.heard).tolist(),
                strict=True,
            )
            for docid, offset, time in columns:
                heard[slot][docid] = (message.partition, offset, time)
    return heard, pieces


def test_lines_of_the_skip_ledger_go_to_the_slice_of_the_id() -> None:
    records = random_records(5, 300)
    outcome = micro_batch(work({"i-1": BY_A}), records)
    lines = {
        (message.partition, skip.offset): (slot, skip.reason)
        for slot, message in Sent.messages
        if isinstance(message, RemovalChunk) and message.attempt in outcome.winners[slot]
        for skip in message.skips
    }
    bad = {
        (r.partition, r.offset): (
            int(hash_modulo([r.key or b""], 4)[0]),
            "not-json" if r.key is not None else "bad-id",
        )
        for r in records
        if r.key is None or r.value == b"{not json"
    }
    assert lines == bad, "superseded versions included, in the first micro-batch too"


def test_one_document_may_have_entries_in_many_slices() -> None:
    records = [Record(0, n, TIME, b"d%d" % n, b'{"tags":["x","y","z%d"],"a":1}' % n) for n in range(50)]
    outcome = micro_batch(work({"i-1": BY_A, "j-2": BY_TAG}), records)
    entries = delivered(outcome)
    assert sum(len(entries[slot]) for slot in range(4)) == 50
    assert sum(len(entries[slot]) for slot in range(4, 7)) == 150


def sent_by_slice(todo: BatchWork, outcome: core.SettledBatch) -> dict[core.SliceTarget, list[object]]:
    """What the winners sent to each slice: entries, newest versions heard, and ledger lines, without names
    and cuts that differ from run to run."""
    found: dict[core.SliceTarget, list[object]] = {slot: [] for slot in todo.targets}
    newest: dict[tuple[core.SliceTarget, int, bytes], int] = {}
    for slot, entries in delivered(outcome).items():
        found[todo.targets[slot]] += entries
    for slot, message in Sent.messages:
        if isinstance(message, RemovalChunk) and message.attempt in outcome.winners[slot]:
            if message.heard is not None:
                ids, offsets = heard_ids(message.heard), heard_offsets(message.heard, message.base).tolist()
                for docid, offset in zip(ids, offsets, strict=True):
                    newest[todo.targets[slot], message.partition, docid] = offset
            found[todo.targets[slot]] += [
                (message.partition, s.offset, s.id, s.reason) for s in message.skips
            ]
    for (of_slot, partition, docid), offset in sorted(newest.items()):
        found[of_slot].append((partition, docid, offset))
    return found


@pytest.mark.parametrize("seed", share.seeds(12))
@pytest.mark.parametrize("spill_bytes", [3_000, 1_000_000])
def test_a_rebuild_sends_its_slices_what_a_whole_build_sends_them(seed: int, spill_bytes: int) -> None:
    """And the others nothing at all: not an entry, not a heard document, not a line."""
    records = random_records(seed, 400)
    indexes = {"i-1": BY_A, "j-2": BY_TAG}
    whole = work(indexes, batch=1, heard=True, spill_bytes=spill_bytes)
    outcome = micro_batch(whole, records)
    everything = sent_by_slice(whole, outcome)
    Sent.messages = []
    slots = (core.SliceTarget("i-1", 1), core.SliceTarget("i-1", 3), core.SliceTarget("j-2", 2))
    part = work(indexes, batch=1, heard=True, targets=slots, spill_bytes=spill_bytes)
    settled = micro_batch(part, records)
    assert {slot for slot, _ in Sent.messages} == {0, 1, 2}
    found = sent_by_slice(part, settled)
    assert found == {slot: everything[slot] for slot in slots}
    assert all(found.values())
    counts = dict(zip(whole.targets, outcome.entries, strict=True))
    assert settled.entries == [counts[slot] for slot in slots]
    assert settled.documents == len(records)
    lines = sum(isinstance(line, tuple) and len(line) == 4 for lines in found.values() for line in lines)
    assert sum(sum(reasons.values()) for reasons in settled.skipped.values()) == lines
    assert lines < sum(sum(reasons.values()) for reasons in outcome.skipped.values())


def test_a_rebuild_notices_documents_in_two_partitions() -> None:
    """Also those of which it holds no entry: the newest version may be elsewhere."""
    records = random_records(2, 300, mixed=True)
    whole = micro_batch(work({"i-1": BY_A}), records).foreign
    Sent.messages = []
    part = micro_batch(work({"i-1": BY_A}, targets=(core.SliceTarget("i-1", 2),)), records).foreign
    assert sorted(np.frombuffer(part, np.uint64)) == sorted(np.frombuffer(whole, np.uint64))


def test_an_empty_share_still_reports() -> None:
    todo = work({"i-1": BY_A})
    rows = list(tasks.project_extent(todo, None, iter([])))
    assert [row.column("kind")[0].as_py() for row in rows] == [tasks.SUMMARY]
    summary = tasks.read_summary(rows[0].column("body")[0].as_py())
    assert isinstance(summary, core.ExtentSummary)
    assert (summary.documents, summary.chunks, summary.entries) == (0, {}, {})


# --- the parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 50, 10_000])
def test_merging_is_sorting(limit: int) -> None:
    chosen = random.Random(limit)
    everything: list[bytes] = []
    blocks: list[runs.RunBlock] = []
    for run in range(5):
        count = chosen.randrange(1, 200)
        keys = [bytes(chosen.choices(b"ab\x00\xff", k=chosen.randrange(1, 6))) for _ in range(count)]
        ids = [b"%d-%d" % (run, n) for n in range(count)]
        everything += [key + docid for key, docid in zip(keys, ids, strict=True)]
        numbers = np.zeros(count, np.int64)
        columns = [
            pa.array(numbers.astype(np.uint32)),
            pa.array(numbers.astype(np.uint64)),
            pa.array(numbers),
            pa.array(ids, pa.binary()),
            pa.array(keys, pa.binary()),
            pa.array([b""] * count, pa.binary()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=runs.SCHEMA)
        blocks += [
            runs.RunBlock(first, runs.decode_block(runs.encode_block(b)))
            for first, b in runs.blocks(batch, 200)
        ]
    merge = runs.Merge(limit)
    pieces = [piece for block in sorted(blocks, key=lambda b: b.first) for piece in merge.add(block)]
    pieces += merge.finish()
    merged = [
        key
        for piece in pieces
        for key in runs.entry_keys(piece.column("key"), piece.column("id")).to_pylist()
    ]
    assert merged == sorted(everything)
    if limit == 50:
        assert len(pieces) > 1, "it must not hold everything"


def test_ids_with_one_hash_are_told_apart() -> None:
    ids = pa.array([b"a", b"b", b"a", b"c", b"b"], pa.binary())
    hashes = np.array([7, 7, 7, 9, 7], np.uint64)
    assert versions.newest_versions(hashes, ids).tolist() == [False, False, True, True, True]


def test_hash_ranges_hold_everything_once() -> None:
    hashes = np.array([0, 1, 2**63, 2**64 - 1, 5], np.uint64)
    ranges = versions.hash_ranges(hashes, 3)
    assert len(ranges) == 3
    assert np.concatenate(ranges).tolist() == [0, 1, 5, 2**63, 2**64 - 1]
    assert versions.hash_ranges(hashes, 1)[0].tolist() == sorted(hashes.tolist())


def test_null_and_sliced_columns() -> None:
    column = pa.array([b"a", None, b"", b"bcd", None, b"e"], pa.binary())
    assert runs.items(column) == [b"a", None, b"", b"bcd", None, b"e"]
    assert runs.items(column.slice(2, 3)) == [b"", b"bcd", None]
    assert runs.items(column.slice(0, 0)) == []


def test_far_offsets_are_heard_in_pieces_of_their_own() -> None:
    todo = work({"i-1": BY_A})
    share = ExtentProjection(plan_of(todo.definitions), targets_by_index(todo), rules_of(todo), {})
    far = [0, 5, 2**40, 2**40 + 1]
    share.add(batch_of([Record(1, offset, TIME, b"%d" % offset, None) for offset in far]))
    pieces = list(heard_columns(share.spill().documents, 1_000_000))
    found = [offset for base, heard in pieces for offset in heard_offsets(heard, base).tolist()]
    assert found == far
