"""UNIQUE in the coordinator: builds wait for the slices' verdict and fail by it; keys of READY indexes are
told once; timestamps say what they settle."""

from __future__ import annotations

import pytest

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import Reported, SourceSampled
from coordinator.core.instructions import DeleteTopics
from coordinator.unique.violations import COUNT_MS, EVENTS_PER_INDEX, FORGET_MS, KEPT_KEYS, in_words
from coordinator.views import index_lists as list_views
from coordinator.views import views
from coordinator.views.index_lists import BadPageError
from coordinator.views.slices import nodes_to_ask
from keytide.collation import encode_key
from keytide.model.timestamp import Timestamp
from keytide.wire.index_lists import ListPage, SkippedLine
from keytide.wire.messages import DuplicateDocument, NodeHeartbeat, SliceStatus, UniqueViolation
from tests.unit import leader_world
from tests.unit.leader_world import World, backfilled, facts


def duplicate(value: object, number: int = 1, documents: int = 2, more: bool = False) -> UniqueViolation:
    key = encode_key((value,))  # type: ignore[arg-type]
    found = [DuplicateDocument(b"u%d" % n, n % 2, 7 + n, 1_000 + n) for n in range(documents)]
    return UniqueViolation(key, number, found, more)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(leader_world, "CREATE", leader_world.CREATE.replace("INDEX", "UNIQUE INDEX"))
    return World(BuildLimits(verify=False))


def say(
    world: World,
    judged: int,
    *violated: UniqueViolation,
    count: int | None = None,
    listed: int = -1,
    nodes: tuple[str, ...] = ("n1", "n2"),
    state: str = "LIVE",
) -> None:
    """Heartbeats of all slices; slice 0 has the violations."""
    for node in nodes:
        statuses = [
            SliceStatus(
                index.id, number, state, "", Timestamp(), 0, -1, 0, 0, 0, 0, 0, 0, 0,
                violations=(len(violated) if count is None else count) if number == 0 else 0,
                judged=judged,
                listed=listed if number == 0 else 0,
                violated=list(violated) if number == 0 else [],
            )
            for index in world.leader.dictionary.catalog.indexes()
            for number, placed in enumerate(index.placement)
            if node in placed
        ]  # fmt: skip
        message = NodeHeartbeat(node, f"http://{node}", 1, world.now, statuses, 0, 0, 0)
        world.handle(Reported(message, world.now))


def told(world: World) -> list[str]:
    return [note.text for note in world.notes if note.kind == "unique-violated"]


def test_a_build_waits_until_every_slice_has_judged_its_end(world: World) -> None:
    backfilled(world)
    world.common(130, 60)
    first = world.number
    assert world.index("by_city").state == "BUILDING"
    say(world, first - 1)
    world.common(130, 61)
    assert world.index("by_city").state == "BUILDING"
    assert "equal keys of by_city" in world.leader.builds.registry.run("b8").waiting_for
    say(world, first, nodes=("n1",))
    world.common(130, 62)
    assert world.index("by_city").state == "BUILDING"
    say(world, first, state="CATCHUP")
    world.common(130, 63)
    assert world.index("by_city").state == "BUILDING"
    say(world, first)
    world.common(130, 64)
    assert world.index("by_city").state == "READY"
    assert world.build("b8").state == "READY"


def test_a_violation_fails_the_build_and_is_named(world: World) -> None:
    backfilled(world)
    world.common(130, 60)
    found = [duplicate(city, world.number) for city in ("Boston", "Oslo", "Rome")]
    first = world.number
    say(world, -1, *found[:1], nodes=("n1",))
    world.common(130, 61)
    assert world.index("by_city").state == "BUILDING", "slices are counting"
    say(world, first, *found[:2], count=3)
    say(world, first, found[2], found[0], count=3)
    world.common(130, 62)
    record = world.build("b8")
    assert (record.state, world.index("by_city").state) == ("FAILED", "FAILED")
    assert "UNIQUE and 3 of its keys are had" in record.error
    assert '["Boston"]' in record.error
    assert "u0 (partition 0, offset 7) and u1 (partition 1, offset 8)" in record.error
    steps = ("`keytide index violations by_city`", "change or delete", "`keytide index build by_city`")
    places = [record.error.find(step) for step in steps]
    assert -1 < places[0] < places[1] < places[2]
    assert world.index("by_city").reason == record.error
    assert not told(world)  # the build's failure says it


