"""Scans across rollbacks, and scans that need slices whose data is lost or damaged: what is answered, what is
refused, and that nothing is ever mixed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from indexer.scan.peer.messages import HistoryAheadError, ReadReply, ReadRequest
from indexer.scan.plan.errors import (
    IndexNotReadyError,
    PageSnapshotGoneError,
    RollingBackError,
    TimestampNotReachedError,
)
from indexer.scan.plan.selection import Shape, slices_of
from indexer.scan.request.request import OffsetAndEpoch, ScanRequest, parse
from indexer.view import SliceTrouble, StoreDamagedError
from keytide.catalog.records import BuildRecord, BuildState
from keytide.errors import HistoryChangedError, InvariantViolationError, RetryableError
from keytide.http.node_protocol import NodeUnavailableError
from keytide.model.timestamp import Place, Timestamp
from tests.unit.scan_world import Doc, FakeSnapshot, World
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
    waiting,
)

INDEX = "by_city-1"


# --- sessions and pages -----------------------------------------------------------------------------------


def test_what_still_holds_goes_on_and_what_is_void_is_told() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        held = await ask(services["n0"], limit=5)
        world.commit(11, {"by_city": people(30)})
        lost = await ask(services["n0"], limit=5, session=held["session"])
        world.roll_back(to=10)
        for request in ({"page": lost["page"]}, {"session": lost["session"]}):
            error = await raises(HistoryChangedError, ask(services["n0"], **request))
            assert (error.status, error.problem_type) == (409, "history-changed")
        await raises(HistoryChangedError, ask_count(services["n0"], session=lost["session"]))
        await raises(HistoryChangedError, ask(services["n0"], session=lost["session"], consistency="tip"))
        following = await ask(services["n0"], page=held["page"])
        assert (following["snapshot"], ids(following)) == (10, [f"u{at}" for at in range(5, 10)])
        world.commit(14, {"by_city": people(3)})
        newer = await ask(services["n0"], session=following["session"])
        assert (newer["snapshot"], len(newer["rows"])) == (14, 3)
        assert (await ask_count(services["n0"], session=held["session"]))["count"] == 3
        still = await ask(services["n0"], page=following["page"], session=newer["session"])
        assert (still["snapshot"], ids(still)) == (10, [f"u{at}" for at in range(10, 15)])
        await raises(HistoryChangedError, ask(services["n0"], session=lost["session"]))

    run(test, world)


def test_a_session_of_the_new_incarnation_never_goes_back_to_the_old_one() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(5)})
    world.lag("n1")

    async def test(services: ByNode) -> None:
        world.roll_back(to=10)
        world.commit(14, {"by_city": people(6)}, publish=False)
        world.publish("by_city", 14, nodes=["n0"])
        session = (await ask(services["n0"]))["session"]
        error = await raises(TimestampNotReachedError, ask(services["n1"], session=session, timeout_ms=20))
        assert "snapshot 14, which the session has seen" in error.message
        late = asyncio.ensure_future(ask(services["n1"], session=session))
        await asyncio.sleep(0)
        world.publish("by_city", 14)
        world.catch_up("n1")
        assert (await late)["snapshot"] == 14

    run(test, world)


def test_a_page_whose_snapshot_holds_and_is_not_kept_is_gone_not_changed() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        page = (await ask(services["n0"], limit=5))["page"]
        world.roll_back(to=10)
        for view in world.views.values():
            for one in view.slices.values():
                one.restart()
        await raises(PageSnapshotGoneError, ask(services["n0"], page=page))

    run(test, world)


def test_a_tip_scan_s_page_ends_with_its_history() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        page = (await ask(services["n0"], limit=5, consistency="tip"))["page"]
        world.roll_back(to=10)
        await raises(HistoryChangedError, ask(services["n0"], page=page))
        assert ids(await ask(services["n0"], consistency="tip")) == [f"u{at}" for at in range(20)]

    run(test, world)


def test_a_void_session_that_meets_a_newer_page_is_still_told() -> None:
    """The page of another reader carries a later snapshot of another keyspace: it hides nothing."""
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        lost = (await ask(services["n0"]))["session"]
        world.roll_back(to=-1)
        world.commit(12, {"by_city": people(20)})
        page = (await ask(services["n0"], limit=5))["page"]
        await raises(HistoryChangedError, ask(services["n0"], page=page, session=lost))

    run(test, world)


# --- offsets with epochs ----------------------------------------------------------------------------------


def test_an_offset_of_a_lost_branch_is_told_and_others_are_waited_for() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(2)}, offsets={0: 100, 1: 50})
    world.roll_back(to=10, lost={0: Place(110, 3)})
    world.commit(12, {"by_city": people(2)}, offsets={0: 130, 1: 50})

    async def test(services: ByNode) -> None:
        for lost in ({"offset": 111, "epoch": 2}, {"offset": 120, "epoch": 0}):
            request = json.dumps({"at_least": {"0": lost}, "timeout_ms": 20}).encode()
            scan = services["n0"].scan("by_city", parse(ScanRequest, request), never)
            error = await raises(HistoryChangedError, scan)
            assert f"offset {lost['offset']} of partition 0" in error.message
        for fine in (
            {"0": {"offset": 110, "epoch": 2}},
            {"0": {"offset": 130, "epoch": 3}},
            {"0": {"offset": 120}},
            {"0": 120, "1": {"offset": 50, "epoch": 0}},
        ):
            parsed = parse(ScanRequest, json.dumps({"at_least": fine}).encode())
            answer = await services["n0"].scan("by_city", parsed, never)
            assert json.loads(answer.body)["snapshot"] == 12

    run(test, world)


def test_a_rollback_ends_the_wait_for_an_offset_that_is_lost() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(2)}, offsets={0: 100, 1: 50})

    async def test(services: ByNode) -> None:
        demand = {0: OffsetAndEpoch(120, 1)}
        scan = await waiting(ask(services["n0"], at_least=demand), world.views["n0"])
        world.roll_back(to=10, lost={0: Place(110, 2)})
        await raises(HistoryChangedError, asyncio.wait_for(scan, 1))

    run(test, world)


# --- until there is a common snapshot again -----------------------------------------------------------------


def test_stable_scans_wait_for_the_first_common_snapshot_since_the_rollback() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})
    world.commit(11, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        world.roll_back(to=10)
        world.publish("by_city", 10)
        for ask_for in (ask, ask_count):
            error = await raises(RollingBackError, ask_for(services["n0"], timeout_ms=20))
            assert (error.status, error.problem_type) == (503, "index-not-ready")
            assert "users is being rolled back to snapshot 10" in error.message
            assert error.extra == {"rolled_back_to": 10}
        scan = await waiting(ask(services["n0"]), world.views["n0"])
        world.commit(14, {"by_city": people(7)})
        assert (await scan)["snapshot"] == 14

    run(test, world)


def test_a_topic_made_anew() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        world.roll_back()
        error = await raises(RollingBackError, ask(services["n0"], timeout_ms=20))
        assert "its topic was made anew" in error.message
        world.commit(14, {"by_city": []}, offsets={})
        assert (await ask(services["n0"]))["rows"] == []

    run(test, world)


def test_a_slice_that_has_not_rolled_back_yet_is_waited_for() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})
    world.commit(11, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        world.lag("n1")
        world.roll_back(to=10, slices=False)
        behind = [(node, number) for node, number in (("n1", 1), ("n1", 3))]
        world.commit(14, {"by_city": people(7)}, skip=behind)
        error = await raises(IndexNotReadyError, ask(services["n0"], timeout_ms=20))
        assert "catching up on node n1" in error.message
        await raises(IndexNotReadyError, ask(services["n0"], consistency="tip", timeout_ms=20))
        scan = asyncio.ensure_future(ask(services["n0"]))
        await until(lambda: len(world.nodes["n0"].reads) > 8)
        world.catch_up("n1")
        world.commit(15, {"by_city": people(7)})
        assert (await scan)["snapshot"] == 15

    run(test, world)


@pytest.mark.parametrize("consistency", ["stable", "tip"])
def test_a_node_that_has_not_read_of_the_rollback_is_refused_by_those_that_have(consistency: str) -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})
    world.commit(11, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        world.lag("n0")
        world.roll_back(to=10, slices=False)  # n1 knows of it, and its slices still hold snapshot 11
        error = await raises(HistoryAheadError, ask(services["n0"], consistency=consistency, timeout_ms=20))
        assert error.status == 503
        page = await raises(HistoryAheadError, ask_count(services["n0"], timeout_ms=20))
        assert page.problem_type == "history-ahead"
        scan = asyncio.ensure_future(ask(services["n0"], consistency=consistency))
        await until(lambda: len(world.nodes["n0"].reads) > 4)
        assert not scan.done()
        world.commit(14, {"by_city": people(7)})
        world.catch_up("n0")
        assert len((await scan)["rows"]) == 7

    run(test, world)


def test_an_answer_from_another_history_than_was_asked_for_is_never_used() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        nodes = world.nodes["n0"]
        honest = nodes.read

        async def confused(node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
            reply = await honest(node, request, timeout_s)
            for one in reply.slices if node == "n1" else ():
                msgspec.structs.force_setattr(one, "incarnation", 1)
            return reply

        nodes.read = confused  # type: ignore[method-assign]
        error = await raises(NodeUnavailableError, ask(services["n0"], timeout_ms=20))
        assert error.extra == {"node": "n1"}

    run(test, world)


# --- lost slices and their rebuilds -----------------------------------------------------------------------


def rebuild(world: World, state: BuildState, slices: list[int], error: str = "") -> None:
    """A rebuild of slices; the index record names it once it has begun."""
    world.record(
        BuildRecord("b7", "users", [INDEX], state, Timestamp(), 5, error=error, slices={INDEX: slices})
    )
    if state != "QUEUED":
        world.change("by_city", slice_builds=dict.fromkeys(slices, "b7"))
    world.tell()


def lose(world: World, number: int, reason: str = "its disk is gone") -> None:
    for view in world.views.values():
        if (INDEX, number) in view.slices:
            view.slices[INDEX, number].restart()
            view.troubles[INDEX, number] = SliceTrouble("LOST", reason)


def test_scans_that_need_a_lost_slice_say_so_at_once_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("indexer.scan.plan.agreement.CATALOG_LAG_S", 0.05)
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(40)})
    lost = 3
    lose(world, lost)
    shape = Shape.of(world.index("by_city").definition)
    mine = [f"city-{at:04}" for at in range(40)]
    needs = {city: slices_of(ScanRequest(equals=[city]), shape)[0] == lost for city in mine}
    assert any(needs.values())
    assert not all(needs.values())

    async def check(services: ByNode, build: str | None, words: str, *, reason: str) -> None:
        for request in ({}, {"low": ["city"]}, {"consistency": "tip"}):
            began = asyncio.get_running_loop().time()
            for ask_for in (ask, ask_count):
                error = await raises(IndexNotReadyError, ask_for(services["n0"], **request))
                assert (error.status, error.problem_type) == (503, "index-not-ready")
                assert error.extra == {"build": build, "state": "READY", "slices": [lost], "reason": reason}
                assert words in error.message
                assert error.next_step
            assert asyncio.get_running_loop().time() - began < 4, "nobody waits for what does not come"
        for city, needed in needs.items():
            if needed:
                await raises(IndexNotReadyError, ask(services["n0"], equals=[city]))
            else:
                assert (await ask_count(services["n0"], equals=[city]))["count"] == 1
            if build is not None and needed:
                break

    async def test(services: ByNode) -> None:
        await check(services, None, "has lost its data (its disk is gone)", reason="its disk is gone")
        rebuild(world, "QUEUED", [lost])
        await check(services, "b7", "build b7 brings it back", reason="its disk is gone")
        for state in ("BACKFILL", "CATCHUP"):
            rebuild(world, state, [lost])
            world.commit(
                world_number(world) + 1, {"by_city": people(40)}
            )  # it may hold a number, and is not done
            await check(services, "b7", "build b7 brings it back", reason="")
        rebuild(world, "FAILED", [lost], error="the disk is full")
        await check(services, "b7", "is FAILED: the disk is full", reason="")
        rebuild(world, "READY", [lost])
        world.views["n1"].troubles.clear()
        assert len((await ask(services["n0"]))["rows"]) == 40

    run(test, world)


def world_number(world: World) -> int:
    return max(world.stamps)


@pytest.mark.parametrize("known", ["here", "by its rebuild"])
def test_a_lost_slice_is_named_where_no_snapshot_is_common_either(known: str) -> None:
    """As after a restart of a node that finds one of its slices damaged."""
    world = World(BY_CITY)
    number = 0 if known == "here" else 1
    lose(world, number)
    if known != "here":
        rebuild(world, "QUEUED", [number])

    async def test(services: ByNode) -> None:
        error = await raises(IndexNotReadyError, ask(services["n0"]))
        assert error.extra["slices"] == [number]
        assert error.extra["reason"] == ("its disk is gone" if known == "here" else "")
        rebuild(world, "READY", [number])
        for view in world.views.values():
            view.troubles.clear()
        error = await raises(IndexNotReadyError, ask(services["n0"], timeout_ms=20))
        assert "slices" not in error.extra

    run(test, world)


def test_a_rebuild_that_has_just_ended_is_waited_for() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(40)})
    rebuild(world, "CATCHUP", [1])

    async def test(services: ByNode) -> None:
        scan = asyncio.ensure_future(ask(services["n0"]))
        await until(lambda: services["n0"].waiting > 0)
        assert not scan.done()
        rebuild(world, "READY", [1])
        assert len((await scan)["rows"]) == 40

    run(test, world)


def test_a_slice_under_rebuild_gives_nothing_to_a_node_that_does_not_know() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(40)})

    async def test(services: ByNode) -> None:
        world.lag("n0")
        rebuild(world, "CATCHUP", [1])
        error = await raises(IndexNotReadyError, ask(services["n0"], timeout_ms=20))
        assert "build b7 fills it anew" in error.message

    run(test, world)


def test_another_replica_answers_for_one_that_is_lost() -> None:
    world = World(BY_CITY, node_count=2, replicas=1)
    world.commit(10, {"by_city": people(40)})
    world.views["n0"].slices[INDEX, 1].restart()
    world.views["n0"].troubles[INDEX, 1] = SliceTrouble("LOST", "damaged")

    async def test(services: ByNode) -> None:
        assert ids(await ask(services["n0"])) == [f"u{at}" for at in range(40)]
        world.views["n1"].slices[INDEX, 1].restart()
        await raises(IndexNotReadyError, ask(services["n0"], timeout_ms=20))
        world.views["n1"].troubles[INDEX, 1] = SliceTrouble("LOST", "too")
        error = await raises(IndexNotReadyError, ask(services["n0"]))
        assert error.extra["slices"] == [1]

    run(test, world)


# --- damage -----------------------------------------------------------------------------------------------


class Damaged(FakeSnapshot):
    """A snapshot whose pages cannot be read behind its first block."""

    def rows(self, *arguments: Any, **named: Any) -> Iterator[list[tuple[bytes, bytes]]]:
        for block in super().rows(*arguments, **named):
            yield block
            raise StoreDamagedError("page 7 is not what was written")

    def count(self, low: bytes, high: bytes | None) -> int:
        raise StoreDamagedError("page 7 is not what was written")


def damage(world: World, node: str, number: int) -> None:
    held = world.views[node].slices[INDEX, number]
    for at, one in list(held.snapshots.items()):
        held.snapshots[at] = Damaged(at, one.incarnation, one.timestamp, one.entries)
    held.tip = held.snapshots[max(held.snapshots)]


def test_damage_found_by_a_read_is_no_answer_and_takes_the_slice_out() -> None:
    for request in ({}, {"consistency": "tip"}, {"limit": 3}):
        for ask_for in (ask, ask_count):
            if ask_for is ask_count and "limit" in request:
                continue
            world = World(BY_CITY)
            world.commit(10, {"by_city": people(40)})
            damage(world, "n1", 3)

            async def test(
                services: ByNode, ask_for: Any = ask_for, request: Any = request, world: World = world
            ) -> None:
                error = await raises(IndexNotReadyError, ask_for(services["n0"], **request))
                assert error.extra["slices"] == [3]
                assert error.extra["reason"] == "page 7 is not what was written"
                assert world.views["n1"].damaged == {(INDEX, 3): "page 7 is not what was written"}

            run(test, world)


def test_damage_on_one_replica_is_answered_by_the_other() -> None:
    world = World(BY_CITY, node_count=2, replicas=1)
    world.commit(10, {"by_city": people(40)})
    damage(world, "n0", 2)

    async def test(services: ByNode) -> None:
        assert ids(await ask(services["n0"])) == [f"u{at}" for at in range(40)]
        assert list(world.views["n0"].damaged) == [(INDEX, 2)]

    run(test, world)


KEY, VALUE = Doc(["city-0001"], "x").entry(())


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ((b"\xee", b""), "cannot be read"),
        ((KEY[:3], b""), "cannot be read"),
        ((KEY[:-1] + b"\xff", VALUE), "cannot be read"),
        ((KEY, b"\xc1"), "cannot be read"),
    ],
)
@pytest.mark.parametrize("replicas", [0, 1])
def test_an_impossible_record_is_no_answer_and_has_its_slice_examined(
    entry: tuple[bytes, bytes], words: str, replicas: int
) -> None:
    world = World(BY_CITY, node_count=2, replicas=replicas)
    world.commit(10, {"by_city": people(40)})
    held = world.views["n1"].slices[INDEX, 3].snapshots[10]
    held.entries = sorted([*held.entries[:-1], entry])

    async def test(services: ByNode) -> None:
        service = services["n0"] if replicas == 0 else services["n1"]
        if replicas:
            assert ids(await ask(service)) == [f"u{at}" for at in range(40)]
        else:
            error = await raises(IndexNotReadyError, ask(service, timeout_ms=50))
            assert "slice 3" in error.message
            assert words in error.message
        assert list(world.views["n1"].doubted) == [(INDEX, 3)]
        assert not world.views["n1"].damaged, "only the store itself can say that"

    run(test, world)


def test_entries_out_of_order_have_their_slice_examined() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(40)})
    held = world.views["n1"].slices[INDEX, 1].snapshots[10]
    held.entries[0], held.entries[1] = held.entries[1], held.entries[0]

    async def test(services: ByNode) -> None:
        for reverse in (False, True):
            error = await raises(RetryableError, ask(services["n0"], reverse=reverse, timeout_ms=50))
            assert "slice 1" in error.message
        assert "out of order" in world.views["n1"].doubted[INDEX, 1]
        assert not world.views["n1"].damaged

    run(test, world)


def test_a_damaged_next_page_is_gone() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(40)})

    async def test(services: ByNode) -> None:
        page = (await ask(services["n0"], limit=5))["page"]
        damage(world, "n1", 3)
        error = await raises(PageSnapshotGoneError, ask(services["n0"], page=page))
        assert "page 7" in error.message

    run(test, world)


def test_what_no_slice_finds_fault_with_is_our_bug() -> None:
    """The same entry from two slices: each of them is in order."""
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(40)})
    (extra,) = world.views["n0"].slices[INDEX, 0].snapshots[10].entries[:1]
    other = world.views["n1"].slices[INDEX, 1].snapshots[10]
    other.entries = sorted([*other.entries, extra])

    async def test(services: ByNode) -> None:
        error = await raises(InvariantViolationError, ask(services["n0"]))
        assert error.name == "Untorn"
        assert not any(view.damaged or view.doubted for view in world.views.values())

    run(test, world)
