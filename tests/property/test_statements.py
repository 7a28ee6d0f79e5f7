"""Statements that are written from definitions are read back as the same: of any index, under any name."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keytide.definition.index import IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.render import render_name
from keytide.definition.statement import (
    AlterIndex,
    CreateIndex,
    DropIndex,
    RenameIndex,
    parse_statement,
)
from tests import share

WORDS = (
    "to",
    "rename",
    "SET",
    "Index",
    "on",
    "where",
    "select",
    "id",
    "with",
    "unnest",
    "_",
    "a-b",
    "a.b",
    "x",
)
NAMES = st.sampled_from(WORDS) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
KEYSPACES = st.sampled_from(("people", "my.topic", "a-b", "order", "2024"))
PATHS = st.sampled_from(("a", "b.c", "d[0].e", '"Upper"', '"two words"', '"select"'))
KEYS = st.sampled_from(
    (
        "a",
        "b.c DESC",
        "LOWER(d)",
        "UNNEST(tags)",
        "e + 1",
        "-f",
        "CAST(g AS bigint) DESC",
        "id",
        "h || 'x''y'",
    )
)
CONDITIONS = st.sampled_from(
    (
        "a = 1.0",
        "b = 'it''s'",
        "c IN (1, TRUE, NULL)",
        "d LIKE 'x%' AND NOT e IS MISSING",
        "f BETWEEN 1 AND 2",
    )
)
PARTITIONS = st.sampled_from(
    ("", "PARTITION BY HASH(id)", "PARTITION BY RANGE(a) SPLIT AT (1, 'm', 'x')", "PARTITION BY HASH(b.c)")
)


@st.composite
def definitions(draw: st.DrawFn) -> IndexDefinition:
    """Of an index as somebody may write it."""
    keys = draw(st.lists(KEYS, min_size=1, max_size=3, unique=True))
    include = draw(st.lists(PATHS, max_size=2, unique=True))
    partition = draw(PARTITIONS)
    options = [f"replicas={draw(st.integers(0, 3))}"]
    options += [] if "SPLIT" in partition else [f"slices={draw(st.integers(1, 64))}"]
    options += [
        one for one in ("include_missing=true", "defer_build=true", "auto_split=true") if draw(st.booleans())
    ]
    clauses = [
        f"INCLUDE ({', '.join(include)})" if include else "",
        partition,
        f"WITH ({', '.join(options)})",
        f"WHERE {draw(CONDITIONS)}" if draw(st.booleans()) else "",
    ]
    text = f"CREATE INDEX {render_name(draw(NAMES))} ON {render_name(draw(KEYSPACES))} ({', '.join(keys)}) "
    statement = parse_statement(text + " ".join(filter(None, clauses)))
    assert isinstance(statement, CreateIndex)
    return statement.definition


@settings(max_examples=share.examples(600), deadline=None)
@given(definitions(), NAMES, st.integers(0, 3))
def test_a_definition_that_is_altered_is_what_its_statement_says(
    definition: IndexDefinition, name: str, replicas: int
) -> None:
    altered = replace(definition, name=name, replicas=replicas)
    text = normal_statement(altered)
    again = parse_statement(text)
    assert isinstance(again, CreateIndex)
    assert again.definition == replace(altered, statement=text)
    assert normal_statement(again.definition) == text


@settings(max_examples=share.examples(300), deadline=None)
@given(NAMES, NAMES, st.integers(0, 3))
def test_names_are_read_as_they_are_written(name: str, other: str, replicas: int) -> None:
    old, new = render_name(name), render_name(other)
    assert parse_statement(f"ALTER INDEX {old} RENAME TO {new}") == RenameIndex(name, other)
    assert parse_statement(f"ALTER INDEX {old} SET (replicas={replicas})") == AlterIndex(name, replicas)
    assert parse_statement(f"DROP INDEX {old}") == DropIndex(name)
