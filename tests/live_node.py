"""A node in this process, with slices on real LMDB stores: what attacks and fuzzers ask, and what must not
change by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from indexer.hosting.node import ServingNode
from indexer.hosting.slice_runner import SliceKey
from indexer.hosting.snapshots import SnapshotRing
from indexer.store.fold.worker import FoldWorker
from indexer.store.integrity.mirror import check_mirror
from indexer.store.lmdb.store import LmdbSliceStore
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import (
    ClusterRecord,
    IndexRecord,
    KeyspaceRecord,
    NodeRecord,
    Record,
    encode_record,
    record_key,
)
from keytide.collation.layout import Json
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import Published, StabilityTimestamp
from tests.store_kit import Version, lmdb_store, segments, state
from tests.unit.scan_world import Doc, definition_of, sliced

KEYSPACE = "users"
NUMBER = 5
BUILD = "b1"
SECRET = "5e" * 32
DOCUMENTS = 60
STATEMENTS = (
    "CREATE INDEX by_city ON users (city, n DESC) INCLUDE (name) WITH (slices=2)",
    "CREATE UNIQUE INDEX one_n ON users (n) WITH (slices=2)",
    "CREATE INDEX by_place ON users USING spatial (place) INCLUDE (name) PARTITION BY RANGE(cell) "
    "SPLIT AT (2305843009213693952)",
)
COPIES = (
    CopyRecord("c1", "by_city-1", 0, "n1", "n0", 0, 0, 0),
    CopyRecord("c2", "one_n-1", 1, "n1", "n0", 0, 0, 0),
    CopyRecord("c3", "one_n-1", 1, "n0", "n1", 0, 0, 0),
)
"""Two that the node gives, and one that it fills."""
_CITIES = ("Boston", "Aachen", "Bonn", "Zürich", "x" * 600)


def _key(index: str, at: int) -> list[Json]:
    """What a document has as its key of an index; areas on either side of the split among them."""
    match index:
        case "by_city":
            return [_CITIES[at % len(_CITIES)], at]
        case "by_place" if at % 5 == 0:
            east = 40 + at / 2
            ring: list[Json] = [[30, at / 2], [east, at / 2], [east, 60], [30, 60], [30, at / 2]]
            return [{"type": "Polygon", "coordinates": [ring]}]
        case "by_place":
            return [{"type": "Point", "coordinates": [at * 5 - 150, at - 30]}]
    return [at]


class LiveNode:
    """A node `n0` with three indexes, whose slices hold snapshot 5 in base and delta; and the same as what a
    build has brought."""

    def __init__(self, folder: Path) -> None:
        self.view = ServingNode("n0")
        self.catalog = Catalog()
        self.rings: dict[SliceKey, SnapshotRing] = {}
        self.stores: dict[SliceKey, LmdbSliceStore] = {}
        self._folds = FoldWorker()
        records: tuple[Record, ...] = (
            ClusterRecord("c", SECRET, 0),
            KeyspaceRecord(KEYSPACE, "t", 1, 1),
            NodeRecord("n0", "http://127.0.0.1:1", 0),
            *COPIES,
        )
        for record in records:
            self._write(record)
        for statement in STATEMENTS:
            self._create(statement, folder)
        self.view.show_catalog(self.catalog)
        self.view.show_slices(self.rings.items(), {key: one.export for key, one in self.stores.items()})
        timestamp = Timestamp.of({0: DOCUMENTS})
        self.view.control.stamped(NUMBER, StabilityTimestamp(KEYSPACE, 1, 0, timestamp, 0, 0))
        numbers = {record.id: NUMBER for record in self.catalog.indexes()}
        self.view.control.publish(Published(KEYSPACE, 1, 0, numbers))

    def _write(self, record: Record) -> None:
        self.catalog.apply(record_key(record), encode_record(record), self.catalog.offset)

    def _create(self, statement: str, folder: Path) -> None:
        definition = definition_of(statement)
        placement = [["n0"]] * definition.slices
        index = IndexRecord(f"{definition.name}-1", definition, "READY", 1, placement, "b1", 0)
        self._write(index)
        versions: list[list[Version]] = [[] for _ in placement]
        for at in range(DOCUMENTS):
            include = b'{"name":"n%d"}' % at if definition.include else None
            document = Doc(_key(definition.name, at), f"u{at:02}", include)
            docid = document.id.encode()
            for number, rows in enumerate(sliced(definition, [document])):
                if rows:
                    entries = tuple((key.removesuffix(docid), value) for key, value in rows)
                    versions[number].append(Version(docid, 0, at, entries=entries))
        for number, of_slice in enumerate(versions):
            key_of = (index.id, number)
            store = lmdb_store(folder / f"{index.id}-{number}", self._folds)
            half = len(of_slice) // 2
            store.apply(segments(of_slice[:half]), state(1, p0=DOCUMENTS // 2))
            assert store.start_fold()
            assert store.finish_fold(30.0) is not None
            store.apply(segments(of_slice[half:]), state(NUMBER, p0=DOCUMENTS))
            ring = SnapshotRing(8)
            ring.add(store.snapshot(), NUMBER, 0)
            built = store.snapshot()
            built.applied = replace(built.applied, build=BUILD, batch=0)
            ring.show_built(built)
            self.stores[key_of], self.rings[key_of] = store, ring

    def check(self) -> None:
        """Every slice is as it was: nobody calls it damaged, it gives its snapshot out, and its store agrees
        with its checksums and counts."""
        for key, ring in self.rings.items():
            assert ring.damage == "", (key, ring.damage)
            assert ring.newest() == NUMBER
            reading = ring.acquire(NUMBER)
            assert reading is not None, key
            reading.release()
            store = self.stores[key]
            store.verify()
            snapshot = store.snapshot()
            check_mirror(snapshot)
            snapshot.close()

    def doubts(self) -> dict[SliceKey, str]:
        """What readers have doubted since this was last asked."""
        found = {key: ring.take_doubt() for key, ring in self.rings.items()}
        return {key: doubt for key, doubt in found.items() if doubt}

    def contents(self) -> Mapping[SliceKey, Any]:
        """All entries of every slice."""
        found = {}
        for key, ring in self.rings.items():
            reading = ring.acquire(NUMBER)
            assert reading is not None
            found[key] = [row for block in reading.rows(b"", None) for row in block]
            reading.release()
        return found

    def close(self) -> None:
        for ring in self.rings.values():
            ring.close()
        for store in self.stores.values():
            store.close()
        self._folds.close()
