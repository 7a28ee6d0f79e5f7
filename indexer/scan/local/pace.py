"""How work on a slice goes beside other work: `Pace`, which `indexer.scan.local.effort` has with a clock.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

ItemT = TypeVar("ItemT")


class Pace(Protocol):
    """What the work asks between its parts."""

    @property
    def spent(self) -> bool:
        """Whether its turn is over: it is to say where it got to."""
        ...

    def begin(self, of: int) -> None:
        """Begin one of the slices that the turn is divided among, of so many that are left."""
        ...

    def look(self) -> None:
        """Raise if nobody waits for the work any more (`OutOfTimeError`, `GivenUpError`); rest if others
        wait."""
        ...

    def parts(self, block: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
        """A block in parts, each a moment's work; looks behind each."""
        ...


class NoPace:
    """All the time that there is."""

    spent = False

    def begin(self, of: int) -> None:
        """There is enough for all."""

    def look(self) -> None:
        """Nothing ends it."""

    def parts(self, block: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
        """The block as a whole."""
        if block:
            yield block


UNHURRIED = NoPace()
