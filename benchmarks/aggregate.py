"""Aggregates of one slice: entries a second, by what is asked of them.

    python -m benchmarks.aggregate [--entries N] [--json]

The slice is a folded LMDB store, read in this process by one thread as a node's task does; 300 cities,
amounts with cents, ids of 20 bytes. Entries have no values, or the price as an included column. Times are the
thread's processor time: what a quiet machine takes.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import say
from indexer.scan.aggregate.request import plan_of
from indexer.scan.aggregate.task import (
    Arguments,
    aggregate_slice,
    decode_partial,
    encode_arguments,
    encode_plan,
)
from indexer.scan.local.tasks import SliceWork, Unfinished
from indexer.scan.peer.messages import ReadConsistency, ReadPaging, ReadRequest, ReadShape, ReadSpan
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import StoreSettings
from keytide.collation import encode_key
from keytide.definition.binding import Binding
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.entry import pack_value
from keytide.wire.columns import lengths_of
from keytide.wire.messages import PutChunk
from tests.statements import parse_predicate

STATEMENT = "CREATE INDEX i ON k (city, amount) INCLUDE (price)"
WHOLE: list[tuple[bytes, bytes | None]] = [(b"", None)]
QUESTIONS: dict[str, tuple[list[str], list[str], str, bool]] = {
    "count, whole index": (["count"], [], "", False),
    "count by leading part": (["count"], ["city"], "", False),
    "min, max of leading part": (["min(city)", "max(city)"], [], "", False),
    "sum of a key part": (["sum(amount)"], [], "", False),
    "sum, avg, min, max by leading part": (
        ["sum(amount)", "avg(amount)", "min(amount)", "max(amount)"],
        ["city"],
        "",
        False,
    ),
    "first 10 groups by leading part": (["sum(amount)"], ["city"], "10", False),
    "count by an expression": (["count"], ["LENGTH(city)"], "", False),
    "count with a filter": (["count"], [], "amount > 500", False),
    "sum of an included column": (["sum(price)"], [], "", True),
    "sum of an included column by leading part": (["sum(price)"], ["city"], "", True),
}
"""What is asked: functions, group_by, filter (or how many groups), whether entries have included columns."""


def entries(count: int, *, included: bool) -> list[tuple[bytes, bytes, bytes]]:
    """(canonical key, id, value), sorted."""
    some = random.Random(7)
    cities = ["".join(some.choices("abcdefghijklmnopqrstuvwxyz", k=some.randint(4, 14))) for _ in range(300)]
    made = []
    for _ in range(count):
        amount = some.randrange(100_000) / 100
        value = pack_value(b"", msgspec.json.encode({"price": amount})) if included else b""
        made.append((encode_key([some.choice(cities), amount]), b"doc-%016x" % some.getrandbits(64), value))
    made.sort()
    return made


def chunks(rows: list[tuple[bytes, bytes, bytes]], size: int = 10_000) -> Iterator[PutChunk]:
    """Sorted chunks, as a backfill sends them."""
    for number, first in enumerate(range(0, len(rows), size)):
        keys, ids, values = (list(column) for column in zip(*rows[first : first + size], strict=True))
        yield PutChunk(
            build="b", index="i", slice=0, run="r", batch=0, attempt="a", sequence=number, count=len(ids),
            partitions=np.zeros(len(ids), "<u4").tobytes(),
            offsets=np.arange(first, first + len(ids), dtype="<u8").tobytes(),
            times=np.zeros(len(ids), "<i8").tobytes(),
            id_lengths=lengths_of(ids).astype(np.uint8).tobytes(),
            ids=b"".join(ids),
            key_lengths=lengths_of(keys).astype("<u2").tobytes(),
            keys=b"".join(keys),
            value_lengths=lengths_of(values).astype("<u4").tobytes() if any(values) else b"",
            values=b"".join(values),
        )  # fmt: skip


def measure(snapshot: Any, functions: list[str], group_by: list[str], tested: str) -> tuple[float, int]:
    """(seconds, groups) of one question."""
    parsed = parse_statement(STATEMENT)
    assert isinstance(parsed, CreateIndex)
    plan = plan_of(functions, group_by, Binding(parsed.definition))
    wanted = int(tested) if tested.isdigit() else None
    body = encode_arguments(Arguments(encode_plan(plan), False, wanted, 1_000_000, 1 << 60, {}))
    condition = b"" if not tested or wanted else msgspec.json.encode(parse_predicate(tested))
    request = ReadRequest(
        ReadSpan("i", [0], WHOLE, [b""], False),
        ReadPaging(0),
        ReadConsistency(0, 0),
        ReadShape(condition, task="aggregate", body=body),
    )
    view: Any = None
    begin = time.thread_time()
    found = aggregate_slice(SliceWork(request, 0, snapshot, parsed.definition, b"", view))
    took = time.thread_time() - begin
    assert not isinstance(found, Unfinished)
    partial = decode_partial(found)
    assert partial.refused is None, partial.refused
    return took, len(partial.groups)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregate", description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="questions that have this in their name")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"entries": arguments.entries}
    folder = Path(tempfile.mkdtemp(prefix="keytide-aggregate-"))
    worker = FoldWorker()
    try:
        for included in (False, True):
            asked = {
                name: question
                for name, question in QUESTIONS.items()
                if question[3] is included and arguments.only in name
            }
            if not asked:
                continue
            store = LmdbSliceStore(folder / str(included), Applied(), StoreSettings(), worker)
            store.load(list(chunks(entries(arguments.entries, included=included))), [], Applied(number=1))
            snapshot = store.snapshot()
            begin = time.thread_time()
            rows = sum(map(len, snapshot.rows()))
            say(f"reading alone: {rows / (time.thread_time() - begin):,.0f} entries/s")
            for name, (functions, group_by, tested, _) in asked.items():
                took, groups = min(measure(snapshot, functions, group_by, tested) for _ in range(3))
                figures[name] = {
                    "ms": round(took * 1000, 2),
                    "entries_per_s": round(arguments.entries / max(took, 1e-6)),
                }
                rate = arguments.entries / max(took, 1e-6)
                say(f"{name:45} {took * 1000:10.1f} ms {rate:14,.0f} entries/s {groups:6} groups")
            snapshot.close()
            store.close()
    finally:
        worker.close()
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
