"""Aggregates against a naive model on documents: every function, group, selection, filter and order, over
several slices, nodes and calls, in whatever order slices answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cmp_to_key
from itertools import chain
from typing import Any
from unittest import mock

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.aggregate import columns as aggregate_columns
from indexer.scan.aggregate.accumulators import Accumulator, Wants
from indexer.scan.aggregate.request import AggregateRequest
from indexer.scan.aggregate.slice import SliceAggregate, TooManyGroupsError
from indexer.scan.aggregate.task import Arguments, encode_arguments
from indexer.scan.gather import aggregates as aggregate
from indexer.scan.gather.growing import Aggregated, GroupLimits
from indexer.scan.request.request import Question
from keytide.collation import MISSING
from keytide.definition.expression import Predicate
from keytide.definition.fragments import parse_expression
from tests import share
from tests.property import naive_projection as naive
from tests.statements import parse_predicate
from tests.unit.scan_world import Doc, FakeSnapshot, World

KEYS = ("city", "city, age", "city DESC", "city DESC, age DESC", "city, age DESC", "city DESC, age")
PARTITIONS = ("", "PARTITION BY HASH(id)", "PARTITION BY HASH(city)")
FUNCTIONS = ("count", "sum", "min", "max", "avg")
CONDITIONS = (
    "city > 'a'",
    "amount IS NOT NULL",
    "amount < 3",
    "id <> 'd03'",
    "city = 2 OR LENGTH(city) = 2",
    "amount IS MISSING",
    "1 = 1",
)

parts = st.one_of(
    st.sampled_from(["", "a", "ab", "abc", "b", "\x00", "a\x00b", "é", "z" * 600]),
    st.integers(-3, 3),
    st.sampled_from([0.5, 2.0, -0.0, 2**53 + 1, 2**53, 10**30, True, False, None]),
    st.lists(st.integers(0, 2), max_size=2),
    st.sampled_from(
        [MISSING, 1, 2, 2.0, 5, 5.0, -1.5, 0.1, 0.2, 0.3, 1e300, -1e300, 5e-324, -(10**30), -(2**53)]
    ),
)
numbers = st.sampled_from([0, -0.0, 1, 2, 2.0, 5, 5.0, -1.5, -4, 0.1, 0.5, None, MISSING])
amounts = st.one_of(
    st.sampled_from(
        [MISSING, None, "x", True, 0.1, 0.2, 0.3, 1, 2, 2.0, 1e308, -1e308, 10**25, [1], {"b": 1, "a": 2}]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
)


@st.composite
def questions(draw: st.DrawFn, width: int, keys: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Bounds are mostly the leading parts of keys that are there."""

    def bound(longest: int = width) -> list[Any]:
        there: bool = draw(st.booleans())
        if keys and there:
            key: tuple[Any, ...] = draw(st.sampled_from(keys))
            length: int = draw(st.integers(0, longest))
            return list(key[:length])
        return draw(st.lists(parts.filter(lambda part: part is not MISSING), max_size=longest))

    kind = draw(st.sampled_from(["all"] * 6 + ["equals", "prefix", "low", "high", "range"]))
    if kind == "equals":
        return {"equals": bound()}
    if kind == "prefix":
        beginning = draw(st.sampled_from(["", "a", "ab", "z" * 599, "\x00"]))
        return {"equals": bound(width - 1) or None, "prefix": beginning}
    if kind == "all":
        return {}
    inclusion = draw(st.sampled_from(["both", "low", "high", "neither"]))
    sides = {"low": ["low"], "high": ["high"], "range": ["low", "high"]}[kind]
    return {"inclusion": inclusion, **{side: bound() for side in sides}}


async def never() -> None:
    await asyncio.Event().wait()


