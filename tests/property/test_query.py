"""Queries: whatever index a query is planned on, the answer is what the documents say; and an index that does
not exist yet, made as the refusal says, gives it too.

The naive side evaluates the query on the documents (`naive_projection`'s recursion, three-valued logic); the
other side reads the entries of an index as the plan says, slices and spans and filter and all.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from keytide.collation import MISSING, decode_key
from keytide.definition.binding import Binding
from keytide.definition.expression import (
    And,
    Binary,
    Call,
    Cast,
    Comparison,
    DocumentId,
    In,
    IsMissing,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Path,
    Truth,
    Unnest,
    walk,
)
from keytide.definition.index import IndexDefinition
from keytide.definition.render import render_expression, render_predicate
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.query.parse.expressions import AggregateCall
from keytide.query.parse.select import Select
from keytide.query.parse.statement import parse_query
from keytide.query.plan.plan import Candidate, Plan, plan_on
from keytide.query.plan.suggest import suggest
from keytide.settings.settings import ScanSettings
from tests.property import naive_projection as naive
from tests.structure_kit import as_stored, digests_of
from tests.unit.scan_world import FakeSnapshot, World

Document = dict[str, Any]
Row = tuple[Any, ...]

# --- documents ----------------------------------------------------------------------------------------------

common = st.sampled_from([0, 1, 1.0, 2, "x", "xy", "X", True])
scalars = st.one_of(common, common, common, st.sampled_from([None, False, -1, 2.5, "", "y%", "a\x00b"]))
values = st.one_of(
    scalars, scalars, scalars, st.lists(scalars, max_size=2), st.fixed_dictionaries({"d": scalars})
)
deep = st.fixed_dictionaries({}, optional={"d": scalars, "e": values})
tag_lists = st.one_of(st.lists(scalars, min_size=1, max_size=4), st.lists(scalars, max_size=1), scalars)
whole = st.fixed_dictionaries({"a": scalars, "b": scalars, "c": deep, "tags": tag_lists})
partial = st.fixed_dictionaries(
    {}, optional={"a": values, "b": values, "c": st.one_of(values, deep), "tags": tag_lists}
)
documents = st.dictionaries(
    st.sampled_from(["k1", "k2", "k3", "k4", "k5", "k6", "k7"]),
    st.one_of(whole, whole, partial),
    min_size=3,
    max_size=7,
)

# --- expressions --------------------------------------------------------------------------------------------

a, b, c, c_d, c_e = Path(("a",)), Path(("b",)), Path(("c",)), Path(("c", "d")), Path(("c", "e"))
tags, first_tag, element = Path(("tags",)), Path(("tags", 0)), Unnest(Path(("tags",)))
identifier = DocumentId()
plain = [a, b, c, c_d, c_e, first_tag, identifier]
made = [
    Call("lower", (a,)),
    Call("length", (a,)),
    Call("coalesce", (a, b)),
    Cast(b, "text"),
    Binary("+", a, Literal(1)),
    Binary("||", a, b),
    Negate(b),
    Call("upper", (c_d,)),
]
unnested = [element, element, Call("lower", (element,)), Binary("+", element, b)]
usual = st.sampled_from([Literal(one) for one in (0, 1, 2, "x", "xy", True)])
constants = st.one_of(
    usual, usual, st.sampled_from([Literal(one) for one in (-1, 1.0, 2.5, "", "X", "a\x00b", False)])
)
patterns = st.sampled_from(["x%", "%", "x", "_", "x_", "", "y\\%", "%y", "X%%"])


def expressions(with_elements: bool) -> st.SearchStrategy[Any]:
    choices: list[Any] = [a, b, a, b, *plain, *made]
    return st.sampled_from(choices + unnested * 3 if with_elements else choices)


def leaves(with_elements: bool) -> st.SearchStrategy[Any]:
    some = expressions(with_elements)
    symbols = st.sampled_from(["=", "=", "<>", "<", "<=", ">", ">="])
    sides = st.one_of(constants, constants, constants, st.just(Literal(None)), some)
    return st.one_of(
        st.builds(Comparison, symbols, some, constants),
        st.builds(Comparison, symbols, some, constants),
        st.builds(Comparison, symbols, st.sampled_from([a, b]), constants),
        st.builds(Comparison, symbols, st.sampled_from([a, b]), constants),
        st.builds(Comparison, symbols, sides, some),
        st.builds(In, some, st.lists(sides, min_size=1, max_size=3).map(tuple)),
        st.builds(Like, some, patterns, st.just("\\")),
        st.builds(IsNull, some),
        st.builds(IsMissing, some),
        st.builds(Truth, st.one_of(some, constants)),
        st.builds(
            lambda one, low, high: And((Comparison(">=", one, low), Comparison("<=", one, high))),
            some,
            constants,
            constants,
        ),
    )


def conditions(with_elements: bool) -> st.SearchStrategy[Any]:
    """Often one or two single conditions, for most others are true of nothing."""
    one = leaves(with_elements)
    both = st.builds(lambda left, right: And((left, right)), one, one)
    return st.one_of(one, both, st.builds(Not, one), st.builds(Not, both), nested(with_elements))


def nested(with_elements: bool) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves(with_elements),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda ones: And(tuple(ones))),
            st.lists(inner, min_size=2, max_size=3).map(lambda ones: And(tuple(ones))),
            st.lists(inner, min_size=2, max_size=3).map(lambda ones: Or(tuple(ones))),
            inner.map(Not),
        ),
        max_leaves=6,
    )


# --- statements ---------------------------------------------------------------------------------------------


SPLITS = ("NULL", "FALSE", "TRUE", "-1", "0", "1", "1.5", "2", "''", "'a'", "'ab'", "'b'", "'d1'", "'d3'")
"""In the order of keys."""


@st.composite
def index_statements(draw: st.DrawFn, where: Any) -> str:
    """CREATE INDEX; its WHERE is often a part of the query's, so that partial indexes serve."""
    with_elements = draw(st.booleans())
    asked = [one for one in subjects(where) if "UNNEST" not in render_expression(one)]
    some = st.one_of(st.sampled_from(asked), expressions(False)) if asked else expressions(False)
    keys = draw(st.lists(some, min_size=1, max_size=3, unique_by=render_expression))
    if with_elements:
        keys.insert(draw(st.integers(0, len(keys))), draw(st.sampled_from([element, element, *unnested])))
    using = draw(st.sampled_from(["", "", "USING hash "]))
    ways = st.sampled_from(["", "" if using else " DESC"])
    parts = [render_expression(one) + draw(ways) for one in keys]
    text = f"CREATE INDEX x ON users {using}({', '.join(parts)})"
    include = draw(st.lists(st.sampled_from([a, b, c, c_d, tags]), unique_by=render_expression, max_size=5))
    if include:
        text += f" INCLUDE ({', '.join(map(render_expression, include))})"
    partition = draw(st.sampled_from([None, None, "id", "a", "LOWER(a)", "c.d", render_expression(keys[0])]))
    slices = draw(st.integers(1, 4))
    if partition is not None and draw(st.booleans()):
        splits = draw(st.lists(st.sampled_from(SPLITS), unique=True, max_size=3))
        slices = len(splits) + 1
        text += f" PARTITION BY RANGE({partition})"
        text += f" SPLIT AT ({', '.join(sorted(splits, key=SPLITS.index))})" if splits else ""
    elif partition is not None:
        text += f" PARTITION BY HASH({partition})"
    number = "slices"
    if partition not in (None, "id") and draw(st.booleans()):
        spread = draw(st.lists(st.integers(1, 3), min_size=slices, max_size=slices))
        text += f" SUBPARTITION BY HASH(id) SLICES ({', '.join(map(str, spread))})"
        number = "partitions"
    missing = draw(st.booleans())
    text += f" WITH ({number}={slices}{', include_missing=true' if missing else ''})"
    condition = draw(st.one_of(st.none(), st.none(), st.sampled_from(parts_of(where)), conditions(False)))
    if condition is not None and "UNNEST" not in render_predicate(condition):
        text += f" WHERE {render_predicate(condition)}"
    return text


