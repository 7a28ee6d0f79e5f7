"""Bound expressions: what is served, what is read for it, what it gives, and against the document itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keytide.collation import MISSING, Json, Value, decode_key, encode_key
from keytide.definition import semantics
from keytide.definition.binding import Binding, Needs, NotHeldError
from keytide.definition.errors import InvalidStatementError
from keytide.definition.expression import Comparison, In, Literal, Not, Or, Path, Predicate
from keytide.definition.fragments import MAX_FRAGMENT, parse_expression
from keytide.definition.index import IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.render import render_expression
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.entry import unpack_value
from keytide.query.parse.normal import normal
from projector.core.compile import compile_index
from projector.core.decoding import DocumentReader
from tests import share
from tests.property import naive_projection as naive
from tests.property.test_projection import _compound, definitions, exact, ordinary, scalars
from tests.statements import parse_predicate


def defined(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


def bound(statement: str) -> Binding:
    return Binding(defined(statement))


CITY = "CREATE INDEX by_city ON users (LOWER(city), age DESC) INCLUDE (address, tags[0], profile.score)"
KEY: Sequence[Value] = ["boston", 7]
INCLUDED: Mapping[str, Json] = {
    "address": {"zip": "02101", "lines": ["a", "b"]},
    "tags[0]": "x",
    "profile.score": 2.5,
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("LOWER(city)", "boston"),
        ("lower( city )", "boston"),
        ("UPPER(LOWER(city))", "BOSTON"),
        ("age", 7),
        ("age + profile.score", 9.5),
        ("id", "u1"),
        ("LENGTH(id)", 2),
        ("address.zip", "02101"),
        ("address.lines[1]", "b"),
        ("address.lines[2]", MISSING),
        ("address.zip.deeper", MISSING),
        ("tags[0]", "x"),
        ("tags[0].deeper", MISSING),
        ("profile.score * 2", 5.0),
        ("COALESCE(address.street, LOWER(city))", "boston"),
        ("COALESCE(NULL, address.street)", None),
        ("- age", -7),
        ("CAST(age AS text) || LOWER(city)", "7boston"),
        ("age / 2", 3.5),
        ("age % 2", 1),
        ("3", 3),
    ],
)
def test_values(expression: str, value: object) -> None:
    binding = bound(CITY)
    node = parse_expression(expression)
    assert binding.serves(node)
    assert exact(binding.value(node)(KEY, "u1", INCLUDED)) == exact(value)


@pytest.mark.parametrize("expression", ["city", "UPPER(city)", "LOWER(name)", "tags", "tags[1]", "profile"])
def test_what_is_not_held_is_refused_by_name(expression: str) -> None:
    binding = bound(CITY)
    node = parse_expression(expression)
    assert not binding.serves(node)
    with pytest.raises(NotHeldError, match=r"does not hold .*; it holds LOWER\(city\), age, id, address"):
        binding.value(node)
    condition = parse_predicate(f"age = 1 OR {expression} IS NULL")
    assert not binding.serves(condition)
    with pytest.raises(NotHeldError):
        binding.test(condition)


def test_an_element_is_served_as_the_key_part_that_it_is_only() -> None:
    binding = bound("CREATE INDEX i ON k (UNNEST(tags), a) INCLUDE (tags)")
    assert binding.value(parse_expression("UPPER(UNNEST(tags))"))(["x", 1], "u", {}) == "X"
    assert not bound("CREATE INDEX i ON k (LOWER(UNNEST(tags))) INCLUDE (tags)").serves(
        parse_expression("UNNEST(tags)")
    )


def test_a_path_goes_on_below_a_key_part() -> None:
    binding = bound("CREATE INDEX i ON k (b, address) INCLUDE (address.lines)")
    node = parse_expression("address.lines[0]")
    assert binding.value(node)([0, {"lines": ["from the key"]}], "u", {"address.lines": ["included"]}) == (
        "included"  # the longest beginning that is held
    )
    assert binding.value(parse_expression("address.zip"))([0, {"zip": 1}], "u", {}) == 1
    assert binding.needs(parse_expression("address.zip")) == Needs(parts=2)


@pytest.mark.parametrize(
    ("expression", "needs"),
    [
        ("3", Needs()),
        ("LOWER(city)", Needs(parts=1)),
        ("age", Needs(parts=2)),
        ("id", Needs(id=True)),
        ("address.zip", Needs(include=True)),
        ("COALESCE(LOWER(city), id)", Needs(parts=1, id=True)),
    ],
)
def test_needs(expression: str, needs: Needs) -> None:
    assert bound(CITY).needs(parse_expression(expression)) == needs
    assert bound(CITY).needs(parse_predicate(f"{expression} IN (1, 'a')")) == needs


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("age = 7", True),
        ("age = 7.0", True),
        ("age <> 7", False),
        ("age > 'a'", None),
        ("age = 'a'", False),
        ("7 < age", False),
        ("age >= 7 AND profile.score > 1", True),
        ("age > 7 OR address.street = 'x'", None),
        ("age > 7 AND address.street = 'x'", False),
        ("NOT (address.street = 'x')", None),
        ("address.street IS MISSING", True),
        ("address.street IS NULL", None),
        ("address.zip IS NOT NULL", True),
        ("age BETWEEN 7 AND 8", True),
        ("LOWER(city) IN ('boston', 'x')", True),
        ("LOWER(city) IN ('y', 'x')", False),
        ("LOWER(city) NOT IN ('y', NULL)", None),
        ("address.street IN ('y', 'z')", None),
        ("age IN ('y', 7)", True),
        ("LOWER(city) LIKE 'bo%'", True),
        ("age LIKE '7'", None),
        ("age", None),
        ("age = 7 OR address.street", True),
    ],
)
def test_conditions(condition: str, expected: bool | None) -> None:
    assert bound(CITY).test(parse_predicate(condition))(KEY, "u1", INCLUDED) is expected


def test_columns_are_named_once() -> None:
    binding = bound("CREATE INDEX i ON k (a, b.c) INCLUDE (b.c, d)")
    assert binding.columns == ("a", "b.c", "id", "d")
    assert binding.part(parse_expression("b.c")) == 1
    assert binding.part(parse_expression("d")) is None


@pytest.mark.parametrize(
    "text", ["", " ", "a +", "a b", "'open", "\ud800", "a" * (MAX_FRAGMENT + 1), "(" * 300 + "a" + ")" * 300]
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidStatementError):
        parse_expression(text)


def test_an_expression_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidStatementError, match="too large"):
        parse_expression("+".join(["a"] * 60))


# --- against the document ---------------------------------------------------------------------------------


@st.composite
def held_expressions(draw: st.DrawFn, definition: IndexDefinition) -> str:
    """SQL over what the index holds, and now and then over what it does not."""
    atoms = [render_expression(part.expression) for part in definition.keys] + ["id"]
    atoms += [render_expression(path) for path in definition.include]
    atoms += [f"{render_expression(path)}{step}" for path in definition.include for step in (".x", "[0]")]
    inner = st.sampled_from(atoms)
    expressions = st.recursive(st.one_of(inner, inner, inner, inner, scalars), _compound, max_leaves=3)
    return draw(expressions)


@st.composite
def held_conditions(draw: st.DrawFn, definition: IndexDefinition) -> str:
    operand = st.one_of(
        held_expressions(definition), st.sampled_from(["1", "1.0", "2.5", "'abc'", "'b'", "TRUE", "NULL"])
    )
    comparison = st.one_of(
        st.builds("{} {} {}".format, operand, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), operand),
        st.builds("{} {}IN ({}, {})".format, operand, st.sampled_from(["", "NOT "]), operand, operand),
        st.builds("{} {}IN ('abc', 'b')".format, operand, st.sampled_from(["", "NOT "])),
        st.builds("{} BETWEEN {} AND {}".format, operand, operand, operand),
        st.builds("{} LIKE '{}'".format, operand, st.sampled_from(["a%", "%b%", "_"])),
        st.builds(
            "{} IS {}".format, operand, st.sampled_from(["NULL", "NOT NULL", "MISSING", "NOT MISSING"])
        ),
        operand,
    )
    both = st.builds("({} {} {})".format, comparison, st.sampled_from(["AND", "OR"]), comparison)
    return draw(st.one_of(comparison, both, st.builds("NOT ({})".format, both)))


@settings(max_examples=share.examples(150), deadline=None)
@given(st.data())
def test_over_an_entry_is_as_over_the_document(data: st.DataObject) -> None:
    definition = msgspec.structs.replace(data.draw(definitions()), where=None)
    document = data.draw(ordinary)
    expression = parse_expression(data.draw(held_expressions(definition)))
    condition = parse_predicate(data.draw(held_conditions(definition)))
    binding = Binding(definition)
    compiled = compile_index(definition)
    _, keys, _, values, _, _ = compiled.project(
        [0], DocumentReader(compiled.fields).read([document]).documents, [b"u1"]
    )
    for number, canonical in enumerate(keys):
        assert isinstance(values, dict)
        forms, include = unpack_value(values.get(number, b""))
        key, _ = decode_key(canonical, len(definition.keys), definition.descending, forms)
        entry = (key, "u1", json.loads(include) if include else {})
        scope = scope_of(definition, canonical, json.loads(document))
        if binding.serves(expression):
            assert exact(binding.value(expression)(*entry)) == exact(naive.evaluate(expression, scope))
        if binding.serves(condition):
            assert binding.test(condition)(*entry) is naive.condition(condition, scope)


def scope_of(definition: IndexDefinition, canonical: bytes, document: dict[str, Any]) -> dict[str, Any]:
    """The document with, of an index on UNNEST, the first element that gives the entry's key."""
    scope: dict[str, Any] = {"id": "u1", "document": document}
    if definition.unnest is None:
        return scope
    array = naive.evaluate(definition.unnest.operand, scope)
    for element in array if type(array) is list and array else [MISSING]:
        one = {**scope, "element": element}
        parts = [naive.evaluate(part.expression, one) for part in definition.keys]
        if encode_key(parts, [part.descending for part in definition.keys]) == canonical:
            return one
    raise AssertionError("no element gives this key")


