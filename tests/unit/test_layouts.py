"""New layouts of an index, by the pure leader: from the statement until the old one is gone (R44, R45)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest

from coordinator.catalog.dictionary import NoSuchIndexError
from coordinator.catalog.registry import ConflictError
from coordinator.core.events import Reported, SourceSampled, TopicsDeleted
from coordinator.core.instructions import DeleteTopics, Instruction
from coordinator.http.metrics import collected
from coordinator.views import views
from coordinator.views.index_health import index_reasons
from keytide.catalog.records import IndexRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.cli import rendering as looks
from keytide.errors import CallerError
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import NodeHeartbeat
from tests.unit.copy_world import NODES, CopyWorld
from tests.unit.leader_world import facts

OLD = "by_city-7"


class LayoutWorld(CopyWorld):
    """Index by_city of two slices with two copies each, READY on three nodes, in one layout after the other.

    Attributes:
        leases: id of a layout -> leases that each of its copies says that it has.
        behind: nodes that have read nothing of the dictionary since.
    """

    def __init__(self, options: str = "") -> None:
        self.leases: dict[str, int] = {}
        self.behind: set[str] = set()
        super().__init__(options=options)
        self.ready()

    def beat(self) -> list[Instruction]:
        out: list[Instruction] = []
        for node in NODES:
            if node in self.silent:
                continue
            slices = [
                replace(self.status(node, number), index=index.id, leases=self.leases.get(index.id, 0))
                for index in self.leader.dictionary.catalog.indexes()
                for number, nodes in enumerate(index.placement)
                if node in nodes
            ]
            read = 0 if node in self.behind else 1 << 40
            speaks = self.speaks.get(node, SPOKEN)
            url = f"http://{node}"
            beat = NodeHeartbeat(node, url, 1, self.now, slices, 0, 1 << 40, read, protocol=speaks)
            out += self.handle(Reported(beat, self.now))
        return out

    def said(self, text: str) -> str:
        """What a statement answers."""
        self.sql(text)
        return self.notes[-1].text if self.notes else ""

    def layout(self, id_: str) -> IndexRecord | None:
        return self.leader.dictionary.catalog.index(id_)

    def new(self) -> IndexRecord:
        """The layout that is to take over the name, or has."""
        return next(one for one in self.leader.dictionary.catalog.indexes() if one.replaces)

    def built(self) -> IndexRecord:
        """The new layout's build has read everything, and all its copies hold what is published."""
        new = self.new()
        build = new.build or ""
        self.tick()
        self.prepared(build, facts((130, 60), at=self.now))
        self.activate(self.known().version, 130, 60)
        self.driver(build, "PASSED", 2, (130, 60))
        self.handle(SourceSampled(facts((130, 60)), build, self.now))
        self.beat()
        self.common(131, 61, nodes=NODES)
        return self.new()


def bearer(world: LayoutWorld) -> str:
    return world.leader.dictionary.index_named("by_city").id


def test_the_old_layout_answers_until_the_new_one_is_ready_and_then_goes() -> None:
    world = LayoutWorld()
    world.leases[OLD] = 1
    said = world.said("ALTER INDEX by_city SET (slices=3)")
    assert "until that is READY the old one answers" in said
    new = world.new()
    assert (new.slices, new.definition.replicas, new.state) == (3, 1, "DEFERRED")
    assert "slices=3" in new.definition.statement
    assert bearer(world) == OLD
    world.tick()
    assert bearer(world) == OLD
    assert world.built().state == "READY"
    world.live(1_000)
    assert bearer(world) == new.id
    old = world.layout(OLD)
    assert old is not None
    assert (old.state, old.replaced_by) == ("READY", new.id), "it is fed and served"
    world.live(60_000)
    assert (one := world.layout(OLD)) is not None
    assert one.state == "READY", "somebody reads from it"
    assert "who still reads it" in world.leader.layouts.waiting[OLD]
    world.leases[OLD] = 0
    world.live(1_000)
    gone = world.layout(OLD)
    assert gone is not None
    assert gone.state == "DROPPING"
    assert bearer(world) == new.id
    world.activate(world.known().version, 131, 61)
    world.progress(world.known().version, 131, 61)
    topics = [one for one in world.tick(200) if isinstance(one, DeleteTopics)]
    assert [one.topics for one in topics] == [("kt.mutations.by_city-7",)]
    world.handle(TopicsDeleted(OLD, world.now))
    assert world.layout(OLD) is None
    assert bearer(world) == new.id