def subjects(where: Any) -> list[Any]:
    """The expressions that a condition compares, which make the best keys."""
    found = [] if where is None else walk(where)
    named = [getattr(node, name, None) for node in found for name in ("left", "right", "operand")]
    return [one for one in named if isinstance(one, Path | Call | Binary | Cast | Negate | DocumentId)]


def parts_of(where: Any) -> list[Any]:
    """A condition, its operands, and a weaker one."""
    if where is None:
        return [Not(IsMissing(a))]
    found = [where, *getattr(where, "operands", ())]
    return [*found, Or((where, Comparison("=", b, Literal(1)))), Not(IsNull(a))]


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, Any]:
    """SELECT, and its WHERE."""
    kind = draw(st.sampled_from(["documents", "documents", "elements", "member"]))
    some = expressions(kind == "elements")
    where = draw(st.one_of(st.none(), conditions(kind == "elements"), conditions(kind == "elements")))
    outputs = draw(st.lists(some, min_size=1, max_size=3))
    if kind == "elements":
        outputs.append(element)
    grouped = draw(st.booleans()) and draw(st.booleans())
    said = [render_expression(one) for one in outputs]
    if grouped:
        said = [*said, "COUNT(*)", f"SUM({said[0]})"]
    text = "*" if not grouped and kind == "documents" and draw(st.integers(0, 9)) == 0 else ", ".join(said)
    text = f"SELECT {text} FROM users"
    parts = [] if where is None else [render_predicate(where)]
    if kind == "member":
        parts.insert(0, f"{render_expression(draw(constants))} = ANY(tags)")
    if parts:
        text += f" WHERE {' AND '.join(parts)}"
    if grouped:
        text += f" GROUP BY {', '.join(map(render_expression, outputs))}"
    else:
        order: list[Any] = draw(st.lists(st.one_of(some, st.sampled_from([a, b, identifier])), max_size=3))
        if order:
            items = [render_expression(one) + draw(st.sampled_from(["", " DESC", " ASC"])) for one in order]
            text += f" ORDER BY {', '.join(items)}"
        if draw(st.booleans()):
            text += f" LIMIT {draw(st.integers(0, 4))} OFFSET {draw(st.integers(0, 3))}"
    return text, where


