"""What the writer of a query that no index serves may have meant: a keyspace or a field of another name, or a
string where a field stands. Hints only: what there is is known from the indexes, not from the documents."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from keytide.definition.expression import Path, walk
from keytide.definition.index import IndexDefinition
from keytide.definition.render import path_name
from keytide.model.hints import nearest
from keytide.query.parse.select import Select


def meant(select: Select, indexes: Sequence[IndexDefinition], keyspaces: Collection[str]) -> str:
    """A sentence, or "".

    Args:
        indexes: those of the query's keyspace.
        keyspaces: those that have indexes.
    """
    if not indexes:
        other = nearest(select.keyspace, set(keyspaces) - {select.keyspace})
        return f"Did you mean keyspace {other}? If not:" if other else ""
    known = {name for index in indexes for name in _fields(index)}
    unknown = sorted(
        {path_name(one) for node in select.nodes() for one in walk(node) if isinstance(one, Path)} - known
    )
    for name in unknown:
        if re.search(rf'[=<>(,]\s*+"{re.escape(name)}"', select.text):
            return f"\"{name}\" in double quotes is a field; write '{name}' if it is a string."
        if other := nearest(name, known):
            return f"Did you mean the field {other}, not {name}?"
    return ""


def _fields(index: IndexDefinition) -> Iterable[str]:
    nodes = [*(part.expression for part in index.keys), *index.include, index.partition]
    for node in [*nodes, index.where] if index.where is not None else nodes:
        yield from (path_name(one) for one in walk(node) if isinstance(one, Path))