def test_nobody_reads_older_states_than_before() -> None:
    """It is READY, and less is published of it than of the old one."""
    world = LayoutWorld()
    world.sql("ALTER INDEX by_city SET (slices=3)")
    stream = world.leader.stability.streams["people"]
    stream.published[OLD] += 100
    new = world.built()
    world.live(2_000)
    assert new.state == "READY"
    assert bearer(world) == OLD
    stream.published[OLD] = stream.published[new.id]
    world.live(1_000)
    assert bearer(world) == new.id


def test_a_node_that_has_not_read_of_it_holds_the_old_one_until_it_is_given_up() -> None:
    world = LayoutWorld()
    world.sql("ALTER INDEX by_city SET (slices=3)")
    world.built()
    world.behind = {"n2"}
    world.live(20_000)
    old = world.layout(OLD)
    assert old is not None
    assert old.replaced_by
    assert old.state == "READY"
    assert not old.replacement_read
    limits = world.leader.stability.limits
    world.live(limits.leave_after_ms, step=2 * limits.copy_check_ms)
    gone = world.layout(OLD)
    assert gone is None or gone.state == "DROPPING"
    assert any("s are over" in note.text for note in world.notes if note.kind == "layout-goes")


def test_the_word_that_nobody_reads_is_younger_than_that_everybody_knows() -> None:
    world = LayoutWorld()
    world.sql("ALTER INDEX by_city SET (slices=3)")
    world.built()
    world.behind = set(NODES)
    world.live(5_000)
    assert (old := world.layout(OLD)) is not None
    assert not old.replacement_read
    world.behind = set()
    world.leases[OLD] = 1
    world.live(2_000)
    assert (old := world.layout(OLD)) is not None
    assert old.replacement_read
    assert old.state == "READY"
    world.leases[OLD] = 0
    world.live(1_000)
    assert (gone := world.layout(OLD)) is not None
    assert gone.state == "DROPPING"


def test_a_build_that_is_cancelled_takes_its_layout_with_it() -> None:
    world = LayoutWorld()
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city) INCLUDE (name)")
    new = world.new()
    world.tick()
    world.take(world.leader.commands.cancel(new.build or "", world.now).instructions)
    world.live(1_000)
    assert bearer(world) == OLD
    gone = world.layout(new.id)
    assert gone is None or gone.state == "DROPPING"
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city) INCLUDE (name)")
    again = next(
        one for one in world.leader.dictionary.catalog.indexes() if one.state != "DROPPING" and one.replaces
    )
    assert again.id != new.id, "an id is never used again"


def test_a_layout_that_failed_is_shown_and_given_way_to_the_next() -> None:
    world = LayoutWorld()
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city) INCLUDE (name)")
    new = world.new()
    build = world.leader.builds.registry.get(new.build or "")
    world.take(world.leader.builds.registry.fail(build, "no room", world.now))
    world.live(1_000)
    assert bearer(world) == OLD
    assert (failed := world.layout(new.id)) is not None
    assert failed.state == "FAILED"
    world.sql("ALTER INDEX by_city SET (slices=4)")
    assert (failed := world.layout(new.id)) is None or failed.state == "DROPPING"
    assert bearer(world) == OLD


def test_one_that_failed_is_given_up_by_asking_for_what_there_is() -> None:
    world = LayoutWorld()
    world.sql("CREATE OR REPLACE INDEX by_city ON people (age)")
    new = world.new()
    build = world.leader.builds.registry.get(new.build or "")
    world.take(world.leader.builds.registry.fail(build, "no room", world.now))
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city)")
    assert world.leader.dictionary.catalog.pending_layouts("by_city") == []
    assert bearer(world) == OLD


def test_a_statement_that_is_given_again_while_it_is_carried_out_is_no_error() -> None:
    world = LayoutWorld()
    world.sql("CREATE OR REPLACE INDEX by_city ON people (age)")
    new = world.new()
    world.sql("CREATE OR REPLACE INDEX by_city ON people (age)")
    assert world.leader.dictionary.catalog.pending_layouts("by_city") == [new]


def test_the_table_that_an_index_began_with_is_that_of_its_new_layout() -> None:
    world = LayoutWorld()
    origin = TableOrigin("parquet", path="/tables/people", offsets={0: 100, 1: 50}, topic_id="t1")
    build = world.leader.builds.registry.get("b8")
    world.leader.builds.registry.put(replace(build, origin=origin))
    world.sql("ALTER INDEX by_city SET (slices=3)")
    assert world.leader.builds.registry.get(world.new().build or "").origin == origin


