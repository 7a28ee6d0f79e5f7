"""Definitions back to CREATE INDEX, in one normal form: what `show` prints of an index that was altered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from keytide.definition.expression import DocumentId
from keytide.definition.index import IndexDefinition
from keytide.definition.names import free_name
from keytide.definition.render import render_expression, render_name, render_predicate
from keytide.structure import DEFAULT_STRUCTURE

_STEM: Final = 100
"""Of an index's name, that another name begins with."""


def normal_statement(definition: IndexDefinition, *, name_btree: bool = False) -> str:
    """The CREATE INDEX that makes this index, in its normal form: equal definitions give equal text, and
    the statement gives the definition back (but for what it was written like).

    Args:
        name_btree: USING is written of a btree, too.
    """
    keys = ", ".join(
        render_expression(part.expression) + (" DESC" if part.descending else "") for part in definition.keys
    )
    unique = "UNIQUE " if definition.unique else ""
    using = "" if definition.using == DEFAULT_STRUCTURE and not name_btree else f"USING {definition.using} "
    on = f"ON {render_name(definition.keyspace)} {using}({keys})"
    lines = [f"CREATE {unique}INDEX {render_name(definition.name)} {on}"]
    if definition.include:
        lines.append(f"INCLUDE ({', '.join(map(render_expression, definition.include))})")
    kind = definition.partition_kind.upper()
    lines.append(f"PARTITION BY {kind}({render_expression(definition.partition)})")
    if definition.given_splits:
        lines.append(f"SPLIT AT ({', '.join(map(render_expression, definition.given_splits))})")
    if definition.spread:
        lines.append(f"SUBPARTITION BY HASH(id) SLICES {render_slices(definition.spread)}")
    options = [] if definition.spread else [f"slices={definition.slices}"]
    if len(set(definition.spread)) == 1 and not definition.given_splits:
        options = [f"partitions={definition.partitions}"]
    options += [f"replicas={definition.replicas}"] if definition.replicas else []
    options += ["include_missing=true"] if definition.include_missing else []
    options += ["defer_build=true"] if definition.defer_build else []
    options += ["auto_split=true"] if definition.splits_itself else []
    options += [] if definition.srid is msgspec.UNSET else [f"srid={definition.srid}"]
    if options:
        lines.append(f"WITH ({', '.join(options)})")
    if definition.where is not None:
        lines.append(f"WHERE {render_predicate(definition.where)}")
    return " ".join(lines)


def render_slices(spread: Sequence[int]) -> str:
    """Of how many slices partitions are, as SLICES has it: one number where all have the same."""
    return str(spread[0]) if len(set(spread)) == 1 else f"({', '.join(map(str, spread))})"


def ordered_statement(definition: IndexDefinition, taken: Collection[str]) -> str:
    """The CREATE INDEX of a btree with all that an index has, which answers what takes an order, too.

    Args:
        taken: names of indexes that there are.
    """
    name = free_name(f"{definition.name[:_STEM]}_btree", taken)
    replaced = msgspec.structs.replace(
        definition, name=name, structure_name=msgspec.UNSET, srid=msgspec.UNSET, defer_build=False
    )
    if definition.partitioned_by_cell:
        replaced = msgspec.structs.replace(
            replaced,
            partition=DocumentId(),
            partition_kind="hash",
            given_splits=(),
            partition_slices=msgspec.UNSET,
        )
    return normal_statement(replaced, name_btree=True)
