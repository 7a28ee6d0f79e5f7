"""Asking nodes what their slices hold, for verification (`keytide.wire.digests`).

Theory of operation
===================
Of each slice one copy that holds the snapshot is compared with the source. The other copies that hold it
(`streaming.slices.pins`) are compared with that one: at one number they are the same (R47). Copies that do
not, hold up nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar, get_args

import numpy as np

from keytide.catalog.catalog import Catalog
from keytide.errors import RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.wire import digests
from keytide.wire.digests import (
    Ask,
    BackRow,
    DigestAnswer,
    DigestAsk,
    DuplicateKey,
    RowsAnswer,
    RowsAsk,
    Stage,
    Sums,
)
from streaming.slices.pins import Pin, PinnedSlices, SliceKey

log = logging.getLogger(__name__)

ROWS_PER_CALL: Final = 100_000
"""Rows of a slice that one call looks at: some tenths of a second of a node's thread."""
ROWS_BYTES: Final = 8 << 20
DUPLICATES: Final = 100_000
"""Pairs with one key that are taken down of one slice at most."""
AT_ONCE: Final = 4
"""Slices that are asked at once."""

PageT = TypeVar("PageT", DigestAnswer, RowsAnswer)


class SliceClient(PinnedSlices):
    """Reads the slices of some indexes for verification."""

    def __init__(
        self, catalog: Callable[[], Catalog], indexes: Sequence[str], nodes: BlockingNodeClient
    ) -> None:
        super().__init__(catalog, indexes, nodes)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="slices")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        super().close()

    def tables_taken_at(self) -> dict[int, int]:
        """Source partition -> the offset at which the table was taken that an index began with (the largest,
        of several): what its slices hold of records below is the table's. Empty when all began with the log,
        as they do with a topic that was made anew since."""
        catalog = self._catalog()
        found: dict[int, int] = {}
        for index in self.records():
            build, keyspace = catalog.build(index.build or ""), catalog.keyspace(index.keyspace)
            origin = build.origin if build is not None else None
            if origin is None or keyspace is None or origin.topic_id != keyspace.topic_id:
                continue
            for partition, offset in origin.offsets.items():
                found[partition] = max(found.get(partition, 0), offset)
        return found

    # --- reading ------------------------------------------------------------------------------------------

    def digests(
        self, pin: Pin, bits: int, floors: dict[int, int]
    ) -> Iterator[tuple[SliceKey, Sums, int, list[DuplicateKey]]]:
        """Digests of every slice as they are done: the sums, documents and entries left out, duplicates.

        Raises:
            PinLostError: a slice does not hold the snapshot any more.
        """
        yield from self._pool.map(lambda place: self._digest(pin, place, bits, floors), sorted(pin.nodes))

    def _digest(
        self, pin: Pin, place: SliceKey, bits: int, floors: dict[int, int]
    ) -> tuple[SliceKey, Sums, int, list[DuplicateKey]]:
        total = digests.no_sums(bits)
        left_out = 0
        duplicates: list[DuplicateKey] = []
        ask = partial(DigestAsk, *place, pin.number, pin.incarnation, bits=bits, floors=floors)
        for stage, answer in self._pages(pin, place, ask, DigestAnswer):
            total += np.frombuffer(answer.sums, "<u8").reshape(total.shape)
            left_out += answer.left_out if stage == "forward" else 0
            duplicates += answer.duplicates[: DUPLICATES - len(duplicates)]
        return place, total, left_out, duplicates

    def apart(
        self, pin: Pin, bits: int, floors: dict[int, int], sums: Mapping[SliceKey, Sums]
    ) -> Iterator[tuple[SliceKey, str, list[int]]]:
        """Copies that are not as the one that was asked, by node, and in which buckets. One that does not
        hold the snapshot any more, or cannot be asked, is left out.

        Args:
            sums: what `digests` had for the same arguments.
        """

        def compare(one: tuple[SliceKey, str]) -> tuple[SliceKey, str, list[int]]:
            place, node = one
            try:
                _, mine, _, _ = self._digest(pin.on(place, node), place, bits, floors)
            except RetryableError as error:
                log.warning("slice %d of %s on node %s is not compared: %s", place[1], place[0], node, error)
                return place, node, []
            differs: list[int] = np.flatnonzero((mine != sums[place]).any(axis=0)).tolist()
            return place, node, differs

        copies = [(place, node) for place, nodes in sorted(pin.others.items()) for node in nodes]
        yield from (one for one in self._pool.map(compare, copies) if one[2])

    def rows(
        self, pin: Pin, places: Iterable[SliceKey], bits: int, buckets: Sequence[int], ids: Sequence[bytes]
    ) -> Iterator[tuple[SliceKey, list[tuple[bytes, bytes, bytes]], list[BackRow]]]:
        """What slices hold of documents in some buckets, or with some ids: entries as (id, key, value), and
        what the back index has.

        Raises:
            PinLostError: a slice does not hold the snapshot any more.
        """
        yield from self._pool.map(
            lambda place: self._rows(pin, place, bits, list(buckets), list(ids)), sorted(places)
        )

    def _rows(
        self, pin: Pin, place: SliceKey, bits: int, buckets: list[int], ids: list[bytes]
    ) -> tuple[SliceKey, list[tuple[bytes, bytes, bytes]], list[BackRow]]:
        entries: list[tuple[bytes, bytes, bytes]] = []
        back: list[BackRow] = []
        where = (*place, pin.number, pin.incarnation)
        ask = partial(RowsAsk, *where, bits=bits, buckets=buckets, ids=ids, bytes_limit=ROWS_BYTES)
        for _, answer in self._pages(pin, place, ask, RowsAnswer):
            entries += answer.entries
            back += answer.back
        return place, entries, back

    def _pages(
        self, pin: Pin, place: SliceKey, ask: Callable[..., Ask], kind: type[PageT]
    ) -> Iterator[tuple[Stage, PageT]]:
        """What a slice answers of its entries, then of its back index, part by part.

        Args:
            ask: makes the question, all but `stage`, `after` and `limit`.
        """
        for stage in get_args(Stage):
            after, more = b"", True
            while more:
                question = ask(stage=stage, after=after, limit=ROWS_PER_CALL)
                answer = self.read(pin.nodes[place], question, kind)
                yield stage, answer
                after, more = answer.reached, answer.more
