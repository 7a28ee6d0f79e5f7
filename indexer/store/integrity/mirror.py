"""Mirror: the forward entries of a commit are exactly the inverse of its back index.

Both directions are read once and summed up by digest (128 bits, order does not matter), so the check needs no
memory; entries must come in order. Only when the sums differ are the entries compared one by one, to tell the
story.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from indexer.store.interface import StoreSnapshot
from keytide.errors import InvariantViolationError, invariant

_SPAN = 1 << 128
_NAMED = 5


def check_mirror(snapshot: StoreSnapshot) -> None:
    """Check one commit.

    Raises:
        InvariantViolationError: it does not hold; names some entries.
    """
    forward, entries = _digest(_ascending(_forward(snapshot)))
    back, inverse = _digest(_inverse(snapshot))
    invariant(entries == inverse and forward == back, "Mirror", lambda: _story(snapshot, entries, inverse))
    documents = tombstones = 0
    for _, held in snapshot.back_rows():
        documents += bool(held.keys)
        tombstones += not held.keys
    counts = snapshot.counts
    invariant(
        (counts.entries, counts.documents, counts.tombstones) == (entries, documents, tombstones),
        "Mirror",
        f"counted {counts}, there are {entries} entries, {documents} documents, {tombstones} tombstones",
    )


def _forward(snapshot: StoreSnapshot) -> Iterator[bytes]:
    for block in snapshot.rows():
        for key, _ in block:
            yield key


def _ascending(keys: Iterator[bytes]) -> Iterator[bytes]:
    before: bytes | None = None
    for key in keys:
        if before is not None and key <= before:
            raise InvariantViolationError("Mirror", f"entry {key[:24].hex()} is out of order")
        before = key
        yield key


def _inverse(snapshot: StoreSnapshot) -> Iterator[bytes]:
    for docid, held in snapshot.back_rows():
        for key in held.keys:
            yield key + docid


def _digest(keys: Iterator[bytes]) -> tuple[int, int]:
    total = count = 0
    for key in keys:
        total = (total + xxhash.xxh3_128_intdigest(key)) % _SPAN
        count += 1
    return total, count


def _story(snapshot: StoreSnapshot, entries: int, inverse: int) -> str:
    forward, back = set(_forward(snapshot)), set(_inverse(snapshot))
    extra = sorted(forward - back)[:_NAMED]
    missing = sorted(back - forward)[:_NAMED]
    return f"{entries} entries, {inverse} by the back index; only forward {extra}, only back {missing}"
