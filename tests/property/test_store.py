"""The conformance suite of slice stores: any history of commits, folds, steps back, crashes, loads and
snapshots, exports and moves to a copy, on the LMDB store and on the one in memory, against a model that works
everything out from all versions ever told."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.store.copies import StoreFilling
from indexer.store.fold.worker import Folder, FoldWorker
from indexer.store.interface import Applied, Counts, SliceStore, StoreExport, StoreSnapshot
from indexer.store.lmdb import merge, snapshot
from indexer.store.lmdb.copying import LmdbSliceFilling
from indexer.store.lmdb.store import LmdbSliceStore
from keytide.model.entry import pack_value
from keytide.model.timestamp import TABLE_PARTITION
from tests import share
from tests.memory_store.copying import MemorySliceFilling
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import (
    SMALL,
    Model,
    Version,
    all_rows,
    chunks,
    exported,
    fill,
    key,
    lmdb_store,
    pinning,
    removals,
    rows_of,
    segments,
    state,
)

IDS = [b"d%d" % number for number in range(12)] + [b"e" * 250, b"d1\x00x", b"\xff\xfe"]
_LONG = "q" * 398
KEYS = [
    key(text) for text in ["a", "ab", "b", "ba", "c", _LONG, _LONG + "a", _LONG + "ab", _LONG + "b" * 200]
]
KEYS += [key(_LONG + "b" * 199 + "a" + "z" * 900), key("b" * 600), key("q"), key("r")]
VALUES = [b"", b"", pack_value(b"v1"), pack_value(b"", b"v2" * 50)]


@dataclass(frozen=True)
class Document:
    """One version to come; `partition` None for the document's own."""

    id: bytes
    entries: tuple[tuple[bytes, bytes], ...]
    partition: int | None
    time: int


@dataclass(frozen=True)
class Apply:
    documents: list[Document]
    cuts: int
    again: bool


@dataclass(frozen=True)
class Load:
    documents: list[Document]
    stale: list[Document]


@dataclass(frozen=True)
class Table:
    """Rows of the table that a build begins with: before anything else."""

    documents: list[Document]


@dataclass(frozen=True)
class StepBack:
    """To the state that lies so many states back: the present one, the durable one, then fold by fold."""

    states: int


@dataclass(frozen=True)
class Move:
    """To a copy, in chunks of so many bytes; the process that fills it is killed so often."""

    most_bytes: int
    kills: int


@dataclass(frozen=True)
class Read:
    low: bytes
    high: bytes | None
    reverse: bool
    limit: int | None
    start_after: bytes | None


entries = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=3, unique_by=lambda entry: entry[0]
).map(tuple)
bounds = st.one_of(
    st.just(b""),
    st.sampled_from(KEYS),
    st.tuples(st.sampled_from(KEYS), st.sampled_from(IDS)).map(b"".join),
    st.sampled_from(KEYS).map(lambda some: some[:-1] + b"\xff"),
)


def documents(wanderers: bool) -> st.SearchStrategy[list[Document]]:
    partition = st.one_of(st.none(), st.integers(0, 2)) if wanderers else st.none()
    return st.lists(
        st.builds(Document, st.sampled_from(IDS), entries, partition, st.integers(990, 1_010)),
        min_size=1,
        max_size=12,
    )


def histories(wanderers: bool) -> st.SearchStrategy[list[object]]:
    some = documents(wanderers)
    reads = st.builds(
        Read,
        bounds,
        st.one_of(st.none(), bounds),
        st.booleans(),
        st.one_of(st.none(), st.integers(0, 9)),
        st.one_of(st.none(), bounds),
    )
    actions = st.one_of(
        st.builds(Apply, some, st.integers(1, 3), st.booleans()),
        st.builds(Apply, some, st.integers(1, 3), st.booleans()),
        st.builds(Load, some, some),
        st.sampled_from(
            ["start fold", "finish fold", "fold", "hold", "check held", "crash", "verify", "export"]
        ),
        st.builds(Move, st.sampled_from([1, 100, 5_000]), st.integers(0, 2)),
        st.builds(StepBack, st.integers(0, 6)),
        reads,
        reads,
    )
    table = st.lists(st.builds(Table, some), max_size=1)
    return st.tuples(table, st.lists(actions, min_size=4, max_size=40)).map(lambda parts: parts[0] + parts[1])