# --- the naive side -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A row: its values, and what it is ordered by."""

    row: Row
    order: Row


def naive_rows(select: Select, held: dict[str, Document], outputs: Sequence[Any]) -> list[Found]:
    """All rows of a query but for LIMIT and OFFSET, in its order, from the documents."""
    found: list[Found] = []
    for docid, document in held.items():
        scope: dict[str, Any] = {"id": docid, "document": document}
        scopes = [scope]
        if select.unnest is not None:
            scopes = [{**scope, "element": one} for one in distinct(document.get("tags"))]
        if select.member is not None:
            wanted = select.member.right
            assert isinstance(wanted, Literal)
            if not any(naive.compare("=", one, wanted.value) for one in distinct(document.get("tags"))):
                continue
        for one in scopes:
            if select.where is not None and naive.condition(select.where, one) is not True:
                continue
            found.append(
                Found(
                    tuple(naive.evaluate(value, one) for value in outputs),
                    tuple(naive.evaluate(item.value, one) for item in select.order_by),
                )
            )
    return sorted(found, key=functools.cmp_to_key(by_order(select)))


def distinct(array: Any) -> list[Any]:
    kept: list[Any] = []
    for one in array if isinstance(array, list) else []:
        if all(naive.collate(one, other) for other in kept):
            kept.append(one)
    return kept


def by_order(select: Select) -> Callable[[Found, Found], int]:
    def compare(left: Found, right: Found) -> int:
        for one, other, item in zip(left.order, right.order, select.order_by, strict=True):
            missing = (other is MISSING) - (one is MISSING)
            way = missing if missing or one is MISSING else naive.collate(one, other)
            if way:
                return -way if item.descending else way
        return 0

    return compare


# --- the other side -----------------------------------------------------------------------------------------


def projected(definition: IndexDefinition, held: dict[str, Document]) -> list[tuple[int, bytes, bytes, Any]]:
    """(slice, entry key, canonical key, (key parts, id, included columns)) of every entry."""
    found = []
    directions = [part.descending for part in definition.keys]
    for docid, document in held.items():
        try:
            made = naive.entries(definition, docid.encode(), json.dumps(document).encode())
        except naive.LeaveOut:
            continue
        keys = definition.structure.stored([key for key, _, _, _ in made])
        for (key, partition, forms, include), (kept,) in zip(made, keys, strict=True):
            parts, _ = decode_key(key, len(directions), directions, forms)
            found.append(
                (slice_of(definition, partition, docid), kept + docid.encode(), key, (parts, docid, include))
            )
    return sorted(found, key=lambda one: one[1])


def slice_of(definition: IndexDefinition, partition: bytes, docid: str) -> int:
    """The slice of an entry, by its partition key and its document."""
    spread = definition.spread or (1,) * definition.slices
    if definition.partition_kind == "range":
        at = sum(partition >= split for split in definition.encoded_splits)
    else:
        at = xxhash.xxh3_64_intdigest(partition) % len(spread)
    return sum(spread[:at]) + xxhash.xxh3_64_intdigest(docid.encode()) % spread[at]


