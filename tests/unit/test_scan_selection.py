"""What requests select: which slices are asked, what is refused, and reads that look at much and find
little."""

from __future__ import annotations

import json
import threading
from typing import Any
from unittest import mock

import pytest

from indexer.scan.gather import gather as gathering
from indexer.scan.gather.scatter import Target
from indexer.scan.gather.service import ScanService
from indexer.scan.http.endpoint import unless_gone
from indexer.scan.plan.errors import CountTimeoutError, IndexNotReadyError
from indexer.scan.plan.selection import Selection, Shape, selection_of, slices_of
from indexer.scan.plan.waiting import ReaderGoneError
from indexer.scan.request.request import (
    CountRequest,
    InvalidRequestError,
    ScanRequest,
    SpanRequest,
    from_query,
    parse,
)
from keytide.collation import Span, encode_key
from keytide.definition.expression import Comparison, DocumentId, In, Literal, Path, Predicate
from keytide.errors import CallerError, RetryableError
from keytide.settings.settings import ScanSettings
from tests.unit.scan_world import PATIENT_MS, Doc, World, definition_of
from tests.unit.test_scan_service import (
    BY_CITY,
    ByNode,
    ask,
    ask_count,
    ids,
    never,
    people,
    raises,
    run,
    until,
)

SHAPE = Shape.of(definition_of("CREATE INDEX i ON users (a, b DESC) WITH (slices=64)"))
NEVER: Predicate = Comparison("=", Path(("city",)), Literal("nowhere"))


def of(**equals: Any) -> SpanRequest:
    return SpanRequest(**equals)


# --- which slices -----------------------------------------------------------------------------------------


def test_an_equality_on_the_partitioning_key_asks_one_slice_per_stretch() -> None:
    one, other = (slices_of(ScanRequest(equals=[city]), SHAPE) for city in ("Boston", "Bonn"))
    assert len(one) == len(other) == 1
    assert one != other
    both = ScanRequest(spans=[of(equals=["Boston"]), of(low=["Bonn", 3], high=["Bonn", 5])])
    assert slices_of(both, SHAPE) == tuple(sorted([*one, *other]))
    assert slices_of(ScanRequest(spans=[of(equals=["Boston"]), of(prefix="Bo")]), SHAPE) == range(64)
    # What can hold nothing asks nothing.
    empty = of(low=["Bonn"], high=["Boston"][:0] or ["Aachen"])
    assert slices_of(ScanRequest(spans=[of(equals=["Boston"]), empty]), SHAPE) == one
    assert selection_of(ScanRequest(spans=[empty]), SHAPE, 10) == Selection([], ())
    assert selection_of(ScanRequest(spans=[]), SHAPE, 10) == Selection([], ())


def test_only_the_slices_that_were_named_are_asked() -> None:
    assert slices_of(ScanRequest(slices=[5, 2, 5]), SHAPE) == (2, 5)
    (one,) = slices_of(ScanRequest(equals=["Boston"]), SHAPE)
    assert slices_of(ScanRequest(equals=["Boston"], slices=[one]), SHAPE) == (one,)
    assert slices_of(ScanRequest(equals=["Boston"], slices=[one ^ 1]), SHAPE) == ()
    with pytest.raises(CallerError, match="no slice 64") as caught:
        slices_of(ScanRequest(slices=[64]), SHAPE)
    assert (caught.value.status, caught.value.problem_type) == (422, "unknown-slice")


def test_spans_that_overlap_or_touch_are_one() -> None:
    request = ScanRequest(
        spans=[
            of(equals=["b"]),
            of(low=["a"], high=["b", 4]),
            of(prefix="b"),
            of(equals=["d"]),
            of(equals=["d"]),
        ]
    )
    spans = selection_of(request, SHAPE, 5).spans
    assert len(spans) == 2
    assert spans == sorted(spans, key=lambda one: one.low)
    assert selection_of(ScanRequest(spans=[of(), of(equals=["b"])]), SHAPE, 5).spans == [Span()]