@settings(max_examples=share.examples(100), deadline=None)
@given(st.data())
def test_filtering_entries_is_projecting_with_where(data: st.DataObject) -> None:
    definition = msgspec.structs.replace(data.draw(definitions()), where=None)
    condition = parse_predicate(data.draw(held_conditions(definition)))
    binding = Binding(definition)
    unnests = "UNNEST" in normal_statement(definition)
    if unnests or not binding.serves(condition):
        return  # WHERE cannot say UNNEST
    documents = data.draw(st.lists(ordinary, min_size=1, max_size=4))
    ids = [f"u{number}".encode() for number in range(len(documents))]
    filtered = compile_index(msgspec.structs.replace(definition, where=condition))
    fields = DocumentReader({*filtered.fields, *compile_index(definition).fields})
    decoded = fields.read(documents).documents
    ordinals, keys, _, values, skips, _ = compile_index(definition).project(
        range(len(documents)), decoded, ids
    )
    test = binding.test(condition)
    kept = []
    for number, (ordinal, canonical) in enumerate(zip(ordinals, keys, strict=True)):
        assert isinstance(values, dict)
        forms, include = unpack_value(values.get(number, b""))
        key, _ = decode_key(canonical, len(definition.keys), definition.descending, forms)
        if test(key, f"u{ordinal}", json.loads(include) if include else {}) is True:
            kept.append((ordinal, canonical))
    expected_ordinals, expected_keys, _, _, _, _ = filtered.project(range(len(documents)), decoded, ids)
    skipped = {skip[0] for skip in skips}
    assert kept == [
        pair for pair in zip(expected_ordinals, expected_keys, strict=True) if pair[0] not in skipped
    ]


