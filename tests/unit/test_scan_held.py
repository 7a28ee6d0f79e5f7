"""Held snapshots: taken on all slices, read, renewed, given back, run out; tokens that are none."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from indexer.scan.gather.scatter import SliceAnswers
from indexer.scan.gather.service import ScanService
from indexer.scan.peer.messages import LeaseReply, LeaseRequest, SliceReply
from indexer.scan.plan.errors import IndexNotReadyError, PageSnapshotGoneError, TimestampNotReachedError
from indexer.scan.plan.leases import LeaseRegistry, TooManyLeasesError
from indexer.scan.plan.tokens import InvalidTokenError
from indexer.scan.request.request import CountRequest, HoldRequest
from indexer.scan.stream.merge import BlockReader
from keytide.errors import CallerError, HistoryChangedError
from keytide.http.node_protocol import NodeUnavailableError
from keytide.process.clock import now_ms
from keytide.settings.settings import ScanSettings
from tests.unit.scan_world import World, pages_at
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


async def hold(service: ScanService, name: str = "by_city", **request: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads((await service.hold(name, HoldRequest(**request), never)).body)
    return decoded


def leases(world: World) -> set[str]:
    """Who keeps snapshots now."""
    now = now_ms()
    return {who for one in world.held() for who, until in one.leases.items() if until > now}


def test_everything_that_is_read_at_a_hold_is_of_one_moment() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        held = await hold(services["n0"])
        assert (held["snapshot"], held["slices"], held["expires_in_s"]) == (10, 4, 60)
        assert held["timestamp"] == {"0": {"offset": 10, "epoch": -1}, "1": {"offset": 10, "epoch": -1}}
        for number in range(11, 20):
            world.commit(number, {"by_city": people(5, tag=f"v{number}-")})
        for service in services.values():
            answer = await ask(service, at=held["at"], explain=True)
            assert ids(answer) == [f"u{at}" for at in range(30)]
            assert (answer["snapshot"], answer["timestamp"]) == (10, held["timestamp"])
            assert answer["explain"]["snapshot"] == 10
            counted = await ask_count(service, at=held["at"], prefix="city-000")
            assert (counted["count"], counted["snapshot"]) == (10, 10)
        assert (await ask(services["n1"]))["snapshot"] == 19

    run(test, world)


def test_who_goes_away_while_a_hold_is_taken_leaves_none_behind() -> None:
    """A node that answers late must not keep what was given back before."""
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        nodes, late, asked = world.nodes["n0"], asyncio.Event(), asyncio.Event()
        lease = nodes.lease

        async def delayed(node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply:
            if node == "n1" and request.lease_ms:
                asked.set()
                await late.wait()
            return await lease(node, request, timeout_s)

        with (
            mock.patch.object(nodes, "lease", delayed),
            mock.patch.object(SliceAnswers, "take", _without_lease),
        ):
            taking = asyncio.create_task(hold(services["n0"]))
            await asyncio.wait_for(asked.wait(), 5)
            taking.cancel()
            await asyncio.wait({taking})
            late.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert [lease for node, lease in nodes.leases if node == "n1" and lease.lease_ms] == []

    run(test, world)


def _without_lease(self: SliceAnswers, node: str, reply: SliceReply, *, leased: bool) -> None:
    """As if no read had kept its snapshot."""
    self.replies[reply.slice] = reply


def test_pages_at_a_hold_go_with_it() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        held = await hold(services["n0"])
        first = await ask(services["n1"], at=held["at"], limit=12)
        for number in range(11, 15):
            world.commit(number, {"by_city": []})
        second = await ask(services["n0"], page=first["page"])
        assert ids(first) + ids(second) == [f"u{at}" for at in range(24)]
        assert len(leases(world)) == 1, "a page at a hold needs no lease of its own"
        await services["n1"].give_back("by_city", held["at"], never)
        await raises(PageSnapshotGoneError, ask(services["n0"], page=second["page"]))

    run(test, world)


def test_what_can_have_nothing_tells_the_moment_all_the_same() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        held = await hold(services["n0"])
        answer = await ask(services["n0"], at=held["at"], spans=[])
        assert (answer["rows"], answer["timestamp"]) == ([], held["timestamp"])
        await services["n0"].give_back("by_city", held["at"], never)
        await raises(PageSnapshotGoneError, ask(services["n0"], at=held["at"], spans=[]))

    run(test, world)


def test_a_hold_that_is_given_back_is_gone_everywhere() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        one, other = await hold(services["n0"]), await hold(services["n0"])
        assert len(leases(world)) == 2
        await services["n1"].give_back("by_city", one["at"], never)
        assert len(leases(world)) == 1
        error = await raises(PageSnapshotGoneError, ask(services["n0"], at=one["at"]))
        assert (error.status, error.problem_type) == (410, "snapshot-gone")
        assert "snapshots" in error.next_step
        await raises(PageSnapshotGoneError, ask_count(services["n1"], at=one["at"]))
        await services["n0"].give_back("by_city", one["at"], never)  # once more does no harm
        assert len(ids(await ask(services["n0"], at=other["at"]))) == 30

    run(test, world)


def test_a_hold_lasts_as_long_as_it_is_used_on_any_slice() -> None:
    world = World("CREATE INDEX by_city ON users (city) WITH (slices=4)")
    world.commit(10, {"by_city": people(30)})
    clock = now_ms()

    async def test(services: ByNode) -> None:
        nonlocal clock
        world.now = lambda: clock
        with mock.patch("indexer.scan.gather.holds.monotonic", side_effect=lambda: clock / 1000):
            held = await hold(services["n0"], lease_s=10)
            for _ in range(5):
                clock += 9_000
                # One slice is read; the others are renewed beside it.
                assert len(ids(await ask(services["n1"], at=held["at"], equals=["city-0007"]))) == 1
                expected = clock + 10_000
                await until(
                    lambda: all(max(one.leases.values()) >= expected for one in world.held())  # noqa: B023
                )
            clock += 11_001
            await raises(PageSnapshotGoneError, ask(services["n0"], at=held["at"]))
            await raises(PageSnapshotGoneError, ask(services["n1"], at=held["at"], equals=["city-0007"]))

    run(test, world)


def test_a_node_that_is_away_hinders_reads_of_its_own_slices_only() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        held = await hold(services["n0"])
        world.nodes["n1"].down.add("n0")
        service = services["n1"]
        service.shared.holds._renewed.clear()
        lying: dict[bool, int] = {}
        for at in range(30):
            try:
                answer = await ask(service, at=held["at"], equals=[f"city-{at:04}"])
                assert ids(answer) == [f"u{at}"]
                lying[True] = at
            except NodeUnavailableError:
                lying[False] = at
        assert lying.keys() == {True, False}

    run(test, world)


def test_a_hold_may_demand_a_moment_and_waits_for_it() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        await raises(TimestampNotReachedError, hold(services["n0"], at_least={0: 11}, timeout_ms=20))
        assert not leases(world)
        later = await waiting(hold(services["n0"], at_least={0: 11}), world.views["n0"])
        world.commit(11, {"by_city": people(3)})
        held = await later
        assert held["snapshot"] == 11
        # The session that comes with it has seen what is held.
        answer = await ask(services["n1"], session=held["session"])
        assert answer["snapshot"] == 11

    run(test, world)


def test_a_slice_that_does_not_hold_the_snapshot_is_waited_for_and_nothing_is_left_kept() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})
    world.unleasable.add(("by_city-1", 2, 10))

    async def test(services: ByNode) -> None:
        held = await waiting(hold(services["n0"]), world.views["n0"])
        await until(lambda: not leases(world))
        world.commit(11, {"by_city": people(30)})
        assert (await held)["snapshot"] == 11
        kept = {one.number for one in world.held() if any(until > now_ms() for until in one.leases.values())}
        assert kept == {11}

    run(test, world)


def test_holds_are_bounded_in_time_and_number() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        error = await raises(CallerError, hold(services["n0"], lease_s=31))
        assert (error.status, error.problem_type) == (422, "lease-too-long")
        assert error.next_step
        held = []
        for number in (10, 11, 12):
            world.commit(number, {"by_city": people(30)})
            held += [await hold(services["n0"], lease_s=30), await hold(services["n0"], lease_s=30)]
            await services["n0"].give_back("by_city", held.pop()["at"], never)
        world.commit(13, {"by_city": people(30)})
        error = await raises(TooManyLeasesError, hold(services["n0"]))
        assert error.status == 429
        await services["n0"].give_back("by_city", held[0]["at"], never)
        assert (await hold(services["n0"]))["expires_in_s"] == 30
        assert len(ids(await ask(services["n0"], at=held[1]["at"]))) == 30

    run(test, world, ScanSettings.model_validate({"max_leases": 4, "max_hold_s": 30}))


def test_a_hold_is_of_one_index_and_one_history() -> None:
    world = World(BY_CITY, "CREATE INDEX other ON users (age)")
    world.commit(10, {"by_city": people(30), "other": []})

    async def test(services: ByNode) -> None:
        held = await hold(services["n0"])
        forged = (held["at"] + "A", held["at"][:-1], "", "x" * 9_000, held["session"])
        for at in forged:
            error = await raises(InvalidTokenError, ask(services["n0"], at=at))
            assert error.status == 422
            await raises(InvalidTokenError, services["n0"].give_back("by_city", at, never))
        await raises(InvalidTokenError, ask(services["n0"], "other", at=held["at"]))
        await raises(InvalidTokenError, services["n0"].give_back("other", held["at"], never))
        await raises(InvalidTokenError, ask(services["n0"], page=held["at"]))
        await raises(InvalidTokenError, ask(services["n0"], session=held["at"]))
        world.commit(11, {"by_city": people(30)})
        late = await hold(services["n0"])
        world.roll_back(to=10)
        world.commit(12, {"by_city": people(7)})
        await raises(HistoryChangedError, ask(services["n0"], at=late["at"]))
        assert len(ids(await ask(services["n0"], at=held["at"]))) == 30

    run(test, world)


def test_what_was_rolled_back_can_be_given_back() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})
    world.commit(11, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        held = await hold(services["n0"])
        world.roll_back(to=10)
        await raises(HistoryChangedError, ask(services["n0"], at=held["at"]))
        await services["n1"].give_back("by_city", held["at"], never)
        assert leases(world) == set()

    run(test, world)


def test_a_token_of_another_cluster_is_none() -> None:
    world, stranger = World(BY_CITY), World(BY_CITY, secret="ab" * 32)
    for one in (world, stranger):
        one.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        theirs = stranger.services()["n0"]
        at = (await hold(theirs))["at"]
        assert len(ids(await ask(theirs, at=at))) == 30
        await raises(InvalidTokenError, ask(services["n0"], at=at))

    run(test, world)


def test_a_hold_that_a_restart_has_lost_is_gone() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(30)})

    async def test(services: ByNode) -> None:
        held = await hold(services["n0"])
        world.views["n1"].slices["by_city-1", 1].restart()
        world.commit(11, {"by_city": people(30)})
        await raises(PageSnapshotGoneError, ask(services["n0"], at=held["at"]))

    run(test, world)


def test_an_index_that_is_not_ready_holds_nothing() -> None:
    world = World()
    world.create(BY_CITY, state="BUILDING")

    async def test(services: ByNode) -> None:
        await raises(IndexNotReadyError, hold(services["n0"]))

    run(test, world)


# --- reading page by page ---------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
def test_pages_of_one_request_hold_their_snapshot_until_it_is_closed(own: bool) -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(50)})

    async def test(services: ByNode) -> None:
        shared = services["n0"].shared
        question = CountRequest(at=None if own else (await hold(services["n0"]))["at"])
        index = await shared.ready_index("by_city", question, never)
        selection = shared.selection(question, index)
        held = await shared.open(index, selection, question, {}, never)
        found, number = [], 10
        async for page in pages_at(shared, held, selection, 7, reverse=True):
            assert page.stamp.number == 10
            found += [key for key, _ in page.gathered.entries]
            number += 1
            world.commit(number, {"by_city": []})
        assert (number, len(found)) == (18, 50)
        assert found == sorted(found, reverse=True)
        assert held.own is own
        reader = BlockReader(shared, held, selection, 30.0, 1_000)
        await reader.close()
        await reader.close()
        assert len(leases(world)) == (0 if own else 1)

    run(test, world)


# --- the book ---------------------------------------------------------------------------------------------


def test_the_book_knows_holds_by_their_id_and_slices() -> None:
    world = World(BY_CITY, node_count=1)
    world.commit(10, {"by_city": people(9)})
    book = LeaseRegistry(world.views["n0"], 2)
    first = LeaseRequest("by_city-1", 10, 0, [0, 1], 1_000, False, "h")
    assert book.keep(first, 5_000) == []
    assert book.lasting("by_city-1", 10, "h", 6_000) == {0, 1}
    assert not book.lasting("by_city-1", 10, "i", 6_000)
    assert not book.lasting("by_city-1", 10, "h", 6_100)
    assert book.keep(replace(first, slices=[0], hold=""), 5_000) == []
    assert book.keep(replace(first, slices=[0], hold="i"), 5_000) == []
    book.give_back("by_city-1", 10, "h", 5_500)
    assert not book.lasting("by_city-1", 10, "h", 5_500)
    assert book.keep(replace(first, slices=[0], hold="j"), 5_500) == []


def test_tip_cannot_be_held() -> None:
    with pytest.raises(ValueError, match="stable"):
        HoldRequest(consistency="tip")
    with pytest.raises(ValueError, match="held already"):
        HoldRequest(at="x")
