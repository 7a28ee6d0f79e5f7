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
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import lmdb

from indexer.store.checksums import CHECKSUMS_FILE, Checksums, compare, read_checksums
from indexer.store.environment import FORMAT, disk_errors
from indexer.store.interface import StoreDamagedError
from indexer.store.pages import PageFile

_LOOKS: Final = 5


def check_base(folder: Path, map_bytes: int) -> int:
    """Check the base of the slice in `folder`, which is not open.

    Returns:
        The transaction number of the state that was checked; 0 when nothing was ever committed.

    Raises:
        StoreDamagedError: it is not what was written.
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
        _examine(folder, map_bytes, sums)
    return state.transaction


def verify_base(folder: Path, environment: lmdb.Environment, map_bytes: int) -> None:
    """Check a base that is open. May run on any thread, beside a fold.

    Raises:
        StoreDamagedError: it is not what was written.
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
    _examine(folder, map_bytes, None)


def _examine(folder: Path, map_bytes: int, sums: Checksums | None) -> None:
    """Have a base compared with itself.

    Args:
        sums: those of an earlier state, if any: the base must be further than that.
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "indexer.store.examine", str(folder), str(map_bytes)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        raise StoreDamagedError(f"examining {folder} ended with status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found["format"] not in ("", FORMAT.decode()):
        return  # the opening says so, and what to do
    if found["problem"]:
        raise StoreDamagedError(f"{folder}: {found['problem']}")
    if sums is not None and (found["owner"], found["sequence"]) <= (sums.owner, sums.sequence):
        raise StoreDamagedError(f"{folder} is older than its checksums")
