"""How fast indexes are built: a whole build by Spark, and a slice's store filled by appending."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any, Final, Literal

import lmdb

from benchmarks.documents import PARTITIONS, document, document_id, load
from benchmarks.harness import Bench, Result, machine_state, say
from benchmarks.store import chunks
from benchmarks.throughput import BY_CITY, MILLION, TOPIC, check_count
from indexer.store.environment import open_environment
from indexer.store.fold.worker import FoldWorker
from indexer.store.formats.records import PUT, pack_record
from indexer.store.interface import Applied, StoredDocument
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import StoreSettings
from keytide.errors import invariant
from keytide.model.timestamp import Timestamp
from keytide.wire.entry_sums import EQUAL

NAME: Final = "by_city"
COMMIT: Final = 5_000
"""Entries per commit where they are put one by one and committed as they come."""


def backfill(documents: int = MILLION, verify: bool | Literal["full"] = False) -> Result:
    """One Spark build over documents that are already in Kafka, from its first read to READY (Spark's start
    not counted).

    Args:
        verify: whether READY includes the verification, by sums; `full`: by a second read of the source.
    """
    size = "" if documents == MILLION else f"-{documents // MILLION}m"
    verified = {False: "", True: "-verified", "full": "-verified-full"}[verify]
    result = Result(f"backfill{size}{verified}")
    result.machine = machine_state()
    result.sizes = {
        "documents": documents,
        "partitions": PARTITIONS,
        "indexes": 1,
        "slices": 8,
        "nodes": 2,
        "verified": verify,
        "source_mb": round(documents * len(document(documents // 2) + document_id(0)) / 1e6),
    }
    with Bench() as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        load(bench.bootstrap, TOPIC, range(documents))
        statement = BY_CITY.replace("slices=8", "slices=8, defer_build=true")
        bench.sql(statement)
        with bench.measured(result):
            asked = {"indexes": [NAME], "verify": verify}
            build = bench.wait_build(bench.admin.call("POST", "/v1/builds", asked))
        seconds = (build["finished_at"] - (build.get("first_read_at") or build["started_at"])) / 1000
        whole = (build["finished_at"] - build["started_at"]) / 1000
        result.figures["documents_per_s"] = round(documents / seconds)
        result.figures["seconds"] = round(seconds, 2)
        result.figures["seconds_with_spark_start"] = round(whole, 2)
        result.figures["cores_used"] = round(result.figures["cpu_seconds"] / max(whole, 0.1), 2)
        result.figures["cpu_us_per_document"] = round(1e6 * result.figures["cpu_seconds"] / documents, 1)
        by_sums = build["compared"] == EQUAL
        invariant(by_sums == (verify is True), "BenchmarkIndex", f"compared: {build['compared']}")
        check_count(bench, NAME, documents)
        index: dict[str, Any] = bench.admin.call("GET", f"/v1/indexes/{NAME}")
        result.sizes["index_mb"] = round((index.get("bytes") or 0) / 1e6)
    return result


def relayout(documents: int = MILLION) -> Result:
    """An index gets other slices: a build that begins with the old ones, from its record to READY, beside the
    build by Spark that made those. Neither is verified."""
    result = Result("relayout", machine=machine_state())
    result.sizes = {
        "documents": documents,
        "partitions": PARTITIONS,
        "slices": 8,
        "new_slices": 5,
        "nodes": 2,
    }
    with Bench(settings={"KEYTIDE_BUILD__VERIFY": "false"}) as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        load(bench.bootstrap, TOPIC, range(documents))
        statement = BY_CITY.replace("slices=8", "slices=8, defer_build=true")
        bench.sql(statement)
        before = _seconds(bench.wait_build(bench.admin.call("POST", "/v1/builds", {"indexes": [NAME]})))
        with bench.measured(result):
            done = bench.sql(f"ALTER INDEX {NAME} SET (slices=5)")
            build = bench.wait_build(done["build"])
        invariant(bool(build["seed"]), "BenchmarkIndex", "the new layout did not begin with the old slices")
        seconds = _seconds(build)
        check_count(bench, NAME, documents)
    result.figures["documents_per_s"] = round(documents / seconds)
    result.figures["seconds"] = round(seconds, 2)
    result.figures["seconds_by_spark"] = round(before, 2)
    result.figures["cpu_us_per_document"] = round(1e6 * result.figures["cpu_seconds"] / documents, 1)
    return result


def _seconds(build: dict[str, Any]) -> float:
    """From when a build began, the start of its driver included."""
    return float(build["finished_at"] - build["started_at"]) / 1000


def bulk(documents: int = MILLION) -> Result:
    """The entries of one slice into an empty store, forward and back index, the same data each time, fsynced:

    * `store`: as a micro-batch, with decoding, sorting by id, filter and checksums;
    * `append`: LMDB alone, rows that are sorted already appended in one transaction;
    * `put`: LMDB alone, one put per entry and tree in the order of the documents, with a commit every 5,000;
      `put_one_transaction`: with one commit.
    """
    result = Result("bulk", machine=machine_state())
    result.sizes = {"documents": documents, "commit": COMMIT}
    chosen = random.Random(7)
    ids = [b"doc-%016x" % chosen.getrandbits(64) for _ in range(documents)]
    keys = [b"\x30key-%018x\x00" % chosen.getrandbits(72) for _ in range(documents)]
    folder = Path(tempfile.mkdtemp(prefix="keytide-bulk-"))
    try:
        figures = result.figures
        figures["store_documents_per_s"] = _timed("store", documents, _load(folder, ids, keys))
        figures["append_documents_per_s"] = _timed("append", documents, _appends(folder, ids, keys))
        for name, commit in (("put_one_transaction", documents), ("put", COMMIT)):
            took = _timed(name, documents, _puts(folder / name, ids, keys, commit))
            figures[f"{name}_documents_per_s"] = took
            figures[f"append_over_{name}"] = round(figures["append_documents_per_s"] / took, 1)
            figures[f"store_over_{name}"] = round(figures["store_documents_per_s"] / took, 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result.figures["documents_per_s"] = result.figures["store_documents_per_s"]
    return result


def _timed(name: str, documents: int, work: Callable[[], None]) -> int:
    began, used = time.perf_counter(), time.process_time()
    work()
    rate = round(documents / (time.perf_counter() - began))
    each = 1e6 * (time.process_time() - used) / documents
    say(f"{name}: {rate:,} documents/s, {each:.1f} us of processor each")
    return rate


def _load(folder: Path, ids: list[bytes], keys: list[bytes]) -> Callable[[], None]:
    prepared = list(chunks(ids, keys))
    worker = FoldWorker()
    store = LmdbSliceStore(folder / "slice", Applied(), StoreSettings(), worker)

    def work() -> None:
        done = store.load(prepared, [], Applied(Timestamp.of({0: len(ids)}), batch=0, building=True))
        invariant(done.appended == len(ids), "BenchmarkIndex", f"{done.appended} of {len(ids)} appended")
        store.close()
        worker.close()

    return work


def _appends(folder: Path, ids: list[bytes], keys: list[bytes]) -> Callable[[], None]:
    settings = StoreSettings()
    (folder / "appends").mkdir()
    environment, tables = open_environment(folder / "appends", settings.base_map_bytes, settings, sync=True)
    records = [pack_record(StoredDocument(0, at, at, (key,), False)) for at, key in enumerate(keys)]

    forward = sorted(map(bytes.__add__, keys, ids))
    back = sorted(zip(ids, records, strict=True))

    def work() -> None:
        with environment.begin(write=True) as transaction:
            with transaction.cursor(tables.forward) as cursor:
                cursor.putmulti(zip(forward, repeat(PUT), strict=False), append=True)
            with transaction.cursor(tables.back) as cursor:
                cursor.putmulti(back, append=True)
        environment.close()

    return work


def _puts(folder: Path, ids: list[bytes], keys: list[bytes], commit: int) -> Callable[[], None]:
    settings = StoreSettings()
    folder.mkdir()
    environment, tables = open_environment(folder, settings.base_map_bytes, settings, sync=True)
    records = [pack_record(StoredDocument(0, at, at, (key,), False)) for at, key in enumerate(keys)]

    def some(transaction: lmdb.Transaction[bytes], first: int) -> None:
        for at in range(first, min(first + commit, len(ids))):
            transaction.put(keys[at] + ids[at], PUT, db=tables.forward)
            transaction.put(ids[at], records[at], db=tables.back)

    def work() -> None:
        for first in range(0, len(ids), commit):
            with environment.begin(write=True) as transaction:
                some(transaction, first)
        environment.close()

    return work
