"""The splits of RANGE indexes: found before a build begins, whatever dies; even shares from any sample."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.builds.registry import BuildLimits
from coordinator.core.drivers import EXIT_GRACE_MS, NEVER_AGAIN, NO_ROOM, NO_ROOM_PAUSE_MS
from coordinator.core.events import DriverExited, Reported, SourceAway, SourceSampled
from coordinator.core.instructions import Instruction, Note, PrepareBuild, StartDriver, StopDriver
from coordinator.views import views
from keytide.catalog.partitioning import Partitioning, readable_splits
from keytide.collation import encode_part
from keytide.definition.index import MAX_SPLIT_BYTES
from keytide.definition.statement import parse_statement
from keytide.model.timestamp import TABLE_PARTITION
from keytide.wire.columns import hashes_of
from keytide.wire.messages import BuildSampled, decode, encode
from projector.core.projection import KeyspacePlan, SourceBatch
from router.core import slices_of
from streaming.core.quantiles import KEY_BYTES, separator, splits_of
from streaming.sample.sampling import SampleResult, _encode, sampled, spread
from streaming.spark.checkpoint import Extent
from tests.statements import encode_splits
from tests.unit.leader_world import World, facts
from tests.unit.test_range import definition_of

CREATE = "CREATE INDEX by_age ON people (age) PARTITION BY RANGE(age) WITH (slices=3)"
GIVEN = "CREATE INDEX by_age ON people (age) PARTITION BY RANGE(age) SPLIT AT (10, 20)"
SPLITS = encode_splits([18, 65])


def waiting() -> World:
    """A leader that has ordered a sample for build b8."""
    world = World()
    world.sql(CREATE)
    world.node("n1", "n2")
    assert world.tick() == [StartDriver("b8", 0, "sample")]
    assert (world.build("b8").state, world.build("b8").phase) == ("QUEUED", "sampling")
    return world


def reports(
    world: World, splits: Sequence[bytes] = SPLITS, entries: int = 50, wanted: str | None = None
) -> list[Instruction]:
    id_ = world.index("by_age").id
    wanted = world.index("by_age").definition.wanted_splits if wanted is None else wanted
    message = BuildSampled("b8", "r1", {id_: list(splits)}, 60, {id_: entries}, world.now, {id_: wanted})
    return world.handle(Reported(message, world.now))


def ends(world: World, status: int = 0, tail: str = "") -> list[Instruction]:
    return world.handle(DriverExited("b8", status, tail, world.now, task="sample"))


# --- before a build begins --------------------------------------------------------------------------------


@pytest.mark.parametrize("report_first", [True, False])
def test_splits_are_in_the_record_with_the_version_that_makes_projectors_emit(report_first: bool) -> None:
    world = waiting()
    assert world.tick() == [], "one sample at a time"
    for step in (reports, ends) if report_first else (ends, reports):
        assert world.index("by_age").splits == ()
        assert world.tick() == [], "the driver is gone before the next one comes"
        assert step(world) == []
    (prepare,) = world.tick()
    assert isinstance(prepare, PrepareBuild)
    assert world.prepared("b8") == [StartDriver("b8")]
    index = world.index("by_age")
    assert (index.state, index.version, index.splits) == ("BUILDING", 1, SPLITS)
    assert world.build("b8").state == "BACKFILL"
    reports(world, encode_splits([1, 2]))
    assert world.index("by_age").splits == SPLITS, "for ever"


def test_given_splits_need_no_sample() -> None:
    world = World()
    world.sql(GIVEN)
    world.node("n1")
    (prepare,) = world.tick()
    assert isinstance(prepare, PrepareBuild)
    world.prepared("b8")
    assert world.index("by_age").splits == encode_splits([10, 20])


def test_a_driver_that_dies_is_started_again_until_it_died_too_often() -> None:
    world = waiting()
    delays = []
    while world.build("b8").state == "QUEUED":
        delays += [one.delay_ms for one in ends(world, 1, "Kafka was away") if isinstance(one, StartDriver)]
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000][: BuildLimits().restarts]
    assert "Kafka was away" in world.build("b8").error
    assert "builds/b8/driver.log" in world.build("b8").error
    assert world.index("by_age").state == "FAILED"


def test_a_sample_waits_for_kafka_and_its_build_does_not_fail() -> None:
    world = waiting()
    world.handle(SourceAway("people", "no broker answers", world.now, world.now))
    world.now += 2 * BuildLimits().away_ms
    for _ in range(3 * BuildLimits().restarts):
        world.node("n1", "n2")
        ends(world, 1, "Kafka was away")
        assert world.tick() == []
    build = world.leader.builds.registry.get("b8")
    shown = views.build(world.leader, build, world.now)
    assert (build.state, "Kafka does not answer" in shown["waiting_for"]) == ("QUEUED", True)
    world.handle(SourceSampled(facts(), "", world.now))
    assert world.tick() == [StartDriver("b8", 0, "sample")]


def test_a_driver_that_knows_that_it_cannot_work_fails_the_build() -> None:
    world = waiting()
    ends(world, NEVER_AGAIN, "topic people does not exist")
    assert world.build("b8").state == "FAILED"
    assert "topic people does not exist" in world.build("b8").error
    assert world.build("b8").error.endswith("build again")


def test_a_driver_without_room_waits_for_it() -> None:
    world = waiting()
    for _ in range(20):
        assert ends(world, NO_ROOM, "full") == [StartDriver("b8", NO_ROOM_PAUSE_MS, "sample")]


def test_a_driver_that_ends_without_a_word_is_started_again() -> None:
    world = waiting()
    ends(world)
    assert world.tick(EXIT_GRACE_MS) == []
    assert world.tick(1_000) == [StartDriver("b8", 1_000, "sample")]


def test_a_cancelled_build_stops_its_sample() -> None:
    world = waiting()
    out = world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert StopDriver("b8") in out
    assert reports(world) == []
    assert world.index("by_age").splits == ()


def test_what_a_pause_stops_is_sampled_again() -> None:
    world = waiting()
    assert StopDriver("b8") in world.take(world.leader.commands.pause("b8", world.now).instructions)
    assert world.tick() == []
    world.take(world.leader.commands.resume("b8", world.now).instructions)
    assert world.tick() == [StartDriver("b8", 0, "sample")]


def test_a_pause_that_is_over_at_once_does_not_forget_the_sample() -> None:
    world = waiting()
    world.take(world.leader.commands.pause("b8", world.now).instructions)
    assert world.build("b8").phase == "", "nothing is sampled while it pauses"
    world.take(world.leader.commands.resume("b8", world.now).instructions)
    assert world.tick() == [StartDriver("b8", 0, "sample")], "its driver was stopped"


def test_the_next_leader_samples_again() -> None:
    world = waiting()
    catalog = world.leader.dictionary.catalog.copy()
    other = World(catalog=catalog)
    other.written = dict(world.written)
    other.node("n1", "n2")
    assert other.tick() == [StartDriver("b8", 0, "sample")]


def test_a_sample_that_has_nothing_is_told() -> None:
    world = waiting()
    reports(world, encode_splits([None, None]), entries=0)
    (note,) = [one for one in world.notes if one.kind == "range-without-sample"]
    assert note.subject == "by_age"
    assert "SPLIT AT" in note.text


# --- of an index that is altered meanwhile ----------------------------------------------------------------


def altered(world: World, rest: str) -> list[Instruction]:
    done = world.leader.commands.execute(parse_statement(f"ALTER INDEX by_age {rest}"), None, world.now)
    return [one for one in world.take(done.instructions) if not isinstance(one, Note)]


def paused(world: World) -> None:
    world.take(world.leader.commands.pause("b8", world.now).instructions)


def resumed(world: World) -> None:
    world.take(world.leader.commands.resume("b8", world.now).instructions)


def sampled_again(world: World, splits: Sequence[bytes], wanted: str | None = None) -> None:
    """Its build begins with what another sample finds."""
    assert world.tick() == [StartDriver("b8", 0, "sample")]
    reports(world, splits, wanted=wanted)
    ends(world)
    (prepare,) = world.tick()
    assert isinstance(prepare, PrepareBuild)
    world.prepared("b8")
    index = world.index("by_age")
    assert (index.state, index.splits) == ("BUILDING", tuple(splits))


ALTERATIONS = {
    "SET (slices=2)": encode_splits([40]),
    "SET (slices=6)": encode_splits([1, 2, 3, 4, 5]),
    "PARTITION BY RANGE(city)": encode_splits(["d", "m"]),
    "PARTITION BY RANGE(age) SPLIT AT (7)": None,
    "PARTITION BY HASH(age)": None,
    "PARTITION BY HASH(age) SUBPARTITION BY HASH(id) SLICES (2, 1)": None,
    "PARTITION BY RANGE(age) SUBPARTITION BY HASH(id) SLICES 2 SET (partitions=2)": encode_splits([41]),
}


@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize(("rest", "splits"), ALTERATIONS.items())
def test_what_was_found_for_another_definition_does_not_count(
    rest: str, splits: tuple[bytes, ...] | None, pauses: bool
) -> None:
    world = waiting()
    reports(world)
    ends(world)
    if pauses:
        paused(world)
    altered(world, rest)
    if pauses:
        resumed(world)
    if splits is not None:
        sampled_again(world, splits)
    else:
        (prepare,) = world.tick()
        assert isinstance(prepare, PrepareBuild)
        world.prepared("b8")
    index = world.index("by_age")
    assert index.splits == (splits or index.definition.encoded_splits)
    rule = Partitioning.of(index.definition, index.splits)
    keys, ids = [encode_part(age) for age in range(90)], [b"d%d" % age for age in range(90)]
    routed = slices_of(keys, rule, hashes_of(ids, len(ids))).tolist()
    assert routed == [rule.slice_of(key, id_) for key, id_ in zip(keys, ids, strict=True)]
    assert set(routed) <= set(range(index.slices))


@pytest.mark.parametrize("order", ["reports, ends", "ends, reports", "dies"])
def test_a_sample_for_another_definition_is_begun_anew(order: str) -> None:
    world = waiting()
    asked = world.index("by_age").definition.wanted_splits
    altered(world, "PARTITION BY RANGE(city)")
    for what in order.split(", "):
        if what == "reports":
            reports(world, wanted=asked)
        else:
            ends(world, int(what == "dies"))
    sampled_again(world, encode_splits(["d", "m"]), world.index("by_age").definition.wanted_splits)


def test_the_driver_of_a_sample_for_another_definition_is_stopped_and_what_it_says_late_does_not_count() -> (
    None
):
    world = waiting()
    asked = world.index("by_age").definition.wanted_splits
    altered(world, "PARTITION BY RANGE(city)")
    assert world.tick() == [StopDriver("b8")]
    assert world.tick() == [StartDriver("b8", 0, "sample")]
    reports(world, wanted=asked)
    ends(world)
    assert world.tick() == []
    reports(world, encode_splits(["d", "m"]), wanted=world.index("by_age").definition.wanted_splits)
    assert isinstance(world.tick()[0], PrepareBuild)
    world.prepared("b8")
    assert world.index("by_age").splits == encode_splits(["d", "m"])


def test_a_sample_for_an_index_that_is_to_be_parted_by_hash_is_over() -> None:
    world = waiting()
    altered(world, "PARTITION BY HASH(age)")
    assert world.tick() == [StopDriver("b8")]
    assert isinstance(world.tick()[0], PrepareBuild)
    world.prepared("b8")
    reports(world)
    assert world.index("by_age").splits == ()


def test_an_index_that_was_altered_back_has_its_splits() -> None:
    world = waiting()
    reports(world)
    ends(world)
    altered(world, "SET (slices=2)")
    altered(world, "SET (slices=3)")
    assert isinstance(world.tick()[0], PrepareBuild)
    world.prepared("b8")
    assert world.index("by_age").splits == SPLITS


def test_what_a_driver_of_the_release_before_reports_is_taken_for_what_was_asked() -> None:
    """It does not say which splits it has found."""
    known = encode(BuildSampled("b8", "r1", {"by_age-7": list(SPLITS)}, 60, {"by_age-7": 50}, 0))
    message = decode(known[:1] + msgspec.msgpack.encode(msgspec.msgpack.decode(known[1:])[:-1]))
    assert isinstance(message, BuildSampled)
    world = waiting()
    assert world.index("by_age").id == "by_age-7"
    world.handle(Reported(message, world.now))
    ends(world)
    assert isinstance(world.tick()[0], PrepareBuild)
    world = waiting()
    altered(world, "PARTITION BY RANGE(city)")
    world.handle(Reported(message, world.now))
    ends(world)
    assert world.tick() == [StartDriver("b8", 0, "sample")]


def test_an_index_that_is_altered_before_it_is_built_anew_does_not_show_its_former_splits() -> None:
    world = waiting()
    reports(world)
    ends(world)
    world.tick()
    world.prepared("b8")
    world.take(world.leader.commands.cancel("b8", world.now).instructions)
    assert (world.index("by_age").state, world.index("by_age").splits) == ("DEFERRED", SPLITS)
    altered(world, "SET (slices=2)")
    assert world.index("by_age").splits == ()


# --- which splits -----------------------------------------------------------------------------------------


def shares(keys: list[bytes], weights: list[int], splits: tuple[bytes, ...]) -> list[int]:
    rule = Partitioning(len(splits) + 1, splits, ranged=True)
    found: Counter[int | None] = Counter()
    for key, weight in zip(keys, weights, strict=True):
        found[rule.partition_of(key)] += weight
    return [found[number] for number in range(len(splits) + 1)]


def test_shares_are_even() -> None:
    keys = sorted(encode_part(f"name{n}") for n in range(10_000))
    assert set(shares(keys, [1] * 10_000, splits_of(keys, [1] * 10_000, 8))) == {1_250}


@pytest.mark.parametrize("heavy", [[400], [0], [999], [0, 999], [500, 501], [10, 20, 30]])
def test_what_many_have_fills_a_slice_and_the_others_share_the_rest(heavy: list[int]) -> None:
    keys = [encode_part(n) for n in range(1_000)]
    weights = [50_000 if n in heavy else 10 for n in range(1_000)]
    slices = 9
    found = sorted(shares(keys, weights, splits_of(keys, weights, slices)), reverse=True)
    assert sum(found) == sum(weights)
    assert all(50_000 <= share < 51_000 for share in found[: len(heavy)])
    even = 10_000 / (slices - len(heavy))
    assert all(0.4 * even < share < 1.9 * even for share in found[len(heavy) :])


def test_fewer_values_than_slices_have_a_slice_each() -> None:
    keys = [encode_part(city) for city in ("Aachen", "Bonn", "Celle")]
    splits = splits_of(keys, [5, 5, 5], 8)
    assert len(splits) == 7
    assert shares(keys, [5, 5, 5], splits) == [5, 5, 0, 0, 0, 0, 0, 5]


def test_without_a_sample_the_last_slice_has_nearly_everything() -> None:
    splits = splits_of([], [], 4)
    assert readable_splits(splits) == [None] * 3
    assert Partitioning(4, splits, ranged=True).partition_of(encode_part(5)) == 3


def test_long_strings_are_cut_to_what_parts_them() -> None:
    long = "x" * 300
    assert readable_splits([separator(encode_part("b"), encode_part("c" + long)) or b""]) == ["c"]
    assert separator(encode_part(long + "a"), encode_part(long + "b")) is None, "nothing short parts them"
    assert separator(encode_part(3), encode_part([long])) is None
    keys = sorted(encode_part(f"{n:02}{long}") for n in range(100))
    assert shares(keys, [1] * 100, splits_of(keys, [1] * 100, 4)) == [25] * 4


weighted = st.dictionaries(
    st.one_of(
        st.integers(-50, 50),
        st.text(max_size=3),
        st.text("ab\0é", min_size=1, max_size=2).map(lambda s: s * 200),
    ),
    st.integers(1, 100),
    max_size=30,
)


@given(weighted, st.integers(1, 12))
def test_no_share_is_larger_than_an_even_one_and_what_cannot_be_parted(
    values: dict[object, int], slices: int
) -> None:
    by_key = {encode_part(value)[:KEY_BYTES]: weight for value, weight in values.items()}  # type: ignore[arg-type]
    keys = sorted(by_key)
    weights = [by_key[key] for key in keys]
    splits = splits_of(keys, weights, slices)
    assert len(splits) == slices - 1
    assert list(splits) == sorted(splits)
    assert all(len(split) <= MAX_SPLIT_BYTES for split in splits)
    assert list(encode_splits(readable_splits(splits))) == list(splits)
    found = shares(keys, weights, splits)
    assert sum(found) == sum(weights)
    if all(len(key) <= MAX_SPLIT_BYTES for key in keys) and len(keys) >= slices:
        assert max(found, default=0) <= sum(weights) / slices + 2 * max(weights, default=0)


# --- which offsets ----------------------------------------------------------------------------------------


def test_a_small_source_is_read_whole() -> None:
    assert spread({0: 5, 1: 0, 2: 7}, {0: 25, 1: 0, 2: 8}, 100) == [Extent(0, 5, 25), Extent(2, 7, 8)]
    assert spread({}, {}, 100) == []


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 1_000_000)), min_size=1, max_size=200),
    st.integers(100, 50_000),
)
def test_blocks_are_spread_over_every_partition(spans: list[tuple[int, int]], documents: int) -> None:
    starts = {partition: start for partition, (start, _) in enumerate(spans)}
    ends = {partition: start + length for partition, (start, length) in enumerate(spans)}
    blocks = spread(starts, ends, documents)
    whole = sum(length for _, length in spans)
    read = sum(block.end - block.start for block in blocks)
    assert min(documents, whole) <= read <= documents + 2 * len(spans) * 17
    for partition, (start, length) in enumerate(spans):
        mine = [block for block in blocks if block.partition == partition]
        assert all(start <= block.start < block.end <= start + length for block in mine)
        assert all(one.end <= other.start for one, other in pairwise(mine))
        if length:
            assert mine
        if length >= 40 * documents:
            assert len(mine) > 1 or documents * length / whole < 1_000
        if len(mine) > 1:  # old and new alike
            assert mine[0].end <= start + length / 2 < mine[-1].end


# --- what a sample says -----------------------------------------------------------------------------------


def batch(offset: int, documents: Sequence[tuple[str, object]], partition: int = 0) -> SourceBatch:
    return SourceBatch(
        partition,
        0,
        offset,
        offset + len(documents),
        range(offset, offset + len(documents)),
        [id_.encode() for id_, _ in documents],
        [None if value is None else json.dumps(value).encode() for _, value in documents],
        [0] * len(documents),
    )


def test_of_a_document_the_newest_version_of_the_sample_counts() -> None:
    plan = KeyspacePlan([("i", definition_of(CREATE))])
    found = SampleResult()
    for one in (
        batch(50, [("d1", {"age": 5}), ("d2", {"age": 6}), ("d3", None)]),
        batch(0, [("d1", {"age": 900}), ("d3", {"age": 800}), ("d4", {"age": 7}), ("d5", {})]),
        batch(0, [("d2", {"age": 700}), ("d6", {"age": 8})], TABLE_PARTITION),
    ):
        found.add(_encode(sampled(one, plan)))
    splits, entries = found.splits("i", 4)
    assert (found.documents, entries) == (9, 4), "5, 6, 7 and 8"
    assert readable_splits(splits) == [6, 7, 8]


def test_many_entries_of_a_document_are_thinned_and_count_for_those_left_out() -> None:
    definition = definition_of(
        "CREATE INDEX i ON k (UNNEST(tags)) PARTITION BY RANGE(UNNEST(tags)) WITH (slices=4)"
    )
    plan = KeyspacePlan([("i", definition)])
    many = [(f"d{n}", {"tags": list(range(1_000))}) for n in range(20)]
    part = sampled(batch(0, many), plan)
    assert len(part.entries["i"][1]) <= 5 * 20
    found = SampleResult()
    found.add(_encode(part))
    found.add(_encode(sampled(batch(20, [(f"e{n}", {"tags": [5_000 + n]}) for n in range(100)]), plan)))
    splits = [split for split in readable_splits(found.splits("i", 4)[0]) if isinstance(split, int)]
    assert len(splits) == 3
    assert splits == sorted(splits)
    assert all(split < 1_000 for split in splits), "20,000 entries weigh more than 100"