def test_what_the_source_has_forgotten_is_not_lost_in_silence() -> None:
    """Of a topic that deletes old records the index still has entries, but not of other fields."""
    world = LayoutWorld()
    build = world.leader.builds.registry.get("b8")
    world.leader.builds.registry.put(replace(build, earliest=Timestamp.of({0: 10, 1: 0}, "t1")))
    other = "CREATE OR REPLACE INDEX by_city ON people (age)"
    world.sql(other, facts((130, 60), earliest=(10, 0)))
    world.take(world.leader.commands.cancel(world.new().build or "", world.now).instructions)
    world.live(1_000)
    with pytest.raises(ConflictError, match="the first records of partitions 0 are gone") as caught:
        world.sql(other, facts((130, 60), earliest=(11, 0)))
    assert "DROP INDEX by_city" in caught.value.next_step
    assert "made anew" in world.said("ALTER INDEX by_city SET (slices=3)"), "it begins with the old slices"


def test_nor_what_it_forgets_while_the_new_layout_is_built() -> None:
    world = LayoutWorld()
    build = world.leader.builds.registry.get("b8")
    world.leader.builds.registry.put(replace(build, earliest=Timestamp.of({0: 0, 1: 0}, "t1")))
    world.sql("ALTER INDEX by_city SET (slices=3)")
    new = world.new()
    again = world.leader.builds.registry.get(new.build or "")
    world.leader.builds.registry.put(replace(again, earliest=Timestamp.of({0: 0, 1: 7}, "t1")))
    world.leader.dictionary.put(replace(new, state="READY"))
    stream = world.leader.stability.streams["people"]
    world.tick()
    stream.published[new.id] = stream.published[OLD]
    world.live(1_000)
    assert bearer(world) == OLD
    failed = world.layout(new.id)
    assert failed is not None
    assert (failed.state, "partitions 1" in failed.reason) == ("FAILED", True)


def planted(world: LayoutWorld, id_: str, **members: Any) -> IndexRecord:
    """One more layout of the index, in some state."""
    old = world.layout(OLD)
    assert old is not None
    index = replace(old, id=id_, replaced_by="", **members)
    world.leader.dictionary.put(index)
    world.tick()
    return index


def bearers(world: LayoutWorld) -> list[str]:
    catalog = world.leader.dictionary.catalog
    return [one.id for one in catalog.layouts("by_city") if catalog.bears_name(one)]


@pytest.mark.parametrize("fate", ["FAILED", "gone"])
def test_whatever_becomes_of_the_one_between_one_bears_the_name(fate: str) -> None:
    """A was replaced by B, which C is to replace; B falls back, and A has the name again."""
    world = LayoutWorld()
    world.leases[OLD] = 1
    second = planted(world, "by_city-99", replaces=OLD, took_over=True)
    old = world.layout(OLD)
    assert old is not None
    world.leader.dictionary.put(replace(old, replaced_by=second.id))
    build = world.leader.builds.registry.get("b8")
    third = planted(world, "by_city-100", replaces=second.id, state="BUILDING", build=build.id)
    assert bearers(world) == [second.id]
    world.leader.dictionary.put(replace(second, state="FAILED"))
    world.live(1_000)
    assert bearers(world) == [OLD]
    if fate == "gone":
        world.leader.dictionary.delete(f"index/{second.id}")
        world.live(1_000)
    assert bearers(world) == [OLD]
    world.leader.dictionary.put(replace(third, state="READY", replaces=OLD))
    world.tick()
    stream = world.leader.stability.streams["people"]
    stream.published[third.id] = stream.published[OLD]
    world.live(1_000)
    assert bearers(world) == [third.id]
    world.leases[OLD] = 0
    world.live(2_000)
    assert bearers(world) == [third.id]


def test_a_layout_between_two_others_goes_and_nothing_comes_back() -> None:
    """Somebody still reads the first one when the second, which was replaced, too, is gone."""
    world = LayoutWorld()
    world.leases[OLD] = 1
    world.sql("ALTER INDEX by_city SET (slices=3)")
    second = world.built()
    world.live(1_000)
    assert bearers(world) == [second.id]
    third = planted(world, "by_city-90", replaces=second.id, state="READY", took_over=True)
    second = world.layout(second.id) or second
    world.leader.dictionary.put(replace(second, replaced_by=third.id))
    world.live(3_000)
    assert (gone := world.layout(second.id)) is None or gone.state == "DROPPING"
    assert bearers(world) == [third.id]
    world.leader.dictionary.delete(f"index/{second.id}")
    world.live(3_000)
    assert bearers(world) == [third.id]
    assert (first := world.layout(OLD)) is not None
    assert first.replaced_by, "it is read still"


