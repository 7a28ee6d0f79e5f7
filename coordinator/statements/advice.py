"""What helps a slice that gets, or holds, much more than the others of its index. Pure.

What helps depends on why. Equal values lie in one partition: where one value has most of the load, no other
number of partitions parts it; having that partition spread over several slices by the document id does, at
the price that scans of its values ask all of these. By RANGE, a split where half the load
lies shares it out, unless values rise: then all of it lies behind the last split again. Otherwise there are
too few slices. Each statement makes a new layout, which is built while the old one answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from coordinator.core.slice_loads import Hot
from coordinator.statements.partitions import all_alike, literal_of, repartitioned, splits_of, value_text
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord
from keytide.definition.expression import DocumentId
from keytide.definition.index import MAX_REPLICAS, MAX_SLICES, IndexDefinition
from keytide.definition.normal import normal_statement
from keytide.definition.render import render_expression, render_name
from keytide.definition.statement import Alteration, SplitPartition, SpreadPartition
from keytide.errors import CallerError
from keytide.wire.index_lists import WrittenSlice

MOST: Final = 0.5
"""A value with so much of what is written has most of it."""
LEAST_SAMPLED: Final = 16
"""Values that there must be, to say something of how they are spread."""
FEW: Final = 4
"""So many slices a partition has for each one that it had, when one value is too much for it."""
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
        return _reads(index, hot, most)
    if written is not None and (value := most_written(written)) is not None:
        return _one_value(index, hot, value, written, most)
    if definition.partition_kind == "range":
        return _range(index, hot, written, most)
    by = render_expression(definition.partition)
    more, one = _more_slices(index, most, hot.slice), _where_one_value(index, hot, most)
    if why := _unknown(hot, written):
        parts = f"several are parted by more slices ({more})" if more else "several are parted by more slices"
        return Advice(f"whether one value of {by} has most of it is not known: {why}; {parts}; {one}", more)
    return Advice(
        f"several values of {by} fall to it: more slices part them; if it is so again, one value may have "
        f"it; {one}",
        more,
    )


def partition_of(index: IndexRecord, number: int) -> int:
    """The partition that a slice of an index belongs to."""
    return Partitioning.of(index.definition, index.splits).partition_of_slice(number)


def most_written(written: WrittenSlice) -> bytes | None:
    """The value that has most of what is written to a slice, if one has."""
    if not written.heavy or written.total <= 0 or written.heavy[0].least < MOST * written.total:
        return None
    return written.heavy[0].value


def halving_split(index: IndexRecord, number: int, written: WrittenSlice) -> bytes | None:
    """Where to part a partition of a RANGE index, so that about half of what is written to it lies on each
    side; None when that cannot be said. A value that equals a split lies behind it.

    Args:
        written: to one of its slices: to each of them go the same values.
    """
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


def _reads(index: IndexRecord, hot: Hot, most: int) -> Advice:
    definition, name = index.definition, render_name(index.name)
    if definition.replicas < MAX_REPLICAS:
        return Advice(
            "copies share the scans: have one more of each slice, on as many nodes as there are copies",
            f"ALTER INDEX {name} SET (replicas={definition.replicas + 1})",
        )
    return Advice(
        "there are as many copies as there may be; more slices may part what is read",
        _more_slices(index, most, hot.slice),
    )


def _one_value(index: IndexRecord, hot: Hot, value: bytes, written: WrittenSlice, most: int) -> Advice:
    definition = index.definition
    share = round(100 * written.heavy[0].least / written.total)
    said_value = value_text(value)
    by = render_expression(definition.partition)
    if definition.partitioned_by_id:
        return Advice(
            f"document {said_value} has at least {share} % of what is written to it, a document is not "
            "parted: see why it is written so often"
        )
    said = f"{by} = {said_value} has at least {share} % of what is written to it"
    if definition.unique:
        return Advice(
            f"{said}, and no other number of slices parts it; a UNIQUE index can be partitioned by another "
            "part of its key only, if it has one"
        )
    number = partition_of(index, hot.slice)
    slices = definition.slices_by_partition[number]
    spread = _spread_over(index, number, FEW * slices, most)
    if spread is None:
        return Advice(f"{said}, and the index has as many slices as it may have")
    if not spread.alone:
        return Advice(
            f"{said}, and partition {number} cannot be spread alone, for no statement can say where the "
            f"partitions part: have each spread over {spread.slices} slices by the document id, and the "
            f"build find other splits. The price: scans with one value of {by} ask {spread.slices} slices "
            "then, all at once",
            spread.statement,
        )
    return Advice(
        f"{said}: have partition {number} spread over {spread.slices} slices by the document id. The price: "
        f"scans with {by} = {said_value} ask these {spread.slices} slices then, all at once",
        spread.statement,
    )


def _unknown(hot: Hot, written: WrittenSlice | None) -> str:
    """Why it is not known whether one value has most of what makes a slice hot; "" where none has."""
    if written is None:
        return "its node has not said what is written to it"
    if not written.known:
        return "entries do not say by which value they came here"
    if written.total <= 0:
        return "nothing is written to it now"
    return "what is written to it now does not say what it holds" if hot.measure == "entries" else ""


def _where_one_value(index: IndexRecord, hot: Hot, most: int) -> str:
    """What helps if one value has most of what makes a slice hot, in words."""
    definition = index.definition
    if definition.partitioned_by_id:
        return "a document is not parted"
    if definition.unique:
        return "one value is not parted in a UNIQUE index"
    number = partition_of(index, hot.slice)
    spread = _spread_over(index, number, FEW * definition.slices_by_partition[number], most)
    if spread is None:
        return "to spread one value, the index has as many slices as it may have"
    return f"one value is spread by the document id ({spread.statement})"


def _range(index: IndexRecord, hot: Hot, written: WrittenSlice | None, most: int) -> Advice:
    definition = index.definition
    by = render_expression(definition.partition)
    if hot.measure == "writes" and written is not None:
        if rising(written.before, written.listed):
            return Advice(
                f"{by} rises, so all that is written lies behind the last split, wherever that is: partition "
                f"by its hash. The price: scans of a range of {by} ask every slice then",
                _replacing(replace(definition, partition=DocumentId()), partition_kind="hash")
                if definition.partitioned_by_cell
                else _replacing(definition, partition_kind="hash"),
            )
        number = partition_of(index, hot.slice)
        split = halving_split(index, number, written)
        if split is not None:
            return _split_at(index, number, split)
    one = ""
    if why := _unknown(hot, written):
        one = (
            f"; splits do not part one value, and whether one has most of it is not known: {why}; "
            f"{_where_one_value(index, hot, most)}"
        )
    if len(set(definition.spread)) > 1:
        return Advice("more slices share what it has", _more_slices(index, most, hot.slice))
    if definition.given_splits:
        return Advice(
            "its splits were given, and do not fit what there is: without them the build finds some that do"
            f"{one}",
            _replacing(definition),
        )
    return Advice(
        f"its splits do not fit what there is any more: a new layout finds them anew{one}",
        _more_slices(index, most, hot.slice),
    )


def _split_at(index: IndexRecord, number: int, split: bytes) -> Advice:
    text = f"about half of what is written to it lies at or above {value_text(split)}: part it there"
    literal = literal_of(split)
    if literal is None:
        return Advice(text)
    if not _possible(index, SplitPartition(index.name, number, (literal,))):
        return Advice(text)
    at = f"SPLIT PARTITION {number} AT ({render_expression(literal)})"
    return Advice(text, f"ALTER INDEX {render_name(index.name)} {at}")


def _more_slices(index: IndexRecord, most: int, number: int) -> str | None:
    """Twice as many slices, as far as there may be: of all partitions, or, where these are not alike, of the
    one that a slice belongs to."""
    definition, name = index.definition, render_name(index.name)
    if spread := definition.spread:
        if len(set(spread)) == 1 and not definition.given_splits:
            fits = 2 * index.slices <= most
            return f"ALTER INDEX {name} SET (partitions={2 * len(spread)})" if fits else None
        partition = partition_of(index, number)
        found = _spread_over(index, partition, 2 * spread[partition], most)
        return found.statement if found is not None else None
    slices = min(2 * index.slices, most)
    if slices <= index.slices or definition.given_splits:
        return None
    return f"ALTER INDEX {name} SET (slices={slices})"


class _Spread(NamedTuple):
    """A partition of more slices: of how many; whether it alone is of other slices than it was."""

    statement: str
    slices: int
    alone: bool


def _spread_over(index: IndexRecord, partition: int, slices: int, most: int) -> _Spread | None:
    """Have a partition be of more slices: of so many, as far as the index may have them. Where it cannot be
    alone (the build has found splits that SPLIT AT cannot say), all are, and none of fewer than it was."""
    spread = index.definition.slices_by_partition
    more = min(slices, spread[partition] + most - index.slices)
    if more <= spread[partition]:
        return None
    if _possible(index, SpreadPartition(index.name, partition, more)):
        name = render_name(index.name)
        return _Spread(f"ALTER INDEX {name} PARTITION {partition} SET (slices={more})", more, True)
    each = min(max(slices, *spread), most // len(spread))
    if each <= spread[partition] or each < max(spread):
        return None
    return _Spread(all_alike(index, each, len(spread)), each, False)


def _possible(index: IndexRecord, statement: Alteration) -> bool:
    """Whether an index can have the slices that a statement asks for."""
    try:
        repartitioned(index, statement)
    except CallerError:
        return False
    return True


def _replacing(definition: IndexDefinition, **members: Any) -> str:
    """The statement that makes the index with other members and no splits, in place of the one that there is.
    (Partitions that are not alike would be others then.)"""
    if len(set(definition.spread)) > 1:
        members["partition_slices"] = UNSET
    statement = normal_statement(replace(definition, defer_build=False, given_splits=(), **members))
    return statement.replace("CREATE ", "CREATE OR REPLACE ", 1)