def planned_rows(plan: Plan, held: dict[str, Document], outputs: Sequence[Any]) -> list[Found]:
    """The rows that the plan reads, in its order, but for LIMIT and OFFSET."""
    binding = Binding(plan.index.definition)
    test = None if plan.filter is None else binding.test(plan.filter)
    bound = [binding.value(one) for one in outputs]
    order = [binding.value(one.value) for one in plan.order_by]  # type: ignore[arg-type]
    found = []
    keys = plan.reading.keys
    for number, key, canonical, entry in projected(plan.index.definition, held):
        read = number in plan.slices and any(key in span for span in plan.reading.spans)
        read = read and (not keys or canonical in keys)
        if read and (test is None or test(*entry) is True):
            found.append(Found(tuple(one(*entry) for one in bound), tuple(one(*entry) for one in order)))
    if plan.reverse:
        found.reverse()
    if not plan.ordered and not plan.select.grouped:
        found.sort(key=functools.cmp_to_key(by_order(plan.select)))
    return found


def check(plan: Plan, held: dict[str, Document]) -> None:
    select = plan.select
    planned: list[Any]
    named: list[Any]
    if select.grouped:
        planned = named = [*select.group_by, *(one.operand for one in plan.aggregates if one.operand)]
    else:
        planned = [one.value for one in plan.outputs]
        named = [one.value for one in select.outputs] or planned
    got, expected = planned_rows(plan, held, planned), naive_rows(select, held, named)
    assert Counter(written(one.row) for one in got) == Counter(written(one.row) for one in expected)
    assert [orders(one) for one in got] == [orders(one) for one in expected]


def written(row: Row) -> str:
    """Different for different values, 1 and 1.0 among them; the order of an object's members is none."""
    return repr([by_name(one) for one in row])


def by_name(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: by_name(value[name]) for name in sorted(value)}
    return [by_name(one) for one in value] if isinstance(value, list) else value


def orders(one: Found) -> list[str]:
    """What a row is ordered by; what collation holds for equal is one: neither 1 and 1.0 nor the order of an
    object's members tells rows apart, at any depth."""
    return [repr(as_ordered(each)) for each in one.order]