def test_what_failed_a_build_can_be_seen_afterwards(world: World) -> None:
    backfilled(world)
    world.common(130, 60)
    found = [duplicate(number, world.number) for number in range(250)]
    for at in range(0, 250, 10):
        say(world, -1, *found[at : at + 10], count=8_509, listed=1_000)
        world.common(130, 61)
    assert world.index("by_city").state == "BUILDING"
    world.now += COUNT_MS
    world.common(130, 61)
    index = world.index("by_city")
    assert "UNIQUE and at least 1,000 of its keys are had" in index.reason, "no more is proven"
    assert index.violated is not None
    assert [one.key for one in index.violated.keys] == [one.key for one in found[:KEPT_KEYS]]
    assert views.index(world.leader, index, world.now)["violations"] == 1_000
    page = list_views.kept_violations(index, index.violated, None, 60)
    assert (page["violations"], page["exact"], page["keys"][0]["key"]) == (1_000, False, [0])
    rest = list_views.kept_violations(index, index.violated, page["page"], 60)
    assert [one["key"] for one in page["keys"] + rest["keys"]] == [[n] for n in range(KEPT_KEYS)]
    assert rest["page"] is None
    again, _ = world.restart()
    assert again.index("by_city").violated == index.violated
    again.sql("BUILD INDEX ON people (by_city)")
    assert again.index("by_city").violated is None


def test_a_record_has_a_limit_whatever_nodes_tell(world: World) -> None:
    backfilled(world)
    world.common(130, 60)
    say(world, world.number, *(duplicate([n] + [1] * 30_000, world.number) for n in range(3)), count=3)
    world.common(130, 61)
    index = world.index("by_city")
    assert index.violated is not None
    assert len(index.violated.keys) == 3
    assert sum(len(one.key) for one in index.violated.keys) < 1_000
    assert len(index.reason) < 2_000
    page = list_views.kept_violations(index, index.violated, None, 2)
    rest = list_views.kept_violations(index, index.violated, page["page"], 2)
    assert len(page["keys"] + rest["keys"]) == 3


@pytest.mark.parametrize("verify", [False, True])
def test_the_other_indexes_of_the_build_go_on(verify: bool) -> None:
    world = World(BuildLimits(verify=verify))
    world.node("n1")
    for kind, name in (("UNIQUE ", "a"), ("", "b")):
        world.sql(f"CREATE {kind}INDEX {name} ON people ({name}) WITH (slices=1, defer_build=true)")
    world.sql("BUILD INDEX ON people (a, b)")
    world.tick()
    world.prepared("b9")
    world.activate(2, 100, 50)
    world.driver("b9", "PASSED", 1, (100, 50))
    world.handle(SourceSampled(facts((100, 50)), "b9", world.now))
    world.common(100, 50, nodes=("n1",))
    statuses = [
        SliceStatus(
            index, 0, "LIVE", "", Timestamp(), 0, -1, 0, 0, 0, 0, 0, 0, 0,
            violations=n, judged=world.number, violated=[duplicate("x", 1)] * n, listed=n,
        )
        for index, n in (("a-7", 1), ("b-8", 0))
    ]  # fmt: skip
    message = NodeHeartbeat("n1", "", 1, world.now, statuses, 0, 0, 0)
    world.handle(Reported(message, world.now))
    out = [*world.common(101, 50, nodes=("n1",)), *world.common(102, 50, nodes=("n1",))]
    assert DeleteTopics(("kt.backfill.a-7.b9",)) in out
    if verify:
        (job,) = world.leader.dictionary.catalog.jobs()
        assert job.indexes == ["b-8"]
        return
    build = world.build("b9")
    assert (world.index("a").state, world.index("b").state, build.state) == ("FAILED", "READY", "READY")
    assert "index a is UNIQUE and 1 of its keys is had" in build.error


