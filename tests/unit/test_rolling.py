"""Nodes that are restarted one after the other: what is waited for, and what is refused."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from keytide.cli import rolling
from keytide.errors import CallerError, RetryableError

Document = dict[str, Any]


class Cluster:
    """Nodes and copies as the coordinator tells them, and a clock.

    Attributes:
        copies: (slice, node) -> state.
        back_after: looks until a node that was stopped is there again, and as many until it serves.
        stopped: nodes, in order.
        no_scans: nodes that answer no scans.
        lagging: copies that snapshots do not wait for.
    """

    def __init__(self, *copies: tuple[int, str]) -> None:
        self.copies = dict.fromkeys(copies, "LIVE")
        self.started = {node: 1 for _, node in copies}
        self.back_after = 2
        self.stopped: list[str] = []
        self.now = 0.0
        self.away = 0
        self.no_scans: set[str] = set()
        self.lagging: list[Document] = []
        self._left: dict[str, int] = {}

    def call(self, method: str, path: str) -> Any:
        assert method == "GET"
        if self.away:
            self.away -= 1
            raise RetryableError("the coordinator does not answer")
        if path == "/v1/stability":
            return {"keyspaces": {"people": {"lagging": self.lagging}}}
        if path == "/v1/nodes":
            for node in [node for node, left in self._left.items() if left]:
                self._left[node] -= 1
                if self._left[node] == self.back_after:
                    self.started[node] += 1
            return [
                {
                    "id": node,
                    "url": f"http://{node}.example:8080",
                    "started_at": started,
                    "roles": ["index", "scan"] if node not in self.no_scans else ["index"],
                    "live": self._left.get(node, 0) <= self.back_after,
                }
                for node, started in sorted(self.started.items())
            ]
        assert path == "/v1/topology"
        slices = [
            {
                "slice": number,
                "node": node,
                "counted": True,
                "live": self._left.get(node, 0) <= self.back_after,
                "state": state if not self._left.get(node, 0) else "CATCHUP",
                "snapshot": 5,
            }
            for (number, node), state in self.copies.items()
        ]
        return {"indexes": [{"id": "by_city-7", "name": "by_city", "state": "READY", "slices": slices}]}

    def stop(self, node: Document) -> None:
        mine = {number for number, name in self.copies if name == node["id"]}
        others = {name for number, name in self.copies if number in mine} - {node["id"]}
        assert all(not self._left.get(one, 0) for one in others), "one that the slices need is away"
        self.stopped.append(node["id"])
        self._left[node["id"]] = 2 * self.back_after

    def nap(self, seconds: float) -> None:
        self.now += seconds

    def restart(self, *names: str, force: bool = False, limit_s: float = 60) -> list[Document]:
        return rolling.restart(
            self,  # type: ignore[arg-type]
            list(names),
            self.stop,
            force=force,
            limit_s=limit_s,
            quiet=True,
            nap=self.nap,
            clock=lambda: self.now,
        )


def two_copies() -> Cluster:
    return Cluster((0, "n1"), (0, "n2"), (1, "n2"), (1, "n3"), (2, "n3"), (2, "n1"))


def test_all_nodes_in_turn_the_next_when_one_serves_again() -> None:
    cluster = two_copies()
    done = cluster.restart()
    assert cluster.stopped == ["n1", "n2", "n3"]
    assert [one["node"] for one in done] == ["n1", "n2", "n3"]
    assert all(one["seconds"] > 0 for one in done)


def test_only_those_that_are_named_in_their_order() -> None:
    cluster = two_copies()
    cluster.restart("n3", "n1")
    assert cluster.stopped == ["n3", "n1"]
    with pytest.raises(CallerError, match="no node 'n9'"):
        cluster.restart("n1", "n9")
    assert cluster.stopped == ["n3", "n1"]


def test_a_coordinator_that_is_away_for_a_moment_is_waited_out() -> None:
    cluster = two_copies()
    stop = cluster.stop

    def stop_both(node: Document) -> None:
        stop(node)
        cluster.away = 3

    cluster.stop = stop_both  # type: ignore[method-assign]
    cluster.restart("n1")
    assert cluster.stopped == ["n1"]


def test_the_only_copy_of_a_slice_is_not_taken_away() -> None:
    cluster = Cluster((0, "n1"), (0, "n2"), (1, "n2"))
    with pytest.raises(CallerError, match="node n2 has the only copy of slices of by_city") as caught:
        cluster.restart("n2")
    assert "replicas=1" in caught.value.next_step
    assert cluster.stopped == []
    cluster.restart("n2", force=True)
    assert cluster.stopped == ["n2"]


def test_another_copy_that_does_not_serve_is_waited_for() -> None:
    cluster = two_copies()
    cluster.copies[1, "n3"] = "CATCHUP"
    with pytest.raises(RetryableError, match="no other copy serves slice 1 of by_city") as caught:
        cluster.restart("n2", limit_s=5)
    assert "--force" in caught.value.next_step
    assert (cluster.stopped, cluster.now > 5) == ([], True)


def test_a_copy_that_lags_is_waited_for() -> None:
    cluster = two_copies()
    cluster.lagging = [{"index": "by_city-7", "slice": 1, "node": "n3"}]
    with pytest.raises(RetryableError, match="no other copy serves slice 1 of by_city"):
        cluster.restart("n2", limit_s=5)
    assert cluster.stopped == []


def test_the_only_node_that_answers_scans_stays() -> None:
    cluster = two_copies()
    cluster.no_scans = {"n1", "n3"}
    with pytest.raises(CallerError, match="the only one that answers scans"):
        cluster.restart("n2")
    cluster.restart("n1")
    assert cluster.stopped == ["n1"]


def test_a_node_that_does_not_come_back_is_told() -> None:
    cluster = two_copies()
    cluster.back_after = 1_000
    with pytest.raises(RetryableError, match="not within 5 s: it has not come back"):
        cluster.restart(limit_s=5)
    assert cluster.stopped == ["n1"]


def test_a_command_of_the_operators(capfd: pytest.CaptureFixture[str]) -> None:
    rolling.by_command("echo restart {node} on {host}, not {this}")(
        {"id": "n1", "url": "http://h1.example:1"}
    )
    assert capfd.readouterr().out == "restart n1 on h1.example, not {this}\n"
    with pytest.raises(CallerError, match="ended with status 1"):
        rolling.by_command("false")({"id": "n1", "url": "http://h1.example:1"})


def test_only_a_child_of_the_cluster_is_stopped() -> None:
    with pytest.raises(CallerError, match="none of the processes") as caught:
        rolling.under(psutil.Process().pid)({"id": "n1", "url": "http://h1.example:1"})
    assert "--by" in caught.value.next_step