def test_what_is_older_than_the_layout_that_has_the_name_does_not_take_it() -> None:
    world = LayoutWorld()
    newest = planted(world, "by_city-99", replaces=OLD, took_over=True)
    old = world.layout(OLD)
    assert old is not None
    world.leader.dictionary.put(replace(old, replaced_by=newest.id))
    older = planted(world, "by_city-98", replaces=OLD, state="READY")
    world.live(1_000)
    assert (given_up := world.layout(older.id)) is None or given_up.state == "DROPPING"
    assert bearers(world) == [newest.id]


def test_where_a_failed_index_is_made_anew_while_an_older_layout_serves_that_answers() -> None:
    world = LayoutWorld()
    world.leases[OLD] = 1
    second = planted(world, "by_city-99", replaces=OLD, took_over=True, state="FAILED", build=None)
    old = world.layout(OLD)
    assert old is not None
    world.leader.dictionary.put(replace(old, replaced_by=second.id))
    world.sql("CREATE OR REPLACE INDEX by_city ON people (age)")
    world.live(1_000)
    assert bearers(world) == [OLD]
    (pending,) = (
        one for one in world.leader.dictionary.catalog.pending_layouts("by_city") if one.state != "FAILED"
    )
    assert pending.replaces == OLD


def test_what_a_statement_does_not_say_stays() -> None:
    world = LayoutWorld()
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city)")
    assert len(world.leader.dictionary.catalog.indexes()) == 1, "run again it changes nothing"
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city) WITH (replicas=2)")
    (index,) = world.leader.dictionary.catalog.indexes()
    assert (index.id, index.definition.replicas) == (OLD, 2), "copies are filled, no layout is made"
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city) PARTITION BY HASH(id)")
    new = world.new()
    assert (new.slices, new.definition.replicas) == (2, 2)


def test_an_index_that_answers_nothing_is_replaced_at_once() -> None:
    world = CopyWorld(options=", defer_build=true")
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city) INCLUDE (name)")
    (index,) = (one for one in world.leader.dictionary.catalog.indexes() if one.state != "DROPPING")
    assert index.replaces == ""
    assert index.build
    assert index.definition.include_names == ("name",)


def test_where_there_is_none_it_is_created() -> None:
    world = LayoutWorld()
    world.sql("CREATE OR REPLACE INDEX by_age ON people (age)")
    assert world.index("by_age").replaces == ""


def test_slices_of_an_index_that_is_not_built_are_only_written_down() -> None:
    world = CopyWorld(options=", defer_build=true")
    world.sql("ALTER INDEX by_city SET (slices=5, replicas=0)")
    (index,) = world.leader.dictionary.catalog.indexes()
    assert (index.slices, index.definition.replicas, index.state) == (5, 0, "DEFERRED")


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("ALTER INDEX by_city SET (slices=4)", ConflictError, "a new layout of index by_city is on its way"),
        (
            "ALTER INDEX by_city SET (replicas=0)",
            ConflictError,
            "a new layout of index by_city is on its way",
        ),
        ("CREATE OR REPLACE INDEX by_city ON people (age)", ConflictError, "is on its way"),
        ("CREATE INDEX by_city ON people (age)", ConflictError, "there is an index 'by_city' already"),
        ("CREATE OR REPLACE INDEX by_city ON others (age)", ConflictError, "cannot be replaced by one on"),
        (
            "CREATE OR REPLACE INDEX by_city ON people (age) WITH (defer_build=true)",
            CallerError,
            "cannot be deferred",
        ),
    ],
)
def test_what_is_in_the_way_is_told(text: str, kind: type[CallerError], what: str) -> None:
    world = LayoutWorld()
    world.sql("ALTER INDEX by_city SET (slices=3)")
    before = dict(world.written)
    with pytest.raises(kind, match=what) as caught:
        world.sql(text)
    assert caught.value.next_step
    assert world.written == before


def test_splits_say_how_many_slices_there_are() -> None:
    world = LayoutWorld()
    world.sql(
        "CREATE INDEX by_age ON people (age) PARTITION BY RANGE(age) SPLIT AT (10, 20) "
        "WITH (defer_build=true)"
    )
    with pytest.raises(CallerError, match="3 slices by its SPLIT AT"):
        world.sql("ALTER INDEX by_age SET (slices=4)")


def test_dropped_with_all_its_layouts() -> None:
    world = LayoutWorld()
    world.leases[OLD] = 1
    world.sql("ALTER INDEX by_city SET (slices=3)")
    world.built()
    world.live(1_000)
    world.sql("ALTER INDEX by_city SET (slices=4)")
    assert len(world.leader.dictionary.catalog.layouts("by_city")) == 3
    world.sql("DROP INDEX by_city")
    assert world.leader.dictionary.catalog.layouts("by_city") == []
    with pytest.raises(NoSuchIndexError):
        bearer(world)