# --- lists of constants -----------------------------------------------------------------------------------

Scalar = bool | int | float | str | None
CONSTANTS: st.SearchStrategy[Scalar] = st.one_of(
    st.sampled_from(
        [1, 1.0, True, False, 0, -0.0, 0.0, 2**53, 2**53 + 1, float(2**53), 2**80, 1e300, "1", ""]
    ),
    st.integers(-(2**90), 2**90),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=2),
    st.booleans(),
    st.none(),
)
VALUES: st.SearchStrategy[Value] = st.one_of(CONSTANTS, st.just(MISSING), st.just([1]), st.just({"a": 1}))


@settings(max_examples=share.examples(300), deadline=None)
@given(st.lists(CONSTANTS, min_size=1, max_size=6), VALUES, st.booleans())
def test_a_list_of_constants_means_a_row_of_equalities(
    choices: list[Scalar], value: Value, with_expression: bool
) -> None:
    rest = (Path(("b",)),) if with_expression else ()
    listed = In(Path(("a",)), (*map(Literal, choices), *rest))
    outcomes = [semantics.equal(value, one) for one in [*choices, *([7] if with_expression else [])]]
    expected = True if True in outcomes else None if None in outcomes else False
    binding = bound("CREATE INDEX by_a ON k (a, b)")
    assert binding.test(listed)([value, 7], "", {}) is expected
    row = Or(tuple(Comparison("=", listed.operand, one) for one in listed.choices))
    for condition, wanted in ((listed, True), (Not(listed), False), (row, True), (Not(row), False)):
        holds = expected is wanted
        assert (binding.test(normal(condition))([value, 7], "", {}) is True) is holds
        document = {"b": 7} if value is MISSING else {"a": value, "b": 7}
        assert is_projected(condition, json.dumps(document).encode()) is holds


