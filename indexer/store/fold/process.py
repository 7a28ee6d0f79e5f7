"""The fold worker's process: `python -m indexer.store.fold.process`.

It reads jobs from its standard input, one JSON object a line, and answers each on its standard output; empty
lines between say that it comes further. When its input ends it exits at once, whatever it is doing. When its
parent is killed it is killed too, be it stopped (SIGSTOP): it may hold the base's write lock.

It stays small: see `fold` for what may be imported. And it stands back: nobody waits for a fold, but many do
for the commits and scans beside which it runs, for a second at a time.
"""

from __future__ import annotations

import os
import queue
import sys
from typing import Final

from indexer.store.fold.fold import FoldJob, run_fold
from keytide.process.parent_death import follow_parent
from keytide.process.program import begin
from keytide.process.worker import Worker, logged

NICE: Final = 5
"""A quarter of a core that somebody else wants too. Measured where all cores are busy: a fold takes twice as
long, with 10 five times, and commits beside it wait no less. One that does not keep up has commits wait
(`fold-behind`)."""


def main() -> None:
    """Fold jobs from standard input until it ends."""
    begin()
    follow_parent()
    os.nice(NICE)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            jobs.put(line)
        os._exit(0)  # the parent is gone or has closed us: nothing that is at work may go on

    def failed(error: BaseException) -> None:
        logged(error)
        os._exit(1)  # no job would ever come again: whoever gives them starts another process

    def further() -> None:
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()

    Worker("jobs", failed, read).open()
    while True:
        outcome = run_fold(FoldJob.from_line(jobs.get()), further)
        sys.stdout.buffer.write(outcome.to_line())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
