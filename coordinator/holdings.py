"""Which snapshot numbers each replica of each slice holds, and so which numbers an index has in common. Pure.

Slices may skip numbers (R4): the newest common number is not the smallest of the newest. So each replica's
numbers are remembered, as far as it keeps them for certain (R5): the newest few, and behind them the
landmarks (`keytide.landmarks`), fewer of both than a slice really keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keytide.landmarks import rank

Placement = Sequence[Sequence[str]]
"""For each slice, the nodes that hold it."""


class Holdings:
    """Acknowledged snapshot numbers by replica.

    Args:
        newest: how many of the newest numbers of a replica are remembered.
        landmarks: how many of those before.
    """

    def __init__(self, newest: int, landmarks: int) -> None:
        self._newest = newest
        self._landmarks = landmarks
        self._held: dict[tuple[str, int], dict[str, list[int]]] = {}

    def acknowledge(self, node: str, slices: Iterable[tuple[str, int]], number: int) -> list[str]:
        """Note that these slices (index, slice) on `node` hold `number`; the ids of the indexes touched, each
        once."""
        touched: dict[str, None] = {}
        for index, slice_number in slices:
            held = self._held.setdefault((index, slice_number), {}).setdefault(node, [])
            touched[index] = None
            if number not in held:
                held.append(number)
                held.sort()
                if len(held) > self._newest + self._landmarks:
                    held.remove(min(held[: -self._newest], key=lambda one: (rank(one), one)))
        return list(touched)

    def newest(self, node: str, index: str, slice_number: int) -> int:
        """The newest number that this replica holds, -1 when none."""
        held = self._held.get((index, slice_number), {}).get(node)
        return held[-1] if held else -1

    def reset(self, node: str, index: str = "", slice_number: int = -1) -> None:
        """Forget what a node (or one slice on it) held: it was restarted and has no snapshot (R2)."""
        for (held_index, held_slice), replicas in self._held.items():
            if not index or (held_index, held_slice) == (index, slice_number):
                replicas.pop(node, None)

    def forget(self, index: str) -> None:
        """Forget an index that is gone."""
        for key in [key for key in self._held if key[0] == index]:
            del self._held[key]

    def indexes(self) -> list[str]:
        """Ids of the indexes that something is known of, in order of first acknowledgement."""
        return list(dict.fromkeys(index for index, _ in self._held))

    def missing(self, index: str, placement: Placement, number: int) -> list[int]:
        """The slices of which no placed replica holds `number`."""
        return [
            slice_number
            for slice_number, nodes in enumerate(placement)
            if not any(number in self._numbers(index, slice_number, node) for node in nodes)
        ]

    def holds(self, index: str, placement: Placement, number: int) -> bool:
        """Whether a placed replica of every slice holds `number`; False for an index that has no slices
        placed."""
        return bool(placement) and not self.missing(index, placement, number)

    def newest_common(self, index: str, placement: Placement) -> int:
        """The newest number that every slice holds on some placed replica; -1 when there is none."""
        common: set[int] | None = None
        for slice_number, nodes in enumerate(placement):
            held = {number for node in nodes for number in self._numbers(index, slice_number, node)}
            common = held if common is None else common & held
            if not common:
                return -1
        return max(common) if common else -1

    def _numbers(self, index: str, slice_number: int, node: str) -> list[int]:
        return self._held.get((index, slice_number), {}).get(node, [])
