"""Entries of the slices of one layout of an index, on their way to the slices of another one. Pure (R44).

Theory of operation. Every slice gives its entries in key order, page by page. Pages are taken in the order of
their first keys (`in_order`), so once a page is taken that begins with k, no entry below k is still to come.
Each page is shared out among the new slices (`shared_out`), and merged with what those hold
(`streaming.core.runs.Merge`): about a page of every old slice is held, whatever the size of the index.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from keytide.catalog.partitioning import Partitioning
from keytide.collation import encode_part, skip_key
from keytide.collation.layout import INVERTED
from keytide.definition.index import IndexDefinition
from keytide.structure.spatial import partition_keys_of
from keytide.wire.columns import hashes_of
from keytide.wire.digests import EntriesAnswer
from router.core import NO_HASHES, slices_of
from streaming.core.runs import SCHEMA, RunBlock


class SlicePage(NamedTuple):
    """Entries of one slice, in key order.

    Attributes:
        entries: as `streaming.core.runs.SCHEMA` has them; at least one.
        ids, keys, values: of them, stored keys (`keytide.structure`).
    """

    entries: pa.RecordBatch
    ids: list[bytes]
    keys: list[bytes]
    values: list[bytes]

    @property
    def first(self) -> bytes:
        """The first entry key."""
        return self.keys[0] + self.ids[0]


def page_of(answer: EntriesAnswer) -> SlicePage:
    """What a node has told."""
    columns = [
        pa.array(np.frombuffer(answer.partitions, "<u4")),
        pa.array(np.frombuffer(answer.offsets, "<u8")),
        pa.array(np.frombuffer(answer.times, "<i8")),
        pa.array(answer.ids, pa.binary()),
        pa.array(answer.keys, pa.binary()),
        pa.array(answer.values, pa.binary()),
    ]
    return SlicePage(
        pa.RecordBatch.from_arrays(columns, schema=SCHEMA), answer.ids, answer.keys, answer.values
    )


def in_order(slices: Sequence[Iterator[SlicePage]]) -> Iterator[SlicePage]:
    """The pages of several slices in the order of their first entry keys."""
    heap: list[tuple[bytes, int, SlicePage]] = []
    for number, pages in enumerate(slices):
        if (page := next(pages, None)) is not None:
            heap.append((page.first, number, page))
    heapq.heapify(heap)
    while heap:
        _, number, page = heap[0]
        yield page
        following = next(slices[number], None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following.first, number, following))


def shared_out(
    page: SlicePage, definition: IndexDefinition, splits: Sequence[bytes]
) -> Iterator[tuple[int, RunBlock]]:
    """The entries of a page by the slices of an index that they fall to; their bound is that of the page.

    Args:
        splits: of the index, when it is by RANGE.
    """
    by = partition_keys(definition, page.ids, page.keys, page.values)
    hashes = hashes_of(page.ids, len(page.ids)) if definition.spread else NO_HASHES
    routes = slices_of(by, Partitioning.of(definition, splits), hashes)
    for number in np.unique(routes).tolist():
        yield number, RunBlock(page.first, page.entries.filter(pa.array(routes == number)))


def partition_keys(
    definition: IndexDefinition, ids: list[bytes], keys: list[bytes], values: list[bytes]
) -> list[bytes]:
    """What tells the slices of entries, from what they hold; as `projector.core.compile` makes it of
    documents.

    Args:
        definition: is partitioned by what its entries hold (`entries_say_slice`).
        ids, keys, values: of the entries, stored keys.
    """
    part, descending = definition.partition_part, definition.descending
    if definition.raw_id_routes:
        return ids
    if definition.partitioned_by_cell:
        return partition_keys_of(keys)
    if part is None:
        return [encode_part(id_.decode()) for id_ in ids]
    if definition.structure.key_in_value:
        keys = list(map(definition.structure.canonical, keys, values))
    if len(definition.keys) == 1:
        return [key.translate(INVERTED) for key in keys] if descending else keys
    found = [key[skip_key(key, part, descending) : skip_key(key, part + 1, descending)] for key in keys]
    return [one.translate(INVERTED) for one in found] if descending and descending[part] else found
