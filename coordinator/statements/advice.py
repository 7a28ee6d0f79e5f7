"""What helps a slice that gets, or holds, much more than the others of its index. Pure.

What helps depends on why. Equal values lie in one slice: where one value has most of the load, no other
number of slices parts it, and only partitioning by something else does. By RANGE, a split where half the load
lies shares it out, unless values rise: then all of it lies behind the last split again. Otherwise there are
too few slices. Each statement makes a new layout, which is built while the old one answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from coordinator.core.slice_loads import Hot
from coordinator.statements.partitions import literal_of, repartitioned, shown, splits_of
from keytide.catalog.records import IndexRecord
from keytide.definition.expression import DocumentId
from keytide.definition.index import MAX_REPLICAS, MAX_SLICES, IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.render import render_expression, render_name
from keytide.definition.statement import SplitPartition
from keytide.errors import CallerError
from keytide.wire.index_lists import WrittenSlice

MOST: Final = 0.5
"""A value with so much of what is written has most of it."""
LEAST_SAMPLED: Final = 16
"""Values that there must be, to say something of how they are spread."""
RISING: Final = 0.8
"""Values rise when so many are above nine tenths of those of the window before."""


class Advice(NamedTuple):
    """In words, and as a statement where one helps."""

    text: str
    statement: str | None = None


def advice(
    index: IndexRecord, hot: Hot, written: WrittenSlice | None = None, most: int = MAX_SLICES
) -> Advice:
    """What to do about a slice.

    Args:
        written: what its node has told of it; None when it was not asked.
        most: slices that the index may have.
    """
    definition = index.definition
    if hot.measure == "reads":
        return _reads(index, most)
    if written is not None and (value := most_written(written)) is not None:
        return _one_value(definition, value, written)
    if definition.partition_kind == "range":
        return _range(index, hot, written, most)
    more = _more_slices(index, most)
    told = written is None or written.known
    also = (
        "if it is so again, one value has it" if told else "entries do not say by which value they came here"
    )
    by = render_expression(definition.partition)
    return Advice(
        f"several values of {by} fall to it: more slices part them; {also}, and PARTITION BY HASH(id) "
        "spreads it",
        more,
    )


def most_written(written: WrittenSlice) -> bytes | None:
    """The value that has most of what is written to a slice, if one has."""
    if not written.heavy or written.total <= 0 or written.heavy[0].least < MOST * written.total:
        return None
    return written.heavy[0].value


def halving_split(index: IndexRecord, number: int, written: WrittenSlice) -> bytes | None:
    """Where to part a slice of a RANGE index, so that about half of what is written to it lies on each side;
    None when that cannot be said. A value that equals a split lies behind it."""
    values = sorted((*written.before, *written.listed))
    if len(values) < LEAST_SAMPLED:
        return None
    low = splits_of(index)[number - 1] if number and number <= len(splits_of(index)) else b""
    middle = values[len(values) // 2]
    if bisect_left(values, middle) == 0:
        middle = next((value for value in values if value > middle), middle)
    return middle if middle > max(low, values[0]) else None


def rising(before: Sequence[bytes], after: Sequence[bytes]) -> bool:
    """Whether what is written now lies above nearly all that was written before."""
    if min(len(before), len(after)) < LEAST_SAMPLED:
        return False
    high = sorted(before)[len(before) * 9 // 10]
    return sum(value > high for value in after) >= RISING * len(after)


def _reads(index: IndexRecord, most: int) -> Advice:
    definition, name = index.definition, render_name(index.name)
    if definition.replicas < MAX_REPLICAS:
        return Advice(
            "copies share the scans: have one more of each slice, on as many nodes as there are copies",
            f"ALTER INDEX {name} SET (replicas={definition.replicas + 1})",
        )
    return Advice(
        "there are as many copies as there may be; more slices may part what is read",
        _more_slices(index, most),
    )


def _one_value(definition: IndexDefinition, value: bytes, written: WrittenSlice) -> Advice:
    share = round(100 * written.heavy[0].least / written.total)
    said_value = shown(value)
    by = render_expression(definition.partition)
    if definition.partitioned_by_id:
        return Advice(
            f"document {said_value} has at least {share} % of what is written to it, a document is not "
            "parted: see why it is written so often"
        )
    said = f"{by} = {said_value} has at least {share} % of what is written to it"
    said += ", and no other number of slices parts it"
    if definition.unique:
        return Advice(
            f"{said}; a UNIQUE index can be partitioned by another part of its key only, if it has one"
        )
    return Advice(
        f"{said}: partition by the document id. The price: scans with {by} = ... ask every slice then",
        _replacing(definition, partition=DocumentId(), partition_kind="hash", given_splits=()),
    )


def _range(index: IndexRecord, hot: Hot, written: WrittenSlice | None, most: int) -> Advice:
    definition = index.definition
    by = render_expression(definition.partition)
    if hot.measure == "writes" and written is not None:
        if rising(written.before, written.listed):
            return Advice(
                f"{by} rises, so all that is written lies behind the last split, wherever that is: partition "
                f"by its hash. The price: scans of a range of {by} ask every slice then",
                _replacing(definition, partition_kind="hash", given_splits=()),
            )
        split = halving_split(index, hot.slice, written)
        if split is not None:
            return _split_at(index, hot.slice, split)
    if definition.given_splits:
        return Advice(
            "its splits were given, and do not fit what there is: without them the build finds some that do",
            _replacing(definition, given_splits=()),
        )
    return Advice(
        "its splits do not fit what there is any more: a new layout finds them anew",
        _more_slices(index, most),
    )


def _split_at(index: IndexRecord, number: int, split: bytes) -> Advice:
    text = f"about half of what is written to it lies at or above {shown(split)}: part it there"
    literal = literal_of(split)
    if literal is None:
        return Advice(text)
    try:
        repartitioned(index, SplitPartition(index.name, number, (literal,)))
    except CallerError:
        return Advice(text)
    at = f"SPLIT PARTITION {number} AT ({render_expression(literal)})"
    return Advice(text, f"ALTER INDEX {render_name(index.name)} {at}")


def _more_slices(index: IndexRecord, most: int) -> str | None:
    slices = min(2 * index.slices, most)
    if slices <= index.slices or index.definition.given_splits:
        return None
    return f"ALTER INDEX {render_name(index.name)} SET (slices={slices})"


def _replacing(definition: IndexDefinition, **members: Any) -> str:
    """The statement that makes the index with other members, in place of the one that there is."""
    statement = normal_statement(replace(definition, defer_build=False, **members))
    return statement.replace("CREATE ", "CREATE OR REPLACE ", 1)
