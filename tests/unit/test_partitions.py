"""ALTER INDEX name PARTITION BY, SPLIT PARTITION, MERGE PARTITIONS: which slices they ask for, what they
refuse, and what the leader makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from coordinator.catalog.registry import ConflictError
from coordinator.statements.partitions import repartitioned, splits_of
from keytide.catalog.partitioning import Partitioning, readable_splits
from keytide.catalog.records import IndexRecord
from keytide.collation import encode_part
from keytide.collation.layout import Value
from keytide.definition.index import MAX_SLICES
from keytide.definition.statement import (
    AlterIndex,
    CreateIndex,
    MergePartitions,
    SplitPartition,
    parse_statement,
)
from keytide.errors import CallerError
from tests.unit.copy_world import CopyWorld
from tests.unit.test_layouts import OLD, LayoutWorld, bearer

HASH = "CREATE INDEX i ON people (city, age) WITH (slices=4)"
GIVEN = "CREATE INDEX i ON people (age) PARTITION BY RANGE(age) SPLIT AT (10, 20, 30)"
FOUND = "CREATE INDEX i ON people (age) PARTITION BY RANGE(age) WITH (slices=4)"


def index(statement: str, splits: Sequence[Value] = (), state: str = "READY") -> IndexRecord:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    encoded = tuple(map(encode_part, splits))
    record = IndexRecord("i-1", parsed.definition, "READY", 1, [], "b", 0, splits=encoded)
    return replace(record, state=state)


def asked(of: IndexRecord, statement: str) -> tuple[str, list[object], int]:
    """By what it is partitioned then, where it is parted, and how many slices it has."""
    parsed = parse_statement(statement)
    assert isinstance(parsed, AlterIndex | SplitPartition | MergePartitions)
    found = repartitioned(of, parsed)
    assert (found.keys, found.name, found.replicas) == (of.definition.keys, of.name, of.definition.replicas)
    return found.partition_kind, readable_splits(found.encoded_splits), found.slices


@pytest.mark.parametrize(
    ("of", "rest", "found"),
    [
        (index(HASH), "PARTITION BY HASH(id)", ("hash", [], 4)),
        (index(HASH), "PARTITION BY HASH(LOWER(city)) SET (slices=6)", ("hash", [], 6)),
        (index(HASH), "PARTITION BY RANGE(age)", ("range", [], 4)),
        (index(HASH), "PARTITION BY RANGE(age) SPLIT AT (1, 'x')", ("range", [1, "x"], 3)),
        (index(HASH), "SET (slices=9)", ("hash", [], 9)),
        (index(GIVEN), "PARTITION BY HASH(age)", ("hash", [], 4)),
        (index(GIVEN), "PARTITION BY RANGE(age) SET (slices=7)", ("range", [], 7)),
        (index(GIVEN), "SPLIT PARTITION 1 AT (15)", ("range", [10, 15, 20, 30], 5)),
        (index(GIVEN), "SPLIT PARTITION 0 AT (NULL, 1, 2.5)", ("range", [None, 1, 2.5, 10, 20, 30], 7)),
        (index(GIVEN), "SPLIT PARTITION 3 AT (31, 'x')", ("range", [10, 20, 30, 31, "x"], 6)),
        (index(GIVEN), "SPLIT PARTITION 1 AT (10, 15)", ("range", [10, 15, 20, 30], 5)),
        (index(GIVEN), "MERGE PARTITIONS 0, 1", ("range", [20, 30], 3)),
        (index(GIVEN), "MERGE PARTITIONS 3, 2", ("range", [10, 20], 3)),
        (index(FOUND, (1, 2, 3)), "SPLIT PARTITION 2 AT (2.5)", ("range", [1, 2, 2.5, 3], 5)),
        (index(FOUND, (1, 2, 3)), "MERGE PARTITIONS 1, 2", ("range", [1, 3], 3)),
        # The build had no use for its last splits: what they part is empty, and goes.
        (index(FOUND, (1, 2, 2)), "SPLIT PARTITION 3 AT (5)", ("range", [1, 2, 5], 4)),
        (index(FOUND, (1, 2, 2)), "MERGE PARTITIONS 1, 2", ("range", [1, 2], 3)),
        (
            index("CREATE INDEX i ON people (age) PARTITION BY RANGE(age) WITH (slices=1)"),
            "SPLIT PARTITION 0 AT (9)",
            ("range", [9], 2),
        ),
        (
            index("CREATE INDEX i ON people (age) PARTITION BY RANGE(age) SPLIT AT (9)"),
            "MERGE PARTITIONS 0, 1",
            ("range", [], 1),
        ),
    ],
)
def test_which_slices_are_asked_for(of: IndexRecord, rest: str, found: object) -> None:
    assert asked(of, f"ALTER INDEX i {rest}") == found


@pytest.mark.parametrize("rest", ["SPLIT PARTITION 1 AT (10)", "SPLIT PARTITION 3 AT (10, 20, 30)"])
@pytest.mark.parametrize("of", [index(GIVEN), index(FOUND, (10, 20, 30))], ids=["given", "found"])
def test_where_it_is_parted_already_nothing_changes(of: IndexRecord, rest: str) -> None:
    parsed = parse_statement(f"ALTER INDEX i {rest}")
    assert isinstance(parsed, SplitPartition)
    assert repartitioned(of, parsed) == of.definition


MANY = f"CREATE INDEX i ON people (age) PARTITION BY RANGE(age) WITH (slices={MAX_SLICES})"


@pytest.mark.parametrize(
    ("of", "rest", "reason", "step"),
    [
        (index(HASH), "SPLIT PARTITION 1 AT (5)", "by HASH(city): its partitions have no", "SET (slices=n)"),
        (index(HASH), "MERGE PARTITIONS 1, 2", "by HASH(city)", "PARTITION BY RANGE(city)"),
        (index(HASH), "SPLIT PARTITION 9", "by HASH(city)", "SET (slices=n)"),
        (index(GIVEN), "SPLIT PARTITION 4 AT (50)", "has no partition 4", "are 0 to 3"),
        (index(GIVEN), "SPLIT PARTITION 4", "has no partition 4", "are 0 to 3"),
        (index(GIVEN), "MERGE PARTITIONS 3, 4", "has no partition 4", "`keytide index show i`"),
        (
            index(GIVEN),
            "SPLIT PARTITION 1 AT (25)",
            "25 does not lie in partition 1 of index i, which has the values from 10 on that lie below 20",
            "has the splits",
        ),
        (index(GIVEN), "SPLIT PARTITION 0 AT (15)", "which has those below 10", "the number of the part"),
        (index(GIVEN), "SPLIT PARTITION 3 AT (15)", "which has the values from 30 on", "a value between"),
        (index(FOUND, (1, 2, 2)), "SPLIT PARTITION 2 AT (5)", "which has no values", "a value between"),
        (index(GIVEN), "MERGE PARTITIONS 0, 2", "0 and 2 of index i are not neighbours", "PARTITIONS 1, 2"),
        (index(GIVEN), "MERGE PARTITIONS 1, 1", "are not neighbours", "MERGE PARTITIONS 0, 1"),
        (
            index("CREATE INDEX i ON people (age) PARTITION BY RANGE(age) WITH (slices=1)"),
            "MERGE PARTITIONS 0, 1",
            "has one partition only",
            "nothing to merge",
        ),
        (
            index(MANY, range(MAX_SLICES - 1)),
            "SPLIT PARTITION 5 AT (4.5)",
            "would have 1,025 slices",
            "merge",
        ),
        (
            index(FOUND, (1, [2], [3])),
            "SPLIT PARTITION 0 AT (0)",
            "parts at [2], which SPLIT AT",
            "PARTITION",
        ),
        (index(GIVEN), "SPLIT PARTITION 1", "not known where half", "`keytide index load i --slice 1`"),
        (index(GIVEN), "SPLIT PARTITION 1", "not known where half", "SPLIT PARTITION 1 AT (value)"),
        (index(FOUND, (), "DEFERRED"), "SPLIT PARTITION 1 AT (5)", "found when it is built", "SPLIT AT"),
        (index(FOUND, (1, 2, 3), "FAILED"), "MERGE PARTITIONS 1, 2", "i is FAILED", "until it is READY"),
        (index(GIVEN), "SET (slices=5)", "4 slices by its SPLIT AT", "SPLIT PARTITION n AT"),
        (
            index("CREATE UNIQUE INDEX i ON people (city, age)"),
            "PARTITION BY HASH(id)",
            "a UNIQUE index is partitioned by a part of its key",
            "HASH(city)",
        ),
        (
            index("CREATE INDEX i ON people (UNNEST(tags))"),
            "PARTITION BY HASH(UNNEST(others))",
            "must be written as in the key",
            "HASH(id)",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    of: IndexRecord, rest: str, reason: str, step: str
) -> None:
    with pytest.raises(CallerError) as caught:
        asked(of, f"ALTER INDEX i {rest}")
    assert reason in caught.value.message
    assert step in caught.value.next_step
    assert (caught.value.status, caught.value.problem_type) == (422, "index-not-alterable")


def test_a_split_moves_what_lies_in_its_slice_only_and_merging_takes_it_back() -> None:
    """Whatever is split and merged: the splits ascend, and each value lies where both its neighbours say."""
    rng = random.Random(5)
    of = index(FOUND, (250, 500, 750))
    present = [250, 500, 750]
    for _ in range(200):
        if rng.random() < 0.5 or not present:
            value = rng.randrange(1_000)
            number = sum(one <= value for one in present)
            statement = f"ALTER INDEX i SPLIT PARTITION {number} AT ({value})"
            present = sorted({*present, value})
        else:
            number = rng.randrange(len(present))
            statement = f"ALTER INDEX i MERGE PARTITIONS {number}, {number + 1}"
            del present[number]
        _, splits, slices = asked(of, statement)
        assert (splits, slices) == (present, len(present) + 1)
        parsed = parse_statement(statement)
        assert isinstance(parsed, SplitPartition | MergePartitions)
        of = replace(of, definition=repartitioned(of, parsed), splits=())
        assert Partitioning.of(of.definition).partition_of(encode_part(500.5)) == sum(
            one <= 500.5 for one in present
        )
        assert splits_of(of) == tuple(map(encode_part, present))


# --- the leader ---------------------------------------------------------------------------------------------


def ranged(splits: Sequence[Value] = (10,)) -> LayoutWorld:
    """by_city, READY by RANGE(age) in two slices; its build has found where they part."""
    world = LayoutWorld()
    old = world.layout(OLD)
    parsed = parse_statement(
        "CREATE INDEX by_city ON people (city, age) PARTITION BY RANGE(age) WITH (slices=2, replicas=1)"
    )
    assert old is not None
    assert isinstance(parsed, CreateIndex)
    encoded = tuple(map(encode_part, splits))
    world.leader.dictionary.put(replace(old, definition=parsed.definition, splits=encoded))
    world.tick()
    return world


def test_a_new_layout_has_the_splits_there_are_and_one_more() -> None:
    world = ranged()
    assert "until that is READY the old one answers" in world.said(
        "ALTER INDEX by_city SPLIT PARTITION 1 AT (20)"
    )
    new = world.new()
    assert (new.replaces, new.slices, new.definition.replicas) == (OLD, 3, 1)
    assert "PARTITION BY RANGE(age) SPLIT AT (10, 20)" in new.definition.statement
    assert bearer(world) == OLD
    before = dict(world.written)
    world.sql("ALTER INDEX by_city SPLIT PARTITION 1 AT (20)")
    assert world.written == before, "it is on its way already"
    with pytest.raises(ConflictError, match="a new layout of index by_city is on its way"):
        world.sql("ALTER INDEX by_city SPLIT PARTITION 1 AT (30)")
    with pytest.raises(ConflictError, match="a new layout of index by_city is on its way"):
        world.sql("ALTER INDEX by_city PARTITION BY HASH(id)")


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("RANGE(age) SPLIT AT (0, 1)", "RANGE(age) SPLIT AT (FALSE, TRUE)", True),
        ("HASH(COALESCE(age, 1))", "HASH(COALESCE(age, TRUE))", True),
        ("RANGE(age) SPLIT AT (0, 1)", "RANGE(age) SPLIT AT (0.0, 1)", False),
        ("HASH(COALESCE(age, 1))", "HASH(COALESCE(age, 1))", False),
    ],
)
def test_what_differs_by_the_type_of_a_constant_only_is_another_partitioning(
    before: str, after: str, changes: bool
) -> None:
    """Python takes 1 and TRUE for equal; keys do not, and take 0 and 0.0 for equal."""
    world = LayoutWorld()
    old = world.layout(OLD)
    parsed = parse_statement(f"CREATE INDEX by_city ON people (city, age) PARTITION BY {before}")
    assert old is not None
    assert isinstance(parsed, CreateIndex)
    world.leader.dictionary.put(replace(old, definition=parsed.definition))
    world.tick()
    world.sql(f"ALTER INDEX by_city PARTITION BY {after}")
    made = [one for one in world.leader.dictionary.catalog.indexes() if one.replaces]
    assert [f"PARTITION BY {after}" in one.definition.statement for one in made] == [True] * changes


def test_another_partitioning_leaves_the_rest_as_it_is() -> None:
    world = LayoutWorld()
    world.sql("ALTER INDEX by_city PARTITION BY RANGE(city) SPLIT AT ('F', 'M') SET (replicas=2)")
    new = world.new()
    assert new.definition.statement == (
        "CREATE INDEX by_city ON people (city) PARTITION BY RANGE(city) SPLIT AT ('F', 'M') "
        "WITH (slices=3, replicas=2)"
    )
    assert new.state == "DEFERRED"
    assert world.built().state == "READY"
    world.live(1_000)
    assert bearer(world) == new.id


@pytest.mark.parametrize(
    "text",
    [
        "ALTER INDEX by_city PARTITION BY RANGE(age)",
        "ALTER INDEX by_city PARTITION BY RANGE(age) SET (slices=2)",
        "ALTER INDEX by_city SPLIT PARTITION 0 AT (10)",
        "ALTER INDEX by_city SET (slices=2)",
    ],
)
def test_a_statement_that_says_what_there_is_changes_nothing(text: str) -> None:
    world = ranged()
    before = dict(world.written)
    world.sql(text)
    world.tick()
    assert world.written == before


def test_an_index_that_is_not_built_is_only_written_down() -> None:
    world = CopyWorld(options=", defer_build=true")
    world.sql("ALTER INDEX by_city PARTITION BY RANGE(city) SPLIT AT ('F', 'M')")
    world.sql("ALTER INDEX by_city SPLIT PARTITION 2 AT ('S')")
    world.sql("ALTER INDEX by_city MERGE PARTITIONS 0, 1")
    (one,) = world.leader.dictionary.catalog.indexes()
    assert (one.state, one.slices) == ("DEFERRED", 3)
    assert "SPLIT AT ('M', 'S')" in one.definition.statement
    assert world.notes[-1].text == (
        "index by_city is to have 3 slices by RANGE(city), parted at 'M', 'S': its next build makes them"
    )
