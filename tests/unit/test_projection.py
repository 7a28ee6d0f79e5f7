"""Projection of small batches, and of documents that mean harm (acceptance 20)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keytide.collation import MISSING, decode_key, encode_key, encode_part
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import InvariantViolationError
from keytide.model.entry import MAX_KEY_BYTES, unpack_value
from keytide.wire.columns import heard_ids, heard_offsets, heard_times
from projector.core.compile import compile_index
from projector.core.decoding import MAX_DOCUMENT_DEPTH, DocumentReader, nesting
from projector.core.outcomes import MAX_ELEMENTS, MAX_ENTRIES_BYTES
from projector.core.projection import KeyspacePlan, Projected, SourceBatch, project
from tests.property.naive_projection import condition
from tests.structure_kit import as_stored


def definition(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


def batch(values: list[bytes | None], ids: list[bytes | None] | None = None) -> SourceBatch:
    count = len(values)
    some_ids: list[bytes | None] = [b"u%d" % i for i in range(count)] if ids is None else ids
    return SourceBatch(0, 3, 100, 100 + count, list(range(100, 100 + count)), some_ids, values, [7] * count)


def run(statement: str, *values: bytes | None) -> Projected:
    return project(batch(list(values)), KeyspacePlan([("i", definition(statement))])).indexes["i"]


def doc(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def keys_of(projected: Projected, parts: int, descending: tuple[bool, ...] = ()) -> list[list[Any]]:
    values = projected.values or [b""] * len(projected.keys)
    return [
        decode_key(key, parts, descending, unpack_value(value)[0])[0]
        for key, value in zip(projected.keys, values, strict=True)
    ]


def reasons(projected: Projected) -> list[tuple[int, str]]:
    return [(skip.ordinal, skip.reason) for skip in projected.skips]


def test_columns_of_a_plain_index() -> None:
    result = run("CREATE INDEX i ON k (city)", doc(city="Boston"), None, doc(city="Reno", x=1), doc(x=1))
    assert result.ordinals.tolist() == [0, 2]
    assert result.keys == [encode_part("Boston"), encode_part("Reno")]
    assert result.partition_keys is result.keys, "the whole key is hashed: no second list"
    assert result.values is None, "no values: no column"
    assert result.left_out == {"leading-key-missing": 1}
    assert result.skips == []


def test_composite_key_with_desc_is_partitioned_by_its_leading_part() -> None:
    result = run(
        "CREATE INDEX i ON k (city, age DESC)", doc(city="B", age=5), doc(city="B", age=2.0), doc(city="B")
    )
    assert keys_of(result, 2, (False, True)) == [["B", 5], ["B", 2.0], ["B", MISSING]]
    assert isinstance(keys_of(result, 2, (False, True))[1][1], float)
    assert result.partition_keys == [encode_part("B")] * 3
    assert result.keys[0] == encode_key(["B", 5], [False, True])


def test_a_descending_leading_part_is_hashed_ascending() -> None:
    result = run("CREATE INDEX i ON k (city DESC)", doc(city="B"))
    assert result.keys == [encode_part("B", descending=True)]
    assert result.partition_keys == [encode_part("B")]


def test_partitioning_by_id_and_by_another_expression() -> None:
    by_id = run("CREATE INDEX i ON k (a) PARTITION BY HASH(id)", doc(a=1), doc(a=1))
    assert by_id.partition_keys == [b"u0", b"u1"]
    by_other = run("CREATE INDEX i ON k (a) PARTITION BY HASH(LOWER(b))", doc(a=1, b="X"), doc(a=1))
    assert by_other.partition_keys == [encode_part("x"), encode_part(MISSING)]


def test_null_is_indexed_and_missing_only_when_asked() -> None:
    assert keys_of(run("CREATE INDEX i ON k (a)", doc(a=None), doc()), 1) == [[None]]
    both = run("CREATE INDEX i ON k (a) WITH (include_missing)", doc(a=None), doc())
    assert keys_of(both, 1) == [[None], [MISSING]]
    assert both.left_out == {}


def test_unnest_takes_each_element_once_by_value() -> None:
    result = run(
        "CREATE INDEX i ON k (UNNEST(tags), a)",
        doc(tags=["x", "y", "x", 1, 1.0, None], a=1),
        doc(tags=[], a=1),
        doc(tags="x", a=1),
        doc(a=1),
        doc(tags=["z"]),
    )
    assert keys_of(result, 2) == [["x", 1], ["y", 1], [1, 1], [None, 1], ["z", MISSING]]
    assert result.ordinals.tolist() == [0, 0, 0, 0, 4]
    assert result.left_out == {"nothing-to-unnest": 3}
    missing = run("CREATE INDEX i ON k (UNNEST(tags)) WITH (include_missing)", doc(tags=[]), doc(tags=["a"]))
    assert keys_of(missing, 1) == [[MISSING], ["a"]]


def test_where_counts_what_it_leaves_out() -> None:
    result = run(
        "CREATE INDEX i ON k (a) WHERE b > 5", doc(a=1, b=6), doc(a=1, b="x"), doc(a=1), doc(a=1, b=5)
    )
    assert result.ordinals.tolist() == [0]
    assert result.left_out == {"where-not-true": 3}


ASKED: list[Any] = [4, 5, 5.0, 5.5, -1, 2**60, "5", "a", "b", "c", "", True, False, None, [], {}, ["b"]]


@pytest.mark.parametrize("operator", ["=", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize("constant", ["5", "5.0", "'b'", "TRUE", "NULL", "b"])
@pytest.mark.parametrize("form", ["a {o} {c}", "NOT (a {o} {c})", "{c} {o} a", "NOT ({c} {o} a)"])
def test_every_comparison_at_its_boundaries(operator: str, constant: str, form: str) -> None:
    where = form.format(o=operator, c=constant)
    made = definition(f"CREATE INDEX i ON k (id) WHERE {where}")
    documents: list[dict[str, Any]] = [{"a": value, "b": "b"} for value in ASKED] + [{"b": "b"}]
    result = project(batch([doc(**d) for d in documents]), KeyspacePlan([("i", made)])).indexes["i"]
    wanted = [
        ordinal
        for ordinal, document in enumerate(documents)
        if condition(made.where, {"id": "x", "document": document}) is True
    ]
    assert result.ordinals.tolist() == wanted


def test_elements_of_one_value_keep_the_form_of_the_first() -> None:
    result = run("CREATE INDEX i ON k (UNNEST(tags))", doc(tags=[1.0, 1, 2, 2.0]))
    assert [repr(key[0]) for key in keys_of(result, 1)] == ["1.0", "2"]


def test_included_columns_keep_their_numbers() -> None:
    statement = "CREATE INDEX i ON k (a) INCLUDE (b, c.d)"
    result = run(statement, doc(a=1.0, b=10**30, c={"d": 5.0}), doc(a=1, b=None))
    assert result.values is not None
    forms, include = unpack_value(result.values[0])
    assert forms
    assert include == b'{"b":1000000000000000000000000000000,"c.d":5.0}'
    assert unpack_value(result.values[1]) == (b"", b'{"b":null}')


def test_bad_ids_are_skipped_and_not_heard() -> None:
    ids: list[bytes | None] = [b"ok", None, b"", b"x" * 251, b"\xff", "ü\0".encode(), b"x" * 250]
    values: list[bytes | None] = [doc(a=i) for i in range(len(ids))]
    values[2] = None
    result = project(batch(values, ids), KeyspacePlan([("i", definition("CREATE INDEX i ON k (a)"))]))
    assert result.heard is not None
    assert heard_ids(result.heard) == result.ids == [b"ok", "ü\0".encode(), b"x" * 250]
    assert heard_offsets(result.heard, 100).tolist() == result.offsets.tolist() == [100, 105, 106]
    projected = result.indexes["i"]
    assert keys_of(projected, 1) == [[0], [5], [6]]
    assert [(s.ordinal, s.offset, s.id, s.reason) for s in projected.skips] == [
        (-1, 101, b"", "bad-id"),
        (-1, 102, b"", "bad-id"),
        (-1, 103, b"x" * 250, "bad-id"),
        (-1, 104, b"\xff", "bad-id"),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not-json"),
        (b"{", "not-json"),
        (b'{"a":1,}', "not-json"),
        (b'{"a":1}{"a":2}', "not-json"),
        (b'{"a":NaN}', "not-json"),
        (b'{"other":-Infinity,"a":1}', "not-json"),
        (b'{"a":"\xff"}', "not-json"),
        (b'{"other":"\xed\xa0\x80","a":1}', "not-json"),
        (b'\xef\xbb\xbf{"a":1}', "not-json"),
        (b"[1]", "not-an-object"),
        (b"null", "not-an-object"),
        (b"1e999", "not-an-object"),
        (b'{"a":' + b"[" * 257 + b"]" * 257 + b"}", "too-deep"),
        (b'{"other":' + b"[" * 100_000 + b"]" * 100_000 + b',"a":1}', "too-deep"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "not-indexable"),
        (b'{"a":1e999}', "not-indexable"),
        (b'{"a":{"x":[-1e999]}}', "not-indexable"),
        (b'{"a":"\\ud800"}', "not-indexable"),
        (b'{"a":{"\\udfff":1}}', "not-indexable"),
        (b'{"a":' + b"1" * 4301 + b"}", "not-indexable"),
        (b'{"a":"' + b"x" * 1_000_000 + b'"}', "key-too-large"),
        (b'{"a":-' + b"1" * 4300 + b"}", "not-indexable"),  # the sign counts, as it does for msgspec
        (b'{"a":' + b"1" * 4300 + b"}", None),
        (b'{"a":-' + b"1" * 4299 + b"}", None),
        (b'{"a":1,"a":"last"}', None),
        (b'{"a":1e999,"a":"last"}', None),
        (b'{"a":1,"other":"\\ud800"}', None),
        (b'{"a":1,"other":1e999}', None),
        (b'{"a":1,"other":"' + b"x" * 1_000_000 + b'"}', None),
        (b'{"a":1,"other":' + b"[" * 255 + b"]" * 255 + b"}", None),
        (b'{"a":1,"other":"' + b"[{" * 10_000 + b'"}', None),
        (b'{"a":"nul \\u0000 within"}', None),
        (b'{"a":"\\ud83d\\ude00"}', None),
        (b' \n\t{"a" : 1 }\r', None),
    ],
)
def test_hostile_documents_concern_only_themselves(value: bytes, reason: str | None) -> None:
    result = run("CREATE INDEX i ON k (a)", doc(a="before"), value, doc(a="after"))
    assert reasons(result) == ([] if reason is None else [(1, reason)])
    assert result.ordinals.tolist() == ([0, 1, 2] if reason is None else [0, 2])
    assert all(skip.detail and skip.id == b"u1" and skip.offset == 101 for skip in result.skips)


def test_what_one_index_cannot_take_another_may() -> None:
    plan = KeyspacePlan(
        [
            ("a", definition("CREATE INDEX a ON k (a)")),
            ("b", definition("CREATE INDEX b ON k (b)")),
            ("both", definition("CREATE INDEX c ON k (a) WHERE b IS NOT MISSING")),
        ]
    )
    values: list[bytes | None] = [b'{"a":1,"b":1e999}', b'{"a":"\\ud800","b":2}', doc(a=3, b=3)]
    result = project(batch(values), plan).indexes
    assert (result["a"].ordinals.tolist(), reasons(result["a"])) == ([0, 2], [(1, "not-indexable")])
    assert (result["b"].ordinals.tolist(), reasons(result["b"])) == ([1, 2], [(0, "not-indexable")])
    assert result["both"].ordinals.tolist() == [2]
    chosen = project(batch(values), plan, ["b"]).indexes
    assert list(chosen) == ["b"]
    assert chosen["b"].keys == result["b"].keys


def test_key_length_limit_is_exact() -> None:
    longest = "x" * (MAX_KEY_BYTES - 3)
    result = run("CREATE INDEX i ON k (a)", doc(a=longest), doc(a=longest + "x"))
    assert result.ordinals.tolist() == [0]
    assert reasons(result) == [(1, "key-too-large")]


def test_an_element_that_fails_takes_the_document_with_it() -> None:
    tags = ["ok", "x" * 20_000, "ok2"]
    result = run("CREATE INDEX i ON k (UNNEST(tags))", doc(tags=tags), doc(tags=["fine"]))
    assert result.ordinals.tolist() == [1]
    assert reasons(result) == [(0, "key-too-large")]


def test_number_of_elements_is_limited() -> None:
    statement = "CREATE INDEX i ON k (UNNEST(tags))"
    most = list(range(MAX_ELEMENTS))
    result = run(statement, doc(tags=[*most, 0, 1, 2]), doc(tags=[*most, -1]))
    assert len(result.keys) == MAX_ELEMENTS
    assert reasons(result) == [(1, "too-many-elements")]


def test_bytes_of_one_document_are_limited() -> None:
    statement = "CREATE INDEX i ON k (UNNEST(tags)) INCLUDE (big)"
    result = run(statement, doc(tags=list(range(100)), big="x" * 300_000), doc(tags=[1], big="x" * 300_000))
    assert reasons(result) == [(0, "too-many-elements")]
    assert result.ordinals.tolist() == [1]


@pytest.mark.parametrize("structure", ["btree", "hash"])
@pytest.mark.parametrize("over", [False, True])
def test_bytes_of_one_document_are_those_that_its_entries_take(structure: str, over: bool) -> None:
    """Of an index whose values hold the keys, a key counts once."""
    made = definition(f"CREATE INDEX i ON k USING {structure} (UNNEST(tags), body) INCLUDE (n)")
    body, tag = "b" * 10_000, "t0000"
    key = encode_key([tag, body])
    ((stored, value),) = as_stored(made, [(key, b"", b'{"n":""}')])
    fit, rest = divmod(MAX_ENTRIES_BYTES, len(stored) + len(value))
    filling = rest // fit  # a column of so many bytes more in each
    made_doc = doc(tags=[f"t{at:04}" for at in range(fit)], body=body, n="x" * (filling + over))
    ((stored, value),) = as_stored(made, [(key, b"", b'{"n":"%b"}' % (b"x" * (filling + over)))])
    assert (fit * (len(stored) + len(value)) > MAX_ENTRIES_BYTES) == over
    result = project(batch([made_doc]), KeyspacePlan([("i", made)])).indexes["i"]
    assert (len(result.keys), reasons(result)) == ((0, [(0, "too-many-elements")]) if over else (fit, []))


def test_field_names_that_are_no_identifiers() -> None:
    statement = 'CREATE INDEX i ON k ("x y", "é", "class", "", "id", id, "a.b")'
    value = json.dumps({"x y": 1, "é": 2, "class": 3, "": 4, "id": 5, "a.b": 6}).encode()
    assert keys_of(run(statement, value), 7) == [[1, 2, 3, 4, 5, "u0", 6]]


def test_an_index_on_the_id_alone_still_wants_a_document() -> None:
    result = run("CREATE INDEX i ON k (id)", doc(), b"no", b"[]")
    assert keys_of(result, 1) == [["u0"]]
    assert reasons(result) == [(1, "not-json"), (2, "not-an-object")]


def test_columns_from_arrow_work_as_well() -> None:
    ids = pa.array([b"u1", b"u2"], pa.binary()).to_pylist()
    values = pa.array([doc(a="x"), None], pa.binary()).to_pylist()
    offsets = pa.array([100, 101]).to_numpy()
    times = pa.array([5, 9]).to_numpy()
    source = SourceBatch(0, 3, 100, 102, offsets, ids, values, times)
    result = project(source, KeyspacePlan([("i", definition("CREATE INDEX i ON k (a)"))]))
    assert result.indexes["i"].keys == [encode_part("x")]
    assert result.heard is not None
    assert heard_times(result.heard).tolist() == [5, 9]


def test_heard_times_of_every_width() -> None:
    plan = KeyspacePlan([])
    for times in ([5, 5], [9, 5], [-1, 2**40], [2**62, 0]):
        source = SourceBatch(0, 0, 0, 2, [0, 1], [b"a", b"b"], [None, None], times)
        heard = project(source, plan).heard
        assert heard is not None
        assert heard_times(heard).tolist() == times


def test_an_empty_batch_and_one_without_heard_columns() -> None:
    plan = KeyspacePlan([("i", definition("CREATE INDEX i ON k (a)"))])
    empty = project(batch([]), plan)
    assert empty.heard is None
    assert empty.indexes["i"].keys == []
    assert empty.indexes["i"].ordinals.dtype == np.uint32
    light = project(batch([doc(a=1)]), plan, with_heard=False)
    assert light.heard is None
    assert len(light.indexes["i"].keys) == 1


def test_a_segment_that_spans_too_much_is_an_invariant() -> None:
    source = SourceBatch(0, 0, 0, 2**33, [2**32], [b"a"], [None], [0])
    with pytest.raises(InvariantViolationError, match="SegmentSpan"):
        project(source, KeyspacePlan([]))


def test_compiled_indexes_are_shared_and_hold_no_text_of_the_statement() -> None:
    statement = "CREATE INDEX i ON k (a) WHERE b = '\"); import os #' AND \"c'\nd\".e = 1"
    with pytest.raises(Exception, match="control character"):
        definition(statement)
    made = definition("CREATE INDEX i ON k (a) WHERE b = '\"); import os #' AND x.\"c'\nd\" = 1")
    compiled = compile_index(made)
    assert compile_index(made) is compiled
    assert compiled.fields == {"a", "b", "x"}
    value = json.dumps({"a": 1, "b": '"); import os #', "x": {"c'\nd": 1}}).encode()
    plan = KeyspacePlan([("i", made)])
    assert len(project(batch([value, doc(a=1)]), plan).indexes["i"].keys) == 1


def test_nesting_counts_brackets_outside_of_strings() -> None:
    assert nesting(b'{"a":[["]]]]{{"],{"x":"\\"[["}]}') == 3
    assert nesting(b'{"a":"[[[[') == 1
    assert nesting(b"") == 0


@pytest.mark.timeout(60)
def test_the_depth_of_a_malformed_document_is_found_in_linear_time() -> None:
    assert nesting(b"[" + b'"\\"' * 500_000) == 1


def test_depth_limit_holds_in_deep_stacks_too() -> None:
    value = b'{"a":' + b"[" * (MAX_DOCUMENT_DEPTH - 1) + b"]" * (MAX_DOCUMENT_DEPTH - 1) + b"}"

    def deeper(frames: int) -> int:
        if frames:
            return deeper(frames - 1)
        return len(DocumentReader(["a"]).read([value]).refused)

    assert deeper(0) == deeper(400) == 0


def test_a_document_that_would_vanish_stops_the_projection() -> None:
    """NothingSilent: entries, ledger lines and counted reasons account for every document."""
    plan = KeyspacePlan(
        [("i", definition("CREATE INDEX i ON k (UNNEST(tags), age) WHERE age > 1 WITH (slices=2)"))]
    )
    values: list[bytes | None] = [doc(tags=["a", "b"], age=2), doc(tags=["c"], age=3), doc(age=4), doc(age=0)]
    index = plan.indexes["i"]
    whole = index.project
    assert project(batch(values), plan).indexes["i"].ordinals.tolist() == [0, 0, 1]

    def forgetful(*columns: Any) -> Any:
        entries, keys, partition_keys, *rest = whole(*columns)
        return (entries[:-1], keys[:-1], partition_keys[:-1], *rest)

    index.project = forgetful
    try:
        with pytest.raises(InvariantViolationError, match="NothingSilent"):
            project(batch(values), plan)
    finally:
        index.project = whole  # compiled indexes are shared between plans
