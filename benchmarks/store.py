"""A slice's store alone: commits into the delta, folds, bulk appends, look-ups of a range.

    python -m benchmarks.store [--documents N] [--commit N] [--json]

Documents have ids of 20 bytes and keys of about 24. `insert` brings new documents only; `churn` gives each of
them a new key; `foreign` lets a slice hear documents that all belong to other slices.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import StoreSettings
from keytide.model.timestamp import Timestamp
from keytide.wire.columns import hashes_of, lengths_of, pack_heard, pack_puts
from keytide.wire.messages import PutChunk, Segment

_random = random.Random(7)


def document_ids(count: int) -> list[bytes]:
    return [b"doc-%016x" % _random.getrandbits(64) for _ in range(count)]


def random_keys(count: int) -> list[bytes]:
    return [b"\x30key-%018x\x00" % _random.getrandbits(72) for _ in range(count)]


def segments(ids: list[bytes], keys: list[bytes] | None, start: int, commit: int) -> Iterator[Segment]:
    """One segment per commit; without keys the documents are only heard."""
    for first in range(0, len(ids), commit):
        some = ids[first : first + commit]
        count = len(some)
        begin = start + first
        heard = pack_heard(
            np.arange(begin, begin + count),
            begin,
            some,
            np.arange(begin, begin + count) // 50,
            hashes_of(some, count),
        )
        puts = None if keys is None else pack_puts(np.arange(count), keys[first : first + commit], None)
        yield Segment(0, 0, begin, begin + count, heard, puts)


def chunks(ids: list[bytes], keys: list[bytes], size: int = 10_000) -> Iterator[PutChunk]:
    """Sorted chunks, as a backfill sends them."""
    rows = sorted(zip(keys, ids, strict=True))
    for number, first in enumerate(range(0, len(rows), size)):
        some = rows[first : first + size]
        count = len(some)
        some_keys, some_ids = [key for key, _ in some], [docid for _, docid in some]
        yield PutChunk(
            "b", "i", 0, "r", 0, "a", number, count,
            np.zeros(count, "<u4").tobytes(),
            np.arange(first, first + count, dtype="<u8").tobytes(),
            np.zeros(count, "<i8").tobytes(),
            lengths_of(some_ids).astype(np.uint8).tobytes(),
            b"".join(some_ids),
            lengths_of(some_keys).astype("<u2").tobytes(),
            b"".join(some_keys),
        )  # fmt: skip


class Run:
    """One store in a temporary folder, with a clock around what it does."""

    def __init__(self, settings: StoreSettings) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="keytide-store-"))
        self.worker = FoldWorker()
        self.store = LmdbSliceStore(self.folder / "slice", Applied(), settings, self.worker)
        self.offset = 0
        self.ring: list[Any] = []

    def apply(self, ids: list[bytes], keys: list[bytes] | None, commit: int) -> float:
        """Documents a second; keeps a ring of four snapshots and folds as a node would."""
        prepared = list(segments(ids, keys, self.offset, commit))
        self.offset += len(ids)
        begin = time.perf_counter()
        for number, segment in enumerate(prepared):
            state = Applied(Timestamp.of({0: segment.end}), number)
            self.store.apply([segment], state)
            self.ring.append(self.store.snapshot())
            if len(self.ring) > 4:
                self.ring.pop(0).close()
            self.store.finish_fold()
            if self.store.fold_due(0):
                self.store.start_fold()
        return len(ids) / (time.perf_counter() - begin)

    def settle(self) -> None:
        """Fold everything."""
        while self.store.folding or self.store.start_fold():
            self.store.finish_fold(60)

    def ranges(self, keys: list[bytes], count: int) -> float:
        """Microseconds for a range of 100 rows."""
        snapshot = self.store.snapshot()
        lows = _random.choices(keys, k=count)
        begin = time.perf_counter()
        for low in lows:
            for _ in snapshot.rows(low, None, False, 100):
                pass
        took = time.perf_counter() - begin
        snapshot.close()
        return took / count * 1e6

    def bulk(self) -> float:
        """Rows a second of a full scan."""
        snapshot = self.store.snapshot()
        begin = time.perf_counter()
        rows = sum(map(len, snapshot.rows()))
        took = time.perf_counter() - begin
        snapshot.close()
        return rows / took

    def snapshots(self) -> float:
        """Microseconds to take and close a snapshot of a new commit."""
        total = 0.0
        for number in range(200):
            (one,) = segments(document_ids(1), random_keys(1), self.offset, 1)
            self.offset += 1
            self.store.apply([one], Applied(number=number))
            begin = time.perf_counter()
            self.store.snapshot().close()
            total += time.perf_counter() - begin
        return total / 200 * 1e6

    def close(self) -> None:
        for snapshot in self.ring:
            snapshot.close()
        self.store.close()
        self.worker.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # old deltas are deleted on threads of their own


def measure(documents: int, commit: int) -> dict[str, float]:
    """All figures."""
    figures: dict[str, float] = {}
    ids, keys = document_ids(documents), random_keys(documents)
    run = Run(StoreSettings())
    try:
        figures["insert_documents_per_s"] = run.apply(ids, keys, commit)
        figures["range_100_with_delta_us"] = run.ranges(keys, 2_000)
        figures["bulk_with_delta_rows_per_s"] = run.bulk()
        begin = time.perf_counter()
        run.settle()
        figures["last_fold_s"] = time.perf_counter() - begin
        figures["range_100_one_level_us"] = run.ranges(keys, 2_000)
        figures["bulk_one_level_rows_per_s"] = run.bulk()
        _random.shuffle(ids)
        figures["churn_documents_per_s"] = run.apply(ids, random_keys(documents), commit)
        others = document_ids(documents)
        figures["heard_only_documents_per_s"] = run.apply(others, None, commit)
        figures["snapshot_us"] = run.snapshots()
        run.settle()
        run.store.check_mirror()
        figures["disk_mib"] = run.store.disk_bytes() / 2**20
    finally:
        run.close()
    figures["append_documents_per_s"] = _append(ids, keys)
    return figures


def _append(ids: list[bytes], keys: list[bytes]) -> float:
    run = Run(StoreSettings())
    try:
        prepared = list(chunks(ids, keys))
        begin = time.perf_counter()
        run.store.load(prepared, [], Applied(batch=0))
        return len(ids) / (time.perf_counter() - begin)
    finally:
        run.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=500_000)
    parser.add_argument("--commit", type=int, default=5_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(arguments.documents, arguments.commit)
    for name, figure in figures.items():
        print(f"{name:32} {figure:14,.1f}")
    if arguments.json:
        print(json.dumps({name: round(figure, 1) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
