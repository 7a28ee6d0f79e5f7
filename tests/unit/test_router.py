"""Routing: where entries and skips go, covering segments, and messages of bounded size."""

from __future__ import annotations

import msgspec
import numpy as np
import xxhash

from keytide.catalog.partitioning import Partitioning
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.wire.columns import heard_ids, pick, puts_columns, segment_from, unpack
from keytide.wire.messages import Segment
from projector.core.projection import KeyspacePlan, ProjectedBatch, SourceBatch, project
from router.core import bounded, route, segment_bytes, segments, slices_of, split_segment

SLICES = 4


def projected(count: int, *, statement: str = "CREATE INDEX i ON k (city)", bad: int = 0) -> ProjectedBatch:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    values: list[bytes | None] = [b'{"city":"city %d","tags":[1,2]}' % (i % 40) for i in range(count)]
    for i in range(bad):
        values[i] = b"no"
    ids: list[bytes | None] = [b"user%d" % i for i in range(count)]
    source = SourceBatch(
        2, 5, 1_000, 1_000 + count + 3, list(range(1_000, 1_000 + count)), ids, values, [0] * count
    )
    return project(source, KeyspacePlan([("i", parsed.definition)]))


def segments_of(batch: ProjectedBatch, slices: int = SLICES) -> list[Segment]:
    return segments(
        batch.indexes["i"],
        Partitioning(slices),
        partition=batch.partition,
        epoch=batch.epoch,
        start=batch.start,
        end=batch.end,
        heard=batch.heard,
    )


def test_entries_go_to_the_slice_of_their_partition_key_in_order() -> None:
    batch = projected(500)
    entries = batch.indexes["i"]
    expected: list[list[tuple[int, bytes]]] = [[] for _ in range(SLICES)]
    for ordinal, key in zip(entries.ordinals.tolist(), entries.keys, strict=True):
        expected[xxhash.xxh3_64_intdigest(key) % SLICES].append((ordinal, key))
    for (puts, skips), wanted in zip(route(entries, Partitioning(SLICES)), expected, strict=True):
        assert skips == []
        assert puts is not None
        view = puts_columns(puts)
        assert list(zip(view.ordinals.tolist(), view.keys, strict=True)) == wanted
        assert puts.count == len(wanted)
        assert view.values is None


def test_values_travel_with_their_entries() -> None:
    batch = projected(
        100, statement="CREATE INDEX i ON k (UNNEST(tags)) INCLUDE (city) PARTITION BY HASH(id)"
    )
    entries = batch.indexes["i"]
    assert entries.values is not None
    found = set()
    for puts, _ in route(entries, Partitioning(SLICES)):
        assert puts is not None
        view = puts_columns(puts)
        assert view.values is not None
        found |= set(zip(view.ordinals.tolist(), view.keys, view.values, strict=True))
        assert (np.diff(view.ordinals.astype(np.int64)) >= 0).all()
    assert found == set(zip(entries.ordinals.tolist(), entries.keys, entries.values, strict=True))
    assert len(found) == 200


def test_every_slice_gets_the_whole_range_and_the_same_heard_columns() -> None:
    batch = projected(3, statement="CREATE INDEX i ON k (nothing)")
    result = segments_of(batch, 8)
    assert len(result) == 8
    for segment in result:
        assert (segment.partition, segment.epoch, segment.start, segment.end) == (2, 5, 1_000, 1_006)
        assert segment.heard is batch.heard
        assert segment.puts is None


def test_an_empty_batch_makes_sync_messages() -> None:
    (segment,) = segments_of(projected(0), 1)
    assert segment == Segment(2, 5, 1_000, 1_003)


def test_skips_go_to_the_slice_of_the_id_alone() -> None:
    batch = projected(200, bad=50)
    by_slice = segments_of(batch)
    assert sum(len(segment.skips) for segment in by_slice) == 50
    for number, segment in enumerate(by_slice):
        for skip in segment.skips:
            assert xxhash.xxh3_64_intdigest(skip.id) % SLICES == number


def test_slice_numbers_are_what_running_clusters_have_on_disk() -> None:
    assert slices_of([b"", b"Boston", b"\x30Boston\x00\x01"], Partitioning(8)).tolist() == [
        0x2D06800538D394C2 % 8,
        xxhash.xxh3_64_intdigest(b"Boston") % 8,
        xxhash.xxh3_64_intdigest(b"\x30Boston\x00\x01") % 8,
    ]


def test_segments_fit_messages_and_estimates_never_fall_short() -> None:
    batch = projected(300, statement="CREATE INDEX i ON k (city) INCLUDE (tags)", bad=20)
    for segment in segments_of(batch):
        encoded = len(msgspec.msgpack.encode(segment))
        assert encoded <= segment_bytes(segment)
        pieces = split_segment(segment, 2_000)
        assert len(pieces) > 3
        assert all(len(msgspec.msgpack.encode(piece)) <= 2_000 for piece in pieces)
        messages = bounded([segment, segment], 5_000)
        assert [piece for message in messages for piece in message] == split_segment(segment, 5_000) * 2
        assert all(sum(map(segment_bytes, message)) <= 5_000 for message in messages)
    assert bounded(segments_of(batch, 1), 10_000_000) == [segments_of(batch, 1)]


def test_a_document_larger_than_the_limit_is_a_piece_of_its_own() -> None:
    segment = segments_of(projected(5), 1)[0]
    pieces = split_segment(segment, 1)
    assert [heard_ids(piece.heard) for piece in pieces if piece.heard] == [[b"user%d" % i] for i in range(5)]
    assert pieces[-1].end == segment.end


def test_cutting_keeps_what_is_past_the_position() -> None:
    segment = segments_of(projected(10), 1)[0]
    rest = segment_from(segment, 1_007)
    assert rest.heard is not None
    assert heard_ids(rest.heard) == [b"user7", b"user8", b"user9"]
    assert segment_from(segment, 5_000) == Segment(2, 5, segment.end, segment.end)
    assert segment_from(segment, 0) is segment


def test_unpacking_all_or_a_few() -> None:
    lengths = np.array([1, 0, 3], np.uint8)
    assert unpack(lengths, b"abcd") == [b"a", b"", b"bcd"]
    assert pick(lengths, b"abcd", np.array([2, 0])) == [b"bcd", b"a"]
    long = np.full(1_000, 255, np.uint8)
    assert pick(long, b"x" * 254_745 + b"y" * 255, np.array([999])) == [b"y" * 255], "lengths do not wrap"
