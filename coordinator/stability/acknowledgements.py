"""Which snapshot numbers each replica of each slice holds, and so which numbers an index has in common. Pure.

Slices may skip numbers (R4): the newest common number is not the smallest of the newest. So each replica's
numbers are remembered, as far as it keeps them for certain (R5): the newest few, and behind them the
landmarks (`keytide.model.landmarks`), fewer of both than a slice really keeps; nothing behind the number
that is published.

Beside them, for each index and number, a bit mask of the copies that hold it: an acknowledgement is one `or`,
and whether a number is common (`RequiredCopies`) is a few operations. This runs for every slice at every
timestamp.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

from keytide.model.landmarks import rank

Copy = tuple[int, str]
"""(slice, node)."""


class RequiredCopies(NamedTuple):
    """Who must hold a number for it to be common (R37).

    Attributes:
        every: copies that all must: those that serve.
        some: of slices that have no copy that serves: their copies, one of which must.
        mask, masks: the same as bits, from `AcknowledgedNumbers.required`.
    """

    every: tuple[Copy, ...]
    some: tuple[tuple[Copy, ...], ...]
    mask: int
    masks: tuple[int, ...]


class AcknowledgedNumbers:
    """Acknowledged snapshot numbers by replica. The caller leaves out replicas that the dictionary does not
    name, and tells what is another copy now (`reset`): one that is being filled is remembered like the others
    (R41), and nobody asks for it.

    Args:
        newest: how many of the newest numbers of a replica are remembered.
        landmarks: how many of those before.

    Attributes:
        forgotten: rises whenever a replica may hold less than before.
    """

    def __init__(self, newest: int, landmarks: int) -> None:
        self._newest = newest
        self._landmarks = landmarks
        self.forgotten = 0
        self._held: dict[str, dict[Copy, list[int]]] = {}
        self._masks: dict[str, dict[int, int]] = {}
        self._bits: dict[str, dict[Copy, int]] = {}

    def acknowledge(self, node: str, index: str, slices: Iterable[int], number: int) -> None:
        """Note that these slices on `node` hold `number`."""
        held = self._held.setdefault(index, {})
        masks = self._masks.setdefault(index, {})
        bits = self._bits.setdefault(index, {})
        mask = masks.get(number, 0)
        for slice_number in slices:
            copy = slice_number, node
            numbers = held.setdefault(copy, [])
            if not numbers or number > numbers[-1]:
                numbers.append(number)
            elif number not in numbers:
                insort(numbers, number)
            mask |= bits.setdefault(copy, 1 << len(bits))
        masks[number] = mask
        if len(masks) > 2 * (self._newest + self._landmarks):
            self._forget_old(index)

    def newest(self, node: str, index: str, slice_number: int) -> int:
        """The newest number that this replica holds, -1 when none."""
        numbers = self._held.get(index, {}).get((slice_number, node))
        return numbers[-1] if numbers else -1

    def holds_number(self, node: str, index: str, slice_number: int, number: int) -> bool:
        """Whether this replica holds just that number."""
        return number in self._held.get(index, {}).get((slice_number, node), ())

    def reset(self, node: str, index: str = "", slice_number: int = -1) -> None:
        """Forget what a node (or one slice on it) held: it was restarted and has no snapshot (R2), or is
        another copy now (R48)."""
        for name in [index] if index else list(self._held):
            held = self._held.get(name, {})
            gone = [one for one in held if one[1] == node and slice_number in (-1, one[0])]
            for one in gone:
                del held[one]
            if gone:
                self.forgotten += 1
                self._mask(name)

    def passed(self, index: str, number: int) -> None:
        """Numbers before this one are of no interest any more: it is published."""
        for numbers in self._held.get(index, {}).values():
            while len(numbers) > 1 and numbers[0] < number:
                del numbers[0]
        masks = self._masks.get(index, {})
        for old in [one for one in masks if one < number]:
            del masks[old]

    def void(self, index: str, number: int) -> None:
        """Forget every number after this one: they were rolled back."""
        self.forgotten += 1
        for numbers in self._held.get(index, {}).values():
            numbers[:] = [one for one in numbers if one <= number]
        if index in self._held:
            self._mask(index)

    def forget(self, index: str) -> None:
        """Forget an index that is gone."""
        self.forgotten += 1
        self._held.pop(index, None)
        self._masks.pop(index, None)
        self._bits.pop(index, None)

    def indexes(self) -> list[str]:
        """Ids of the indexes that something is known of, in order of first acknowledgement."""
        return list(self._held)

    def required(self, index: str, every: Iterable[Copy], some: Iterable[Iterable[Copy]]) -> RequiredCopies:
        """`RequiredCopies`, with its bits."""
        all_of, one_of = tuple(every), tuple(tuple(copies) for copies in some)
        masks = tuple(self._mask_of(index, copies) for copies in one_of)
        return RequiredCopies(all_of, one_of, self._mask_of(index, all_of), masks)

    def holds(self, index: str, number: int, required: RequiredCopies) -> bool:
        """Whether a number is common. It never is where nobody is asked."""
        mask = self._masks.get(index, {}).get(number, 0)
        if mask & required.mask != required.mask or not all(mask & one for one in required.masks):
            return False
        return bool(required.every or required.some)

    def newest_common(self, index: str, required: RequiredCopies) -> int:
        """The newest number that is common; -1 when there is none."""
        masks = self._masks.get(index, {})
        return max((number for number in masks if self.holds(index, number, required)), default=-1)

    def lacking(self, index: str, number: int, required: RequiredCopies) -> list[int]:
        """The slices on account of which `number` is not common, looked up copy by copy (to check the
        masks)."""
        held = self._held.get(index, {})
        having = {copy for copy, numbers in held.items() if number in numbers}
        lacking = {copy[0] for copy in required.every if copy not in having}
        return sorted(lacking | {copies[0][0] for copies in required.some if not having.intersection(copies)})

    def _forget_old(self, index: str) -> None:
        """Keep of each replica the newest numbers, and the landmarks before them."""
        for numbers in self._held[index].values():
            before = sorted(numbers[: -self._newest], key=lambda one: (rank(one), one))[-self._landmarks :]
            numbers[:] = sorted(before) + numbers[-self._newest :]
        self._mask(index)

    def _mask(self, index: str) -> None:
        masks: dict[int, int] = {}
        bits = self._bits[index]
        for copy, numbers in self._held[index].items():
            for number in numbers:
                masks[number] = masks.get(number, 0) | bits[copy]
        self._masks[index] = masks

    def _mask_of(self, index: str, copies: Iterable[Copy]) -> int:
        bits = self._bits.setdefault(index, {})
        mask = 0
        for copy in copies:
            mask |= bits.setdefault(copy, 1 << len(bits))
        return mask
