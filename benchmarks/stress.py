"""A benchmark as a stress test: with every core busy with something else, many times over, and the logs of
a round that fails are kept.

A round fails when the benchmark raises, and also when it ends well but a slice was lost or stopped, a process
crashed, or an invariant did not hold meanwhile: parts are started again, and slices rebuilt, behind its back.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import harness, patience
from benchmarks.harness import Result, say

TROUBLE: Final = re.compile(
    r"\bslice \S+ (is lost|stopped): |Fatal Python error|invariant \w+ does not hold|ended with status -"
)
"""What must not be in the logs of a round."""
TAKEN_AWAY: Final = "taken-away.txt"
"""In a cluster's folder: slices, `index/number`, whose data the benchmark itself has deleted."""
SHOWN: Final = 5
"""Lines of trouble that a failed round tells."""


class TroubleError(Exception):
    """A round that ended well, but for what its logs say."""


def troubles(folder: Path) -> list[str]:
    """Lines of trouble in the logs below a folder, with the name of their file."""
    found: list[str] = []
    taken = folder / TAKEN_AWAY
    away = taken.read_text().split() if taken.exists() else []
    known = tuple(f"slice {one} is lost: the slice's data is not on this node" for one in away)
    for file in _logs(folder):
        with file.open(errors="replace") as lines:
            found += [
                f"{file.name}: {line.strip()}"
                for line in lines
                if TROUBLE.search(line) and not any(one in line for one in known)
            ]
    return found


def take_away(folder: Path, name: str) -> None:
    """Say that a benchmark deletes the data of a slice, `index/number`: its loss is no trouble."""
    with (folder / TAKEN_AWAY).open("a") as file:
        file.write(f"{name}\n")


def keep(folder: Path, into: Path) -> None:
    """Copy all logs below a folder, however deep they are."""
    for file in _logs(folder):
        target = into / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _logs(folder: Path) -> list[Path]:
    """Log files, without the segments of Kafka's topics, which have such names too."""
    data = folder / "kafka" / "data"
    return sorted(one for one in folder.rglob("*.log*") if one.is_file() and not one.is_relative_to(data))


@contextlib.contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Every core busy with something else meanwhile, if that is wanted."""
    context = multiprocessing.get_context("spawn")
    count = os.cpu_count() or 1 if wanted else 0
    spinners = [context.Process(target=_spin, daemon=True) for _ in range(count)]
    for one in spinners:
        one.start()
    patience.is_busy(wanted)
    try:
        yield
    finally:
        patience.is_busy(False)
        for one in spinners:
            one.kill()
        for one in spinners:
            one.join()


def _spin() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(100_000))


def rounds(
    name: str, times: int, one: Callable[[], Result], folder: Path
) -> tuple[list[Result], Sequence[str]]:
    """Run a benchmark many times over, whatever becomes of the rounds.

    Args:
        folder: where the logs of round n are kept if it fails, as `<name>-<n>`.

    Returns:
        The results of rounds that went well, and what became of the others.
    """
    results: list[Result] = []
    failed: list[str] = []
    for number in range(1, times + 1):
        kept = folder / f"{name}-{number}"
        began = time.monotonic()
        try:
            with harness.watched(functools.partial(_look, kept)):
                results.append(one())
            say(f"{name}: round {number} of {times} went well, {time.monotonic() - began:.0f} s")
        except Exception as error:  # noqa: BLE001 - whatever it is, the next round goes on
            failed.append(f"round {number}: {type(error).__name__}: {error}; its logs: {kept}")
            say(f"{name}: {failed[-1]}")
    return results, failed


def _look(kept: Path, data: Path, failed: bool) -> None:
    """Look at a cluster's folder once it has stopped.

    Raises:
        TroubleError: its logs tell of trouble.
    """
    found = troubles(data)
    if found or failed:
        keep(data, kept)
    if found and not failed:
        more = f"\n... and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise TroubleError("\n".join(found[:SHOWN]) + more)
