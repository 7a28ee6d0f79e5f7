"""The generated code against the naive interpreter, on ordinary and hostile documents; cut segments."""

from __future__ import annotations

import json
from itertools import chain, pairwise
from typing import Any

import msgspec
import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from keytide.catalog.partitioning import Partitioning
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.entry import unpack_value
from keytide.wire.columns import (
    cut_segment,
    heard_hashes,
    heard_ids,
    heard_offsets,
    heard_times,
    puts_columns,
)
from keytide.wire.messages import Segment
from projector.core.decoding import DocumentReader
from projector.core.projection import KeyspacePlan, SourceBatch, project
from router.core import segments, slices_of, split_segment
from router.recipients import BatchDocuments
from tests import share
from tests.property.naive_projection import LeaveOut, SkipDocument, entries

# --- definitions --------------------------------------------------------------------------------------------

paths = st.sampled_from(["a", "b", "c.x", "c.y[0]", "tags", "tags[1]", '"x y"', "a.b.c", 'd."é"', '"id"'])
constants = st.sampled_from(
    ["1", "1.0", "0", "2.5", "'abc'", "'b'", "''", "TRUE", "FALSE", "NULL", "9007199254740993"]
)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}({})".format, st.sampled_from(["LOWER", "UPPER", "LENGTH"]), inner),
        st.builds("COALESCE({}, {})".format, inner, inner),
        st.builds(
            "CAST({} AS {})".format, inner, st.sampled_from(["text", "bigint", "double precision", "boolean"])
        ),
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "%", "||"]), inner),
        st.builds("(- {})".format, inner),
    )


scalars = st.recursive(st.one_of(paths, paths, paths, st.just("id")), _compound, max_leaves=4)
operands = st.one_of(scalars, scalars, constants)
comparisons = st.one_of(
    st.builds("{} {} {}".format, operands, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), operands),
    st.builds("{} {} {}".format, paths, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), constants),
    st.builds("{} {}IN ({}, {})".format, scalars, st.sampled_from(["", "NOT "]), operands, operands),
    st.builds("{} IN ('abc', 'b')".format, paths),
    st.builds("{} {}BETWEEN {} AND {}".format, scalars, st.sampled_from(["", "NOT "]), constants, operands),
    st.builds(
        "{} {}LIKE '{}'".format,
        scalars,
        st.sampled_from(["", "NOT "]),
        st.sampled_from(["a%", "%b%", "_", "%a_c%"]),
    ),
    st.builds("{} IS {}".format, scalars, st.sampled_from(["NULL", "NOT NULL", "MISSING", "NOT MISSING"])),
    paths,
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)


@st.composite
def definitions(draw: st.DrawFn) -> IndexDefinition:
    keys = draw(st.lists(scalars, min_size=1, max_size=3, unique=True))
    if draw(st.booleans()):
        array = draw(
            st.sampled_from(["UNNEST(tags)", "LOWER(UNNEST(tags))", "UNNEST(c.y)", "(UNNEST(tags) || a)"])
        )
        keys.insert(draw(st.integers(0, len(keys))), array)
    statement = (
        f"CREATE INDEX i ON k ({', '.join(key + draw(st.sampled_from(['', ' DESC'])) for key in keys)})"
    )
    if draw(st.booleans()):
        statement += f" INCLUDE ({', '.join(draw(st.lists(paths, min_size=1, max_size=3, unique=True)))})"
    partition = draw(st.sampled_from(["", "id", "first", "last", "a"]))
    if partition:
        chosen = {"first": keys[0], "last": keys[-1]}.get(partition, partition)
        statement += f" PARTITION BY {draw(st.sampled_from(['HASH', 'RANGE']))}({chosen})"
    if draw(st.booleans()):
        statement += " WITH (include_missing)"
    if draw(st.booleans()):
        statement += f" WHERE {draw(conditions)}"
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


# --- documents ----------------------------------------------------------------------------------------------

