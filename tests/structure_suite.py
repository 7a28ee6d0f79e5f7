"""What every structure must do (`keytide.structure.Structure`): the conformance suite, which
`tests/unit/test_structures.py` runs for those that there are, with whole digests and with ones that collide,
and `tests/unit/test_fourth_structure.py` for one more.

Keys, documents and conditions are those of the structure's kit (`tests.structure_kit`). Where a property is
not every structure's, an attribute of the interface says so, never a name: `ordered`, `has_places`,
`several`, `key_in_value`, `key_limit`, and what `fault` forbids.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.local.examining import flaw
from indexer.scan.peer.messages import ReadSpan
from indexer.scan.plan.selection import Shape, selection_of
from indexer.scan.request.request import ScanRequest
from keytide.collation import Span, encode_key, encode_part, key_forms, merge_spans, successor
from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import CallerError, InvariantViolationError
from keytide.model.entry import check_value, pack_keyed_value, pack_value, unpack_value
from keytide.model.protocol import FIRST_PROTOCOL, NEEDED
from keytide.query.parse.select import Select
from keytide.query.parse.statement import parse_query
from keytide.query.plan.choose import described
from keytide.query.plan.intervals import Interval
from keytide.query.plan.plan import Candidate, Plan, Refusal, plan_on
from keytide.structure import (
    DEFAULT_STRUCTURE,
    STRUCTURES,
    NotOrderedError,
    Structure,
    WantedKeys,
    Wishes,
    keeps_places,
)
from keytide.structure.spatial import firsts_of_several
from projector.core.projection import KeyspacePlan, Projected, SourceBatch, project
from tests import share
from tests.structure_kit import KITS, Condition, Key, Made, as_stored, digests_of, entries_by_key, kit_of

Entry = tuple[bytes, bytes]


def definition_of(text: str) -> IndexDefinition:
    parsed = parse_statement(text)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


@cache
def index(name: str) -> IndexDefinition:
    columns = ", ".join(kit_of(name).columns)
    return definition_of(f"CREATE INDEX i ON users USING {name} ({columns}) INCLUDE (c)")


def point(code: bytes) -> Interval:
    return Interval(code, successor(code))


def made_of(keys: Iterable[Key]) -> list[Made]:
    return [(encode_key(key), key_forms(key), b'{"c":1}') for key in keys]


def lies_in(entry_key: bytes, canonical: bytes, spans: Sequence[Span], keys: Sequence[bytes]) -> bool:
    return any(entry_key in span for span in spans) and (not keys or canonical in keys)


def projected(definition: IndexDefinition, *documents: dict[str, Any]) -> Projected:
    ids: list[bytes | None] = [b"d%d" % at for at in range(len(documents))]
    values: list[bytes | None] = [json.dumps(one).encode() for one in documents]
    count = len(documents)
    batch = SourceBatch(0, -1, 0, count, list(range(count)), ids, values, [0] * count)
    return project(batch, KeyspacePlan([("i", definition)])).indexes["i"]


class StructureSuite:
    """One structure, which the fixture `name` names."""

    # --- what it says of itself ---------------------------------------------------------------------------

    def test_what_it_says_of_itself_goes_together(self, name: str) -> None:
        kind, structure = STRUCTURES[name], index(name).structure
        assert kind.name == structure.name == name
        assert FIRST_PROTOCOL <= kind.since <= NEEDED
        assert (kind.since == FIRST_PROTOCOL) == (name == DEFAULT_STRUCTURE)
        assert keeps_places(structure) == kind.has_places == hasattr(structure, "indexed_places")
        assert not (kind.ordered and (kind.has_places or kind.key_in_value))
        # The projector makes several entries of places only, and readers tell the first of them by its cell.
        assert kind.has_places or not kind.several
        assert structure.parts == len(kit_of(name).columns)
        assert structure.descending == ()

    def test_what_has_no_order_has_no_direction(self, name: str) -> None:
        kind = STRUCTURES[name]
        assert kind.made(1, (), 4326).fault(Wishes()) is None
        fault = kind.made(1, (True,), 4326).fault(Wishes())
        assert (fault is None) == kind.ordered
        assert fault is None or "DESC" in fault[1]
        if fault is not None:
            with pytest.raises(InvalidStatementError, match=fault[0][:20]):
                parse_statement(f"CREATE INDEX i ON users USING {name} (a DESC)")

    @pytest.mark.parametrize(
        ("wishes", "statement"),
        [
            (Wishes(unique=True), "CREATE UNIQUE INDEX i ON users USING {} (a)"),
            (
                Wishes(include_missing=True),
                "CREATE INDEX i ON users USING {} (a) WITH (include_missing=true)",
            ),
            (Wishes(elements=True), "CREATE INDEX i ON users USING {} (UNNEST(a))"),
        ],
    )
    def test_what_it_does_not_go_with_is_refused_as_it_says(
        self, name: str, wishes: Wishes, statement: str
    ) -> None:
        fault = STRUCTURES[name].made(1, (), 4326).fault(wishes)
        if fault is None:
            assert definition_of(statement.format(name)).using == name
            return
        with pytest.raises(InvalidStatementError) as refused:
            parse_statement(statement.format(name))
        assert fault[0] in str(refused.value)
        assert refused.value.next_step == fault[1]

    def test_the_normal_form_gives_the_structure_back(self, name: str) -> None:
        definition = index(name)
        again = definition_of(normal_statement(definition))
        assert again.using == definition.using == name
        assert ("USING" in normal_statement(definition)) == (name != DEFAULT_STRUCTURE)
        assert f"USING {name} " in normal_statement(definition, name_btree=True)

    # --- entries ------------------------------------------------------------------------------------------

    @pytest.mark.usefixtures("digests")
    def test_entries_of_a_document_are_apart_and_read_back(self, name: str) -> None:
        """And what a document stores does not depend on the order of its keys."""
        definition = index(name)
        structure = definition.structure

        @settings(max_examples=share.examples(400))
        @given(kit_of(name).keys, st.sampled_from(["d", "\x00", "é", "ÿÿ"]))
        def run(keys: list[Key], id_: str) -> None:
            made = made_of(keys)
            by_key = entries_by_key(definition, made)
            back = structure.stored([key for key, _, _ in made[::-1]])[::-1]
            assert back == [tuple(stored for stored, _ in entries) for entries in by_key]
            # Several entries of one key are of one document; those of several keys may meet there.
            for entries in by_key if structure.several else [[one for some in by_key for one in some]]:
                assert len({stored for stored, _ in entries}) == len(entries)
            assert structure.several or {len(entries) for entries in by_key} == {1}
            for (canonical, forms, include), entries in zip(made, by_key, strict=True):
                assert [stored for stored, _ in entries] == sorted(stored for stored, _ in entries)
                for stored, value in entries:
                    entry_key = stored + id_.encode()
                    assert entry_key.startswith(structure.stem(canonical))
                    assert structure.key_in_value or stored == canonical
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
                    structure.check(entry_key, bare)

        run()

    def test_stored_keys_are_as_long_as_is_said_and_in_the_order_that_is_said(self, name: str) -> None:
        structure = index(name).structure

        @settings(max_examples=share.examples(200))
        @given(kit_of(name).keys)
        def run(keys: list[Key]) -> None:
            encoded = sorted(encode_key(key) for key in keys)
            stored = [structure.stored([key])[0] for key in encoded]
            for key, some in zip(encoded, stored, strict=True):
                assert {len(one) for one in some} == {structure.stored_bytes or len(key)}
            if structure.ordered:
                assert stored == sorted(stored)
                for key in encoded:
                    stem = structure.stem(key)
                    assert sum(one.startswith(stem) for (one,) in stored) == 1

        run()

    def test_bytes_that_are_no_entry_key_are_an_error(self, name: str) -> None:
        structure = index(name).structure
        for broken in kit_of(name).no_entry_keys:
            with pytest.raises(InvariantViolationError):
                structure.id_start(broken)
            with pytest.raises(InvariantViolationError):
                structure.id_starts([broken])

    def test_entries_that_are_none_of_their_structure_are_an_error(self, name: str) -> None:
        definition = index(name)
        structure = definition.structure

        @settings(max_examples=share.examples(50))
        @given(kit_of(name).keys)
        def run(keys: list[Key]) -> None:
            for made in made_of(keys):
                for stored, value in as_stored(definition, [made]):
                    entry_key = stored + b"d"
                    structure.check(entry_key, value)
                    of_another = (
                        pack_value(*made[1:]) if structure.key_in_value else pack_keyed_value(b"", None, b"")
                    )
                    for wrong in (of_another, value + b"\0", *((b"",) if structure.key_in_value else ())):
                        with pytest.raises(InvariantViolationError):
                            structure.check(entry_key, wrong)
                    with pytest.raises(InvariantViolationError):
                        structure.check(stored[:-1], value)
                    if not structure.key_in_value:
                        continue
                    for key in (made[0][:-1], made[0] + b"\0"):
                        with pytest.raises(InvariantViolationError):
                            structure.check(entry_key, pack_keyed_value(made[1], None, key))
            alone = [as_stored(definition, [made]) for made in made_of(keys)]
            for entries, others in itertools.product(alone, alone):
                for stored, another in _of_another(definition, entries, others):
                    with pytest.raises(InvariantViolationError):
                        structure.check(stored + b"d", another)

        run()

    def test_what_a_slice_gave_is_seen_to_be_of_its_structure(self, name: str) -> None:
        span = ReadSpan("i", [0], [(b"", None)], [b""], False)
        definition = index(name)
        shape = Shape.of(definition)

        @settings(max_examples=share.examples(50))
        @given(kit_of(name).keys)
        def run(keys: list[Key]) -> None:
            alone = [as_stored(definition, [made]) for made in made_of(keys)]
            for made, entries in zip(made_of(keys), alone, strict=True):
                for stored, value in entries:
                    assert flaw([(stored + b"d", value)], span, b"", shape) == ""
                    keyed = pack_keyed_value(b"", b"{}", made[0])
                    for wrong in (
                        (pack_value(*made[1:]), b"") if definition.structure.key_in_value else (keyed,)
                    ):
                        assert "cannot be read" in flaw([(stored + b"d", wrong)], span, b"", shape)
                for others in alone:
                    for stored, another in _of_another(definition, entries, others):
                        assert "cannot be read" in flaw([(stored + b"d", another)], span, b"", shape)

        run()

    # --- what the projector makes -------------------------------------------------------------------------

    @pytest.mark.usefixtures("digests")
    def test_the_projector_stores_what_the_structure_says(self, name: str) -> None:
        definition, kit = index(name), kit_of(name)

        @settings(max_examples=share.examples(200))
        @given(kit.keys)
        def run(keys: list[Key]) -> None:
            found = projected(definition, *map(kit.document, keys))
            wanted = [
                (at, *entry) for at, one in enumerate(made_of(keys)) for entry in as_stored(definition, [one])
            ]
            values = found.values or [b""] * len(found.keys)
            assert list(zip(found.ordinals.tolist(), found.keys, values, strict=True)) == wanted
            assert not found.skips

        run()

    def test_entries_of_elements_are_what_the_structure_says(self, name: str) -> None:
        if STRUCTURES[name].made(2, (), 4326).fault(Wishes(elements=True)) is not None:
            return  # it has none, and refuses them (above)
        definition = definition_of(f"CREATE INDEX i ON users USING {name} (UNNEST(tags), n) INCLUDE (n)")
        with digests_of(0):
            found = projected(
                definition, {"tags": ["a", "b", 1, 1.0], "n": 5.0}, {"tags": ["a"], "n": "x" * 100}
            )
        structure = definition.structure
        canonical = list(map(structure.canonical, found.keys, found.values or [b""] * len(found.keys)))
        wanted: list[list[Any]] = [["a", 5.0], ["b", 5.0], [1, 5.0], ["a", "x" * 100]]
        assert canonical == [encode_key(key) for key in wanted]
        assert found.ordinals.tolist() == [0, 0, 0, 1]
        assert len(set(found.keys[:3])) == 3
        assert found.partition_keys == [encode_key([key[0]]) for key in wanted]

    def test_a_key_of_any_size_has_its_place_where_there_is_no_limit(self, name: str) -> None:
        found = projected(index(name), kit_of(name).large)
        reasons = [skip.reason for skip in found.skips]
        assert reasons == ([] if STRUCTURES[name].key_limit is None else ["key-too-large"])
        assert bool(found.keys) == (not reasons)

    # --- conditions ---------------------------------------------------------------------------------------

    @pytest.mark.usefixtures("digests")
    def test_a_key_is_found_by_the_condition_that_it_meets(self, name: str) -> None:
        kit = kit_of(name)

        @settings(max_examples=share.examples(200))
        @given(kit.keys, st.data())
        def run(keys: list[Key], data: st.DataObject) -> None:
            condition = kit.whole(data.draw(st.sampled_from(keys)))
            assert self.answered(name, keys, condition)

        run()

    @pytest.mark.usefixtures("digests")
    def test_whatever_is_answered_is_what_is_meant(self, name: str) -> None:
        kit = kit_of(name)

        @settings(max_examples=share.examples(200))
        @given(kit.keys, st.data())
        def run(keys: list[Key], data: st.DataObject) -> None:
            condition = data.draw(kit.conditions(keys))
            if self.answered(name, keys, condition):
                return
            assert not STRUCTURES[name].ordered
            with pytest.raises(NotOrderedError) as refused:
                index(name).structure.selected(condition.wanted)
            assert f"USING {DEFAULT_STRUCTURE}" in refused.value.next_step

        run()

    def answered(self, name: str, keys: list[Key], condition: Condition) -> bool:
        """Whether a selection is answered, rather than refused; then see that it is the right answer."""
        definition = index(name)
        structure = definition.structure
        try:
            selected = structure.selected(condition.wanted)
        except NotOrderedError:
            return False
        meant = {encode_key(key): condition.means(key) for key in keys}
        for some in ([keys], [[key] for key in keys]):
            for together in some:
                by_key = entries_by_key(definition, made_of(together))
                for key, entries in zip(together, by_key, strict=True):
                    self._found_if_meant(structure, key, entries, selected, meant[encode_key(key)])
        far = [encode_key(key) for key in condition.away]
        for canonical, some_stored in zip(far, structure.stored(far), strict=True):
            for stored in some_stored:
                assert not lies_in(stored + b"d", canonical, selected.spans, selected.keys)
        return True

    @staticmethod
    def _found_if_meant(
        structure: Structure, key: Key, entries: list[Entry], selected: Any, meant: bool
    ) -> None:
        spans = merge_spans(selected.spans)
        read = [
            (stored + b"d", value)
            for stored, value in entries
            if lies_in(stored + b"d", encode_key(key), spans, selected.keys)
        ]
        assert read or not meant
        # Of places more is read than meets a condition (nothing far from them), and tested again.
        assert meant or not read or structure.has_places
        if structure.several:
            firsts = firsts_of_several([(one.low, one.high) for one in spans])
            assert len(firsts(read)) == bool(read)
        else:
            assert len(read) <= 1

    @pytest.mark.usefixtures("digests")
    def test_a_box_is_answered_as_far_as_is_said(self, name: str) -> None:
        definition, kit = index(name), kit_of(name)
        structure = definition.structure
        if structure.has_places:
            return  # it refuses each (below)

        @settings(max_examples=share.examples(300))
        @given(kit.keys, st.data(), st.sampled_from([1, 2, 100]))
        def run(keys: list[Key], data: st.DataObject, most: int) -> None:
            box: dict[int, tuple[Interval, ...]] = {}
            for at in range(structure.parts):
                codes = sorted({encode_part(key[at]) for key in keys})
                one, other = sorted([data.draw(st.sampled_from(codes)), data.draw(st.sampled_from(codes))])
                chosen = data.draw(st.sampled_from(["any", "one", "some", "between"]))
                if chosen == "between":
                    box[at] = (Interval(one, successor(other)),)
                elif chosen != "any":
                    box[at] = tuple(map(point, dict.fromkeys([one, other] if chosen == "some" else [one])))
            found = structure.boxed(box, most)
            whole = len(box) == structure.parts and all(
                each.is_point for some in box.values() for each in some
            )
            if isinstance(found, str):
                # What has no order need not find more than whole keys.
                assert box
                assert not structure.ordered
                assert not whole
                return
            if whole and math.prod(map(len, box.values())) <= most:
                assert found.realised == set(range(structure.parts))
            assert set(found.realised) <= set(box)
            for each in keys:
                codes = [encode_part(part) for part in each]
                meets = {
                    at: any(part.low <= codes[at] < part.high for part in some) for at, some in box.items()
                }
                for stored, _ in as_stored(definition, made_of([each])):
                    read = lies_in(stored + b"d", encode_key(each), found.spans, found.keys)
                    assert read or not all(meets.values())
                    assert not read or all(meets[at] for at in found.realised)

        run()

    def test_values_are_found_by_what_has_values_and_places_by_what_has_places(self, name: str) -> None:
        structure = index(name).structure
        one = point(encode_part("x"))
        for values in ((one,), (one, point(encode_part(1))), (Interval(one.low, b"\xff"),)):
            found = structure.boxed(dict.fromkeys(range(structure.parts), values), 100)
            if structure.has_places:
                assert "finds places only" in str(found)
            elif structure.ordered or all(each.is_point for each in values):
                assert not isinstance(found, str)
        for kit in KITS:
            select = parse_query(f"SELECT id FROM users WHERE {kit.where}")
            assert isinstance(select, Select)
            planned = plan_on(select, Candidate("i", index(name)))
            if kit is kit_of(name):
                assert isinstance(planned, Plan)
            elif structure.has_places:
                assert isinstance(planned, Refusal)

    def test_no_condition_is_the_whole_index(self, name: str) -> None:
        structure = index(name).structure
        selected = structure.selected(WantedKeys())
        assert ([(one.low, one.high) for one in selected.spans], selected.keys) == ([(b"", None)], ())
        boxed = structure.boxed({}, most=100)
        assert (
            isinstance(boxed, str) == structure.has_places
        )  # what is read of places, a condition on one says
        if not isinstance(boxed, str):
            assert [(one.low, one.high) for one in boxed.spans] == [(b"", None)]
            assert (boxed.keys, boxed.realised, boxed.depth) == ((), frozenset(), 0)

    def test_more_parts_than_the_key_has_are_refused(self, name: str) -> None:
        structure = index(name).structure
        given_parts = [1] * (structure.parts + 1)
        with pytest.raises(CallerError) as refused:
            structure.selected(WantedKeys(equals=given_parts))
        assert refused.value.status == 422
        if not structure.has_places:
            assert f"{len(given_parts)} key parts were given, the index has {structure.parts}" in str(
                refused.value
            )

    @pytest.mark.parametrize("asked", [{"distinct": True}, {"reverse": True}])
    def test_what_takes_an_order_is_answered_if_there_is_one(self, name: str, asked: dict[str, bool]) -> None:
        shape = Shape.of(index(name))
        question = ScanRequest()
        if STRUCTURES[name].ordered:
            assert selection_of(question, shape, 1, **asked).spans
            return
        with pytest.raises(NotOrderedError, match=f"a {name} index has no order of keys"):
            selection_of(question, shape, 1, **asked)

    # --- plans --------------------------------------------------------------------------------------------

    def test_a_plan_says_which_structure_it_is_on(self, name: str) -> None:
        select = parse_query(f"SELECT id FROM users WHERE {kit_of(name).where}")
        assert isinstance(select, Select)
        plan = plan_on(select, Candidate("i", index(name)))
        assert isinstance(plan, Plan)
        assert plan.reading.bounded
        assert described(plan, [], [])["structure"] == name

    def test_a_query_by_an_order_is_answered_in_it_or_sorted_or_refused_by_name(self, name: str) -> None:
        select = parse_query("SELECT a FROM users WHERE a IS NOT MISSING ORDER BY a LIMIT 3")
        assert isinstance(select, Select)
        plan = plan_on(select, Candidate("i", index(name)))
        if isinstance(plan, Refusal):
            assert plan.reason.startswith(f"it is USING {name}: it ")
        assert (isinstance(plan, Plan) and plan.ordered) == STRUCTURES[name].ordered


def _of_another(definition: IndexDefinition, entries: list[Entry], others: list[Entry]) -> list[Entry]:
    """Stored keys of one key with values of another, where the structure can tell: it has the key in them,
    and the two have no stored key in common."""
    mine = {stored for stored, _ in entries}
    if not definition.structure.key_in_value or mine & {stored for stored, _ in others}:
        return []
    return [(stored, value) for stored in sorted(mine) for _, value in others]
