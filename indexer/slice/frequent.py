"""Which of many items come most often, in bounded memory. Pure.

Misra and Gries, Finding repeated elements (1982), with weights, and pruned in batches as in Anderson et al.,
A high-performance algorithm for identifying frequent items in data streams (2017): counters are kept until
there are twice as many as are wanted; then the largest one beyond the wanted number is taken from all, and
those that have nothing left go. So an item costs one look into a dictionary, a pruning now and then apart,
and each has been cut by the same at most: by no more than the weight of all items divided by (wanted + 1).
"""

from __future__ import annotations

from heapq import nlargest
from typing import Final, NamedTuple

LEAST: Final = 1 / 16
"""Weight of all items together below which they are forgotten."""


class Frequent(NamedTuple):
    """An item, and what it weighs: at least `least`, at most `most`."""

    item: bytes
    least: float
    most: float


class FrequentItems:
    """The items that weigh most.

    Args:
        wanted: every item that weighs more than the whole divided by (wanted + 1) is kept.

    Attributes:
        total: what all items together weigh.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._counts: dict[bytes, float] = {}
        self._cut = 0.0
        self.total = 0.0

    def add(self, item: bytes, weight: float = 1.0) -> None:
        """An item came."""
        self.total += weight
        self._counts[item] = self._counts.get(item, 0.0) + weight
        if len(self._counts) > 2 * self._wanted:
            self._prune()

    def add_unknown(self, weight: float) -> None:
        """Something came that is not to be told apart: it counts for the whole only."""
        self.total += weight

    def halve(self) -> None:
        """Have what came so far weigh half as much as what comes from now on."""
        self.total /= 2
        if self.total < LEAST:  # nothing came for long: what is left says nothing of now
            self.total = self._cut = 0.0
            self._counts = {}
            return
        self._counts = {item: count / 2 for item, count in self._counts.items()}
        self._cut /= 2

    def heaviest(self, most: int) -> list[Frequent]:
        """So many items at most, the heaviest first."""
        found = nlargest(most, self._counts.items(), key=lambda one: (one[1], one[0]))
        return [Frequent(item, count, count + self._cut) for item, count in found]

    def _prune(self) -> None:
        less = sorted(self._counts.values(), reverse=True)[self._wanted]
        self._counts = {item: count - less for item, count in self._counts.items() if count > less}
        self._cut += less
