"""Several nodes: they are asked by turns; one that is away is passed over at once, and looked at later."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, get_args

import pytest

from keytide.client.protocol.addresses import FIRST_REST_S, LONGEST_REST_S, NodeAddresses
from keytide.client.protocol.calls import Clock, Flow, HttpCall, HttpReply, NoReply, Outcome, RetryPause, ask
from keytide.errors import KeytideError
from tests.unit.raw_node import LIMIT_S, MOMENT, Asked, Kind, RawNode, answer, calling, counted

both = pytest.mark.parametrize("kind", get_args(Kind))
AWAY = NoReply("refused")
SILENT = NoReply("nothing came", slow=True)


class World:
    """Nodes a, b, c that answer, are away, or are silent; time passes when it is told to.

    Attributes:
        state: of nodes that do not answer.
        asked: (node, path) of the requests.
    """

    def __init__(self, nodes: str = "abc") -> None:
        self.addresses = NodeAddresses([f"http://{name}.example" for name in nodes])
        self.state: dict[str, HttpReply | NoReply] = {}
        self.asked: list[tuple[str, str]] = []
        self.limits: list[float] = []
        self.now = 1_000.0

    def ask(self, times: int = 1, turn: int | None = None) -> str:
        """The nodes that were asked for that; `/` behind those that were looked at."""
        before = len(self.asked)
        for _ in range(times):
            try:
                self._run(ask(self.addresses, HttpCall("POST", "/v1/q"), 0, turn))
            except KeytideError:
                pass
        return "".join(node + ("/" if path == "/readyz" else "") for node, path in self.asked[before:])

    def _run(self, flow: Flow[HttpReply]) -> HttpReply:
        outcome: Outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                found: HttpReply = end.value
                return found
            outcome = None
            match step:
                case HttpCall():
                    name = step.node.removeprefix("http://").removesuffix(".example")
                    self.asked.append((name, step.path))
                    self.limits.append(step.seconds)
                    outcome = self.state.get(name, HttpReply(step.node, 200, {}))
                case Clock():
                    outcome = self.now
                case RetryPause():
                    raise AssertionError("a pause")


def test_nodes_are_asked_by_turns() -> None:
    world = World()
    assert world.ask(7) == "abcabca"
    assert world.ask(3, turn=5) == "ccc", "parts of one result"
    assert World("a").ask(3) == "aaa"


@pytest.mark.parametrize("failure", [AWAY, SILENT])
def test_a_node_that_is_away_is_passed_over_at_once_and_for_a_while(failure: NoReply) -> None:
    world = World()
    world.state["b"] = failure
    assert world.ask(2) == "abc"
    assert sorted(world.ask(6)) == list("aaaccc"), "the others evenly"
    world.now += FIRST_REST_S - 0.1
    assert sorted(world.ask(2)) == list("ac")


def test_a_node_is_looked_at_after_its_rest_and_has_its_turns_again() -> None:
    world = World("ab")
    world.state["b"] = AWAY
    assert world.ask(2) == "aba"
    del world.state["b"]
    world.now += FIRST_REST_S
    before = len(world.limits)
    assert world.ask(3) == "b/" + "aba"
    assert world.limits[before] < 1 < world.limits[before + 1]


def test_a_node_that_stays_away_is_looked_at_ever_more_seldom() -> None:
    world = World("ab")
    world.state["b"] = SILENT
    world.ask(2)
    looks, began = [], world.now
    for _ in range(6_000):
        world.now += 0.1
        if "b/" in world.ask():
            looks.append(world.now)
    gaps = [round(late - early) for early, late in zip([began, *looks], looks, strict=False)]
    assert gaps[:6] == [2, 4, 8, 16, 32, 60]
    assert set(gaps[6:]) == {int(LONGEST_REST_S)}
    assert [node for node, path in world.asked if node == "b" and path != "/readyz"] == ["b"]


def test_a_node_that_answers_that_it_is_not_ready_rests_on() -> None:
    world = World("ab")
    world.state["b"] = AWAY
    world.ask(2)
    world.state["b"] = HttpReply("", 503, {})
    world.now += FIRST_REST_S
    assert world.ask(2) == "b/aa"
    world.state["b"] = HttpReply("", 404, {})  # what stands before it does not let that through: it is there
    world.now += 2 * FIRST_REST_S
    assert world.ask() == "b/a" or world.addresses.resting is False
    assert not world.addresses.resting


def test_where_all_are_away_all_are_asked() -> None:
    world = World()
    for name in "abc":
        world.state[name] = AWAY
    assert world.ask() == "abc"
    world.now += 0.1
    del world.state["b"]
    assert world.ask() == "ab"
    assert world.ask(3) == "bbb"
    world.now += LONGEST_REST_S
    del world.state["a"], world.state["c"]
    assert [world.ask()[:2], world.ask()[:2]] == ["a/", "c/"], "one is looked at by each request"
    assert sorted(world.ask(6)) == list("aabbcc")


def test_a_node_that_is_not_for_scans_is_left_alone_for_long() -> None:
    world = World("ab")
    world.state["a"] = HttpReply("", 421, {}, b'{"type": "scans-elsewhere"}')
    assert world.ask(4) == "abbbb"
    world.now += LONGEST_REST_S - 1
    assert world.ask(3) == "bbb"


def test_a_node_whose_index_is_not_ready_keeps_its_turns() -> None:
    world = World("ab")
    world.state["a"] = HttpReply("", 503, {"retry-after": "1"}, b'{"type": "index-not-ready"}')
    assert world.ask(4) == "ab" + "b" + "ab" + "b"


def test_a_result_stays_where_it_is_while_another_node_rests() -> None:
    """The others' results are spread evenly over those that are awake."""
    nodes = NodeAddresses([f"http://{name}" for name in "abc"])
    nodes.rest(0, 0.0)
    asked = [nodes.order(turn)[0] for turn in range(12)]
    assert asked == [1, 1, 2, 2, 1, 2, 1, 1, 2, 2, 1, 2]
    assert all(len(set(nodes.order(turn))) == 3 and nodes.order(turn)[2] == 0 for turn in range(12))


