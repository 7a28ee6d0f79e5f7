"""Which slices a node runs, what becomes of their folders, and a runner whose store fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from indexer import folder as folder_module
from indexer.events import BackfillData, MutationData, Stamped, Turn
from indexer.folder import NodeFolder
from indexer.following import Limits
from indexer.hosting import Hosting, placed_here
from indexer.metrics import NodeMetrics
from indexer.node import Node
from indexer.slices import RESTART_MS, RETRY_MS, SliceKey, SliceRunner
from indexer.spool import ChunkSpool
from indexer.store.fold_worker import FoldWorker
from indexer.store.interface import Applied, ApplyResult
from indexer.store.memory import MemorySliceStore
from keytide.catalog import Catalog, IndexRecord, IndexState, KeyspaceRecord, encode_record, record_key
from keytide.definition import CreateIndex, parse_statement
from keytide.errors import ConfigurationError, RetryableError
from keytide.messages import BuildEnd, PutChunk, Segment, StabilityTimestamp, encode
from keytide.settings import load_settings
from keytide.timestamp import Timestamp
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


class Place:
    """A node folder, its hosting, and a catalog that tests write."""

    def __init__(self, path: Path) -> None:
        self.folder = NodeFolder(path, "n1")
        self.node = Node("n1")
        self.reading = Reading()
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
            self.folder, self.node, settings, self.reading, lambda *_: None, self.metrics, self.folds
        )
        return self.hosting

    def write(self, record: IndexRecord | KeyspaceRecord) -> None:
        self.catalog.apply(record_key(record), encode_record(record), self._offset)
        self._offset += 1

    def index(self, state: IndexState, build: str = "b-1", nodes: Sequence[str] = ("n1", "n2")) -> None:
        parsed = parse_statement("CREATE INDEX i ON src (k) WITH (slices=2)")
        assert isinstance(parsed, CreateIndex)
        placement = [[node] for node in nodes]
        self.write(IndexRecord("i-1", parsed.definition, state, 1, placement, build, 1))
        self.hosting.reconcile(self.catalog, 0)

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


def test_memory_is_shared_out(place: Place) -> None:
    place.index("BUILDING", nodes=("n1", "n1"))
    settings = load_settings().indexer
    limits = {runner.core.limits for runner in place.hosting.runners.values()}
    documents = min(settings.slice_queue_documents, settings.node_queue_documents // 2)
    size = min(settings.slice_queue_bytes, settings.node_queue_bytes // 2)
    assert limits == {Limits(documents, size, gap_ms=settings.gap_limit_s * 1_000)}


def test_metrics_have_the_names_of_the_contract(place: Place) -> None:
    place.index("BUILDING")
    place.metrics.show(place.hosting.statuses(0))
    page = generate_latest(place.registry).decode()
    for name in ("slice_entries", "slice_bytes", "slice_queue_documents", "snapshot_number"):
        assert f'keytide_{name}{{index="i-1",slice="0"}}' in page
    assert "keytide_snapshot_commit_seconds_bucket" in page
    assert "keytide_freshness_seconds_bucket" in page
    place.drop()
    place.metrics.show(place.hosting.statuses(0))
    assert "i-1" not in generate_latest(place.registry).decode()


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

    def load(self, puts: Iterable[PutChunk], removals: Any, applied: Applied) -> ApplyResult:
        if self.full:
            raise RetryableError("no space left on device", problem_type="disk-full")
        return super().load(puts, removals, applied)


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
            Limits(100, 1 << 20, gap_ms=1_000),
            4,
            self.reading,
            lambda _keyspace, _incarnation, number, _key: self.acks.append(number),
            NodeMetrics(CollectorRegistry()),
            0,
        )
        self.runner.start(0)

    def hear(self, position: int, start: int, end: int) -> None:
        versions = [Version(0, offset, b"d%d" % offset, (b"k",)) for offset in range(start, end)]
        data = encode(batch([segment(0, start, end, versions)], *KEY))
        self.runner.feed(MutationData(data, position), 0)

    def stamp(self, number: int, offset: int, now: int = 0) -> None:
        message = StabilityTimestamp("src", 1, 0, Timestamp.of({0: offset}, TOPIC_ID), 0, 0)
        self.runner.feed(Stamped(number, message), now)
        self.runner.feed(Turn(now), now)


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
