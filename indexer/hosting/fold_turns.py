"""When the slices of a node fold: one after the other, as far as time allows.

Slices of one index begin their deltas with the same stability timestamp, so all of them would be of age in
the same moment: the ingest thread would begin as many folds, and as many new deltas, in one pass, while
nobody commits, and the fold workers of all nodes would be at work at once. So each slice has an age of its
own, and one look after the slices begins one fold at most.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from indexer.hosting.slice_runner import SliceKey, SliceRunner
from indexer.store.settings import StoreSettings

EARLIER: Final = 0.25
"""The share of the age that is set by which a slice folds earlier at most; none folds later, for a restart
replays what is not folded."""
_GOLDEN: Final = 0.618_033_988_749_895
"""What its multiples have beyond whole numbers lies well apart, however many there are: so do the ages of
slices with numbers in a row."""


def in_turn(settings: StoreSettings, key: SliceKey) -> StoreSettings:
    """The settings of one slice's store: its own age of folds, the same after every start."""
    index, number = key
    share = (zlib.crc32(index.encode()) / 2**32 + number * _GOLDEN) % 1.0
    return replace(settings, fold_age_ms=round(settings.fold_age_ms * (1.0 - EARLIER * share)))


class FoldTurns:
    """Whose turn it is. Used by the ingest thread."""

    def __init__(self) -> None:
        self._last: SliceKey = ("", -1)

    def look_after(self, runners: Mapping[SliceKey, SliceRunner], now: int) -> None:
        """What is due in each of `runners`, which are in order; one of them begins a fold at most. Who comes
        behind the one that did last is asked first, so that nobody waits for ever."""
        keys = list(runners)
        first = bisect_right(keys, self._last)
        may = True
        for key in keys[first:] + keys[:first]:
            runner = runners[key]
            before = runner.store.folding
            runner.look_after(now, fold=may)
            if runner.store.folding and not before:
                self._last, may = key, False
