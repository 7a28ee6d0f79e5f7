"""What every structure must do (`keytide.structure.Structure`), with whole digests and with ones that
collide."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.local.cursor import flaw
from indexer.scan.peer.messages import ReadSpan
from indexer.scan.plan.selection import Shape
from keytide.collation import encode_key, key_forms
from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import CallerError, InvariantViolationError
from keytide.model.entry import MAX_KEY_BYTES, check_value, pack_keyed_value, pack_value, unpack_value
from keytide.query.plan.intervals import Interval
from keytide.structure import STRUCTURES, NotOrderedError, Structure, WantedKeys, structure_of
from projector.core.projection import KeyspacePlan, SourceBatch, project
from tests import share
from tests.structure_kit import as_stored, digests_of, entries_by_key, places

NAMES = sorted(STRUCTURES)
OF_VALUES = [name for name in NAMES if name != "spatial"]
"""Those whose keys are whatever values; the keys of the others are places (`test_spatial_index`, and
`tests/property/test_geometry.py`)."""
parts = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 2.0, 2**60]), st.text(max_size=3)
)
keys_of_two = st.lists(st.tuples(parts, parts), min_size=1, max_size=8, unique_by=lambda one: encode_key(one))
keys_of_places = st.lists(st.tuples(places()), min_size=1, max_size=3, unique_by=lambda one: encode_key(one))


def definition_of(text: str) -> IndexDefinition:
    parsed = parse_statement(text)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


@pytest.fixture(
    params=[8, 1, 0, None], ids=lambda bits: f"{bits or 'no' if bits is not None else 'all'}-bits"
)
def digests(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param is None:
        yield
        return
    with digests_of(request.param):
        yield


def index(name: str) -> IndexDefinition:
    parts = "(a, b)" if name in OF_VALUES else "(a)"
    return definition_of(f"CREATE INDEX i ON users USING {name} {parts} INCLUDE (c)")


def keys_for(name: str) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return keys_of_two if name in OF_VALUES else keys_of_places


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("digests")
def test_entries_of_a_document_are_apart_and_read_back(name: str) -> None:
    definition = index(name)
    structure = definition.structure

    @settings(max_examples=share.examples(400))
    @given(keys_for(name), st.sampled_from(["d", "\x00", "é", "ÿÿ"]))
    def run(keys: list[tuple[Any, ...]], id_: str) -> None:
        made = [(encode_key(key), key_forms(key), json.dumps({"c": 1}).encode()) for key in keys]
        by_key = entries_by_key(definition, made)
        for entries in by_key if structure.several else [list(itertools.chain(*by_key))]:
            stored_keys = [stored for stored, _ in entries]
            assert len(set(stored_keys)) == len(stored_keys)
            assert len(stored_keys) == len(keys) or structure.several
        assert structure.several or {len(entries) for entries in by_key} == {1}
        for (canonical, forms, include), (stored, value) in [
            (one, entry) for one, entries in zip(made, by_key, strict=True) for entry in entries
        ]:
            entry_key = stored + id_.encode()
            assert structure.id_start(entry_key) == len(stored)
            assert structure.id_starts([entry_key, entry_key]) == [len(stored)] * 2
            assert structure.canonical(stored, value) == canonical
            full, rest = structure.in_full(entry_key, value)
            assert (full, unpack_value(rest)) == (canonical + id_.encode(), (forms, include))
            assert check_value(value) == structure.key_in_value
            structure.check(entry_key, value)
            bare = structure.without_columns(value)
            assert structure.in_full(entry_key, bare)[0] == full
            assert unpack_value(structure.in_full(entry_key, bare)[1]) == (forms, None)

    run()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("digests")
def test_what_a_document_stores_does_not_depend_on_the_order_of_its_keys(name: str) -> None:
    structure = index(name).structure

    @settings(max_examples=share.examples(400))
    @given(keys_for(name))
    def run(keys: list[tuple[Any, ...]]) -> None:
        encoded = [encode_key(key) for key in keys]
        there = dict(zip(encoded, structure.stored(encoded), strict=True))
        back = dict(zip(encoded[::-1], structure.stored(encoded[::-1]), strict=True))
        assert there == back

    run()


@pytest.mark.parametrize("name", OF_VALUES)
@pytest.mark.usefixtures("digests")
def test_whole_keys_select_their_entries_and_no_others(name: str) -> None:
    definition = index(name)
    structure = definition.structure

    @given(keys_of_two, st.data())
    def run(keys: list[tuple[Any, Any]], data: st.DataObject) -> None:
        wanted = data.draw(st.sampled_from(keys))
        selected = structure.selected(WantedKeys(equals=list(wanted)))
        boxed = structure.boxed(
            {at: (point(encode_key([part])),) for at, part in enumerate(wanted)}, most=100
        )
        assert not isinstance(boxed, str)
        assert boxed.realised == {0, 1}
        for each in ("one document", "each its own"):
            for key, stored, value in entries_of(definition, keys, together=each == "one document"):
                meant = encode_key(key) == encode_key(wanted)
                canonical = structure.canonical(stored, value)
                entry_key = stored + b"d1"
                assert meant == (
                    any(entry_key in span for span in selected.spans)
                    and (not selected.keys or canonical in selected.keys)
                )
                assert meant == (
                    any(entry_key in span for span in boxed.spans)
                    and (not boxed.keys or canonical in boxed.keys)
                )

    run()


def point(code: bytes) -> Interval:
    return (
        Interval(code, code[:-1] + bytes((code[-1] + 1,))) if code[-1] < 255 else Interval(code, code + b"\0")
    )


def entries_of(
    definition: IndexDefinition, keys: list[tuple[Any, Any]], together: bool
) -> Iterator[tuple[tuple[Any, Any], bytes, bytes]]:
    made = [(encode_key(key), key_forms(key), None) for key in keys]
    if together:
        entries = as_stored(definition, made)
    else:
        entries = [entry for one in made for entry in as_stored(definition, [one])]
    for key, (stored, value) in zip(keys, entries, strict=True):
        yield key, stored, value


@pytest.mark.parametrize("name", NAMES)
def test_no_condition_is_the_whole_index(name: str) -> None:
    structure = index(name).structure
    selected = structure.selected(WantedKeys())
    assert ([(one.low, one.high) for one in selected.spans], selected.keys) == ([(b"", None)], ())
    if name not in OF_VALUES:
        return
    boxed = structure.boxed({}, most=100)
    assert not isinstance(boxed, str)
    assert [(one.low, one.high) for one in boxed.spans] == [(b"", None)]
    assert not boxed.keys


@pytest.mark.parametrize("name", OF_VALUES)
def test_too_many_parts_are_refused(name: str) -> None:
    with pytest.raises(CallerError, match="3 key parts were given, the index has 2"):
        structure_of(name, 2).selected(WantedKeys(equals=[1, 2, 3]))


@pytest.mark.parametrize("broken", [b"", b"\x30Bos", b"\xff" * 16])
@pytest.mark.parametrize("name", OF_VALUES)
def test_bytes_that_are_no_entry_key_are_an_error(name: str, broken: bytes) -> None:
    with pytest.raises(InvariantViolationError):
        structure_of(name, 2).id_start(broken)
    with pytest.raises(InvariantViolationError):
        structure_of(name, 2).id_starts([broken])


def test_entries_that_are_none_of_their_structure_are_an_error() -> None:
    one, other = encode_key(["a", 1]), encode_key(["b", 1])
    for name in OF_VALUES:
        structure = structure_of(name, 2)
        ((stored,),) = structure.stored([one])
        right, wrong = pack_keyed_value(b"", None, one), pack_value(b"", b"{}")
        if name == "btree":
            right, wrong = wrong, right
        structure.check(stored + b"d", right)
        for value in (wrong, right + b"\0", *((b"",) if structure.key_in_value else ())):
            with pytest.raises(InvariantViolationError):
                structure.check(stored + b"d", value)
        with pytest.raises(InvariantViolationError):
            structure.check(stored[:9], right)
    ((stored,),) = structure_of("hash", 2).stored([one])
    for key in (other, one[:-1], one + b"\0"):
        with pytest.raises(InvariantViolationError):
            structure_of("hash", 2).check(stored + b"d", pack_keyed_value(b"", None, key))


def test_what_a_slice_gave_is_seen_to_be_of_its_structure() -> None:
    one, other = encode_key(["a", 1]), encode_key(["b", 1])
    span = ReadSpan("i", [0], [(b"", None)], [b""], False)
    for name in OF_VALUES:
        definition = index(name)
        shape = Shape.of(definition)
        ((stored, value),) = as_stored(definition, [(one, b"", b"{}")])
        ((_, another),) = as_stored(definition, [(other, b"", b"{}")])
        keyed = pack_keyed_value(b"", b"{}", one)
        assert flaw([(stored + b"d", value)], span, b"", shape) == ""
        for wrong in (another, b"") if definition.structure.key_in_value else (keyed,):
            assert "cannot be read" in flaw([(stored + b"d", wrong)], span, b"", shape)


@pytest.mark.parametrize("name", OF_VALUES)
def test_the_projector_makes_what_the_structure_says(name: str) -> None:
    definition = definition_of(f"CREATE INDEX i ON users USING {name} (UNNEST(tags), n) INCLUDE (n)")
    documents = [{"tags": ["a", "b", 1, 1.0], "n": 5.0}, {"tags": ["a"], "n": "x" * 100}]
    with digests_of(0):
        batch = SourceBatch(
            0, -1, 0, 2, [0, 1], [b"d1", b"d2"], [json.dumps(one).encode() for one in documents], [0, 0]
        )
        found = project(batch, KeyspacePlan([("i", definition)])).indexes["i"]
    values = found.values or [b""] * len(found.keys)
    structure = definition.structure
    canonical = list(map(structure.canonical, found.keys, values))
    wanted: list[list[Any]] = [["a", 5.0], ["b", 5.0], [1, 5.0], ["a", "x" * 100]]
    assert canonical == [encode_key(key) for key in wanted]
    assert found.ordinals.tolist() == [0, 0, 0, 1]
    assert len(set(found.keys[:3])) == 3
    assert found.partition_keys == [encode_key([key[0]]) for key in wanted]


def test_a_key_of_any_size_has_its_place_in_a_hash_index_alone() -> None:
    document = json.dumps({"a": "x" * 3 * MAX_KEY_BYTES}).encode()
    skips = {}
    for name in OF_VALUES:
        definition = definition_of(f"CREATE INDEX i ON users USING {name} (a)")
        batch = SourceBatch(0, -1, 0, 1, [0], [b"d1"], [document], [0])
        found = project(batch, KeyspacePlan([("i", definition)])).indexes["i"]
        skips[name] = [skip.reason for skip in found.skips]
        assert len(found.keys) == 1 - len(found.skips)
    assert skips == {"btree": ["key-too-large"], "hash": []}


# --- what has no order, says so ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        (WantedKeys(low=["a"]), "a range"),
        (WantedKeys(high=["a"]), "a range"),
        (WantedKeys(equals=["a"], prefix="b"), "a prefix"),
        (WantedKeys(equals=["a"]), "1 of 2 key parts"),
    ],
)
def test_a_hash_index_refuses_what_takes_an_order(wanted: WantedKeys, what: str) -> None:
    structure: Structure = structure_of("hash", 2)
    with pytest.raises(NotOrderedError, match=what) as refused:
        structure.selected(wanted)
    assert "USING btree" in refused.value.next_step


def test_a_hash_index_answers_no_box_with_a_range() -> None:
    structure = structure_of("hash", 2)
    of_a, of_b = point(encode_key(["a"])), point(encode_key([1]))
    for box in ({0: (of_a,)}, {0: (Interval(b"\x30", b"\x31"),), 1: (of_b,)}):
        assert "all parts of its key" in str(structure.boxed(box, 100))


def test_more_keys_than_spans_are_found_in_the_whole_index() -> None:
    points = tuple(point(encode_key([number])) for number in range(20))
    boxed = structure_of("hash", 1).boxed({0: points}, 10)
    assert not isinstance(boxed, str)
    assert [(one.low, one.high) for one in boxed.spans] == [(b"", None)]
    assert len(boxed.keys) == 20
    many = tuple(point(encode_key([number])) for number in range(101))
    assert "at most 10000" in str(structure_of("hash", 2).boxed({0: many, 1: many}, 10))


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE INDEX i ON users USING hash (a DESC)", "no part of its key is DESC"),
        ("CREATE INDEX i ON users USING hsh (a)", "there is no structure 'hsh'"),
        ("CREATE INDEX i ON users USING (a)", "USING needs the name of a structure"),
    ],
)
def test_statements_that_make_no_sense_are_refused(statement: str, reason: str) -> None:
    with pytest.raises(InvalidStatementError, match=reason):
        parse_statement(statement)


@pytest.mark.parametrize("name", NAMES)
def test_the_normal_form_gives_the_structure_back(name: str) -> None:
    definition = index(name)
    again = definition_of(normal_statement(definition))
    assert again.using == definition.using == name
    assert ("USING" in normal_statement(definition)) == (name != "btree")