class History:
    """Drives a store and the model beside it."""

    def __init__(self, kind: str, folder: Path, folds: Folder) -> None:
        self.kind, self.folder, self.folds, self.places = kind, folder, folds, 0
        self.store: SliceStore = self._open()
        self.model = Model()
        self.durable = self.model
        self.past: list[tuple[Model, Applied, Counts]] = []
        self.folding: Model | None = None
        self.frozen_counts = Counts()
        self.durable_counts = Counts()
        self.offsets = [0, 0, 0]
        self.frozen_applied = self.durable_applied = Applied()
        self.commits = 0
        self.held: list[tuple[StoreSnapshot, list[tuple[bytes, bytes]], Applied]] = []
        self.exports: list[StoreExport] = []
        self.named: dict[str, object] = {}

    def _open(self) -> SliceStore:
        if self.kind == "memory":
            return MemorySliceStore(Applied(), fold_entries=1, undo_folds=64, check=True)
        return lmdb_store(self._place(), self.folds)

    def _place(self) -> Path:
        return self.folder / f"slice-{self.places}"

    def run(self, actions: list[object]) -> None:
        for action in actions:
            if isinstance(action, Apply):
                self.apply(action)
            elif isinstance(action, Load):
                self.load(action)
            elif isinstance(action, Table):
                self.load_table(action)
            elif isinstance(action, Read):
                self.read(action)
            elif isinstance(action, Move):
                self.move(action)
            elif isinstance(action, StepBack):
                self.step_back(action)
            else:
                getattr(self, str(action).replace(" ", "_"))()
            assert all_rows(self.store) == self.model.rows()
            assert self.store.counts.entries == len(self.model.rows())
            self.store.check_mirror()
            assert self.store.undo_steps == len(self.past)
            assert self.store.horizon == (self.past[0][1] if self.past else self.store.durable)
        self.check_held()
        self.check_exports()

    def versions(self, some: list[Document]) -> list[Version]:
        """New versions, in the order in which segments bring them."""
        found = []
        for document in some:
            own = IDS.index(document.id) % 3
            partition = own if document.partition is None else document.partition
            found.append(
                Version(document.id, partition, self.offsets[partition], document.time, document.entries)
            )
            self.offsets[partition] += 1
        return sorted(found, key=lambda version: (version.partition, version.offset))

    def applied(self) -> Applied:
        self.commits += 1
        p0, p1, p2 = self.offsets
        return state(self.commits, p0=p0, p1=p1, p2=p2)

    def apply(self, action: Apply) -> None:
        versions = self.versions(action.documents)
        applied = self.applied()
        self.store.apply(segments(versions, action.cuts), applied)
        self.model = self.model.copy()
        self.model.tell(versions)
        if action.again and len({v.partition for v in versions}) == 1:
            before = self.store.counts
            self.store.apply(segments(versions, 1), applied)
            assert self.store.counts == before
        assert self.store.applied == applied

    def load_table(self, action: Table) -> None:
        """Micro-batch 0: each id once, in no order, and nothing is heard."""
        documents = {document.id: document for document in action.documents}.values()
        rows = [Version(d.id, TABLE_PARTITION, n << 32, 0, d.entries) for n, d in enumerate(documents)]
        applied = self.applied()
        self.store.load(chunks(rows), [], applied)
        self.model = self.model.copy()
        self.model.tell(rows)
        self.durable, self.durable_counts = self.model, self.store.counts
        assert self.store.counts.foreign == 0

    def load(self, action: Load) -> None:
        """A micro-batch: everything is heard, then put; and documents older than what is held."""
        self.settle()
        stale = [Version(d.id, IDS.index(d.id) % 3, 0, d.time) for d in action.stale]
        versions = self.versions(action.documents)
        newest = list({(version.id, version.partition): version for version in versions}.values())
        applied = self.applied()
        put = chunks(newest)
        self.store.load(put, removals(newest), applied)
        if any(v.partition != IDS.index(v.id) % 3 for v in newest + self.model.told):
            stale = []  # offset 0 may be news of another partition
        known = {(v.id, v.partition) for v in self.model.told}
        stale = [v for v in stale if (v.id, v.partition) in known and v.offset < self._newest(v)]
        self.store.load([], removals(list({v.id: v for v in stale}.values())), applied)
        self.model = self.model.copy()
        self.model.tell([Version(v.id, v.partition, v.offset, v.time) for v in sorted_heard(newest)])
        put_rows = [(entry[0] + v.id, v, entry) for v in newest for entry in v.entries]
        put_rows.sort(key=lambda row: (row[0], row[1].partition, row[1].offset))
        for _, v, entry in put_rows:
            self.model.tell([Version(v.id, v.partition, v.offset, v.time, (entry,))])
        self.durable, self.durable_counts = self.model, self.store.counts
        self.past = []
        assert self.store.durable == self.store.applied == applied

    def _newest(self, version: Version) -> int:
        return max(v.offset for v in self.model.told if v.id == version.id)

    def settle(self) -> None:
        self.finish_fold()
        self.start_fold()
        self.finish_fold()

    def start_fold(self) -> None:
        if self.store.start_fold():
            assert self.store.folding
            self.folding = self.model
            self.frozen_applied, self.frozen_counts = self.store.applied, self.store.counts
            self.durable_applied = self.store.durable

    def finish_fold(self) -> None:
        expected = self.folding is not None
        durable = self.store.finish_fold(30)
        assert (durable is not None) == expected
        if self.folding is not None:
            self.folded()
            assert self.store.durable == durable

    def folded(self) -> None:
        """The fold at work has happened."""
        assert self.folding is not None
        self.past.append((self.durable, self.durable_applied, self.durable_counts))
        self.durable, self.folding, self.durable_counts = self.folding, None, self.frozen_counts

    def await_fold(self) -> None:
        """Until the worker has answered; the store has not heard of it yet."""
        if isinstance(self.store, LmdbSliceStore):
            ticket = self.store._folding._ticket
            assert ticket is not None
            assert ticket.outcome(30) is not None

    def fold(self) -> None:
        self.finish_fold()
        self.start_fold()
        self.finish_fold()

    def verify(self) -> None:
        self.store.verify()

    def step_back(self, action: StepBack) -> None:
        before = self.store.applied
        if action.states == 0:
            assert self.store.step_back(lambda applied: applied == before)
            return
        durable = self.store.durable if self.folding is None else self.frozen_applied
        places = len(self.past) + 1 + (self.folding is not None)
        place = places - action.states
        if action.states == 1 and durable.number == before.number:
            assert self.store.step_back(lambda applied: applied.number <= durable.number)
            assert self.store.applied == before, "the present state holds"
            return
        if self.folding is not None:
            self.folded()
            self.await_fold()
        states = [*self.past, (self.durable, durable, self.durable_counts)]
        if place < 0:
            assert not self.store.step_back(lambda _: False)
            assert self.store.applied == durable
            self.model = self.durable
            return
        model, target, counts = states[place]
        assert self.store.step_back(lambda applied: applied.number <= target.number)
        assert self.store.applied == self.store.durable == target
        assert self.store.counts == counts
        self.past = self.past[:place]
        self.model = self.durable = model
        self.durable_counts = counts
        assert self.store.finish_fold() is None

    def hold(self) -> None:
        if len(self.held) < 5:
            self.held.append((self.store.snapshot(), self.model.rows(), self.store.applied))

    def check_held(self) -> None:
        for taken, rows, applied in self.held:
            assert rows_of(taken) == rows
            assert taken.applied == applied
            assert taken.count() == taken.counts.entries == len(rows)

    def export(self) -> None:
        """One commit, whatever comes; no other one ever has its name."""
        export = self.store.export()
        rows = exported(export)
        assert export.applied in (self.store.durable, self.frozen_applied)
        assert export.rows_total == sum(len(some) for _, some in rows)
        assert self.named.setdefault(export.generation, (export.applied, rows)) == (export.applied, rows)
        self.exports.append(export)

    def check_exports(self) -> None:
        for export in self.exports:
            assert (export.applied, exported(export)) == self.named[export.generation]

    def move(self, action: Move) -> None:
        """Go on with a copy of what is durable, filled by several processes, in place of the store."""
        export = self.store.export()
        self.places += 1
        filling: StoreFilling = MemorySliceFilling() if self.kind == "memory" else self._filling()
        filling.begin(export.generation)
        for _ in range(action.kills):
            if not filling.finished:
                fill(filling, export, action.most_bytes, most_chunks=2)
            filling.close()
            if self.kind == "lmdb":
                filling = self._filling()
            assert filling.generation == export.generation or filling.finished
        if not filling.finished:
            fill(filling, export, action.most_bytes)
        filling.close()
        rows, counts = exported(export), export.counts
        if self.folding is not None and export.applied == self.frozen_applied:
            self.folded()
        self.let_go()
        self.store.destroy()
        self.store = (
            MemorySliceStore.filled(filling, fold_entries=1, undo_folds=64, check=True)
            if isinstance(filling, MemorySliceFilling)
            else self._open()
        )
        assert self.store.applied == self.store.durable == export.applied
        assert self.store.counts == counts == self.durable_counts
        export = self.store.export()
        assert (exported(export), export.applied) == (rows, self.store.applied)
        assert export.generation not in self.named
        export.close()
        self.store.verify()
        self.folding, self.model, self.past = None, self.durable, []

    def _filling(self) -> LmdbSliceFilling:
        return LmdbSliceFilling(self._place(), SMALL)

    def let_go(self) -> None:
        """Of snapshots and exports, when the store goes; the latter end by themselves."""
        self.check_held()
        self.check_exports()
        for taken, _, _ in self.held:
            taken.close()
        self.held, self.exports = [], []

    def crash(self) -> None:
        """What was not folded is lost; the offsets go on (the queue would bring them again)."""
        self.let_go()
        if isinstance(self.store, MemorySliceStore):
            self.store = self.store.reopened()
        else:
            self.store.close()
            self.store = self._open()
        # A fold that was at work has happened or it has not, and the state says which.
        if self.folding is not None and self.store.durable == self.frozen_applied:
            self.folded()
        self.folding = None
        self.model = self.durable

    def read(self, action: Read) -> None:
        taken = self.store.snapshot()
        rows = [
            row
            for row in self.model.rows()
            if row[0] >= action.low and (action.high is None or row[0] < action.high)
        ]
        assert taken.count(action.low, action.high) == len(rows)
        if action.reverse:
            rows.reverse()
        after = action.start_after
        if after is not None:
            rows = [row for row in rows if (row[0] < after if action.reverse else row[0] > after)]
        found = rows_of(taken, action.low, action.high, action.reverse, action.limit, after)
        assert found == rows[: action.limit]
        taken.close()

    def close(self) -> None:
        for taken, _, _ in self.held:
            taken.close()
        for export in self.exports:
            export.close()
        if isinstance(self.store, LmdbSliceStore):
            self.finish_fold()
            self.store._base.level.changed()
            assert pinning(self.store) == (0, 0), "a read transaction was left, and keeps pages"
        self.store.destroy()


