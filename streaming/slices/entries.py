"""Entries and lines of skip ledgers of slices at a snapshot that is held, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from keytide.wire.digests import EntriesAnswer, EntriesAsk, SkippedVersion, SkipsAnswer, SkipsAsk
from streaming.slices.pins import Pin, PinnedSlices, SliceKey

ROWS_PER_CALL: Final = 20_000
"""Some hundredths of a second of a node's thread."""
BYTES_AT_ONCE: Final = 64 << 20
"""Of the pages of all slices together, about, where each has one."""
MOST_BYTES: Final = 4 << 20
LEAST_BYTES: Final = 64 << 10
LINES_PER_CALL: Final = 5_000


class SliceEntries(PinnedSlices):
    """Reads the slices of an index whole."""

    def entries(self, pin: Pin, place: SliceKey) -> Iterator[EntriesAnswer]:
        """The entries of a slice in key order; no page is empty.

        Raises:
            PinLostError: it does not hold the snapshot any more.
            RetryableError: it does not answer.
        """
        size = max(LEAST_BYTES, min(MOST_BYTES, BYTES_AT_ONCE // len(pin.nodes)))
        after, more = b"", True
        while more:
            where = (*place, pin.number, pin.incarnation, after)
            ask = EntriesAsk(*where, ROWS_PER_CALL, size)
            answer = self.read(pin.nodes[place], ask, EntriesAnswer)
            if answer.ids:
                yield answer
            after, more = answer.reached, answer.more

    def skips(self, pin: Pin, place: SliceKey) -> Iterator[list[SkippedVersion]]:
        """The lines of its skip ledger, by partition and offset; no page is empty. Raises as `entries`."""
        after: tuple[int, int] | None = None
        while True:
            ask = SkipsAsk(*place, pin.number, pin.incarnation, after, LINES_PER_CALL)
            lines = self.read(pin.nodes[place], ask, SkipsAnswer).lines
            if not lines:
                return
            yield lines
            after = lines[-1].partition, lines[-1].offset
