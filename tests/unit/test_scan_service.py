"""The way of a scan over several nodes: snapshots, waits, pages, leases, sessions, every typed error."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from indexer.scan.gather.service import ScanService
from indexer.scan.plan.errors import (
    IndexNotReadyError,
    PageSnapshotGoneError,
    RollingBackError,
    TimestampNotReachedError,
    UnknownIndexError,
)
from indexer.scan.plan.leases import TooManyLeasesError
from indexer.scan.plan.selection import Shape, Stamp, slices_of
from indexer.scan.plan.tokens import InvalidTokenError, Seen, SessionToken, saw_tip, sign, tip_of, verify
from indexer.scan.plan.waiting import ReaderGoneError
from indexer.scan.request.request import CountRequest, ScanRequest
from keytide.catalog.catalog import Catalog
from keytide.errors import CallerError, HistoryChangedError, InvariantViolationError, RetryableError
from keytide.http.node_protocol import NodeUnavailableError
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.settings.settings import ScanSettings
from tests.simulation.scheduler import in_simulated_time
from tests.unit.scan_world import SECRET, Doc, FakeSlice, FakeView, World, definition_of, sliced

BY_CITY = "CREATE INDEX by_city ON users (city) WITH (slices=4)"
ByNode = dict[str, ScanService]


def people(count: int, tag: str = "u") -> list[Doc]:
    return [Doc([f"city-{at:04}"], f"{tag}{at}") for at in range(count)]


async def never() -> None:
    await asyncio.Event().wait()


async def ask(service: ScanService, name: str = "by_city", **request: Any) -> dict[str, Any]:
    answer = await service.scan(name, ScanRequest(**request), never)
    decoded: dict[str, Any] = json.loads(answer.body)
    assert answer.rows == len(decoded["rows"])
    return decoded


async def ask_count(service: ScanService, name: str = "by_city", **request: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads((await service.count(name, CountRequest(**request), never)).body)
    return decoded


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["id"] for row in answer["rows"]]


def run(
    test: Callable[[ByNode], Coroutine[Any, Any, None]], world: World, settings: ScanSettings | None = None
) -> None:
    """Run a test on the world's endpoints; nothing may be left held."""

    async def whole() -> None:
        await test(world.services(settings))

    asyncio.run(asyncio.wait_for(whole(), 20))
    deadline = time.monotonic() + 20
    while held := [snapshot for snapshot in world.held() if snapshot.readers]:
        assert time.monotonic() < deadline, held
        time.sleep(0.01)  # a thread in the middle of a slice goes on until it looks


async def raises(error: type[BaseException], work: Awaitable[Any]) -> Any:
    with pytest.raises(error) as caught:
        await work
    return caught.value


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, at most two seconds."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


async def waiting(work: Coroutine[Any, Any, Any], view: FakeView) -> asyncio.Future[Any]:
    """Begin a scan that has to wait; returns when it has looked in vain, and again when it was listening."""
    before = view.looks
    scan = asyncio.ensure_future(work)
    await until(lambda: view.looks >= before + 2 or scan.done())
    assert not scan.done()
    return scan


# --- pages and leases -------------------------------------------------------------------------------------


def test_pages_come_from_one_snapshot_while_newer_ones_replace_it() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(50)})

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=7)
        seen, number = ids(page), 10
        while page["page"] is not None:
            assert page["snapshot"] == 10
            for _ in range(3):
                number += 1
                world.commit(number, {"by_city": people(60, tag=f"v{number}-")})
            page = await ask(services["n1" if number % 2 else "n0"], page=page["page"])
            seen += ids(page)
        assert seen == [f"u{at}" for at in range(50)]
        assert page["snapshot"] == 10
        assert (await ask(services["n0"], limit=1))["snapshot"] == number

    run(test, world)


def test_every_slice_keeps_the_snapshot_before_a_token_is_given() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(50)})

    async def test(services: ByNode) -> None:
        page = (await ask(services["n0"], limit=20))["page"]
        assert page is not None
        assert all(len(snapshot.leases) == 1 for snapshot in world.held())
        left = [max(snapshot.leases.values()) - now_ms() for snapshot in world.held()]
        assert all(5_000 < ms <= 11_000 for ms in left), "a first page's token is mostly never used"
        await ask(services["n0"], page=page)
        assert all(max(snapshot.leases.values()) > now_ms() + 50_000 for snapshot in world.held())

    run(test, world)


