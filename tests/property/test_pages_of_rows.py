"""The JSON of a page of rows, runs of which are written at once, is that of its rows one by one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indexer.scan.plan.selection import Shape
from indexer.scan.shape.rows import RowMaker, TooManyDigitsError, encode
from keytide.collation import MISSING, encode_key
from keytide.collation.layout import TAG_NUMBER
from keytide.errors import InvariantViolationError
from tests import share
from tests.property.test_collation import doc_ids, few_values, floats, integers, values
from tests.unit.scan_world import Doc, definition_of, sliced

Entry = tuple[bytes, bytes]
SHAPES = {
    options: Shape.of(definition_of(f"CREATE INDEX i ON k {options}"))
    for options in (
        "(a)",
        "(a, b)",
        "(a, b, c)",
        "(a, b DESC)",
        "(a DESC, b)",
        "(a, b) INCLUDE (c)",
        "USING hash (a, b)",
    )
}
plain_ids = st.integers(0, 10**6).map("d{}".format) | st.integers(0, 10**12).map("order {:012}".format)
ids = st.sampled_from([plain_ids, plain_ids, plain_ids, doc_ids]).flatmap(lambda one: one)
numbers = st.integers(0, 2**53) | st.integers(0, 9) | st.floats(0, 1e6, allow_nan=False)
lasts = [numbers, numbers, st.integers(0, 3), floats, integers, few_values, values]
heads = few_values | values | st.sampled_from(["100 %", '"', "B\\n", "Zürich", "Bo\0nn", "Bonn"])
COLUMNS: list[list[str] | None] = [None, ["id", "key"], ["key"], ["id"], [], ["key", "include"]]


@st.composite
def pages(draw: st.DrawFn) -> tuple[str, list[Entry]]:
    """Runs of a few heads each: of what an index has stored, in order or in reverse."""
    options = draw(st.sampled_from(list(SHAPES)))
    parts = SHAPES[options].parts
    documents: list[Doc] = []
    for _ in range(draw(st.integers(1, 4))):
        head = draw(st.lists(heads, min_size=parts - 1, max_size=parts - 1))
        last, id_ = draw(st.sampled_from(lasts)), draw(st.sampled_from([plain_ids, ids]))
        tails = st.lists(st.tuples(last, id_), max_size=draw(st.sampled_from([2, 12, 40])))
        include = b'{"c":[1,"x"]}' if "INCLUDE" in options and draw(st.booleans()) else None
        documents += [Doc([*head, one], each, include) for one, each in draw(tails)]
    definition = definition_of(f"CREATE INDEX i ON k {options}")
    entries = [entry for of_slice in sliced(definition, documents) for entry in of_slice]
    return options, sorted(entries, reverse=draw(st.booleans()))


def outcome(rows: Any) -> bytes | type[Exception]:
    try:
        return encode(rows())
    except (InvariantViolationError, UnicodeDecodeError, TooManyDigitsError) as error:
        return type(error)


def same(shape: Shape, columns: list[str] | None, entries: Sequence[Entry]) -> bytes | type[Exception]:
    maker = RowMaker(shape, columns)
    expected = outcome(lambda: maker.rows(entries))
    assert outcome(lambda: maker.page(entries)) == expected
    return expected


@settings(max_examples=share.examples(1_000))
@given(pages(), st.sampled_from(COLUMNS))
def test_a_page_is_its_rows(page: tuple[str, list[Entry]], columns: list[str] | None) -> None:
    options, entries = page
    assert isinstance(same(SHAPES[options], columns, entries), bytes)


@settings(max_examples=share.examples(300))
@given(
    pages(), st.integers(0, 100), st.integers(0, 100), st.sampled_from([b"", b"\xff", b"\0", b"\x21\x7f\xf8"])
)
@example(("(a)", [(encode_key([3]), b"")] * 9), 0, 5, b"")
def test_what_is_damaged_is_told_as_of_rows(
    page: tuple[str, list[Entry]], which: int, at: int, put: bytes
) -> None:
    options, entries = page
    if entries:
        key, value = entries[which % len(entries)]
        entries[which % len(entries)] = (key[: at % (len(key) + 1)] + put, value)
    same(SHAPES[options], None, entries)
    same(SHAPES[options], None, sorted(entries))


@pytest.mark.parametrize("last", [float("nan"), float("inf"), -0.0], ids=str)
def test_doubles_that_no_document_has(last: float) -> None:
    keys = [encode_key(["Bonn"]) + struct.pack(">BdB", TAG_NUMBER, last, 0) + b"d%d" % at for at in range(20)]
    same(SHAPES["(a, b)"], None, [(key, b"") for key in keys])


def runs_of(head: Sequence[Any], lasts: Sequence[Any]) -> list[Entry]:
    return sorted((encode_key([*head, last]) + b"d%03d" % at, b"") for at, last in enumerate(lasts))


def elements(entries: Sequence[Entry], parts: int = 2) -> list[bool]:
    """Of what a page is made: whether a run that was written at once, or a row."""
    options = {1: "(a)", 2: "(a, b)", 3: "(a, b, c)"}[parts]
    same(SHAPES[options], None, entries)
    return [not isinstance(one, dict) for one in RowMaker(SHAPES[options], None).page(entries)]


def test_what_is_written_at_once() -> None:
    """So that the tests above are about it."""
    bonn, ulm = runs_of(["Bonn"], range(50)), runs_of(["Ulm"], [at / 4 for at in range(50)])
    assert elements(bonn + ulm) == [True, True]
    assert elements((bonn + ulm)[::-1]) == [True, True]
    assert elements(runs_of([], range(50)), 1) == [True]
    assert elements(runs_of([], ["Bonn"] * 50), 1) == [True]
    assert elements(runs_of([None, {"a": [2**70]}], [None] * 50), 3) == [True]
    few = runs_of(["Essen"], range(2))
    assert [one for one in elements(bonn + few + ulm) if one] == [True, True]
    mixed = [*bonn[:10], *ulm[:5], *bonn[10:]]
    assert elements(mixed) == [False] * 55, "out of order"
    assert elements(mixed[:20]) == [False] * 20
    assert elements(runs_of([MISSING], range(50))) == [False] * 50
    few = [entry for at in range(30) for entry in runs_of([f"{at:03}"], range(2))]
    assert elements(few + bonn) == [False] * 110
