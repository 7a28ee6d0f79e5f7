"""Aggregates over HTTP and on real stores: forms, errors, limits, moments, and what is not read."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from indexer.scan.aggregate.accumulators import Accumulator, Wants
from indexer.scan.aggregate.request import AggregateFunction, AggregateRequest, plan_of
from indexer.scan.aggregate.task import (
    Arguments,
    Partial,
    aggregate_slice,
    decode_partial,
    encode_arguments,
    encode_plan,
)
from indexer.scan.gather import aggregates as aggregate
from indexer.scan.http.endpoint import unless_gone
from indexer.scan.local.tasks import SliceWork, Unfinished
from indexer.scan.peer.messages import ReadConsistency, ReadPaging, ReadRequest, ReadShape, ReadSpan
from indexer.scan.plan.waiting import ReaderGoneError
from indexer.store.fold.worker import FoldWorker
from indexer.view import DoubtfulReadError, ReadableSnapshot
from keytide.collation import encode_key
from keytide.definition.binding import Binding
from keytide.errors import CallerError
from keytide.query.parse.expressions import FUNCTIONS
from tests.spans_by_rows import SpansByRows
from tests.store_kit import Version, lmdb_store, rows_of, segment, state
from tests.unit.scan_world import Doc, FakeSnapshot, World, definition_of
from tests.unit.test_api import Endpoint, problem

AGGREGATE = "/v1/indexes/sales/aggregate"
STATEMENT = "CREATE INDEX sales ON users (city, n DESC) INCLUDE (amount) WITH (slices=3)"


def world_of_sales(nodes: int = 1) -> World:
    world = World(STATEMENT, node_count=nodes)
    cities = ["Boston", "Aachen", "Bonn"]
    world.commit(
        5,
        {
            "sales": [
                Doc([cities[at % 3], at], f"u{at:02}", json.dumps({"amount": at / 10}).encode())
                for at in range(12)
            ]
        },
    )
    return world


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(world_of_sales(), max_groups=20) as made:
        yield made


def groups(endpoint: Endpoint, **body: Any) -> list[dict[str, Any]]:
    response = endpoint.post(AGGREGATE, **body)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["groups"]
    return found


def test_every_function_by_group(endpoint: Endpoint) -> None:
    found = groups(
        endpoint,
        functions=[
            "count",
            {"function": "sum", "of": "amount", "as": "total"},
            "AVG(amount)",
            "min( n )",
            "max(n)",
            "count(distinct n % 2)",
        ],
        group_by=["city"],
    )
    assert found == [
        {
            "key": [city],
            "values": {
                "count": 4,
                "total": total,
                "avg(amount)": average,
                "min(n)": low,
                "max(n)": low + 9,
                "count(distinct (n % 2))": 2,
            },
        }
        for city, total, average, low in (
            ("Aachen", 2.2, 0.55, 1),
            ("Bonn", 2.6, 0.65, 2),
            ("Boston", 1.8, 0.45, 0),
        )
    ]


def test_an_answer_has_what_every_answer_has(endpoint: Endpoint) -> None:
    answer = endpoint.post(AGGREGATE, functions=["count"], explain=True).json()
    assert answer["groups"] == [{"key": [], "values": {"count": 12}}]
    assert answer["snapshot"] == 5
    assert answer["timestamp"]["0"]["offset"] == 5
    assert answer["more"] is False
    assert answer["session"]
    assert answer["staleness_ms"] >= 0
    assert len(answer["explain"]["slices"]) == 3


def test_a_selection_a_page_of_groups_and_the_other_order(endpoint: Endpoint) -> None:
    body: dict[str, Any] = {"functions": ["count"], "group_by": ["city"]}
    assert [g["key"] for g in groups(endpoint, **body, prefix="Bo")] == [["Bonn"], ["Boston"]]
    assert [g["key"] for g in groups(endpoint, **body, reverse=True, limit=2)] == [["Boston"], ["Bonn"]]
    page = endpoint.post(AGGREGATE, **body, limit=1, offset=1).json()
    assert ([g["key"] for g in page["groups"]], page["more"]) == ([["Bonn"]], True)
    page = endpoint.post(AGGREGATE, **body, limit=1, offset=2).json()
    assert ([g["key"] for g in page["groups"]], page["more"]) == ([["Boston"]], False)
    page = endpoint.post(AGGREGATE, **body, limit=5, offset=9).json()
    assert (page["groups"], page["more"]) == ([], False)
    spans = [{"equals": ["Bonn"]}, {"prefix": "Bo"}]  # Bonn lies in both, and counts once
    assert [g["values"]["count"] for g in groups(endpoint, **body, spans=spans)] == [4, 4]


def test_nothing_selected_is_one_group_without_group_by_and_none_with(endpoint: Endpoint) -> None:
    functions = ["count", "count(n)", "sum(n)", "avg(n)", "min(n)", "max(n)"]
    (group,) = groups(endpoint, functions=functions, equals=["Rome"])
    assert list(group["values"].values()) == [0, 0, None, None, None, None]
    assert groups(endpoint, functions=functions, equals=["Rome"], group_by=["city"]) == []
    (group,) = groups(endpoint, functions=functions, low=["Z"], high=["A"])  # no slice can have any
    assert list(group["values"].values()) == [0, 0, None, None, None, None]


def test_by_hand(endpoint: Endpoint) -> None:
    response = endpoint.get(AGGREGATE, functions="count,sum(n)", group_by="city", equals="Bonn")
    assert response.json()["groups"] == [{"key": ["Bonn"], "values": {"count": 4, "sum(n)": 26}}]
    response = endpoint.get(AGGREGATE, functions='["count(distinct COALESCE(city, id))"]')
    assert list(response.json()["groups"][0]["values"].values()) == [3]


def test_what_is_no_number_is_left_out_of_sums_and_told() -> None:
    world = World("CREATE INDEX i ON users (a, b) WITH (slices=2)", node_count=1)
    values: list[Any] = [1, "x", None, True, 2.5, [1], 10**30]
    world.commit(1, {"i": [Doc([value, "k"], f"u{at}") for at, value in enumerate(values)]})
    with Endpoint(world) as endpoint:
        answer = endpoint.post(
            "/v1/indexes/i/aggregate", functions=["count", "count(a)", "sum(a)", "avg(a)", "min(a)", "max(a)"]
        ).json()
    (group,) = answer["groups"]
    assert group["ignored"] == {"sum(a)": 3, "avg(a)": 3}
    assert group["values"] == {
        "count": 7,
        "count(a)": 6,
        "sum(a)": float(10**30 + 3.5),
        "avg(a)": (10**30 + 3.5) / 3,
        "min(a)": True,
        "max(a)": [1],
    }


def test_sums_are_of_any_size_and_do_not_overflow_in_between() -> None:
    world = World(
        "CREATE INDEX i ON users (a) WITH (slices=2)",
        "CREATE INDEX f ON users (a) WITH (slices=2)",
        node_count=1,
    )
    large = [2**63, 2**63, -(10**40), 10**40, 7]
    floats = [1e308, 1e308, -1e308, 0.1, 0.2, 0.3]
    world.commit(
        1,
        {
            "i": [Doc([value], f"u{at}") for at, value in enumerate(large)],
            "f": [Doc([value], f"u{at}") for at, value in enumerate(floats)],
        },
    )
    with Endpoint(world) as endpoint:
        text = endpoint.post("/v1/indexes/i/aggregate", functions=["sum(a)"]).text
        assert f'"sum(a)":{2**64 + 7}' in text
        found = endpoint.post("/v1/indexes/f/aggregate", functions=["sum(a)", "avg(a)"]).json()
        assert found["groups"][0]["values"] == {"sum(a)": 1e308, "avg(a)": 1e308 / 6}
        found = endpoint.post("/v1/indexes/f/aggregate", functions=["sum(a * 1.5)"], low=[1]).json()
        assert found["groups"][0]["values"] == {"sum((a * 1.5))": None}  # beyond the doubles


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ({}, "invalid-request", "functions"),
        ({"functions": []}, "invalid-request", "functions"),
        ({"functions": ["count"] * 65}, "invalid-request", "functions"),
        ({"functions": ["median(n)"]}, "invalid-request", "no function"),
        ({"functions": ["sum"]}, "invalid-statement", "expression"),
        ({"functions": ["sum(*)"]}, "invalid-statement", ""),
        ({"functions": ["count(distinct)"]}, "invalid-statement", ""),
        ({"functions": [{"function": "sum"}]}, "invalid-request", "needs `of`"),
        ({"functions": [{"function": "sum", "of": "n", "distinct": True}]}, "invalid-request", "distinct"),
        ({"functions": [{"function": "count", "distinct": True}]}, "invalid-request", "distinct"),
        ({"functions": [{"function": "mode", "of": "n"}]}, "invalid-request", "mode"),
        ({"functions": ["count", "COUNT(*)"]}, "invalid-request", "two functions"),
        ({"functions": ["sum(price)"]}, "not-in-index", "price"),
        ({"functions": ["count"], "group_by": ["country"]}, "not-in-index", "country"),
        ({"functions": ["sum(n +)"]}, "invalid-statement", "line 1"),
        ({"functions": ["count"], "group_by": ["n > 1"]}, "invalid-statement", "condition"),
        ({"functions": ["count"], "limit": 21}, "limit-too-large", "20"),
        ({"functions": ["count"], "limit": 1, "offset": 20}, "limit-too-large", "20"),
        ({"functions": ["count"], "limit": 0}, "invalid-request", "limit"),
        ({"functions": ["count"], "equals": ["a", 1, 2]}, "bad-request", "key parts"),
        ({"functions": ["count"], "having": "x"}, "invalid-request", "having"),
    ],
)
def test_what_is_refused(endpoint: Endpoint, body: dict[str, Any], kind: str, said: str) -> None:
    document = problem(endpoint.post(AGGREGATE, **body), 422, kind)
    assert said in document["detail"]


def test_names_of_functions_have_underscores_and_digits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FUNCTIONS, "TOP_2", "top_2")
    binding = Binding(definition_of("CREATE INDEX i ON users (a)"))
    assert [one.name for one in plan_of(["top_2(a)"], (), binding).functions] == ["top_2(a)"]


def test_too_many_groups_are_refused_with_what_to_do() -> None:
    world = World("CREATE INDEX i ON users (a, b) WITH (slices=3)", node_count=1)
    world.commit(1, {"i": [Doc([at, -at], f"u{at:02}") for at in range(30)]})
    path = "/v1/indexes/i/aggregate"
    with Endpoint(world, max_groups=20) as endpoint:
        bodies: list[dict[str, Any]] = [
            {"functions": ["count"], "group_by": ["a"]},  # no slice alone has too many
            {"functions": ["count"], "group_by": ["b"]},
            {"functions": ["count(distinct b)"]},
        ]
        for body in bodies:
            document = problem(endpoint.post(path, **body), 422, "too-many-groups")
            assert "scan.max_groups" in document["next_step"]
        answer = endpoint.post(path, functions=["sum(b)"], group_by=["a"], limit=20).json()
        assert [group["key"] for group in answer["groups"]] == [[at] for at in range(20)]
        assert answer["more"]
        assert len(groups_of(endpoint, path, functions=["count"], group_by=["b"], high=[19])) == 20
    with Endpoint(world, max_groups=5) as endpoint:  # one slice alone has too many
        problem(endpoint.post(path, functions=["count"], group_by=["b"]), 422, "too-many-groups")


def test_distinct_values_are_limited_over_all_calls_also_of_few_groups() -> None:
    world = World("CREATE INDEX i ON users (a) WITH (slices=1)", node_count=1)
    world.commit(1, {"i": [Doc(["same"], f"u{at:02}") for at in range(30)]})
    path = "/v1/indexes/i/aggregate"
    body: dict[str, Any] = {"functions": ["count(distinct id)"], "group_by": ["a"], "limit": 1}
    with mock.patch.object(aggregate, "CALL_ENTRIES", 4):
        with Endpoint(world, max_groups=20) as endpoint:
            problem(endpoint.post(path, **body), 422, "too-many-groups")
        with Endpoint(world, max_groups=30) as endpoint:
            assert groups_of(endpoint, path, **body)[0]["values"] == {"count(distinct id)": 30}


def groups_of(endpoint: Endpoint, path: str, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = endpoint.post(path, **body).json()["groups"]
    return found


def test_a_value_without_order_cannot_be_grouped_by() -> None:
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    world = World("CREATE INDEX i ON users (a) INCLUDE (b)", node_count=1)
    world.commit(1, {"i": [Doc([1], "u1", json.dumps({"b": deep}).encode())]})
    path = "/v1/indexes/i/aggregate"
    with Endpoint(world) as endpoint:
        problem(endpoint.post(path, functions=["count"], group_by=["b"]), 422, "not-indexable")
        (group,) = groups_of(endpoint, path, functions=["min(b)", "count(b)", "count(distinct b)"])
    assert group["values"] == {"min(b)": None, "count(b)": 1, "count(distinct b)": 0}
    assert group["ignored"] == {"min(b)": 1, "count(distinct b)": 1}


def test_an_integer_that_no_json_reader_takes_is_told() -> None:
    world = World("CREATE INDEX i ON users (a)", node_count=1)
    world.commit(1, {"i": [Doc([10**5000], "u1"), Doc([1], "u2")]})
    path = "/v1/indexes/i/aggregate"
    with Endpoint(world) as endpoint:
        problem(endpoint.post(path, functions=["max(a)"]), 422, "too-many-digits")
        (group,) = groups_of(endpoint, path, functions=["min(a)", "sum(a)", "avg(a)", "count(a)"])
    assert group["values"] == {"min(a)": 1, "sum(a)": None, "avg(a)": None, "count(a)": 2}


def test_many_groups_are_written_in_a_thread() -> None:
    world = World("CREATE INDEX i ON users (a) WITH (slices=2)", node_count=1)
    world.commit(1, {"i": [Doc([at], f"u{at}") for at in range(3_000)]})
    with Endpoint(world) as endpoint:
        found = groups_of(endpoint, "/v1/indexes/i/aggregate", functions=["sum(a)"], group_by=["a"])
    assert found == [{"key": [at], "values": {"sum(a)": at}} for at in range(3_000)]


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("entries", [3, 200_000])
@pytest.mark.parametrize("keys", ["a, b", "a DESC, b", "a DESC, b DESC"])
@pytest.mark.parametrize("span", [{}, {"spans": [{"equals": [5]}, {"low": [None], "high": [1]}]}])
@pytest.mark.parametrize("beside", [[], ["count"], ["sum(a)"], ["count(distinct a)"]])
def test_the_form_of_extremes_does_not_depend_on_how_they_are_found(
    slices: int, entries: int, keys: str, span: dict[str, Any], beside: list[str]
) -> None:
    world = World(f"CREATE INDEX i ON users ({keys}) PARTITION BY HASH(id) WITH (slices={slices})")
    fives = [Doc([5 if at % 2 else 5.0, at], f"u{at:03}") for at in range(60)]
    world.commit(1, {"i": [*fives, Doc([-0.0, 1], "z1"), Doc([0, 0], "z0"), Doc([None, 0], "n")]})
    # Of equal values the first in key order is the least, the last the greatest.
    last_first = keys.endswith("b DESC")
    expected = ("-0.0", "5.0") if last_first else ("0", "5")

    async def asked_for() -> bytes:
        request = msgspec.convert({"functions": ["min(a)", "max(a)", *beside], **span}, AggregateRequest)
        return (await aggregate.answer(world.services()["n0"].shared, "i", request, never)).body

    with mock.patch.object(aggregate, "CALL_ENTRIES", entries):
        values = json.loads(asyncio.run(asked_for()))["groups"][0]["values"]
    assert (repr(values["min(a)"]), repr(values["max(a)"])) == expected


# --- moments ----------------------------------------------------------------------------------------------


def test_a_held_snapshot_is_aggregated_while_the_world_moves_on() -> None:
    world = world_of_sales()
    with Endpoint(world) as endpoint:
        held = endpoint.post("/v1/indexes/sales/snapshots").json()
        for number in range(6, 12):
            world.commit(number, {"sales": [Doc(["Rome", number], "u")]})
        body: dict[str, Any] = {"functions": ["count", "max(n)"]}
        then = endpoint.post(AGGREGATE, **body, at=held["at"]).json()
        now = endpoint.post(AGGREGATE, **body, session=then["session"]).json()
    assert (then["snapshot"], now["snapshot"]) == (5, 11)
    assert then["groups"][0]["values"] == {"count": 12, "max(n)": 11}
    assert now["groups"][0]["values"] == {"count": 1, "max(n)": 11}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_long_aggregate_keeps_its_snapshot_between_calls(nodes: int) -> None:
    """Each call commits newer snapshots: without a lease the one that is read would be gone at the second."""
    world = world_of_sales(nodes)
    called: list[int] = []
    merge = aggregate._merge

    def merge_and_move_on(*arguments: Any) -> dict[int, Partial]:
        number = max(world.stamps) + 1
        called.append(number)
        for later in range(number, number + 3):
            world.commit(later, {"sales": [Doc(["Rome", later], "u")]})
        return merge(*arguments)

    async def asked_long() -> dict[str, Any]:
        request = AggregateRequest(functions=["count", "sum(n)"], group_by=["city"])
        answer = await aggregate.answer(world.services()["n0"].shared, "sales", request, never)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    with (
        mock.patch.object(aggregate, "CALL_ENTRIES", 2),
        mock.patch.object(aggregate, "_merge", merge_and_move_on),
    ):
        answer = asyncio.run(asked_long())
    assert len(called) > 2
    assert answer["snapshot"] == 5
    assert [tuple(group["values"].values()) for group in answer["groups"]] == [(4, 22), (4, 26), (4, 18)]


def test_an_aggregate_that_nobody_waits_for_ends() -> None:
    world = world_of_sales()
    left = asyncio.Event()
    calls: list[int] = []
    merge = aggregate._merge

    def merge_and_leave(*arguments: Any) -> dict[int, Partial]:
        calls.append(len(calls))
        if len(calls) == 2:
            left.set()
        return merge(*arguments)

    async def leaves() -> None:
        await left.wait()

    async def asked_long() -> None:
        request = AggregateRequest(functions=["count"], low=["A"])
        shared = world.services()["n0"].shared
        await unless_gone(aggregate.answer(shared, "sales", request, leaves), leaves, 60)

    with (
        mock.patch.object(aggregate, "CALL_ENTRIES", 1),
        mock.patch.object(aggregate, "_merge", merge_and_leave),
        pytest.raises(ReaderGoneError),
    ):
        asyncio.run(asked_long())
    assert len(calls) <= 3


@pytest.mark.parametrize("reverse", [False, True])
def test_groups_are_whole_when_a_call_ends_within_the_last_that_is_wanted(reverse: bool) -> None:
    world = World("CREATE INDEX i ON users (a) WITH (slices=2) PARTITION BY HASH(id)", node_count=1)
    world.commit(1, {"i": [Doc([at // 10], f"u{at:02}") for at in range(50)]})
    for entries in range(2, 40, 3):
        with Endpoint(world) as endpoint, mock.patch.object(aggregate, "CALL_ENTRIES", entries):
            body: dict[str, Any] = {"functions": ["count"], "group_by": ["a"], "limit": 2, "reverse": reverse}
            answer = endpoint.post("/v1/indexes/i/aggregate", **body).json()
        assert [(g["key"], g["values"]["count"]) for g in answer["groups"]] == [
            ([4 if reverse else 0], 10),
            ([3 if reverse else 1], 10),
        ]
        assert answer["more"]


@pytest.mark.parametrize("backwards", [False, True])
def test_of_equal_values_the_first_is_least_and_the_last_greatest(backwards: bool) -> None:
    """In key order, in whatever order they are met."""
    told = [(5.0, b"a"), (5, b"b"), (5.0, b"c"), (5, b"d")]
    one = Accumulator(Wants(extremes=True))
    for value, entry in reversed(told) if backwards else told:
        one.add(value, entry)
    assert one.least is not None
    assert one.greatest is not None
    assert repr((one.least.value(), one.greatest.value())) == "(5.0, 5)"
    merged = Accumulator(Wants(extremes=True))
    merged.add(5, b"e")
    merged.merge(one)
    assert merged.least == one.least
    assert merged.greatest is not None
    assert merged.greatest.entry == b"e"


async def never() -> None:
    await asyncio.Event().wait()


def test_an_aggregate_that_takes_too_long_is_given_up() -> None:
    with Endpoint(world_of_sales()) as endpoint, mock.patch.object(aggregate, "CALL_ENTRIES", 0):
        began = map(float, range(1_000))
        with mock.patch.object(aggregate, "monotonic", side_effect=began):
            response = endpoint.post(AGGREGATE, functions=["sum(n)"], timeout_ms=2_000)
    assert "timeout_ms" in problem(response, 504, "aggregate-timeout")["next_step"]


# --- what is read of a store ------------------------------------------------------------------------------


class Watched(SpansByRows):
    """A snapshot that counts the entries it gives."""

    def __init__(self, entries: list[tuple[bytes, bytes]]) -> None:
        self._snapshot = FakeSnapshot(1, 0, mock.Mock(), entries)
        self._snapshot.readers = 1
        self.given = 0

    def rows(self, *arguments: Any) -> Iterator[list[tuple[bytes, bytes]]]:
        for block in self._snapshot.rows(*arguments):
            self.given += len(block)
            yield block

    def count(self, low: bytes, high: bytes | None) -> int:
        return len(self._snapshot.entries)


def asked(
    snapshot: Any,
    statement: str,
    functions: Sequence[str | AggregateFunction],
    group_by: list[str],
    **told: Any,
) -> Partial:
    """What one slice answers."""
    definition = definition_of(statement)
    plan = plan_of(functions, group_by, Binding(definition))
    told = {"reverse": False, "wanted": None, "max_groups": 1_000, "entries": 10_000, "after": {}, **told}
    body = encode_arguments(Arguments(encode_plan(plan), **told))
    request = ReadRequest(
        ReadSpan("i", [0], [(b"", None)], [b""], False),
        ReadPaging(0),
        ReadConsistency(1, 0),
        ReadShape(task="aggregate", body=body),
    )
    view: Any = None
    readable: ReadableSnapshot = snapshot
    found = aggregate_slice(SliceWork(request, 0, readable, definition, b"", view))
    return decode_partial(found.result if isinstance(found, Unfinished) else found)


@pytest.mark.parametrize(
    ("direction", "reverse"), [("", False), ("", True), (" DESC", False), (" DESC", True)]
)
def test_groups_in_the_order_of_the_index_are_read_only_as_far_as_wanted(
    direction: str, reverse: bool
) -> None:
    down = [True] if direction else []
    entries = sorted((encode_key([at // 10], down) + b"%03d" % at, b"") for at in range(500))
    snapshot = Watched(entries)
    partial = asked(
        snapshot, f"CREATE INDEX i ON k (a{direction})", ["count"], ["a"], wanted=2, reverse=reverse
    )
    assert len(partial.groups) == 3  # one more tells that there are more
    assert [group.entries for group in partial.groups[:2]] == [10, 10]
    first = sorted((group.key for group in partial.groups), reverse=reverse)[:2]
    assert first == [encode_key([value]) for value in ((49, 48) if reverse else (0, 1))]
    assert snapshot.given <= 33  # to the end of the block with the third


@pytest.mark.parametrize("direction", ["", " DESC"])
def test_ends_of_the_leading_part_are_not_searched_for(direction: str) -> None:
    down = [True] if direction else []
    values = [None, None, *range(400), "x"]
    snapshot = Watched(sorted((encode_key([v], down) + b"%03d" % at, b"") for at, v in enumerate(values)))
    partial = asked(snapshot, f"CREATE INDEX i ON k (a{direction})", ["min(a)", "max(a)", "count"], [])
    (group,) = partial.groups
    (state,) = group.states
    assert state.least is not None
    assert state.greatest is not None
    assert (state.least.value(), state.greatest.value(), group.entries) == (0, "x", len(values))
    assert snapshot.given == (4 if direction else 2), "DESC looks at both ends of each value"


def test_a_whole_index_is_counted_by_its_store() -> None:
    snapshot = Watched([(encode_key([at]) + b"u", b"") for at in range(300)])
    partial = asked(snapshot, "CREATE INDEX i ON k (a)", ["count"], [])
    assert (partial.groups[0].entries, snapshot.given) == (300, 0)


def test_a_call_looks_at_a_bounded_number_and_goes_on_from_there() -> None:
    snapshot = Watched([(encode_key([at]) + b"u", b"") for at in range(100)])
    total, after, calls = 0, b"", 0
    while True:
        partial = asked(
            snapshot, "CREATE INDEX i ON k (a)", ["sum(a)"], [], entries=30, after={0: after} if after else {}
        )
        calls += 1
        total += int.from_bytes(partial.groups[0].states[0].whole, "little", signed=True)
        if not partial.more:
            break
        after = partial.reached
    assert (total, calls) == (4950, 4)


def test_an_lmdb_store_of_several_levels_is_aggregated_as_its_entries(tmp_path: Path) -> None:
    """A base, a delta with removals, keys too long for the main table."""
    folds = FoldWorker()
    store = lmdb_store(tmp_path / "slice", folds)
    some = random.Random(3)
    try:
        for number in range(2):
            versions = []
            for at in range(200):
                city = some.choice(["a", "b", "c" * 600, None])
                key = encode_key([city, some.choice([at, at + 0.5, -at])])
                entries = ((key, b""),) if some.random() < 0.8 else ()
                versions.append(Version(b"u%03d" % at, 0, number * 200 + at, entries=entries))
            store.apply(
                [segment(versions, number * 200, number * 200 + 200)], state(number, p0=200 * (number + 1))
            )
            if number == 0:
                assert store.start_fold()
                assert store.finish_fold(60)
        snapshot = store.snapshot()
        plain = Watched(rows_of(snapshot))
        for functions, group_by in (
            (["count", "sum(n)", "min(n)", "max(n)"], []),
            (["count", "sum(n)", "min(n)", "max(n)", "avg(n)"], ["city"]),
            (["count", "count(city)", "min(city)"], ["n % 7"]),
            (["min(city)", "max(city)"], []),
        ):
            statement = "CREATE INDEX i ON k (city, n)"
            found, told = (asked(one, statement, functions, group_by) for one in (snapshot, plain))
            assert sorted(map(repr, found.groups)) == sorted(map(repr, told.groups))
            assert len(found.groups) >= 1
        snapshot.close()
    finally:
        store.close()
        folds.close()


@pytest.mark.parametrize(
    "entries",
    [
        [(encode_key([2]) + b"u", b""), (encode_key([1]) + b"u", b"")],
        [(b"\x02nonsense", b"")],
        [(encode_key([1]) + b"u", b"\xc1")],
    ],
)
def test_what_cannot_have_been_written_is_doubted(entries: list[tuple[bytes, bytes]]) -> None:
    snapshot = Watched(entries)
    snapshot._snapshot.entries = entries  # unsorted
    with pytest.raises(DoubtfulReadError):
        asked(snapshot, "CREATE INDEX i ON k (a)", ["sum(a)"], ["a"])


def test_functions_are_named_as_they_are_written() -> None:
    binding = Binding(definition_of(STATEMENT))
    plan = plan_of(
        ["count(*)", "Sum( n+1 )", AggregateFunction(function="min", of="n", name="x")], [], binding
    )
    assert [one.name for one in plan.functions] == ["count", "sum((n + 1))", "x"]
    assert plan_of(["sum(n)", "avg( n )", "count(n)"], [], binding).operands == plan.operands[1:]
    with pytest.raises(CallerError):
        plan_of(["sum(n)", "SUM(n)"], [], binding)