texts = st.one_of(
    st.sampled_from(["", "abc", "b", "ABC", "a\0b", "é😀", "1", " 12 ", "1.5", "yes"]), st.text(max_size=5)
)
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [2**53, 2**53 + 1, -(2**63), 10**30, 10**400, 1.0, -0.0, 0.5, 1e300, 5e-324, float(2**53)]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
)
usual = st.sampled_from([1, 1.0, 0, 2.5, "abc", "b", True, None])
"""The constants of the conditions, and values that are equal but written otherwise."""
leaves = st.one_of(usual, usual, numbers, texts)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["x", "y", "b", "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.fixed_dictionaries(
    {},
    optional={
        "a": st.one_of(leaves, values),
        "b": st.one_of(leaves, values),
        "c": st.one_of(
            values, st.fixed_dictionaries({}, optional={"x": values, "y": st.lists(values, max_size=3)})
        ),
        "d": values,
        "tags": st.one_of(values, st.lists(leaves, max_size=5), st.lists(usual, max_size=5)),
        "x y": values,
        "id": values,
        "other": values,
    },
)


def _dump(document: dict[str, Any], ascii_only: bool) -> bytes:
    return json.dumps(document, ensure_ascii=ascii_only).encode()


ordinary = st.builds(_dump, objects, st.booleans())


