"""Partitions of several slices: SUBPARTITION BY HASH(id), ALTER INDEX ... PARTITION n SET (slices=m)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.core.slice_loads import Hot
from coordinator.statements.advice import advice
from coordinator.statements.auto_split import what_parts
from coordinator.statements.partitions import repartitioned
from coordinator.statements.replacing import like_before
from indexer.scan.plan.selection import Shape, slices_of
from indexer.scan.request.request import CountRequest, ScanRequest
from keytide.catalog.auto_split import AutoSplit
from keytide.catalog.partitioning import Partitioning, readable_splits
from keytide.catalog.records import IndexRecord
from keytide.collation import encode_part
from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import MAX_SLICES, IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.statement import Alteration, CreateIndex, parse_statement
from keytide.errors import CallerError
from keytide.query.parse.statement import parse_query
from keytide.query.plan.choose import described
from keytide.query.plan.plan import Candidate, Plan, plan_on
from keytide.wire.index_lists import WrittenSlice, WrittenValue
from keytide.wire.messages import Segment
from projector.core.projection import KeyspacePlan, SourceBatch, project
from router.core import segments
from router.core import slices_of as routed
from router.recipients import BatchDocuments
from tests.unit.leader_world import World as LeaderWorld
from tests.unit.scan_world import Doc, World

CITY = "CREATE INDEX i ON people (city)"
AGE = "CREATE INDEX i ON people (age)"
SPREAD = "SUBPARTITION BY HASH(id) SLICES"
HASHED = f"{CITY} PARTITION BY HASH(city) {SPREAD} 3 WITH (partitions=2)"
RANGED = f"{AGE} PARTITION BY RANGE(age) SPLIT AT (10, 20) {SPREAD} (1, 4, 2)"
FOUND = f"{AGE} PARTITION BY RANGE(age) {SPREAD} 2 WITH (partitions=3)"
PLAIN = f"{CITY} WITH (slices=4)"


def made(statement: str) -> CreateIndex:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed


def definition(statement: str) -> IndexDefinition:
    return made(statement).definition


def index(statement: str, splits: tuple[bytes, ...] = (), state: str = "READY") -> IndexRecord:
    record = IndexRecord("i-1", definition(statement), "READY", 1, [], "b", 0, splits=splits)
    return replace(record, state=state)


def altered(of: IndexRecord, rest: str) -> IndexDefinition:
    parsed = parse_statement(f"ALTER INDEX i {rest}")
    assert isinstance(parsed, Alteration)
    return repartitioned(of, parsed)


# --- statements ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "slices", "spread"),
    [
        (HASHED, 6, (3, 3)),
        (RANGED, 7, (1, 4, 2)),
        (FOUND, 6, (2, 2, 2)),
        (
            f"{CITY} PARTITION BY HASH(city) {SPREAD} 2",
            16,
            (2,) * 8,
        ),
        (
            f"{CITY} PARTITION BY HASH(city) {SPREAD} (2, 5)",
            7,
            (2, 5),
        ),
        (
            f"CREATE INDEX i ON people (a) PARTITION BY RANGE(a) SPLIT AT (1) {SPREAD} 3",
            6,
            (3, 3),
        ),
        # One slice each is what there always was: nothing of it is in the definition.
        (f"{CITY} PARTITION BY HASH(city) {SPREAD} 1", 8, ()),
        (PLAIN, 4, ()),
    ],
)
def test_what_is_said_is_kept_and_said_again(statement: str, slices: int, spread: tuple[int, ...]) -> None:
    found = definition(statement)
    assert (found.slices, found.spread, found.partitions) == (slices, spread, len(spread) or slices)
    again = definition(normal_statement(found))
    assert replace(again, statement="") == replace(found, statement="")
    assert normal_statement(again) == normal_statement(found)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (
            f"PARTITION BY HASH(city) {SPREAD} 2 WITH (slices=4)",
            "SLICES says of how many",
        ),
        ("PARTITION BY HASH(city) WITH (partitions=4)", "goes with SUBPARTITION BY"),
        ("WITH (partitions=4)", "goes with SUBPARTITION BY"),
        ("PARTITION BY HASH(city) SUBPARTITION BY HASH(city) SLICES 2", "by the document id"),
        ("PARTITION BY HASH(city) SUBPARTITION BY RANGE(id)", "HASH"),
        ("PARTITION BY HASH(city) SUBPARTITION BY HASH(id)", "SLICES"),
        (f"PARTITION BY HASH(city) {SPREAD} 0", "from 1 to"),
        (f"PARTITION BY HASH(city) {SPREAD} (2, x)", "from 1 to"),
        (
            f"PARTITION BY HASH(city) {SPREAD} (2, 3) WITH (partitions=3)",
            "lists 2 partitions, not 3",
        ),
        (
            f"PARTITION BY RANGE(city) SPLIT AT (1, 2) {SPREAD} (2, 3)",
            "2 splits make 3 partitions, and SLICES lists 2",
        ),
        (
            f"PARTITION BY RANGE(city) SPLIT AT (1) {SPREAD} 2 WITH (partitions=3)",
            "make 2 partitions",
        ),
        (f"PARTITION BY HASH(city) {SPREAD} 200", "1,600 slices"),
        (f"PARTITION BY HASH(id) {SPREAD} 2", "one slice already"),
    ],
)
def test_what_makes_no_sense_is_refused(rest: str, reason: str) -> None:
    with pytest.raises(InvalidStatementError, match=reason) as refused:
        definition(f"CREATE INDEX i ON people (city) {rest}")
    assert refused.value.next_step


def test_unique_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidStatementError, match="equal keys of a UNIQUE index lie in one slice"):
        definition(HASHED.replace("CREATE", "CREATE UNIQUE"))
    with pytest.raises(CallerError, match="equal keys of a UNIQUE index lie in one slice"):
        altered(index(PLAIN.replace("CREATE", "CREATE UNIQUE")), "PARTITION 0 SET (slices=2)")


@pytest.mark.parametrize(
    ("statement", "next_step"),
    [
        (PLAIN.replace("CREATE", "CREATE UNIQUE"), "SET (slices=n)"),
        (f"{CITY} PARTITION BY HASH(id)", "SET (slices=n)"),
        (
            f"{CITY.replace('CREATE', 'CREATE UNIQUE')} PARTITION BY RANGE(city) SPLIT AT ('m')",
            "SPLIT PARTITION 1",
        ),
    ],
)
def test_a_partition_that_cannot_be_spread_is_told_what_can_be_done(statement: str, next_step: str) -> None:
    with pytest.raises(CallerError) as refused:
        altered(index(statement), "PARTITION 1 SET (slices=2)")
    assert refused.value.next_step.startswith(f"ALTER INDEX i {next_step}")


# --- where entries lie --------------------------------------------------------------------------------------


VALUES = st.integers(0, 30) | st.text(max_size=3)
RULES = [
    Partitioning(6, spread=(3, 3)),
    Partitioning(7, (encode_part(10), encode_part(20)), True, spread=(1, 4, 2)),
    Partitioning(4, spread=(4,)),
    Partitioning(3, (encode_part("m"),), True, spread=(2, 1)),
]


@pytest.mark.parametrize("rule", RULES)
@given(
    st.lists(
        st.tuples(st.integers(0, 30) | st.text(max_size=3), st.binary(min_size=1, max_size=9)), max_size=60
    )
)
def test_columns_and_single_entries_go_to_one_place(
    rule: Partitioning, entries: list[tuple[Any, bytes]]
) -> None:
    keys = [encode_part(value) for value, _ in entries]
    hashes = np.array([xxhash.xxh3_64_intdigest(id_) for _, id_ in entries], np.uint64)
    found = routed(keys, rule, hashes).tolist()
    assert found == [rule.slice_of(key, id_) for key, (_, id_) in zip(keys, entries, strict=True)]
    for number, key in zip(found, keys, strict=True):
        slices = rule.slices_of_value(key)
        assert number in slices
        partition = rule.partition_of(key)
        assert {rule.partition_of_slice(one) for one in slices} == {partition}
        assert set(slices) <= set(rule.slices_of_values(key, key + b"\x00"))


def test_an_entry_moves_to_no_other_slice_by_a_release() -> None:
    """Numbers are on the disks of running clusters."""
    rule = Partitioning(7, (encode_part(10), encode_part(20)), True, spread=(1, 4, 2))
    ids = [b"d%d" % number for number in range(8)]
    assert [rule.slice_of(encode_part(15), id_) for id_ in ids] == [
        1 + xxhash.xxh3_64_intdigest(id_) % 4 for id_ in ids
    ]
    assert [rule.slice_of(encode_part(20), id_) for id_ in ids] == [
        5 + xxhash.xxh3_64_intdigest(id_) % 2 for id_ in ids
    ]
    assert {rule.slice_of(encode_part(9), id_) for id_ in ids} == {0}


def test_one_key_is_spread_over_the_slices_of_its_partition_and_no_others() -> None:
    of = definition(HASHED)
    ids = [b"d%d" % number for number in range(600)]
    batch = SourceBatch(0, 0, 0, 600, range(600), list(ids), [b'{"city":"x"}'] * 600, [0] * 600)
    projected = project(batch, KeyspacePlan([("i", of)]))
    batch_documents = BatchDocuments(projected.heard)
    sent = segments(projected.indexes["i"], Partitioning.of(of), Segment(0, 0, 0, 600), batch_documents)
    counts = [0 if one.puts is None else one.puts.count for one in sent]
    expected = Partitioning.of(of).slices_of_value(encode_part("x"))
    assert len(expected) == 3
    assert all(150 < counts[number] < 250 for number in expected)
    assert sum(counts) == sum(counts[number] for number in expected) == 600


# --- which slices are asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "asked"),
    [
        (ScanRequest(equals=[5]), [0]),
        (ScanRequest(equals=[15]), [1, 2, 3, 4]),
        (ScanRequest(low=[15], high=[25]), [1, 2, 3, 4, 5, 6]),
        (ScanRequest(low=[20]), [5, 6]),
        (ScanRequest(), [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_scan_asks_the_slices_of_the_partitions_that_it_needs(
    request_: ScanRequest, asked: list[int]
) -> None:
    shape = Shape.of(definition(RANGED))
    assert list(slices_of(request_, shape)) == asked
    assert shape.in_order == 0, "slices of one partition have the same keys"


@pytest.mark.parametrize(
    ("statement", "where", "asked"),
    [
        (RANGED, "age = 15", (1, 2, 3, 4)),
        (RANGED, "age < 10", (0,)),
        (RANGED, "age IN (5, 25)", (0, 5, 6)),
        (RANGED, "age IS NOT MISSING", (0, 1, 2, 3, 4, 5, 6)),
    ],
)
def test_a_query_does_and_explain_says_so(statement: str, where: str, asked: tuple[int, ...]) -> None:
    of = definition(statement)
    plan = plan_on(parse_query(f"SELECT age FROM people WHERE {where}"), Candidate("i", of))
    assert isinstance(plan, Plan)
    assert plan.slices == asked
    shown = described(plan, [], [])
    assert (shown["slices_asked"], shown["slices_of_index"]) == (list(asked), 7)
    of_slice = [0, 1, 1, 1, 1, 2, 2]
    assert shown["partitions_asked"] == sorted({of_slice[number] for number in asked})
    assert shown["partitions_of_index"] == 3


def test_splits_that_are_not_found_yet_say_nothing() -> None:
    rule = Partitioning.of(definition(FOUND))
    assert rule.unknown
    assert rule.slice_of(encode_part(5), b"d") is None
    assert rule.slices_of_value(encode_part(5)) == range(6)
    assert definition(FOUND).samples_splits


# --- other partitions ---------------------------------------------------------------------------------------


SPLITS = (encode_part(10), encode_part(20))


@pytest.mark.parametrize(
    ("of", "rest", "spread", "splits"),
    [
        (index(PLAIN), "PARTITION 2 SET (slices=4)", (1, 1, 4, 1), []),
        (index(HASHED), "PARTITION 0 SET (slices=1)", (1, 3), []),
        (index(HASHED), "SET (partitions=5)", (3,) * 5, []),
        (index(RANGED), "PARTITION 1 SET (slices=2)", (1, 2, 2), [10, 20]),
        (index(RANGED), "SPLIT PARTITION 1 AT (12, 15)", (1, 4, 4, 4, 2), [10, 12, 15, 20]),
        (index(RANGED), "MERGE PARTITIONS 1, 2", (1, 4), [10]),
        (index(RANGED), "MERGE PARTITIONS 0, 1", (4, 2), [20]),
        (index(FOUND, SPLITS), "PARTITION 2 SET (slices=5)", (2, 2, 5), [10, 20]),
        # Where the build had no use for its last split, what it parts is empty: it goes with the next split.
        (index(FOUND, (SPLITS[0], SPLITS[0])), "PARTITION 2 SET (slices=5)", (2, 2, 5), [10, 10]),
        (index(FOUND, (SPLITS[0], SPLITS[0])), "SPLIT PARTITION 2 AT (20)", (2, 2, 2), [10, 20]),
        (index(PLAIN), f"PARTITION BY HASH(LOWER(city)) {SPREAD} 2", (2,) * 4, []),
        (
            index(HASHED),
            f"PARTITION BY RANGE(city) SPLIT AT ('m') {SPREAD} (1, 2)",
            (1, 2),
            ["m"],
        ),
        (index(HASHED), "PARTITION BY HASH(id)", (), []),
        (index(HASHED), "PARTITION BY HASH(city) SET (slices=4)", (), []),
        (
            index(f"{CITY} WITH (slices=1)"),
            "PARTITION 0 SET (slices=3)",
            (3,),
            [],
        ),
    ],
)
def test_an_index_gets_other_partitions(
    of: IndexRecord, rest: str, spread: tuple[int, ...], splits: list[Any]
) -> None:
    found = altered(of, rest)
    assert found.spread == spread
    assert readable_splits(found.encoded_splits) == splits
    if spread:
        assert found.slices == sum(spread)
    again = definition(normal_statement(found))
    assert (again.spread, again.slices, again.given_splits) == (
        found.spread,
        found.slices,
        found.given_splits,
    )


def test_all_of_one_slice_is_the_index_that_it_was() -> None:
    before = index(PLAIN)
    spread = replace(before, definition=altered(before, "PARTITION 1 SET (slices=3)"))
    assert altered(spread, "PARTITION 1 SET (slices=1)") == before.definition


@given(
    st.lists(st.integers(0, 4) | st.sampled_from(["a", True, None, 0.5]), max_size=5),
    st.data(),
    st.booleans(),
)
def test_a_partition_set_twice_is_as_when_set_once_and_no_other_one_changes(
    values: list[Any], data: st.DataObject, ranged: bool
) -> None:
    splits = tuple(sorted(map(encode_part, values))) if ranged else ()
    spread = tuple(data.draw(st.integers(1, 3)) for _ in range(len(values) + 1))
    by = f"PARTITION BY {'RANGE' if ranged else 'HASH'}(age) {SPREAD} ({', '.join(map(str, spread))})"
    of = index(f"{AGE} {by}", splits)
    before = Partitioning.of(of.definition, of.splits)
    number = before.partition_of(encode_part(data.draw(st.integers(-1, 5) | st.text(max_size=1))))
    assert number is not None, "the splits are known"
    rest = f"PARTITION {number} SET (slices={data.draw(st.integers(1, 4))})"
    once = altered(of, rest)
    others = [list(one.slices_by_partition) for one in (of.definition, once)]
    assert others[1][number] == int(rest[-2])
    assert [one[:number] + one[number + 1 :] for one in others] == [
        others[0][:number] + others[0][number + 1 :]
    ] * 2
    assert (once.encoded_splits or splits) == splits
    # The new layout is READY, and the statement is run again.
    assert altered(replace(of, definition=once), rest) == once
    again = definition(normal_statement(once))
    assert replace(again, statement="") == replace(once, statement="")


UNEVEN = replace(index(HASHED), definition=altered(index(HASHED), "PARTITION 0 SET (slices=1)"))


@pytest.mark.parametrize(
    ("of", "rest", "reason"),
    [
        (index(HASHED), "SET (slices=8)", "no number of slices"),
        (index(HASHED), "PARTITION 2 SET (slices=2)", "has no partition 2"),
        (index(HASHED), f"PARTITION 1 SET (slices={MAX_SLICES})", "is the most"),
        (index(RANGED), "SET (partitions=5)", "by its SPLIT AT"),
        (
            UNEVEN,
            "SET (partitions=3)",
            "of how many the new ones",
        ),
        (
            index(FOUND, state="BUILDING"),
            "PARTITION 1 SET (slices=3)",
            "the splits are found when it is built",
        ),
        (
            index(f"{CITY} PARTITION BY HASH(id)"),
            "PARTITION 0 SET (slices=2)",
            "one slice already",
        ),
        (index(HASHED), "SPLIT PARTITION 0 AT (5)", "have no splits"),
        (index(FOUND, (SPLITS[0], SPLITS[0])), "PARTITION 1 SET (slices=5)", "both its splits are 10"),
    ],
)
def test_other_partitions_are_refused(of: IndexRecord, rest: str, reason: str) -> None:
    with pytest.raises(CallerError, match=reason) as refused:
        altered(of, rest)
    assert refused.value.next_step


@pytest.mark.parametrize(
    "rest",
    [
        "PARTITION SET (slices=2)",
        "PARTITION 1",
        "PARTITION 1 SET (replicas=2)",
        "PARTITION 1 SET (slices=0)",
        "SET (slices=2, partitions=2)",
    ],
)
def test_a_mistyped_alteration_is_refused(rest: str) -> None:
    with pytest.raises(InvalidStatementError):
        parse_statement(f"ALTER INDEX i {rest}")


def test_a_list_of_one_is_of_one_partition() -> None:
    assert definition(f"{CITY} PARTITION BY HASH(city) {SPREAD} (3)").spread == (3,)


def test_a_split_partition_is_shown_by_its_slices() -> None:
    with pytest.raises(CallerError) as refused:
        altered(index(RANGED), "SPLIT PARTITION 2")
    assert "--slice 5" in refused.value.next_step


RANGE_FOUND = f"{AGE} PARTITION BY RANGE(age) WITH (slices=3)"
RANGE_AGAIN = f"{AGE} PARTITION BY RANGE(age)"


def after(of: IndexRecord, *alterations: str, itself: bool = False) -> IndexRecord:
    """An index when it was altered, by itself or not."""
    for rest in alterations:
        of = replace(of, definition=altered(of, rest), splits=())
    return replace(of, auto_split=AutoSplit(0, of.id, (), "writes", 0.9)) if itself else of


@pytest.mark.parametrize(
    ("old", "statement", "spread", "slices", "splits"),
    [
        (after(index(PLAIN), "PARTITION 2 SET (slices=4)"), CITY, (1, 1, 4, 1), 7, []),
        (after(index(PLAIN), "PARTITION 2 SET (slices=4)"), f"{CITY} WITH (slices=3)", (), 3, []),
        (after(index(PLAIN), "PARTITION 2 SET (slices=4)"), f"{CITY} PARTITION BY HASH(id)", (), 7, []),
        (after(index(PLAIN), "PARTITION 2 SET (slices=4)"), HASHED, (3, 3), 6, []),
        # How many partitions there are stays, where only their slices are said.
        (
            after(index(HASHED), "SET (partitions=16)"),
            f"{CITY} PARTITION BY HASH(city) {SPREAD} 3",
            (3,) * 16,
            48,
            [],
        ),
        # What a partition is follows from the splits, so they stay with what was said of it.
        (
            after(index(RANGE_FOUND, SPLITS), "PARTITION 2 SET (slices=4)"),
            RANGE_AGAIN,
            (1, 1, 4),
            6,
            [10, 20],
        ),
        # Splits that the index got by itself stay.
        (
            after(index(FOUND, SPLITS), "SPLIT PARTITION 1 AT (15)", itself=True),
            f"{RANGE_AGAIN} {SPREAD} 2",
            (2,) * 4,
            8,
            [10, 15, 20],
        ),
        # UNIQUE has no partition of several slices: as many partitions, and as they were.
        (
            after(index(FOUND, SPLITS), "SPLIT PARTITION 1 AT (15)", itself=True),
            RANGE_AGAIN.replace("CREATE", "CREATE UNIQUE"),
            (),
            4,
            [10, 15, 20],
        ),
    ],
)
def test_a_statement_that_is_run_again_leaves_partitions_as_they_were_altered(
    old: IndexRecord, statement: str, spread: tuple[int, ...], slices: int, splits: list[Any]
) -> None:
    parsed = made(statement.replace("CREATE", "CREATE OR REPLACE"))
    found = like_before(parsed.definition, parsed.said, old)
    assert (found.spread, found.slices) == (spread, slices)
    assert readable_splits(found.encoded_splits) == splits
    assert not splits or found.partitions == len(splits) + 1
    again = definition(normal_statement(found))
    assert replace(again, statement="") == replace(found, statement="")


def test_partitions_that_there_are_are_not_dropped_where_they_would_make_too_many_slices() -> None:
    of = index(f"{CITY} PARTITION BY HASH(city) {SPREAD} 2 WITH (partitions=32)")
    again = f"CREATE OR REPLACE{CITY.removeprefix('CREATE')} PARTITION BY HASH(city) {SPREAD}"
    at_most = made(f"{again} 32")
    assert like_before(at_most.definition, at_most.said, of).spread == (32,) * 32
    beyond = made(f"{again} 40")
    with pytest.raises(CallerError, match=r"32 partitions.* 1,280 slices .*: 1,024 is the most") as refused:
        like_before(beyond.definition, beyond.said, of)
    assert refused.value.status == 422
    assert "WITH (partitions=25)" in refused.value.next_step
    said = made(f"{again} 40 WITH (partitions=25)")
    assert like_before(said.definition, said.said, of).spread == (40,) * 25


@pytest.mark.parametrize(("options", "partitions"), [("(slices=1)", 1), ("(slices=5)", 5), ("(slices=6)", 0)])
def test_slices_of_each_partition_are_counted_where_it_is_known_how_many_there_are(
    options: str, partitions: int
) -> None:
    """A statement that does not say how many has those of the index that it replaces, not the default."""
    by_city = f"PARTITION BY HASH(city) {SPREAD} 200"
    again = made(f"CREATE OR REPLACE{CITY.removeprefix('CREATE')} {by_city}")
    old = index(f"{CITY} WITH {options}")
    if partitions:
        assert like_before(again.definition, again.said, old).spread == (200,) * partitions
    else:
        with pytest.raises(CallerError, match=r"6 partitions.* 1,200 slices .*: 1,024 is the most"):
            like_before(again.definition, again.said, old)
    for statement in (f"{CITY} {by_city}", f"{CITY.replace('CREATE', 'CREATE OR REPLACE')} {by_city}"):
        with pytest.raises(CallerError, match="8 partitions of 200 slices make 1,600 slices") as refused:
            LeaderWorld().sql(statement)
        assert (refused.value.status, refused.value.problem_type) == (422, "invalid-statement")
        assert "fewer SLICES of each" in refused.value.next_step
        assert "^" in refused.value.problem()["caret"]
    with pytest.raises(InvalidStatementError, match="6 partitions of 200 slices make 1,200 slices"):
        made(f"CREATE OR REPLACE{CITY.removeprefix('CREATE')} {by_city} WITH (partitions=6)")


def test_what_makes_too_many_slices_is_shown_where_it_stands() -> None:
    """Not where a text says the same, and not beside a name that is longer in capitals."""
    statement = f"""
        CREATE OR REPLACE INDEX by_city ON people (city, "straße") PARTITION BY HASH(city)
        {SPREAD} 200 WHERE city = 'subpartition'
    """
    with pytest.raises(InvalidStatementError) as refused:
        LeaderWorld().sql(statement)
    line, marks = refused.value.problem()["caret"].splitlines()
    assert line[marks.index("^") :].startswith("SUBPARTITION"), (line, marks)


# --- a hot key ----------------------------------------------------------------------------------------------


def hot_key(value: Any, share: float = 0.97) -> WrittenSlice:
    encoded = encode_part(value)
    total = 1_000
    heavy = [WrittenValue(encoded, share * total, share * total)]
    return WrittenSlice(0, True, total, heavy, (encoded,) * 40, (encoded,) * 40)


@pytest.mark.parametrize(
    ("of", "number", "statement"),
    [
        (index(PLAIN), 2, "ALTER INDEX i PARTITION 2 SET (slices=4)"),
        (index(HASHED), 4, "ALTER INDEX i PARTITION 1 SET (slices=12)"),
        (index(RANGED), 6, "ALTER INDEX i PARTITION 2 SET (slices=8)"),
    ],
)
def test_a_key_with_nearly_all_of_the_load_is_spread_over_slices(
    of: IndexRecord, number: int, statement: str
) -> None:
    hot = Hot(number, "writes", 970.0, 10.0)
    found = advice(of, hot, hot_key("x"))
    assert found.statement == statement
    parsed = parse_statement(statement)
    assert isinstance(parsed, Alteration)
    assert repartitioned(of, parsed) != of.definition
    assert "The price" in found.text
    said = what_parts(of, hot, hot_key("x"), MAX_SLICES)
    assert isinstance(said, str), "a price is for people to weigh"
    assert "for you to decide" in said


@pytest.mark.parametrize(
    ("of", "number", "statement"),
    [
        (UNEVEN, 1, "ALTER INDEX i PARTITION 1 SET (slices=6)"),
        (index(RANGED), 6, "ALTER INDEX i PARTITION 2 SET (slices=4)"),
        (index(HASHED), 0, "ALTER INDEX i SET (partitions=4)"),
        (index(FOUND, SPLITS), 0, "ALTER INDEX i SET (partitions=6)"),
    ],
)
def test_what_is_hot_by_many_values_has_advice_after_the_first_one(
    of: IndexRecord, number: int, statement: str
) -> None:
    found = advice(of, Hot(number, "entries", 970.0, 10.0))
    assert found.statement == statement
    parsed = parse_statement(statement)
    assert isinstance(parsed, Alteration)
    assert repartitioned(of, parsed).slices > of.slices


ARRAYS = (encode_part(10), encode_part([1]))
"""What a build may find, and no statement can say."""


@pytest.mark.parametrize(
    ("of", "written", "most", "each"),
    [
        (index(FOUND, ARRAYS), hot_key(15), MAX_SLICES, 8),
        (index(FOUND, ARRAYS), hot_key([1, 2]), 16, 5),
        (index(FOUND, ARRAYS), hot_key(15), 8, None),
        (index(f"{AGE} PARTITION BY RANGE(age) {SPREAD} (6, 1, 1)", ARRAYS), None, MAX_SLICES, 6),
        (index(f"{AGE} PARTITION BY RANGE(age) {SPREAD} (6, 1, 1)", ARRAYS), None, 17, None),
    ],
)
def test_what_is_advised_where_no_statement_can_say_the_splits_can_be_done(
    of: IndexRecord, written: WrittenSlice | None, most: int, each: int | None
) -> None:
    found = advice(of, Hot(of.slices - 1, "writes" if written else "entries", 970.0, 10.0), written, most)
    if each is None:
        assert found.statement is None
        return
    assert found.statement is not None
    parsed = parse_statement(found.statement)
    assert isinstance(parsed, Alteration)
    made = repartitioned(of, parsed)
    assert made.spread == (each,) * 3
    assert made.slices <= most
    assert made.samples_splits
    with pytest.raises(CallerError, match="which SPLIT AT cannot say") as refused:
        altered(of, f"PARTITION {of.definition.partitions - 1} SET (slices={each})")
    step = parse_statement(refused.value.next_step.partition(": ")[2])
    assert isinstance(step, Alteration)
    assert repartitioned(of, step).spread == (each,) * 3


def test_partitions_that_are_no_others_keep_no_slices_of_the_ones_before() -> None:
    rising = WrittenSlice(0, True, 1_000, [], *(tuple(map(encode_part, range(n, n + 40))) for n in (0, 100)))
    found = advice(index(RANGED), Hot(6, "writes", 970.0, 10.0), rising)
    assert found.statement is not None
    assert "PARTITION BY HASH(age)" in found.statement
    assert "SUBPARTITION" not in found.statement


def test_an_index_gets_no_more_slices_by_itself_than_it_may() -> None:
    of = index(f"{AGE} PARTITION BY RANGE(age) SPLIT AT (10, 20) {SPREAD} (1, 60, 1)")
    values = tuple(encode_part(10 + number / 100) for number in range(80))
    found = what_parts(
        of, Hot(3, "writes", 970.0, 10.0), WrittenSlice(3, True, 1_000, [], values, values), 64
    )
    assert isinstance(found, str)
    assert "122 slices" in found


def test_slices_of_one_partition_are_as_many_as_documents_say() -> None:
    rule = Partitioning(8, spread=(1, 1, 6))
    counted = Counter(rule.slice_of(encode_part(key), b"d%d" % n) for key in range(40) for n in range(50))
    assert set(counted) == set(range(8))


@pytest.mark.parametrize("statement", [HASHED.replace("people", "users"), RANGED.replace("people", "users")])
def test_a_key_in_several_slices_is_counted_once(statement: str) -> None:
    world = World(statement, node_count=2)
    documents = [Doc([number % 6 * 5], f"d{number:03}") for number in range(120)]
    world.commit(1, {"i": documents})

    async def never() -> None:
        await asyncio.Event().wait()

    async def counted(**question: Any) -> int:
        (service, *_) = world.services().values()
        answer = await service.count("i", CountRequest(distinct=True, **question), never)
        return int(json.loads(answer.body)["count"])

    assert asyncio.run(counted()) == 6
    assert asyncio.run(counted(equals=[15])) == 1
