"""Entries to Arrow: columns against a naive decoding of the same rows, types given and inferred, and what
does not fit."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.plan.selection import Shape
from indexer.scan.request.request import ColumnType
from indexer.scan.shape.arrow_columns import BatchMaker
from indexer.scan.shape.arrow_keys import split_keys
from indexer.scan.shape.arrow_schema import ArrowColumn, ColumnTypeError, columns_of, inferred, typed
from keytide.catalog.partitioning import Partitioning
from keytide.collation import MISSING, Value, encode_key, key_forms
from keytide.errors import CallerError, InvariantViolationError
from keytide.model.byte_columns import ByteColumn, EntryColumns
from keytide.model.entry import pack_value
from keytide.structure import structure_of
from tests import share
from tests.unit.scan_world import definition_of

Row = tuple[list[Value], str, bytes | None]


def entries(rows: Sequence[Row], descending: Sequence[bool] = ()) -> tuple[list[bytes], list[bytes]]:
    """Keys in key order, and their values."""
    made = sorted(
        (encode_key(key, descending) + id_.encode(), pack_value(key_forms(key), include))
        for key, id_, include in rows
    )
    return [key for key, _ in made], [value for _, value in made]


def batch(
    rows: Sequence[Row], columns: Sequence[ArrowColumn], parts: int = 1, descending: tuple[bool, ...] = ()
) -> pa.RecordBatch:
    shape = Shape(
        structure_of("btree", parts, descending),
        None,
        1,
        any(include for _, _, include in rows),
        Partitioning(1),
    )
    keys, values = entries(rows, descending)
    made = BatchMaker(shape, columns, {"keytide.index": "i"}).batch(
        EntryColumns.of(list(zip(keys, values, strict=True)))
    )
    made.validate(full=True)
    return made


def part(ordinal: int, type_: ColumnType) -> ArrowColumn:
    return ArrowColumn(f"k{ordinal}", ordinal, None, type_)


ID = ArrowColumn("id", None, None, "text")

TEXTS = st.text(max_size=6)
USUAL_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
BIGINTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
NOTHING = st.none() | st.just(MISSING)
OF_TYPE: dict[ColumnType, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "bigint": BIGINTS,
    "double": DOUBLES,
    "boolean": st.booleans(),
    "json": TEXTS | BIGINTS | DOUBLES | st.booleans() | st.lists(TEXTS, max_size=2) | st.integers(2**80),
}
TYPES: list[ColumnType] = ["text", "bigint", "double", "boolean", "json"]


def expected(value: Value, type_: ColumnType) -> Any:
    """What an Arrow column holds of a value."""
    if value is MISSING or (value is None and type_ != "json"):
        return None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) if type_ == "json" else value


def same(found: Any, wanted: Any) -> bool:
    """Equal, floats bit for bit."""
    if isinstance(found, float):
        return struct.pack("d", found) == struct.pack("d", wanted)
    return bool(found == wanted)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], list[ColumnType], tuple[bool, ...]]:
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    texts = draw(st.sampled_from([TEXTS, USUAL_TEXTS]))
    nulls = draw(st.booleans())
    parts = [texts if type_ == "text" else OF_TYPE[type_] for type_ in types]
    keys = st.tuples(*((NOTHING | one) if nulls else one for one in parts))
    rows = draw(st.lists(st.tuples(keys, st.text(min_size=1, max_size=8)), min_size=1, max_size=20))
    descending = draw(st.sampled_from([(), tuple(draw(st.booleans()) for _ in types)]))
    return [(list(key), id_, None) for key, id_ in rows], types, descending


@settings(max_examples=share.examples(400), deadline=None)
@given(tables())
def test_columns_hold_what_the_keys_hold(table: tuple[list[Row], list[ColumnType], tuple[bool, ...]]) -> None:
    rows, types, descending = table
    columns = [part(at, type_) for at, type_ in enumerate(types)]
    made = batch(rows, [*columns, ID], len(types), descending)
    in_order = sorted(rows, key=lambda row: encode_key(row[0], descending) + row[1].encode())
    assert made.column("id").to_pylist() == [id_ for _, id_, _ in in_order]
    for at, type_ in enumerate(types):
        found = made.column(f"k{at}").to_pylist()
        for value, (key, _, _) in zip(found, in_order, strict=True):
            wanted = expected(key[at], type_)
            if type_ == "json" and value is not None:
                assert json.loads(value) == json.loads(wanted)
            else:
                assert same(value, wanted), (value, wanted)


@settings(max_examples=share.examples(300), deadline=None)
@given(
    st.lists(st.one_of(TEXTS, BIGINTS, DOUBLES, st.booleans(), NOTHING), min_size=1, max_size=8),
    st.sampled_from(TYPES),
    st.sampled_from([(), (True,)]),
)
def test_what_does_not_fit_is_never_squeezed_in(
    values: list[Any], type_: ColumnType, descending: tuple[bool, ...]
) -> None:
    rows: list[Row] = [([value], f"u{at}", None) for at, value in enumerate(values)]
    in_order = sorted(rows, key=lambda row: encode_key(row[0], descending) + row[1].encode())
    if not all(fits(value, type_) for value in values):
        with pytest.raises(ColumnTypeError, match="k0") as caught:
            batch(rows, [part(0, type_), ID], 1, descending)
        assert caught.value.extra == {"column": "k0"}
        assert "types" in caught.value.next_step
        return
    found = batch(rows, [part(0, type_), ID], 1, descending).column(0).to_pylist()
    if type_ != "json":
        assert [expected(key[0], type_) for key, _, _ in in_order] == found


def fits(value: Any, type_: ColumnType) -> bool:
    if value is None or value is MISSING or type_ == "json":
        return True
    if type_ == "text":
        return isinstance(value, str)
    if type_ == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if type_ == "bigint":
        return value == math.floor(value) and -(2**63) <= value < 2**63
    return isinstance(value, float) or int(float(value)) == value


def test_usual_keys_are_taken_apart_without_an_object_per_row() -> None:
    """The fast way is taken for what is usual, or the speed that is measured elsewhere would not be met."""
    usual: list[list[Value]] = [["Boston", 1], ["", -2.5], ["Zürich", 2**63 - 1], [None, True], [MISSING, 0]]
    for descending in ((), (True, True), (True, False)):
        keys, _ = entries([(key, "a\x00\x01b", None) for key in usual], descending)
        assert split_keys(ByteColumn.of(keys), 2, descending) is not None
    for unusual in (["a\0b", 1], [[1], 1], [{}, 1], [2**80 + 2**20, 1]):
        keys, _ = entries([(unusual, "a", None)])  # type: ignore[list-item]
        assert split_keys(ByteColumn.of(keys), 2, ()) is None


@pytest.mark.parametrize("broken", [b"", b"\x30Bos", b"\x21\x40\x00", b"\x30Bos\x00\x01", b"\x99"])
def test_bytes_that_are_no_key_are_an_error_and_not_a_row(broken: bytes) -> None:
    keys = [encode_key(["Aachen", 1]) + b"u1", broken, encode_key(["Bonn", 1]) + b"u2"]
    maker = BatchMaker(
        Shape(structure_of("btree", 2), None, 1, False, Partitioning(1)),
        [part(0, "text"), part(1, "bigint"), ID],
        {},
    )
    with pytest.raises(InvariantViolationError):
        maker.batch(EntryColumns(ByteColumn.of(keys), None))


def test_ids_that_are_no_text_are_an_error() -> None:
    maker = BatchMaker(
        Shape(structure_of("btree", 1), None, 1, False, Partitioning(1)), [part(0, "text"), ID], {}
    )
    with pytest.raises(UnicodeDecodeError):
        maker.batch(EntryColumns.of([(encode_key(["Aachen"]) + b"u\xff1", b"")]))
    # Good as a whole, and cut within a character.
    keys = [encode_key(["A"]) + b"u\xc3", encode_key(["B"]) + b"\xbc"]
    with pytest.raises((UnicodeDecodeError, InvariantViolationError)):
        maker.batch(EntryColumns(ByteColumn.of(keys), None))


INCLUDED = [
    ArrowColumn("name", None, "name", "text"),
    ArrowColumn("n", None, "n", "bigint"),
    ArrowColumn("x", None, "x", "double"),
    ArrowColumn("ok", None, "ok", "boolean"),
    ArrowColumn("more", None, "more", "json"),
]


def test_included_columns() -> None:
    rows: list[Row] = [
        (["a"], "u1", b'{"name":"Ann","n":9007199254740993,"x":1,"ok":true,"more":{"a":[1.0]}}'),
        (["b"], "u2", b'{"more":null,"name":null}'),
        (["c"], "u3", b'{"x":-0.0,"n":5.0,"more":"t"}'),
    ]
    made = batch(rows, [part(0, "text"), *INCLUDED])
    assert made.to_pydict() == {
        "k0": ["a", "b", "c"],
        "name": ["Ann", None, None],
        "n": [2**53 + 1, None, 5],
        "x": [1.0, None, -0.0],
        "ok": [True, None, None],
        "more": ['{"a":[1.0]}', "null", '"t"'],
    }
    assert made.schema.metadata == {b"keytide.index": b"i", b"keytide.json": b'["more"]'}
    assert made.schema.field("more").metadata == {b"keytide.type": b"json", b"keytide.column": b"include"}


@pytest.mark.parametrize(
    ("text", "column"),
    [
        (b'{"name":1}', "name"),
        (b'{"n":1.5}', "n"),
        (b'{"n":9223372036854775808}', "n"),
        (b'{"x":9007199254740993}', "x"),
        (b'{"x":true}', "x"),
        (b'{"ok":0}', "ok"),
    ],
)
def test_included_values_that_do_not_fit(text: bytes, column: str) -> None:
    with pytest.raises(ColumnTypeError) as caught:
        batch([(["a"], "u1", b"{}"), (["b"], "u2", text)], [part(0, "text"), *INCLUDED])
    assert caught.value.extra["column"] == column


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([], None),
        ([None, MISSING], None),
        (["a", None], "text"),
        ([1, -(2**63)], "bigint"),
        ([1, 2**63], "json"),
        ([1, 0.5], "double"),
        ([2**53 + 1, 0.5], "json"),
        ([True, False], "boolean"),
        ([True, 1], "json"),
        ([[1]], "json"),
    ],
)
def test_inference(values: list[Any], type_: ColumnType | None) -> None:
    assert inferred(values) == type_


def test_names_and_types_of_columns() -> None:
    definition = definition_of(
        'CREATE INDEX i ON users (LOWER(name), address.city, LENGTH(name)) INCLUDE (address.city, "id", n)'
    )
    columns = columns_of(definition, None)
    assert [column.name for column in columns] == [
        "LOWER(name)",
        "address.city",
        "LENGTH(name)",
        "id",
        '"id"',
        "n",
    ]
    rows: list[tuple[list[Value], dict[str, Value]]] = [
        (["a", None, 1], {"n": 1.5, "id": 3}),
        (["b", "Bonn", 1], {"n": 2}),
    ]
    found = typed(columns, definition, {"n": "json"}, rows, ["a", "b"])
    assert [column.type for column in found] == ["text", "text", "bigint", "text", "bigint", "json"]
    assert [column.name for column in columns_of(definition, ["id"])] == ["id"]
    with pytest.raises(CallerError, match="no column nn"):
        typed(columns, definition, {"nn": "json"}, [], [])


def test_columns_keep_their_names_when_more_words_are_quoted_in_statements() -> None:
    """Clients, and `where` of Spark's source in another release, ask by them."""
    definition = definition_of(
        'CREATE INDEX i ON users ("begin", LOWER("only"), "order", "for".x) INCLUDE (a)'
    )
    assert [column.name for column in columns_of(definition, None)] == [
        *("begin", "LOWER(only)", '"order"', "for.x", "id", "a"),
    ]


def test_the_leading_part_is_known_from_its_ends() -> None:
    definition = definition_of("CREATE INDEX i ON users (a, b)")
    columns = columns_of(definition, ["key"])
    seen: list[tuple[list[Value], dict[str, Value]]] = [([1, 1], {})]
    assert [c.type for c in typed(columns, definition, {}, seen, [1, "z"])] == ["json", "bigint"]
    assert [c.type for c in typed(columns, definition, {}, seen, [1, 2.5])] == ["double", "bigint"]
