"""The long run of the simulation: `python -m tests.soak` runs histories on all cores for KEYTIDE_MINUTES (60)
and ends with one line of what was run; exit status 1 with the story of the first that went wrong."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from tests.simulation.running import Tally, histories

CHUNK = 200
FIRST = int(os.environ.get("KEYTIDE_FIRST_SEED", "10000"))
"""Past the seeds of `make test`."""
PROGRESS_S = 30.0


def _run(chunk: int) -> tuple[int, Tally | None, str]:
    first = FIRST + chunk * CHUNK
    try:
        return first, histories(range(first, first + CHUNK)), ""
    except AssertionError as error:
        return first, None, str(error)


def main() -> int:
    """Run until the time is over, or something is wrong."""
    minutes = float(os.environ.get("KEYTIDE_MINUTES", "60"))
    deadline = time.monotonic() + 60 * minutes
    total, told, began = Tally(), time.monotonic(), time.monotonic()
    with multiprocessing.Pool() as pool:
        for first, tally, story in pool.imap_unordered(_run, range(_chunks(minutes))):
            if tally is None:
                print(f"seeds from {first}: {story}")
                pool.terminate()
                return 1
            total.plus(tally)
            now = time.monotonic()
            if now - told >= PROGRESS_S:
                told = now
                print(_line(total, now - began), flush=True)
            if now >= deadline:
                pool.terminate()
                break
    print(f"done: {_line(total, time.monotonic() - began)}, 0 differences")
    return 0


def _chunks(minutes: float) -> int:
    """More than can be run in that time."""
    return max(1, int(minutes * 100_000 / CHUNK))


def _line(total: Tally, seconds: float) -> str:
    faults = ", ".join(f"{name} {count:,}" for name, count in sorted(total.faults().items()))
    return (
        f"{total.histories:,} histories from seed {FIRST:,} in {seconds / 60:.1f} min, "
        f"{total.commits:,} commits, {total.scans:,} scans; {faults}"
    )


if __name__ == "__main__":
    sys.exit(main())
