"""Scans under random histories: commits that reach some nodes only, publications that do, rollbacks, nodes
that learn of them late, and a leader's last words from before one.

Every snapshot's entries carry its name, so a mix of two would show in any answer. What a session may see is
written down here once more, from the rollbacks alone.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.gather.service import ScanService
from indexer.scan.plan.tokens import PageToken, SessionToken, tip_of, verify
from indexer.scan.request.request import CountRequest, ScanRequest
from keytide.errors import KeytideError
from keytide.model.timestamp import Timestamp
from tests import share
from tests.unit.scan_world import KEYSPACE, SECRET, Doc, FakeSnapshot, World, definition_of, sliced

STATEMENT = "CREATE INDEX i ON users (k) WITH (slices=3)"
INDEX = "i-1"
ROWS = 12
NODES = ("n0", "n1")
Name = tuple[int, int]
"""(number, incarnation) of a snapshot."""

nodes = st.sampled_from(NODES)
sessions = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("commit"), st.sets(nodes)),
    st.tuples(st.just("commit"), st.just({"n0", "n1"})),
    st.tuples(st.just("publish"), nodes),
    st.tuples(st.just("roll back"), st.integers(-1, 3)),
    st.tuples(st.just("learn"), nodes),
    st.tuples(st.just("step back"), nodes),
    st.tuples(st.just("scan"), nodes, sessions),
    st.tuples(st.just("scan"), nodes, sessions),
    st.tuples(st.just("count"), nodes, sessions),
    st.tuples(st.just("page"), nodes, sessions),
    st.tuples(st.just("page alone"), nodes, sessions),
    st.tuples(st.just("tip"), nodes, sessions),
    st.tuples(st.just("reset"), sessions),
)


@dataclass
class Reader:
    """A reader: its session, the page it may go on with, and what it has seen, by the test's own account."""

    session: str | None = None
    page: str | None = None
    seen: Name | None = None
    tip: Name | None = None
    """The newest state that a tip scan has shown (here every state is a named one)."""
    left: list[str] = field(default_factory=list)


