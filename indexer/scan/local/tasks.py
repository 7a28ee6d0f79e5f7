"""Tasks: what slices can work out beside giving and counting entries, near the data and in a thread.

A task is asked for by `ReadShape.task` (`scatter.ask_task`) with arguments in `body` that only it
understands. It is called once per slice, on a snapshot that is held for it, in a thread of its own; what it
returns goes back in `SliceReply.result`. Old and new releases of nodes work side by side, so a task that
changes its arguments gets another name. Those of this release are in `indexer.scan.tasks`.

How work on a slice goes beside other work is its `Pace`, which `indexer.scan.local.effort` has with a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from indexer.scan.peer.messages import ReadRequest
from indexer.view import NodeView, ReadableSnapshot
from keytide.definition.index import IndexDefinition

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


@dataclass(frozen=True, slots=True)
class SliceWork:
    """One slice's share of a task.

    Attributes:
        after: where to go on, as the request says it for this slice; b"" for the start.
        view: the node, for what else it holds.
        pace: how much of the node it may take: looked at between parts of the work, and when it is spent
            the task is to say where it got to, if it can be called again.
    """

    request: ReadRequest
    slice: int
    snapshot: ReadableSnapshot
    definition: IndexDefinition
    after: bytes
    view: NodeView
    pace: Pace = UNHURRIED


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a task gives that is to be called again: the snapshot is kept, if the request has a lease."""

    result: bytes


Task = Callable[[SliceWork], bytes | Unfinished]
"""Works on one slice. Any thread. May raise `DoubtfulReadError`, and typed errors for the reader."""
