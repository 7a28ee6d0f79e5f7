"""What ALTER INDEX ... SET (slices=n), PARTITION BY, PARTITION n SET, SPLIT PARTITION and MERGE PARTITIONS
ask for, as a definition. Pure.

Theory of operation. The numbers are those of partitions, as `keytide index show` has them; where each is one
slice, those of slices. Partition n of a RANGE index lies between its splits n - 1 and n: to part it is to
have one more split, to merge it with the next one is to leave split n out. What becomes of a partition of
several slices has as many as the largest of those that it comes from. The splits that there are were given,
or a build has found them; all of them stand in the SPLIT AT of the definition that comes out, so a new layout
parts where the old one did. A build that had no use for all its splits has made some equal, with empty
partitions between. PARTITION n SET keeps these, so that numbers stay, and the same statement run again means
the same partition; where there is a split more or less, numbers change anyway, and these are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from keytide.catalog.partitioning import Partitioning, readable_splits
from keytide.catalog.records import IndexRecord
from keytide.collation import decode_key, encode_part
from keytide.definition.expression import Literal
from keytide.definition.index import MAX_SLICES, IndexDefinition, slices_of
from keytide.definition.normal import render_slices
from keytide.definition.render import render_expression, render_name
from keytide.definition.statement import (
    Alteration,
    AlterIndex,
    MergePartitions,
    SplitPartition,
    SpreadPartition,
)
from keytide.errors import CallerError


def repartitioned(index: IndexRecord, statement: Alteration) -> IndexDefinition:
    """The definition of an index with the slices that a statement asks for, and everything else as it is (its
    own statement, too).

    Raises:
        CallerError: the index cannot have such slices.
    """
    match statement:
        case AlterIndex(partition=None, slices=None, partitions=None):
            return index.definition
        case AlterIndex(partition=None, slices=int(slices)):
            check_splits(index, slices)
            return replace(index.definition, slices=slices)
        case AlterIndex(partition=None, partitions=int(partitions)):
            return _with_partitions(index, partitions)
        case SpreadPartition():
            return _spread(index, statement)
        case AlterIndex():
            return _partitioned_by(index, statement)
        case SplitPartition():
            return _parted(index, statement)
        case MergePartitions():
            return _merged(index, statement)


def check_splits(index: IndexRecord, slices: int) -> None:
    """See that an index may have so many slices.

    Raises:
        CallerError: its splits say how many it has, or its partitions.
    """
    if (spread := index.definition.spread) and slices != index.slices:
        name = render_name(index.name)
        raise _refused(
            f"index {index.name} has {len(spread)} partitions of {render_slices(spread)} slices: no number "
            "of slices says how many of each",
            f"ALTER INDEX {name} PARTITION n SET (slices=m) for one partition, or SET (partitions=m)",
        )
    if index.definition.given_splits and slices != index.slices:
        name = render_name(index.name)
        raise _refused(
            f"index {index.name} has {index.slices} slices by its SPLIT AT",
            f"ALTER INDEX {name} SPLIT PARTITION n AT (value), or PARTITION BY "
            f"RANGE({render_expression(index.definition.partition)}) without SPLIT AT: its build finds some",
        )


def splits_of(index: IndexRecord) -> tuple[bytes, ...]:
    """Where the slices of an index part, encoded, ascending; none when that is not known."""
    found = index.splits if index.state == "READY" else ()
    return found or index.definition.encoded_splits


def literal_of(encoded: bytes) -> Literal | None:
    """A value as a statement writes it; None for one that it cannot."""
    value = decode_key(encoded, 1)[0][0]
    if value is None or isinstance(value, bool | int | float | str):
        literal = Literal(value)
        return literal if encode_part(literal.value) == encoded else None
    return None


def value_text(encoded: bytes) -> str:
    """A value for people: as a statement writes it, or as rows show it."""
    literal = literal_of(encoded)
    return render_expression(literal) if literal is not None else str(readable_splits([encoded])[0])


def all_alike(index: IndexRecord, slices: int | str, partitions: int) -> str:
    """The statement that gives an index so many partitions of so many slices each. Where those of a RANGE
    index part, its build finds anew."""
    by = f"{index.definition.partition_kind.upper()}({render_expression(index.definition.partition)})"
    return (
        f"ALTER INDEX {render_name(index.name)} PARTITION BY {by} SUBPARTITION BY HASH(id) SLICES {slices} "
        f"SET (partitions={partitions})"
    )


def _partitioned_by(index: IndexRecord, statement: AlterIndex) -> IndexDefinition:
    by, definition = statement.partition, index.definition
    if by is None:
        return definition
    said = statement.partitions if by.spreads else statement.slices
    partitions = definition.partitions if by.spreads else definition.slices
    spread = by.spread(partitions if said is None else said)
    made = replace(definition, partition=by.expression, partition_kind=by.kind, given_splits=by.splits)
    made = _of(index, made, spread)
    if fault := made.partition_fault:
        raise _refused(f"index {index.name}: {fault[0]}", fault[1])
    return made


def _of(index: IndexRecord, definition: IndexDefinition, spread: Sequence[int]) -> IndexDefinition:
    """The definition with partitions of so many slices.

    Raises:
        CallerError: they are too many.
    """
    if sum(spread) > MAX_SLICES:
        raise _refused(
            f"index {index.name} would have {sum(spread):,} slices, and {MAX_SLICES:,} is the most",
            "have fewer partitions, or fewer slices of each",
        )
    return replace(definition, **slices_of(spread))


def _with_partitions(index: IndexRecord, partitions: int) -> IndexDefinition:
    definition = index.definition
    spread = definition.slices_by_partition
    if partitions == len(spread):
        return definition
    if definition.given_splits:
        raise _refused(
            f"index {index.name} has {len(spread)} partitions by its SPLIT AT",
            f"ALTER INDEX {render_name(index.name)} SPLIT PARTITION n AT (value), or MERGE PARTITIONS n, m",
        )
    if len(set(spread)) > 1:
        raise _refused(
            f"the partitions of index {index.name} are of {render_slices(spread)} slices: it is not said of "
            "how many the new ones are",
            f"say it: {all_alike(index, 'n', partitions)}",
        )
    return _of(index, definition, spread[:1] * partitions)


def _spread(index: IndexRecord, statement: SpreadPartition) -> IndexDefinition:
    definition = index.definition
    _check_number(index, statement.partition)
    spread = list(definition.slices_by_partition)
    if spread[statement.partition] == statement.slices:
        return definition
    if definition.partition_kind == "range":
        _check_values(index, statement.partition)
    spread[statement.partition] = statement.slices
    made = _of(index, definition, spread)
    if definition.partition_kind == "range" and not definition.given_splits:
        every = all_alike(index, statement.slices, definition.partitions)
        given = _said(
            index, _present(index), f"spread every partition, by splits that are found anew: {every}"
        )
        made = replace(made, given_splits=given)
    if fault := made.partition_fault:
        name, by_range = render_name(index.name), definition.partition_kind == "range"
        more = f"SPLIT PARTITION {statement.partition}" if by_range else "SET (slices=n)"
        raise _refused(f"index {index.name}: {fault[0]}", f"ALTER INDEX {name} {more} makes more partitions")
    return made


def _parted(index: IndexRecord, statement: SplitPartition) -> IndexDefinition:
    number, name = statement.partition, render_name(index.name)
    present = _present(index)
    _check_number(index, number)
    if not statement.at:
        first = Partitioning.of(index.definition, index.splits).starts[number]
        raise _refused(
            f"it is not known where half of what is written to partition {number} of index {index.name} lies",
            f"say where to part it: ALTER INDEX {name} SPLIT PARTITION {number} AT (value); "
            f"`keytide index load {index.name} --slice {first}` shows values that are "
            "written to it",
        )
    values = [encode_part(value.value) for value in statement.at]
    values = [value for value in values if value not in present]
    if not values:
        return index.definition
    low = present[number - 1] if number else b""
    high = present[number] if number < len(present) else None
    for value in values:
        if value < low or (high is not None and value >= high):
            raise _refused(
                f"{value_text(value)} does not lie in partition {number} of index {index.name}, which has "
                f"{_stretch(low, high)}",
                "say a value between, or the number of the partition that it lies in: `keytide index show "
                f"{index.name}` has the splits",
            )
    return _regrouped(index, {*present, *values}, index.definition.slices_by_partition)


def _merged(index: IndexRecord, statement: MergePartitions) -> IndexDefinition:
    present = list(_present(index))
    if not present:
        raise _refused(f"index {index.name} has one partition only", "there is nothing to merge")
    low, high = sorted((statement.first, statement.second))
    for number in (low, high):
        _check_number(index, number)
    if high != low + 1:
        raise _refused(
            f"partitions {statement.first} and {statement.second} of index {index.name} are not neighbours",
            f"name two that follow one another, as in MERGE PARTITIONS {max(0, high - 1)}, {max(1, high)}",
        )
    del present[low]
    return _regrouped(index, set(present), index.definition.slices_by_partition)


def _present(index: IndexRecord) -> tuple[bytes, ...]:
    """The splits of a RANGE index.

    Raises:
        CallerError: it is none, or they are not known yet.
    """
    definition, name = index.definition, render_name(index.name)
    by = render_expression(definition.partition)
    if definition.partition_kind != "range":
        raise _refused(
            f"index {index.name} is partitioned by HASH({by}): its partitions have no splits",
            f"ALTER INDEX {name} SET ({'partitions' if definition.spread else 'slices'}=n) makes more or "
            f"fewer, ALTER INDEX {name} PARTITION BY RANGE({by}) gives it splits",
        )
    present = splits_of(index)
    if not present and definition.partitions > 1:
        raise _refused(
            f"index {index.name} is {index.state}: the splits are found when it is built",
            f"wait until it is READY, or say them: ALTER INDEX {name} PARTITION BY RANGE({by}) "
            "SPLIT AT (value, ...)",
        )
    return present


def _check_number(index: IndexRecord, number: int) -> None:
    last = index.definition.partitions - 1
    if number > last:
        raise _refused(
            f"index {index.name} has no partition {number}",
            f"its partitions are 0 to {last}: `keytide index show {index.name}` has them",
        )


def _check_values(index: IndexRecord, number: int) -> None:
    """See that a partition can have values: one between two equal splits, for which a build had no use, has
    none."""
    present = _present(index)
    if 0 < number < len(present) and present[number - 1] == present[number]:
        full = Partitioning.of(index.definition, present).partition_of(present[number])
        raise _refused(
            f"partition {number} of index {index.name} has no values: both its splits are "
            f"{value_text(present[number])}",
            f"name partition {full}, which has what lies behind",
        )


def _regrouped(index: IndexRecord, splits: set[bytes], spread: Sequence[int]) -> IndexDefinition:
    """The definition with these splits, and no others.

    Args:
        spread: of how many slices each of its present partitions is to be.

    Raises:
        CallerError: they make too many slices, or no statement can say one of them.
    """
    ends = sorted(splits)
    if len(ends) >= MAX_SLICES:
        raise _refused(
            f"index {index.name} would have {len(ends) + 1:,} slices, and {MAX_SLICES:,} is the most",
            f"merge some first: ALTER INDEX {render_name(index.name)} MERGE PARTITIONS n, m",
        )
    before = Partitioning.of(index.definition, _present(index))
    stretches = zip([b"", *ends], [*ends, None], strict=True)
    regrouped = [max(spread[p] for p in before.partitions_of_values(*one)) for one in stretches]
    made = _of(index, index.definition, regrouped)
    return replace(made, given_splits=_said(index, ends))


def _said(index: IndexRecord, splits: Sequence[bytes], step: str = "") -> tuple[Literal, ...]:
    """Splits as SPLIT AT says them.

    Args:
        step: what to do where it cannot; "" for to say others.

    Raises:
        CallerError: it cannot say one of them.
    """
    given: list[Literal] = []
    for split in splits:
        literal = literal_of(split)
        if literal is None:
            by = render_expression(index.definition.partition)
            raise _refused(
                f"index {index.name} parts at {value_text(split)}, which SPLIT AT cannot say: it takes "
                "strings, numbers, TRUE, FALSE and NULL",
                step
                or f"say other splits: ALTER INDEX {render_name(index.name)} PARTITION BY RANGE({by}) "
                "SPLIT AT (value, ...)",
            )
        given.append(literal)
    return tuple(given)


def _stretch(low: bytes, high: bytes | None) -> str:
    """Which values a partition has, in words."""
    if low == high:
        return "no values"
    if high is None:
        return f"the values from {value_text(low)} on" if low else "all values"
    return (
        f"the values from {value_text(low)} on that lie below {value_text(high)}"
        if low
        else f"those below {value_text(high)}"
    )


def _refused(reason: str, step: str) -> CallerError:
    return CallerError(reason, status=422, problem_type="index-not-alterable", next_step=step)
