"""What is written to a slice: how much, and a sample of which partition values. Pure.

Theory of operation
===================
Every commit counts by its totals. Values are looked at in a few entries of a commit only, and in none of a
commit that brings little: what it brings is counted with the next one. Each sampled entry stands for as many
as were brought since the last sample, shared evenly. The places in the commit shift from one to the next by
the golden ratio, so that nothing which repeats in the data is met, or missed, every time.

Of each sampled entry the *partition value* is told, the one by which it came to this slice
(`keytide.catalog.partitioning`): encoded, ascending, as splits are. It is a part of the key, or the document
id; where it is neither, entries do not say it, and nothing is told but how much there was.

Values go two ways: into a sketch of those that come most often, which forgets by half with every window; and
into a list of some, evenly from all that was brought in a window, from which splits can be worked out. That
of the window before is kept beside it: whether values rise is seen from the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from indexer.slice.frequent import FrequentItems
from keytide.collation import encode_part, skip_key
from keytide.collation.layout import INVERTED
from keytide.definition.index import MAX_SPLIT_BYTES, IndexDefinition
from keytide.errors import InvariantViolationError
from keytide.structure.spatial import partition_keys_of
from keytide.wire.columns import heard_ids, pick
from keytide.wire.index_lists import WrittenSlice, WrittenValue
from keytide.wire.messages import Segment

SAMPLED: Final = 8
"""Entries of one sample, at most."""
SAMPLE_EVERY: Final = 1_024
"""Entries that there are to be for a sample: looking at eight of them costs a hundredth of what they do."""
WINDOW_MS: Final = 60_000
COUNTED: Final = 32
"""What is more than a thirty-third of the load is found."""
TOLD: Final = 8
"""Values that are told, of those that are counted."""
LISTED: Final = 128
"""Values in the list of a window."""
SHOW_MS: Final = 1_000
_GOLDEN: Final = 0.618034


class WriteLoad:
    """Of one slice. Used by one thread; `shown` may be read by any.

    Args:
        number: the slice's.
        definition: of its index; None where it is not known: then only how much there was is told.

    Attributes:
        known: entries say by which value they came here.
        entries: put and removed since the slice was opened.
        shown: what is told to who asks; replaced now and then, never changed.
    """

    def __init__(self, number: int, definition: IndexDefinition | None = None) -> None:
        part = definition.partition_part if definition is not None else None
        self._number = number
        self._part = part
        self._by_id = definition is not None and part is None and definition.partitioned_by_id
        self._by_cell = definition is not None and definition.partitioned_by_cell
        self._descending = definition.descending if definition is not None else ()
        self._structure = definition.structure if definition is not None else None
        self.known = definition is not None and definition.entries_say_slice
        self.entries = 0
        self._unseen = 0
        self._samples = 0
        self._frequent = FrequentItems(COUNTED)
        self._listed: list[bytes] = []
        self._listed_before: list[bytes] = []
        self._stride = 1.0
        self._owed = 0.0
        self._window_from = self._shown_at = 0
        self.shown = self._now_shown()

    def committed(self, segments: Sequence[Segment], changed: int) -> None:
        """A commit of the mutation queue is done.

        Args:
            changed: entries that it has put and removed.
        """
        self.entries += changed
        if not self.known:
            return
        counts = [one.puts.count if one.puts is not None else 0 for one in segments]
        brought = sum(counts)
        self._unseen += brought
        if brought and self._unseen >= SAMPLE_EVERY:
            self._sample(segments, counts, brought)

    def _sample(self, segments: Sequence[Segment], counts: list[int], brought: int) -> None:
        """Look at some entries of a commit that brings `brought`, `counts` by segment."""
        self._samples += 1
        count = min(SAMPLED, brought)
        shift = self._samples * _GOLDEN % 1
        places = [min(int((one + shift) * brought / count), brought - 1) for one in range(count)]
        weight, self._unseen = self._unseen / count, 0
        start = 0
        for segment, holds in zip(segments, counts, strict=True):
            here = [place - start for place in places if start <= place < start + holds]
            start += holds
            for value in self._values(segment, here) if here else ():
                if value is None or len(value) > MAX_SPLIT_BYTES:
                    self._frequent.add_unknown(weight)
                else:
                    self._take(value, weight)

    def look(self, now: int) -> None:
        """What is due by time (ms): another window, and to show what there is."""
        if now - self._window_from >= WINDOW_MS:
            self._window_from = now
            self._frequent.halve()
            self._listed_before, self._listed = self._listed, []
            self._stride, self._owed = 1.0, 0.0
        if now - self._shown_at >= SHOW_MS:
            self._shown_at = now
            self.shown = self._now_shown()

    def _values(self, segment: Segment, places: list[int]) -> Sequence[bytes | None]:
        """The partition values of some entries of a segment, None where one cannot be read."""
        puts, heard = segment.puts, segment.heard
        if puts is None or heard is None:
            return []
        if self._by_id:
            ordinals = np.frombuffer(puts.ordinals, "<u4")[places]
            return [encode_part(one.decode()) for one in heard_ids(heard, ordinals)]
        keys = pick(np.frombuffer(puts.key_lengths, "<u2"), puts.keys, np.array(places))
        if self._by_cell:
            return partition_keys_of(keys)
        if self._structure is not None and self._structure.key_in_value:
            values = pick(np.frombuffer(puts.value_lengths, "<u4"), puts.values, np.array(places))
            keys = list(map(self._structure.canonical, keys, values))
        return [self._cut_out(key) for key in keys]

    def _cut_out(self, key: bytes) -> bytes | None:
        part = self._part or 0
        try:
            begin = skip_key(key, part, self._descending) if part else 0
            value = key[begin : skip_key(key, part + 1, self._descending)]
        except InvariantViolationError:
            return None  # (scans tell of it; nobody is to miss the slice for a sample)
        return value.translate(INVERTED) if self._descending and self._descending[part] else value

    def _take(self, value: bytes, weight: float) -> None:
        self._frequent.add(value, weight)
        self._owed += weight
        while self._owed >= self._stride:
            self._owed -= self._stride
            self._listed.append(value)
            if len(self._listed) >= LISTED:
                del self._listed[::2]
                self._stride *= 2

    def _now_shown(self) -> WrittenSlice:
        return WrittenSlice(
            slice=self._number,
            known=self.known,
            total=self._frequent.total,
            heavy=[WrittenValue(*one) for one in self._frequent.heaviest(TOLD)],
            before=tuple(self._listed_before),
            listed=tuple(self._listed),
        )
