"""Is a base what was written? Asked before it is opened, and of an open one now and then.

Theory of operation
===================
First its pages are compared with their checksums (`checksums`), which needs neither LMDB nor a memory map:
nothing that is found in the file can end the process. That settles it, as a rule.

What is left are bases without checksums (of an earlier release; the file was lost), and those that are one
commit ahead of them (killed between the commit and the file). They are read from end to end and compared with
themselves (`examine`), in a process of its own, because LMDB does not survive every damage. Once a base is
open the checksums are written, so this happens once.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, Final

import lmdb

from indexer.store.environment import FORMAT, disk_errors
from indexer.store.files.checksums import CHECKSUMS_FILE, Checksums, compare, read_checksums
from indexer.store.files.pages import PageFile
from indexer.store.fold.watched_process import StalledError, WatchedProcess
from indexer.store.interface import StoreDamagedError
from keytide.errors import RetryableError

_LOOKS: Final = 5
_FROM_OUTSIDE: Final = frozenset(
    -number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
)
"""Statuses of a process that somebody ended (for want of memory, say). They tell nothing of what it read."""


def check_base(folder: Path, map_bytes: int, stall_s: float) -> int:
    """Check the base of the slice in `folder`, which is not open.

    Args:
        stall_s: how long an examination may stand still before it is given up.

    Returns:
        The transaction number of the state that was checked; 0 when nothing was ever committed.

    Raises:
        StoreDamagedError: it is not what was written.
        RetryableError: `check-ended`, it could not be checked.
    """
    begun = (folder / CHECKSUMS_FILE).exists()
    with disk_errors(folder):
        try:
            file = PageFile(folder / "base")
        except FileNotFoundError as error:
            if begun:
                raise StoreDamagedError(f"{folder} has lost its base") from error
            return 0
        with file:
            if not begun and not file.size():
                return 0
            sums = read_checksums(folder)
            state = file.whole_state() if sums is None else compare(file, sums)
    if state.transaction and (sums is None or sums.transaction != state.transaction):
        _examine(folder, map_bytes, stall_s, sums)
    return state.transaction


def verify_base(folder: Path, environment: lmdb.Environment, map_bytes: int, stall_s: float) -> None:
    """Check a base that is open. May run on any thread, beside a fold.

    Raises:
        StoreDamagedError: it is not what was written.
        RetryableError: `check-ended`, it could not be checked.
        DamagedError: the same.
    """
    for _ in range(_LOOKS):
        sums = read_checksums(folder)
        if sums is None:
            break
        with environment.begin() as reader, PageFile(folder / "base") as file:
            state = compare(file, sums)
            if state.transaction != reader.id():
                continue  # a commit came in between
            if state.transaction - sums.transaction <= 1:
                return  # what a fold has just changed gets its checksums now
    try:
        _examine(folder, map_bytes, stall_s, None)
    finally:
        environment.reader_check()  # a killed process leaves its read transaction, which pins pages


def _examine(folder: Path, map_bytes: int, stall_s: float, sums: Checksums | None) -> None:
    """Have a base compared with itself.

    Args:
        sums: those of an earlier state, if any: the base must be further than that.
    """
    child = WatchedProcess("indexer.store.integrity.examine", (str(folder), str(map_bytes)), stall_s)
    answer = b""
    try:
        for line in child.lines():
            answer = line
    except StalledError as error:
        raise _ended(folder, str(error)) from error
    finally:
        status = child.close()
    if status in _FROM_OUTSIDE:
        raise _ended(folder, f"the process ended with status {status}")
    if status:
        raise StoreDamagedError(f"examining {folder} ended with status {status}")
    found: dict[str, Any] = json.loads(answer)
    if found["format"] not in ("", FORMAT.decode()):
        return  # the opening says so, and what to do
    if found["problem"]:
        raise StoreDamagedError(f"{folder}: {found['problem']}")
    if sums is not None and (found["owner"], found["sequence"]) <= (sums.owner, sums.sequence):
        raise StoreDamagedError(f"{folder} is older than its checksums")


def _ended(folder: Path, why: str) -> RetryableError:
    return RetryableError(
        f"{folder} could not be examined: {why}",
        problem_type="check-ended",
        next_step="it is tried again; look for what ended the process, most often a lack of memory",
    )
