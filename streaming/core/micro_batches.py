"""The decisions of a backfill, pure: what a micro-batch covers, who won, when it is over, what went wrong.

Theory of operation
===================
A build reads its keyspace in numbered micro-batches (`streaming.core.sizing` cuts them). The offsets [start,
end) of one are written down before the first of its ends is sent, so a batch that is run again, by whatever
driver, covers the same range. Within
a batch, tasks write chunks into the backfill queues, and a task may be run twice (retries, speculation, a
driver that was killed). So each attempt has a name of its own, chunks carry it, and nothing counts until
the batch end has named the winners (R22). The driver learns the winners from small *summaries* that the
tasks hand back through Spark: a summary arrives exactly once for every share (one source partition's range,
first stage) and every target (one slice of one index, second stage), from an attempt that has delivered all
it had to.

`settle` turns the summaries into winners and checks that nothing was lost on the way: as many entries as the
shares put into the shuffle must have come out of it into the queues.

Words: a *target* is an (index, slice) pair that the build fills, numbered through the build; a *share* is
what one first-stage task reads. A build of whole indexes has a target for every slice. A rebuild (slices of
READY indexes whose data was lost) has targets for those slices only: the source is read and projected as
ever, but nothing is shuffled, sent or ended for the others. Everything here is deterministic, without clock
and I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import BuildRecord, KeyspaceRecord
from keytide.errors import KeytideError, invariant
from keytide.model.timestamp import Timestamp
from keytide.wire.entry_sums import NO_ENTRIES, EntrySums
from keytide.wire.messages import BatchEnd

EXIT_PASSED = 0
EXIT_RETRY = 1
"""Something that passes: start the driver again, it goes on where the journal says."""
EXIT_NEVER = 3
"""The build can never work (offsets are gone, the topic changed): do not start the driver again."""
EXIT_READ_LOST = 4
"""What the build has read is not on the log any more: it must begin again, from its beginning."""
EXIT_JOURNAL_LOST = 5
"""Kafka has lost the journal of what the build has read: the same."""
EXIT_SEED_UNFIT = 6
"""The slices that the build was to begin with do not say all that is known of their documents: the same."""
EXIT_STOPPED = 143
"""Stopped on request (SIGTERM, or the build was paused or cancelled)."""


class SeedUnfitError(KeytideError):
    """The slices that a build was to begin with do not say all that is known of their documents."""

    problem_type = "seed-unfit"


class SliceTarget(NamedTuple):
    """One slice of one index: a partition of a backfill queue."""

    index_id: str
    slice: int


class ExtentSummary(msgspec.Struct, frozen=True, array_like=True, tag="extent"):
    """What one first-stage task did with its share.

    Attributes:
        attempt: names the removal chunks that it sent.
        documents: records read.
        chunks: target number -> removal chunks delivered.
        entries: target number -> entries that it put into the shuffle.
        skipped: index id -> reason -> versions (in the ledger).
        left_out: index id -> reason -> documents that the definition leaves out.
        sums: target number -> of the same entries; None where they are not summed up.
    """

    attempt: str
    documents: int
    chunks: dict[int, int]
    entries: dict[int, int]
    skipped: dict[str, dict[str, int]] = {}
    left_out: dict[str, dict[str, int]] = {}
    sums: dict[int, EntrySums] | None = None


class TargetSummary(msgspec.Struct, frozen=True, array_like=True, tag="target"):
    """What one second-stage task delivered to one target.

    Attributes:
        retracted: entries that it dropped, because their share has a newer version
            (`streaming.core.extent_projection`).
    """

    target: int
    attempt: str
    chunks: int
    entries: int
    retracted: int = 0


class ForeignSummary(msgspec.Struct, frozen=True, array_like=True, tag="foreign"):
    """Hashes of the documents that one second-stage task found in more than one share. u64[n]."""

    hashes: bytes


Summary = ExtentSummary | TargetSummary | ForeignSummary


class SettledBatch(NamedTuple):
    """One micro-batch, settled.

    Attributes:
        winners: for each target, attempt -> chunks.
        entries: for each target, entries delivered.
        documents: records read.
        foreign: hashes of documents found in more than one source partition; u64[n], one byte string.
        skipped, left_out: index id -> reason -> count.
        sums: for each target, of the entries that were projected; None where they are not summed up, or
            prove nothing, for some of them were retracted.
    """

    winners: list[dict[str, int]]
    entries: list[int]
    documents: int
    foreign: bytes
    skipped: dict[str, dict[str, int]]
    left_out: dict[str, dict[str, int]]
    sums: list[EntrySums] | None = None


def targets_of(slices: Mapping[str, Iterable[int]]) -> list[SliceTarget]:
    """The targets of a build, in target number order, from index id -> the slices that it fills."""
    return [SliceTarget(index, number) for index in sorted(slices) for number in sorted(slices[index])]


def target_numbers(targets: Iterable[SliceTarget], slices: Mapping[str, int]) -> dict[str, list[int]]:
    """For every slice of each index the number of its target, -1 when the build does not fill it.

    Args:
        slices: index id -> number of slices that the index has.
    """
    numbers = {index: [-1] * count for index, count in slices.items()}
    for number, target in enumerate(targets):
        numbers[target.index_id][target.slice] = number
    return numbers


def settle(targets: int, shares: int, summaries: Iterable[Summary]) -> SettledBatch:
    """The winners of a micro-batch.

    Args:
        targets: how many targets the build has.
        shares: how many source partitions the batch brings anything from.
        summaries: everything that the tasks handed back.

    Raises:
        InvariantViolationError: a share or an entry was lost or came twice between the stages.
    """
    winners: list[dict[str, int]] = [{} for _ in range(targets)]
    put_in, taken_out, delivered = [0] * targets, [0] * targets, [0] * targets
    documents = seen = 0
    foreign: list[bytes] = []
    done: set[int] = set()
    skipped: dict[str, dict[str, int]] = {}
    left_out: dict[str, dict[str, int]] = {}
    sums: list[EntrySums] | None = [NO_ENTRIES] * targets
    for summary in summaries:
        match summary:
            case ExtentSummary():
                seen += 1
                documents += summary.documents
                for target, chunks in summary.chunks.items():
                    winners[target][summary.attempt] = chunks
                for target, entries in summary.entries.items():
                    put_in[target] += entries
                add_counts(skipped, summary.skipped)
                add_counts(left_out, summary.left_out)
                sums = _with(sums, summary.sums)
            case TargetSummary(target=target):
                invariant(
                    target not in done,
                    "NothingLost",
                    f"target {target} was delivered twice in one micro-batch",
                )
                done.add(target)
                delivered[target], taken_out[target] = summary.entries, summary.entries + summary.retracted
                winners[target][summary.attempt] = summary.chunks
                if summary.retracted:  # whoever did not drop them would store just what was projected
                    sums = None
            case ForeignSummary():
                foreign.append(summary.hashes)
    invariant(
        seen == shares,
        "NothingLost",
        f"{seen} shares reported, the micro-batch has {shares} source partitions",
    )
    invariant(
        put_in == taken_out,
        "NothingLost",
        lambda: f"entries projected per target {put_in}, entries delivered or retracted {taken_out}",
    )
    return SettledBatch(winners, delivered, documents, b"".join(foreign), skipped, left_out, sums)


def _with(sums: list[EntrySums] | None, more: Mapping[int, EntrySums] | None) -> list[EntrySums] | None:
    """Sums of targets with those of one more share; None where those of one are not known."""
    if sums is None or more is None:
        return None
    return [one.plus(more.get(target, NO_ENTRIES)) for target, one in enumerate(sums)]


def add_counts(total: dict[str, dict[str, int]], more: Mapping[str, Mapping[str, int]]) -> None:
    """Add counts by index and reason to `total`."""
    for index, reasons in more.items():
        mine = total.setdefault(index, {})
        for reason, count in reasons.items():
            mine[reason] = mine.get(reason, 0) + count


def batch_ends(
    build: str,
    run: str,
    batch: int,
    targets: Sequence[SliceTarget],
    start: Timestamp,
    end: Timestamp,
    winners: Sequence[Mapping[str, int]],
) -> list[BatchEnd]:
    """The batch end for each target; attempts that sent a target nothing are left out."""
    return [
        BatchEnd(
            build=build,
            index=target.index_id,
            slice=target.slice,
            run=run,
            batch=batch,
            start=start,
            end=end,
            winners={attempt: chunks for attempt, chunks in sorted(won.items()) if chunks},
        )
        for target, won in zip(targets, winners, strict=True)
    ]


def goal(build: BuildRecord, partitions: int) -> Timestamp | None:
    """What the backfill timestamp must cover: load and low-watermark timestamps.

    None while projectors have not activated the build on every partition (R13): its end is not known yet.
    """
    if any(partition not in build.low_watermark for partition in range(partitions)):
        return None
    return build.load_timestamp.merge_max(Timestamp.of(build.low_watermark))


def unwanted(build: BuildRecord | None, keyspace: KeyspaceRecord | None) -> str:
    """Why a build is not to be backfilled (any more), "" when it is.

    Args:
        build, keyspace: their records, None where there is none.
    """
    if build is None or build.state not in ("QUEUED", "BACKFILL") or build.ended:
        return f"it is {build.state}" if build else "it is not in the metadata"
    if keyspace is not None and keyspace.incarnation > build.incarnation:
        return f"keyspace {keyspace.name} was rolled back since it began"
    return ""


def over(catalog: Catalog, build: str, later: str) -> bool:
    """Whether a build is not to be backfilled any more, ever, says a dictionary that has a `later` one."""
    record = catalog.build(build)
    if record is None:
        return int(build[1:]) < int(later[1:])
    return record.ended or record.state not in ("QUEUED", "BACKFILL", "PAUSED")


def forgotten(build: BuildRecord, first_read_at: int) -> bool:
    """Whether a build has read what its journal does not know of. To go on there would cut the source into
    other micro-batches than slices have got.

    Args:
        first_read_at: when reading began, says the journal; 0 for never.
    """
    return build.first_read_at > 0 and not first_read_at


def passed(position: Timestamp, build: BuildRecord, partitions: int) -> bool:
    """Whether the backfill may end at `position`."""
    wanted = goal(build, partitions)
    return wanted is not None and position.covers(wanted)


_MASK = 0xFFFFFFFF
_SPARK_SEED = 42


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def spark_hash(value: int) -> int:
    """Spark SQL's hash of one INT column (Murmur3_x86_32, seed 42), as a signed 32-bit integer."""
    k = (value * 0xCC9E2D51) & _MASK
    k = (_rotate(k, 15) * 0x1B873593) & _MASK
    h = (_rotate(_SPARK_SEED ^ k, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >= 1 << 31 else h


def exact_routes(partitions: int) -> list[int]:
    """For each shuffle partition, an integer that Spark's hash partitioning sends exactly there.

    Spark 4.0's `repartition(n, column)` goes by hash, so that of 8 slices some tasks would get three and some
    none; with these integers in the column every target has a task of its own.
    """
    routes: dict[int, int] = {}
    candidate = 0
    while len(routes) < partitions:
        routes.setdefault(spark_hash(candidate) % partitions, candidate)
        candidate += 1
    return [routes[partition] for partition in range(partitions)]
