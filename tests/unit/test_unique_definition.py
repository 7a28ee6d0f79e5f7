"""CREATE UNIQUE INDEX: what is taken, and what is refused with a way out."""

import pytest

from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.statement import CreateIndex, parse_statement


def definition(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


@pytest.mark.parametrize(
    "rest",
    [
        "(email)",
        "(LOWER(email), country DESC)",
        "(a, b) PARTITION BY HASH(b)",
        "(a, b) PARTITION BY RANGE(b)",
        "(UNNEST(tags)) PARTITION BY HASH(UNNEST(tags))",
        "(id) PARTITION BY HASH(id)",
        "(email) INCLUDE (name) WITH (slices=2) WHERE active = true",
    ],
)
def test_partitioned_by_a_part_of_its_key(rest: str) -> None:
    made = definition(f"CREATE UNIQUE INDEX u ON k {rest}")
    assert made.unique
    assert made.partition_part is not None
    assert normal_statement(made).startswith("CREATE UNIQUE INDEX u ON k (")
    assert normal_statement(definition(normal_statement(made))) == normal_statement(made)
    plain = definition(f"CREATE INDEX u ON k {rest}")
    assert not plain.unique
    assert normal_statement(plain) == normal_statement(made).replace("UNIQUE ", "")


@pytest.mark.parametrize(
    ("rest", "caret"),
    [
        ("(email) PARTITION BY HASH(id)", "id"),
        ("(email) PARTITION BY RANGE(id)", "id"),
        ("(email) PARTITION BY HASH(country)", "country"),
        ("(a) PARTITION BY HASH(CAST(a AS STRING))", "CAST(a AS STRING)"),
        ("(a) PARTITION BY HASH(UNNEST(tags))", "UNNEST(tags)"),
        ("(LOWER(email)) PARTITION BY HASH(email)", "email"),
    ],
)
def test_other_partitionings_are_refused_with_a_way_out(rest: str, caret: str) -> None:
    with pytest.raises(InvalidStatementError, match="lie in one slice") as caught:
        definition(f"CREATE UNIQUE INDEX u ON k {rest}")
    shown, marks = caught.value.caret.split("\n")
    assert shown[marks.index("^") : marks.rindex("^") + 1] == caret
    assert "Leave PARTITION BY out" in caught.value.next_step


def test_unique_stands_before_index() -> None:
    with pytest.raises(InvalidStatementError, match="INDEX must stand here"):
        definition("CREATE UNIQUE TABLE u ON k (a)")
    with pytest.raises(InvalidStatementError):
        definition("CREATE INDEX UNIQUE u ON k (a)")