def test_a_scan_of_one_page_keeps_nothing() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(50)})

    async def test(services: ByNode) -> None:
        assert (await ask(services["n0"], limit=50))["page"] is None
        assert not any(snapshot.leases for snapshot in world.held())

    run(test, world)


def test_a_page_that_got_lost_on_its_way_may_be_asked_for_again() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(50)})

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=40)
        for number in range(11, 15):
            world.commit(number, {"by_city": []})
            last = await ask(services["n1"], page=page["page"])
            assert ids(last) == [f"u{at}" for at in range(40, 50)]
            assert last["page"] is None

    run(test, world)


def test_a_snapshot_that_cannot_be_leased_is_exchanged_before_the_first_page_is_given() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(50)})
    world.unleasable.add(("by_city-1", 2, 10))

    async def test(services: ByNode) -> None:
        first = await waiting(ask(services["n0"], limit=10, explain=True), world.views["n0"])
        world.commit(11, {"by_city": people(30)})
        page = await first
        assert page["snapshot"] == 11
        assert any("slice 2" in what for what in page["explain"]["waited_for"])
        assert len((await ask(services["n0"], page=page["page"]))["rows"]) == 10

    run(test, world)


def test_a_page_whose_snapshot_is_lost_is_snapshot_gone() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(50)})

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=7)
        world.views["n1"].slices["by_city-1", 1].restart()
        world.commit(11, {"by_city": people(50)})
        error = await raises(PageSnapshotGoneError, ask(services["n0"], page=page["page"]))
        assert (error.status, error.problem_type) == (410, "snapshot-gone")
        assert error.next_step

    run(test, world)


def test_snapshots_that_only_gave_first_pages_make_room_for_others() -> None:
    world = World(BY_CITY)

    async def test(services: ByNode) -> None:
        pages = []
        for number in range(10, 15):
            world.commit(number, {"by_city": people(50)})
            pages += [await ask(services["n0"], limit=7), await ask(services["n1"], limit=7)]
        world.commit(15, {"by_city": people(50)})
        world.commit(16, {"by_city": people(50)})
        for page in pages[:2]:  # 10 had to go
            await raises(PageSnapshotGoneError, ask(services["n0"], page=page["page"]))
        pages = [await ask(services["n0"], page=page["page"]) for page in pages[4:]]
        # Now all three that a client may use are in use: they stay, and it gets no further than a first page.
        first = await ask(services["n0"], limit=7)
        error = await raises(TooManyLeasesError, ask(services["n0"], page=first["page"]))
        assert (error.status, error.problem_type) == (429, "too-many-leases")
        assert len((await ask(services["n0"], limit=50))["rows"]) == 50  # needs none
        for page in pages:
            assert len((await ask(services["n1"], page=page["page"]))["rows"]) == 7

    run(test, world, ScanSettings.model_validate({"max_leases": 4}))


def test_many_tokens_of_one_snapshot_need_one_lease() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(50)})

    async def test(services: ByNode) -> None:
        pages = [await ask(services["n0"], limit=7) for _ in range(20)]
        for page in pages:
            assert len((await ask(services["n0"], page=page["page"]))["rows"]) == 7

    run(test, world, ScanSettings.model_validate({"max_leases": 1}))


