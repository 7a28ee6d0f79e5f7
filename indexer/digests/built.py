"""What a slice under build sums up to (`keytide.wire.entry_sums`): read from its store, which has made
durable what it was sent, and nothing that its mutation queue brings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from indexer.digests.holding import LARGEST_LIMIT
from indexer.scan.local.tasks import Pace
from indexer.view import DoubtfulReadError, ReadableSnapshot
from keytide.errors import InvariantViolationError
from keytide.wire.entry_sums import BuiltAnswer, BuiltAsk, EntrySums, content_of, versions_of

_BLOCK = 4_096


def part(snapshot: ReadableSnapshot, ask: BuiltAsk, effort: Pace) -> BuiltAnswer:
    """Sum up the next rows of a slice.

    Raises:
        DoubtfulReadError: a row cannot have been written.
    """
    limit = max(1, min(ask.limit, LARGEST_LIMIT))
    blocks = _forward(snapshot, ask.after) if ask.stage == "forward" else _back(snapshot, ask.after)
    found, seen, reached, more = EntrySums(), 0, ask.after, False
    try:
        for last, rows, sums in blocks:
            found, seen, reached = found.plus(sums), seen + rows, last
            effort.look()
            if more := seen >= limit or effort.spent:
                break
    except (InvariantViolationError, UnicodeDecodeError) as error:
        raise DoubtfulReadError(f"an entry cannot be read ({error})") from error
    total = found.content + found.versions  # (one of them)
    return BuiltAnswer(found.entries, total, more, reached, snapshot.count(b"", None))


def _forward(snapshot: ReadableSnapshot, after: bytes) -> Iterator[tuple[bytes, int, EntrySums]]:
    """The last key, the number of rows, and the sums of block after block of entries."""
    for block in snapshot.rows(b"", None, False, None, after or None):
        keys = [key for key, _ in block]
        yield keys[-1], len(keys), EntrySums(len(keys), content_of(keys, [value for _, value in block]))


def _back(snapshot: ReadableSnapshot, after: bytes) -> Iterator[tuple[bytes, int, EntrySums]]:
    """The same of the back index, a document a row; remembered tombstones have no keys."""
    rows = snapshot.back_rows(after)
    while block := list(islice(rows, _BLOCK)):
        keys = [key + docid for docid, held in block for key in held.keys]
        partitions = [held.partition for _, held in block for _ in held.keys]
        offsets = [held.offset for _, held in block for _ in held.keys]
        yield block[-1][0], len(block), EntrySums(len(keys), 0, versions_of(keys, partitions, offsets))
