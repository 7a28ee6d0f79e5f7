"""What ALTER INDEX ... PARTITION BY, SPLIT PARTITION and MERGE PARTITIONS ask for, as a definition. Pure.

Theory of operation. The numbers are those of slices, as `keytide index show` has them. Slice n of a RANGE
index lies between its splits n - 1 and n: to part it is to have one more split, to merge it with the next
one is to leave split n out. The splits that there are were given, or a build has found them; all of them
stand in the SPLIT AT of the definition that comes out, so a new layout parts where the old one did. A build
that had no use for all its splits has made the last ones equal, with empty slices between: these are left
out.
"""

from __future__ import annotations

from msgspec.structs import replace

from keytide.catalog.partitioning import readable_splits
from keytide.catalog.records import IndexRecord
from keytide.collation import decode_key, encode_part
from keytide.definition.expression import Literal
from keytide.definition.index import MAX_SLICES, IndexDefinition
from keytide.definition.render import render_expression, render_name
from keytide.definition.statement import Alteration, AlterIndex, MergePartitions, SplitPartition
from keytide.errors import CallerError


def repartitioned(index: IndexRecord, statement: Alteration) -> IndexDefinition:
    """The definition of an index with the slices that a statement asks for, and everything else as it is (its
    own statement, too).

    Raises:
        CallerError: the index cannot have such slices.
    """
    match statement:
        case AlterIndex(partition=None, slices=None):
            return index.definition
        case AlterIndex(partition=None, slices=int(slices)):
            check_splits(index, slices)
            return replace(index.definition, slices=slices)
        case AlterIndex():
            return _partitioned_by(index, statement)
        case SplitPartition():
            return _parted(index, statement)
        case MergePartitions():
            return _merged(index, statement)


def check_splits(index: IndexRecord, slices: int) -> None:
    """See that an index may have so many slices.

    Raises:
        CallerError: its splits say how many it has.
    """
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


def shown(encoded: bytes) -> str:
    """A value for people: as a statement writes it, or as rows show it."""
    literal = literal_of(encoded)
    return render_expression(literal) if literal is not None else str(readable_splits([encoded])[0])


def _partitioned_by(index: IndexRecord, statement: AlterIndex) -> IndexDefinition:
    by, definition = statement.partition, index.definition
    if by is None:
        return definition
    slices = definition.slices if statement.slices is None else statement.slices
    made = replace(
        definition,
        partition=by.expression,
        partition_kind=by.kind,
        given_splits=by.splits,
        slices=len(by.splits) + 1 if by.splits else slices,
    )
    if fault := made.partition_fault:
        raise _refused(f"index {index.name}: {fault[0]}", fault[1])
    return made


def _parted(index: IndexRecord, statement: SplitPartition) -> IndexDefinition:
    number, name = statement.partition, render_name(index.name)
    present = _present(index)
    _check_number(index, number)
    if not statement.at:
        raise _refused(
            f"it is not known where half of what is written to partition {number} of index {index.name} lies",
            f"say where to part it: ALTER INDEX {name} SPLIT PARTITION {number} AT (value); "
            f"`keytide index load {index.name} --slice {number}` shows values that are written to it",
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
                f"{shown(value)} does not lie in partition {number} of index {index.name}, which has "
                f"{_stretch(low, high)}",
                "say a value between, or the number of the partition that it lies in: `keytide index show "
                f"{index.name}` has the splits",
            )
    return _with_splits(index, {*present, *values})


def _merged(index: IndexRecord, statement: MergePartitions) -> IndexDefinition:
    present = list(_present(index))
    if not present:
        raise _refused(f"index {index.name} has one slice only", "there is nothing to merge")
    low, high = sorted((statement.first, statement.second))
    for number in (low, high):
        _check_number(index, number)
    if high != low + 1:
        raise _refused(
            f"partitions {statement.first} and {statement.second} of index {index.name} are not neighbours",
            f"name two that follow one another, as in MERGE PARTITIONS {max(0, high - 1)}, {max(1, high)}",
        )
    del present[low]
    return _with_splits(index, set(present))


def _present(index: IndexRecord) -> tuple[bytes, ...]:
    """The splits of a RANGE index.

    Raises:
        CallerError: it is none, or they are not known yet.
    """
    definition, name = index.definition, render_name(index.name)
    by = render_expression(definition.partition)
    if definition.partition_kind != "range":
        raise _refused(
            f"index {index.name} is partitioned by HASH({by}): its slices have no splits",
            f"ALTER INDEX {name} SET (slices=n) makes more or fewer slices, ALTER INDEX {name} PARTITION BY "
            f"RANGE({by}) gives it splits",
        )
    present = splits_of(index)
    if not present and definition.slices > 1:
        raise _refused(
            f"index {index.name} is {index.state}: the splits are found when it is built",
            f"wait until it is READY, or say them: ALTER INDEX {name} PARTITION BY RANGE({by}) "
            "SPLIT AT (value, ...)",
        )
    return present


def _check_number(index: IndexRecord, number: int) -> None:
    if number >= index.slices:
        raise _refused(
            f"index {index.name} has no partition {number}",
            f"its partitions are 0 to {index.slices - 1}: `keytide index show {index.name}` has them",
        )


def _with_splits(index: IndexRecord, splits: set[bytes]) -> IndexDefinition:
    """The definition with these splits, and no others.

    Raises:
        CallerError: they are too many, or no statement can say one of them.
    """
    if len(splits) >= MAX_SLICES:
        raise _refused(
            f"index {index.name} would have {len(splits) + 1:,} slices, and {MAX_SLICES:,} is the most",
            f"merge some first: ALTER INDEX {render_name(index.name)} MERGE PARTITIONS n, m",
        )
    given: list[Literal] = []
    for split in sorted(splits):
        literal = literal_of(split)
        if literal is None:
            by = render_expression(index.definition.partition)
            raise _refused(
                f"index {index.name} parts at {shown(split)}, which SPLIT AT cannot say: it takes strings, "
                "numbers, TRUE, FALSE and NULL",
                f"say other splits: ALTER INDEX {render_name(index.name)} PARTITION BY RANGE({by}) "
                "SPLIT AT (value, ...)",
            )
        given.append(literal)
    return replace(index.definition, given_splits=tuple(given), slices=len(given) + 1)


def _stretch(low: bytes, high: bytes | None) -> str:
    """Which values a slice has, in words."""
    if low == high:
        return "no values"
    if high is None:
        return f"the values from {shown(low)} on" if low else "all values"
    return (
        f"the values from {shown(low)} on that lie below {shown(high)}"
        if low
        else f"those below {shown(high)}"
    )


def _refused(reason: str, step: str) -> CallerError:
    return CallerError(reason, status=422, problem_type="index-not-alterable", next_step=step)