PIECES = b""" " , } [ \\ \\ud800 \\udc00x \\u0000 NaN Infinity 1e999 - 0 e5 . "a": """.split()
PIECES += [b"", b"\n", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"1" * 4300, b"1" * 4301]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A document with a few bytes replaced, removed or put in."""
    data = bytearray(draw(ordinary))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.sampled_from(PIECES))
        data[at : at + draw(st.integers(0, 2))] = piece
    return bytes(data)


def _nested(depth: int, field: str) -> bytes:
    return b'{"b":1,"%s":%s%s}' % (field.encode(), b"[" * depth, b"]" * depth)


hostile = st.one_of(
    st.sampled_from(
        [
            b"",
            b"null",
            b"[]",
            b'"x"',
            b"5",
            b"{}",
            b"{",
            b"\xef\xbb\xbf{}",
            b'{"a":1,"a":"abc"}',
            b'{"a":1e999,"a":2}',
            b'{"a":"\\ud800","b":"b"}',
            b'{"other":"\\ud800","a":"\\ud83d\\ude00"}',
            b'{"other":"\xff","a":1}',
            b'{"other":1e999,"a":1}',
            b'{"tags":["\\udc00"],"b":2}',
            b'{"c":{"x":{"\\ud800":1}},"a":1}',
            b'{"a":' + b"7" * 4301 + b"}",
            b'{"other":' + b"7" * 4301 + b',"a":1}',
            b'{"a":"' + b"x" * 20_000 + b'","b":1}',
            b'{"other":"' + b"[" * 1000 + b'","a":1}',
            b'{"other":[' + b"[]," * 400 + b'1],"a":1}',
        ]
    ),
    st.builds(
        _nested, st.sampled_from([60, 65, 255, 256, 257, 5_000]), st.sampled_from(["a", "other", "tags"])
    ),
    damaged(),
)
records = st.lists(st.one_of(ordinary, ordinary, hostile, st.none()), max_size=8)
docids = st.one_of(
    st.binary(max_size=4), st.sampled_from([b"u1", b"a\0b", "é".encode(), b"x" * 250, b"x" * 251]), st.none()
)


def is_good_id(docid: bytes | None) -> bool:
    try:
        return docid is not None and len(docid.decode()) >= 1 and len(docid) <= 250
    except UnicodeDecodeError:
        return False


def exact(value: Any) -> Any:
    """A form in which 1, 1.0, True and -0.0 differ."""
    if isinstance(value, dict):
        return {name: exact(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    return type(value).__name__, repr(value) if isinstance(value, float) else value


@settings(max_examples=share.examples(600), deadline=None)
@given(st.data())
def test_projection_equals_the_naive_one(data: st.DataObject) -> None:
    made = data.draw(st.lists(definitions(), min_size=1, max_size=3))
    documents = data.draw(records)
    ids = data.draw(st.lists(docids, min_size=len(documents), max_size=len(documents)))
    start = data.draw(st.integers(0, 2**40))
    offsets = [start + 3 * i + 1 for i in range(len(documents))]
    plan = KeyspacePlan((str(number), definition) for number, definition in enumerate(made))
    batch = SourceBatch(
        5, 2, start, start + 100, offsets, ids, documents, [1_000 + i for i in range(len(documents))]
    )
    result = project(batch, plan)

    good = [i for i, docid in enumerate(ids) if is_good_id(docid)]
    assert result.ids == [ids[i] for i in good]
    assert result.offsets.tolist() == [offsets[i] for i in good]
    for number, definition in enumerate(made):
        expected: list[tuple[int, bytes, bytes, bytes, Any]] = []
        skips = [(-1, offsets[i], (ids[i] or b"")[:250], "bad-id") for i in range(len(ids)) if i not in good]
        left_out: dict[str, int] = {}
        for ordinal, i in enumerate(good):
            document, docid = documents[i], ids[i]
            if document is None:
                continue
            assert docid is not None
            try:
                for key, partition, forms, included in entries(definition, docid, document):
                    columns = exact(included) if definition.include else None
                    expected.append((ordinal, key, partition, forms, columns))
            except SkipDocument as outcome:
                skips.append((ordinal, offsets[i], docid, outcome.args[0]))
            except LeaveOut as outcome:
                left_out[outcome.args[0]] = left_out.get(outcome.args[0], 0) + 1
        projected = result.indexes[str(number)]
        found = []
        packed = projected.values or [b""] * len(projected.keys)
        assert projected.values is None or any(projected.values)
        for ordinal, key, partition, value in zip(
            projected.ordinals.tolist(), projected.keys, projected.partition_keys, packed, strict=True
        ):
            forms, include_json = unpack_value(value)
            columns = None if include_json is None else exact(json.loads(include_json))
            found.append((ordinal, key, partition, forms, columns))
        assert found == expected
        assert [(s.ordinal, s.offset, s.id, s.reason) for s in projected.skips] == sorted(
            skips, key=lambda skip: skip[1]
        )
        assert all(skip.detail for skip in projected.skips)
        assert projected.left_out == left_out


@settings(max_examples=share.examples(1000), deadline=None)
@given(st.one_of(ordinary, hostile, damaged()))
def test_the_fast_way_takes_nothing_that_the_slow_way_refuses(value: bytes) -> None:
    fields = ("a", "b", "c", "d", "tags", "x y", "id")
    fast, slow = DocumentReader(fields), DocumentReader(fields)
    slow._decode = _refuse_all  # type: ignore[assignment]
    quick, judged = fast.read([value]), slow.read([value])
    assert quick.refused == judged.refused
    assert quick.unindexable == judged.unindexable
    shown = [None if d is None else exact(msgspec.structs.asdict(d)) for d in quick.documents]
    assert repr(shown) == repr(
        [None if d is None else exact(msgspec.structs.asdict(d)) for d in judged.documents]
    )


def _refuse_all(value: bytes) -> Any:
    raise msgspec.DecodeError("judge it")


# --- segments -----------------------------------------------------------------------------------------------


@st.composite
def some_segments(draw: st.DrawFn) -> list[Segment]:
    """The segments of one batch, for a few slices: several keys per document, values, skips, gaps."""
    index = "CREATE INDEX i ON k (UNNEST(tags)) INCLUDE (a) PARTITION BY HASH(id)"
    if draw(st.booleans()):
        index = "CREATE INDEX i ON k (a)"
    parsed = parse_statement(index)
    assert isinstance(parsed, CreateIndex)
    documents = draw(st.lists(st.one_of(ordinary, st.just(b"no"), st.none()), max_size=8))
    start = draw(st.integers(0, 2**33))
    gaps = draw(st.lists(st.integers(1, 4), min_size=len(documents), max_size=len(documents)))
    offsets = [start + sum(gaps[: i + 1]) - 1 for i in range(len(documents))]
    ids = draw(
        st.lists(
            st.sampled_from([b"u1", b"u22", "é".encode(), b""]),
            min_size=len(documents),
            max_size=len(documents),
        )
    )
    step = draw(st.sampled_from([0, 1, 2**33]))
    times = [1_700_000_000_000 - step * i for i in range(len(documents))]
    plan = KeyspacePlan([("i", parsed.definition)])
    end = start + sum(gaps) + draw(st.integers(0, 2))
    batch = project(SourceBatch(3, 7, start, end, offsets, list(ids), documents, times), plan)
    spread = draw(st.sampled_from([(), (), (2,), (1, 2)]))
    rule = Partitioning(sum(spread) or draw(st.integers(1, 3)), spread=spread)
    return segments(batch.indexes["i"], rule, Segment(3, 7, start, end), BatchDocuments(batch.heard))


def unpacked(segment: Segment) -> tuple[list[Any], list[Any]]:
    """(versions, skips) of a segment with absolute offsets: each version with its entries."""
    versions: list[Any] = []
    heard = segment.heard
    if heard is not None:
        columns = (heard_offsets(heard, segment.start), heard_times(heard), heard_hashes(heard))
        for offset, time, digest, docid in zip(*(c.tolist() for c in columns), heard_ids(heard), strict=True):
            versions.append((offset, time, digest, docid, []))
        assert len(versions) == heard.count
        assert heard_ids(heard, np.arange(heard.count)[::-1]) == heard_ids(heard)[::-1]
    if segment.puts is not None:
        view = puts_columns(segment.puts)
        stored = view.values or [b""] * segment.puts.count
        for ordinal, key, value in zip(view.ordinals.tolist(), view.keys, stored, strict=True):
            versions[ordinal][4].append((key, value))
    for skip in segment.skips:
        assert skip.ordinal == -1 or versions[skip.ordinal][0] == skip.offset
    return versions, [(skip.offset, skip.id, skip.reason) for skip in segment.skips]


@settings(max_examples=share.examples(300), deadline=None)
@given(some_segments(), st.data())
def test_cutting_a_segment_equals_cutting_its_versions(
    all_segments: list[Segment], data: st.DataObject
) -> None:
    segment = data.draw(st.sampled_from(all_segments))
    at = data.draw(st.integers(segment.start - 1, segment.end + 1))
    lower, upper = cut_segment(segment, at)
    middle = min(max(at, segment.start), segment.end)
    assert (lower.start, lower.end, upper.start, upper.end) == (segment.start, middle, middle, segment.end)
    assert {(s.partition, s.epoch) for s in (lower, upper)} == {(3, 7)}
    versions, skips = unpacked(segment)
    assert unpacked(lower) == ([v for v in versions if v[0] < at], [s for s in skips if s[0] < at])
    assert unpacked(upper) == ([v for v in versions if v[0] >= at], [s for s in skips if s[0] >= at])


@settings(max_examples=share.examples(200), deadline=None)
@given(some_segments(), st.integers(1, 2_000))
def test_split_pieces_are_adjacent_and_whole(all_segments: list[Segment], limit: int) -> None:
    for segment in all_segments:
        pieces = split_segment(segment, limit)
        assert pieces[0].start == segment.start
        assert pieces[-1].end == segment.end
        assert all(first.end == second.start for first, second in pairwise(pieces))
        whole = [unpacked(piece) for piece in pieces]
        assert list(chain.from_iterable(versions for versions, _ in whole)) == unpacked(segment)[0]
        assert list(chain.from_iterable(skips for _, skips in whole)) == unpacked(segment)[1]


@given(st.lists(st.binary(max_size=8), max_size=50), st.integers(1, 20))
def test_slices_are_the_hash_modulo(partition_keys: list[bytes], slices: int) -> None:
    expected = [xxhash.xxh3_64_intdigest(key) % slices for key in partition_keys]
    assert slices_of(partition_keys, Partitioning(slices)).tolist() == expected