# --- on real connections ----------------------------------------------------------------------------------


@both
def test_results_go_to_all_nodes_and_the_pages_of_one_to_one(kind: Kind) -> None:
    def react(asked: Asked, _: socket.socket) -> bytes:
        if asked.path.endswith("count"):
            return counted(1)
        more = None if "page" in json.loads(asked.body) and len(node.asked) > 8 else "p"
        return answer(json.dumps({**MOMENT, "rows": [{"id": "a"}], "page": more}).encode())

    with (
        RawNode(react) as node,
        RawNode(lambda *_: counted(1)) as other,
        calling(kind, [node.url, other.url]) as caller,
    ):
        for _ in range(6):
            caller.count()
        assert (len(node.asked), len(other.asked)) == (3, 3)
        rows = caller.wait(caller.client.scan("i", page_size=1).to_list())
        assert len(rows) == 6
        assert (len(node.asked), len(other.asked)) == (9, 3)
        caller.count()
        assert (len(node.asked), len(other.asked)) == (9, 4)


@both
def test_a_silent_node_costs_one_request_its_time_and_the_others_nothing(kind: Kind) -> None:
    quiet = threading.Event()

    def silent(_: Asked, __: socket.socket) -> bytes:
        if quiet.is_set():
            assert woken.wait(LIMIT_S)
        return counted(1)

    woken = threading.Event()
    with (
        RawNode(silent) as first,
        RawNode(lambda *_: counted(2)) as second,
        calling(kind, [first.url, second.url]) as caller,
    ):
        assert [caller.count(), caller.count()] == [1, 2]
        quiet.set()
        began = time.monotonic()
        with caller.giving_up_after(0.5):
            assert caller.count() == 2
        assert time.monotonic() - began > 0.4
        assert [caller.count() for _ in range(10)] == [2] * 10
        assert len(first.asked) == 2
        quiet.clear()
        woken.set()
        assert _until(lambda: caller.count() == 1)
        assert caller.pauses == []


@both
def test_a_node_that_was_stopped_is_passed_over_at_once(kind: Kind) -> None:
    with RawNode(lambda *_: counted(2)) as second:
        with RawNode(lambda *_: counted(1)) as first:
            caller = calling(kind, [first.url, second.url], retries=0)
            made = caller.__enter__()
            assert [made.count() for _ in range(4)] == [1, 2, 1, 2]
        assert [made.count() for _ in range(4)] == [2] * 4
        caller.__exit__(None, None, None)


def _until(found: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < deadline
    return True