def sorted_heard(versions: list[Version]) -> list[Version]:
    return sorted(versions, key=lambda version: (version.partition, version.offset))


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    """Blocks of a few rows, so that every merge meets their ends."""
    with (
        patch.object(snapshot, "FIRST_BLOCK", 2),
        patch.object(merge, "FIRST_BLOCK", 2),
        patch.object(merge, "LARGEST_BLOCK", 3),
    ):
        yield


def run(kind: str, actions: list[object], folds: FoldWorker) -> None:
    with tempfile.TemporaryDirectory(prefix="keytide-store-") as folder:
        history = History(kind, Path(folder), folds)
        try:
            history.run(actions)
        finally:
            history.close()


CHECKS = settings(
    max_examples=share.examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("kind", ["lmdb", "memory"])
@CHECKS
@given(actions=histories(wanderers=False))
def test_any_history_equals_the_newest_versions(kind: str, folds: FoldWorker, actions: list[object]) -> None:
    run(kind, actions, folds)


@pytest.mark.parametrize("kind", ["lmdb", "memory"])
@CHECKS
@given(actions=histories(wanderers=True))
def test_ids_in_several_partitions_follow_the_rule(
    kind: str, folds: FoldWorker, actions: list[object]
) -> None:
    run(kind, actions, folds)
