"""Copies that the leader does not wait for, because they lag or their node is silent: what is still asked of
them (R37, R38)."""

from __future__ import annotations

import asyncio

import pytest

from indexer.scan.gather.holds import HoldRegistry
from indexer.scan.gather.scatter import Target
from indexer.scan.peer.health import PeerHealth
from indexer.scan.peer.messages import (
    JointPage,
    JointRead,
    JointSpans,
    LeaseReply,
    LeaseRequest,
    ReadReply,
    ReadRequest,
)
from keytide.http.node_protocol import NodeUnavailableError
from tests.unit.scan_world import World
from tests.unit.test_scan_service import BY_CITY, ByNode, people, run


class Keeping:
    """Nodes that keep what they are asked to, but for those that are down; copies on `a` lag."""

    here = "n9"

    def __init__(self, *down: str) -> None:
        self.health = PeerHealth(lambda index, slice_number: {"a"})
        self.down = down
        self.asked: list[str] = []

    def first_here(self, asked: JointRead) -> JointPage | None:
        raise NotImplementedError

    def within_here(self, asked: JointSpans) -> JointPage | None:
        raise NotImplementedError

    async def read_here(self, request: ReadRequest) -> ReadReply:
        raise AssertionError("nothing is here")

    async def read(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        raise AssertionError("nothing is read")

    async def lease(self, node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply:
        self.asked.append(node)
        if node in self.down:
            raise NodeUnavailableError("down", node=node)
        return LeaseReply([])


def kept(
    *down: str, read_at: str = "", newest: bool, in_use: bool = False
) -> tuple[list[str], dict[int, set[str]]]:
    """Who is asked to keep a snapshot with copies on `b` and `a`, and who keeps it then.

    Args:
        read_at: whose lease was taken with the read.
    """

    async def work() -> tuple[list[str], dict[int, set[str]]]:
        nodes = Keeping(*down)
        target = Target("i", 7, 0, [], {0: "b"}, 5.0, 60_000, in_use, others={0: ["a"]})
        leased = {0: {read_at}} if read_at else {}
        await HoldRegistry(nodes).keep(target, leased, newest=newest)
        return nodes.asked, leased

    return asyncio.run(work())


def test_a_copy_that_lags_does_not_keep_the_newest_snapshot_and_is_not_waited_for() -> None:
    assert kept(read_at="b", newest=True) == ([], {0: {"b"}})
    assert kept(newest=True) == (["b"], {0: {"b"}})


def test_it_keeps_older_ones_as_any_copy() -> None:
    """Else what a token names would run out there, and the page be gone with the other node."""
    assert kept(read_at="b", newest=False, in_use=True)[0] == ["a"]
    asked, leased = kept(newest=False)
    assert (sorted(asked), leased) == (["a", "b"], {0: {"a", "b"}})


@pytest.mark.parametrize("newest", [True, False])
def test_it_is_asked_where_nobody_else_keeps_the_snapshot(newest: bool) -> None:
    """It may have caught up since the leader spoke last."""
    asked, leased = kept("b", newest=newest)
    assert (sorted(asked), leased) == (["a", "b"], {0: {"a"}})


def test_it_is_read_when_the_node_that_is_waited_for_does_not_answer() -> None:
    """Else every scan would wait for that one first, for as long as no leader says otherwise."""
    world = World(BY_CITY, node_count=3, replicas=1)
    world.commit(10, {"by_city": people(40)})
    index = world.index("by_city").id
    for view in world.views.values():
        view.lagging = {(index, 0): frozenset({"n1"})}  # slice 0 is on n0 and n1

    async def test(services: ByNode) -> None:
        reads = services["n2"].shared
        found = reads.directory.index("by_city")
        assert {reads._replica(found, 0) for _ in range(20)} == {"n0"}
        reads.nodes.health.silent("n0", asyncio.get_running_loop().time())
        assert {reads._replica(found, 0) for _ in range(20)} == {"n1"}

    run(test, world)