def test_an_index_that_is_not_unique_waits_for_nothing() -> None:
    world = backfilled(World(BuildLimits(verify=False)))
    world.common(130, 60)
    assert world.index("by_city").state == "READY"


def test_another_leader_waits_for_a_verdict_of_its_own(world: World) -> None:
    backfilled(world)
    world.common(130, 60)
    other, _ = world.restart()
    other.progress(1, 130, 60)
    other.node("n1", "n2")
    other.handle(SourceSampled(facts((130, 60)), "", other.now))
    other.common(130, 61)
    assert other.index("by_city").state == "BUILDING"
    say(other, other.number)
    other.common(130, 62)
    assert other.index("by_city").state == "READY"


def ready(world: World) -> World:
    backfilled(world)
    world.common(130, 60)
    say(world, world.number)
    world.common(130, 61)
    assert world.index("by_city").state == "READY"
    return world


def test_keys_of_a_ready_index_are_told_once(world: World) -> None:
    ready(world)
    say(world, 9, duplicate("Boston", 5))
    say(world, 9, duplicate("Boston", 5), duplicate("Oslo", 6))
    say(world, 9, duplicate("Oslo", 6))
    assert len(told(world)) == 2
    assert told(world)[0].startswith('UNIQUE index by_city: key ["Boston"] is had by u0 ')
    assert told(world)[0].endswith("since snapshot 5 at least")
    assert world.index("by_city").state == "READY"
    say(world, 9)
    say(world, 9, duplicate("Boston", 9))  # of documents that are written all the time
    say(world, 9)
    world.now += FORGET_MS - 1
    say(world, 9, duplicate("Boston", 9))
    say(world, 9)
    world.now += FORGET_MS
    assert len(told(world)) == 2
    say(world, 9)
    say(world, 9, duplicate("Boston", 9))  # another violation
    assert len(told(world)) == 3


def test_events_of_one_index_are_limited(world: World) -> None:
    ready(world)
    for first in range(0, 3 * EVENTS_PER_INDEX, 10):
        say(world, 9, *(duplicate(number, 5) for number in range(first, first + 10)))
    assert len(told(world)) == EVENTS_PER_INDEX + 1
    assert "more than" in told(world)[-1]


def test_timestamps_say_what_they_settle(world: World) -> None:
    ready(world)
    before = world.number
    world.now += 10
    world.handle(SourceSampled(facts((140, 70), at=world.now), "", world.now))
    world.common(139, 70)
    assert world.places[world.number].settled == -1
    world.common(140, 70)
    assert world.places[world.number].settled == before


def test_words_name_a_few_documents(world: World) -> None:
    index = ready(world).index("by_city")
    assert "u2 (partition 0, offset 9) and 4 more, since" in in_words(index, duplicate("x", 3, documents=7))
    assert "u1 (partition 1, offset 8) and more, since" in in_words(index, duplicate("x", 3, more=True))
    assert len(in_words(index, duplicate("x" * 10_000))) < 500


# --- pages ------------------------------------------------------------------------------------------------


def test_pages_of_several_nodes_are_one_page_in_order(world: World) -> None:
    index = ready(world).index("by_city")
    a, b, c, d = (duplicate(value, 4) for value in ("a", "b", "c", "d"))
    pages = [ListPage(violations=[a, c]), ListPage(violations=[b, d])]
    whole = list_views.violations(index, pages, 10, 4)
    assert [one["key"] for one in whole["keys"]] == [["a"], ["b"], ["c"], ["d"]]
    assert (whole["page"], whole["violations"], whole["unique"]) == (None, 4, True)
    first = list_views.violations(index, pages, 2, 4)
    assert [one["key"] for one in first["keys"]] == [["a"], ["b"]]
    for _, ask in list_views.asks(index, "violations", first["page"], 2, ["n1", "n2", "n1"]):
        assert ask.after_key == b.key
    assert whole["keys"][0]["documents"][1] == {"id": "u1", "partition": 1, "offset": 8, "time": 1_001}
    assert (whole["keys"][0]["since"], whole["keys"][0]["since_snapshot"]) == (1_001, 4)