@dataclass(frozen=True)
class Case:
    """An aggregate of some documents.

    Attributes:
        few, calls, block: how blocks and reads are divided.
        documents: key parts and amount, by id.
    """

    statement: str
    nodes: int
    names: list[str]
    documents: list[tuple[str, list[Any], Any]]
    question: dict[str, Any]
    condition: str
    functions: list[dict[str, Any]]
    group_by: list[str]
    reverse: bool
    limit: int | None
    offset: int
    few: int
    calls: int
    block: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    columns = draw(st.sampled_from(KEYS))
    names = [column.split()[0] for column in columns.split(", ")]
    slices = draw(st.integers(1, 5))
    partition = draw(st.sampled_from(PARTITIONS))
    statement = f"CREATE INDEX i ON users ({columns}) INCLUDE (amount) {partition} WITH (slices={slices})"
    # Few different values make large groups; numbers that are equal and written differently are among them.
    pools = [parts, numbers, numbers, st.sampled_from(draw(st.lists(parts, min_size=1, max_size=3)))]
    columns_of = [draw(st.sampled_from(pools)) for _ in names]
    least: int = draw(st.sampled_from([0, 1, 10, 25]))
    keys = draw(st.lists(st.tuples(*columns_of), min_size=least, max_size=40))
    documents = [(f"d{at:02}", list(key), draw(amounts)) for at, key in enumerate(keys)]
    told = [tuple(one for one in key) for key in keys if MISSING not in key]
    question = draw(questions(len(names), told))
    expressions = [
        *names,
        "amount",
        *names,
        "id",
        "LENGTH(city)",
        "amount + 1",
        "COALESCE(amount, city)",
        "3",
    ]
    expression = st.sampled_from(expressions)
    functions: list[dict[str, Any]] = [{"function": "count", "as": "n"}]
    for number in range(draw(st.integers(1, 5))):
        function = draw(st.sampled_from(FUNCTIONS))
        one = {"function": function, "of": draw(expression), "as": f"f{number}"}
        functions.append({**one, "distinct": True} if function == "count" and draw(st.booleans()) else one)
    if not draw(st.booleans()):
        functions = functions[1:] or functions
    groups = draw(st.sampled_from([[], [], names, names, names[:1], names[::-1], ["expressions"]]))
    if groups == ["expressions"]:
        groups = draw(st.lists(expression, max_size=3))
    return Case(
        statement,
        draw(st.integers(1, 3)),
        names,
        documents,
        question,
        draw(st.sampled_from(["", "", *CONDITIONS])),
        functions,
        list(groups),
        draw(st.booleans()),
        draw(st.sampled_from([None, 1, 2, 5])),
        draw(st.sampled_from([0, 0, 0, 1, 3])),
        draw(st.sampled_from([0, 0, 24])),
        draw(st.sampled_from([1, 7, 20, 10_000])),
        draw(st.sampled_from([1, 5, 50])),
    )


def order(one: Any, other: Any) -> int:
    """Values of any kind by docs/adr/0001, in plain Python."""
    if one is MISSING or other is MISSING:
        return (one is not MISSING) - (other is not MISSING)
    return naive.collate(one, other)


def in_index_order(case: Case, descending: list[bool]) -> list[tuple[str, list[Any], Any]]:
    def in_order(one: tuple[str, list[Any], Any], other: tuple[str, list[Any], Any]) -> int:
        return compared(one[1], other[1], descending) or (one[0] > other[0]) - (one[0] < other[0])

    return sorted(case.documents, key=cmp_to_key(in_order))


def compared(one: list[Any], other: list[Any], directions: list[bool]) -> int:
    """The leading parts that both have."""
    for a, b, down in zip(one, other, directions, strict=False):
        if found := order(a, b):
            return -found if down else found
    return 0


def selected(key: list[Any], question: dict[str, Any], descending: list[bool]) -> bool:
    """Whether a key lies in the span that a request means (`keytide.collation.spans`)."""
    by_value = [False] * len(key)
    leading = question.get("equals") or []
    if compared(key, leading, by_value):
        return False
    if question.get("prefix") is not None:
        part = key[len(leading)]
        return isinstance(part, str) and part.startswith(question["prefix"])
    low, high = question.get("low") or [], question.get("high") or []
    shared = 0
    while shared < min(len(low), len(high)) and not order(low[shared], high[shared]):
        shared += 1
    # By value when the bounded parts go one way; places in the index's order when directions are mixed.
    bounded = descending[shared : max(len(low), len(high))]
    directions = descending if len(set(bounded)) > 1 else by_value
    inclusion = question.get("inclusion", "both")
    below = low and compared(key, low, directions) < (inclusion not in ("both", "low"))
    above = high and compared(key, high, directions) > -(inclusion not in ("both", "high"))
    return not below and not above


def worked_out(function: dict[str, Any], values: list[Any]) -> tuple[Any, int]:
    """A function over values in index order, and how many of them it ignores."""
    there = [value for value in values if value is not None and value is not MISSING]
    if "of" not in function:
        return len(values), 0
    kind = function["function"]
    if kind == "count":
        distinct: list[Any] = []
        for value in there:
            if all(order(value, other) for other in distinct):
                distinct.append(value)
        return len(distinct) if function.get("distinct") else len(there), 0
    if kind in ("min", "max"):
        best: Any = None
        for value in there:
            if best is None or (order(value, best) < 0 if kind == "min" else order(value, best) >= 0):
                best = value
        return best, 0
    numbers = [value for value in there if naive.is_number(value)]
    if not numbers:
        return None, len(there)
    total: Any = sum(map(Fraction, numbers))
    result = total / len(numbers) if kind == "avg" else total
    if any(isinstance(value, float) for value in numbers) or result.denominator != 1:
        try:
            result = float(result)
        except OverflowError:
            result = None
    else:
        result = int(result)
    return result, len(there) - len(numbers)


