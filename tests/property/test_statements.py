"""Statements that are written from definitions are read back as the same, of any index, under any name; so
are records of them.
"""

from __future__ import annotations

import re
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlglot.dialects.postgres import Postgres
from sqlglot.parsers.postgres import PostgresParser

from keytide.catalog.records import IndexRecord, decode_record, encode_record
from keytide.definition.expression import same
from keytide.definition.fragments import parse_expression
from keytide.definition.index import IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.render import render_expression, render_name
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


# --- names ------------------------------------------------------------------------------------------------

KNOWN: Final = sorted(
    {
        spelt
        for word in (
            *(one for words in Postgres.Tokenizer.KEYWORDS for one in words.split()),
            *PostgresParser.FUNCTIONS,
            *PostgresParser.FUNCTION_PARSERS,
            *PostgresParser.NO_PAREN_FUNCTION_PARSERS,
            *("AT", "CASCADE", "CONCURRENTLY", "FIRST", "HASH", "LAST", "NULLS", "PARTITIONS", "RESTRICT"),
            *("SLICES", "SPLIT", "SUBPARTITION", "SYMMETRIC", "BTREE", "SPATIAL", "MISSING", "ID", ""),
        )
        if re.fullmatch("[A-Za-z0-9_]*", word)
        for spelt in (word, word.lower())
    }
)
"""Words that the tokenizer or the parser knows for something else than a name."""
KEYS_OF_NAMES: Final = (
    *("{}", "{}.b", "b.{}[0]", "{}[0]", "LOWER({})", "UNNEST({})", "COALESCE({}, b)", "COALESCE(b, {})"),
    *("CAST({} AS bigint)", "CAST({}.x AS text)", "-{}", "{} + 1", "1 - {}", "b || {}", "({} * 2) % {}"),
)
CONDITIONS_OF_NAMES: Final = (
    *("{}", "NOT {}", "{} = 1", "b <> {}", "{} IN (1, 2)", "b IN ({}, {})", "{} LIKE 'x'", "{} IS NULL"),
    *("b BETWEEN {} AND {}", "{} BETWEEN 1 AND 2", "{} OR {}", "b AND {}", "{} IS NOT MISSING"),
    *("{} < 1", "{} < {} AND b > 1", "{} > b", "b <= {}", "{}.x < 'x'", "{}[0] < b", "b.{}[1] < {}"),
    *("NOT ({} = 1 AND {})", "ST_Within({}, ST_Point(1, 2))", "ST_Distance({}, ST_Point(1, 2)) < {}"),
)


@settings(max_examples=share.examples(1_500), deadline=None)
@given(st.sampled_from(KNOWN), st.sampled_from(KEYS_OF_NAMES), st.sampled_from(CONDITIONS_OF_NAMES))
@example("current_date", "{}", "{}")
@example("for", "{}.b", "{} = 1")
@example("all", "COALESCE({}, b)", "{}")
@example("DESCRIBE", "LOWER({})", "{} = 1")
@example("range", "CAST({}.x AS text)", "{}")
@example("list", "{}[0]", "{}")
@example("list", "{}", "{} < {} AND b > 1")
@example("range", "{}", "{} < 1")
@example("array", "{}[0]", "b.{}[1] < {}")
@example("lock", "{}[0]", "{}")
@example("", "{}.b", "{}")
def test_a_field_may_have_any_name(word: str, key: str, condition: str) -> None:
    quoted = f'"{word}"'
    key, condition = key.replace("{}", quoted), condition.replace("{}", quoted)
    text = f"CREATE INDEX i ON k ({key} DESC) INCLUDE (b, {quoted}, c.{quoted}, {quoted}.b) WHERE {condition}"
    definition = definition_of(text)
    check_round_trips(definition)
    expression = definition.keys[0].expression
    assert same(parse_expression(render_expression(expression)), expression), "alone, as in a request"


@settings(max_examples=share.examples(300), deadline=None)
@given(st.sampled_from([word for word in KNOWN if word]))
@example("CONCURRENTLY")
@example("begin")
def test_an_index_may_have_any_name(word: str) -> None:
    made = definition_of(f'CREATE INDEX "{word}" ON "{word}" (a)')
    assert (made.name, made.keyspace) == (word, word)
    check_round_trips(made)
    name = render_name(word)
    assert parse_statement(f"ALTER INDEX {name} RENAME TO {name}") == RenameIndex(word, word)
    assert parse_statement(f"ALTER INDEX {name} SET (replicas=1)") == AlterIndex(word, 1)
    assert parse_statement(f"DROP INDEX {name}") == DropIndex(word)


def definition_of(text: str) -> IndexDefinition:
    parsed = parse_statement(text)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


def check_round_trips(definition: IndexDefinition) -> None:
    """See that its statement gives it back, to the bit, and so does its record."""
    text = normal_statement(definition)
    again = definition_of(text)
    assert again == replace(definition, statement=text)
    assert identity_of(again) == identity_of(replace(definition, statement=text))
    record = IndexRecord("i-1", definition, "READY", 1, [["n"]], "b", 0)
    key, written = "index/i-1", encode_record(record)
    read = decode_record(key, written)
    assert isinstance(read, IndexRecord)
    assert read == record
    assert encode_record(read) == written


def identity_of(definition: IndexDefinition) -> bytes:
    """Equal of equal definitions only: 1, 1.0 and TRUE are three constants."""
    return encode_record(IndexRecord("i-1", definition, "READY", 1, [], None, 0))
