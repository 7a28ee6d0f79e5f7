"""Every structure does what one must (`tests.structure_suite`), a hash index also with digests that collide;
and what is a hash index's alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final
from unittest import mock

import pytest

from indexer.scan.local.examining import flaw
from indexer.scan.peer.messages import ReadSpan
from indexer.scan.plan.selection import Shape
from keytide.collation import Span, encode_key, merge_spans
from keytide.definition.errors import InvalidStatementError
from keytide.definition.statement import parse_statement
from keytide.errors import InvariantViolationError
from keytide.model.entry import pack_keyed_value
from keytide.query.plan.intervals import Interval
from keytide.structure import STRUCTURES, NotOrderedError, Selected, Structure, WantedKeys, structure_of
from keytide.structure.spatial import Spatial
from tests.structure_kit import as_stored, digests_of, kit_of
from tests.structure_suite import StructureSuite, index, made_of, point

BITS: Final = {"hash": (8, 1, 0)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each structure, and a hash index with digests of so many bits: all, and few."""
    if "digests" in metafunc.fixturenames:
        cases = [(name, bits) for name in sorted(STRUCTURES) for bits in [None, *BITS.get(name, ())]]
        metafunc.parametrize(("name", "digests"), cases, indirect=["digests"])
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", sorted(STRUCTURES))


@pytest.fixture
def digests(request: pytest.FixtureRequest) -> Iterator[None]:
    with digests_of(request.param) if request.param is not None else nullcontext():
        yield


@pytest.fixture(autouse=True, scope="module")
def coverings() -> Iterator[None]:
    """Each place is covered once: `check` does so for every entry of a document, which are up to eight."""
    with mock.patch.object(Spatial, "_stored", functools.lru_cache(1_000)(Spatial._stored)):
        yield


class TestEveryStructure(StructureSuite):
    """Those of the registry."""


def test_a_hash_index_tells_entries_by_the_key_in_them() -> None:
    one, other = encode_key(["a", 1]), encode_key(["b", 1])
    ((stored,),) = structure_of("hash", 2).stored([one])
    for key in (other, one[:-1], one + b"\0"):
        with pytest.raises(InvariantViolationError):
            structure_of("hash", 2).check(stored + b"d", pack_keyed_value(b"", None, key))


def test_the_value_of_another_key_of_a_hash_index_is_seen_in_what_a_slice_gave() -> None:
    definition = index("hash")
    ((stored, value),), ((_, another),) = (
        as_stored(definition, made_of([key])) for key in (("a", 1), ("b", 1))
    )
    span = ReadSpan("i", [0], [(b"", None)], [b""], False)
    assert flaw([(stored + b"d", value)], span, b"", Shape.of(definition)) == ""
    assert "cannot be read" in flaw([(stored + b"d", another)], span, b"", Shape.of(definition))


@pytest.mark.parametrize("span", [Span(b"\0"), Span(b"", b"\xff"), Span(b"\x10", b"\x20")])
def test_what_is_read_far_from_a_place_is_seen(span: Span, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ({"type": "Point", "coordinates": [2.0, 41.0]},)
    condition = kit_of("spatial").whole(key)
    assert TestEveryStructure().answered("spatial", [key], condition)
    selected = Selected(
        tuple(merge_spans([*index("spatial").structure.selected(condition.wanted).spans, span]))
    )
    monkeypatch.setattr(Spatial, "selected", lambda self, wanted: selected)
    with pytest.raises(AssertionError):
        TestEveryStructure().answered("spatial", [key], condition)


# --- what has no order, says so ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        (WantedKeys(low=["a"]), "a range"),
        (WantedKeys(high=["a"]), "a range"),
        (WantedKeys(low=["a"], high=["a"]), "a range"),
        (WantedKeys(low=["a", 1], high=["a", 2]), "a range"),
        (WantedKeys(low=["a", 1], high=["a", 1], inclusion="low"), "a range"),
        (WantedKeys(equals=["a"], prefix="b"), "a prefix"),
        (WantedKeys(equals=["a"]), "1 of 2 key parts"),
    ],
)
def test_a_hash_index_refuses_what_takes_an_order(wanted: WantedKeys, what: str) -> None:
    structure: Structure = structure_of("hash", 2)
    with pytest.raises(NotOrderedError, match=what) as refused:
        structure.selected(wanted)
    assert "USING btree" in refused.value.next_step
    assert "leaves out keys of more than 16 KiB" in refused.value.next_step, "as this one does not"


def test_a_range_whose_ends_are_one_whole_key_takes_no_order() -> None:
    structure: Structure = structure_of("hash", 2)
    found = structure.selected(WantedKeys(low=["a", 1], high=["a", 1.0]))
    assert found == structure.selected(WantedKeys(equals=["a", 1]))


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