def test_a_session_token_is_of_what_was_seen_and_of_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is remembered, and given to who has seen the same."""
    world = World(BY_CITY)
    stamp = Stamp(10, 0, Timestamp(), 0)

    async def test(services: ByNode) -> None:
        shared = services["n0"].shared
        for secret in (b"s" * 32, b"t" * 32, b"s" * 32):
            monkeypatch.setattr(shared.directory, "secret", lambda secret=secret: secret)
            for number in (10, 11, 11, 10):
                each: list[Seen] = [{"users": (number, 0)}, {"users": (number, 1)}, {"u": (number, 0)}, {}]
                for seen in each:
                    assert shared.head(stamp, seen)["session"] == sign(SessionToken(seen), secret)

    run(test, world)


def test_a_page_token_is_of_one_index_and_of_one_cluster() -> None:
    world = World(BY_CITY, "CREATE INDEX other ON users (age)")
    world.commit(10, {"by_city": people(50), "other": []})

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=7)
        error = await raises(InvalidTokenError, ask(services["n0"], "other", page=page["page"]))
        assert error.status == 422
        for token in (page["page"][:-1], page["page"] + "A", page["session"], "", "é", "x" * 5000):
            await raises(InvalidTokenError, ask(services["n0"], page=token))
        await raises(InvalidTokenError, ask(services["n0"], session=page["page"]))

    run(test, world)


# --- which snapshot ---------------------------------------------------------------------------------------


def test_a_slice_that_restarted_catches_up_before_it_answers() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        world.views["n1"].slices["by_city-1", 3].restart()
        scan = await waiting(ask(services["n0"], explain=True), world.views["n0"])
        world.commit(11, {"by_city": people(21)})
        answer = await scan
        assert (answer["snapshot"], len(answer["rows"])) == (11, 21)
        world.views["n1"].slices["by_city-1", 3].restart()
        error = await raises(IndexNotReadyError, ask(services["n0"], timeout_ms=30))
        assert "slice 3" in error.message

    run(test, world)


def test_another_replica_answers_for_one_that_restarted() -> None:
    world = World(BY_CITY, replicas=1)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        for slice_number in range(4):
            world.views["n0"].slices["by_city-1", slice_number].restart()
        page = await ask(services["n0"], limit=15)
        assert page["snapshot"] == 10
        # A later page asks the replicas that hold the lease, whoever is asked for it.
        world.commit(11, {"by_city": people(20)})
        world.commit(12, {"by_city": people(20)})
        world.commit(13, {"by_city": people(20)})
        assert ids(await ask(services["n0"], page=page["page"])) == [f"u{at}" for at in range(15, 20)]

    run(test, world)


def test_a_replica_on_a_node_that_is_down_or_unknown() -> None:
    world = World(BY_CITY, node_count=3, replicas=1)  # slice 1 is on n1 and n2
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        world.nodes["n0"].down.add("n1")
        for _ in range(10):  # whichever is asked first
            assert len((await ask(services["n0"]))["rows"]) == 20
        world.nodes["n0"].down.add("n2")
        error = await raises(NodeUnavailableError, ask(services["n0"]))
        assert error.extra["node"] in ("n1", "n2")
        # Nobody knows where n1 is; what n0 lacks itself it waits for, without asking all the time.
        world.views["n0"].urls = {}
        world.views["n0"].slices["by_city-1", 0].restart()
        before = len(world.nodes["n0"].reads)
        await raises(IndexNotReadyError, ask(services["n0"], equals=_in_slice(0), timeout_ms=150))
        assert len(world.nodes["n0"].reads) - before < 12

    run(test, world)


def _in_slice(number: int) -> list[Any]:
    """A city of `people` whose entries are in a slice of `BY_CITY`."""
    shape = Shape.of(definition_of(BY_CITY))
    keys = (list(doc.key) for doc in people(100))
    return next(key for key in keys if slices_of(ScanRequest(equals=key), shape) == (number,))


def test_at_least_waits_for_the_offsets_and_names_what_is_missing() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(5)}, offsets={0: 100})

    async def test(services: ByNode) -> None:
        assert (await ask(services["n0"], at_least={0: 100, 1: 0}))["snapshot"] == 10
        error = await raises(TimestampNotReachedError, ask(services["n0"], at_least={1: 7}, timeout_ms=20))
        assert (error.status, error.problem_type) == (504, "timestamp-not-reached")
        assert "offset 7 of partition 1" in error.message
        assert "offset 7 of partition 1" in error.extra["waited_for"][0]
        scan = await waiting(ask(services["n0"], at_least={1: 7}, explain=True), world.views["n0"])
        looks = world.views["n0"].looks
        world.commit(11, {"by_city": people(5)}, offsets={0: 100, 1: 6})
        await until(lambda: world.views["n0"].looks > looks)
        assert not scan.done()
        world.commit(12, {"by_city": people(6)}, offsets={0: 100, 1: 7})
        answer = await scan
        assert answer["timestamp"] == {"0": {"offset": 100, "epoch": -1}, "1": {"offset": 7, "epoch": -1}}
        assert len(answer["explain"]["waited_for"]) == 1
        assert answer["explain"]["waited_ms"] >= 1

    run(test, world)


@pytest.mark.parametrize("partition", [-1, 2, 10**30])
def test_at_least_of_an_unknown_partition(partition: int) -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": []})

    async def test(services: ByNode) -> None:
        error = await raises(CallerError, ask(services["n0"], at_least={partition: 1}))
        assert (error.status, error.problem_type) == (422, "unknown-partition")

    run(test, world)


def test_a_wait_sleeps_until_there_is_news() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": []})

    async def test(services: ByNode) -> None:
        before = world.views["n0"].looks
        await raises(TimestampNotReachedError, ask(services["n0"], at_least={0: 99}, timeout_ms=150))
        assert world.views["n0"].looks - before <= 4
        before = world.views["n0"].looks
        await raises(
            TimestampNotReachedError,
            ask(services["n0"], max_staleness_ms=0, at_least={0: 99}, timeout_ms=150),
        )
        assert world.views["n0"].looks - before <= 4

    run(test, world)


def test_a_reader_that_goes_away_ends_the_wait() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": []})

    async def test(services: ByNode) -> None:
        gone = asyncio.Event()

        async def goes() -> None:
            await gone.wait()

        wanted = ScanRequest(at_least={0: 99}, timeout_ms=10_000)
        scan = await waiting(services["n0"].scan("by_city", wanted, goes), world.views["n0"])
        gone.set()
        await raises(ReaderGoneError, asyncio.wait_for(scan, 1))
        assert len(asyncio.all_tasks()) == 2  # this one and its runner

    run(test, world)


def test_max_staleness() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": []}, fresh_at=now_ms() - 10_000)

    async def test(services: ByNode) -> None:
        assert 10_000 <= (await ask(services["n0"]))["staleness_ms"] < 20_000
        await raises(TimestampNotReachedError, ask(services["n0"], max_staleness_ms=5_000, timeout_ms=20))
        scan = await waiting(ask(services["n0"], max_staleness_ms=5_000), world.views["n0"])
        world.commit(11, {"by_city": []})
        assert (await scan)["staleness_ms"] < 5_000

    run(test, world)


def test_a_snapshot_of_unknown_age_is_too_stale_for_any_bound() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": []}, fresh_at=0)

    async def test(services: ByNode) -> None:
        assert (await ask(services["n0"]))["staleness_ms"] is None
        error = await raises(
            TimestampNotReachedError, ask(services["n0"], max_staleness_ms=10**12, timeout_ms=20)
        )
        assert "unknown age" in error.message

    run(test, world)


def test_tip_reads_each_slice_as_it_is_and_the_session_keeps_its_snapshot() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})
    world.commit(11, {"by_city": people(30)}, publish=False)

    async def test(services: ByNode) -> None:
        assert len((await ask(services["n0"]))["rows"]) == 20
        page = await ask(services["n0"], consistency="tip", limit=25)
        assert (page["snapshot"], page["staleness_ms"]) == (None, None)
        rows = ids(page) + ids(await ask(services["n1"], page=page["page"]))
        assert rows == [f"u{at}" for at in range(30)]
        assert not any(snapshot.leases for snapshot in world.held())
        old = (await ask(services["n0"]))["session"]
        seen = verify(old, SessionToken, bytes.fromhex(SECRET)).seen["users"]
        new = (await ask(services["n0"], consistency="tip", session=old))["session"]
        saw = verify(new, SessionToken, bytes.fromhex(SECRET)).seen["users"]
        assert (saw[:2], tip_of(saw)) == (seen, (0, Timestamp.of({0: 11, 1: 11})))
        for demand in ({"at_least": {0: 1}}, {"max_staleness_ms": 5}):
            error = await raises(CallerError, ask(services["n0"], consistency="tip", **demand))
            assert error.status == 422

    run(test, world)


def restarted(world: World, node: str, slice_number: int, number: int) -> FakeSlice:
    """A slice that shows what was durable, as of an older number, and has joined none."""
    held = world.views[node].slices["by_city-1", slice_number]
    held.restart()
    entries = sliced(world.index("by_city").definition, people(number))[slice_number]
    held.add(world.keep(-1, 0, Timestamp.of({0: number, 1: number}), entries), -1)
    return held


@pytest.mark.parametrize("with_session", [False, True])
def test_a_slice_that_restarted_shows_no_tip_before_it_has_come_to_a_number(with_session: bool) -> None:
    """Deleted documents came back, and new ones went, without an error: what is durable is older than what
    was shown before."""
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        first = await ask(services["n0"], consistency="tip")
        restarted(world, "n1", 1, 6)
        again: dict[str, Any] = {"consistency": "tip", "timeout_ms": 30}
        if with_session:
            again["session"] = first["session"]
        error = await raises(RetryableError, ask(services["n0"], **again))
        assert (error.problem_type, error.status) == ("index-not-ready", 503)
        assert "slice 1" in error.message
        world.commit(12, {"by_city": people(21)})
        assert len((await ask(services["n0"], **again))["rows"]) == 21

    run(test, world)


def test_a_tip_is_not_older_than_the_tips_of_its_session() -> None:
    """Of other slices, too: of a document that moves something is seen."""
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})
    world.commit(11, {"by_city": people(21)}, publish=False, skip=[("n1", 1)])

    async def test(services: ByNode) -> None:
        session = (await ask(services["n0"], consistency="tip"))["session"]
        tip: dict[str, Any] = {"consistency": "tip", "timeout_ms": 30}
        assert (await ask(services["n0"], **tip))["rows"], "nobody else waits"
        await raises(RetryableError, ask(services["n0"], **tip, session=session))
        error = await raises(TimestampNotReachedError, ask(services["n0"], session=session, timeout_ms=30))
        assert "newest states that the session has seen" in error.message
        world.commit(12, {"by_city": people(22)})
        assert len((await ask(services["n1"], **tip, session=session))["rows"]) == 22
        assert len((await ask(services["n1"], session=session))["rows"]) == 22

    run(test, world)


def test_a_tip_is_not_older_than_the_snapshots_of_its_session() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})
    world.commit(11, {"by_city": people(21)})

    async def test(services: ByNode) -> None:
        session = (await ask(services["n0"]))["session"]
        held = world.views["n1"].slices["by_city-1", 1]
        held.snapshots.pop(11)
        held.tip = held.snapshots[10]
        tip: dict[str, Any] = {"consistency": "tip", "timeout_ms": 30}
        await raises(RetryableError, ask(services["n0"], **tip, session=session))
        assert (await ask(services["n0"], **tip))["rows"]

    run(test, world)


def test_the_next_page_of_a_tip_waits_for_a_slice_that_restarted() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        page = (await ask(services["n0"], consistency="tip", limit=5))["page"]
        restarted(world, "n1", 1, 6)
        error = await raises(RetryableError, ask(services["n0"], page=page, timeout_ms=30))
        assert error.problem_type == "index-not-ready"
        world.commit(12, {"by_city": people(20)})
        assert ids(await ask(services["n0"], page=page)) == [f"u{at}" for at in range(5, 10)]

    run(test, world)


def test_a_token_of_tips_stays_small() -> None:
    seen = {"users": saw_tip(3, Timestamp.of(dict.fromkeys(range(64), 4_000_000_000)))}
    assert len(sign(SessionToken(seen), b"secret")) < 512
    older = msgspec.msgpack.encode(["s", {"users": [7, 1]}])  # as every release before has written it
    assert msgspec.msgpack.decode(older, type=SessionToken) == SessionToken({"users": (7, 1)})
    assert msgspec.msgpack.encode(SessionToken({"users": (7, 1)})) == older


def test_a_document_between_two_slices_comes_once_in_a_tip_scan() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})
    first, second = (world.views[node].slices["by_city-1", n] for node, n in (("n0", 0), ("n1", 1)))
    assert first.tip is not None
    assert second.tip is not None
    second.tip.entries = sorted(second.tip.entries + first.tip.entries)

    async def test(services: ByNode) -> None:
        assert ids(await ask(services["n0"], consistency="tip")) == [f"u{at}" for at in range(20)]
        # In a stable scan the same is a bug, and says so.
        error = await raises(InvariantViolationError, ask(services["n0"]))
        assert error.name == "Untorn"

    run(test, world)


def test_slices_with_different_timestamps_for_one_number_are_a_torn_snapshot() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})
    world.views["n1"].slices["by_city-1", 1].snapshots[10].timestamp = Timestamp.of({0: 11, 1: 10})

    async def test(services: ByNode) -> None:
        error = await raises(InvariantViolationError, ask(services["n0"]))
        assert error.name == "Untorn"
        assert (await raises(InvariantViolationError, ask_count(services["n0"]))).name == "Untorn"

    run(test, world)


# --- sessions and rollbacks -------------------------------------------------------------------------------


def test_a_session_never_sees_an_older_snapshot_on_another_node() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(1)})
    world.commit(11, {"by_city": people(2)}, publish=False)
    world.publish("by_city", 11, nodes=["n0"])

    async def test(services: ByNode) -> None:
        session = (await ask(services["n0"]))["session"]
        assert (await ask(services["n1"]))["snapshot"] == 10
        error = await raises(TimestampNotReachedError, ask(services["n1"], session=session, timeout_ms=20))
        assert "snapshot 11" in error.message
        scan = await waiting(ask_count(services["n1"], session=session), world.views["n1"])
        world.publish("by_city", 11)
        assert (await scan)["count"] == 2

    run(test, world)


def test_pages_of_an_old_snapshot_do_not_set_a_session_back() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=5)
        world.commit(11, {"by_city": people(21)})
        newer = (await ask(services["n0"], session=page["session"]))["session"]
        page = await ask(services["n0"], page=page["page"], session=newer)
        assert page["snapshot"] == 10
        world.publish("by_city", 10)  # a node that is behind
        await raises(TimestampNotReachedError, ask(services["n0"], session=page["session"], timeout_ms=20))

    run(test, world)


def test_a_rollback_is_told_to_sessions_and_pages() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=5)
        world.roll_back()
        # Until the new incarnation is published nothing older is given (R32).
        error = await raises(RollingBackError, ask(services["n0"], timeout_ms=20))
        assert (error.status, error.problem_type) == (503, "index-not-ready")
        for request in ({"page": page["page"]}, {"session": page["session"]}):
            error = await raises(HistoryChangedError, ask(services["n0"], **request))
            assert (error.status, error.problem_type) == (409, "history-changed")
        world.commit(12, {"by_city": people(3)})
        assert (await ask(services["n0"]))["snapshot"] == 12
        await raises(HistoryChangedError, ask(services["n0"], session=page["session"]))

    run(test, world)


def test_a_rollback_ends_the_wait_of_a_session() -> None:
    world = World(BY_CITY)
    world.commit(11, {"by_city": people(2)})

    async def test(services: ByNode) -> None:
        session = (await ask(services["n0"]))["session"]
        world.publish("by_city", 10)
        scan = await waiting(ask(services["n0"], session=session), world.views["n0"])
        world.roll_back()
        await raises(HistoryChangedError, asyncio.wait_for(scan, 1))

    run(test, world)


def test_a_voided_snapshot_is_not_read_under_its_old_number() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        world.roll_back()
        world.stamps[10] = (1, world.stamps[10][1], now_ms())  # the leader names (10, 1); slices hold (10, 0)
        await raises(IndexNotReadyError, ask(services["n0"], timeout_ms=20))

    run(test, world)


def test_a_node_behind_the_session_waits_for_the_metadata() -> None:
    world = World(BY_CITY)
    before = world.catalog.copy()
    world.roll_back()
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        page = await ask(services["n0"], limit=5)
        world.views["n1"].older = before
        await raises(IndexNotReadyError, ask(services["n1"], session=page["session"], timeout_ms=20))
        assert (await raises(IndexNotReadyError, ask(services["n1"], page=page["page"]))).status == 503
        tip = {"session": page["session"], "consistency": "tip", "timeout_ms": 20}
        await raises(TimestampNotReachedError, ask(services["n1"], **tip))
        world.catch_up("n1")
        assert (await ask(services["n1"], session=page["session"]))["snapshot"] == 10
        assert len((await ask(services["n1"], page=page["page"]))["rows"]) == 5

    run(test, world)


# --- indexes that cannot answer ---------------------------------------------------------------------------


def test_unknown_and_unready_indexes() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": []})
    for state in ("DEFERRED", "BUILDING", "PAUSED", "FAILED", "DROPPING"):
        world.create(f"CREATE INDEX i_{state.lower()} ON users (a)", state=state)
    world.create("CREATE INDEX no_snapshot ON users (a)")

    async def test(services: ByNode) -> None:
        error = await raises(UnknownIndexError, ask(services["n0"], "nope"))
        assert error.status == 404
        assert "by_city" in error.message
        await raises(UnknownIndexError, ask(services["n0"], "i_dropping"))
        for state in ("DEFERRED", "BUILDING", "PAUSED", "FAILED"):
            error = await raises(IndexNotReadyError, ask(services["n0"], f"i_{state.lower()}"))
            assert (error.status, error.problem_type) == (503, "index-not-ready")
            assert error.extra == {"build": "b1", "state": state}
            assert error.next_step
        error = await raises(IndexNotReadyError, ask(services["n0"], "no_snapshot", timeout_ms=20))
        assert "held by all" in error.message
        await raises(UnknownIndexError, services["n0"].count("nope", CountRequest(), never))

    run(test, world)


def test_a_node_that_has_read_nothing_yet_does_not_say_that_an_index_does_not_exist() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": []})
    world.views["n0"].older = Catalog()

    async def test(services: ByNode) -> None:
        error = await raises(IndexNotReadyError, ask(services["n0"], timeout_ms=20))
        assert error.status == 503
        world.views["n0"].older = None
        assert (await ask(services["n0"]))["rows"] == []

    run(test, world)


def test_a_build_that_ends_while_a_scan_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.scan.plan.readiness.READY_LAG_S", 30.0)
    world = World()
    world.create(BY_CITY, state="BUILDING")

    async def test(services: ByNode) -> None:
        scan = asyncio.ensure_future(ask(services["n0"]))
        await until(lambda: services["n0"].waiting)
        assert not scan.done()
        world.change("by_city", state="READY")
        world.commit(10, {"by_city": people(3)})
        assert len((await scan)["rows"]) == 3
        began = time.monotonic()
        world.change("by_city", state="BUILDING")
        await raises(IndexNotReadyError, ask(services["n0"], timeout_ms=20))
        assert time.monotonic() - began < 15, "the request's own limit is shorter"

    run(test, world)


@pytest.mark.parametrize(("late_s", "answered"), [(2.5, True), (4.0, False)])
def test_who_was_told_ready_is_answered_though_a_node_hears_of_it_late(late_s: float, answered: bool) -> None:
    """As on a machine whose cores are all busy: half a second was too short for that."""
    world = World()
    world.create(BY_CITY, state="BUILDING")

    async def scan() -> dict[str, Any]:
        asked = asyncio.ensure_future(ask(world.services()["n0"]))
        await asyncio.sleep(late_s)
        world.change("by_city", state="READY")
        world.commit(10, {"by_city": people(3)})
        return await asked

    if answered:
        assert len(in_simulated_time(scan())["rows"]) == 3
    else:
        with pytest.raises(IndexNotReadyError):
            in_simulated_time(scan())


@pytest.mark.parametrize(("late_s", "answered"), [(0.3, True), (1.0, False)])
def test_an_index_that_was_made_a_moment_ago_is_waited_for(late_s: float, answered: bool) -> None:
    """Who was told that it is READY may ask a node that has not read that there is one."""
    world = World()

    async def scan() -> tuple[dict[str, Any], float]:
        began = asyncio.get_running_loop().time()
        asked = asyncio.ensure_future(ask(world.services()["n0"]))
        await asyncio.sleep(late_s)
        world.create(BY_CITY)
        world.commit(10, {"by_city": people(3)})
        return await asked, asyncio.get_running_loop().time() - began

    if answered:
        answer, took = in_simulated_time(scan())
        assert len(answer["rows"]) == 3
        assert took < 1
    else:
        with pytest.raises(UnknownIndexError, match="there is no index by_city"):
            in_simulated_time(scan())


def test_an_index_that_goes_while_a_scan_waits() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": []})

    async def test(services: ByNode) -> None:
        scan = await waiting(ask(services["n0"], at_least={0: 99}), world.views["n0"])
        world.change("by_city", state="DROPPING")
        await raises(UnknownIndexError, asyncio.wait_for(scan, 1))

    run(test, world)


def test_a_node_that_is_down() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        world.nodes["n0"].down.add("n1")
        await raises(NodeUnavailableError, ask(services["n0"]))
        await raises(NodeUnavailableError, ask_count(services["n0"]))

    run(test, world)


# --- which slices, how often ------------------------------------------------------------------------------


def test_an_equality_on_the_partitioning_key_asks_one_slice() -> None:
    world = World(
        BY_CITY, "CREATE INDEX two ON users (city, age DESC) PARTITION BY HASH(age) WITH (slices=4)"
    )
    documents = [Doc([f"c{at % 5}", at % 7], f"u{at}") for at in range(70)]
    world.commit(10, {"by_city": people(20), "two": documents})

    async def test(services: ByNode) -> None:
        async def asked(name: str, **selection: Any) -> tuple[int, int]:
            """(slices asked, rows)."""
            answer = await ask(services["n0"], name, explain=True, **selection)
            assert answer["explain"]["slices_of_index"] == 4
            return len(answer["explain"]["slices"]), len(answer["rows"])

        assert await asked("by_city", equals=["city-0003"]) == (1, 1)
        assert await asked("by_city", low=["city-0003"], high=["city-0003"]) == (1, 1)
        assert await asked("by_city", low=["city-0003"], high=["city-0004"]) == (4, 2)
        assert await asked("by_city", low=["city-0003"]) == (4, 17)
        assert await asked("by_city", equals=[]) == (4, 20)
        assert await asked("by_city", prefix="city-0003") == (4, 1)
        assert await asked("two", equals=["c1"]) == (4, 14)
        assert await asked("two", equals=["c1", 3]) == (1, 2)
        assert await asked("two", equals=["c1", 3.0]) == (1, 2)  # one number, however it is written
        assert await asked("two", low=["c1", 3], high=["c1", 3]) == (1, 2)
        assert await asked("two", low=["c1", 3], high=["c1", 4]) == (4, 4)
        assert await asked("two", low=["c1", True], high=["c1", 1], inclusion="high") == (4, 4)
        counted = await ask_count(services["n0"], "two", equals=["c1", 3], explain=True)
        assert (counted["count"], len(counted["explain"]["slices"])) == (2, 1)

    run(test, world)


def test_keys_that_all_lie_in_one_slice_take_few_rounds() -> None:
    world = World("CREATE INDEX by_age ON users (city, age) PARTITION BY HASH(city) WITH (slices=8)")
    world.commit(10, {"by_age": [Doc(["one", at], f"u{at}") for at in range(2_000)]})

    async def test(services: ByNode) -> None:
        for reverse in (False, True):
            answer = await ask(services["n0"], "by_age", limit=1_000, explain=True, reverse=reverse)
            assert answer["explain"]["rounds"] <= 5
            expected = [f"u{at}" for at in range(2_000)]
            assert ids(answer) == (expected[::-1] if reverse else expected)[:1_000]

    run(test, world)


def test_evenly_spread_keys_take_one_round_and_read_little_more_than_they_give() -> None:
    world = World("CREATE INDEX spread ON users (city) WITH (slices=8)")
    world.commit(10, {"spread": people(5_000)})

    async def test(services: ByNode) -> None:
        answer = await ask(services["n0"], "spread", limit=1_000, explain=True)
        assert answer["explain"]["rounds"] == 1
        assert sum(one["rows_read"] for one in answer["explain"]["slices"]) < 1_500

    run(test, world)


def test_large_pages_and_counts_are_read_in_threads_and_equal() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(5_000)})

    async def test(services: ByNode) -> None:
        answer = await ask(services["n0"], limit=5_000)
        assert ids(answer) == [f"u{at}" for at in range(5_000)]
        assert answer["page"] is None
        assert (await ask_count(services["n0"], low=["city-1000"]))["count"] == 4_000
        assert (await ask_count(services["n0"]))["count"] == 5_000
        assert (await ask_count(services["n0"], low=["b"], high=["a"]))["count"] == 0

    run(test, world)


def test_limits() -> None:
    world = World(BY_CITY)
    world.commit(10, {"by_city": people(20)})

    async def test(services: ByNode) -> None:
        assert len((await ask(services["n0"]))["rows"]) == 9
        assert len((await ask(services["n0"], limit=15))["rows"]) == 15
        error = await raises(CallerError, ask(services["n0"], limit=16))
        assert (error.status, error.problem_type) == (422, "limit-too-large")

    run(test, world, ScanSettings.model_validate({"default_limit": 9, "max_limit": 15}))
