"""Which keys have several entries in one commit of a slice.

Theory of operation
===================
No canonical key is a prefix of another, so the entries of one key lie together and begin with it. For each
key every level is asked for its first two entries, markers included, by a cursor that goes over the keys in
their order. One entry in all levels together, however often, is the usual answer, and ends it: a marker can
only hide one. The few keys with more (another document has it, or had it until lately), and those whose
entries may be long, are read as a scan reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from indexer.store.interface import Row
from indexer.store.lmdb.levels import View
from indexer.store.lmdb.merge import live_blocks
from keytide.collation import successor
from keytide.model.entry import INLINE_LIMIT, MAX_ID_BYTES


def shared_keys(views: Sequence[View], keys: Sequence[bytes]) -> list[bytes]:
    """Those of `keys` (canonical, all different, ascending) that more than one entry has.

    Args:
        views: from the oldest to the newest.
    """
    return [key for key in _perhaps(views, keys) if _entries(views, key) > 1]


def _perhaps(views: Sequence[View], keys: Sequence[bytes]) -> Iterator[bytes]:
    """Keys under which more than one entry key stands in any levels, in order."""
    first: dict[bytes, bytes] = {}
    several: set[bytes] = set()
    if any(view.has_long for view in views):
        several.update(key for key in keys if len(key) + MAX_ID_BYTES > INLINE_LIMIT)
    for view in views:
        with view.cursor(view.tables.forward) as cursor:
            seek, at, step = cursor.set_range, cursor.key, cursor.next
            for key in keys:
                if not seek(key):
                    break
                entry_key = at()
                if not entry_key.startswith(key):
                    continue
                if first.setdefault(key, entry_key) != entry_key or (step() and at().startswith(key)):
                    several.add(key)
    return (key for key in keys if key in several)


def _entries(views: Sequence[View], key: bytes) -> int:
    """How many entries a key has, counted to two."""
    blocks: Iterator[list[Row]] = live_blocks(views, [(key, successor(key))], False, 2)
    count = 0
    for block in blocks:
        count += len(block)
        if count > 1:
            break
    return count