def is_projected(condition: Predicate, document: bytes) -> bool:
    """Whether an index with this WHERE has an entry of a document."""
    definition = msgspec.structs.replace(defined("CREATE INDEX by_id ON k (id)"), where=condition)
    compiled = compile_index(definition)
    documents = DocumentReader(compiled.fields).read([document]).documents
    return bool(compiled.project([0], documents, [b"u1"])[0])


@pytest.mark.parametrize("form", ["a IN ({})", "NOT (a IN ({}))", "a NOT IN ({}) AND b > 0"])
def test_a_thousand_numbers_cost_as_much_as_one(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries were compared with the numbers one after the other: 43 s for a count of a small index."""
    condition = normal(parse_predicate(form.format(",".join(map(str, range(900))))))
    test = bound("CREATE INDEX by_a ON k (a, b)").test(condition)
    compared: list[Value] = []

    def equal(left: Value, right: Value) -> bool | None:
        compared.append(right)
        return left == right

    monkeypatch.setattr(semantics, "equal", equal)
    for value in (5, 5.0, 1_000, 2**70, "5", True):
        test([value, 7], "", {})
    assert compared == []


def test_many_equalities_are_a_list() -> None:
    asked = [f"a = {number}" for number in range(100)]
    assert isinstance(normal(parse_predicate(" OR ".join(asked))), In)
    others = normal(parse_predicate(" AND ".join(asked).replace("=", "<>")))
    assert isinstance(others, Not)
    assert isinstance(others.operand, In)
    mixed = normal(parse_predicate(" OR ".join([*asked, "b IN (1, 2)", "a IN (200, 201)", "c > 1"])))
    assert isinstance(mixed, Or)
    assert len(mixed.operands) == 3