def expected(case: Case, descending: list[bool]) -> tuple[list[dict[str, Any]], bool]:
    """The groups of the answer, and whether there are more."""
    groups: list[tuple[list[Any], list[dict[str, Any]]]] = [] if case.group_by else [([], [])]
    for id_, key, amount in in_index_order(case, descending):
        document = dict(zip(case.names, key, strict=True)) | {"amount": amount}
        scope = {"id": id_, "document": {k: v for k, v in document.items() if v is not MISSING}}
        if not selected(key, case.question, descending):
            continue
        if case.condition and naive.condition(parse_predicate(case.condition), scope) is not True:
            continue
        values = [naive.evaluate(parse_expression(text), scope) for text in case.group_by]
        for known, members in groups:
            if not any(map(order, known, values)):
                members.append(scope)
                break
        else:
            groups.append((values, [scope]))

    def by_key(one: tuple[list[Any], Any], other: tuple[list[Any], Any]) -> int:
        return next((found for found in map(order, one[0], other[0]) if found), 0)

    groups.sort(key=cmp_to_key(by_key), reverse=case.reverse)
    end = len(groups) if case.limit is None else case.offset + case.limit
    shown = []
    for known, members in groups[case.offset : end]:
        group: dict[str, Any] = {"key": [None if v is MISSING else v for v in known], "values": {}}
        for function in case.functions:
            of = parse_expression(function["of"]) if "of" in function else None
            values = [None if of is None else naive.evaluate(of, scope) for scope in members]
            result, ignored = worked_out(function, values)
            group["values"][function["as"]] = result
            if ignored:
                group.setdefault("ignored", {})[function["as"]] = ignored
        if MISSING in known:
            group["missing"] = [at for at, value in enumerate(known) if value is MISSING]
        shown.append(group)
    return shown, len(groups) > end


def as_written(value: Any) -> Any:
    """A form in which 1, 1.0, true and -0.0 differ, and the order of an object's members does not."""
    return json.dumps(value, sort_keys=True)


async def asked(world: World, case: Case, seed: int) -> dict[str, Any]:
    """The answer of one node; slices of one node answer in any order."""
    services = world.services()
    shared = services[f"n{seed % case.nodes}"].shared
    body = {
        **case.question,
        "functions": case.functions,
        "group_by": case.group_by,
        "reverse": case.reverse,
        "limit": case.limit,
        "offset": case.offset,
    }
    request = msgspec.convert(body, AggregateRequest)
    condition: Predicate | None = parse_predicate(case.condition) if case.condition else None
    selection_of = shared.selection

    def with_filter(question: Question, index: Any, **others: Any) -> Any:
        found = selection_of(question, index, **others)
        slices = list(found.slices)
        random.Random(seed).shuffle(slices)
        return type(found)(found.spans, slices, condition, found.distinct)

    with mock.patch.object(shared, "selection", with_filter):
        answer = await aggregate.answer(shared, "i", request, never)
    found: dict[str, Any] = json.loads(answer.body)
    return found


@contextmanager
def divided(case: Case) -> Iterator[World]:
    """The world of a case, and its blocks and calls."""
    world = World(case.statement, node_count=case.nodes)
    documents = [
        Doc(key, id_, json.dumps({} if amount is MISSING else {"amount": amount}).encode())
        for id_, key, amount in case.documents
    ]
    world.commit(1, {"i": documents})
    rows = FakeSnapshot.rows

    def blocks(self: FakeSnapshot, *arguments: Any) -> Iterator[list[tuple[bytes, bytes]]]:
        entries = list(chain.from_iterable(rows(self, *arguments)))
        return (entries[at : at + case.block] for at in range(0, len(entries), case.block))

    with (
        mock.patch.object(FakeSnapshot, "rows", blocks),
        mock.patch.object(aggregate_columns, "FEW", case.few),
        mock.patch.object(aggregate, "CALL_ENTRIES", case.calls),
    ):
        yield world


