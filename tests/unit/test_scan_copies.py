"""Slices with two copies: a scan goes on at the same number when either dies, in the middle of it, and so do
its pages, held snapshots and tails (R36, R38)."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

from indexer.scan.gather.failover import CopyRequests
from indexer.scan.gather.scatter import monotonic
from indexer.scan.gather.service import ScanService
from indexer.scan.peer.health import BUDGET, LONG_HEDGE_S, SUSPECT_S, PeerHealth
from indexer.scan.peer.messages import (
    JointPage,
    JointRead,
    JointSpans,
    LeaseReply,
    LeaseRequest,
    ReadConsistency,
    ReadPaging,
    ReadReply,
    ReadRequest,
    ReadSpan,
    SliceReply,
)
from indexer.scan.plan.errors import PageSnapshotGoneError
from indexer.scan.plan.tokens import HeldToken, PageToken, by_node, copies_of, verify
from keytide.catalog.copies import LeavingCopy
from keytide.errors import KeytideError, RetryableError
from keytide.http.node_protocol import NodeUnavailableError
from keytide.model.timestamp import Timestamp
from tests.simulation.scheduler import SimLoop, in_simulated_time
from tests.unit.scan_world import SECRET, World
from tests.unit.test_scan_held import hold, leases
from tests.unit.test_scan_service import BY_CITY, ByNode, ask_count, ids, never, people, run
from tests.unit.test_scan_service import ask as asked

ALL = [f"u{at}" for at in range(40)]
NODES = ("n0", "n1", "n2")


async def ask(service: ScanService, **request: Any) -> dict[str, Any]:
    """An answer, which there is."""
    try:
        return await asked(service, **request)
    except KeytideError as error:
        raise AssertionError(f"refused: {error.message}") from error


async def refusal(service: ScanService, **request: Any) -> type[BaseException]:
    """As what a request is refused."""
    with pytest.raises(KeytideError) as caught:
        await asked(service, **request)
    return type(caught.value)


def of_two_copies() -> World:
    """Slice k is on nodes k and k + 1 of three."""
    world = World(BY_CITY, node_count=3, replicas=1)
    world.commit(10, {"by_city": people(40)})
    return world


def go_on(world: World) -> None:
    """Newer snapshots than a slice keeps of itself."""
    for number in range(11, 20):
        world.commit(number, {"by_city": people(7, tag=f"v{number}-")})


def kill(world: World, *nodes: str) -> None:
    """They are away, and have lost what lies in memory."""
    restart(world, *nodes)
    for asking in world.nodes.values():
        asking.down.update(nodes)


def restart(world: World, *nodes: str) -> None:
    for node in nodes:
        for held in world.views[node].slices.values():
            held.restart()


def back(world: World) -> None:
    for asking in world.nodes.values():
        asking.down.clear()


async def rest_of(service: ScanService, page: dict[str, Any]) -> list[str]:
    """The ids of all pages behind one."""
    found: list[str] = []
    while page["page"]:
        page = await ask(service, page=page["page"])
        found += ids(page)
    return found


@pytest.mark.parametrize("dead", NODES)
def test_pages_live_through_the_death_of_any_one_copy(dead: str) -> None:
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        alive = next(name for name in NODES if name != dead)
        first = await ask(services[alive], limit=6)
        named = copies_of(verify(first["page"], PageToken, bytes.fromhex(SECRET)).nodes)
        assert {number: len(set(there)) for number, there in named.items()} == dict.fromkeys(range(4), 2)
        go_on(world)
        kill(world, dead)
        second = await ask(services[alive], page=first["page"])
        assert second["snapshot"] == 10
        assert ids(first) + ids(second) + await rest_of(services[alive], second) == ALL

    run(test, world)


def test_pages_live_while_each_copy_is_away_in_turn() -> None:
    """One that was only cut off still has the snapshot when it comes back."""
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=4)
        go_on(world)
        found = ids(page)
        for away in NODES[1:] * 4:
            for asking in world.nodes.values():
                asking.down = {away}
            page = await ask(services["n0"], page=page["page"])
            found += ids(page)
        assert found == ALL[: len(found)]
        assert len(found) == 36

    run(test, world)


def test_a_page_is_gone_only_when_all_its_copies_are() -> None:
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        first = await ask(services["n0"], limit=6)
        go_on(world)
        restart(world, "n0")
        kill(world, "n1")  # slice 0 is on both
        assert await refusal(services["n2"], page=first["page"], timeout_ms=50) is NodeUnavailableError
        back(world)
        assert await refusal(services["n2"], page=first["page"]) is PageSnapshotGoneError

    run(test, world)


def test_a_first_page_is_given_though_the_second_copy_cannot_keep_its_snapshot() -> None:
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        for asking in world.nodes.values():
            asking.silent = {"n1"}
        began = time.monotonic()
        first = await ask(services["n0"], limit=6)
        assert time.monotonic() - began < 5
        named = copies_of(verify(first["page"], PageToken, bytes.fromhex(SECRET)).nodes)
        assert all("n1" not in there for there in named.values())
        assert ids(first) + await rest_of(services["n0"], first) == ALL

    run(test, world)


def test_a_read_goes_on_at_another_copy_at_the_same_number() -> None:
    """Copies that lack the number, or do not answer, whichever is asked first."""
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        for dead in NODES:
            restart(world, dead)
            for name in NODES:
                answer = await ask(services[name], explain=True)
                assert (answer["snapshot"], ids(answer)) == (10, ALL)
                read = {one["slice"]: one["node"] for one in answer["explain"]["slices"]}
                assert dead not in read.values()
                assert (await ask_count(services[name]))["count"] == 40
            world.commit(10, {"by_city": people(40)})

    run(test, world)


def test_a_node_that_stands_still_is_waited_for_no_longer_than_is_usual() -> None:
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        for asking in world.nodes.values():
            asking.silent = {"n1"}
        for at in range(8):
            began = time.monotonic()
            assert ids(await ask(services["n0"], timeout_ms=20_000)) == ALL
            took = time.monotonic() - began
            assert took < 4 * LONG_HEDGE_S, f"scan {at} took {took:.2f} s"
        read = [node for node, _ in world.nodes["n0"].reads]
        assert "n1" not in read, "it has not answered"

    run(test, world)


class Answering:
    """Nodes of which each does as it is told, after some seconds.

    Args:
        does: node -> (seconds, what it raises or, for each slice, whether it answers).
        lagging: those that the leader does not wait for.
    """

    here = "n9"

    def __init__(
        self, does: dict[str, tuple[float, Exception | set[int]]], lagging: Collection[str] = ()
    ) -> None:
        self.health = PeerHealth(lambda index, slice_number: lagging)
        self._does = does

    def first_here(self, asked: JointRead) -> JointPage | None:
        raise NotImplementedError

    def within_here(self, asked: JointSpans) -> JointPage | None:
        raise NotImplementedError

    async def read_here(self, request: ReadRequest) -> ReadReply:
        raise AssertionError("nothing is here")

    async def lease(self, node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply:
        raise AssertionError("nothing is kept")

    async def read(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        seconds, answer = self._does[node]
        await asyncio.sleep(min(seconds, timeout_s))
        if isinstance(answer, Exception):
            raise answer
        told = [number for number in request.span.slices if number in answer]
        return ReadReply([SliceReply(one, 10, Timestamp(), [], False, 0, False, 10, 0) for one in told])


class Wanted:
    """What is read within some seconds, whatever comes of it."""

    within_ms = 900

    def __init__(self, within_s: float) -> None:
        self._until = monotonic() + within_s

    @property
    def left_s(self) -> float:
        return max(0.001, self._until - monotonic())

    def check(self, node: str, reply: SliceReply) -> None:
        """All is well."""


def answers(
    does: dict[str, tuple[float, Exception | set[int]]],
    hedges: float = BUDGET,
    limit: int = 10,
    further: dict[int, list[str]] | None = None,
    *,
    lagging: Collection[str] = (),
    heard_s: float = 0.0,
    within_s: float = 1.0,
) -> dict[int, str] | type[BaseException]:
    """Who answers for slices 0 and 1, asked at `a` first, with copies on `b`, and some that leave on `c`; or
    what is raised.

    Args:
        further: slice -> others that count.
        lagging: those that the leader does not wait for.
        heard_s: for so long `a` answers other requests meanwhile.
        within_s: how long all may take.
        hedges: what is left of their budget.
        limit: rows that are asked for, 0 for a count.
    """

    async def asked() -> dict[int, str]:
        span = ReadSpan("i", [0, 1], [(b"", None)], [b"", b""], False)
        request = ReadRequest(span, ReadPaging(limit), ReadConsistency(10, 0))
        nodes, leaving = Answering(does, lagging), {0: ["c"], 1: ["c"]} if "c" in does else {}
        nodes.health._budget = hedges
        loop = asyncio.get_running_loop()
        for tenth in range(round(10 * heard_s)):
            loop.call_later(tenth / 10 + 0.05, lambda: nodes.health.heard("a", loop.time()))
        counted = {0: ["b"], 1: ["b"]} if further is None else further
        round_ = CopyRequests(Wanted(within_s), nodes, {"a": request}, counted, leaving)
        return {reply.slice: node for node, _, reply in await round_.run()}

    try:
        return in_simulated_time(asked())
    except KeytideError as error:
        return type(error)


def test_what_hinders_one_copy_hinders_the_read_only_where_no_other_answers() -> None:
    both = {0, 1}
    full = RetryableError("too many", problem_type="too-many-leases")
    away = NodeUnavailableError("away", node="a")
    assert answers({"a": (0, both), "b": (0, away)}) == {0: "a", 1: "a"}
    assert answers({"a": (0, away), "b": (0, both)}) == {0: "b", 1: "b"}
    assert answers({"a": (0, {0}), "b": (0, both)}) == {0: "a", 1: "b"}, "silent of one slice"
    assert answers({"a": (0, away), "b": (0, {1})}) is NodeUnavailableError
    assert answers({"a": (0, {0}), "b": (0, {0})}) is NodeUnavailableError
    # A slow copy is hedged, and the other one refuses: the slow one answers.
    assert answers({"a": (0.4, both), "b": (0, full)}) == {0: "a", 1: "a"}
    assert answers({"a": (0.4, both), "b": (0, away)}) == {0: "a", 1: "a"}
    assert answers({"a": (0.4, away), "b": (0.5, both)}) == {0: "b", 1: "b"}
    assert answers({"a": (0, full), "b": (0, both)}) is RetryableError, "nor is another copy asked to keep it"


@pytest.mark.parametrize("order", [1, -1])
def test_of_requests_that_end_at_once_the_first_that_was_asked_is_heard_first(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the one whose task has the lowest address."""
    monkeypatch.setattr(SimLoop, "order", order)

    async def asked() -> None:
        requests, does = dict[str, ReadRequest](), dict[str, tuple[float, Exception | set[int]]]()
        for number, node in enumerate("abcde"):
            span = ReadSpan("i", [number], [(b"", None)], [b""], False)
            requests[node] = ReadRequest(span, ReadPaging(10), ReadConsistency(10, 0))
            does[node] = 0, RetryableError(node, problem_type="too-many-leases")
        await CopyRequests(Wanted(1.0), Answering(does), requests, {}).run()

    with pytest.raises(RetryableError, match=r"^a$"):
        in_simulated_time(asked())


