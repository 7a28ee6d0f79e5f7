"""What helps a slice that gets more than the others: by why it does."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from coordinator.core.slice_loads import Hot, Measure
from coordinator.statements.advice import Advice, advice, halving_split, rising
from coordinator.statements.partitions import repartitioned
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord
from keytide.collation import encode_part
from keytide.collation.layout import Value
from keytide.definition.statement import (
    Alteration,
    AlterIndex,
    CreateIndex,
    SplitPartition,
    SpreadPartition,
    parse_statement,
)
from keytide.wire.index_lists import WrittenSlice, WrittenValue


def index(statement: str, splits: Sequence[Value] = ()) -> IndexRecord:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    placement = [["n1"]] * parsed.definition.slices
    encoded = tuple(map(encode_part, splits))
    return IndexRecord("i-1", parsed.definition, "READY", 1, placement, "b", 0, splits=encoded)


def written(
    heavy: Sequence[tuple[Value, float]] = (),
    before: Sequence[Value] = (),
    listed: Sequence[Value] = (),
    known: bool = True,
) -> WrittenSlice:
    values = [WrittenValue(encode_part(value), share, share + 1) for value, share in heavy]
    lists = tuple(map(encode_part, before)), tuple(map(encode_part, listed))
    return WrittenSlice(3, known, 100.0, values, *lists)


def advised(of: IndexRecord, told: WrittenSlice | None, measure: Measure = "writes") -> Advice:
    found = advice(of, Hot(3, measure, 900, 100), told)
    if found.statement is not None:
        parsed = parse_statement(found.statement)  # it can be run as it is
        assert isinstance(parsed, CreateIndex | AlterIndex | SplitPartition | SpreadPartition)
        assert not isinstance(parsed, CreateIndex) or parsed.or_replace
    return found


HASH = "CREATE INDEX i ON people (city) INCLUDE (age) WITH (slices=4, replicas=1)"
RANGE = "CREATE INDEX i ON people (age) PARTITION BY RANGE(age) WITH (slices=4)"
GIVEN = "CREATE INDEX i ON people (age) PARTITION BY RANGE(age) SPLIT AT (10, 20, 30)"


def test_a_partition_with_one_value_with_most_of_the_load_is_spread_by_document_id() -> None:
    found = advised(index(HASH), written([("Rome", 81), ("Oslo", 3)]))
    assert found.text == (
        "city = 'Rome' has at least 81 % of what is written to it: have partition 3 spread over 4 slices by "
        "the document id. The price: scans with city = 'Rome' ask these 4 slices then, all at once"
    )
    assert found.statement == "ALTER INDEX i PARTITION 3 SET (slices=4)"


def test_so_it_is_by_range() -> None:
    found = advised(index(GIVEN), written([(35, 60)], range(40), range(40)))
    assert found.statement == "ALTER INDEX i PARTITION 3 SET (slices=4)"


def test_a_unique_index_cannot_be_partitioned_by_document_id() -> None:
    found = advised(index("CREATE UNIQUE INDEX i ON people (city, age)"), written([("Rome", 81)]))
    assert "another part of its key only" in found.text
    assert found.statement is None


def test_a_document_is_not_parted() -> None:
    found = advised(index("CREATE INDEX i ON people (city) PARTITION BY HASH(id)"), written([("d7", 90)]))
    assert found.text.startswith("document 'd7' has at least 90 %")
    assert found.statement is None


@pytest.mark.parametrize("told", [None, written([("Rome", 20), ("Oslo", 19)]), written(known=False)])
def test_by_hash_with_several_values_more_slices_help(told: WrittenSlice | None) -> None:
    found = advised(index(HASH), told)
    assert found.statement == "ALTER INDEX i SET (slices=8)"
    assert ("entries do not say" in found.text) == (told is not None and not told.known)


IDLE = WrittenSlice(3, True, 0.0)


@pytest.mark.parametrize(
    ("measure", "told", "why"),
    [
        ("entries", IDLE, "nothing is written to it now"),
        ("writes", IDLE, "nothing is written to it now"),
        ("entries", None, "its node has not said"),
        ("writes", None, "its node has not said"),
        ("entries", written(known=False), "entries do not say"),
        ("entries", written([("Rome", 20), ("Oslo", 19)]), "does not say what it holds"),
    ],
)
def test_where_nothing_is_known_of_values_both_ways_are_named(
    measure: Measure, told: WrittenSlice | None, why: str
) -> None:
    for of in (index(HASH), index(RANGE, (10, 20, 30)), index(GIVEN)):
        found = advised(of, told, measure)
        assert "not known" in found.text
        assert why in found.text
        assert "several values" not in found.text
        named = re.findall(r"\((ALTER INDEX i .*?\))\)", found.text)
        assert named[-1] == "ALTER INDEX i PARTITION 3 SET (slices=4)"
        assert of.definition.partition_kind == "range" or named[0] == found.statement
        for one in named:
            parsed = parse_statement(one)
            assert isinstance(parsed, Alteration)
            assert repartitioned(of, parsed).slices > of.slices


@pytest.mark.parametrize("told", [IDLE, written([("d1", 20), ("d2", 19)])])
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE UNIQUE INDEX i ON people (city)", "one value is not parted in a UNIQUE index"),
        ("CREATE INDEX i ON people (city) PARTITION BY HASH(id)", "a document is not parted"),
    ],
)
def test_what_cannot_be_spread_is_not_said_to_be(told: WrittenSlice, statement: str, said: str) -> None:
    found = advised(index(statement), told)
    assert found.text.endswith(said)
    assert "PARTITION 3" not in found.text


def test_there_are_no_more_slices_than_there_may_be() -> None:
    bound = advice(index(HASH), Hot(3, "writes", 900, 100), None, 6)
    assert bound.statement == "ALTER INDEX i SET (slices=6)"
    assert advised(index("CREATE INDEX i ON people (city) WITH (slices=1024)"), None).statement is None
    most = advised(index("CREATE INDEX i ON people (city) WITH (slices=1000)"), None)
    assert most.statement == "ALTER INDEX i SET (slices=1024)"


def test_copies_share_reads() -> None:
    assert advised(index(HASH), None, "reads").statement == "ALTER INDEX i SET (replicas=2)"
    full = index("CREATE INDEX i ON people (city) WITH (slices=4, replicas=3)")
    assert advised(full, None, "reads").statement == "ALTER INDEX i SET (slices=8)"


# --- by range -----------------------------------------------------------------------------------------------


def ages() -> list[int]:
    """Values above the last split, at random, half of them below 50."""
    rng = random.Random(3)
    return [rng.randrange(30, 50) if rng.random() < 0.5 else rng.randrange(50, 1_000) for _ in range(400)]


@pytest.mark.parametrize(
    ("statement", "splits"), [(GIVEN, ()), (RANGE, (10, 20, 30))], ids=["given", "found by the build"]
)
def test_a_split_where_half_the_load_lies_is_named(statement: str, splits: Sequence[int]) -> None:
    of, values = index(statement, splits), ages()
    told = written((), values[:200], values[200:])
    found = advised(of, told)
    split = halving_split(of, 3, told)
    assert split is not None
    parsed = parse_statement(found.statement or "")
    assert isinstance(parsed, SplitPartition)
    assert (parsed.name, parsed.partition) == ("i", 3)
    definition = repartitioned(of, parsed)
    assert definition.slices == 5
    new = Partitioning.of(definition)
    assert new.splits == (*map(encode_part, (10, 20, 30)), split)
    shares = [sum(new.partition_of(encode_part(one)) == number for one in values) for number in range(5)]
    assert shares[:3] == [0, 0, 0]
    assert 150 <= shares[3] <= 250


def test_a_split_lies_within_the_slice() -> None:
    of = index(GIVEN)
    assert halving_split(of, 3, written((), [30] * 20, range(31, 41))) == encode_part(31)
    assert halving_split(of, 3, written((), [30] * 30)) is None
    assert halving_split(of, 0, written((), [1, 2])) is None  # too few to say


def test_values_that_rise_are_not_parted_by_range() -> None:
    assert rising([encode_part(one) for one in range(100)], [encode_part(one) for one in range(100, 200)])
    assert not rising([encode_part(one) for one in range(100)], [encode_part(one) for one in range(100)])
    assert not rising([], [encode_part(one) for one in range(100)])
    found = advised(index(RANGE, (10, 20, 30)), written((), range(100), range(100, 200)))
    assert found.text.startswith("age rises, so all that is written lies behind the last split")
    assert (
        found.statement == "CREATE OR REPLACE INDEX i ON people (age) PARTITION BY HASH(age) WITH (slices=4)"
    )


def test_a_slice_that_holds_too_much_gets_other_splits() -> None:
    assert advised(index(RANGE, (10, 20, 30)), None, "entries").statement == "ALTER INDEX i SET (slices=8)"
    assert advised(index(GIVEN), written(), "entries").statement == (
        "CREATE OR REPLACE INDEX i ON people (age) PARTITION BY RANGE(age) WITH (slices=4)"
    )


def test_splits_that_no_statement_can_write_are_told_in_words() -> None:
    values: list[Value] = [[one] for one in range(40)]
    found = advised(index(RANGE, ()), written((), values))
    assert found == Advice("about half of what is written to it lies at or above [20]: part it there")
