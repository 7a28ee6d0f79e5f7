"""Statements: what is accepted and in which normal form, and what is refused, why and where."""

from __future__ import annotations

import msgspec
import pytest

from keytide.definition.errors import InvalidStatementError, QueryElsewhereError
from keytide.definition.expression import DocumentId, Literal, Path
from keytide.definition.index import IndexDefinition, PartitionBy
from keytide.definition.normal import normal_statement
from keytide.definition.statement import (
    AlterIndex,
    BuildIndex,
    CreateIndex,
    DropIndex,
    MergePartitions,
    RenameIndex,
    SplitPartition,
    parse_statement,
)
from keytide.errors import CallerError


def definition(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


@pytest.mark.parametrize(
    ("statement", "normal"),
    [
        (
            "CREATE INDEX by_city ON users (city)",
            "CREATE INDEX by_city ON users (city) PARTITION BY HASH(city) WITH (slices=8)",
        ),
        (
            'create index by_city on my-topic.v1 (address.city, "q r"[0] DESC, lower(name) asc)\n'
            "with (slices=4, defer_build=true) include (a.b, c) where age >= 18 and not (x is missing or"
            " y in (1, 'a', -2.5, null)) -- adults\n partition by hash(id);",
            'CREATE INDEX by_city ON "my-topic.v1" (address.city, "q r"[0] DESC, LOWER(name))'
            " INCLUDE (a.b, c) PARTITION BY HASH(id) WITH (slices=4, defer_build=true)"
            " WHERE (age >= 18 AND NOT ((x IS MISSING OR y IN (1, 'a', -2.5, NULL))))",
        ),
        (
            "CREATE INDEX t ON k (UNNEST(tags), price*2-1 DESC)"
            " WHERE a LIKE 'x!%%' ESCAPE '!' AND b NOT BETWEEN 1 AND 2 WITH (include_missing)",
            "CREATE INDEX t ON k (UNNEST(tags), ((price * 2) - 1) DESC) PARTITION BY HASH(UNNEST(tags))"
            " WITH (slices=8, include_missing=true)"
            " WHERE ((a LIKE 'x!%%' ESCAPE '!') AND NOT ((b >= 1 AND b <= 2)))",
        ),
        (
            "CREATE INDEX t ON k (COALESCE(a, b, 'it''s') || c, a::text, CAST(b AS double precision), id,"
            ' "id", LENGTH(x[2].y)) WHERE active OR NOT flag',
            "CREATE INDEX t ON k ((COALESCE(a, b, 'it''s') || c), CAST(a AS text),"
            ' CAST(b AS double precision), id, "id", LENGTH(x[2].y))'
            " PARTITION BY HASH((COALESCE(a, b, 'it''s') || c)) WITH (slices=8)"
            " WHERE (active OR NOT (flag))",
        ),
        (
            "CREATE INDEX x ON k (a.b.c.d.e.f[0][1].g, comment, left.order, -x, a / (b % c))"
            " PARTITION  BY HASH (UPPER(b)) WHERE include.with = 1.0 AND b <> TRUE",
            'CREATE INDEX x ON k (a.b.c.d.e.f[0][1].g, comment, left."order", (- x), (a / (b % c)))'
            ' PARTITION BY HASH(UPPER(b)) WITH (slices=8) WHERE ("include"."with" = 1.0 AND b <> TRUE)',
        ),
        (
            "CREATE INDEX x ON k (cityName) WHERE a IS NOT NULL AND b IS NOT MISSING"
            " AND c NOT LIKE '_' AND d NOT IN (1)",
            "CREATE INDEX x ON k (cityName) PARTITION BY HASH(cityName) WITH (slices=8)"
            " WHERE (NOT (a IS NULL) AND NOT (b IS MISSING) AND NOT ((c LIKE '_')) AND NOT (d IN (1)))",
        ),
        (
            'CREATE INDEX "a-b" ON my.topic (a) WITH (REPLICAS = 3, slices=2)',
            'CREATE INDEX "a-b" ON "my.topic" (a) PARTITION BY HASH(a) WITH (slices=2, replicas=3)',
        ),
        (
            "CREATE INDEX x ON k (a) WITH (replicas=0)",
            "CREATE INDEX x ON k (a) PARTITION BY HASH(a) WITH (slices=8)",
        ),
    ],
)
def test_normal_form(statement: str, normal: str) -> None:
    made = definition(statement)
    assert normal_statement(made) == normal
    assert made.statement == statement.strip()
    again = definition(normal)
    assert normal_statement(again) == normal
    assert msgspec.structs.replace(again, statement=made.statement) == made


def test_json_form_is_complete() -> None:
    made = definition(
        "CREATE INDEX x ON k (UNNEST(a.b[0]), LENGTH(c) DESC, id, CAST(d AS bigint) + 1.0, -e) INCLUDE (f)"
        " WHERE a = 1.0 OR b = 1 OR c = TRUE OR d IS NULL OR e LIKE 'x' OR f IN ('x', 2) OR g"
        " OR NOT h IS MISSING WITH (include_missing=on, defer_build=off, slices=3)"
    )
    text = msgspec.json.encode(made)
    again = msgspec.json.decode(text, type=IndexDefinition)
    assert again == made
    assert normal_statement(again) == normal_statement(made), "1.0, 1 and true stay apart"


def test_properties_of_a_definition() -> None:
    made = definition(
        "CREATE INDEX x ON k (a, UNNEST(b) DESC) INCLUDE (c.d, e[0]) PARTITION BY HASH(UNNEST(b))"
    )
    assert made.descending == (False, True)
    assert made.unnest is not None
    assert made.include_names == ("c.d", "e[0]")
    assert made.partition_part == 1
    assert not made.partitioned_by_id
    plain = definition("CREATE INDEX IF NOT EXISTS x ON k (a) PARTITION BY HASH(id)")
    assert plain.descending == ()
    assert plain.unnest is None
    assert plain.partition_part is None
    assert plain.partitioned_by_id


def test_other_statements() -> None:
    assert parse_statement("DROP INDEX x") == DropIndex("x")
    assert parse_statement("drop index if exists x;") == DropIndex("x", if_exists=True)
    assert parse_statement("BUILD INDEX ON flights (a, b-c)") == BuildIndex("flights", ("a", "b-c"))
    assert parse_statement("ALTER INDEX a-b SET (replicas=2)") == AlterIndex("a-b", 2)
    assert parse_statement('alter index "x" set (REPLICAS = 0);') == AlterIndex("x", 0)
    assert parse_statement("ALTER INDEX x SET (slices=3)") == AlterIndex("x", slices=3)
    assert parse_statement("ALTER INDEX x SET (slices=3, replicas=1)") == AlterIndex("x", 1, 3)
    assert parse_statement("ALTER INDEX x SET (auto_split)") == AlterIndex("x", auto_split=True)
    assert parse_statement("ALTER INDEX x SET (auto_split=OFF)") == AlterIndex("x", auto_split=False)
    assert parse_statement("ALTER INDEX a-b RENAME TO a.c") == RenameIndex("a-b", "a.c")
    assert parse_statement('alter index rename rename to "to";') == RenameIndex("rename", "to")
    created = parse_statement("CREATE INDEX IF NOT EXISTS x ON k (a)")
    assert isinstance(created, CreateIndex)
    assert created.if_not_exists
    assert not created.or_replace
    replaced = parse_statement("create or replace unique index x ON k (a) WITH (slices=2, defer_build=false)")
    assert isinstance(replaced, CreateIndex)
    assert replaced.or_replace
    assert replaced.said == {"slices", "partitions", "defer_build"}
    split = parse_statement("CREATE INDEX x ON k (a) PARTITION BY RANGE(a) SPLIT AT (1)")
    assert isinstance(split, CreateIndex)
    assert split.said == {"partitions"}


def test_other_slices() -> None:
    city, age = Path(("city",)), Path(("age",))
    by_id = AlterIndex("x", partition=PartitionBy("hash", DocumentId()))
    assert parse_statement("ALTER INDEX x PARTITION BY HASH(id)") == by_id
    found = parse_statement("ALTER INDEX x PARTITION BY RANGE(age) SPLIT AT (1, 'a') SET (replicas=1);")
    splits = (Literal(1), Literal("a"))
    assert found == AlterIndex("x", 1, 3, partition=PartitionBy("range", age, splits))
    found = parse_statement("ALTER INDEX x PARTITION BY RANGE(city) SET (slices=5, auto_split=true)")
    assert found == AlterIndex("x", None, 5, True, PartitionBy("range", city))
    assert parse_statement("ALTER INDEX x SPLIT PARTITION 3 AT (1, 'a')") == SplitPartition("x", 3, splits)
    assert parse_statement("alter index x split partition 3") == SplitPartition("x", 3)
    assert parse_statement("ALTER INDEX x MERGE PARTITIONS 3, 4") == MergePartitions("x", 3, 4)


@pytest.mark.parametrize(
    ("statement", "reason", "line", "column"),
    [
        ("", "there is no statement", 1, 1),
        ("INSERT INTO x", "'INSERT' begins no statement", 1, 1),
        ("CREATE TABLE x", "INDEX must stand here, not 'TABLE'", 1, 8),
        ("CREATE INDEX x", "ON must stand here", 1, 15),
        ("CREATE INDEX 1x ON k (a)", "'1x' cannot be the name of an index", 1, 14),
        ('CREATE INDEX x ON "k k" (a)', "'k k' cannot be the name of a keyspace", 1, 19),
        ("CREATE INDEX x ON k", "a list in parentheses must stand here: an expression", 1, 20),
        ("CREATE INDEX x ON k ()", "an expression must stand here", 1, 22),
        ("CREATE INDEX x ON k (a,)", "an expression must stand here", 1, 24),
        ("CREATE INDEX x ON k (a", "this parenthesis is not closed", 1, 21),
        ("CREATE INDEX x ON k (a b)", "'b' does not fit here", 1, 24),
        ("CREATE INDEX x ON k (1)", "a key must say something about the document", 1, 22),
        ("CREATE INDEX x ON k (a > 5)", "a condition cannot stand here", 1, 22),
        ("CREATE INDEX x ON k (foo(a))", "there is no function FOO for indexes", 1, 22),
        ("CREATE INDEX x ON k (b, sum(a))", "there is no function SUM for indexes", 1, 25),
        ("CREATE INDEX x ON k (LENGTH(a, b))", "LENGTH takes one argument", 1, 22),
        ("CREATE INDEX x ON k (LOWER())", "something is missing here", 1, 28),
        ("CREATE INDEX x ON k (CAST(a AS date))", "there is no type DATE to cast to", 1, 27),
        ("CREATE INDEX x ON k (UNNEST(a), UNNEST(b))", "an index has at most one UNNEST", 1, 21),
        ("CREATE INDEX x ON k (UNNEST(a).b)", "a path cannot go on behind UNNEST", 1, 22),
        ("CREATE INDEX x ON k (tags[-1])", "a position in an array is one number, counted from 0", 1, 22),
        ("CREATE INDEX x ON k (a[1:2])", "a position in an array is one number, counted from 0", 1, 22),
        ("CREATE INDEX x ON k (a->>'b')", "->> is not supported: write a path", 1, 22),
        ("CREATE INDEX x ON k (a, a)", "a stands twice in the key", 1, 21),
        ("CREATE INDEX x ON k (a NULLS LAST)", "NULLS LAST is not supported", 1, 24),
        ("CREATE INDEX CONCURRENTLY x ON k (a)", "CONCURRENTLY is not needed", 1, 14),
        ("CREATE INDEX x ON k USING gin (a)", "there is no structure 'gin'", 1, 27),
        ("CREATE INDEX x ON k (a) FOO", "'FOO' does not fit here", 1, 25),
        ("CREATE INDEX x ON k (a) WITH (shards=2)", "there is no option shards", 1, 31),
        ("CREATE INDEX x ON k (a) WITH (slices=0)", "this must be a whole number from 1 to 1024", 1, 38),
        ("CREATE INDEX x ON k (a) WITH (slices)", "this must be a whole number from 1 to 1024", 1, 31),
        ("CREATE INDEX x ON k (a) WITH (defer_build=1)", "this must be true or false", 1, 43),
        ("CREATE INDEX x ON k (a) WITH (slices=2) WITH (slices=3)", "WITH stands twice", 1, 41),
        ("CREATE INDEX x ON k (a)\n  INCLUDE (LOWER(b))", "INCLUDE takes paths", 2, 12),
        ("CREATE INDEX x ON k (a) INCLUDE (b, b)", "b stands twice", 1, 37),
        ("CREATE INDEX x ON k (a) PARTITION BY a", "HASH must stand here, not 'a'", 1, 38),
        (
            "CREATE INDEX x ON k (a) PARTITION BY HASH(UNNEST(a))",
            "UNNEST in HASH must be written as in the key",
            1,
            21,
        ),
        ("CREATE INDEX x ON k (a) WHERE", "WHERE needs a condition", 1, 25),
        ("CREATE INDEX x ON k (a) WHERE a =", "something is missing here", 1, 33),
        ("CREATE INDEX x ON k (a)\nWHERE a = 'x", "what begins here is not closed", 2, 11),
        ("CREATE INDEX x ON k (a) /* hm", "what begins here is not closed", 1, 25),
        ("CREATE INDEX x ON k (a) WHERE UNNEST(a) = 1", "UNNEST cannot stand in WHERE", 1, 31),
        ("CREATE INDEX x ON k (a) WHERE a ILIKE 'x'", "ILIKE is not supported", 1, 31),
        ("CREATE INDEX x ON k (a) WHERE a IN (SELECT 1)", "IN takes a list of values", 1, 31),
        ("CREATE INDEX x ON k (a) WHERE a LIKE b", "LIKE takes a pattern in quotes", 1, 38),
        ("CREATE INDEX x ON k (a) WHERE a LIKE 'x\\'", "a LIKE pattern must not end with", 1, 38),
        ("CREATE INDEX x ON k (a) WHERE a IS TRUE", "IS takes [NOT] NULL or [NOT] MISSING", 1, 31),
        ("CREATE INDEX x ON k (a) WHERE a = MISSING", "MISSING is no value", 1, 35),
        ("CREATE INDEX x ON k (a) WHERE a > 1e999", "this number is too large", 1, 35),
        pytest.param(
            f"CREATE INDEX x ON k (a) WHERE a > {'9' * 5_000}", "this number is too large", 1, 35, id="digits"
        ),
        ("CREATE INDEX x ON k (a) WHERE $1 = a", "parameters are not supported", 1, 32),
        ('CREATE INDEX x ON k ("a\\b")', "a field whose name has a quote, a backslash", 1, 22),
        ("CREATE INDEX x ON k (a); DROP INDEX x", "'DROP' does not fit here", 1, 26),
        ("DROP INDEX", "the name of an index must stand here", 1, 11),
        ("DROP INDEX x CASCADE", "CASCADE is not needed", 1, 14),
        ("BUILD INDEX k (a)", "ON must stand here, not 'k'", 1, 13),
        ("CREATE INDEX x ON k (a) WITH (replicas=4)", "a whole number from 0 to 3", 1, 40),
        ("CREATE INDEX x ON k (a) WITH (replicas=-1)", "a whole number from 0 to 3", 1, 41),
        ("CREATE INDEX x ON k (a) WITH (replicas 1)", "an option is name=value", 1, 31),
        ("CREATE INDEX x ON k (a) WITH (replicas=- - 1)", "an option is name=value", 1, 31),
        ("CREATE INDEX x ON k USING spatial (a) WITH (srid=-1)", "there is no system -1 here", 1, 51),
        ("CREATE INDEX x ON k (a) WITH (replicas=all)", "a whole number from 0 to 3", 1, 40),
        ("ALTER INDEX x RENAME y", "TO must stand here, not 'y'", 1, 22),
        ("ALTER INDEX x RENAME TO", "the name of an index must stand here", 1, 24),
        ("ALTER INDEX x RENAME TO 1x", "cannot be the name of an index", 1, 25),
        ("ALTER INDEX x RENAME TO y z", "'z' does not fit here", 1, 27),
        ("ALTER INDEX x (replicas=1)", "SET must stand here, not '('", 1, 15),
        ("ALTER INDEX x SET replicas=1", "a list in parentheses must stand here", 1, 19),
        ("ALTER INDEX x SET ()", "an option, as in slices=8 must stand here", 1, 20),
        ("ALTER INDEX x SET (replicas=4)", "a whole number from 0 to 3", 1, 29),
        ("ALTER INDEX x SET (replicas=1, replicas=2)", "replicas stands twice", 1, 32),
        ("ALTER INDEX x SET (include_missing=true)", "said when an index is made, and stays", 1, 20),
        ("ALTER INDEX x SET (replica=1)", "there is no option replica", 1, 20),
        ("ALTER INDEX x SET (auto_split=3)", "this must be true or false", 1, 31),
        ("ALTER INDEX x PARTITION BY LIST(a)", "HASH must stand here, not 'LIST'", 1, 28),
        ("ALTER INDEX x PARTITION BY HASH(a) SPLIT AT (1)", "a hash has no splits", 1, 36),
        ("ALTER INDEX x PARTITION BY RANGE(a) WITH (slices=2)", "SET must stand here, not 'WITH'", 1, 37),
        (
            "ALTER INDEX x PARTITION BY RANGE(a) SPLIT AT (1) SET (slices=3)",
            "1 splits make 2 slices, not 3",
            1,
            62,
        ),
        ("ALTER INDEX x SPLIT 2", "PARTITION must stand here, not '2'", 1, 21),
        ("ALTER INDEX x SPLIT PARTITION", "the number of a partition must stand here", 1, 30),
        ("ALTER INDEX x SPLIT PARTITION n AT (1)", "a whole number from 0 to 1023", 1, 31),
        ("ALTER INDEX x SPLIT PARTITION 1024 AT (1)", "a whole number from 0 to 1023", 1, 31),
        ("ALTER INDEX x SPLIT PARTITION 1 AT (2, 1)", "splits must ascend", 1, 40),
        ("ALTER INDEX x SPLIT PARTITION 1 AT (2, 2)", "splits must ascend", 1, 40),
        ("ALTER INDEX x SPLIT PARTITION 1 AT (city)", "SPLIT AT takes values", 1, 37),
        ("ALTER INDEX x MERGE 1, 2", "PARTITIONS must stand here, not '1'", 1, 21),
        ("ALTER INDEX x MERGE PARTITIONS 1", ", must stand here", 1, 33),
        ("ALTER INDEX x MERGE PARTITIONS 1, 2, 3", "',' does not fit here", 1, 36),
        ("ALTER INDEX x SET (replicas=1) WHERE a", "'WHERE' does not fit here", 1, 32),
        ("BUILD INDEX ON k (a, a)", "a stands twice", 1, 22),
        ("CREATE INDEX x ON k (\ud800)", "the statement is not valid Unicode", 1, 22),
        pytest.param(
            "CREATE INDEX x ON k (" + "(" * 3000 + "a" + ")" * 3000 + ")",
            "nested too deeply",
            1,
            22,
            id="deep",
        ),
        pytest.param("CREATE INDEX x ON k (" + "a+" * 100 + "a)", "too large", 1, 22, id="large"),
    ],
)
def test_refusals_say_what_and_where(statement: str, reason: str, line: int, column: int) -> None:
    with pytest.raises(InvalidStatementError) as caught:
        parse_statement(statement)
    error = caught.value
    assert reason in error.reason
    assert (error.line, error.column) == (line, column)
    assert isinstance(error, CallerError)
    problem = error.problem()
    assert problem["type"] == "invalid-statement"
    assert (problem["line"], problem["column"]) == (line, column)


@pytest.mark.parametrize("statement", ["SELECT * FROM k", "EXPLAIN SELECT 1"])
def test_queries_are_sent_on_to_the_nodes(statement: str) -> None:
    with pytest.raises(QueryElsewhereError, match="nodes") as caught:
        parse_statement(statement)
    assert (caught.value.column, caught.value.problem_type) == (1, "ask-a-node")
    assert "/v1/query" in caught.value.next_step


def test_the_caret_stands_under_the_place() -> None:
    with pytest.raises(InvalidStatementError) as caught:
        parse_statement("CREATE INDEX x ON k (a)\n\tWITH (slices=4, shards=2)")
    shown, marks = caught.value.caret.split("\n")
    assert shown[marks.index("^") :].startswith("shards")
    assert marks.count("^") == len("shards")
    with pytest.raises(InvalidStatementError) as caught:
        parse_statement("CREATE INDEX x ON k (" + "long_name, " * 100 + "bad name)")
    shown, marks = caught.value.caret.split("\n")
    assert shown[marks.index("^") :].startswith("name")
    assert len(shown) < 110
