"""kill -9 of a writer with a fold at work: the base is as before the fold or as after it."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from indexer.store.fold.worker import FoldWorker
from tests.store_kit import SMALL, all_rows, key, lmdb_store
from tests.waiting import wait_for


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


ROOT = Path(__file__).parents[2]
WRITER = """
import sys
from pathlib import Path
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied
from indexer.store.lmdb.store import LmdbSliceStore
from tests.store_kit import SMALL, Version, key, segments, state
from dataclasses import replace

folder, fsync = Path(sys.argv[1]), sys.argv[2] == "fsync"
folds = FoldWorker()
settings = replace(SMALL, check_mirror_s=None, filter_bits=1 << 16, fsync=fsync)
store = LmdbSliceStore(folder, Applied(), settings, folds)


def document(n):
    text = f"k{n}" + "x" * (600 if n % 50 == 0 else 0)
    return Version(b"d%05d" % (n * 7919 % 5000), 0, n, entries=((key(text), b""),) if n % 3 else ())


first = store.applied.timestamp.offset(0)
while True:
    window = [document(n) for n in range(first, first + 700)]
    first += 700
    store.apply(segments(window), state(first // 700, p0=first))
    store.finish_fold()
    store.start_fold()
    print(folds.pid or 0, store.durable.timestamp.offset(0), flush=True)
"""


def expected_rows(offsets: int) -> list[tuple[bytes, bytes]]:
    """What the writer's documents come to, below an offset."""
    last = {b"d%05d" % (n * 7919 % 5000): n for n in range(offsets)}
    return sorted(
        (key(f"k{n}" + "x" * (600 if n % 50 == 0 else 0)) + docid, b"") for docid, n in last.items() if n % 3
    )


@pytest.mark.fault
@pytest.mark.parametrize("delay_s", [0.0, 0.004, 0.011, 0.023, 0.05])
def test_kill_9_leaves_the_base_before_or_after_a_fold(
    tmp_path: Path, delay_s: float, folds: FoldWorker
) -> None:
    """The writer and its fold worker are killed at some moment, twice; each time the base is whole."""
    folder = tmp_path / "slice"
    reached = 0
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), "fsync"], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert writer.stdout is not None
        worker = durable = 0
        while durable <= reached:
            worker, durable = map(int, writer.stdout.readline().split())
        time.sleep(delay_s)  # not a wait: where in a fold the kill falls
        writer.kill()
        writer.wait()
        writer.stdout.close()
        wait_for(lambda pid=worker: not alive(pid))  # type: ignore[misc]
        store = lmdb_store(folder, folds, replace(SMALL, check_mirror_s=None, filter_bits=1 << 16))
        reached = store.applied.timestamp.offset(0)
        assert reached >= durable
        assert not list(folder.glob("delta-*"))
        store.check_mirror()
        assert all_rows(store) == expected_rows(reached)
        store.close()


def test_the_worker_dies_with_its_parent(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "slice"), "no"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert writer.stdout is not None
    worker = 0
    while not worker:
        worker = int(writer.stdout.readline().split()[0])
    assert alive(worker)
    writer.kill()
    writer.wait()
    writer.stdout.close()
    wait_for(lambda: not alive(worker))