def test_renamed_with_all_its_layouts() -> None:
    world = LayoutWorld()
    world.leases[OLD] = 1
    world.sql("ALTER INDEX by_city SET (slices=3)")
    new = world.built()
    world.sql("ALTER INDEX by_city RENAME TO by_town")
    world.live(1_000)
    assert world.leader.dictionary.index_named("by_town").id == new.id
    assert {one.id for one in world.leader.dictionary.catalog.layouts("by_town")} == {OLD, new.id}


def test_the_name_goes_back_while_the_new_layout_is_built_once_more() -> None:
    """The source was rolled back to before the end of its build."""
    world = LayoutWorld()
    world.leases[OLD] = 1
    world.sql("ALTER INDEX by_city SET (slices=3)")
    new = world.built()
    world.live(1_000)
    assert bearer(world) == new.id
    world.leader.dictionary.put(replace(world.new(), state="DEFERRED"))
    world.leader.builds.request([world.new()], 0, world.now)
    world.live(1_000)
    assert bearer(world) == OLD
    assert any(one.kind == "layout-back" for one in world.notes)
    world.leader.dictionary.put(replace(world.new(), state="READY"))
    world.live(1_000)
    assert bearer(world) == new.id


def test_a_new_leader_goes_on_with_it() -> None:
    world = LayoutWorld()
    world.leases[OLD] = 1
    world.sql("ALTER INDEX by_city SET (slices=3)")
    new = world.built()
    world.live(1_000)
    other, _ = world.restart()
    catalog = other.leader.dictionary.catalog
    assert catalog.index_by_name("by_city") == catalog.index(new.id)
    assert (old := catalog.index(OLD)) is not None
    assert old.replaced_by == new.id


def test_whoever_reads_half_of_it_sees_one_of_the_two() -> None:
    """By one record the name passes on, whichever of the two was read first."""
    world = LayoutWorld()
    world.sql("ALTER INDEX by_city SET (slices=3)")
    new = world.new()
    catalog = world.leader.dictionary.catalog.copy()
    old = catalog.index(OLD)
    assert old is not None
    catalog.put(f"index/{new.id}", replace(new, state="READY", took_over=True))
    assert (found := catalog.index_by_name("by_city")) is not None
    assert found.id == OLD
    catalog.put(f"index/{OLD}", replace(old, replaced_by=new.id))
    assert (found := catalog.index_by_name("by_city")) is not None
    assert found.id == new.id
    catalog.remove(f"index/{OLD}")
    assert (found := catalog.index_by_name("by_city")) is not None
    assert found.id == new.id
    assert catalog.shown_names()[new.id] == "by_city"


# --- what is shown ------------------------------------------------------------------------------------------


def test_each_layout_is_shown_where_one_looks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    world = LayoutWorld()
    world.leases[OLD] = 1
    world.sql("ALTER INDEX by_city SET (slices=3)")
    new = world.built()
    world.live(1_000)
    leader = world.leader
    assert [one.id for one in leader.dictionary.catalog.listed()] == [new.id]
    document = views.index(leader, new, world.now)
    (other,) = document["layouts"]
    assert (other["id"], other["replaced"], other["state"], other["slices"]) == (OLD, True, "READY", 2)
    assert other["waits_for"].startswith("who still reads it")
    looks.show_index(document)
    told = " ".join(capsys.readouterr().out.split())
    assert "Other layouts" in told
    assert OLD in told
    names = {one["name"] for one in views.topology(leader, world.now)["indexes"]}
    assert names == {"by_city", OLD}


def test_metrics_have_a_name_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    world = LayoutWorld()
    world.leases[OLD] = 1
    world.sql("ALTER INDEX by_city SET (slices=3)")
    world.built()
    world.live(1_000)
    lines = generate_latest(collected(world.leader, world.now)).decode().splitlines()
    samples = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    assert any(f'index="{OLD}"' in sample for sample in samples)


def test_health_tells_of_a_layout_that_failed_and_not_of_one_that_goes() -> None:
    world = LayoutWorld()
    world.sql("ALTER INDEX by_city SET (slices=3)")
    build = world.leader.builds.registry.get(world.new().build or "")
    world.take(world.leader.builds.registry.fail(build, "no room", world.now))
    (reason,) = index_reasons(world.leader, world.new())
    assert (reason.status, "no room" in reason.reason) == ("degraded", True)
    old = world.layout(OLD)
    assert old is not None
    assert list(index_reasons(world.leader, replace(old, replaced_by="by_city-99", placement=[]))) == []
