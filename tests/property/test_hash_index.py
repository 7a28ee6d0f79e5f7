"""Hash indexes through the scan endpoint, with digests of two bits: whole keys find their entries and no
others, in pages, counts, groups and queries."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from indexer.scan.aggregate.request import AggregateRequest
from indexer.scan.gather.aggregates import answer as aggregate
from indexer.scan.plan.selection import Shape, selection_of
from indexer.scan.request.request import CountRequest, ScanRequest, SpanRequest
from keytide.collation import encode_key
from keytide.errors import CallerError
from keytide.query.parse.statement import parse_query
from keytide.query.plan import boxes as boxes_of_plan
from keytide.query.plan.choose import NoIndexError
from keytide.query.plan.plan import Candidate, Plan, plan_on
from keytide.structure import NotOrderedError
from tests import share
from tests.property.test_query import answered, check, committed, definition_of, expected_rows, shown
from tests.structure_kit import digests_of
from tests.unit.scan_world import Doc, World, slice_of

parts = st.sampled_from(["", "a", "b", 0, 1, 1.0, 2.5, True, None, "a\x00b", "x" * 700])
wanted_parts = st.one_of(parts, st.sampled_from(["nowhere", -7]))


async def never() -> None:
    await asyncio.Event().wait()


def same(one: Any, other: Any) -> bool:
    return encode_key(list(one)) == encode_key(list(other))


@st.composite
def documents(draw: st.DrawFn) -> list[Doc]:
    keys = draw(st.lists(st.tuples(parts, parts), max_size=25))
    return [
        Doc(list(key), f"d{number:02}", json.dumps({"n": number}).encode()) for number, key in enumerate(keys)
    ]


@settings(max_examples=share.examples(200), deadline=None)
@given(
    documents(),
    st.lists(st.tuples(wanted_parts, wanted_parts), max_size=3),
    st.sampled_from(
        ["", "PARTITION BY HASH(id)", "PARTITION BY HASH(age)", "PARTITION BY RANGE(city) SPLIT AT (1)"]
    ),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([1, 3, 50_000]),
)
@digests_of(2)
def test_scans_and_counts_of_whole_keys(
    held: list[Doc], asked: list[tuple[Any, Any]], partition: str, limit: int, examined: int
) -> None:
    slices = "" if "SPLIT" in partition else "WITH (slices=3)"
    world = World(f"CREATE INDEX i ON users USING hash (city, age) INCLUDE (n) {partition} {slices}")
    world.examined = examined
    world.commit(1, {"i": held})
    equals: dict[str, Any] = {}
    if len(asked) == 1:
        equals = {"equals": list(asked[0])}
    elif asked:
        equals = {"spans": [SpanRequest(equals=list(one)) for one in asked]}
    expected = [doc for doc in held if not asked or any(same(doc.key, one) for one in asked)]
    event(f"asked {len(asked)}, found {min(len(expected), 3)}")

    async def run() -> tuple[list[dict[str, Any]], int, list[int]]:
        services = list(world.services().values())
        counted = json.loads((await services[0].count("i", CountRequest(**equals, explain=True), never)).body)
        rows: list[dict[str, Any]] = []
        request = ScanRequest(limit=limit, **equals)
        while True:
            services.append(services.pop(0))
            answer = json.loads((await services[-1].scan("i", request, never)).body)
            rows += answer["rows"]
            if answer["page"] is None:
                return rows, counted["count"], sorted({one for one, _ in (read(services, world))})
            request = ScanRequest(page=answer["page"])

    def read(services: Any, world: World) -> list[tuple[int, int]]:
        return [
            (number, 0)
            for nodes in world.nodes.values()
            for _, one in nodes.reads
            for number in one.span.slices
        ]

    rows, counted, slices_read = asyncio.run(run())
    assert Counter(map(repr, rows)) == Counter(
        repr({"key": list(doc.key), "id": doc.id, "include": json.loads(doc.include or b"{}")})
        for doc in expected
    )
    assert counted == len(expected)
    shapes = [one.shape for nodes in world.nodes.values() for _, one in nodes.reads]
    assert all(len(one.keys) == len({encode_key(list(key)) for key in asked}) for one in shapes)
    assert not any(one.filter for one in shapes), "keys are no filter: they are the reader's own"
    assert all(snapshot.readers == 0 for snapshot in world.held())
    if asked and "id" not in partition:  # a key says its slice
        definition = world.index("i").definition
        assert set(slices_read) <= {slice_of(definition, Doc(list(one), "x")) for one in asked}


@pytest.mark.parametrize(
    "clauses",
    [
        "(city, age)",
        "(city, age) INCLUDE (n) PARTITION BY HASH(id) WITH (slices=3, defer_build=true) WHERE n > 1",
        "(city, age) PARTITION BY RANGE(city) SPLIT AT ('b', 'c')",
    ],
)
def test_what_takes_an_order_is_refused_with_the_index_that_answers_it(clauses: str) -> None:
    world = World(f"CREATE INDEX i ON users USING hash {clauses}", "CREATE INDEX i_btree ON users (n)")
    world.commit(1, {"i": [], "i_btree": []})

    async def run(request: ScanRequest | CountRequest | AggregateRequest) -> None:
        shared = (service := next(iter(world.services().values()))).shared
        if isinstance(request, AggregateRequest):
            await aggregate(shared, "i", request, never)
        elif isinstance(request, CountRequest):
            await service.count("i", request, never)
        else:
            await service.scan("i", request, never)

    for request in (
        ScanRequest(low=["a"]),
        ScanRequest(high=["a"]),
        ScanRequest(equals=["a"]),
        ScanRequest(prefix="a"),
        ScanRequest(distinct=True),
        ScanRequest(spans=[SpanRequest(equals=["a", 1]), SpanRequest(low=["a"])]),
        ScanRequest(reverse=True),
        CountRequest(low=["a"]),
        CountRequest(distinct=True),
        AggregateRequest(functions=["count"], low=["a"]),
    ):
        with pytest.raises(NotOrderedError) as refused:
            asyncio.run(run(request))
        statement = refused.value.extra["create_index"]
        assert statement in refused.value.next_step
        assert "CREATE INDEX i_btree_2 ON users USING btree (city, age)" in statement
        made, was = definition_of(statement), world.index("i").definition
        assert made == msgspec.structs.replace(
            was, name=made.name, statement=statement, structure_name=msgspec.UNSET, defer_build=False
        )
        ways = {name: getattr(request, name, False) for name in ("distinct", "reverse")}
        selection_of(request, Shape.of(made), 10, **ways)  # it answers


@pytest.mark.parametrize("rest", ["a > 'a'", "a IS NOT MISSING ORDER BY a", "a LIKE 'a%'"])
def test_queries_that_take_an_order_are_refused_with_the_index_that_answers_them(rest: str) -> None:
    world = committed(["CREATE INDEX x ON users USING hash (a)"], {}, 1)
    with pytest.raises(NoIndexError) as refused:
        asyncio.run(answered(world, f"SELECT id FROM users WHERE {rest}", 10))
    statement = refused.value.extra["create_index"]
    assert statement == "CREATE INDEX by_a ON users USING btree (a)"
    assert statement in refused.value.next_step
    assert "it leaves out keys of more than 16 KiB, which x0 has" in refused.value.next_step
    assert isinstance(
        plan_on(parse_query(f"SELECT id FROM users WHERE {rest}"), Candidate("x", definition_of(statement))),
        Plan,
    )


# --- queries ------------------------------------------------------------------------------------------------

values = st.sampled_from(["", "a", "b", 0, 1, 1.0, True, None, "a\x00b"])
held_documents = st.dictionaries(
    st.sampled_from([f"k{number}" for number in range(9)]),
    st.fixed_dictionaries(
        {"a": values, "b": values, "tags": st.lists(values, max_size=4)}, optional={"c": values}
    ),
    min_size=4,
)
literals = st.sampled_from(["''", "'a'", "'b'", "0", "1", "1.0", "TRUE", "'nowhere'"])


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, str]:
    """CREATE INDEX, and a query that it serves."""
    include = draw(st.sampled_from(["", " INCLUDE (b, c)"]))
    with_tags = draw(st.booleans())
    if with_tags:
        statement = f"CREATE INDEX x ON users USING hash (UNNEST(tags)){include}"
        part = "UNNEST(tags)"
    else:
        statement = f"CREATE INDEX x ON users USING hash (a){include}"
        part = "a"
    some = draw(st.lists(literals, min_size=1, max_size=4))
    condition = f"{part} IN ({', '.join(some)})" if len(some) > 1 else f"{part} = {some[0]}"
    if include and draw(st.booleans()):
        condition += " AND b = 'a'"
    kind = draw(st.sampled_from(["rows", "rows", "grouped", "counted", "whole"]))
    if kind == "whole":
        condition = f"{part} IS NOT MISSING"
        return statement, f"SELECT {part}, COUNT(*) FROM users WHERE {condition} GROUP BY {part}"
    if kind == "grouped":
        return statement, f"SELECT {part}, COUNT(*) FROM users WHERE {condition} GROUP BY {part}"
    if kind == "counted":
        return statement, f"SELECT COUNT(*) FROM users WHERE {condition}"
    ordered = f" ORDER BY {part}, id" if draw(st.booleans()) else ""
    return statement, f"SELECT {part}, id FROM users WHERE {condition}{ordered}"


@settings(max_examples=share.examples(200), deadline=None)
@given(held_documents, queries(), st.sampled_from([1, 2, 100]))
@digests_of(2)
def test_queries_of_whole_keys(held: dict[str, Any], asked: tuple[str, str], page_size: int) -> None:
    statement, text = asked
    world = committed([statement + " WITH (slices=2)"], held, 2)
    answer = asyncio.run(answered(world, text, page_size))
    select = parse_query(text)
    rows, found = expected_rows(select, held, statement)
    if select.grouped and not select.group_by and not rows:
        rows = [(0,)]  # a count without groups is always one row
    event(f"grouped: {select.grouped}, rows: {min(len(rows), 3)}")
    assert Counter(map(shown, answer["rows"])) == Counter(map(shown, rows))
    if select.order_by:
        assert [shown(row) for row in answer["rows"]] == [shown(one.row) for one in found]


@st.composite
def grouped_queries(draw: st.DrawFn) -> str:
    """Queries that a btree over (a, c) and one USING hash over a answer."""
    by = draw(st.sampled_from(["a", "a", "c", "a, c", ""]))
    condition = draw(
        st.sampled_from(["a IS NOT MISSING", "a IS NOT NULL", "a IN ('a', 'b', 0, 1)", "a = 'a'"])
    )
    wanted = draw(st.sampled_from(["COUNT(*)", "MAX(a)", "MIN(a)", "COUNT(c)"]))
    text = f"SELECT {', '.join(filter(None, [by, wanted]))} FROM users WHERE {condition}"
    if by:
        order = draw(st.sampled_from(["", f" ORDER BY {by}", f" ORDER BY {wanted}"]))
        text += f" GROUP BY {by}{order}{draw(st.sampled_from(['', ' LIMIT 1', ' LIMIT 2']))}"
    return text


@settings(max_examples=share.examples(200), deadline=None)
@given(held_documents, grouped_queries(), st.sampled_from(["b_", "z_"]))
@digests_of(2)
def test_a_hash_index_beside_a_btree_takes_no_answer_away(
    held: dict[str, Any], text: str, prefix: str
) -> None:
    """What a btree answers within few groups at once is answered with a hash index beside it, of whatever
    name, and the same."""
    btree = "CREATE INDEX x ON users (a, c) WITH (slices=2)"
    hashed = f"CREATE INDEX {prefix}hash ON users USING hash (a) INCLUDE (c) WITH (slices=1)"

    def asked(*statements: str) -> list[str] | None:
        try:
            body = asyncio.run(answered(committed(statements, held, 1), text, 100, max_groups=2))
        except CallerError as error:
            if error.problem_type != "too-many-groups":
                raise
            return None
        event(f"answered by {body['index']}")
        return [shown(row) for row in body["rows"]]

    assert asked(btree) is None or asked(btree) == asked(btree, hashed)


LITERALS: dict[str, Any] = {"'a'": "a", "'b'": "b", "0": 0, "1": 1, "1.0": 1.0, "''": "", "TRUE": True}
some_parts = st.lists(st.sampled_from(list(LITERALS)), min_size=1, max_size=2)


@settings(max_examples=share.examples(200), deadline=None)
@given(
    held_documents,
    st.lists(st.tuples(some_parts, some_parts), min_size=1, max_size=12),
    st.sampled_from([1, 2, 3, 500]),
    st.sampled_from([1, 2, 4, 64]),
)
@example({}, [(["'a'"], ["'a'", "'b'"]), (["'a'", "'b'"], ["'a'"])], 3, 1)  # one key in both
@digests_of(2)
def test_combinations_of_whole_keys_are_read_and_nothing_else(
    held: dict[str, Any], combinations: list[tuple[list[str], list[str]]], spans: int, boxes: int
) -> None:
    """However many there are to a span, or to what an ordered structure is read for at once."""
    said = [f"(a IN ({', '.join(one)}) AND b IN ({', '.join(other)}))" for one, other in combinations]
    text = f"SELECT id, a, b FROM users WHERE {' OR '.join(said)}"
    select = parse_query(text)
    definition = definition_of("CREATE INDEX x ON users USING hash (a, b)")
    with mock.patch.multiple(boxes_of_plan, MAX_SPANS=spans, MAX_BOXES=boxes):
        plan = plan_on(select, Candidate("x", definition))
        assert isinstance(plan, Plan)
        check(plan, held)
    codes = {text: encode_key([value]) for text, value in LITERALS.items()}
    wanted = {codes[a] + codes[b] for first, second in combinations for a in first for b in second}
    assert set(plan.reading.keys) == wanted
    assert plan.filter is None
    looked_up = len(wanted) <= spans
    event(f"looked up: {looked_up}")
    assert all(plan.reading.depth) == looked_up
