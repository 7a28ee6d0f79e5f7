"""Scans against a naive model: every selection, order, page size and number of slices, over two nodes, while
newer snapshots take the place of the one that is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.request import CountRequest, ScanRequest
from tests.unit.scan_world import Doc, World

Part = Any
KEYS = ("city", "city, age", "city DESC", "city DESC, age DESC", "city, age DESC", "city DESC, age")
PARTITIONS = ("", "PARTITION BY HASH(id)", "PARTITION BY HASH(city)")

parts = st.one_of(
    st.sampled_from(["", "a", "ab", "abc", "b", "\x00", "a\x00b", "é", "z" * 600]),
    st.integers(-3, 3),
    st.sampled_from([0.5, 2.0, -0.0, 2**53 + 1, 2**53, 10**30, True, False, None]),
    st.lists(st.integers(0, 2), max_size=2),
)


def rank(value: Part) -> int:
    if value is None:
        return 1
    if isinstance(value, bool):
        return 3 if value else 2
    return {int: 4, float: 4, str: 5, list: 6}[type(value)]


def compare(one: Part, other: Part) -> int:
    """One key part with another, by DESIGN §7, in plain Python."""
    if rank(one) != rank(other):
        return -1 if rank(one) < rank(other) else 1
    if isinstance(one, list):
        for a, b in zip(one, other, strict=False):
            if order := compare(a, b):
                return order
        return (len(one) > len(other)) - (len(one) < len(other))
    if one is None or isinstance(one, bool):
        return 0
    return int(one > other) - int(one < other)  # strings by code point


def compare_keys(one: Sequence[Part], other: Sequence[Part], descending: Sequence[bool] = ()) -> int:
    """The leading parts that both have."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if order := compare(a, b):
            return -order if descending and descending[at] else order
    return 0


def is_selected(key: Sequence[Part], question: dict[str, Any], descending: Sequence[bool]) -> bool:
    leading = question.get("equals") or []
    if compare_keys(key, leading):
        return False
    if question.get("prefix") is not None:
        part = key[len(leading)]
        return isinstance(part, str) and part.startswith(question["prefix"])
    low, high = question.get("low") or [], question.get("high") or []
    shared = 0
    while shared < min(len(low), len(high)) and compare(low[shared], high[shared]) == 0:
        shared += 1
    bounded = descending[shared : max(len(low), len(high))]
    # By value when the bounded parts go one way; places in the index's order when directions are mixed.
    directions = descending if len(set(bounded)) > 1 else ()
    inclusion = question.get("inclusion", "both")
    if low:
        order = compare_keys(key, low, directions)
        if order < 0 or (order == 0 and inclusion not in ("both", "low")):
            return False
    if high:
        order = compare_keys(key, high, directions)
        if order > 0 or (order == 0 and inclusion not in ("both", "high")):
            return False
    return True


@st.composite
def questions(draw: st.DrawFn, width: int, keys: list[tuple[Part, ...]]) -> dict[str, Any]:
    """Bounds are mostly the leading parts of keys that are there."""

    def bound(longest: int = width) -> list[Part]:
        there: int = draw(st.integers(0, 3))
        if keys and there:
            key: tuple[Part, ...] = draw(st.sampled_from(keys))
            length: int = draw(st.integers(0, longest))
            return list(key[:length])
        return draw(st.lists(parts, max_size=longest))

    kind = draw(st.sampled_from(["all", "equals", "prefix", "low", "high", "range", "range"]))
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


@dataclass(frozen=True)
class Case:
    """A scan of some documents.

    Attributes:
        share: entries that a slice is asked for at first, so that scans take several rounds.
    """

    statement: str
    documents: list[Doc]
    question: dict[str, Any]
    reverse: bool
    limit: int
    share: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = draw(st.sampled_from(KEYS))
    width = names.count(",") + 1
    slices = draw(st.integers(1, 5))
    statement = (
        f"CREATE INDEX i ON users ({names}) {draw(st.sampled_from(PARTITIONS))} WITH (slices={slices})"
    )
    keys = draw(st.lists(st.tuples(*[parts] * width), max_size=40))
    documents = [Doc(list(key), f"d{at:02}") for at, key in enumerate(keys)]
    limit = draw(st.sampled_from([1, 2, 3, 5, 8, 12, 39, 40, 41]))
    share = draw(st.sampled_from([1, 2, 5, 100]))
    return Case(statement, documents, draw(questions(width, keys)), draw(st.booleans()), limit, share)


async def never() -> None:
    await asyncio.Event().wait()


async def take_pages(
    world: World, question: dict[str, Any], reverse: bool, limit: int
) -> tuple[list[tuple[str, list[Part]]], set[int], int, int]:
    """(rows over all pages, snapshots they came from, pages, count); the world moves on between pages."""
    services = list(world.services().values())
    width = len(world.index("i").definition.keys)
    stable = {"reverse": reverse, "limit": limit, **question}
    counted = json.loads((await services[0].count("i", CountRequest(**question), never)).body)["count"]
    rows: list[tuple[str, list[Part]]] = []
    snapshots: set[int] = set()
    request, pages = ScanRequest(**stable), 0
    while True:
        answer = json.loads((await services[pages % len(services)].scan("i", request, never)).body)
        pages += 1
        rows += [(row["id"], row["key"]) for row in answer["rows"]]
        snapshots.add(answer["snapshot"])
        if answer["page"] is None:
            return rows, snapshots, pages, counted
        request = ScanRequest(page=answer["page"])
        for _ in range(2):
            number = max(world.stamps) + 1
            world.commit(number, {"i": [Doc([number] * width, f"later{number}")]})


@settings(max_examples=200, deadline=None)
@given(cases())
def test_scans_give_what_a_naive_model_gives(case: Case) -> None:
    documents, question, reverse, limit = case.documents, case.question, case.reverse, case.limit
    world = World(case.statement, node_count=2)
    world.commit(1, {"i": documents})
    definition = world.index("i").definition
    descending = [part.descending for part in definition.keys]

    def in_order(one: Doc, other: Doc) -> int:
        return compare_keys(one.key, other.key, descending) or (one.id > other.id) - (one.id < other.id)

    expected = [doc for doc in documents if is_selected(doc.key, question, descending)]
    expected.sort(key=cmp_to_key(in_order), reverse=reverse)
    with mock.patch("indexer.scan.gather._even_share", return_value=case.share):
        rows, snapshots, pages, counted = asyncio.run(take_pages(world, question, reverse, limit))

    assert [id_ for id_, _ in rows] == [doc.id for doc in expected]
    # Numbers come back as they were written: 2.0 as 2.0, -0.0 as -0.0, large integers exactly.
    assert [repr(key) for _, key in rows] == [repr(list(doc.key)) for doc in expected]
    assert snapshots == {1}
    assert pages == max(1, -(-len(expected) // limit))
    assert counted == len(expected)