def check_answer(answer: dict[str, Any], world: World, case: Case) -> None:
    """That it is what the model gives."""
    descending = [part.descending for part in world.index("i").definition.keys]
    groups, more = expected(case, descending)
    assert list(map(as_written, answer["groups"])) == list(map(as_written, groups))
    assert answer["more"] == more
    assert answer["snapshot"] == 1


@settings(max_examples=share.examples(500), deadline=None)
@given(cases(), st.integers(0, 2**16))
def test_aggregates_are_what_a_naive_model_gives(case: Case, seed: int) -> None:
    with divided(case) as world:
        answer = asyncio.run(asked(world, case, seed))
        check_answer(answer, world, case)


def bytes_of(accumulators: list[Accumulator]) -> int:
    """Of extremes and distinct values, counted one by one."""
    ends = [end for one in accumulators for end in (one.least, one.greatest) if end is not None]
    return sum(len(part) for end in ends for part in end) + sum(
        len(code) for one in accumulators for code in one.distinct
    )


@settings(max_examples=share.examples(300), deadline=None)
@given(cases(), st.integers(0, 2**16), st.sampled_from([100, 300, 1_000, 3_000, 10_000]))
def test_what_an_aggregate_holds_is_within_its_bytes(case: Case, seed: int, most: int) -> None:
    """Of each slice when it goes on to a further block, of all of them when they go on to a further call. The
    answer is the model's, or it is refused, and only what takes more."""
    add, merge = SliceAggregate.add, Aggregated.merge
    limits = GroupLimits(100_000, most)
    case = replace(case, calls=10_000)  # (calls end for the bytes)
    room = largest = 0

    def encodes(arguments: Arguments) -> bytes:
        nonlocal room
        room = arguments.room
        assert room <= limits.size
        return encode_arguments(arguments)

    def adds(self: SliceAggregate, rows: Any) -> bool:
        assert self.size < room, "it is full"
        goes_on = add(self, rows)
        held = self._groups.items()
        shown = sum(len(word) + len(one.key) + len(one.forms) + len(one.entry) for word, one in held)
        assert self.size == shown + sum(bytes_of(one.accumulators) for _, one in held)
        return goes_on

    def merges(self: Aggregated, *arguments: Any) -> None:
        nonlocal largest
        merge(self, *arguments)
        held = self.groups.items()
        shown = sum(len(key) + len(one.forms) + len(one.entry) for key, one in held)
        size = shown + sum(bytes_of(one.accumulators) for _, one in held)
        assert size == self.size <= limits.size
        assert self.distinct == sum(len(each.distinct) for _, one in held for each in one.accumulators)
        largest = max(largest, size)

    with (
        divided(case) as world,
        mock.patch.object(SliceAggregate, "add", adds),
        mock.patch.object(Aggregated, "merge", merges),
        mock.patch.object(aggregate, "encode_arguments", encodes),
        mock.patch.object(aggregate, "limits_of", side_effect=lambda _: limits),
        mock.patch.object(aggregate, "LEAST_ROOM", 0),
    ):
        try:
            check_answer(asyncio.run(asked(world, case, seed)), world, case)
        except TooManyGroupsError:
            limits, largest = GroupLimits(100_000, 1 << 40), 0
            check_answer(asyncio.run(asked(world, case, seed)), world, case)
            assert largest > most or case.limit is not None


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=share.examples(300), deadline=None)
@given(
    st.lists(
        st.one_of(finite, finite, st.integers(-(2**80), 2**80), st.sampled_from([5e-324, -0.0, 1e16])),
        max_size=30,
    ),
    st.data(),
)
def test_sums_are_exact_in_any_order_and_division(numbers: list[int | float], data: st.DataObject) -> None:
    """Divided at random into accumulators, by columns or one by one, packed or not."""
    shuffled = data.draw(st.permutations(numbers))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=3)))
    wants = Wants(sums=True)
    total = Accumulator(wants)
    for begin, end in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
        one = Accumulator(wants)
        for number in shuffled[begin:end]:
            one.add(number, b"")
        total.merge(Accumulator.unpack(one.pack(), wants) if data.draw(st.booleans()) else one)
    exact: Any = sum(map(Fraction, numbers))
    floats = any(isinstance(number, float) for number in numbers)
    for found, wanted in ((total.total, exact), (total.mean, exact / len(numbers) if numbers else None)):
        if wanted is None or not numbers:
            assert found is None
        elif not floats and wanted.denominator == 1:
            assert found == int(wanted)
            assert type(found) is int
        else:
            try:
                rounded = float(wanted)
            except OverflowError:
                assert found is None
            else:
                assert type(found) is float
                assert found == rounded
