"""Reading one node's slices: several spans, places to go on from, long reads, leases and their limits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from indexer.scan.aggregate.request import AggregationPlan, Function
from indexer.scan.aggregate.task import Arguments, encode_arguments, encode_plan
from indexer.scan.local.reader import INLINE_ROWS, LocalReader
from indexer.scan.peer.messages import TIP, LeaseRequest, ReadMessage, ReadReply, UnknownTaskError
from indexer.scan.plan.leases import LeaseRegistry, TooManyLeasesError
from indexer.scan.tasks import TASKS
from keytide.errors import KeytideError
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from tests.unit.scan_world import FakeSnapshot, FakeView, World

INDEX = "i-1"
KEYS = [b"%02d" % at for at in range(20)]
SPANS: list[tuple[bytes, bytes | None]] = [(b"02", b"05"), (b"08", b"09"), (b"15", None)]
IN_SPANS = [b"02", b"03", b"04", b"08", b"15", b"16", b"17", b"18", b"19"]


class OneSlice:
    """A node with one slice of 20 entries, `00` to `19`, at snapshot 5."""

    def __init__(self) -> None:
        self.world = World("CREATE INDEX i ON users (a) WITH (slices=1)", node_count=1)
        self.view: FakeView = self.world.views["n0"]
        self.add(5)

    def add(self, number: int) -> FakeSnapshot:
        entries = [(key, b"") for key in KEYS]
        snapshot = FakeSnapshot(number, 0, Timestamp(), entries)
        self.view.slices[INDEX, 0].add(snapshot, -1)
        return snapshot

    def read(
        self, limit: int, after: bytes = b"", kind: type[ReadMessage] = ReadMessage, **changes: Any
    ) -> ReadReply:
        settings: dict[str, Any] = {"index": INDEX, "number": 5, "incarnation": 0}
        settings |= {
            "slices": [0],
            "spans": SPANS,
            "after": [after],
            "reverse": False,
            "limit": limit,
            **changes,
        }

        async def whole() -> ReadReply:
            return await LocalReader(self.view, 10, TASKS).read(kind(**settings).request())

        return asyncio.run(whole())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", range(1, 12))
def test_several_spans_are_read_block_by_block(limit: int, reverse: bool) -> None:
    node = OneSlice()
    found: list[bytes] = []
    after, more = b"", True
    while more:
        (reply,) = node.read(limit, after, reverse=reverse).slices
        more = reply.more
        assert more == (len(reply.entries) == limit)
        found += [key for key, _ in reply.entries]
        after = found[-1]
    assert found == (IN_SPANS[::-1] if reverse else IN_SPANS)


def test_counting_several_spans() -> None:
    (reply,) = OneSlice().read(0).slices
    assert (reply.count, reply.entries, reply.more) == (9, [], False)


def test_long_reads_are_done_in_a_thread_and_short_ones_are_not() -> None:
    node = OneSlice()
    threads = []

    class Noting(FakeSnapshot):
        def rows(self, *arguments: Any, **named: Any) -> Any:
            threads.append(threading.current_thread())
            return super().rows(*arguments, **named)

    snapshot = Noting(6, 0, Timestamp(), [(key, b"") for key in KEYS])
    node.view.slices[INDEX, 0].add(snapshot, -1)
    whole = [(b"", None)]
    for limit, spans, inline in (
        (INLINE_ROWS, whole, True),
        (INLINE_ROWS + 1, whole, False),
        (0, whole, True),
        (0, SPANS, False),
    ):
        threads.clear()
        node.read(limit, number=6, spans=spans)
        assert all((one is threading.main_thread()) is inline for one in threads)
        assert threads
    assert snapshot.readers == 0


@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.parametrize(
    "body", [b"", b"\x93nothing", encode_arguments(Arguments(b'{"x":1}', False, None, 1, 1, {}))]
)
def test_what_a_task_does_not_understand_is_no_damage(task: str, body: bytes) -> None:
    """A node of a later release may ask for what this one does not know: that says nothing of the slice."""
    node = OneSlice()
    with pytest.raises(UnknownTaskError) as caught:
        node.read(1, task=task, body=body)
    assert "same release" in caught.value.next_step
    assert node.view.damaged == {}
    assert node.view.slices[INDEX, 0].snapshots[5].readers == 0


def test_a_filter_that_is_not_understood_is_no_damage() -> None:
    node = OneSlice()
    plan = encode_plan(AggregationPlan((), (), (Function("count", -1, False, "count"),)))
    body = encode_arguments(Arguments(plan, False, None, 1, 1, {}))
    with pytest.raises(KeytideError):
        node.read(1, task="aggregate", body=body, filter=b'{"node":"of a later release"}')
    assert node.view.damaged == {}


@pytest.mark.parametrize("limit", [1, 100])
def test_many_spans_are_read_in_a_thread(limit: int) -> None:
    """A span costs a seek, also when nothing lies in it."""
    node = OneSlice()
    threads = []

    class Noting(FakeSnapshot):
        def rows(self, *arguments: Any, **named: Any) -> Any:
            threads.append(threading.current_thread())
            return super().rows(*arguments, **named)

    node.view.slices[INDEX, 0].add(Noting(6, 0, Timestamp(), []), -1)
    node.read(limit, number=6, spans=[(b"%03d" % at, b"%03da" % at) for at in range(500)])
    assert len(threads) == 500
    assert threading.main_thread() not in threads


def test_a_hold_that_is_given_back_during_a_read_stays_given_back() -> None:
    """A stream that is closed gives its hold back while another node still reads ahead for it."""
    node = OneSlice()
    reading, go_on = threading.Event(), threading.Event()

    class Slow(FakeSnapshot):
        def rows(self, *arguments: Any, **named: Any) -> Any:
            reading.set()
            assert go_on.wait(20)
            return super().rows(*arguments, **named)

    node.view.slices[INDEX, 0].add(Slow(6, 0, Timestamp(), [(key, b"") for key in KEYS]), -1)
    leases = node.view.slices[INDEX, 0].snapshots[6].leases

    async def whole() -> ReadReply:
        local = LocalReader(node.view, 10)
        assert local.lease(LeaseRequest(INDEX, 6, 0, [0], 60_000, False, "h1")).missing == []
        message = ReadMessage(
            INDEX, 6, 0, [0], [(b"", None)], [b""], False, INLINE_ROWS + 1, 60_000, True, hold="h1"
        )
        read = asyncio.ensure_future(local.read(message.request()))
        await asyncio.get_running_loop().run_in_executor(None, reading.wait, 20)
        local.lease(LeaseRequest(INDEX, 6, 0, [0], 0, True, "h1"))
        go_on.set()
        reply = await read
        assert local.lease(LeaseRequest(INDEX, 6, 0, [0], 60_000, True, "h1")).missing == [0]
        return reply

    reply = asyncio.run(whole())
    assert len(reply.slices[0].entries) == len(KEYS)
    assert not reply.leased
    assert leases["h1"] <= now_ms()


def test_no_lease_is_longer_than_the_node_allows() -> None:
    node = OneSlice()
    local = LocalReader(node.view, 10, longest_lease_s=7)
    for hold in ("", "h1"):
        assert local.lease(LeaseRequest(INDEX, 5, 0, [0], 10**12, False, hold)).missing == []
    assert max(node.view.slices[INDEX, 0].snapshots[5].leases.values()) <= now_ms() + 7_700


def test_what_is_not_held_is_gone_and_says_what_is_newest() -> None:
    node = OneSlice()
    for changes in ({"number": 4}, {"incarnation": 1}, {"slices": [1]}, {"index": "other-1"}):
        (reply,) = node.read(5, **changes).slices
        assert reply.gone
        assert reply.entries == []
    assert node.read(5, number=4).slices[0].newest == 5
    assert all(snapshot.readers == 0 for snapshot in node.world.held())
    assert node.read(1, number=TIP).slices[0].number == 5
    assert node.read(1, number=TIP, incarnation=7).slices[0].gone, "this node knows of no such history yet"


def test_a_read_with_more_to_come_keeps_the_snapshot() -> None:
    node = OneSlice()
    assert not node.read(9 + 1, lease_ms=1_000).leased
    assert not node.read(9, number=TIP, lease_ms=1_000).leased
    assert not any(snapshot.leases for snapshot in node.world.held())
    assert node.read(9, lease_ms=1_000).leased
    assert all(snapshot.leases for snapshot in node.world.held())


def test_a_request_with_fewer_places_than_slices_is_refused() -> None:
    with pytest.raises(ValueError, match="one `after` per slice"):
        ReadMessage(INDEX, 5, 0, [0, 1], [], [b""], False, 5)


class Leasing:
    """A lease book over `OneSlice` with snapshots 5 to 9, and a clock."""

    def __init__(self, limit: int) -> None:
        self.node = OneSlice()
        ring = self.node.view.slices[INDEX, 0]
        self.snapshots = {number: FakeSnapshot(number, 0, Timestamp(), []) for number in range(5, 10)}
        ring.snapshots = dict(self.snapshots)
        self.book = LeaseRegistry(self.node.view, limit)
        self.now = 1_000_000

    def keep(self, number: int, in_use: bool = False, slices: list[int] | None = None) -> list[int]:
        asked = LeaseRequest(INDEX, number, 0, slices or [0], 1_000, in_use)
        return self.book.keep(asked, self.now)

    def kept(self) -> set[int]:
        return {
            number
            for number, snapshot in self.snapshots.items()
            if any(until > self.now for until in snapshot.leases.values())
        }


def test_every_token_has_its_whole_time_however_many_share_the_lease() -> None:
    leasing = Leasing(3)
    for _ in range(500):
        assert leasing.keep(5) == []
        (until,) = leasing.snapshots[5].leases.values()
        assert leasing.now + 1_000 <= until <= leasing.now + 1_100
        leasing.now += 7


def test_a_slice_that_lacks_the_snapshot_is_named_every_time() -> None:
    leasing = Leasing(3)
    assert leasing.keep(5, slices=[0, 1]) == [1]
    assert leasing.keep(5, slices=[0, 1]) == [1]
    assert leasing.keep(5) == []
    assert leasing.keep(4) == [0]


def test_the_oldest_idle_snapshots_make_room() -> None:
    leasing = Leasing(3)
    leasing.keep(5, in_use=True)
    for number in (7, 6, 8):
        leasing.keep(number)
    assert leasing.kept() == {5, 7, 8}
    leasing.keep(8, in_use=True)
    with pytest.raises(TooManyLeasesError):
        leasing.keep(7, in_use=True)
    assert leasing.kept() == {5, 7, 8}
    leasing.keep(9)  # a first page always has room
    assert leasing.kept() == {5, 8, 9}
    leasing.keep(8)  # those that are kept may be kept on
    leasing.now += 1_200
    leasing.keep(9)
    assert leasing.kept() == {9}


def test_a_lease_request_says_what_is_missing() -> None:
    node = OneSlice()
    reader = LocalReader(node.view, 10)
    assert reader.lease(LeaseRequest(INDEX, 5, 0, [0], 1_000, False)).missing == []
    assert reader.lease(LeaseRequest(INDEX, 4, 0, [0], 1_000, False)).missing == [0]
    reader.close()


def test_what_is_examined_is_looked_at_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was asked for is, however large it is, which may be more than was read."""
    node, threads, rows_of = OneSlice(), set[int](), FakeSnapshot.rows_of

    def noted(snapshot: FakeSnapshot, *how: Any) -> Any:
        threads.add(threading.get_ident())
        return rows_of(snapshot, *how)

    monkeypatch.setattr(FakeSnapshot, "rows_of", noted)
    node.read(2)
    assert threads == {threading.get_ident()}
    threads.clear()
    node.read(2, examine=True)
    assert threads
    assert threading.get_ident() not in threads
