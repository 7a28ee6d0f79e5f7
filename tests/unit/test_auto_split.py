"""More slices by themselves: when the leader carries out what helps a hot slice, and when it must not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import WrittenTold
from coordinator.core.instructions import AskWritten, Instruction
from coordinator.core.slice_loads import Hot
from coordinator.statements.auto_split import AutoSplitLimits, share_of_load, what_parts
from coordinator.statements.partitions import splits_of
from coordinator.views import views
from coordinator.views.index_health import index_reasons
from keytide.catalog.auto_split import AutoSplit
from keytide.catalog.partitioning import readable_splits
from keytide.catalog.records import (
    BuildRecord,
    IndexRecord,
    RollbackRecord,
    decode_record,
    encode_record,
)
from keytide.collation import encode_part
from keytide.collation.layout import Value
from keytide.definition.statement import AlterIndex, CreateIndex, SplitPartition, parse_statement
from keytide.model.timestamp import Timestamp
from keytide.wire.index_lists import WrittenSlice, WrittenValue
from keytide.wire.messages import SliceStatus
from tests.unit.copies_world import INDEX, Copy
from tests.unit.leader_world import facts
from tests.unit.test_slice_loads import LOAD, PATIENCE, LoadWorld

LIMITS = AutoSplitLimits(look_ms=LOAD.look_ms, after_ms=8_000, pause_ms=60_000, slices=12)
LONG = PATIENCE + LIMITS.after_ms + 2 * LIMITS.look_ms
"""It is hot for long enough by then."""
HASH = "CREATE INDEX by_city ON people (city) WITH (slices=4, auto_split=true)"
RANGE = "CREATE INDEX by_city ON people (age) PARTITION BY RANGE(age) WITH (slices=4, auto_split=true)"


def written(
    number: int, values: Sequence[Value] = range(40), heavy: Value = None, known: bool = True
) -> WrittenSlice:
    """What a node tells of a slice: these values, as often each; or one that has most."""
    most = [WrittenValue(encode_part(heavy), 80, 82)] if heavy is not None else []
    codes = tuple(map(encode_part, values))
    # (Neither rises: both windows have the same.)
    return WrittenSlice(number, known, 100.0, most, codes, codes[::-1])


class SplitWorld(LoadWorld):
    """Index by_city with four slices, which nodes tell of.

    Attributes:
        id: of the layout that nodes have.
        values: what is written to the slices, as nodes tell; None: they do not tell.
        asked: slices of which nodes were asked.
    """

    auto_split_limits = LIMITS

    def __init__(self, statement: str = HASH, splits: Sequence[Value] = ()) -> None:
        self.id = INDEX
        self.values: WrittenSlice | None = written(2)
        self.asked: list[int] = []
        super().__init__([["n1"], ["n2"], ["n1"], ["n2"]])
        parsed = parse_statement(statement)
        assert isinstance(parsed, CreateIndex)
        encoded = tuple(map(encode_part, splits))
        old = self.leader.dictionary.catalog.index(INDEX)
        assert old is not None
        self.leader.dictionary.put(replace(old, definition=parsed.definition, splits=encoded))
        self.writes = [10, 10, 500, 10]

    def status(self, number: int, copy: Copy) -> SliceStatus:
        return replace(super().status(number, copy), index=self.id)

    def take(self, instructions: list[Instruction]) -> list[Instruction]:
        rest: list[Instruction] = []
        for one in super().take(instructions):
            if isinstance(one, AskWritten):
                self.asked.append(one.slice)
                told = WrittenTold(one.index, one.slice, self.tell(one.slice), self.now)
                rest += self.take(self.leader.handle(told))
            else:
                rest.append(one)
        return rest

    def tell(self, number: int) -> WrittenSlice | None:
        """What the node of a slice tells of it."""
        return replace(self.values, slice=number) if self.values is not None else None

    def bearer(self) -> IndexRecord:
        return self.leader.dictionary.index_named("by_city")

    def pending(self) -> list[IndexRecord]:
        return self.leader.dictionary.catalog.pending_layouts("by_city")

    def does(self) -> str | None:
        """What is shown."""
        told: str | None = views.index(self.leader, self.bearer(), self.now)["auto_split_does"]
        return told

    def begun(self) -> IndexRecord:
        """The only new layout."""
        (new,) = self.pending()
        return new

    def take_over(self, writes: Sequence[int]) -> IndexRecord:
        """The new layout is built and has the name, the old one is gone, and this is what its slices get."""
        new, old = self.begun(), self.bearer()
        dictionary = self.leader.dictionary
        registry = self.leader.builds.registry
        assert len(writes) == new.slices
        registry.put(replace(registry.get(new.build or ""), state="READY", finished_at=self.now))
        dictionary.delete(f"index/{old.id}")
        placement = [[("n1", "n2", "n3")[number % 3]] for number in range(new.slices)]
        new = replace(
            new,
            state="READY",
            version=1,
            placement=placement,
            took_over=True,
            splits=new.definition.encoded_splits,
        )
        dictionary.put(new)
        self.id, self.writes, self.reads = new.id, list(writes), [0] * new.slices
        for node in self.nodes.values():
            node.copies = {n: Copy(writes=0) for n, names in enumerate(placement) if node.name in names}
        self.tick()
        return new


# --- it is done once ----------------------------------------------------------------------------------------


def test_it_is_off_by_default() -> None:
    world = SplitWorld(HASH.replace(", auto_split=true", ""))
    world.go(3 * LONG)
    assert world.hot == [(2, "writes")]
    assert (world.asked, world.pending(), world.does()) == ([], [], None)


def test_a_slice_that_is_hot_for_long_enough_gets_more_slices_once() -> None:
    world = SplitWorld()
    world.go(PATIENCE)
    assert world.hot == [(2, "writes")]
    assert world.does() == "waits until a slice has been hot for 8 s (setting coordinator.auto_split_after_s)"
    assert world.asked == []
    world.go(LONG)
    assert world.asked == [2]
    new = world.begun()
    assert (new.slices, new.replaces, new.definition.splits_itself) == (8, INDEX, True)
    (text,) = world.told("auto-split")
    assert text == (
        "slice 2 of by_city has been hot for 8 s or longer (500 entries/s are written to it, 10 to others of "
        f"its index): more slices by auto_split; index by_city is made anew by build {new.build}; until that "
        "is READY the old one answers"
    )
    world.go(3 * LONG)
    assert (world.asked, world.begun().id) == ([2], new.id)
    assert world.does() == "waits until it has one layout again"
    late = WrittenTold(INDEX, 2, written(2), world.now)
    assert world.handle(late) == []
    assert world.begun().id == new.id


def test_by_range_the_slice_is_split_where_half_of_it_lies() -> None:
    world = SplitWorld(RANGE, (10, 20, 30))
    world.values = written(2, [20 + one / 10 for one in range(100)])
    world.go(LONG)
    new = world.begun()
    assert new.definition.statement == (
        "CREATE INDEX by_city ON people (age) PARTITION BY RANGE(age) SPLIT AT (10, 20, 25, 30) "
        "WITH (slices=5, auto_split=true)"
    )
    assert "partition 2 is split by auto_split" in world.told("auto-split")[0]
    assert isinstance(new.auto_split, AutoSplit)
    assert new.auto_split == world.bearer().auto_split
    assert (new.auto_split.layout, new.auto_split.slices) == (new.id, (2, 3))


def test_a_burst_is_not_waited_for() -> None:
    world = SplitWorld()
    world.go(PATIENCE)
    world.writes[2] = 10
    world.go(LONG)
    assert (world.asked, world.pending()) == ([], [])


# --- it is not done -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (written(2, heavy="Rome"), "slice 2: one value has most of what is written to it"),
        (written(2, known=False), "slice 2: entries do not say by which value they came here"),
        (written(2, range(5)), "slice 2: too little is written to it to say"),
        (None, "slice 2: its node does not say what is written to it"),
    ],
)
def test_where_one_value_may_have_most_of_the_load_nothing_is_done(
    told: WrittenSlice | None, why: str
) -> None:
    world = SplitWorld()
    world.values = told
    world.go(2 * LONG)
    assert (world.does() or "").startswith(why)
    assert (world.pending(), world.told("auto-split")) == ([], [])
    (reason,) = [one for one in index_reasons(world.leader, world.bearer()) if "is hot" in one.reason]
    assert f"; auto_split: {why}" in reason.next_step


def test_what_people_must_weigh_is_left_to_them() -> None:
    world = SplitWorld(RANGE, (10, 20, 30))
    codes = tuple(map(encode_part, range(200)))
    world.values = WrittenSlice(3, True, 100.0, [], codes[:100], codes[100:])
    world.writes = [10, 10, 10, 500]
    world.go(2 * LONG)
    assert world.pending() == []
    assert (world.does() or "").startswith("slice 3: what helps is for you to decide: age rises")


def test_reads_are_shared_by_copies_and_not_parted() -> None:
    world = SplitWorld()
    world.writes, world.reads = [10] * 4, [10, 10, 900, 10]
    world.go(2 * LONG)
    assert world.hot == [(2, "reads")]
    assert (world.asked, world.pending(), world.does()) == ([], [], None)


def test_an_index_that_is_as_large_as_it_gets_stays() -> None:
    world = SplitWorld(HASH.replace("slices=4", "slices=12"))
    index = world.bearer()
    placement = [[("n1", "n2", "n3")[number % 3]] for number in range(12)]
    world.leader.dictionary.put(replace(index, placement=placement))
    world.tick()
    for node in world.nodes.values():
        node.copies = {n: Copy(writes=0) for n, names in enumerate(placement) if node.name in names}
    world.writes, world.reads = [500] + [10] * 11, [0] * 12
    world.go(2 * LONG)
    assert world.hot == [(0, "writes")]
    assert (world.asked, world.pending()) == ([], [])
    assert (world.does() or "").startswith("does nothing: it has 12 slices, and 12 are made by themselves")


def test_the_last_time_does_not_go_past_the_bound() -> None:
    index = SplitWorld().bearer()
    found = what_parts(index, Hot(2, "writes", 500, 10), written(2), 6)
    assert found == AlterIndex("by_city", slices=6)


def test_while_a_layout_is_on_its_way_or_has_failed_nothing_is_done() -> None:
    world = SplitWorld()
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city, age)")
    by_hand = world.begun()
    world.go(2 * LONG)
    assert (world.asked, world.begun().id) == ([], by_hand.id)
    build = world.leader.builds.registry.get(by_hand.build or "")
    world.take(world.leader.builds.registry.fail(build, "no room", world.now))
    world.go(2 * LONG)
    assert world.begun().state == "FAILED"
    assert world.asked == []
    assert "which has FAILED" in (world.does() or "")


def test_while_a_keyspace_is_examined_and_for_some_time_after_a_rollback_nothing_is_done() -> None:
    world = SplitWorld()
    world.go(PATIENCE)
    halted = world.leader.builds.registry.halted
    halted.add("people")
    world.go(2 * LONG)
    assert world.asked == []
    halted.discard("people")
    world.go(LIMITS.after_ms - LIMITS.look_ms)
    assert world.asked == [], "it is counted anew"
    world.leader.dictionary.put(
        RollbackRecord("people", 1, -1, Timestamp(), "t1", "truncated", world.now, detail="")
    )
    world.go(LIMITS.after_ms - LIMITS.look_ms)
    assert world.asked == []
    world.go(3 * LIMITS.look_ms)
    assert world.asked == [2]


@pytest.mark.parametrize("seeds", [True, False])
def test_what_the_source_has_forgotten_is_not_lost_by_it(seeds: bool) -> None:
    """New slices begin with the old ones; where they may not, nothing is done, and that is told."""
    world = SplitWorld()
    world.leader.builds._limits = BuildLimits(seed_layouts=seeds)
    earliest = Timestamp.of({0: 0, 1: 0})
    build = BuildRecord(
        "b0", "people", [INDEX], "READY", Timestamp(), 0, earliest=replace(earliest, topic_id="t1")
    )
    world.leader.dictionary.put(build)
    world.leader.sources["people"] = facts((50, 60), earliest=(7, 0))
    world.go(LONG)
    assert bool(world.pending()) == seeds
    assert seeds or "the source no longer holds all that index by_city was built from" in (world.does() or "")


# --- again --------------------------------------------------------------------------------------------------


def test_one_that_is_cancelled_is_not_begun_anew_before_the_pause_is_over() -> None:
    world = SplitWorld()
    world.go(LONG)
    new = world.begun()
    world.take(world.leader.commands.cancel(new.build or "", world.now).instructions)
    world.go(LIMITS.pause_ms - LONG)
    assert (world.asked, world.pending()) == ([2], [])
    assert world.does() == "waits until 60 s after the last time (setting coordinator.auto_split_pause_s)"
    world.go(LONG)
    assert world.asked == [2, 2]
    assert world.begun().id != new.id


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_next_leader_does_not_do_it_twice(cancelled: bool) -> None:
    world = SplitWorld()
    world.go(LONG)
    new = world.begun()
    if cancelled:
        world.take(world.leader.commands.cancel(new.build or "", world.now).instructions)
        world.tick()
    world.succeed()
    world.go(LIMITS.pause_ms - 2 * LONG if cancelled else 2 * LONG)
    assert world.asked == [2]
    assert [one.id for one in world.pending()] == ([] if cancelled else [new.id])


def test_where_it_has_not_helped_it_is_not_done_again() -> None:
    world = SplitWorld()
    world.go(LONG)
    world.take_over([10, 10, 10, 10, 10, 10, 480, 10])
    world.go(LIMITS.pause_ms + 2 * LONG)
    assert world.hot == []  # (of the layout that is gone)
    assert world.pending() == []
    assert "had 94% before it was parted the last time: that does not help" in (world.does() or "")
    world.sql("ALTER INDEX by_city SET (auto_split=false)")
    world.sql("ALTER INDEX by_city SET (auto_split=true)")
    world.go(LONG)
    assert world.begun().slices == 12, "who says it anew has it tried anew"


class EvenWorld(SplitWorld):
    """4,000 entries/s with values from 20 to 30, evenly, and little elsewhere: each layout gets what falls to
    its slices."""

    def __init__(self) -> None:
        super().__init__(RANGE, (10, 20, 30))
        self.fall()

    def stretches(self) -> list[tuple[float, float]]:
        """What each slice has of 20 to 30."""
        splits = (-1e9, *map(float, readable_splits(splits_of(self.bearer()))), 1e9)  # type: ignore[arg-type]
        return [(max(20.0, low), min(30.0, high)) for low, high in pairwise(splits)]

    def fall(self) -> list[int]:
        """Each slice gets what falls to it."""
        self.writes = [1 + round(400 * max(0.0, high - low)) for low, high in self.stretches()]
        return self.writes

    def tell(self, number: int) -> WrittenSlice | None:
        low, high = self.stretches()[number]
        return written(number, [low + (high - low) * one / 100 for one in range(1, 100)])


def test_where_it_has_helped_it_goes_on_until_no_slice_is_hot_and_stays() -> None:
    world = EvenWorld()
    shares = [max(world.writes) / sum(world.writes)]
    for _ in range(LIMITS.slices):
        world.go(LIMITS.pause_ms + LONG)
        if not world.pending():
            break
        world.take_over([0] * world.begun().slices)
        world.fall()
        shares.append(max(world.writes) / sum(world.writes))
    assert shares == sorted(shares, reverse=True)
    assert world.hot == []
    assert shares[-1] < 0.3
    assert 4 < world.bearer().slices < LIMITS.slices
    done = len(world.told("auto-split"))
    assert done == world.bearer().slices - 4
    world.go(5 * LIMITS.pause_ms)
    assert (world.pending(), len(world.told("auto-split"))) == ([], done)
    world.writes = [1] * len(world.writes)
    world.go(5 * LIMITS.pause_ms)
    assert (world.pending(), len(world.told("auto-split"))) == ([], done), "nothing is merged by itself"


def test_it_ends_at_the_bound_whatever_happens() -> None:
    """Another slice is hot after each time."""
    world = SplitWorld()
    seen = [4]
    for _ in range(4):
        world.go(LIMITS.pause_ms + LONG)
        if not world.pending():
            break
        # (By hash what was hot may be in any slice; half of its share is left.)
        seen.append(world.begun().slices)
        share_left = 400 // len(seen)
        world.take_over([share_left] + [10 + len(seen) * 2] * (seen[-1] - 1))
    assert seen == [4, 8, 12]
    assert (world.does() or "").startswith("does nothing: it has 12 slices")


@pytest.mark.parametrize(
    ("hot", "helps"),
    [
        (Hot(2, "writes", 450, 10), False),
        (Hot(3, "writes", 450, 10), False),
        (Hot(3, "writes", 100, 30), True),
        (Hot(0, "writes", 450, 10), True),  # another one than was parted
        (Hot(2, "entries", 450, 10), True),
    ],
)
def test_whether_it_has_helped_is_seen_where_the_load_has_gone(hot: Hot, helps: bool) -> None:
    index = SplitWorld(RANGE, (10, 20, 30)).bearer()
    last = AutoSplit(0, index.id, (2, 3), "writes", 0.9)
    told = written(hot.slice, [10 * hot.slice + one / 10 for one in range(1, 100)])
    found = what_parts(replace(index, auto_split=last), hot, told, 12)
    assert isinstance(found, AlterIndex | SplitPartition) == helps
    elsewhere = replace(last, layout="by_city-99")
    assert not isinstance(what_parts(replace(index, auto_split=elsewhere), hot, told, 12), str)


def test_a_share_is_of_the_whole_index() -> None:
    index = SplitWorld().bearer()
    assert share_of_load(index, Hot(0, "writes", 300, 100)) == 0.5
    assert share_of_load(index, Hot(0, "writes", 0, 0)) == 0.0


# --- the option ---------------------------------------------------------------------------------------------


def test_it_is_turned_on_and_off_whatever_the_index_does() -> None:
    world = SplitWorld(HASH.replace(", auto_split=true", ""))
    world.sql("ALTER INDEX by_city SET (slices=5)")
    new = world.begun()
    world.sql("ALTER INDEX by_city SET (auto_split=true)")
    assert world.notes[-1].text == "index by_city gets more slices by itself from now on, where one is hot"
    assert all(one.definition.splits_itself for one in world.leader.dictionary.catalog.layouts("by_city"))
    assert "auto_split=true" in world.begun().definition.statement
    before = dict(world.written)
    world.sql("ALTER INDEX by_city SET (auto_split=on)")
    assert world.written == before
    world.sql("ALTER INDEX by_city SET (auto_split=false)")
    assert (world.begun().id, world.begun().definition.splits_itself) == (new.id, False)
    assert "auto_split" not in world.bearer().definition.statement
    document = views.index(world.leader, world.bearer(), world.now)
    assert (document["auto_split"], document["auto_split_at"], document["auto_split_does"]) == (
        False,
        None,
        None,
    )


def test_with_copies_in_one_statement_and_without_a_new_layout() -> None:
    world = SplitWorld(HASH.replace(", auto_split=true", ""))
    world.sql("ALTER INDEX by_city SET (replicas=1, auto_split=true)")
    index = world.bearer()
    assert (index.id, index.definition.replicas, index.definition.splits_itself) == (INDEX, 1, True)
    world.sql("CREATE OR REPLACE INDEX by_city ON people (city) WITH (auto_split=false)")
    index = world.bearer()
    assert (index.id, index.definition.replicas, index.definition.splits_itself) == (INDEX, 1, False)
    assert world.pending() == []


def test_the_statement_that_is_run_at_every_deployment_undoes_nothing() -> None:
    text = "CREATE OR REPLACE INDEX by_city ON people (age) PARTITION BY RANGE(age) WITH (auto_split=true)"
    world = SplitWorld(RANGE, (10, 20, 30))
    world.values = written(2, [20 + one / 10 for one in range(100)])
    world.go(LONG)
    new = world.begun()
    done = world.leader.commands.execute(parse_statement(text), facts(), world.now)
    assert done.message == (
        f"index by_city has this definition, and gets 5 slices by itself, by build {new.build}; nothing is "
        "done"
    )
    world.take_over([10] * 5)
    before = dict(world.written)
    world.sql(text)
    assert world.written == before
    world.sql(text.replace("WITH (auto_split=true)", "WITH (slices=4)"))
    assert "SPLIT AT" not in world.begun().definition.statement, "who says slices has them"


def test_records_without_it_are_what_they_were() -> None:
    world = SplitWorld(HASH.replace(", auto_split=true", ""))
    index = world.bearer()
    key, text = f"index/{index.id}", encode_record(index)
    assert b"auto_split" not in text
    assert decode_record(key, text) == index
    assert index.auto_split is UNSET
    on = SplitWorld().bearer()
    assert b'"auto_split":true' in encode_record(on)
    assert decode_record(key, encode_record(on)) == on
