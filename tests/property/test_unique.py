"""Keys that several documents have: what a slice finds at commits and in sweeps, in any history of commits,
folds, restarts and steps back, against a naive look at all entries."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import UNNUMBERED, Applied, SliceStore
from indexer.unique.shape import KeyShape
from indexer.unique.suspects import UniqueLimits
from indexer.unique.watch import UniqueWatch
from keytide.collation import LONGEST_TOLD, MISSING, Value, decode_key, encode_key, told_key
from keytide.model.entry import pack_keyed_value
from keytide.model.timestamp import Timestamp
from keytide.structure import Structure, structure_of
from keytide.wire.messages import StabilityTimestamp
from tests import share
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, all_rows, lmdb_store, segments
from tests.structure_kit import digests_of

IDS = [b"d1", b"d2", b"d3", b"d10", b"e" * 250]
LONG = "q" * 398
HUGE = "q" * LONGEST_TOLD
"""In a key that is told in short; no btree has it."""
VALUES = ["a", "ab", None, 7, 7.5, LONG + "a", LONG + "ab", LONG + "b" * 500, HUGE, HUGE + "a", MISSING]
PARTS = [(one, other) for one in VALUES for other in ("x", 3, None)]
STRUCTURES = {"btree": structure_of("btree", 2, (False, True)), "hash": structure_of("hash", 2)}

Step = tuple[str, list[tuple[bytes, int, tuple[tuple[Value, Value], ...]]]]
documents = st.tuples(
    st.sampled_from(IDS),
    st.integers(0, 1),
    st.lists(st.sampled_from(PARTS), max_size=3, unique=True).map(tuple),
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

    def __init__(self, store: SliceStore, structure: Structure) -> None:
        self.store = store
        self.structure = structure
        self.watch = UniqueWatch(KeyShape(structure), UniqueLimits())
        self.number = 0
        self.ends = [0, 0]
        self.homes: dict[bytes, int] = {}
        self.watch.begin(store.snapshot())

    def rows(self, keys: Sequence[Sequence[Value]]) -> tuple[tuple[bytes, bytes], ...]:
        """(stored key, value) of a document's entries."""
        some = [key for key in keys if self.structure.key_in_value or not {HUGE, HUGE + "a"} & {*key}]
        encoded = [encode_key(key, self.structure.descending) for key in some]
        values = [pack_keyed_value(b"", None, key) if self.structure.key_in_value else b"" for key in encoded]
        return tuple(zip(itertools.chain(*self.structure.stored(encoded)), values, strict=True))

    def commit(self, changes: list[tuple[bytes, int, Any]], numbered: bool = True) -> None:
        versions = []
        for docid, partition, keys in changes:
            home = self.homes.setdefault(docid, partition)
            self.ends[home] += 1
            versions.append(Version(docid, home, self.ends[home], 1_000, self.rows(keys)))
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
        """Key, as it is told -> documents, of keys that several have."""
        found: dict[bytes, set[bytes]] = {}
        for entry_key, value in all_rows(self.store):
            full, _ = self.structure.in_full(entry_key, value)
            values, at = decode_key(full, 2, self.structure.descending)
            if None not in values and MISSING not in values:
                told = told_key(full[:at], 2, self.structure.descending)
                found.setdefault(told, set()).add(full[at:])
        return {key: ids for key, ids in found.items() if len(ids) > 1}


def run(store: SliceStore, history: list[Step], name: str) -> None:
    one = Slice(store, STRUCTURES[name])
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
    every = sorted({one.structure.stem(encode_key(key, one.structure.descending)) for key in PARTS})
    naive: Counter[bytes] = Counter()
    for entry_key, value in all_rows(store):
        naive[one.structure.stem(KeyShape(one.structure).key_of(entry_key, value))] += 1
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
@given(steps, st.sampled_from(sorted(STRUCTURES)))
@digests_of(2)
def test_in_memory(history: list[Step], name: str) -> None:
    run(MemorySliceStore(Applied(), check=True), history, name)


@settings(
    max_examples=share.examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps, st.sampled_from(sorted(STRUCTURES)))
@digests_of(2)
def test_on_lmdb(folds: FoldWorker, history: list[Step], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = lmdb_store(Path(folder) / "slice", folds)
        try:
            run(store, history, name)
        finally:
            store.destroy()
