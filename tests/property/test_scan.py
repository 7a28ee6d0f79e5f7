"""Scans against a naive model: every selection, order, page size, offset, number of slices and way to name
the moment, over two nodes, on sorted lists, the store in memory and the LMDB store, while newer snapshots
take the place of the one that is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cmp_to_key
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.gather.gather import count
from indexer.scan.gather.service import ScanService
from indexer.scan.local.entry_bytes import bytes_of
from indexer.scan.peer.messages import HOLDER
from indexer.scan.request.request import CountRequest, HoldRequest, ScanRequest, SpanRequest
from indexer.store.fold.worker import FoldWorker
from keytide.collation import encode_key
from keytide.definition.expression import Predicate
from keytide.process.clock import now_ms
from keytide.settings.settings import ScanSettings
from tests import share
from tests.unit.scan_world import Doc, FakeSnapshot, World, definition_of, pages_at, slice_of, stores

Part = Any
NO_BOUND = 16 << 20
KEYS = ("city", "city, age", "city DESC", "city DESC, age DESC", "city, age DESC", "city DESC, age")
PARTITIONS = ("", "PARTITION BY HASH(id)", "PARTITION BY HASH(city)", "PARTITION BY RANGE({})")
SPLITS = ("NULL", "TRUE", "-1", "0", "0.5", "2", "9007199254740993", "''", "'a'", "'ab'", "'b'", "'z'", "'é'")
"""In the order of keys; of document ids 'd07' and 'd2' part some."""

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
    """One key part with another, by docs/adr/0001, in plain Python."""
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
def stretches(draw: st.DrawFn, width: int, keys: list[tuple[Part, ...]]) -> dict[str, Any]:
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
    """A scan of some entries.

    Attributes:
        documents: entries; several may be of one document.
        stretches: what is selected; None for the whole index.
        several: whether they are given as `spans`.
        moment: how the moment is named.
        share: entries that a slice is asked for at first, so that scans take several rounds.
        examined: entries that a slice looks at in one go.
        block: keys that are skipped or counted at once.
        room: bytes of a page.
        older: whether one of the nodes knows of no bound in bytes.
    """

    statement: str
    documents: list[Doc]
    stretches: list[dict[str, Any]]
    several: bool
    slices: list[int] | None
    reverse: bool
    distinct: bool
    limit: int
    offset: int
    moment: str
    share: int
    examined: int
    block: int
    room: int
    older: bool

    @property
    def question(self) -> dict[str, Any]:
        """The selection as a request has it."""
        chosen: dict[str, Any] = (
            {"spans": [SpanRequest(**one) for one in self.stretches]} if self.several else self.stretches[0]
        )
        return {**chosen, "slices": self.slices}


@st.composite
def cases(draw: st.DrawFn, most: int = 40) -> Case:
    names = draw(st.sampled_from(KEYS))
    width = names.count(",") + 1
    slices = draw(st.integers(1, 5))
    partition = draw(st.sampled_from(PARTITIONS))
    if "RANGE" in partition:
        by = draw(st.sampled_from(["city", "city", "age" if width > 1 else "city", "id"]))
        chosen_splits = draw(
            st.sets(st.sampled_from(["'d07'", "'d2'"] if by == "id" else SPLITS), max_size=4)
        )
        ordered = sorted(chosen_splits, key=["'d07'", "'d2'", *SPLITS].index)
        slices = len(ordered) + 1
        partition = partition.format(by) + (f" SPLIT AT ({', '.join(ordered)})" if ordered else "")
    options = f"slices={slices}"
    if partition and "(id)" not in partition and draw(st.booleans()):
        spread = draw(st.lists(st.integers(1, 3), min_size=slices, max_size=slices))
        partition += f" SUBPARTITION BY HASH(id) SLICES ({', '.join(map(str, spread))})"
        options, slices = f"partitions={slices}", sum(spread)
    statement = f"CREATE INDEX i ON users ({names}) INCLUDE (n) {partition} WITH ({options})"
    some_key = st.tuples(*[parts] * width)
    if draw(st.booleans()):  # few different keys, with many entries each
        some_key = st.sampled_from(draw(st.lists(some_key, min_size=1, max_size=4)))
    size = draw(st.sampled_from([0, 1, 4, 12, most]))
    keys = draw(st.lists(some_key, min_size=size, max_size=size))
    # Some documents have two entries, under different keys.
    documents: list[Doc] = []
    for at, key in enumerate(keys):
        docid = f"d{at // 2 if draw(st.integers(0, 3)) == 0 else at:02}"
        if not any(doc.id == docid and compare_keys(doc.key, key) == 0 for doc in documents):
            documents.append(Doc(list(key), docid, b'{"n":%d}' % at))
    several = draw(st.booleans())
    chosen = draw(st.lists(stretches(width, keys), max_size=4)) if several else [draw(stretches(width, keys))]
    return Case(
        statement,
        documents,
        chosen,
        several,
        draw(st.none() | st.none() | st.lists(st.integers(0, slices - 1), min_size=1, max_size=3)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([1, 2, 3, 5, 8, 12, 39, 40, 41])),
        draw(st.sampled_from([0, 0, 1, 2, 7, 38, 100])),
        draw(st.sampled_from(["newest", "at_least", "session", "held", "tip"])),
        draw(st.sampled_from([1, 2, 5, 100])),
        draw(st.sampled_from([1, 3, 10, 1_000])),
        draw(st.sampled_from([1, 4, 1_000])),
        draw(st.sampled_from([NO_BOUND, NO_BOUND, 1, 30, 100, 700])),
        draw(st.booleans()),
    )


def services_of(world: World, case: Case) -> list[ScanService]:
    """The endpoints of all nodes, whose pages are bounded as the case says."""
    limits = ScanSettings.model_validate({}).model_copy(update={"max_page_bytes": case.room})
    services = world.services(limits)
    for nodes in world.nodes.values():
        nodes.older = {"n1"} if case.older else set()
    return list(services.values())


async def never() -> None:
    await asyncio.Event().wait()


@dataclass
class Taken:
    """What a scan of all its pages gave."""

    rows: list[dict[str, Any]]
    snapshots: set[int | None]
    pages: int
    count: int


async def take_pages(world: World, case: Case) -> Taken:
    """All pages and the count; the world moves on between pages, but for scans of the tip."""
    services = services_of(world, case)
    moment: dict[str, Any] = {}
    if case.moment == "tip":
        moment["consistency"] = "tip"
    elif case.moment == "at_least":
        moment["at_least"] = {0: 1}
    elif case.moment == "session":
        answer = json.loads((await services[0].scan("i", ScanRequest(limit=1), never)).body)
        moment["session"] = answer["session"]
    elif case.moment == "held":
        answer = json.loads((await services[0].hold("i", HoldRequest(), never)).body)
        assert (answer["snapshot"], answer["slices"]) == (1, world.index("i").definition.slices)
        moment["at"] = answer["at"]
        commit_later(world)
    question = {**case.question, **moment, "distinct": case.distinct}
    counted = json.loads((await services[-1].count("i", CountRequest(**question), never)).body)["count"]
    request = ScanRequest(**question, reverse=case.reverse, limit=case.limit, offset=case.offset)
    taken = Taken([], set(), 0, counted)
    while True:
        service = services[taken.pages % len(services)]
        answer = json.loads((await service.scan("i", request, never)).body)
        taken.pages += 1
        taken.rows += answer["rows"]
        taken.snapshots.add(answer["snapshot"])
        if answer["page"] is None:
            return taken
        assert answer["rows"], "every page takes a scan further"
        request = ScanRequest(page=answer["page"])
        if case.moment != "tip":
            commit_later(world)


def commit_later(world: World) -> None:
    """Two newer snapshots with other entries: nobody keeps the older ones but those who lease them."""
    width = len(world.index("i").definition.keys)
    for _ in range(2):
        number = max(world.stamps) + 1
        world.commit(number, {"i": [Doc([number] * width, f"later{number}")]})


def expected_of(case: Case, world: World) -> list[Doc]:
    """The entries that the scan is to give, in order, before offset and limit."""
    definition = world.index("i").definition
    descending = [part.descending for part in definition.keys]
    wanted = set(range(definition.slices)) if case.slices is None else set(case.slices)

    def in_order(one: Doc, other: Doc) -> int:
        return compare_keys(one.key, other.key, descending) or (one.id > other.id) - (one.id < other.id)

    expected = [
        doc
        for doc in case.documents
        if any(is_selected(doc.key, one, descending) for one in case.stretches)
        and slice_of(definition, doc) in wanted
    ]
    return sorted(expected, key=cmp_to_key(in_order), reverse=case.reverse)


def check(case: Case, world: World) -> None:
    world.examined = case.examined
    with (
        mock.patch("indexer.scan.gather.gather.even_share", return_value=case.share),
        mock.patch("indexer.scan.gather.gather.SKIP_BLOCK", case.block),
        mock.patch("indexer.scan.gather.gather.COUNT_BLOCK", case.block),
    ):
        taken = asyncio.run(take_pages(world, case))
    expected = expected_of(case, world)
    assert all(snapshot.readers == 0 for snapshot in world.held())
    if case.distinct:
        groups: list[list[Doc]] = []
        for doc in expected:
            if not groups or compare_keys(groups[-1][0].key, doc.key):
                groups.append([])
            groups[-1].append(doc)
        assert taken.count == len(groups)
        groups = groups[case.offset :]
        assert len(taken.rows) == len(groups)
        for row, group in zip(taken.rows, groups, strict=True):
            # Of the ways in which equal numbers are written, one that there is.
            assert repr(row) in {repr({"key": list(doc.key)}) for doc in group}
        given = len(groups)
    else:
        assert taken.count == len(expected)
        expected = expected[case.offset :]
        assert [row["id"] for row in taken.rows] == [doc.id for doc in expected]
        # Numbers come back as they were written: 2.0 as 2.0, -0.0 as -0.0, large integers exactly.
        assert [repr(row["key"]) for row in taken.rows] == [repr(list(doc.key)) for doc in expected]
        included = [json.loads(doc.include or b"{}") for doc in expected]
        assert [row["include"] for row in taken.rows] == included
        given = len(expected)
    assert taken.snapshots == ({None} if case.moment == "tip" else {1})
    if case.room == NO_BOUND:
        assert taken.pages == max(1, -(-given // case.limit))
    else:
        assert -(-given // case.limit) <= taken.pages <= given + 1


@settings(max_examples=share.examples(300), deadline=None)
@given(cases())
def test_scans_give_what_a_naive_model_gives(case: Case) -> None:
    world = World(case.statement, node_count=2)
    world.commit(1, {"i": case.documents})
    check(case, world)


@pytest.mark.parametrize(("kind", "examples"), [("memory", 60), ("lmdb", 40)])
def test_scans_of_real_stores(kind: str, examples: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    with closing(FoldWorker()) as folds:

        @settings(max_examples=share.examples(examples), deadline=None)
        @given(cases(most=25))
        def run(case: Case) -> None:
            with stores(kind, tmp_path_factory.mktemp("stores"), folds) as keep:
                world = World(case.statement, node_count=1)
                world.keep = keep
                world.commit(1, {"i": case.documents})
                world.keep = FakeSnapshot
                check(case, world)

        run()


# --- filters ----------------------------------------------------------------------------------------------

CONDITIONS: dict[str, Callable[[Doc], bool]] = {
    "n % 3 = 0": lambda doc: number_of(doc) % 3 == 0,
    "n IN (1, 5, 8) OR id = 'd03'": lambda doc: number_of(doc) in (1, 5, 8) or doc.id == "d03",
    "city = 'a'": lambda doc: bool(doc.key[0] == "a"),
    "city > 1": lambda doc: type(doc.key[0]) in (int, float) and compare(doc.key[0], 1) > 0,
    "city IS NULL": lambda doc: doc.key[0] is None,
    "city LIKE 'a%' AND n < 20": lambda doc: (
        str(doc.key[0])[:1] == "a" and isinstance(doc.key[0], str) and number_of(doc) < 20
    ),
    "n < 0": lambda doc: False,
}


def number_of(doc: Doc) -> int:
    number: int = json.loads(doc.include or b"{}")["n"]
    return number


def condition_of(text: str) -> Predicate:
    where = definition_of(f"CREATE INDEX x ON users (city) WHERE {text}").where
    assert where is not None
    return where


@settings(max_examples=share.examples(150), deadline=None)
@given(cases(), st.sampled_from(sorted(CONDITIONS)))
def test_filters_are_tested_where_the_entries_lie(case: Case, text: str) -> None:
    world = World(case.statement, node_count=2)
    world.commit(1, {"i": case.documents})
    world.examined = case.examined

    async def read() -> tuple[list[tuple[bytes, bytes]], int]:
        services = services_of(world, case)
        shared = services[0].shared
        request = CountRequest(**case.question)
        index = await shared.ready_index("i", request, never)
        selection = shared.selection(request, index, distinct=case.distinct)
        selection = replace(selection, filter=condition_of(text))
        counted = await shared.read(
            index,
            selection,
            request,
            {},
            never,
            lambda target: count(target, shared.nodes, apart=index.shape.keys_apart),
        )
        held = await shared.open(index, selection, request, {}, never)
        commit_later(world)
        entries = []
        async for page in pages_at(
            shared, held, selection, case.limit, reverse=case.reverse, offset=case.offset, room=case.room
        ):
            assert bytes_of(page.gathered.entries[:-1]) < case.room
            assert len(page.gathered.entries) <= case.limit
            assert page.stamp.number == 1
            entries += page.gathered.entries
        assert any(len(one.leases) for one in world.held())
        await shared.holds.give_back(held, 30.0)
        return entries, counted.gathered.count

    with (
        mock.patch("indexer.scan.gather.gather.even_share", return_value=case.share),
        mock.patch("indexer.scan.gather.gather.SKIP_BLOCK", case.block),
        mock.patch("indexer.scan.gather.gather.COUNT_BLOCK", case.block),
    ):
        entries, counted = asyncio.run(read())
    expected = [doc for doc in expected_of(case, world) if CONDITIONS[text](doc)]
    directions = world.index("i").definition.descending
    keys = [doc.entry(directions)[0] for doc in expected]
    if case.distinct:
        ends = [len(encode_key(doc.key, directions)) for doc in expected]
        keys = list(dict.fromkeys(key[:end] for key, end in zip(keys, ends, strict=True)))
    assert [key for key, _ in entries] == keys[case.offset :]
    assert counted == len(keys)
    # The hold was given back; a count of several rounds keeps its snapshot for some seconds.
    kept = {who for one in world.held() for who, until in one.leases.items() if until > now_ms()}
    assert kept <= {HOLDER}
