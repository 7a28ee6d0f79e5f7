"""What tests say of definitions and conditions in SQL, and the product has no use for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keytide.collation import encode_part
from keytide.definition.expression import Predicate
from keytide.definition.index import IndexDefinition
from keytide.definition.render import render_expression, render_name, render_predicate
from keytide.definition.sql import ExpressionReader
from keytide.definition.values import Dialect


def parse_predicate(text: str) -> Predicate:
    """The condition that `text` says; it may say UNNEST, as expressions in requests may."""
    return ExpressionReader(text).predicate(Dialect().tokenize(text))


def encode_splits(values: Iterable[Any]) -> tuple[bytes, ...]:
    """Given splits as routing takes them."""
    return tuple(map(encode_part, values))


def normal_statement(definition: IndexDefinition) -> str:
    """The statement in its normal form: equal definitions give equal text."""
    keys = ", ".join(
        render_expression(part.expression) + (" DESC" if part.descending else "") for part in definition.keys
    )
    unique = "UNIQUE " if definition.unique else ""
    lines = [
        f"CREATE {unique}INDEX {render_name(definition.name)} ON {render_name(definition.keyspace)} ({keys})"
    ]
    if definition.include:
        lines.append(f"INCLUDE ({', '.join(map(render_expression, definition.include))})")
    kind = definition.partition_kind.upper()
    lines.append(f"PARTITION BY {kind}({render_expression(definition.partition)})")
    if definition.given_splits:
        lines.append(f"SPLIT AT ({', '.join(map(render_expression, definition.given_splits))})")
    options = [f"slices={definition.slices}"]
    options += ["include_missing=true"] if definition.include_missing else []
    options += ["defer_build=true"] if definition.defer_build else []
    lines.append(f"WITH ({', '.join(options)})")
    if definition.where is not None:
        lines.append(f"WHERE {render_predicate(definition.where)}")
    return " ".join(lines)
