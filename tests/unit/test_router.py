"""Routing: where entries and skips go, covering segments, and messages of bounded size."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
import xxhash

from keytide.catalog.partitioning import Partitioning
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import InvariantViolationError
from keytide.wire.columns import (
    cut_segment,
    has_documents,
    heard_hashes,
    heard_ids,
    heard_offsets,
    heard_times,
    pick,
    puts_columns,
    segment_from,
    unpack,
)
from keytide.wire.messages import Segment
from projector.core.projection import KeyspacePlan, ProjectedBatch, SourceBatch, project
from router.core import bounded, route, segment_bytes, segments, slices_of, split_segment
from router.recipients import BatchDocuments

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
    empty = Segment(batch.partition, batch.epoch, batch.start, batch.end)
    return segments(batch.indexes["i"], Partitioning(slices), empty, BatchDocuments(batch.heard))


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


# --- who hears of what (R16) --------------------------------------------------------------------------------

SPREAD = "CREATE INDEX i ON k (city) PARTITION BY HASH(city) SUBPARTITION BY HASH(id) SLICES (3, 1, 2, 3)"
BY_ID = "CREATE INDEX i ON k (UNNEST(tags), city) PARTITION BY HASH(id) WITH (slices=7)"


def narrowed(statement: str, count: int, bad: int = 0) -> tuple[ProjectedBatch, list[Segment], list[Segment]]:
    """A batch, and its segments by slice: with what each slice must hear, and with all."""
    batch = projected(count, statement=statement, bad=bad)
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    rule, empty = Partitioning.of(parsed.definition), Segment(2, 5, batch.start, batch.end)
    found = [
        segments(batch.indexes["i"], rule, empty, BatchDocuments(batch.heard), by_id=by_id)
        for by_id in (True, False)
    ]
    return batch, found[0], found[1]


def ids_of(segment: Segment) -> list[bytes]:
    return heard_ids(segment.heard) if segment.heard else []


def entries_of(segment: Segment) -> list[tuple[bytes, bytes]]:
    """(document id, key) of what a segment puts."""
    if segment.puts is None:
        return []
    view, ids = puts_columns(segment.puts), ids_of(segment)
    return [(ids[ordinal], key) for ordinal, key in zip(view.ordinals.tolist(), view.keys, strict=True)]


@pytest.mark.parametrize("bad", [0, 30])
@pytest.mark.parametrize("statement", [SPREAD, BY_ID])
def test_a_slice_hears_of_the_documents_that_their_ids_let_it_hold(statement: str, bad: int) -> None:
    batch, some, everything = narrowed(statement, 300, bad)
    shares = [3, 3, 3, 1, 2, 2, 3, 3, 3] if statement == SPREAD else [7] * 7
    places = [0, 1, 2, 0, 0, 1, 0, 1, 2] if statement == SPREAD else list(range(7))
    assert len(some) == len(shares)
    for segment, whole, share, place in zip(some, everything, shares, places, strict=True):
        assert ids_of(segment) == [
            id_ for id_ in ids_of(whole) if xxhash.xxh3_64_intdigest(id_) % share == place
        ]
        assert entries_of(segment) == entries_of(whole)
        assert [skip.offset for skip in segment.skips] == [skip.offset for skip in whole.skips]
        heard = ids_of(segment)
        for skip in segment.skips:
            assert skip.ordinal == -1 if segment.present else heard[skip.ordinal] == skip.id
        assert bool(segment.present) == (share > 1)
        for column in (
            heard_offsets,
            lambda heard, _: heard_times(heard),
            lambda heard, _: heard_hashes(heard),
        ):
            if segment.heard is not None and whole.heard is not None:
                mine = np.isin(heard_hashes(whole.heard), heard_hashes(segment.heard))
                assert (column(segment.heard, 1_000) == column(whole.heard, 1_000)[mine]).all()
    if statement == BY_ID:
        assert sum(map(len, map(ids_of, some))) == 300, "each document is heard by one slice"
    assert batch.heard is not None


@pytest.mark.parametrize("statement", ["CREATE INDEX i ON k (city)", "CREATE INDEX i ON k (id)"])
def test_where_keys_decide_every_slice_hears_all(statement: str) -> None:
    batch, some, everything = narrowed(statement, 50)
    assert some == everything
    assert all(segment.heard is batch.heard for segment in some)


def test_entries_that_are_routed_otherwise_than_by_ids_are_not_sent() -> None:
    """Else they would go out under the ids of other documents."""
    batch = projected(50)
    rule, empty = Partitioning(4, raw_id=True), Segment(2, 5, batch.start, batch.end)
    with pytest.raises(InvariantViolationError, match="RoutedByIds"):
        segments(batch.indexes["i"], rule, empty, BatchDocuments(batch.heard), by_id=True)


@pytest.mark.parametrize(("width", "form"), [(90, b"b"), (90_000, b"r")])
def test_what_a_slice_does_not_hear_is_there_all_the_same(width: int, form: bytes) -> None:
    """Whatever a segment is cut to, it says at which offsets the source has documents."""
    statement = BY_ID.replace("slices=7", "slices=60")
    chance = random.Random(5)
    offsets = sorted(chance.sample(range(1_000, 1_000 + width), 40))
    end = 1_000 + width + 10
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    ids: list[bytes | None] = [b"user%d" % at for at in offsets]
    source = SourceBatch(2, 5, 1_000, end, offsets, ids, [b"{}"] * 40, [7 + at for at in offsets])
    batch = project(source, KeyspacePlan([("i", parsed.definition)]))
    empty, rule = Segment(2, 5, 1_000, end), Partitioning.of(parsed.definition)
    made = segments(batch.indexes["i"], rule, empty, BatchDocuments(batch.heard), by_id=True)
    assert {bool(segment.heard) for segment in made} == {True, False}
    for segment in made:
        assert segment.present[:1] == form
        low, high = sorted(chance.sample(range(1_000, end + 1), 2))
        pieces = [*cut_segment(segment, low), cut_segment(cut_segment(segment, low)[1], high)[0], segment]
        for piece in pieces:
            assert segment_bytes(piece) >= len(msgspec.msgpack.encode(piece))
            near = [at + step for at in (*offsets[::7], piece.start, piece.end) for step in (-1, 0, 1)]
            for start in {min(max(at, piece.start), piece.end) for at in near}:
                for until in (start, start + 1, start + 2, start + 9, piece.end):
                    until = min(until, piece.end)
                    wanted = any(start <= offset < until for offset in offsets)
                    assert has_documents(piece, start, until) == wanted, (
                        piece.start,
                        piece.end,
                        start,
                        until,
                    )
            assert not has_documents(piece, piece.start - 9, piece.start)


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
