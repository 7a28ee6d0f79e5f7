"""What aggregates hold in bytes: groups, distinct values and extremes may be as long as documents."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from indexer.scan.aggregate.request import plan_of
from indexer.scan.aggregate.slice import SliceAggregate
from indexer.scan.gather import aggregates as aggregate
from keytide.collation import encode_key
from keytide.definition.binding import Binding
from keytide.model.entry import pack_value
from tests.structure_kit import as_stored
from tests.unit.scan_world import Doc, FakeSnapshot, World, definition_of
from tests.unit.test_aggregate import asked
from tests.unit.test_api import Endpoint, problem

LARGE = 5_000
PATH = "/v1/indexes/i/aggregate"
TOO_MUCH: list[dict[str, Any]] = [
    {"functions": ["count"], "group_by": ["a"]},
    {"functions": ["count"], "group_by": ["b"]},
    {"functions": ["count"], "group_by": ["c"]},
    {"functions": ["count"], "group_by": ["UPPER(a)"]},
    {"functions": ["count"], "group_by": ["a"], "limit": 25},
    {"functions": ["count"], "group_by": ["a"], "limit": 25, "reverse": True},
    {"functions": ["count(distinct b)"]},
    {"functions": ["count(distinct c)"]},
    {"functions": ["max(c)"], "group_by": ["id"]},
    {"functions": ["min(b)"], "group_by": ["id"]},
]


def world(slices: int = 3, nodes: int = 1) -> World:
    made = World(
        f"CREATE INDEX i ON users (a, b) INCLUDE (c, n) PARTITION BY HASH(id) WITH (slices={slices})",
        node_count=nodes,
    )
    long = "x" * LARGE
    made.commit(
        1,
        {
            "i": [
                Doc(
                    [f"{at:02}{long}", f"{at:02}{long}"],
                    f"u{at:02}",
                    json.dumps({"c": f"{at}{long}", "n": at}).encode(),
                )
                for at in range(30)
            ]
        },
    )
    return made


@pytest.mark.parametrize("calls", [7, 200_000])
@pytest.mark.parametrize("body", TOO_MUCH, ids=json.dumps)
def test_few_groups_that_are_large_are_refused_with_what_to_do(body: dict[str, Any], calls: int) -> None:
    with (
        Endpoint(world(), max_query_bytes=100_000) as endpoint,
        mock.patch.object(aggregate, "CALL_ENTRIES", calls),
    ):
        document = problem(endpoint.post(PATH, **body), 422, "too-many-groups")
    assert "take more than 100,000 bytes" in document["detail"]
    assert "scan.max_query_bytes" in document["next_step"]


def test_groups_are_given_as_far_as_there_is_room() -> None:
    with Endpoint(world(), max_query_bytes=400_000) as endpoint:
        found = endpoint.post(PATH, functions=["count"], group_by=["a"], limit=5).json()
        assert [group["key"][0][:2] for group in found["groups"]] == ["00", "01", "02", "03", "04"]
        assert found["more"]
        narrow = endpoint.post(PATH, functions=["max(c)"], group_by=["id"], high=["03"]).json()
        assert len(narrow["groups"]) == 3
        assert len(endpoint.post(PATH, functions=["count"], group_by=["n"]).json()["groups"]) == 30


def test_of_many_slices_no_more_groups_are_held_than_are_wanted() -> None:
    """Each of ten slices gives as many as are wanted, three of some 10 kB."""
    made = world(slices=10)
    with Endpoint(made, max_query_bytes=100_000) as endpoint:
        found = endpoint.post(PATH, functions=["count"], group_by=["a"], limit=3, reverse=True).json()
    assert [group["key"][0][:2] for group in found["groups"]] == ["29", "28", "27"]


@pytest.mark.parametrize("group_by", ["b", "c", "LENGTH(a)"])
def test_a_call_ends_where_its_groups_are_large(group_by: str) -> None:
    long = "x" * LARGE
    entries = [
        (encode_key([at, f"{at}{long}"]) + b"u", pack_value(b"", json.dumps({"c": f"{at}{long}"}).encode()))
        for at in range(100)
    ]
    snapshot = FakeSnapshot(1, 0, mock.Mock(), entries)
    snapshot.readers = 1
    statement = "CREATE INDEX i ON users (a, b) INCLUDE (c)"
    blocks = [entries[at : at + 10] for at in range(0, 100, 10)]
    with mock.patch.object(FakeSnapshot, "rows_of", return_value=blocks):
        partial = asked(snapshot, statement, ["count"], [group_by], room=100_000)
    if group_by == "LENGTH(a)":
        assert (len(partial.groups), partial.more) == (1, False)
    else:
        assert (len(partial.groups), partial.more, partial.reached) == (10, True, entries[9][0])


@pytest.mark.parametrize("kind", ["btree", "hash"])
def test_a_group_holds_no_included_columns_that_nothing_is_asked_of(kind: str) -> None:
    definition = definition_of(f"CREATE INDEX i ON users USING {kind} (a) INCLUDE (c)")
    long = json.dumps({"c": "x" * LARGE}).encode()
    made = [as_stored(definition, [(encode_key([at]), b"", long)]) for at in range(50)]
    entries = sorted((key + b"u", value) for one in made for key, value in one)
    plan = plan_of(["count", "max(LENGTH(c))"], ["a"], Binding(definition))
    one = SliceAggregate(definition, plan, None, max_groups=1_000)
    one.add(entries)
    assert len(one.groups()) == 50
    assert one.size < 50 * 300