@pytest.mark.parametrize("limit", [0, 10])
def test_a_silent_node_does_not_take_all_the_time_when_no_hedge_is_left(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.scan.peer.health.LONG_HEDGE_S", 0.1)
    both = {0, 1}
    assert answers({"a": (9, both), "b": (0, both)}, hedges=0, limit=limit) == {0: "b", 1: "b"}
    # Who is slow, and answers, is not asked twice: that would make a slow cluster slower.
    assert answers({"a": (0.8, both), "b": (0, both)}, 0, limit, heard_s=1) == {0: "a", 1: "a"}
    assert answers({"a": (0.8, both), "b": (0, both)}, 0, limit) == {0: "b", 1: "b"}, "not a word"
    assert answers({"a": (0.8, both), "c": (0, both)}, 0, limit, {}, heard_s=1) == {0: "a", 1: "a"}
    # It was, and stands still since.
    assert answers({"a": (9, both), "b": (0, both)}, 0, limit, heard_s=0.2, within_s=2) == {0: "b", 1: "b"}


def test_a_copy_that_leaves_is_asked_when_none_that_counts_answers() -> None:
    both, away = {0, 1}, NodeUnavailableError("away", node="a")
    here = (0.0, both)
    assert answers({"a": (0, away), "b": here, "c": here}) == {0: "b", 1: "b"}
    assert answers({"a": (0.3, both), "b": (9, both), "c": here}) == {0: "a", 1: "a"}, "they are slow"
    assert answers({"a": (0, away), "b": (0, away), "c": here}) == {0: "c", 1: "c"}
    assert answers({"a": (0, away), "c": here}, further={}) == {0: "c", 1: "c"}
    assert answers({"a": (0, {0}), "c": here}, further={}) == {0: "a", 1: "c"}
    assert answers({"a": (9, both), "c": here}, further={}) == {0: "c", 1: "c"}, "it is silent"
    assert answers({"a": (9, both), "b": here, "c": here}, further={1: ["b"]}) == {0: "c", 1: "b"}
    assert answers({"a": (9, both), "b": (0, away), "c": here}) == {0: "c", 1: "c"}
    assert answers({"a": (0, away), "c": (0, away)}, further={}) is NodeUnavailableError


def move(world: World, *, acknowledged: bool) -> None:
    """Of two copies of each slice the second one leaves."""
    placement = world.index("by_city").placement
    leaving = {number: {nodes[1]: LeavingCopy("", acknowledged)} for number, nodes in enumerate(placement)}
    world.change("by_city", placement=[[one] for one, _ in placement], leaving=leaving)


def test_a_copy_that_keeps_no_more_snapshots_is_not_asked_for_that_again_and_again() -> None:
    """What fits on a page is read there; a first page of several is refused, and says why."""
    world = of_two_copies()
    move(world, acknowledged=True)
    world.unleasable = {("by_city-1", number, 10) for number in range(4)}

    async def test(services: ByNode) -> None:
        kill(world, "n1")
        world.commit(10, {"by_city": people(40)})
        assert ids(await ask(services["n0"])) == ALL
        for asking in world.nodes.values():
            asking.reads.clear()
        with pytest.raises(KeytideError) as caught:
            await asked(services["n0"], limit=6, timeout_ms=1_000)
        assert caught.value.status == 503
        assert sum(len(asking.reads) for asking in world.nodes.values()) < 100

    run(test, world)


def test_slices_that_have_moved_are_read_where_they_were_when_their_new_node_dies() -> None:
    world = of_two_copies()
    move(world, acknowledged=False)

    async def test(services: ByNode) -> None:
        for dead in NODES:
            kill(world, dead)
            alive = next(name for name in NODES if name != dead)
            first = await ask(services[alive], limit=6)
            assert ids(first) + await rest_of(services[alive], first) == ALL
            assert (await ask_count(services[alive]))["count"] == 40
            back(world)
            world.commit(10, {"by_city": people(40)})

    run(test, world)


@pytest.mark.parametrize("dead", NODES)
def test_a_held_snapshot_lives_through_the_death_of_any_one_copy(dead: str) -> None:
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        alive = next(name for name in NODES if name != dead)
        held = await hold(services[alive])
        named = copies_of(verify(held["at"], HeldToken, bytes.fromhex(SECRET)).nodes)
        assert {number: len(set(there)) for number, there in named.items()} == dict.fromkeys(range(4), 2)
        go_on(world)
        kill(world, dead)
        answer = await ask(services[alive], at=held["at"])
        assert (answer["snapshot"], ids(answer)) == (10, ALL)
        first = await ask(services[alive], at=held["at"], limit=6)
        assert ids(first) + await rest_of(services[alive], first) == ALL
        back(world)
        await services[alive].give_back("by_city", held["at"], never)
        assert leases(world) <= {"pages"}

    run(test, world)


def test_a_held_snapshot_is_gone_where_it_is_lost_and_nowhere_else() -> None:
    """Each of two nodes has lost a slice, and keeps what it has of the others: all are on one still."""
    world = World(BY_CITY, node_count=2, replicas=1)
    world.commit(10, {"by_city": people(40)})

    async def test(services: ByNode) -> None:
        held = await hold(services["n0"])
        go_on(world)
        for node, number in (("n0", 0), ("n1", 3)):
            world.views[node].slices["by_city-1", number].restart()
        own = verify(held["at"], HeldToken, bytes.fromhex(SECRET)).hold
        for lease_ms in (90_000, 120_000):  # (what is gone a node sees when it prolongs the hold)
            longer = LeaseRequest("by_city-1", 10, 0, [0, 1, 2, 3], lease_ms, True, own)
            for node, lost in (("n0", 0), ("n1", 3)):
                assert (await world.nodes["n0"].lease(node, longer, 1.0)).missing == [lost]
            for name in NODES[:2] * 4:
                answer = await ask(services[name], at=held["at"])
                assert (answer["snapshot"], ids(answer)) == (10, ALL)
        world.views["n1"].slices["by_city-1", 0].restart()
        assert await refusal(services["n0"], at=held["at"]) is PageSnapshotGoneError
        await services["n0"].give_back("by_city", held["at"], never)
        assert leases(world) <= {"pages"}

    run(test, world)


def test_copies_in_a_token_are_read_as_they_were_written() -> None:
    copies = {0: ["a", "b"], 1: ["b", "c"], 2: ["a"], 3: ["c", "a", "b"]}
    written = by_node(copies)
    assert copies_of(written) == copies
    # What a release that knows of one copy takes keeps the snapshot as well.
    assert {number: node for node, slices in written for number in slices} == {0: "b", 1: "c", 2: "a", 3: "b"}


@pytest.mark.parametrize("there", [["a"], ["b", "a"]])
def test_slices_at_the_same_nodes_are_named_together(there: list[str]) -> None:
    copies = {number: list(there) for number in (5, 0, 3)}
    assert by_node(copies) == [(node, [5, 0, 3]) for node in there]
    more = by_node(copies | {4: ["c"]})
    assert more == [(there[0], [5, 0, 3]), ("c", [4]), *((node, [5, 0, 3]) for node in there[1:])]
    assert by_node({}) == by_node({1: []}) == []


def test_the_slow_are_hedged_within_a_budget_and_the_silent_asked_last() -> None:
    health = PeerHealth()
    for _ in range(100):
        health.asked("a")
        health.answered("a", 0.004)
        health.ended("a")
    assert health.hedge_s("a", short=True) == 0.02
    assert health.hedge_s("a", short=False) == LONG_HEDGE_S
    assert [health.may_hedge() for _ in range(int(BUDGET) + 1)] == [True] * int(BUDGET) + [False]
    health.silent("a", 100.0)
    assert health.order(["a", "b"], 100.5) == ["b", "a"]
    assert health.order(["a", "b"], 101.5) == ["a", "b"]
    health.silent("a", 102.0)
    assert health.answering(["a", "b"], 103.5) == ["b"], "for twice as long"
    health.answered("a", 0.004)
    assert health.answering(["a", "b"], 103.5) == ["a", "b"]
    health.asked("a")
    assert health.less_busy("a", "b") == "b"


def test_who_is_behind_is_not_asked_again_and_again() -> None:
    """It answers, and quickly, but that it does not hold the number yet."""
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        restart(world, "n1")
        services["n2"].shared.nodes.health._budget = 0  # or it were hedged on a slow machine
        began = time.monotonic()
        for _ in range(8):
            assert ids(await ask(services["n2"])) == ALL
        asked_it = [one.span.slices for node, one in world.nodes["n2"].reads if node == "n1"]
        times = Counter(number for slices in asked_it for number in slices)
        assert set(times) <= {0, 3}, "n2 has the others itself"
        again = math.log2(1 + (time.monotonic() - began) / SUSPECT_S)  # a pause is twice as long as the last
        assert max(times.values(), default=0) <= 1 + again

    run(test, world)


def test_who_is_behind_answers_where_the_other_node_stands_still() -> None:
    """It may hold what is wanted by now, and says at once when it does not."""
    world = of_two_copies()

    async def test(services: ByNode) -> None:
        health = services["n2"].shared.nodes.health
        for asking in world.nodes.values():
            asking.silent = {"n0"}
        now = asyncio.get_running_loop().time()
        health.silent("n0", now)
        health.lacks("n1", ("by_city-1", 0), 10, now)  # slice 0 is on both
        began = time.monotonic()
        assert ids(await ask(services["n2"], timeout_ms=20_000)) == ALL
        assert time.monotonic() - began < LONG_HEDGE_S
        assert "n1" in {node for node, _ in world.nodes["n2"].reads}

    run(test, world)


def test_a_copy_that_the_leader_does_not_wait_for_is_not_asked_while_another_may_answer() -> None:
    """A node that is back reads its queue; until it has caught up nobody asks it, also not to keep the
    snapshot of a first page."""
    world = of_two_copies()
    restart(world, "n1")
    for view in world.views.values():
        view.lagging = {(world.index("by_city").id, number): frozenset({"n1"}) for number in range(4)}

    async def test(services: ByNode) -> None:
        for name in NODES:
            first = await ask(services[name], limit=6)
            named = copies_of(verify(first["page"], PageToken, bytes.fromhex(SECRET)).nodes)
            assert all("n1" not in there for there in named.values())
            assert ids(first) + await rest_of(services[name], first) == ALL
            answer = await ask(services[name], explain=True)
            assert "n1" not in {one["node"] for one in answer["explain"]["slices"]}
            assert "n1" not in {node for node, _ in world.nodes[name].reads}

    run(test, world)


def test_a_copy_that_is_not_waited_for_is_asked_when_the_others_fail_or_stand_still() -> None:
    both, away = {0, 1}, NodeUnavailableError("away", node="a")
    assert answers({"a": (0.4, both), "b": (0, both)}) == {0: "b", 1: "b"}, "it is hedged"
    assert answers({"a": (0.4, both), "b": (0, both)}, lagging={"b"}) == {0: "a", 1: "a"}
    assert answers({"a": (0, away), "b": (0, both)}, lagging={"b"}) == {0: "b", 1: "b"}
    assert answers({"a": (9, both), "b": (0, both)}, lagging={"b"}) == {0: "b", 1: "b"}
    further = {0: ["b", "c"], 1: ["b", "c"]}
    assert answers({"a": (0.4, both), "b": (0, both), "c": (0, both)}, further=further, lagging={"b"}) == {
        0: "c",
        1: "c",
    }


def test_a_copy_is_behind_for_its_slice_alone_and_until_it_answers() -> None:
    health = PeerHealth()
    health.lacks("a", ("i", 0), 7, 100.0)
    assert health.behind(("i", 0), 100.5) == {"a"}
    assert health.order(["a", "b"], 100.5, ("i", 0)) == ["b", "a"]
    assert health.order(["a", "b"], 100.5, ("i", 1)) == ["a", "b"], "what else it has may be new"
    assert health.answering(["a", "b"], 100.5) == ["a", "b"], "it answers"
    assert health.behind(("i", 0), 101.5) == set()
    health.lacks("a", ("i", 0), 7, 101.5)
    health.lacks("a", ("i", 0), 7, 102.0)  # (asked before that was known)
    assert health.behind(("i", 0), 103.4) == {"a"}, "for twice as long"
    assert health.behind(("i", 0), 103.5) == set()
    health.silent("b", 101.0)
    assert health.order(["b", "a"], 101.8, ("i", 0)) == ["a", "b"], "who is behind may hold it by now"
    health.holds("a", ("i", 0), 6)
    assert health.behind(("i", 0), 102.0) == {"a"}, "a page of an older snapshot says nothing"
    health.holds("a", ("i", 0), 7)
    assert health.behind(("i", 0), 102.0) == set()
    health.lacks("a", ("i", 0), 7, 110.0)
    assert health.behind(("i", 0), 111.0) == set(), "it begins anew"
    health.lacks("a", ("j", 0), 7, 130.0)
    assert set(health._behind) == {("j", 0)}, "indexes go, and nobody says so here"