@pytest.mark.parametrize(
    "body",
    [
        {"equals": ["a"], "spans": []},
        {"spans": [{"equals": ["a"], "low": ["b"]}]},
        {"spans": [{"limit": 1}]},
        {"spans": {"equals": ["a"]}},
        {"slices": []},
        {"slices": [-1]},
        {"offset": -1},
        {"distinct": True, "columns": ["key", "id"]},
        {"distinct": True, "columns": ["include"]},
        {"distinct": True, "validate": True},
        {"at": "x", "consistency": "tip"},
        {"at": "x", "at_least": {"0": 1}},
        {"at": "x", "max_staleness_ms": 0},
        {"at": "x", "page": "y"},
    ],
)
def test_what_contradicts_itself_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(ScanRequest, json.dumps(body).encode())
    assert caught.value.status == 422
    assert caught.value.next_step or caught.value.message
    with pytest.raises(InvalidRequestError):
        from_query(ScanRequest, [(name, json.dumps(value)) for name, value in body.items()])


def test_every_member_can_be_given_by_hand() -> None:
    given = from_query(
        ScanRequest,
        [
            ("spans", '[{"equals": ["a", 1]}, {"prefix": "b"}]'),
            ("slices", "1,2"),
            ("offset", "3"),
            ("distinct", "true"),
            ("columns", "key"),
            ("limit", "5"),
        ],
    )
    assert given == ScanRequest(
        spans=[of(equals=["a", 1]), of(prefix="b")],
        slices=[1, 2],
        offset=3,
        distinct=True,
        columns=["key"],
        limit=5,
    )


def test_limits_on_what_may_be_asked() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        service = services["n0"]
        error = await raises(CallerError, ask(service, offset=21))
        assert (error.status, error.problem_type) == (422, "offset-too-large")
        error = await raises(CallerError, ask(service, spans=[SpanRequest()] * 4))
        assert (error.status, error.problem_type) == (422, "too-many-spans")
        assert error.next_step
        assert ids(await ask(service, offset=20)) == [f"u{at}" for at in range(20, 30)]
        assert len(ids(await ask(service, spans=[SpanRequest()] * 3))) == 30

    run(test, world, ScanSettings.model_validate({"max_offset": 20, "max_spans": 3}))


# --- how it is read ---------------------------------------------------------------------------------------


def test_an_offset_is_left_out_by_the_slice_when_one_is_asked() -> None:
    world = World("CREATE INDEX i ON users (a, n) WITH (slices=4)")
    world.commit(10, {"i": [Doc(["x", at], f"u{at:02}") for at in range(40)]})

    async def test(services: ByNode) -> None:
        answer = await ask(services["n0"], "i", equals=["x"], offset=33, limit=5)
        assert ids(answer) == [f"u{at}" for at in range(33, 38)]
        reads = [request for nodes in world.nodes.values() for _, request in nodes.reads]
        assert [(len(one.span.slices), one.paging.skip) for one in reads] == [(1, 33)]
        rest = await ask(services["n0"], page=answer["page"], name="i")
        assert ids(rest) == ["u38", "u39"]
        assert [one.paging.skip for nodes in world.nodes.values() for _, one in nodes.reads] == [33, 0]

    run(test, world)


def test_an_offset_over_several_slices_fetches_keys_in_blocks() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": [Doc([f"c{at:04}"], f"u{at}", b'{"x":1}') for at in range(400)]})

    async def test(services: ByNode) -> None:
        with mock.patch("indexer.scan.gather.gather.SKIP_BLOCK", 64):
            answer = await ask(services["n0"], offset=390, limit=3)
        assert ids(answer) == ["u390", "u391", "u392"]
        reads = [request for _, request in world.nodes["n0"].reads]
        skipping = [one for one in reads if one.shape.keys_only]
        assert len(skipping) >= 2 * 3
        assert max(one.paging.limit * 4 for one in skipping) <= 200, "blocks are bounded"
        assert not reads[-1].shape.keys_only

    run(test, world)


