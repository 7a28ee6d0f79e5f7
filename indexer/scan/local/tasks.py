"""Tasks: what slices can work out beside giving and counting entries, near the data and in a thread.

A task is asked for by `ReadRequest.task` (`scatter.ask_task`) with arguments in `body` that only it
understands. It is called once per slice, on a snapshot that is held for it, in a thread of its own; what it
returns goes back in `SliceReply.result`. Old and new releases of nodes work side by side, so a task that
changes its arguments gets another name. Those of this release are in `task_list`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from indexer.scan.local.pace import UNHURRIED, Pace
from indexer.scan.peer.messages import ReadRequest
from indexer.view import NodeView, ReadableSnapshot
from keytide.definition import IndexDefinition


@dataclass(frozen=True, slots=True)
class SliceWork:
    """One slice's share of a task.

    Attributes:
        after: where to go on, as the request says it for this slice; b"" for the start.
        view: the node, for what else it holds.
        effort: how much of the node it may take: looked at between parts of the work, and when it is spent
            the task is to say where it got to, if it can be called again.
    """

    request: ReadRequest
    slice: int
    snapshot: ReadableSnapshot
    definition: IndexDefinition
    after: bytes
    view: NodeView
    effort: Pace = UNHURRIED


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a task gives that is to be called again: the snapshot is kept, if the request has a lease."""

    result: bytes


Task = Callable[[SliceWork], bytes | Unfinished]
"""Works on one slice. Any thread. May raise `DoubtfulReadError`, and typed errors for the reader."""
