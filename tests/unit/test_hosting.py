"""Which slices a node runs, what becomes of their folders, and a runner whose store fails."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from indexer.hosting import node_folder as folder_module
from indexer.hosting.filling import FillProgress
from indexer.hosting.hosting import Hosting, SliceChange
from indexer.hosting.metrics import NodeMetrics
from indexer.hosting.node import ServingNode
from indexer.hosting.node_folder import NodeFolder
from indexer.hosting.placed import placed_here
from indexer.hosting.scrubber import AGAIN_MS
from indexer.hosting.slice_runner import RESTART_MS, RETRY_MS, SliceKey, SliceRunner
from indexer.hosting.spool import ChunkSpool
from indexer.ingest.metadata import histories_complete
from indexer.slice.events import (
    BackfillData,
    Correct,
    DataLost,
    Decide,
    Done,
    MutationData,
    RolledBack,
    Stamped,
)
from indexer.slice.limits import SliceLimits
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import UNNUMBERED, Applied, ApplyResult, SliceStore, StoreDamagedError
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.unique import watch as unique_watch
from indexer.unique.shape import KeyShape
from indexer.unique.suspects import UniqueLimits
from indexer.unique.watch import UniqueWatch
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord
from keytide.catalog.history import History
from keytide.catalog.records import (
    BuildRecord,
    BuildState,
    IndexRecord,
    IndexState,
    KeyspaceRecord,
    Record,
    RollbackRecord,
    encode_record,
    record_key,
)
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import ConfigurationError, RetryableError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from keytide.structure import structure_of
from keytide.wire.messages import (
    BatchEnd,
    BuildEnd,
    Corrections,
    PutChunk,
    Segment,
    SliceStatus,
    StabilityTimestamp,
    encode,
)
from tests.memory_store.store import MemorySliceStore
from tests.simulation.wire import TOPIC_ID, Version, batch, put_chunk, segment

KEY = ("i-1", 0)


class Reading:
    """Where slices read, as they asked."""

    def __init__(self) -> None:
        self.places: dict[SliceKey, tuple[str, int]] = {}
        self.paused: set[SliceKey] = set()

    def read_mutations(self, key: SliceKey, position: int) -> None:
        self.places[key] = ("mutations", position)

    def read_backfill(self, key: SliceKey, build: str, position: int) -> None:
        self.places[key] = (build, position)

    def pause(self, key: SliceKey) -> None:
        self.paused.add(key)

    def resume(self, key: SliceKey) -> None:
        self.paused.discard(key)

    def leave(self, key: SliceKey) -> None:
        self.places.pop(key, None)


class Filler:
    """Copies that tests fill."""

    def __init__(self) -> None:
        self.begun: dict[str, tuple[CopyRecord, Path]] = {}
        self.told: dict[str, FillProgress] = {}

    def begin(self, copy: CopyRecord, folder: Path) -> None:
        self.begun[copy.id] = copy, folder

    def look(self, id_: str) -> FillProgress:
        return self.told.get(id_, FillProgress(0, 0, "", False))

    def leave(self, id_: str) -> None:
        del self.begun[id_]


class Place:
    """A node folder, its hosting, and a catalog that tests write."""

    def __init__(self, path: Path) -> None:
        self.folder = NodeFolder(path, "n1")
        self.node = ServingNode("n1")
        self.reading = Reading()
        self.filler = Filler()
        self.catalog = Catalog()
        self.folds = FoldWorker()
        self.hosting = self.begin()
        self._offset = 0
        self.write(KeyspaceRecord("src", TOPIC_ID, 1, 1))

    def begin(self) -> Hosting:
        """As after a restart."""
        settings = load_settings(indexer={"base_map_bytes": 1 << 26, "delta_map_bytes": 1 << 26}).indexer
        self.registry = CollectorRegistry()
        self.metrics = NodeMetrics(self.registry)
        self.hosting = Hosting(
            self.folder,
            self.node,
            settings,
            self.reading,
            lambda *_: None,
            self.metrics,
            self.folds,
            self.filler,
        )
        return self.hosting

    def write(self, record: Record) -> None:
        self.catalog.apply(record_key(record), encode_record(record), self._offset)
        self._offset += 1

    def index(
        self,
        state: IndexState,
        build: str = "b-1",
        nodes: Sequence[str] = ("n1", "n2"),
        slice_builds: dict[int, str] | None = None,
    ) -> None:
        parsed = parse_statement("CREATE INDEX i ON src (k) WITH (slices=2)")
        assert isinstance(parsed, CreateIndex)
        placement = [[node] for node in nodes]
        record = IndexRecord("i-1", parsed.definition, state, 1, placement, build, 1)
        self.write(replace(record, slice_builds=slice_builds or {}))
        self.hosting.reconcile(self.catalog, 0)

    def rebuild(self, build: str, state: BuildState = "BACKFILL") -> None:
        """One slice of the READY index is rebuilt."""
        record = BuildRecord(build, "src", ["i-1"], state, Timestamp(), 1, slices={"i-1": [0]})
        self.write(record)
        self.index("READY", slice_builds={0: build})

    def roll_back(self, incarnation: int, offset: int, number: int = 0, topic_id: str = TOPIC_ID) -> None:
        cut = Timestamp.of({0: offset} if offset else {}, topic_id)
        cause: Literal["truncated", "recreated"] = "truncated" if topic_id == TOPIC_ID else "recreated"
        self.write(RollbackRecord("src", incarnation, number, cut, topic_id, cause, 0))
        self.write(KeyspaceRecord("src", topic_id, 1, 1, incarnation))

    def built(self, end: int = 0) -> SliceRunner:
        """The slice of a READY index, empty, following its queue."""
        self.index("BUILDING")
        self.hosting.runners[KEY].feed(BackfillData(encode(BuildEnd("b-1", *KEY, 1, 0)), 0), 0)
        self.index("READY")
        runner = self.hosting.runners[KEY]
        assert runner.core.state == "CATCHUP"
        return runner

    def status(self) -> SliceStatus:
        (status,) = self.hosting.statuses(0)
        return status

    def restart(self) -> None:
        """The node ends in order, and starts again."""
        self.hosting.close()
        self.begin().reconcile(self.catalog, 0)

    def drop(self) -> None:
        self.catalog.apply("index/i-1", None, self._offset)
        self.hosting.reconcile(self.catalog, 0)

    def exists(self) -> bool:
        return self.folder.slice_folder(KEY).exists()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.hosting.close()
    made.folds.close()
    made.folder.close()


def test_only_slices_placed_here_run(place: Place) -> None:
    place.index("BUILDING")
    assert list(place.hosting.runners) == [KEY]
    assert place.reading.places == {KEY: ("b-1", 0)}
    assert list(placed_here(place.catalog, "n2")) == [("i-1", 1)]
    status = place.hosting.statuses(0)[0]
    assert (status.state, status.build, status.batch) == ("BUILDING", "b-1", -1)


def test_a_deferred_index_takes_no_place(place: Place) -> None:
    place.index("DEFERRED")
    assert place.hosting.runners == {}
    assert not place.exists()


@pytest.mark.parametrize("state", ["PAUSED", "READY"])
def test_a_running_slice_goes_on(place: Place, state: IndexState) -> None:
    place.index("BUILDING")
    runner = place.hosting.runners[KEY]
    place.index(state)
    assert place.hosting.runners[KEY] is runner


def test_a_failed_index_stops_and_keeps_its_folder_until_it_is_built_anew(place: Place) -> None:
    place.index("BUILDING")
    place.index("FAILED")
    assert place.hosting.runners == {}
    assert place.reading.places == {}
    assert place.exists()
    assert place.node.tip(*KEY) is None
    place.index("BUILDING", build="b-2")
    assert place.hosting.runners[KEY].core.applied.build == "b-2"


def test_a_new_build_begins_anew(place: Place) -> None:
    place.index("BUILDING")
    place.index("BUILDING", build="b-2")
    assert place.reading.places == {KEY: ("b-2", 0)}
    assert place.hosting.runners[KEY].core.applied == Applied(
        timestamp=Timestamp({}, TOPIC_ID), build="b-2", building=True
    )


@pytest.mark.parametrize("how", ["DROPPING", "DEFERRED", "gone", "moved"])
def test_a_slice_that_is_no_longer_here_leaves_nothing(place: Place, how: str) -> None:
    place.index("BUILDING")
    assert place.exists()
    if how == "gone":
        place.drop()
    elif how == "moved":
        place.index("BUILDING", nodes=("n2", "n2"))
    else:
        place.index("DROPPING" if how == "DROPPING" else "DEFERRED")
    assert place.hosting.runners == {}
    assert not place.folder.slice_folder(KEY).parent.exists()


def test_what_was_dropped_while_the_node_was_away_is_deleted(place: Place) -> None:
    place.index("BUILDING")
    place.hosting.close()
    hosting = place.begin()
    place.catalog.apply("index/i-1", None, 99)
    hosting.reconcile(place.catalog, 0)
    assert not place.exists()


def test_lost_data_of_a_ready_index_is_told_not_made_up(place: Place) -> None:
    place.index("READY")
    (status,) = place.hosting.statuses(0)
    assert (status.state, status.queue_horizon) == ("LOST", -1)
    assert "not on this node" in status.reason
    assert not place.exists()


# --- slices that are lost, and rebuilt ------------------------------------------------------------------


def test_a_lost_slice_is_put_away_and_waits_for_another_build(place: Place) -> None:
    runner = place.built()
    runner.lose("the queue is gone", 0)
    assert place.node.tip(*KEY) is None
    place.hosting.look_after(0)
    assert place.hosting.runners == {}
    status = place.status()
    assert (status.state, status.reason, status.queue_horizon) == ("LOST", "the queue is gone", -1)
    assert place.hosting.slice_changes() == [SliceChange(KEY, "LOST", -1, 0)]
    place.index("READY")
    assert place.status().state == "LOST"
    place.rebuild("r-1")
    runner = place.hosting.runners[KEY]
    assert (runner.core.state, runner.core.applied.build) == ("BUILDING", "r-1")
    assert place.reading.places == {KEY: ("r-1", 0)}
    assert place.status().build == "r-1"


def test_a_rebuilt_slice_goes_on_and_outlives_its_build(place: Place) -> None:
    place.rebuild("r-1")
    place.restart()
    runner = place.hosting.runners[KEY]
    assert (runner.core.state, place.reading.places) == ("BUILDING", {KEY: ("r-1", 0)})
    runner.feed(BackfillData(encode(BuildEnd("r-1", *KEY, 1, 0, queue_position=30)), 0), 0)
    assert place.reading.places == {KEY: ("mutations", 30)}
    assert place.status().queue_horizon == 30
    place.rebuild("r-1", "READY")
    assert place.hosting.runners[KEY] is runner
    place.restart()
    assert place.hosting.runners[KEY].core.state == "CATCHUP"
    assert place.reading.places == {KEY: ("mutations", 30)}


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_slice_whose_rebuild_ended_without_it_is_lost_again(
    place: Place, state: BuildState, restart: bool
) -> None:
    place.rebuild("r-1")
    if restart:
        place.hosting.close()
        place.begin()
    place.rebuild("r-1", state)
    place.hosting.look_after(0)
    assert place.status().state == "LOST"
    place.rebuild("r-2")
    assert place.hosting.runners[KEY].core.applied.build == "r-2"


def test_data_of_another_build_is_not_served(place: Place) -> None:
    place.built()
    place.hosting.close()
    place.begin()
    place.index("READY", build="b-2")
    assert place.status().state == "LOST"
    assert "build b-1, not b-2" in place.status().reason


def test_a_slice_that_is_dropped_while_it_is_lost_leaves_nothing(place: Place) -> None:
    place.built().lose("bad page", 0, damaged=True)
    place.hosting.look_after(0)
    assert place.folder.aside(KEY).exists()
    place.drop()
    assert place.hosting.statuses(0) == []
    assert not place.folder.slice_folder(KEY).parent.exists()


def test_damage_that_a_scan_reports_takes_the_slice_out_and_sets_its_folder_aside(place: Place) -> None:
    place.built()
    place.node.report_damage(*KEY, "bad entry")
    assert place.node.tip(*KEY) is None
    place.hosting.look_after(0)
    assert (place.status().state, place.status().reason) == ("LOST", "bad entry")
    assert not place.exists()
    assert place.folder.aside(KEY).exists()
    place.restart()
    assert place.status().state == "LOST"
    assert "set aside" in place.status().reason
    place.rebuild("r-1")
    assert place.hosting.runners[KEY].core.state == "BUILDING"


def test_a_base_that_is_damaged_is_noticed_when_it_is_opened(place: Place) -> None:
    place.built()
    place.hosting.close()
    base = next(place.folder.slice_folder(KEY).rglob("data.mdb"))
    base.write_bytes(b"\x00" * base.stat().st_size)
    place.begin().reconcile(place.catalog, 0)
    assert place.status().state == "LOST"
    assert place.folder.aside(KEY).exists()
    place.rebuild("r-1")
    assert place.hosting.runners[KEY].core.state == "BUILDING"


def test_damage_under_a_build_that_goes_on_begins_it_anew(place: Place) -> None:
    place.index("BUILDING")
    runner = place.hosting.runners[KEY]
    runner.lose("bad page", 0, damaged=True)
    place.hosting.look_after(0)
    assert place.status().state == "STOPPED"
    place.hosting.try_again(place.catalog, 0)
    assert place.hosting.runners[KEY] is not runner
    assert place.reading.places == {KEY: ("b-1", 0)}


def test_a_check_finds_damage_beside_everything_else(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = place.built()
    interval = load_settings().indexer.scrub_interval_s * 1_000
    threads: list[str] = []

    def bad() -> None:
        threads.append(threading.current_thread().name)
        raise StoreDamagedError("page 7 is not what was written")

    place.hosting.look_after(0)
    monkeypatch.setattr(runner.store, "verify", bad)
    place.hosting.look_after(interval - 1)
    assert threads == []
    deadline = time.monotonic() + 10
    while place.hosting.runners:
        assert time.monotonic() < deadline
        place.hosting.look_after(interval)
        time.sleep(0.001)
    assert place.status().reason == "page 7 is not what was written"
    assert threads[0].startswith("scrub")


def doubt(place: Place, reason: str) -> None:
    """A read doubts the slice, and the check of it ends."""
    place.node.report_doubt(*KEY, reason)
    checked(place, 0)


def checked(place: Place, now: int) -> None:
    """What is due is begun, and ends."""
    place.hosting.look_after(now)
    deadline = time.monotonic() + 10
    while any(one.name == "scrub" for one in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    place.hosting.look_after(now)


def test_a_sound_slice_that_a_read_doubts_is_checked_and_serves_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    runner = place.built()
    follow(runner, 0, 0, 30)
    fold(runner)
    follow(runner, 1, 30, 40)
    doubt(place, "entries are out of order")
    assert "is as it was written, and yet a read has met: entries are out of order" in caplog.text
    assert place.hosting.runners[KEY] is runner
    assert entries(runner) == 40
    caplog.clear()
    doubt(place, "again")
    assert caplog.text == "", "it is not checked again and again"


def too_many() -> NoReturn:
    raise RetryableError("40 snapshots of it are open", problem_type="too-many-snapshots")


def test_a_doubt_stays_while_no_snapshot_can_be_had(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = place.built()
    with monkeypatch.context() as patch:
        patch.setattr(runner.store, "snapshot", too_many)
        doubt(place, "entries are out of order")
        place.hosting.look_after(AGAIN_MS - 1)
    assert caplog.text.count("could not be checked: 40 snapshots of it are open") == 1
    caplog.clear()
    checked(place, AGAIN_MS)
    assert "is as it was written, and yet a read has met: entries are out of order" in caplog.text


def test_a_doubt_stays_when_its_check_cannot_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = place.built()
    with monkeypatch.context() as patch:
        patch.setattr(runner.store, "verify", too_many)
        doubt(place, "entries are out of order")
    assert "is as it was written" not in caplog.text
    checked(place, load_settings().indexer.doubt_pause_s * 1_000)
    assert "is as it was written, and yet a read has met: entries are out of order" in caplog.text


def test_a_doubt_finds_damage_before_its_check_begins(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = place.built()

    def bad() -> NoReturn:
        raise StoreDamagedError("page 7 is not what was written")

    monkeypatch.setattr(runner.store, "snapshot", bad)
    doubt(place, "entries are out of order")
    assert (place.status().state, place.status().reason) == ("LOST", "page 7 is not what was written")


def test_a_sweep_waits_while_no_snapshot_can_be_had(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = place.built()
    watch = UniqueWatch(KeyShape(structure_of("btree", 1)), UniqueLimits())
    monkeypatch.setattr(runner, "unique", watch)
    monkeypatch.setattr(watch, "due", lambda _: True)
    monkeypatch.setattr(runner.store, "snapshot", too_many)
    place.hosting.look_after(0)
    assert (place.hosting.runners[KEY], watch.sweeping) == (runner, False)


def test_a_doubt_finds_a_base_that_is_damaged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = place.built()

    def bad() -> None:
        raise StoreDamagedError("page 7 is not what was written")

    monkeypatch.setattr(runner.store, "verify", bad)
    doubt(place, "entries are out of order")
    assert (place.status().state, place.status().reason) == ("LOST", "page 7 is not what was written")


def test_a_doubt_finds_a_delta_that_is_not_the_inverse_of_the_back_index(place: Place) -> None:
    runner = place.built()
    follow(runner, 0, 0, 30)
    store = runner.store
    assert isinstance(store, LmdbSliceStore)
    delta = store._delta
    assert delta is not None
    with (
        delta.environment.begin(db=delta.tables.forward, write=True) as transaction,
        transaction.cursor() as rows,
    ):
        assert rows.first()
        rows.delete()
    delta.changed()
    doubt(place, "an entry is missing")
    assert place.status().state == "LOST"
    assert "Mirror" in place.status().reason


def test_a_sound_base_passes_its_checks(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    runner = place.built()
    follow(runner, 0, 0, 30)
    fold(runner)
    interval = load_settings().indexer.scrub_interval_s * 1_000
    caplog.set_level("INFO", "indexer.hosting.scrubber")
    now, deadline = 0, time.monotonic() + 10
    while caplog.text.count("as it was written") < 2:
        assert time.monotonic() < deadline
        place.hosting.look_after(now)
        now += interval
        time.sleep(0.001)
    assert runner.core.state == "LIVE"


def test_nobody_waits_for_the_check_of_a_slice_that_is_closed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = place.built()
    interval = load_settings().indexer.scrub_interval_s * 1_000
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(10)
        ended.set()
        raise StoreDamagedError("its files are being deleted")

    monkeypatch.setattr(runner.store, "verify", slow)
    place.hosting.look_after(0)
    place.hosting.look_after(interval)
    assert begun.wait(10)
    place.rebuild("r-1")
    assert not ended.is_set()
    assert place.hosting.runners[KEY].core.state == "BUILDING"
    go_on.set()
    assert ended.wait(10)
    place.hosting.look_after(2 * interval)
    assert place.status().state == "BUILDING"


# --- rollback -------------------------------------------------------------------------------------------


def follow(runner: SliceRunner, position: int, start: int, end: int, incarnation: int = 0) -> None:
    """The slice hears [start, end) and commits it as the number of its end."""
    versions = [Version(0, offset, b"d%d" % offset, (b"k",)) for offset in range(start, end)]
    message = batch([segment(0, start, end, versions)], *KEY, incarnation=incarnation)
    runner.feed(MutationData(encode(message), position), 0)
    stamp = StabilityTimestamp("src", 1, incarnation, Timestamp.of({0: end}, TOPIC_ID), 0, 0)
    runner.feed(Stamped(end, stamp), 0)
    runner.feed(Decide(0), 0)


def fold(runner: SliceRunner) -> None:
    assert runner.store.start_fold()
    assert runner.store.finish_fold(10.0) is not None


def entries(runner: SliceRunner) -> int:
    snapshot = runner.store.snapshot()
    count = snapshot.count(b"", None)
    snapshot.close()
    return count


def test_a_slice_steps_back_to_a_fold_that_holds_and_reads_its_queue_again(place: Place) -> None:
    runner = place.built()
    follow(runner, 0, 0, 3)
    fold(runner)
    follow(runner, 1, 3, 6)
    place.roll_back(1, 4, number=3)
    place.hosting.reconcile(place.catalog, 0)
    assert place.hosting.runners[KEY] is runner
    assert (runner.store.applied.timestamp.offsets(), entries(runner)) == ({0: 3}, 3)
    assert runner.ring.numbers() == [3]
    assert place.reading.places == {KEY: ("mutations", 1)}
    status = place.status()
    assert (status.state, status.number, status.incarnation) == ("CATCHUP", 3, 1)
    follow(runner, 1, 3, 6)
    assert runner.core.heard().offsets() == {0: 4}
    follow(runner, 2, 4, 7, incarnation=1)
    assert (place.status().number, entries(runner), runner.core.state) == (7, 7, "LIVE")


def test_a_rollback_while_the_node_was_away_is_made_good_at_its_start(place: Place) -> None:
    runner = place.built()
    follow(runner, 0, 0, 3)
    fold(runner)
    follow(runner, 1, 3, 6)
    fold(runner)
    place.hosting.close()
    place.roll_back(1, 4, number=3)
    place.begin().reconcile(place.catalog, 0)
    runner = place.hosting.runners[KEY]
    assert (runner.store.applied.timestamp.offsets(), entries(runner)) == ({0: 3}, 3)
    assert place.reading.places == {KEY: ("mutations", 1)}
    assert place.status().incarnation == 1


def test_a_slice_that_was_switched_past_the_cut_cannot_step_back_and_is_lost(place: Place) -> None:
    place.rebuild("r-1")
    runner = place.hosting.runners[KEY]
    end = Timestamp.of({0: 9}, TOPIC_ID)
    runner.feed(BackfillData(encode(BatchEnd("r-1", *KEY, "r", 0, Timestamp(), end, {})), 0), 0)
    runner.feed(BackfillData(encode(BuildEnd("r-1", *KEY, 1, 1)), 1), 0)
    place.rebuild("r-1", "READY")
    place.roll_back(1, 4)
    place.hosting.reconcile(place.catalog, 0)
    place.hosting.look_after(0)
    assert place.status().state == "LOST"
    assert "cannot step back" in place.status().reason
    place.restart()
    place.hosting.look_after(0)
    assert "cannot step back" in place.status().reason


def test_a_topic_made_anew_empties_the_slice(place: Place) -> None:
    runner = place.built()
    follow(runner, 0, 0, 3)
    fold(runner)
    place.roll_back(1, 0, number=-1, topic_id="new")
    place.hosting.reconcile(place.catalog, 0)
    assert runner.store.applied == Applied(timestamp=Timestamp({}, "new"), incarnation=1, build="b-1")
    assert entries(runner) == 0
    assert runner.ring.numbers() == []
    assert place.reading.places == {KEY: ("mutations", 0)}
    place.restart()
    assert place.hosting.runners[KEY].core.incarnation == 1


def test_a_build_that_begins_again_with_the_rollback_takes_the_place_of_the_old_one(place: Place) -> None:
    place.index("BUILDING")
    place.roll_back(1, 4)
    place.index("BUILDING", build="b-2")
    core = place.hosting.runners[KEY].core
    assert (core.applied.build, core.applied.incarnation, core.incarnation) == ("b-2", 1, 1)


def test_what_is_written_and_read_is_told(place: Place) -> None:
    runner = place.built()
    assert (place.status().writes, place.status().reads) == (0, 0)
    follow(runner, 0, 0, 2_000)
    reading = place.node.tip(*KEY)
    assert reading is not None
    reading.release()
    assert (place.status().writes, place.status().reads) == (2_000, 1)
    runner.look_after(1_000)
    written = place.node.written(*KEY)
    assert written is not None
    assert (written.slice, written.known, written.total) == (0, True, 2_000)
    assert place.node.written("i-1", 1) is None
    place.restart()
    assert (place.status().writes, place.status().reads) == (0, 0)


def test_half_of_a_rollback_is_not_told(place: Place) -> None:
    place.write(KeyspaceRecord("src", TOPIC_ID, 1, 1, 1))
    assert not histories_complete(place.catalog)
    place.roll_back(1, 4)
    assert histories_complete(place.catalog)


def test_memory_is_shared_out(place: Place) -> None:
    place.index("BUILDING", nodes=("n1", "n1"))
    settings = load_settings().indexer
    limits = {runner.core.limits for runner in place.hosting.runners.values()}
    documents = min(settings.slice_queue_documents, settings.node_queue_documents // 2)
    size = min(settings.slice_queue_bytes, settings.node_queue_bytes // 2)
    assert limits == {SliceLimits(documents, size, gap_ms=settings.gap_limit_s * 1_000)}


def test_metrics_have_the_names_of_the_contract(place: Place) -> None:
    place.index("BUILDING")
    place.metrics.show(place.hosting.statuses(0), {"i-1": "by_city"})
    page = generate_latest(place.registry).decode()
    for name in (
        "slice_entries",
        "slice_bytes",
        "slice_queue_documents",
        "slice_queue_position",
        "slice_queue_horizon",
        "snapshot_number",
    ):
        assert f'keytide_{name}{{index="by_city",slice="0"}}' in page
    assert "keytide_snapshot_commit_seconds_bucket" in page
    assert "keytide_freshness_seconds_bucket" in page
    place.drop()
    place.metrics.show(place.hosting.statuses(0), {"i-1": "by_city"})
    assert "by_city" not in generate_latest(place.registry).decode()


def test_what_full_slices_have_let_go_of_is_counted_and_told(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    runner = place.built()

    def count() -> float | None:
        return place.registry.get_sample_value("keytide_slice_evicted_documents_total")

    def told() -> list[str]:
        return re.findall(r"let go of (\d+) documents", caplog.text)

    runner.look_after(20_000)
    assert (count(), told()) == (0, [])
    for evicted, now in ((5, 20_000), (7, 20_100), (9, 29_999)):
        runner.core.evicted = evicted
        runner.look_after(now)
        assert (count(), told()) == (evicted, ["5"])
    runner.look_after(30_000)
    assert (count(), told()) == (9, ["5", "4"])


# --- the node's folder ----------------------------------------------------------------------------------


def test_a_node_keeps_its_id(tmp_path: Path) -> None:
    first = NodeFolder(tmp_path)
    first.close()
    second = NodeFolder(tmp_path)
    assert second.node_id == first.node_id
    assert second.node_id.startswith("node-")
    second.close()


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LOCK_WAIT_S", 0.0)
    first = NodeFolder(tmp_path, "n1")
    with pytest.raises(ConfigurationError, match="another process"):
        NodeFolder(tmp_path, "n1")
    first.close()
    NodeFolder(tmp_path, "n1").close()


def test_data_of_another_cluster_is_not_touched(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path, "n1")
    folder.check_cluster("c1")
    folder.check_cluster("c1")
    with pytest.raises(ConfigurationError, match="cluster c1"):
        folder.check_cluster("c2")
    folder.close()


# --- a runner whose disk is full ------------------------------------------------------------------------


class FullStore(MemorySliceStore):
    """A store whose disk can be full."""

    full = False

    def apply(self, segments: Sequence[Segment], applied: Applied) -> ApplyResult:
        if self.full:
            raise RetryableError("no space left on device", problem_type="disk-full")
        return super().apply(segments, applied)

    def load(self, puts: Collection[PutChunk], removals: Any, applied: Applied) -> ApplyResult:
        if self.full:
            raise RetryableError("no space left on device", problem_type="disk-full")
        return super().load(puts, removals, applied)

    def step_back(self, holds: Callable[[Applied], bool]) -> bool:
        if self.full:
            raise RetryableError("no space left on device", problem_type="disk-full")
        return super().step_back(holds)


class Run:
    """One runner."""

    def __init__(self, path: Path, applied: Applied) -> None:
        self.reading = Reading()
        self.acks: list[int] = []
        self.store = FullStore(applied)
        self.runner = SliceRunner(
            KEY,
            "src",
            self.store,
            ChunkSpool(path / "chunks"),
            SliceLimits(100, 1 << 20, gap_ms=1_000),
            4,
            self.reading,
            lambda _keyspace, _incarnation, number, _key: self.acks.append(number),
            NodeMetrics(CollectorRegistry()),
            0,
        )
        self.runner.start(0)

    def history(self, offset: int, number: int) -> History:
        cut = Timestamp.of({0: offset}, TOPIC_ID)
        return History([RollbackRecord("src", 1, number, cut, TOPIC_ID, "truncated", 0)], TOPIC_ID)

    def hear(self, position: int, start: int, end: int) -> None:
        versions = [Version(0, offset, b"d%d" % offset, (b"k",)) for offset in range(start, end)]
        data = encode(batch([segment(0, start, end, versions)], *KEY))
        self.runner.feed(MutationData(data, position), 0)

    def stamp(self, number: int, offset: int, now: int = 0) -> None:
        message = StabilityTimestamp("src", 1, 0, Timestamp.of({0: offset}, TOPIC_ID), 0, 0)
        self.runner.feed(Stamped(number, message), now)
        self.runner.feed(Decide(now), now)


def test_a_commit_waits_for_the_disk_and_goes_through_later(tmp_path: Path) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID)))
    run.store.full = True
    run.hear(0, 0, 3)
    run.stamp(1, 3)
    status = run.runner.status(0)
    assert (status.state, status.reason) == ("STOPPED", "no space left on device")
    assert run.acks == []
    run.runner.look_after(RETRY_MS)
    assert run.acks == []
    run.store.full = False
    run.hear(1, 3, 5)
    run.stamp(2, 5)
    run.runner.look_after(2 * RETRY_MS)
    assert run.acks == [1, 2]
    status = run.runner.status(0)
    assert (status.state, status.reason, status.entries) == ("LIVE", "", 5)


def test_a_build_waits_for_the_disk_with_all_that_was_read(tmp_path: Path) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID), build="b", building=True))
    run.store.full = True
    run.runner.feed(BackfillData(encode(BuildEnd("b", *KEY, 1, 0)), 0), 0)
    assert run.runner.status(0).state == "STOPPED"
    assert KEY in run.reading.paused
    run.store.full = False
    run.runner.look_after(RETRY_MS)
    assert run.reading.places == {KEY: ("mutations", 0)}
    assert run.runner.status(0).state == "CATCHUP"


def test_a_slice_under_build_shows_what_it_has_loaded_until_it_switches_over(tmp_path: Path) -> None:
    """To who compares it, also after a restart; scans see nothing of it before."""
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID), build="b", building=True))

    def shown(runner: SliceRunner, number: int) -> list[bytes] | None:
        held = runner.ring.built("b")
        if held is None:
            return None
        keys = [key for rows in held.rows(b"", None) for key, _ in rows]
        held.release()
        return keys if held.number == number else None

    def send(number: int, *versions: Version) -> None:
        of: dict[str, Any] = {"index": KEY[0], "slice_number": KEY[1], "number": number, "sequence": 0}
        chunk = put_chunk([(b"k", one) for one in versions], build="b", run="r", attempt="a", **of)
        start, reached = (Timestamp.of({0: 10 * at}, TOPIC_ID) for at in (number, number + 1))
        end = BatchEnd("b", *KEY, "r", number, start, reached, {"a": 1})
        for at, data in enumerate((encode(chunk), encode(end))):
            run.runner.feed(BackfillData(data, 2 * number + at), 0)

    assert shown(run.runner, 0) is None
    send(0, Version(0, 1, b"d1", (b"k",)))
    assert shown(run.runner, 0) == [b"kd1"]
    assert run.runner.ring.tip() is None
    run.store.full = True
    send(1, Version(0, 11, b"d2", (b"k",)))
    assert (shown(run.runner, 0), shown(run.runner, 1)) == (None, None), "it is being written to"
    run.store.full = False
    run.runner.look_after(RETRY_MS)
    assert (shown(run.runner, 0), shown(run.runner, 1)) == (None, [b"kd1", b"kd2"])
    run.runner.ring.close()
    run.runner.start(0)
    assert shown(run.runner, 1) == [b"kd1", b"kd2"], "a restart has what is durable"
    run.runner.feed(BackfillData(encode(BuildEnd("b", *KEY, 2, 0)), 4), 0)
    assert run.runner.status(0).state == "CATCHUP"
    assert shown(run.runner, 1) is None, "from here on its mutation queue changes it"


def test_chunks_wait_for_the_disk_in_order(tmp_path: Path) -> None:
    run = Run(tmp_path / "absent", Applied(timestamp=Timestamp({}, TOPIC_ID), build="b", building=True))
    entries = [(b"k", Version(0, 0, b"d", (b"k",)))]
    for sequence in range(3):
        chunk = put_chunk(
            entries,
            build="b",
            index=KEY[0],
            slice_number=KEY[1],
            run="r",
            number=0,
            attempt="a",
            sequence=sequence,
        )
        run.runner.feed(BackfillData(encode(chunk), sequence), 0)
    assert KEY in run.reading.paused
    assert "cannot be written" in run.runner.status(0).reason
    (tmp_path / "absent").mkdir()
    run.runner.look_after(RETRY_MS)
    assert run.reading.paused == set()
    assert run.runner.status(0).reason == ""


def test_a_stopped_slice_starts_again_from_its_store(tmp_path: Path) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID), queue_position=4))
    run.hear(4, 0, 2)
    run.stamp(1, 2)
    run.runner.feed(MutationData(b"\x09", 5), 0)
    assert run.runner.status(0).state == "STOPPED"
    assert run.reading.places == {}
    run.runner.look_after(RESTART_MS)
    assert run.reading.places == {KEY: ("mutations", 5)}
    assert run.runner.status(0).state == "STOPPED"  # until it has proved itself
    run.hear(5, 2, 3)
    run.stamp(2, 3)
    assert run.acks == [1, 2]
    assert run.runner.status(0).state == "LIVE"


def test_a_slice_that_cannot_be_shown_starts_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID), queue_position=4))
    run.runner.feed(MutationData(b"\x09", 4), 0)
    with monkeypatch.context() as patch:
        patch.setattr(run.store, "snapshot", too_many)
        run.runner.look_after(RESTART_MS)
    assert run.reading.places == {}
    run.stamp(7, 0, RESTART_MS + 200)  # with nothing new: who reads nothing must not take part
    status = run.runner.status(RESTART_MS + 200)
    assert (status.state, status.reason) == ("STOPPED", "40 snapshots of it are open")
    assert run.acks == []
    run.runner.look_after(2 * RESTART_MS)
    assert run.reading.places == {KEY: ("mutations", 4)}
    run.stamp(8, 0, 2 * RESTART_MS + 50)
    run.stamp(9, 0, 2 * RESTART_MS + 100)
    assert (run.acks, run.runner.status(0).state) == ([8, 9], "LIVE")


def test_corrections_that_cannot_be_shown_count_once_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID)))
    made = iter((3, 0))  # the same again changes nothing
    monkeypatch.setattr(run.store, "correct", lambda *_: next(made))
    none = Corrections(*KEY, "v1", 1, 0, 0, Timestamp(), 0, b"", b"", b"", b"", b"", b"")
    correct = Correct(none, frozenset(), run.store.applied)
    with monkeypatch.context() as patch:
        patch.setattr(run.store, "snapshot", too_many)
        with pytest.raises(RetryableError):
            run.runner._do(correct, 0)
    assert run.runner._do(correct, 0) == Done(correct.applied, 3)
    monkeypatch.setattr(run.store, "correct", lambda *_: 1)
    assert run.runner._do(correct, 0) == Done(correct.applied, 1)


def test_a_rollback_drops_a_commit_that_waits_for_the_disk(tmp_path: Path) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID)))
    run.hear(0, 0, 3)
    run.stamp(1, 3)
    run.store.full = True
    run.hear(1, 3, 5)
    run.stamp(2, 5)
    assert run.runner.status(0).reason == "no space left on device"
    run.runner.rolled_back(run.history(3, 1), 0)  # the state that the slice has holds
    assert run.runner.ring.tip() is not None
    assert run.runner.ring.numbers() == [1]
    status = run.runner.status(0)
    assert (status.state, status.reason, status.number, status.incarnation) == ("CATCHUP", "", 1, 1)
    run.store.full = False
    run.runner.look_after(RETRY_MS)
    assert run.store.applied.timestamp.offsets() == {0: 3}
    assert run.acks == [1]
    assert run.reading.places == {KEY: ("mutations", 1)}


def test_a_step_back_waits_for_the_disk_and_shows_nothing_void_meanwhile(tmp_path: Path) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID)))
    run.hear(0, 0, 3)
    run.stamp(1, 3)
    run.store.full = True
    run.runner.rolled_back(run.history(2, UNNUMBERED), 0)
    assert run.runner.ring.tip() is None
    assert run.runner.ring.numbers() == []
    assert (run.runner.status(0).state, run.runner.status(0).incarnation) == ("STOPPED", 0)
    run.runner.look_after(RETRY_MS - 1)
    assert run.reading.places == {}
    run.store.full = False
    run.runner.look_after(RETRY_MS)
    assert run.reading.places == {KEY: ("mutations", 0)}
    assert run.store.applied.timestamp.offsets() == {}
    assert run.runner.status(0).incarnation == 1


def test_a_stopped_slice_that_rolls_back_does_not_start_a_second_time(tmp_path: Path) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID)))
    run.runner.feed(MutationData(b"\x09", 0), 0)
    assert run.runner.status(0).state == "STOPPED"
    run.runner.feed(RolledBack(run.history(0, UNNUMBERED)), 0)
    core = run.runner.core
    run.runner.look_after(RESTART_MS)
    assert run.runner.core is core


def test_a_void_store_is_shown_to_nobody_at_the_start(tmp_path: Path) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID)))
    run.hear(0, 0, 3)
    run.stamp(1, 3)
    store: SliceStore = run.store
    runner = SliceRunner(
        KEY,
        "src",
        store,
        ChunkSpool(tmp_path / "other"),
        SliceLimits(100, 1 << 20, gap_ms=1_000),
        4,
        run.reading,
        lambda *_: None,
        NodeMetrics(CollectorRegistry()),
        0,
        run.history(2, UNNUMBERED),
    )
    run.store.full = True
    runner.start(0)
    assert runner.ring.tip() is None
    run.store.full = False
    runner.look_after(RETRY_MS)
    assert runner.store.applied.timestamp.offsets() == {}
    assert runner.ring.tip() is None, "the state holds, but it is older than what may have been shown"


@pytest.mark.parametrize("how", ["apply", "finish_fold", "load"])
def test_a_store_that_is_found_damaged_is_served_no_more(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, Applied(timestamp=Timestamp({}, TOPIC_ID), build="b", building=how == "load"))

    def damaged(*_: object) -> None:
        raise StoreDamagedError("page 3")

    monkeypatch.setattr(run.store, how, damaged)
    if how == "load":
        run.runner.feed(BackfillData(encode(BuildEnd("b", *KEY, 1, 0)), 0), 0)
    elif how == "finish_fold":
        run.hear(0, 0, 3)
        run.stamp(1, 3)
        run.store.start_fold()
        run.runner.look_after(0)
    else:
        run.hear(0, 0, 3)
        run.stamp(1, 3)
    status = run.runner.status(0)
    assert (status.state, status.reason, status.queue_horizon) == ("LOST", "page 3", -1)
    assert run.runner.damaged
    assert run.runner.ring.tip() is None
    assert run.reading.places == {}
    run.runner.feed(DataLost("again"), 0)
    run.runner.look_after(RESTART_MS)
    assert run.runner.status(0).reason == "page 3"


def test_sweeps_that_are_due_again_let_the_others_end(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slices whose sweeps are due again as soon as they are over, and one that waits for its first."""
    monkeypatch.setattr(unique_watch, "SWEEP_ROWS", 1)
    monkeypatch.setattr(unique_watch, "SWEEP_AGAIN_MS", 0)
    monkeypatch.setattr(KeyShape, "key_of", lambda self, entry_key, value: entry_key)
    watches = [UniqueWatch(KeyShape(structure_of("btree", 1)), UniqueLimits()) for _ in range(3)]
    for number, watch in enumerate(watches):
        run = Run(tmp_path / str(number), Applied(timestamp=Timestamp({}, TOPIC_ID)))
        run.hear(0, 0, 3)
        run.stamp(1, 3)
        run.runner.unique = watch
        watch.begin(run.store.snapshot())
        place.hosting.runners["i", number] = run.runner
    for now in range(20):
        for watch in watches[:2]:
            watch._suspects.full = True  # there is more than the list holds
        place.hosting.look_after(now)
    assert not watches[2].sweeping