def test_distinct_keys_are_read_with_a_seek_each_however_many_entries_they_have() -> None:
    world = World("CREATE INDEX i ON users (a) WITH (slices=1)", node_count=1)
    world.commit(10, {"i": [Doc([at // 500], f"u{at:04}") for at in range(3_000)]})

    async def test(services: ByNode) -> None:
        answer = await ask(services["n0"], "i", distinct=True, explain=True)
        assert answer["rows"] == [{"key": [at]} for at in range(6)]
        assert answer["explain"]["slices"][0]["rows_read"] < 60
        back = await ask(services["n0"], "i", distinct=True, reverse=True, limit=4, columns=["key"])
        assert [row["key"] for row in back["rows"]] == [[5], [4], [3], [2]]
        last = await ask(services["n0"], "i", page=back["page"])
        assert [row["key"] for row in last["rows"]] == [[1], [0]]
        counted = await ask_count(services["n0"], "i", distinct=True)
        assert counted["count"] == 6

    run(test, world)


async def filtered(service: ScanService, predicate: Predicate, limit: int, **request: Any) -> Any:
    """(entries, whether there is more, where it got to) of a filtered read."""
    question = CountRequest(**request)
    shared = service.shared
    index = await shared.ready_index("by_city", question, never)
    whole = shared.selection(question, index)
    selection = Selection(whole.spans, whole.slices, predicate)

    async def work(target: Target) -> gathering.Gathered:
        return await gathering.gather(target, shared.nodes, b"", False, limit)

    return (await shared.read(index, selection, question, {}, never, work)).gathered


def test_a_read_that_finds_nothing_looks_at_bounded_pieces_in_threads() -> None:
    world = World(BY_CITY, node_count=1)
    world.examined = 10
    world.commit(10, {"by_city": people(100)})
    threads: set[str] = set()

    async def test(services: ByNode) -> None:
        shared = services["n0"].shared
        search = shared.local._search
        find = search.find

        def noted(*given: Any) -> Any:
            threads.add(threading.current_thread().name.rpartition("_")[0])
            found = find(*given)
            assert found.examined <= 10 + 3, "a block more at most"
            return found

        with mock.patch.object(search, "find", noted):
            gathered = await filtered(services["n0"], NEVER, 5)
        assert (gathered.entries, gathered.more) == ([], False)
        assert gathered.rounds >= 2
        assert sum(gathered.read.values()) == 100
        assert threads == {"scan"}

    run(test, world)


def test_when_its_time_is_over_a_read_says_where_it_got_to() -> None:
    world = World(BY_CITY)
    world.examined = 5
    world.commit(10, {"by_city": people(200)})

    async def test(services: ByNode) -> None:
        clock = iter(range(0, 10_000, 4))  # each look at the clock is four seconds later
        with mock.patch("indexer.scan.gather.gather.monotonic", side_effect=lambda: next(clock)):
            gathered = await filtered(services["n0"], NEVER, 5, timeout_ms=6_000)
        assert (gathered.entries, gathered.more) == ([], True)
        assert gathered.reached
        assert gathered.rounds == 2
        with (
            mock.patch("indexer.scan.gather.gather.monotonic", side_effect=lambda: next(clock)),
            mock.patch("indexer.scan.gather.gather.SKIP_BLOCK", 8),
        ):
            first = await ask(services["n0"], offset=150, limit=5, timeout_ms=6_000)
        # No rows yet, and a token to go on with.
        assert first["rows"] == []
        page = first
        while not page["rows"]:
            page = await ask(services["n1"], page=page["page"])
        assert ids(page) == [f"u{at}" for at in range(150, 155)]

    run(test, world)


def test_a_count_that_takes_too_long_is_a_typed_error() -> None:
    world = World(BY_CITY)
    world.examined = 5
    world.commit(10, {"by_city": people(200)})

    async def test(services: ByNode) -> None:
        clock = iter(range(0, 10_000, 4))
        with mock.patch("indexer.scan.gather.gather.monotonic", side_effect=lambda: next(clock)):
            error = await raises(CountTimeoutError, ask_count(services["n0"], low=["a"], timeout_ms=6_000))
        assert (error.status, error.problem_type) == (504, "count-timeout")
        assert error.next_step
        assert (await ask_count(services["n0"], low=["a"]))["count"] == 200

    run(test, world)


def test_an_entry_that_cannot_be_read_has_its_slice_examined() -> None:
    world = World(BY_CITY, node_count=1)
    world.commit(10, {"by_city": people(30)})
    view = world.views["n0"]
    snapshot = view.slices["by_city-1", 2].snapshots[10]
    key, _ = snapshot.entries[3]
    snapshot.entries[3] = (key, b"\xc1 no value")

    async def test(services: ByNode) -> None:
        error: RetryableError = CountTimeoutError(0, 0.0)
        while isinstance(error, CountTimeoutError):  # (its time may run out while it reads once more)
            error = await raises(RetryableError, ask_count(services["n0"], distinct=True, timeout_ms=2_000))
        assert isinstance(error, IndexNotReadyError)
        assert "cannot be read" in error.message
        assert error.status == 503
        assert list(view.doubted) == [("by_city-1", 2)]
        assert not view.damaged

    run(test, world)


def test_a_filter_on_what_the_index_does_not_hold_is_refused() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(3)})

    async def test(services: ByNode) -> None:
        unheld = Comparison("=", Path(("age",)), Literal(3))
        error = await raises(CallerError, filtered(services["n0"], unheld, 5))
        assert (error.status, error.problem_type) == (422, "not-in-index")

    run(test, world)


@pytest.mark.parametrize("distinct", [False, True])
def test_a_count_of_many_rounds_ends_though_the_world_moves_on(distinct: bool) -> None:
    world = World("CREATE INDEX i ON users (n) PARTITION BY HASH(id) WITH (slices=4)", node_count=2)
    world.examined = 5
    documents = [Doc([at], f"u{at}") for at in range(200)]
    world.commit(10, {"i": documents})

    async def test(services: ByNode) -> None:
        nodes = world.nodes["n0"]
        read, numbers = nodes.read, iter(range(11, 10_000))

        async def moving(*given: Any) -> Any:
            try:
                return await read(*given)
            finally:
                world.commit(next(numbers), {"i": documents})

        with mock.patch.object(nodes, "read", moving), mock.patch.object(gathering, "COUNT_BLOCK", 8):
            answer = await ask_count(services["n0"], "i", low=[0], distinct=distinct, timeout_ms=PATIENT_MS)
        assert (answer["count"], answer["snapshot"]) == (200, 10)
        # What is known without a second round keeps nothing.
        await ask_count(services["n1"], "i")
        kept = {one.number for one in world.held() if one.leases}
        assert kept == {10}

    run(test, world)


@pytest.mark.parametrize("distinct", [False, True])
def test_a_count_that_nobody_waits_for_ends(distinct: bool) -> None:
    world = World("CREATE INDEX i ON users (n) PARTITION BY HASH(id) WITH (slices=2)", node_count=1)
    world.examined = 3
    world.commit(10, {"i": [Doc([at], f"u{at}") for at in range(600)]})

    async def test(services: ByNode) -> None:
        async def leaves() -> None:
            await until(lambda: len(world.nodes["n0"].reads) >= 2)

        request = CountRequest(low=[0], distinct=distinct)
        with mock.patch.object(gathering, "COUNT_BLOCK", 8):
            counting = services["n0"].count("i", request, leaves)
            await raises(ReaderGoneError, unless_gone(counting, leaves, 60))
        assert len(world.nodes["n0"].reads) < 10

    run(test, world)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_distinct_keys_that_pass_a_filter_come_once_wherever_a_read_pauses(
    reverse: bool, offset: int
) -> None:
    world = World("CREATE INDEX i ON users (a) PARTITION BY HASH(id) WITH (slices=3)", node_count=1)
    world.examined = 4
    documents = [Doc([f"k{at % 3}"], f"u{at:03}") for at in range(120)]
    world.commit(10, {"i": documents})
    # Of every key a few documents pass, at one end, in the middle, at the other end.
    for passing in ({f"u{at:03}" for at in some} for some in (range(6), range(57, 63), range(110, 120))):
        predicate: Predicate = In(DocumentId(), tuple(Literal(one) for one in sorted(passing)))

        async def test(services: ByNode, predicate: Predicate = predicate) -> None:
            shared = services["n0"].shared
            index = shared.directory.index("i")
            whole = shared.selection(ScanRequest(), index)
            selection = Selection(whole.spans, whole.slices, predicate, True)
            keys: list[bytes] = []
            after, left, more = b"", offset, True
            clock = iter(range(0, 100_000, 4))
            while more:

                async def work(target: Target, after: bytes = after, left: int = left) -> gathering.Gathered:
                    return await gathering.gather(target, shared.nodes, after, reverse, 2, left)

                with mock.patch("indexer.scan.gather.gather.monotonic", side_effect=lambda: next(clock)):
                    page = (await shared.read(index, selection, ScanRequest(), {}, never, work)).gathered
                keys += [key for key, _ in page.entries]
                after, left, more = page.reached, page.offset_left, page.more
            expected = [encode_key([f"k{at}"]) for at in (reversed(range(3)) if reverse else range(3))]
            assert keys == expected[offset:]

        run(test, world)