def test_pages_of_the_ledger(world: World) -> None:
    index = ready(world).index("by_city")
    lines = [SkippedLine(n % 2, 10 + n, b"\xff%d" % n, "not-json", "line 1") for n in range(4)]
    pages = [
        ListPage([lines[0], lines[3]], reasons={"not-json": 2}),
        ListPage([lines[2], lines[1]], more=True, reasons={"not-json": 1, "bad-id": 1}, counted_all=False),
    ]
    page = list_views.skipped(index, pages, 3, True, 4)
    assert [(line["partition"], line["offset"]) for line in page["lines"]] == [(0, 10), (0, 12), (1, 11)]
    assert (page["page"], page["reasons"], page["reasons_complete"]) == (
        "1:11",
        {"bad-id": 1, "not-json": 3},
        False,
    )
    assert page["lines"][0]["id"] == "\\xff0"
    later = list_views.skipped(index, [ListPage([lines[3]])], 3, False, 4)
    assert (later["page"], later["reasons"]) == (None, None)
    ((node, ask), *_) = list_views.asks(index, "skipped", "1:11", 3, ["n1", "n2", "n1"])
    assert (ask.after, ask.reasons, node) == ((1, 11), False, "n1")


@pytest.mark.parametrize(
    ("what", "page"), [("skipped", "x"), ("skipped", "1:-2"), ("skipped", "1"), ("violations", "%%")]
)
def test_bad_pages_are_refused(world: World, what: str, page: str) -> None:
    index = ready(world).index("by_city")
    with pytest.raises(BadPageError, match="no page of this list"):
        list_views.asks(index, what, page, 3, ["n1", "n2", "n1"])


def test_each_slice_is_asked_of_one_node(world: World) -> None:
    index = ready(world).index("by_city")
    assert nodes_to_ask(world.leader, index) == ["n1", "n2", "n1"]
    asked = list_views.asks(index, "skipped", None, 3, nodes_to_ask(world.leader, index))
    assert [(node, ask.slices) for node, ask in asked] == [("n1", [0, 2]), ("n2", [1])]
    assert all(ask.reasons and ask.after is None for _, ask in asked)


# --- copies -------------------------------------------------------------------------------------------------


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> World:
    """An index of two slices, each on n1 and n2, in CATCHUP."""
    create = "CREATE UNIQUE INDEX by_city ON people (city) WITH (slices=2, replicas=1)"
    monkeypatch.setattr(leader_world, "CREATE", create)
    world = backfilled(World(BuildLimits(verify=False)))
    world.common(130, 60)
    return world


def test_what_one_copy_has_judged_is_judged(copies: World) -> None:
    say(copies, copies.number, nodes=("n1",))
    say(copies, -1, nodes=("n2",))
    copies.common(130, 61)
    assert copies.index("by_city").state == "READY"


def test_keys_that_copies_tell_of_are_united(copies: World) -> None:
    found = [duplicate(city, copies.number) for city in ("Boston", "Oslo", "Rome")]
    say(copies, copies.number, found[0], found[1], count=3, nodes=("n1",))
    say(copies, -1, found[1], found[2], count=2, nodes=("n2",))
    copies.common(130, 61)
    index = copies.index("by_city")
    assert index.state == "FAILED"
    assert index.violated is not None
    assert (index.violated.count, index.violated.exact) == (3, True)
    assert sorted(one.key for one in index.violated.keys) == sorted(one.key for one in found)


def test_a_key_of_a_ready_index_is_told_once_whichever_copies_tell_of_it(copies: World) -> None:
    say(copies, copies.number)
    copies.common(130, 61)
    say(copies, copies.number, duplicate("Boston"))
    assert len(told(copies)) == 1
    index = copies.index("by_city")
    assert views.index(copies.leader, index, copies.now)["violations"] == 1
    copies.now += FORGET_MS + 1
    say(copies, copies.number, nodes=("n1",))  # the other copy knows of it still
    say(copies, copies.number, duplicate("Boston"), nodes=("n2",))
    copies.now += FORGET_MS + 1
    say(copies, copies.number, duplicate("Boston"))
    assert len(told(copies)) == 1
