"""Keys that several documents have: what a slice finds at commits and in sweeps, in any history of commits,
folds, restarts and steps back, against a naive look at all entries."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import UNNUMBERED, Applied, SliceStore
from indexer.unique.suspects import UniqueLimits
from indexer.unique.watch import KeyShape, UniqueWatch
from keytide.collation import MISSING, decode_key, encode_key
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import StabilityTimestamp
from tests import share
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, all_rows, lmdb_store, segments

IDS = [b"d1", b"d2", b"d3", b"d10", b"e" * 250]
LONG = "q" * 398
VALUES = ["a", "ab", None, 7, 7.5, LONG + "a", LONG + "ab", LONG + "b" * 500, MISSING]
DIRECTIONS = (False, True)
KEYS = [encode_key((one, other), DIRECTIONS) for one in VALUES for other in ("x", 3, None)]
SHAPE = KeyShape(2, DIRECTIONS)

Step = tuple[str, list[tuple[bytes, int, tuple[bytes, ...]]]]
documents = st.tuples(
    st.sampled_from(IDS),
    st.integers(0, 1),
    st.lists(st.sampled_from(KEYS), max_size=3, unique=True).map(tuple),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["commit", "commit", "commit", "unnumbered", "fold", "back", "begin", "sweep"]),
        st.lists(documents, max_size=6),
    ),
    max_size=14,
)


class Slice:
    """A store, its watch, and what there is to know."""

    def __init__(self, store: SliceStore) -> None:
        self.store = store
        self.watch = UniqueWatch(SHAPE, UniqueLimits())
        self.number = 0
        self.ends = [0, 0]
        self.homes: dict[bytes, int] = {}
        self.watch.begin(store.snapshot())

    def commit(self, changes: list[tuple[bytes, int, tuple[bytes, ...]]], numbered: bool = True) -> None:
        versions = []
        for docid, partition, keys in changes:
            home = self.homes.setdefault(docid, partition)
            self.ends[home] += 1
            rows = tuple((key, b"") for key in keys)
            versions.append(Version(docid, home, self.ends[home], 1_000, rows))
        self.number += 1
        at = Timestamp.of(dict(enumerate(self.ends)))
        applied = Applied(at, self.number if numbered else UNNUMBERED)
        pieces = segments(versions, 2)
        self.watch.stamped(self.number, StabilityTimestamp("ks", 1, 0, at, 0, 0, self.number - 1))
        self.store.apply(pieces, applied)
        snapshot = self.store.snapshot()
        self.watch.committed(pieces, snapshot, applied)
        self.watch.show()
        snapshot.close()

    def sweep(self) -> None:
        while self.watch.look_after(0, None):
            pass

    def shared(self) -> dict[bytes, set[bytes]]:
        """Key -> documents, of keys that several have."""
        found: dict[bytes, set[bytes]] = {}
        for entry_key, _ in all_rows(self.store):
            values, at = decode_key(entry_key, 2, DIRECTIONS)
            if None not in values and MISSING not in values:
                found.setdefault(entry_key[:at], set()).add(entry_key[at:])
        return {key: ids for key, ids in found.items() if len(ids) > 1}


def run(store: SliceStore, history: list[Step]) -> None:
    one = Slice(store)
    for what, changes in history:
        match what:
            case "commit" | "unnumbered":
                one.commit(changes, what == "commit")
            case "fold":
                if store.start_fold():
                    store.finish_fold(5.0)
            case "back":
                target = store.durable
                one.watch.forget()
                assert store.step_back(lambda state: state == target)  # noqa: B023
                one.watch.begin(store.snapshot())
            case "begin":
                one.watch.begin(store.snapshot())
            case "sweep":
                one.sweep()
        told = {one.key: {document.id for document in one.documents} for one in one.watch.shown}
        if what == "commit":
            assert told.items() <= one.shared().items(), "what is told is true"
    snapshot = store.snapshot()
    every = sorted({*KEYS})
    naive: dict[bytes, int] = {}
    for entry_key, _ in all_rows(store):
        key = SHAPE.key_of(entry_key)
        naive[key] = naive.get(key, 0) + 1
    assert snapshot.shared(every) == [key for key in every if naive.get(key, 0) > 1]
    snapshot.close()
    one.sweep()
    one.commit([])
    one.commit([])
    assert {one.key: {d.id for d in one.documents} for one in one.watch.shown} == one.shared()
    assert one.watch.violations == len(one.shared())
    assert one.watch.judged == one.number - 1
    versions = _back(store)
    for violation in one.watch.shown:
        for document in violation.documents:
            assert versions[document.id] == (document.partition, document.offset, document.time)
    one.watch.forget()


def _back(store: SliceStore) -> dict[bytes, tuple[int, int, int]]:
    snapshot = store.snapshot()
    found = {docid: (held.partition, held.offset, held.time) for docid, held in snapshot.back_rows()}
    snapshot.close()
    return found


@settings(max_examples=share.examples(150), deadline=None)
@given(steps)
def test_in_memory(history: list[Step]) -> None:
    run(MemorySliceStore(Applied(), check=True), history)


@settings(
    max_examples=share.examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps)
def test_on_lmdb(folds: FoldWorker, history: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = lmdb_store(Path(folder) / "slice", folds)
        try:
            run(store, history)
        finally:
            store.destroy()
