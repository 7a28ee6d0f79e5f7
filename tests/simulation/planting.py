"""Planting faults: a mutant is a small change of the real code, undone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_ABSENT = object()
PLANTED: list[str] = []
"""Names of what is planted now."""


class Patches:
    """Attributes that are replaced for a while."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute that exists; returns what was there."""
        before = getattr(owner, name)
        own = vars(owner).get(name, _ABSENT)
        self._undo.append((owner, name, own))
        setattr(owner, name, value)
        return before

    def undo(self) -> None:
        for owner, name, value in reversed(self._undo):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._undo.clear()


class Mutant(NamedTuple):
    """A planted fault.

    Attributes:
        rules: of docs/protocol.md that it breaks, e.g. `R1`; other words for what belongs to no rule.
        text: what is wrong.
        plant: makes the change.
        pipeline: it lies in the real pipeline, which most plans leave out.
        faults: that must be on; None for any.
    """

    name: str
    rules: str
    text: str
    plant: Callable[[Patches], None]
    pipeline: bool = False
    faults: tuple[str, ...] = ()


@contextmanager
def planted(plant: Callable[[Patches], None]) -> Iterator[None]:
    """A mutant's change, as long as the block lasts."""
    patches = Patches()
    PLANTED.append(plant.__name__)
    try:
        plant(patches)
        yield
    finally:
        PLANTED.pop()
        patches.undo()
