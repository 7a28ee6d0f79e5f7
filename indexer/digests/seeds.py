"""What a node gives a build that begins with the slices of another layout (R44): their entries, each with its
version, and the lines of their skip ledgers, at one snapshot."""

from __future__ import annotations

import numpy as np

from indexer.scan.local.tasks import Pace
from indexer.view import DoubtfulReadError, ReadableSnapshot
from keytide.definition.index import IndexDefinition
from keytide.errors import InvariantViolationError
from keytide.wire.digests import EntriesAnswer, EntriesAsk, SkippedVersion, SkipsAnswer, SkipsAsk

MOST_LINES = 10_000
"""Of a skip ledger in one answer, whatever is asked."""
MOST_ENTRIES = 500_000


def entries(
    snapshot: ReadableSnapshot, definition: IndexDefinition, ask: EntriesAsk, effort: Pace
) -> EntriesAnswer:
    """The next entries of a slice.

    Raises:
        DoubtfulReadError: a row cannot have been written.
    """
    limit = max(1, min(ask.limit, MOST_ENTRIES))
    id_starts = definition.structure.id_starts
    ids: list[bytes] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    versions: list[tuple[int, int, int]] = []
    size, reached, more = 0, ask.after, False
    try:
        for whole in snapshot.rows(b"", None, False, None, ask.after or None):
            block = _first(whole, ask.bytes_limit - size)
            starts = id_starts([key for key, _ in block])
            found = [key[start:] for (key, _), start in zip(block, starts, strict=True)]
            for held in snapshot.documents(found):
                if held is None:
                    raise DoubtfulReadError("an entry has no version")
                versions.append((held.partition, held.offset, held.time))
            ids += found
            keys += [key[:start] for (key, _), start in zip(block, starts, strict=True)]
            values += [value for _, value in block]
            size += sum(len(key) + len(value) for key, value in block)
            reached = block[-1][0]
            effort.look()
            if len(block) < len(whole) or len(ids) >= limit or size >= ask.bytes_limit or effort.spent:
                more = True
                break
    except (InvariantViolationError, UnicodeDecodeError) as error:
        raise DoubtfulReadError(f"an entry cannot be read ({error})") from error
    partitions, offsets, times = np.array(versions, np.int64).reshape(-1, 3).T
    return EntriesAnswer(
        ids,
        keys,
        values,
        partitions.astype("<u4").tobytes(),
        offsets.astype("<u8").tobytes(),
        times.astype("<i8").tobytes(),
        more,
        reached,
    )


def _first(block: list[tuple[bytes, bytes]], limit: int) -> list[tuple[bytes, bytes]]:
    """The first rows of a block, of about `limit` bytes; one at least."""
    size = 0
    for at, (key, value) in enumerate(block):
        size += len(key) + len(value)
        if size > limit:
            return block[: max(1, at)]
    return block


def skips(snapshot: ReadableSnapshot, ask: SkipsAsk) -> SkipsAnswer:
    """The next lines of the skip ledger of a slice."""
    lines = snapshot.skips(max(1, min(ask.limit, MOST_LINES)), ask.after)
    return SkipsAnswer(
        [SkippedVersion(line.partition, line.offset, line.id, line.reason, line.detail) for line in lines]
    )
