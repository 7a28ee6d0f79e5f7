"""Who hears of which documents (R16).

Theory of operation
===================
A slice hears of a document so that it removes what it holds of it under another key. Where keys decide which
slice an entry lies in, any slice may hold one, so all hear every document (ADR 2). Where the document id
decides, or has a say (SUBPARTITION BY HASH(id)), a slice that the id does not fall to has never held an entry
of it, in no version and of no source partition: it need not hear of it, whatever was read before, is read
again or was lost. Nothing is remembered for that, so nothing can be out of date.

What is left out is told all the same: at which offsets there are documents (`Segment.present`), some bytes
for a whole batch. By that a slice sees what an election has lost (`indexer.slice.mutation_queue`). A release
before version 6 of the protocol does not read it, so an index has its slices hear less only if it was made
while that was in use (`IndexRecord.hears_by_id`).

Not built is a cache of where a document's last entries went, by which updates of an index by key would be
heard by two slices at most: it would be right only where an id has one source partition (ADR 34).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keytide.catalog.partitioning import Partitioning
from keytide.wire.columns import chosen, heard_hashes, heard_offsets
from keytide.wire.messages import Heard
from keytide.wire.presence import presence


class SliceDocuments(NamedTuple):
    """The documents of a batch that one slice hears of.

    Attributes:
        heard: the documents; None for none.
        ordinals: which of the batch's they are, ascending; None when they are all.
        present: as `Segment.present`.
    """

    heard: Heard | None
    ordinals: npt.NDArray[np.int64] | None = None
    present: bytes = b""


class BatchDocuments:
    """The documents of one batch, as the slices of all indexes hear of them.

    Args:
        heard: its documents; None for none.
    """

    def __init__(self, heard: Heard | None) -> None:
        self.heard = heard
        self._whole = SliceDocuments(heard)
        self._shares: dict[int, list[SliceDocuments]] = {1: [self._whole]}
        self._present = b""

    def of(self, rule: Partitioning, by_id: bool) -> list[SliceDocuments]:
        """By slice of an index.

        Args:
            by_id: each hears of the documents alone that their ids let it hold.
        """
        if self.heard is None or not by_id:
            return [self._whole] * rule.slices
        return [one for count in rule.id_shares for one in self._shared(count)]

    def _shared(self, count: int) -> list[SliceDocuments]:
        """The documents by the hash of their ids modulo `count`. (Indexes with as many slices share this.)"""
        found = self._shares.get(count)
        if found is None and self.heard is not None:
            self._present = self._present or presence(heard_offsets(self.heard, 0))
            shares = by_share(heard_hashes(self.heard), count)
            found = self._shares[count] = [self._part(self.heard, ordinals) for ordinals in shares]
        return found or []

    def _part(self, heard: Heard, ordinals: npt.NDArray[np.int64]) -> SliceDocuments:
        if len(ordinals) == heard.count:
            return self._whole
        part = chosen(heard, ordinals) if len(ordinals) else None
        return SliceDocuments(part, ordinals, self._present)


def by_share(hashes: npt.NDArray[np.uint64], count: int) -> Sequence[npt.NDArray[np.int64]]:
    """Which documents fall to each of `count` slices by the hashes of their ids: ordinals, ascending."""
    shares = (hashes % np.uint64(count)).astype(np.uint16)
    order = np.argsort(shares, kind="stable")  # a radix sort, for 16 bits
    return np.split(order, np.cumsum(np.bincount(shares, minlength=count))[:-1])