class Run:
    """One history, and the readers in it.

    Attributes:
        knows: node -> the incarnation that it has read of.
        late: nodes whose slices have not stepped back to it yet.
        names: number -> name of each snapshot ever committed.
        cuts: incarnation -> the number that its rollback went back to.
        answers: how many requests were answered, refused by 409, refused otherwise.
    """

    def __init__(self) -> None:
        self.world = World(STATEMENT, node_count=2)
        self.services: dict[str, ScanService] = {}
        self.knows = dict.fromkeys(NODES, 0)
        self.late: set[str] = set()
        self.catalogs = [self.world.catalog.copy()]
        self.names: dict[int, Name] = {}
        self.cuts: dict[int, int] = {}
        self.readers = [Reader() for _ in range(3)]
        self.answers = {"answered": 0, "changed": 0, "refused": 0}

    # --- the history --------------------------------------------------------------------------------------

    def commit(self, reached: set[str]) -> None:
        """A number of the leader's incarnation is committed by the nodes that have heard of it; those that
        are behind commit one that a leader before the rollback had announced."""
        reached = reached - self.late
        for incarnation in sorted({self.knows[node] for node in reached}):
            number = len(self.names) + 1
            self.names[number] = (number, incarnation)
            timestamp = Timestamp.of({0: number, 1: number})
            self.world.stamps[number] = (incarnation, timestamp, 1)
            documents = [Doc([f"k{at:02}"], f"{number}/{incarnation}-{at:02}") for at in range(ROWS)]
            for slice_number, entries in enumerate(sliced(definition_of(STATEMENT), documents)):
                for node in reached:
                    held = self.world.views[node].slices.get((INDEX, slice_number))
                    if held is not None and self.knows[node] == incarnation:
                        published = self.world.views[node].publications.get(INDEX, -1)
                        held.add(FakeSnapshot(number, incarnation, timestamp, entries), published)

    def publish(self, node: str) -> None:
        """A node hears of the newest number of its history that any slice holds."""
        history = self.world.views[node].history(INDEX)
        numbers = [n for n, name in self.names.items() if name[1] == history.incarnation]
        if numbers:
            self.world.publish("i", max(numbers), nodes=[node])

    def roll_back(self, back: int) -> None:
        """To the `back`-th newest number that holds, or to nothing. No node knows of it yet."""
        newest = max(self.cuts, default=0)
        valid = [n for n, name in sorted(self.names.items()) if self.holds(name, newest)]
        to = valid[-1 - back] if 0 <= back < len(valid) else -1
        for node in NODES:
            if self.world.views[node].older is None:
                self.world.lag(node)
        self.world.roll_back(to, slices=False)
        self.cuts[newest + 1] = to
        self.catalogs.append(self.world.catalog.copy())

    def learn(self, node: str) -> None:
        """A node reads of the next rollback; its slices step back in a moment."""
        if self.knows[node] < max(self.cuts, default=0):
            self.knows[node] += 1
            self.late.add(node)
            self.world.views[node].older = self.catalogs[self.knows[node]]
            self.world.tell()

    def step_back(self, node: str) -> None:
        self.late.discard(node)
        view = self.world.views[node]
        for one in view.slices.values():
            one.step_back(view.history(INDEX))

    def holds(self, name: Name, incarnation: int) -> bool:
        """Whether a snapshot is not void in the eyes of one who knows the first `incarnation` rollbacks."""
        number, made = name
        return all(number <= self.cuts[at] for at in range(made + 1, incarnation + 1))

    # --- the readers --------------------------------------------------------------------------------------

    async def ask(self, kind: str, node: str, reader: Reader) -> None:
        """One request, and the judgement of its answer."""
        alone = kind == "page alone"  # as the documentation says: the token has all that is needed
        kind = "page" if alone else kind
        service, saw = self.services[node], None if alone else reader.seen
        tip = None if alone else reader.tip
        if kind == "page" and reader.page is None:
            return
        request: dict[str, Any] = {"session": None if alone else reader.session, "timeout_ms": 1}
        kept, paged = (reader.session, reader.seen, reader.tip), None
        if kind == "page" and reader.page is not None:
            paged = verify(reader.page, PageToken, bytes.fromhex(SECRET))
        try:
            if kind == "count":
                body = (await service.count("i", CountRequest(**request), _never)).body
            elif kind == "page":
                body = (await service.scan("i", ScanRequest(page=reader.page, **request), _never)).body
            else:
                consistency: Any = "tip" if kind == "tip" else "stable"
                scan = ScanRequest(limit=5, consistency=consistency, **request)
                body = (await service.scan("i", scan, _never)).body
        except KeytideError as error:
            self.answers["changed" if error.status == 409 else "refused"] += 1
            self.judge_refusal(error, node, [name for name in (saw, tip) if name], paged)
            return
        self.answers["answered"] += 1
        self.judge(kind, node, reader, saw, json.loads(body))
        if alone:  # the reader keeps what he had seen besides
            reader.session, reader.seen, reader.tip = kept

    def judge_refusal(self, error: KeytideError, node: str, saw: list[Name], paged: PageToken | None) -> None:
        assert error.status in (409, 410, 503, 504), error
        knows = self.knows[node]
        void = not all(self.holds(name, knows) for name in saw)
        if paged is not None and paged.number >= 0:
            void = void or not self.holds((paged.number, paged.incarnation), knows)
        elif paged is not None:
            void = void or paged.incarnation < knows
        assert void or error.status != 409, f"a false alarm: {saw} at {node}, {self.cuts}"
        assert not void or error.status == 409, f"{saw} is void for {node}, and is told {error}"

    def judge(self, kind: str, node: str, reader: Reader, saw: Name | None, answer: dict[str, Any]) -> None:
        knows = self.knows[node]
        token = verify(answer["session"], SessionToken, bytes.fromhex(SECRET)).seen.get(KEYSPACE)
        assert token is not None
        for name in (saw, None if kind == "page alone" else reader.tip):
            assert name is None or self.holds(name, knows), f"{name} is void for {node}, and nobody was told"
        tip = answer["snapshot"] is None
        told = tip_of(token)
        if tip:
            assert told is not None
            name = (told[1].offset(0), told[0])
            assert self.holds(name, knows)
            before = max((one[0] for one in (saw, reader.tip) if one is not None), default=-1)
            assert name[0] >= before, f"{name} is older than what was seen before: {saw}, {reader.tip}"
            assert saw is None or token[:2] == saw, "a tip scan has seen no snapshot"
            reader.tip = name
        else:
            name = self.names[answer["snapshot"]]
            assert self.holds(name, max(self.knows.values())), "no node gives what it knows to be void"
            if kind != "page":
                assert name[1] == knows, "a first page is of the newest history that the node knows of"
                assert saw is None or name[::-1] >= saw[::-1], f"{name} after {saw}"
                assert reader.tip is None or name[0] >= reader.tip[0], f"{name} after the tip {reader.tip}"
            assert saw is None or token[1::-1] >= saw[::-1]
            reader.seen = (token[0], token[1])
        reader.session = answer["session"]
        if kind == "count":
            assert answer["count"] == ROWS
            return
        ids = [row["id"] for row in answer["rows"]]
        sources = {self.names[int(one.split("/")[0])] for one in ids}
        if tip:
            assert all(self.holds(name, knows) for name in sources)
            reader.page = answer["page"]
            return
        number, incarnation = name
        whole = [f"{number}/{incarnation}-{at:02}" for at in range(ROWS)]
        if kind == "page":
            assert ids == reader.left[: len(ids)], "all pages come from one snapshot"
            reader.left = reader.left[len(ids) :]
        else:
            assert ids == whole[:5]
            reader.left = whole[5:]
        reader.page = answer["page"]
        assert (reader.page is None) == (not reader.left)


