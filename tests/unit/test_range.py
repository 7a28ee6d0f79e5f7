"""PARTITION BY RANGE: what statements say, and which slices values and spans lie in."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.scan.gather.scatter import Target
from indexer.scan.plan.selection import Shape
from indexer.scan.plan.selection import slices_of as selected
from indexer.scan.plan.tokens import PageToken
from indexer.scan.request.request import ScanRequest
from keytide.catalog.partitioning import Partitioning, readable_splits
from keytide.collation import MISSING, decode_key, encode_key, encode_part, span
from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import MAX_SPLIT_BYTES, IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import InvariantViolationError
from keytide.query.parse.statement import parse_query
from keytide.query.plan.plan import Candidate, Plan, plan_on
from projector.core.projection import KeyspacePlan, SourceBatch, project
from router import core as router
from streaming.core.extent_projection import ExtentProjection
from tests.statements import encode_splits
from tests.unit.scan_world import Doc, World
from tests.unit.test_scan_service import never


def definition_of(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


def ranged(rest: str) -> IndexDefinition:
    return definition_of(f"CREATE INDEX i ON k (a, b DESC) PARTITION BY RANGE({rest}")


def test_given_splits_say_how_many_slices_there_are() -> None:
    made = ranged("a) SPLIT AT (NULL, FALSE, -2.5, 7, 1180591620717411303424, 'x', 'y')")
    assert (made.partition_kind, made.slices, made.samples_splits) == ("range", 8, False)
    assert made.encoded_splits == encode_splits([None, False, -2.5, 7, 2**70, "x", "y"])
    assert readable_splits(made.encoded_splits) == [None, False, -2.5, 7, 2**70, "x", "y"]
    assert ranged("a) SPLIT AT (1) WITH (slices=2)").slices == 2


def test_a_split_that_was_sampled_may_be_missing_and_is_shown_as_rows_show_it() -> None:
    splits = readable_splits([encode_part(MISSING), encode_part([1, "x"])])
    assert json.loads(json.dumps(splits)) == [None, [1, "x"]]


def test_a_partition_between_equal_splits_is_empty() -> None:
    made = ranged("a) SPLIT AT (5, 5.0, 7)")
    assert made.slices == 4
    rule = Partitioning.of(made)
    assert [rule.partition_of(encode_part(one)) for one in (4, 5, 6, 7)] == [0, 2, 2, 3]


def test_splits_that_are_not_given_are_found_by_the_build() -> None:
    assert ranged("a) WITH (slices=3)").samples_splits
    assert not ranged("a) WITH (slices=1)").samples_splits, "one slice has no splits"
    assert not definition_of("CREATE INDEX i ON k (a)").samples_splits


@pytest.mark.parametrize(
    "rest", ["a) SPLIT AT ('it''s', 'y')", "LOWER(c)) WITH (slices=5)", "id)", "a) SPLIT AT (5, 5.0, 7)"]
)
def test_the_normal_form_means_the_same(rest: str) -> None:
    made = ranged(rest)
    again = definition_of(normal_statement(made))
    assert normal_statement(again) == normal_statement(made)
    assert msgspec.structs.replace(again, statement=made.statement) == made
    assert msgspec.json.decode(msgspec.json.encode(made), type=IndexDefinition) == made


@pytest.mark.parametrize(
    ("rest", "reason", "caret"),
    [
        ("a) SPLIT AT (5, 3)", "splits must ascend", "3"),
        ("a) SPLIT AT ('b', TRUE)", "splits must ascend", "TRUE"),
        ("a) SPLIT AT (1, c)", "SPLIT AT takes values", "c"),
        ("a) SPLIT AT (1 + 1)", "SPLIT AT takes values", "1 + 1"),
        ("a) SPLIT AT ()", "a value must stand here", ")"),
        ("a) SPLIT (1)", "AT must stand here", "("),
        ("a) SPLIT AT (1, 2) WITH (slices=2)", "2 splits make 3 slices, not 2", "2"),
        (f"a) SPLIT AT ('{'x' * MAX_SPLIT_BYTES}')", "a split takes at most", "'"),
        ("a, b)", "RANGE takes one expression", "b"),
        ("5)", "RANGE must say something about the document", "5"),
        ("UNNEST(c))", "UNNEST in RANGE must be written as in the key", "("),
    ],
)
def test_what_is_wrong_is_said_with_its_place(rest: str, reason: str, caret: str) -> None:
    with pytest.raises(InvalidStatementError, match=reason) as raised:
        ranged(rest)
    shown, marks = raised.value.caret.splitlines()
    start = marks.index("^")
    assert shown[start:].startswith(caret)
    assert marks.count("^") >= len(caret)


def test_a_hash_has_no_splits() -> None:
    with pytest.raises(InvalidStatementError, match="SPLIT AT goes with RANGE"):
        definition_of("CREATE INDEX i ON k (a) PARTITION BY HASH(a) SPLIT AT (1)")


def test_a_value_lies_behind_the_splits_that_are_not_above_it() -> None:
    rule = Partitioning.of(ranged("a) SPLIT AT (5, 'm', 'mm')"))
    values = (MISSING, None, 4.9, 5, 5.0, "a", "m", "ma", "mm")
    found = [rule.partition_of(encode_part(one)) for one in values]
    assert found == [0, 0, 0, 1, 1, 1, 2, 2, 3]


def test_between_equal_splits_there_is_nothing() -> None:
    split = encode_part("m")
    rule = Partitioning.of(ranged("a) WITH (slices=4)"), [split] * 3)
    assert [rule.partition_of(encode_part(one)) for one in ("a", "m", "z")] == [0, 3, 3]


def test_without_splits_an_entry_may_lie_anywhere() -> None:
    rule = Partitioning.of(ranged("a) WITH (slices=4)"))
    assert rule.partition_of(encode_part(5)) is None
    assert rule.slices_of_span(span([5], [6], True, True, (False, True), 2), b"") == range(4)


def test_spans_are_cut_to_slices_at_any_part_in_any_direction() -> None:
    leading = Partitioning.of(ranged("a) SPLIT AT (10, 20)"))
    directions = (False, True)
    assert leading.slices_of_span(span([3], [10], True, False, directions, 2), b"") == range(1)
    assert leading.slices_of_span(span([3], [10], True, True, directions, 2), b"") == range(2)
    assert leading.slices_of_span(span([20, 1], None, True, True, directions, 2), b"") == range(2, 3)
    behind = Partitioning.of(ranged("b) SPLIT AT (10, 20)"))
    before = encode_key(["x"])
    assert behind.slices_of_span(span(["x", 3], ["x", 10], True, False, directions, 2), before) == range(1)
    assert behind.slices_of_span(span(["x", 10], ["x"], True, True, directions, 2), before) == range(1, 3)
    assert behind.slices_of_span(span(["x"], ["x"], True, True, directions, 2), before) == range(3)
    assert behind.slices_of_span(span(["x", 20], ["x", 20], True, True, directions, 2), before) == range(2, 3)


# --- who asks must agree with who routes ------------------------------------------------------------------

STATEMENTS = (
    "CREATE INDEX i ON k (id)",
    "CREATE INDEX i ON k (id DESC)",
    "CREATE INDEX i ON k (a, id) PARTITION BY HASH(id)",
    "CREATE INDEX i ON k (a DESC, b) PARTITION BY HASH(b)",
    "CREATE INDEX i ON k (a) PARTITION BY RANGE(a) SPLIT AT (3, 5, 11, 40)",
    "CREATE INDEX i ON k (a DESC, id) PARTITION BY RANGE(a) SPLIT AT (3, 5, 11, 40)",
    "CREATE INDEX i ON k (a, id) PARTITION BY RANGE(id) SPLIT AT ('d2', 'd30', 'd5')",
    "CREATE INDEX i ON k (a, b DESC) PARTITION BY RANGE(b) SPLIT AT (1, 2, 3)",
    "CREATE INDEX i ON k (a) PARTITION BY RANGE(LOWER(c)) SPLIT AT ('m3', 'm5')",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_scans_and_queries_ask_the_slice_that_an_entry_was_sent_to(statement: str) -> None:
    definition = definition_of(statement)
    shape = Shape.of(definition)
    ids = [f"d{n}".encode() for n in range(60)]
    values = [b'{"a":%d,"b":%d,"c":"M%d"}' % (n % 50, n % 7, n) for n in range(60)]
    batch = SourceBatch(0, 0, 0, 60, range(60), list(ids), list(values), [0] * 60)
    made = project(batch, KeyspacePlan([("i", definition)])).indexes["i"]
    routed = router.slices_of(made.partition_keys, Partitioning.of(definition)).tolist()
    assert len(set(routed)) > 1
    for ordinal, key, number in zip(made.ordinals.tolist(), made.keys, routed, strict=True):
        parts, _ = decode_key(key, len(definition.keys), definition.descending)
        assert number in selected(ScanRequest(equals=list(parts)), shape)
        document = {**json.loads(values[ordinal]), "id": ids[ordinal].decode()}
        tests = [f"{name} = {literal(document[name])}" for name in ("id", "a", "b")]
        held = [one for one in tests if one.split()[0] in statement.split("ON k ")[1].split(")")[0]]
        plan = plan_on(
            parse_query(f"SELECT id FROM k WHERE {' AND '.join(held)}"), Candidate("i", definition)
        )
        assert isinstance(plan, Plan), plan
        assert number in plan.slices
        if definition.partition_part is not None:
            assert len(selected(ScanRequest(equals=list(parts)), shape)) == len(plan.slices) == 1


def literal(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def test_queries_ask_the_slices_of_ranges() -> None:
    definition = definition_of("CREATE INDEX i ON k (a) PARTITION BY RANGE(a) SPLIT AT (10, 20, 30, 'm')")

    def asked(condition: str) -> tuple[int, ...]:
        plan = plan_on(parse_query(f"SELECT a FROM k WHERE {condition}"), Candidate("i", definition))
        assert isinstance(plan, Plan), plan
        return plan.slices

    assert asked("a < 10") == (0,)
    assert asked("a <= 10") == (0, 1)
    assert asked("a >= 10 AND a < 20") == (1,)
    assert asked("a BETWEEN 12 AND 25 OR a = 'n'") == (1, 2, 4)
    assert asked("a > 25") == (2, 3), "numbers only"
    assert asked("a LIKE 'k%'") == (3,)


# --- routing of columns -----------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False, allow_infinity=False)
) | st.text(st.characters(codec="utf-8"), max_size=6)


@given(st.lists(scalars, max_size=40), st.lists(scalars, min_size=1, max_size=12), st.data())
def test_columns_go_where_single_keys_go(values: list[Any], cuts: list[Any], data: st.DataObject) -> None:
    splits = sorted(encode_part(cut) for cut in cuts)
    keys = [encode_part(value) for value in values]
    keys += data.draw(st.lists(st.sampled_from(splits), max_size=3)) if splits else []
    rule = Partitioning(len(splits) + 1, tuple(splits), ranged=True)
    expected = [sum(key >= split for split in splits) for key in keys]
    assert router.slices_of(keys, rule).tolist() == expected
    assert [rule.partition_of(key) for key in keys] == expected


@given(
    st.lists(st.tuples(scalars, scalars), min_size=1, max_size=30),
    st.lists(scalars, min_size=1, max_size=5),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 1),
    st.data(),
)
def test_spans_are_cut_to_the_slices_that_can_hold_them(
    keys: list[tuple[Any, Any]],
    cuts: list[Any],
    directions: tuple[bool, bool],
    part: int,
    data: st.DataObject,
) -> None:
    splits = tuple(sorted(encode_part(cut) for cut in cuts))
    rule = Partitioning(len(splits) + 1, splits, ranged=True, descending=directions[part])
    low, high = (list(data.draw(st.sampled_from(keys))) for _ in range(2))
    low, high = low[: data.draw(st.integers(part, 2))], high[: data.draw(st.integers(part, 2))]
    high[:part] = low[:part]
    chosen = span(low, high, data.draw(st.booleans()), data.draw(st.booleans()), directions, 2)
    if chosen.empty:
        return
    before = encode_key(low[:part], directions)
    asked = rule.slices_of_span(chosen, before)
    held = [key for key in keys if encode_key(key, directions) + b"d" in chosen]
    assert {rule.partition_of(encode_part(key[part])) for key in held} <= set(asked)
    if part == 0 and len(low) == len(high) == 2 and low == high:
        assert len(asked) == 1


# --- reading in order -------------------------------------------------------------------------------------


def numbered(statement: str, count: int) -> World:
    world = World(statement, node_count=2)
    world.commit(1, {"i": [Doc([n], f"d{n:03}") for n in range(count)]})
    return world


@pytest.mark.parametrize("direction", ["", " DESC"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("limit", "offset"), [(5, 0), (15, 12), (7, 31), (60, 0), (59, 0)])
def test_only_the_slices_that_a_page_needs_are_asked(
    direction: str, reverse: bool, limit: int, offset: int
) -> None:
    statement = f"CREATE INDEX i ON users (n{direction}) PARTITION BY RANGE(n) SPLIT AT (10, 20, 30, 40, 50)"
    world = numbered(statement, 60)
    expected = sorted(range(60), reverse=bool(direction) != reverse)

    async def read() -> None:
        service = next(iter(world.services().values()))
        request = ScanRequest(limit=limit, reverse=reverse, offset=offset, explain=True)
        begin, end = 0, offset + limit
        while begin < len(expected):
            answer = json.loads((await service.scan("i", request, never)).body)
            first = offset if begin == 0 else begin
            assert [row["key"][0] for row in answer["rows"]] == expected[first:end]
            needed = {n // 10 for n in expected[max(begin - 1, 0) : end + 1]}
            asked = {one["slice"] for one in answer["explain"]["slices"]}
            assert needed <= asked
            assert len(asked) <= 2 * len(needed), "twice as many at once when one was not enough"
            assert asked.isdisjoint({n // 10 for n in expected[:begin]} - needed)
            request = ScanRequest(page=answer["page"], explain=True)
            begin, end = end, end + limit

    asyncio.run(read())


@pytest.mark.parametrize("reverse", [False, True])
def test_a_token_of_before_new_splits_asks_somebody(reverse: bool) -> None:
    """With the splits that hold now, none of its slices lies ahead: it must not end as if all were read."""
    definition = definition_of("CREATE INDEX i ON users (n) PARTITION BY RANGE(n) WITH (slices=4)")
    made = Shape.of(definition, encode_splits([10, 20, 30]))
    after = encode_key((15,)) + b"d"
    token = PageToken("i1", 7, 0, 0, [(b"", None)], [("n1", [1])], after, reverse, 5, None, {}, in_order=1)
    moved = Shape.of(definition, encode_splits([1, 2, 3] if not reverse else [100, 200, 300]))

    async def asked(shape: Shape) -> set[int]:
        return set(Target.of(token, shape, (), 1.0, 1).nodes)

    assert asyncio.run(asked(made)) == {1}
    assert asyncio.run(asked(moved)) == {1}


def test_backfill_sends_entries_where_the_projector_does() -> None:
    definition = definition_of("CREATE INDEX i ON k (a DESC) PARTITION BY RANGE(a) WITH (slices=3)")
    splits = encode_splits([4, 8])
    ids = [f"d{n}".encode() for n in range(12)]
    batch = SourceBatch(0, 0, 0, 12, range(12), list(ids), [b'{"a":%d}' % n for n in range(12)], [0] * 12)
    plan = KeyspacePlan([("i", definition)])
    rule = Partitioning.of(definition, splits)
    share = ExtentProjection(plan, {"i": [7, 8, 9]}, {"i": rule}, {})
    share.add(batch)
    sent = {slot: sorted(entries.column("id").to_pylist()) for slot, entries in share.spill().entries.items()}
    assert sent == {slot: sorted(ids[4 * at : 4 * at + 4]) for at, slot in enumerate((7, 8, 9))}
    projected = project(batch, plan).indexes["i"]
    puts = [some for some, _ in router.route(projected, rule)]
    ordinals = [np.frombuffer(some.ordinals, "<u4").tolist() for some in puts if some is not None]
    assert ordinals == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def rule_of(partition: str, found: list[int]) -> Partitioning:
    return Partitioning.of(definition_of(f"CREATE INDEX i ON k (a) {partition}"), encode_splits(found))


@pytest.mark.parametrize(
    "partition",
    [
        "PARTITION BY RANGE(a) WITH (slices=2)",
        "PARTITION BY RANGE(a) SUBPARTITION BY HASH(id) SLICES 2 WITH (partitions=2)",
    ],
)
def test_nothing_is_routed_by_more_splits_than_there_can_be(partition: str) -> None:
    """Found for another definition."""
    with pytest.raises(InvariantViolationError, match="SplitsKnown"):
        router.slices_of([encode_part(5)], rule_of(partition, [18, 65]))


@pytest.mark.parametrize(
    "partition", ["PARTITION BY HASH(a) WITH (slices=3)", "PARTITION BY RANGE(a) WITH (slices=6)"]
)
def test_what_an_earlier_release_left_of_another_definition_is_routed_as_it_is_read(partition: str) -> None:
    rule = rule_of(partition, [18, 65])
    keys = [encode_part(value) for value in (5, 30, 99)]
    routed = router.slices_of(keys, rule)
    for key, number in zip(keys, routed.tolist(), strict=True):
        assert rule.partition_of(key) == number
