"""What SQL understands, from the tables of the parser."""

from __future__ import annotations

from keytide.definition import index, statement, values
from keytide.definition.clauses import create, options
from keytide.query.parse import expressions
from keytide.structure import STRUCTURES
from tests.reference.writing import document, table

INTRODUCTION = """Statements are PostgreSQL's, as far as they go. What is behind each word: [define an
index](../define-an-index.md), [query](../query.md), [unique](../unique.md)."""
GRAMMAR = f"""```
CREATE [OR REPLACE] [UNIQUE] INDEX [IF NOT EXISTS] name ON keyspace
    [USING {" | ".join(STRUCTURES)}] (expression [ASC | DESC], ...)
    [INCLUDE (path, ...)]
    [PARTITION BY HASH(expression) | RANGE(expression) [SPLIT AT (constant, ...)]
        [SUBPARTITION BY HASH(id) SLICES n | SLICES (n, ...)]]
    [WITH (option = value, ...)]
    [WHERE condition]
ALTER INDEX name [PARTITION BY HASH(expression) | RANGE(expression) [SPLIT AT (constant, ...)]
        [SUBPARTITION BY HASH(id) SLICES n | SLICES (n, ...)]]
    [SET (option = value, ...)]
ALTER INDEX name PARTITION n SET (slices = n)
ALTER INDEX name SPLIT PARTITION n [AT (constant, ...)]
ALTER INDEX name MERGE PARTITIONS n, n
ALTER INDEX name RENAME TO name
DROP INDEX [IF EXISTS] name
BUILD INDEX ON keyspace (name, ...)
[EXPLAIN] SELECT [DISTINCT] expression [AS name], ... | * | aggregates
    FROM keyspace [WHERE condition] [GROUP BY ...] [ORDER BY ... [ASC | DESC]] [LIMIT n] [OFFSET n]
```"""
NODES = {
    "functions": "in expressions",
    "types": "of CAST",
    "operators": "between values",
    "comparisons": "in conditions, beside AND, OR, NOT, IN, BETWEEN, LIKE, IS [NOT] NULL | MISSING, = ANY",
    "aggregates": "in SELECT; COUNT also with * and DISTINCT",
    "options": "of CREATE INDEX, after WITH; "
    f"{', '.join(f'`{one}`' for one in statement.ALTERABLE)} also of ALTER INDEX, after SET",
}


def page() -> str:
    """docs/reference/sql.md."""
    words: dict[str, list[str]] = {
        "functions": [f"{name.upper()}" for name in values._CALLABLE],
        "types": sorted({str(name) for name in values._TYPES.values()}),
        "operators": list(values._BINARY.values()),
        "comparisons": list(values.COMPARISONS.values()),
        "aggregates": list(expressions.FUNCTIONS),
        "options": list(create.OPTIONS),
    }
    rows = [(name, " ".join(f"`{one}`" for one in listed), NODES[name]) for name, listed in words.items()]
    limits = [
        ("characters of a statement", f"{statement.MAX_STATEMENT:,}"),
        ("parts of a key", f"{index.MAX_KEY_PARTS:,}"),
        ("included paths", f"{index.MAX_INCLUDED:,}"),
        ("slices", f"{index.MAX_SLICES:,} (default {index.DEFAULT_SLICES})"),
        ("replicas: copies of each slice beside the first", f"{index.MAX_REPLICAS:,} (default 0)"),
        ("bytes of a split", f"{index.MAX_SPLIT_BYTES:,}"),
        ("depth of an expression", f"{options._MAX_DEPTH:,}"),
    ]
    refused = [(text,) for text in sorted(dict.fromkeys(values._INSTEAD.values()))]
    lines = ["## Statements", "", GRAMMAR, "", "## Words", "", *table(("", "words", "where"), rows)]
    lines += ["## Limits", "", *table(("of", "at most"), limits)]
    lines += ["## Refused, and what to write instead", "", *table(("what the error says",), refused)]
    return document("SQL", INTRODUCTION, lines)
