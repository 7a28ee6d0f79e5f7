"""Named places in the running code at which a test may end or hold a process. Costs one comparison.

`KEYTIDE_SYNC_POINT=NAME:ACTION[:COUNT]` arms one point of one process: on the COUNT-th time (default 1) that
it is reached,

    kill        the process ends as by kill -9
    once=FILE   the same, and it makes FILE to say so; with FILE there it goes on: so the process that comes
                in its place with the same environment (a fold worker, a Spark driver) lives
    hold=FILE   it waits until FILE is there (and makes FILE.held to say that it waits)

So a crash test strikes between two instructions and not "about then" (after fail points in TiKV and Linux).
Every name is in `POINTS`; a name that is not raises, whether armed or not, in tests.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

POINTS: Final = frozenset(
    {
        # projector
        "projector-projected",  # a poll is projected, nothing is sent
        "projector-sent",  # some messages of a poll are handed over
        "projector-acknowledged",  # a poll is acknowledged, not committed
        "projector-before-commit",
        "projector-after-commit",
        "projector-rolled-back",  # partitions were taken over at the cut, nothing is read yet
        # indexer: the delta
        "delta-before-commit",
        "delta-committed",  # not acknowledged
        "snapshot-acknowledged",  # handed to the producer
        # indexer: stages of a fold; the first and the last in the node, the others in the fold worker
        "fold-frozen",
        "fold-undo-written",
        "fold-filter-moved",
        "fold-before-commit",
        "fold-committed",
        "fold-checksums-written",
        "fold-filter-read",  # within a read transaction: only a filter that is built anew
        "fold-settled",
        # indexer: a copy that is filled from another node
        "filling-before-commit",
        "filling-committed",
        "filling-before-finish",
        "filling-finished",  # its checksums are not written
        "examine-read",  # within a read transaction of the process that examines a base
        # indexer: backfill and rollback
        "load-before-commit",
        "load-committed",
        "switch-over",
        "step-back-before",
        "step-back-half",
        "step-back-done",
        # coordinator
        "coordinator-before-write",
        "coordinator-after-write",
        "coordinator-stamped",
        "coordinator-published",
        "coordinator-build-end",
        "coordinator-rollback-decided",
        # repair
        "repair-watched",  # slices remember what they hear
        "repair-corrected",  # corrections are in the queues
        # Spark driver
        "sample-taken",  # of the source, for splits; nothing is reported
        "driver-batch-begun",
        "driver-chunks-sent",
        "driver-before-batch-end",
        "driver-batch-ended",
        "driver-passed",
        # driver of a verification
        "verify-pinned",  # the snapshot is held, nothing is read
        "verify-compared",  # the report is not written
        "verify-done",
    }
)
_ACTIONS: Final = frozenset({("kill", False), ("once", True), ("hold", True)})
_HOLD_POLL_S: Final = 0.02


class _Armed:
    """The one point of this process, from the environment."""

    def __init__(self, text: str) -> None:
        self.name, action, count = ([*text.split(":", 2), "", ""])[:3]
        what, _, file = action.partition("=")
        if text and (self.name not in POINTS or (what, bool(file)) not in _ACTIONS):
            raise ValueError(f"KEYTIDE_SYNC_POINT={text}: no such point or action")
        self.hold = Path(file) if what == "hold" else None
        self.once = Path(file) if what == "once" else None
        self.left = int(count or 1)


_armed = _Armed(os.environ.get("KEYTIDE_SYNC_POINT", ""))


def reach(name: str) -> None:
    """The code is at the point `name`."""
    if name != _armed.name:
        return
    _armed.left -= 1
    if _armed.left:
        return
    if _armed.hold is None:
        if _armed.once is not None:
            try:
                _armed.once.touch(exist_ok=False)
            except FileExistsError:
                return
        os.kill(os.getpid(), signal.SIGKILL)
        return
    _armed.hold.with_name(_armed.hold.name + ".held").touch()
    while not _armed.hold.exists():
        time.sleep(_HOLD_POLL_S)