async def _never() -> None:
    await asyncio.Event().wait()


def carry_out(history: list[Any]) -> Run:
    run = Run()

    async def whole() -> None:
        run.services = run.world.services()
        for step in history:
            match step:
                case ("commit", reached):
                    run.commit(reached)
                case ("publish", node):
                    run.publish(node)
                case ("roll back", back):
                    run.roll_back(back)
                case ("learn", node):
                    run.learn(node)
                case ("step back", node):
                    run.step_back(node)
                case ("reset", reader):
                    run.readers[reader] = Reader()
                case (kind, node, reader):
                    await run.ask(kind, node, run.readers[reader])

    asyncio.run(whole())
    assert all(snapshot.readers == 0 for snapshot in run.world.held())
    return run


@settings(max_examples=share.examples(100), deadline=None)
@given(st.lists(steps, min_size=20, max_size=50))
def test_no_scan_mixes_histories_and_no_session_goes_back_untold(history: list[Any]) -> None:
    carry_out(history)


BOTH = {"n0", "n1"}


def test_the_random_histories_reach_what_they_are_about() -> None:
    """One history by hand, in which each kind of answer comes about: so the judgement above is at work."""
    learn = [(what, node) for what in ("learn", "step back") for node in NODES]
    begin: list[Any] = [("commit", BOTH), ("commit", BOTH), ("publish", "n0"), ("publish", "n1")]
    read = [("scan", "n0", 0), ("page", "n1", 0), ("count", "n1", 1), ("tip", "n0", 2)]
    lost = [("roll back", 1), *learn, ("page", "n0", 0), ("scan", "n1", 1)]
    after = [("commit", BOTH), ("publish", "n0"), ("scan", "n0", 0), ("reset", 0), ("scan", "n0", 0)]
    run = carry_out([*begin, *read, *lost, *after])
    assert run.answers == {"answered": 5, "changed": 3, "refused": 0}
    assert run.readers[0].seen == (3, 1)
    begin = [("commit", BOTH), ("publish", "n0"), ("scan", "n0", 0)]
    held = [("roll back", 0), *learn, ("page", "n0", 0), ("scan", "n0", 0)]
    kept = carry_out([*begin, *held, ("commit", BOTH), ("publish", "n0"), ("scan", "n0", 0)])
    assert kept.answers == {"answered": 3, "changed": 0, "refused": 1}
    assert kept.readers[0].seen == (2, 1)
    ahead: list[Any] = [("commit", BOTH), ("publish", "n1"), ("commit", BOTH), ("publish", "n0")]
    late = carry_out([*ahead, ("scan", "n0", 0), ("scan", "n1", 0), ("scan", "n1", 1)])
    assert late.answers == {"answered": 2, "changed": 0, "refused": 1}
    assert [reader.seen for reader in late.readers[:2]] == [(2, 0), (1, 0)]