def as_ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_ordered(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [as_ordered(one) for one in value]
    return float(value) if naive.is_number(value) else value


def test_rows_are_told_apart_by_what_collation_tells_apart() -> None:
    def found(value: Any) -> list[str]:
        return orders(Found((), (value,)))

    assert found({"e": [1], "d": 0}) == found({"d": 0, "e": [1.0]})
    assert found({"e": 1}) != found({"e": True})
    assert found(["1"]) != found([1])


def definition_of(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


@pytest.mark.slow
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data(), documents, questions())
@digests_of(2)
def test_every_plan_gives_what_the_documents_say(
    data: st.DataObject, held: dict[str, Document], question: tuple[str, Any]
) -> None:
    text, where = question
    select = parse_query(text)
    served = False
    for _ in range(3):
        definition = definition_of(data.draw(index_statements(where)))
        plan = plan_on(select, Candidate(definition.name, definition))
        if isinstance(plan, Plan):
            served = True
            check(plan, held)
    event(f"served: {served}")
    statement = suggest(select, {"by_a"})
    assert statement is not None, text
    made = definition_of(statement)
    plan = plan_on(select, Candidate(made.name, made))
    assert isinstance(plan, Plan), plan
    check(plan, held)


# --- the same through the scan endpoint ---------------------------------------------------------------------


def committed(statements: Sequence[str], held: dict[str, Document], node_count: int) -> World:
    """A world with the indexes, each entry in the slice that its partition key names."""
    world = World(node_count=node_count)
    timestamp = Timestamp.of({0: 1, 1: 1})
    world.stamps[1] = (0, timestamp, now_ms())
    for at, statement in enumerate(statements):
        record = world.create(statement.replace("INDEX x ON", f"INDEX x{at} ON"))
        definition = record.definition
        slices: list[list[tuple[bytes, bytes]]] = [[] for _ in range(definition.slices)]
        for number, key, value in stored(definition, held):
            slices[number].append((key, value))
        for number, nodes in enumerate(record.placement):
            for node in nodes:
                snapshot = FakeSnapshot(1, 0, timestamp, slices[number])
                world.views[node].slices[record.id, number].add(snapshot, 1)
        for view in world.views.values():
            view.publications[record.id] = 1
    return world


def stored(definition: IndexDefinition, held: dict[str, Document]) -> Iterator[tuple[int, bytes, bytes]]:
    """(slice, entry key, value) of every entry."""
    for docid, document in held.items():
        try:
            made = naive.entries(definition, docid.encode(), json.dumps(document).encode())
        except naive.LeaveOut:
            continue
        written = [json.dumps(one[3]).encode() if definition.include else None for one in made]
        entries = as_stored(
            definition, [(one[0], one[2], text) for one, text in zip(made, written, strict=True)]
        )
        for (_, partition, _, _), (key, value) in zip(made, entries, strict=True):
            yield slice_of(definition, partition, docid), key + docid.encode(), value


async def stays() -> None:
    await asyncio.Event().wait()


async def answered(world: World, text: str, page_size: int, **settings: Any) -> dict[str, Any]:
    """The answer's members, with the rows of all its pages, each asked of another node."""
    scans = world.services(ScanSettings.model_validate(settings)).values()
    services = [QueryService(service.shared) for service in scans]
    request = QueryRequest(sql=text, limit=page_size)
    rows: list[Any] = []
    while True:
        services.append(services.pop(0))
        body = msgspec.json.decode((await services[-1].answer(request, stays)).body)
        rows += body["rows"]
        if body["page"] is None:
            return {**body, "rows": rows}
        request = QueryRequest(page=body["page"])


def expected_rows(select: Select, held: dict[str, Document], statement: str) -> tuple[list[Row], list[Found]]:
    """The rows that the documents give but for LIMIT and OFFSET; of groups, all that there are."""
    if not select.outputs:
        definition = definition_of(statement)
        whole = plan_on(select, Candidate("x", definition))
        assert isinstance(whole, Plan)
        outputs: list[Any] = [one.value for one in whole.outputs]
    else:
        outputs = [one.value for one in select.outputs]
    if not select.grouped:
        found = naive_rows(select, held, outputs)
        return [one.row for one in found], found
    keys = list(select.group_by)
    operands = [one.operand for one in outputs if isinstance(one, AggregateCall) and one.operand is not None]
    groups: dict[str, list[Row]] = {}
    for one in naive_rows(select, held, [*keys, *operands]):
        groups.setdefault(repr(collated(list(one.row[: len(keys)]))), []).append(one.row)
    rows = []
    for members in groups.values():
        values: list[Any] = []
        column = len(keys)
        for output in outputs:
            if not isinstance(output, AggregateCall):
                values.append(
                    members[0][[render_expression(key) for key in keys].index(render_expression(output))]
                )
            elif output.operand is None:
                values.append(len(members))
            else:
                assert output.function == "sum", "what else is asked for, this model must learn"
                numbers = [row[column] for row in members if naive.is_number(row[column])]
                column += 1
                values.append(sum(map(Fraction, numbers)) if numbers else None)
        rows.append(tuple(values))
    return rows, []


def collated(value: Any) -> Any:
    """Equal for values that are one key."""
    if isinstance(value, list):
        return [collated(one) for one in value]
    if isinstance(value, dict):
        return {name: collated(value[name]) for name in sorted(value)}
    return Fraction(value) if naive.is_number(value) else value


def shown(row: Sequence[Any]) -> str:
    """A row as an answer has it; numbers of one value are one, for a group may be shown as any of its
    members."""
    return repr(collated([None if one is MISSING else one for one in row]))


@pytest.mark.slow
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.data(), documents, questions(), st.integers(1, 3), st.sampled_from([1, 2, 100]))
@digests_of(2)
def test_the_endpoint_answers_what_the_documents_say(
    data: st.DataObject, held: dict[str, Document], question: tuple[str, Any], nodes: int, page_size: int
) -> None:
    text, where = question
    select = parse_query(text)
    statements = [data.draw(index_statements(where)) for _ in range(2)]
    if not any(isinstance(plan_on(select, Candidate("x", definition_of(one))), Plan) for one in statements):
        suggested = suggest(select, {"x0", "x1"})
        assert suggested is not None
        statements.append(suggested)
    world = committed(statements, held, nodes)
    answer = asyncio.run(answered(world, text, page_size))
    assert all(snapshot.readers == 0 for snapshot in world.held())
    served = next(record for record in world.catalog.indexes() if record.name == answer["index"])
    rows, found = expected_rows(select, held, served.definition.statement)
    event(f"sorted: {bool(select.order_by)}, grouped: {select.grouped}, limited: {select.limit is not None}")
    whole = Counter(map(shown, rows))
    got = Counter(map(shown, answer["rows"]))
    if select.limit is None:
        assert got == whole
        return
    assert got <= whole
    assert len(answer["rows"]) == len(rows[select.offset : select.offset + select.limit])
    # What is ordered by is often not shown: a row may be any of those that are shown the same.
    places = [{shown(one.order) for one in found if shown(one.row) == shown(row)} for row in answer["rows"]]
    wanted = [shown(one.order) for one in found[select.offset : select.offset + select.limit]]
    assert all(place in among for place, among in zip(wanted, places, strict=True))
