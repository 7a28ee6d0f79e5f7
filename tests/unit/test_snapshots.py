"""The ring of snapshots: what is kept, for whom, and that all is closed in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from indexer.hosting.core.control import STAMPS_KEPT, Control
from indexer.hosting.node import ServingNode
from indexer.hosting.snapshot_reader import SnapshotReader
from indexer.hosting.snapshots import AHEAD_LIMIT, LEASED_LIMIT, SnapshotRing
from indexer.hosting.spool import ChunkSpool
from indexer.slice.events import ChunkKey
from indexer.slice.freshness import newest_times
from indexer.store.interface import UNNUMBERED, Applied, Row, StoreDamagedError, StoreSnapshot
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import NodeRecord, RollbackRecord, encode_record, record_key
from keytide.errors import RetryableError
from keytide.model.landmarks import rank
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import Published, StabilityTimestamp
from tests.memory_store.snapshot import MemorySnapshot, MemoryState
from tests.memory_store.store import MemorySliceStore
from tests.simulation.wire import Version, put_chunk, removal_chunk, segment


class Shelf:
    """A ring, and every snapshot that was ever put into it."""

    def __init__(self, kept: int = 2) -> None:
        self.ring = SnapshotRing(kept)
        self.store = MemorySliceStore(Applied())
        self.made: dict[int, StoreSnapshot] = {}

    def add(self, *numbers: int, now: int = 0) -> None:
        for number in numbers:
            snapshot = self.store.snapshot()
            self.made[number] = snapshot
            self.ring.add(snapshot, number, now)

    def open(self) -> list[int]:
        """Numbers whose snapshots can be read."""
        found = []
        for number, snapshot in self.made.items():
            try:
                list(snapshot.rows())
            except RetryableError:
                continue
            found.append(number)
        return found


def test_the_newest_and_the_published_are_kept() -> None:
    shelf = Shelf()
    shelf.add(1, 2, 3)
    shelf.ring.publish(1, 0)
    shelf.add(4, 5)
    assert shelf.ring.numbers() == [1, 2, 3, 4, 5]  # newer than the published one
    shelf.ring.publish(3, 0)
    assert shelf.ring.numbers() == [3, 4, 5]
    assert shelf.open() == [3, 4, 5]
    shelf.ring.publish(5, 0)
    assert shelf.ring.numbers() == [4, 5]


def test_what_slower_slices_may_reach_is_kept_up_to_a_limit_by_rank() -> None:
    shelf = Shelf()
    shelf.ring.publish(0, 0)
    shelf.add(*range(1, 3 * AHEAD_LIMIT))
    numbers = shelf.ring.numbers()
    assert len(numbers) == AHEAD_LIMIT + 2 + 2
    assert numbers[-2:] == [3 * AHEAD_LIMIT - 2, 3 * AHEAD_LIMIT - 1]
    dropped = [one for one in range(1, 3 * AHEAD_LIMIT) if one not in numbers]
    assert max(map(rank, dropped)) <= min(map(rank, numbers[:-2]))
    assert shelf.open() == numbers


def test_a_lease_keeps_a_snapshot_until_it_runs_out() -> None:
    shelf = Shelf()
    shelf.add(1)
    assert shelf.ring.lease(1, "page", until=100)
    shelf.ring.publish(9, 0)
    shelf.add(2, 3, 4, now=50)
    assert shelf.ring.numbers() == [1, 3, 4]
    assert shelf.ring.lease(1, "page", until=200)
    shelf.ring.expire(150)
    assert 1 in shelf.open()
    shelf.ring.expire(200)
    assert shelf.open() == [3, 4]
    assert not shelf.ring.lease(1, "page", until=300)
    assert shelf.ring.acquire(1) is None


def test_a_shorter_lease_takes_the_place_of_the_longer() -> None:
    shelf = Shelf(kept=1)
    shelf.add(1, 2)
    shelf.ring.lease(1, "a", until=500)
    shelf.ring.lease(1, "b", until=100)
    shelf.ring.lease(1, "a", until=0)
    shelf.ring.publish(2, 0)
    shelf.ring.expire(50)
    assert shelf.ring.numbers() == [1, 2]
    shelf.ring.expire(100)
    assert shelf.ring.numbers() == [2]


def test_leases_are_limited() -> None:
    shelf = Shelf(kept=LEASED_LIMIT + 2)
    shelf.add(*range(LEASED_LIMIT + 1))
    granted = [shelf.ring.lease(number, "page", 100) for number in range(LEASED_LIMIT + 1)]
    assert granted == [True] * LEASED_LIMIT + [False]


def test_a_reader_finishes_before_its_snapshot_is_closed() -> None:
    shelf = Shelf(kept=1)
    shelf.add(1)
    reading = shelf.ring.acquire(1)
    assert reading is not None
    shelf.ring.publish(5, 0)
    shelf.add(2)
    assert shelf.ring.numbers() == [2]
    assert list(reading.rows(b"", None)) == []
    reading.release()
    reading.release()
    assert shelf.open() == [2]


def test_the_tip_is_the_newest_commit_numbered_or_not() -> None:
    shelf = Shelf(kept=1)
    assert shelf.ring.tip() is None
    shelf.add(UNNUMBERED)
    shelf.add(3)
    tip = shelf.ring.tip()
    assert tip is not None
    assert tip.number == 3
    assert shelf.open() == [3]
    shelf.made.clear()
    shelf.add(UNNUMBERED)
    after = shelf.ring.tip()
    assert after is not None
    assert after.number == UNNUMBERED
    assert shelf.ring.newest() == 3


def test_a_restarted_slice_shows_no_tip_before_it_has_replayed() -> None:
    """The base that a restart finds is older than what tip scans were shown before."""
    shelf = Shelf()
    shelf.ring.publish(7, 0)
    shelf.add(UNNUMBERED)
    assert shelf.ring.tip() is None, "the base"
    shelf.add(UNNUMBERED)
    assert shelf.ring.tip() is None, "made room, nothing joined"
    shelf.add(5)
    assert shelf.ring.tip() is None, "older than what is published"
    shelf.add(7)
    shelf.add(UNNUMBERED)
    tip = shelf.ring.tip()
    assert tip is not None
    assert tip.number == UNNUMBERED


def test_a_tip_does_not_fall_behind_the_numbers_that_a_rollback_leaves() -> None:
    shelf = Shelf()
    shelf.add(1, 2, 3)
    shelf.ring.roll_back(_history(2))
    shelf.add(UNNUMBERED)  # what the journal of undo steps back to: older than number 2
    tip = shelf.ring.tip()
    assert tip is not None
    assert tip.number == 2
    shelf.add(4)
    shelf.add(UNNUMBERED)
    tip = shelf.ring.tip()
    assert tip is not None
    assert tip.number == UNNUMBERED


def test_closing_closes_all_but_what_is_read() -> None:
    shelf = Shelf()
    shelf.add(1, 2)
    reading = shelf.ring.acquire(2)
    assert reading is not None
    shelf.ring.close()
    assert shelf.open() == [2]
    assert shelf.ring.acquire(2) is None
    assert shelf.ring.tip() is None
    reading.release()
    assert shelf.open() == []


def test_readers_race_with_the_ingest_thread() -> None:
    """Every reading that was given out can be read until it is released, whatever is dropped meanwhile."""
    shelf = Shelf(kept=2)
    shelf.add(0)
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            reading = shelf.ring.acquire(shelf.ring.newest()) or shelf.ring.tip()
            try:
                if reading is not None:
                    list(reading.rows(b"", None))
                    reading.release()
            except RetryableError as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 2_000):
        shelf.add(number)
        shelf.ring.publish(number, 0)
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert shelf.open() == [1_998, 1_999]


def _history(number: int, incarnation: int = 1) -> History:
    """A rollback to a snapshot number."""
    return History([RollbackRecord("ks", incarnation, number, Timestamp(), "t", "truncated", 0)])


def test_a_rollback_drops_void_numbers_with_their_leases_and_keeps_the_others_with_theirs() -> None:
    shelf = Shelf(kept=2)
    shelf.add(1, 2, 3, 4)
    shelf.ring.lease(1, "page", until=100)
    shelf.ring.lease(3, "page", until=100)
    shelf.ring.publish(2, 0)
    shelf.ring.roll_back(_history(2))
    assert shelf.ring.numbers() == [1, 2]
    assert shelf.open() == [1, 2]
    assert shelf.ring.tip() is None
    assert shelf.ring.newest() == 2
    shelf.add(UNNUMBERED)
    tip = shelf.ring.tip()
    assert tip is not None
    tip.release()
    shelf.add(7, 8, 9, 10)
    shelf.ring.publish(9, 0)
    assert shelf.ring.numbers() == [1, 9, 10]  # the lease of 1 is as it was


def test_what_is_published_goes_back_with_a_rollback() -> None:
    shelf = Shelf(kept=1)
    shelf.ring.publish(9, 0)
    shelf.add(9)
    shelf.ring.roll_back(_history(5))
    shelf.add(10, 11)
    assert shelf.ring.numbers() == [10, 11], "they may be what slower slices reach"
    shelf.ring.publish(10, 0)
    shelf.ring.publish(11, 0)
    assert shelf.ring.numbers() == [11]


def test_a_reader_of_a_void_snapshot_finishes() -> None:
    shelf = Shelf()
    shelf.add(1, 2)
    reading = shelf.ring.acquire(2)
    assert reading is not None
    shelf.ring.roll_back(_history(1))
    assert shelf.ring.acquire(2) is None
    assert list(reading.rows(b"", None)) == []
    reading.release()
    assert shelf.open() == [1]


class DamagedSnapshot(MemorySnapshot):
    """A commit of which a record cannot be read."""

    def rows(self, *_: object, **__: object) -> Iterator[list[Row]]:
        raise StoreDamagedError("an entry of 3 bytes")

    def count(self, *_: object) -> int:
        raise StoreDamagedError("an entry of 3 bytes")


@pytest.mark.parametrize("read", [lambda it: list(it.rows(b"", None)), lambda it: it.count(b"", None)])
def test_a_reader_that_meets_damage_tells_the_ring_and_nothing_more_is_given_out(
    read: Callable[[SnapshotReader], object],
) -> None:
    shelf = Shelf()
    shelf.add(1)
    shelf.ring.add(DamagedSnapshot(MemoryState(Applied())), 2, 0)
    damaged, sound = shelf.ring.acquire(2), shelf.ring.acquire(1)
    assert damaged is not None
    assert sound is not None
    with pytest.raises(StoreDamagedError):
        read(damaged)
    assert shelf.ring.damage == "an entry of 3 bytes"
    assert shelf.ring.acquire(1) is None
    assert shelf.ring.tip() is None
    assert not shelf.ring.lease(1, "page", until=100)
    shelf.ring.report_damage("another")
    assert shelf.ring.damage == "an entry of 3 bytes"


# --- control --------------------------------------------------------------------------------------------


def _stamp(term: int = 1, incarnation: int = 0, offset: int = 0) -> StabilityTimestamp:
    return StabilityTimestamp("ks", term, incarnation, Timestamp.of({0: offset}), 5, 5)


def test_lower_terms_and_older_incarnations_are_ignored() -> None:
    control = Control(term=2)
    assert not control.stamped(1, _stamp(term=1))
    control.show_history("ks", History(incarnation=1))
    assert control.stamped(2, _stamp(term=3, incarnation=1, offset=9))
    assert not control.stamped(3, _stamp(term=2, incarnation=1))
    assert not control.stamped(4, _stamp(term=3, incarnation=0))
    assert control.publish(Published("ks", 2, 1, {"i": 2})) == {}
    assert control.publish(Published("ks", 3, 1, {"i": 2})) == {"i": 2}
    assert control.publish(Published("ks", 3, 1, {"i": 2})) == {}
    assert control.stamp("ks", 2) == (1, Timestamp.of({0: 9}), 5)
    assert control.stamp("ks", 3) is None


def test_stamps_are_kept_for_the_newest_numbers() -> None:
    control = Control()
    for number in range(STAMPS_KEPT + 10):
        control.stamped(number, _stamp())
    assert control.stamp("ks", 9) is None
    assert control.stamp("ks", 10) is not None


def test_a_node_shows_its_rings_and_tells_of_changes() -> None:
    node, shelf, told = ServingNode("n"), Shelf(), []
    shelf.add(4)
    node.on_published(lambda: told.append(1))
    assert node.acquire("i", 0, 4) is None
    assert node.newest("i", 0) == -1
    assert node.tip("i", 0) is None
    assert not node.lease("i", 0, 4, "page", 10)
    node.show_slices([(("i", 0), shelf.ring)])
    reading = node.acquire("i", 0, 4)
    assert reading is not None
    reading.release()
    assert node.newest("i", 0) == 4
    assert node.lease("i", 0, 4, "page", 10)
    catalog, record = Catalog(), NodeRecord("other", "http://other.example:1", 0)
    catalog.apply(record_key(record), encode_record(record), 0)
    node.show_catalog(catalog)
    assert told == [1]
    assert node.node_url("other") == "http://other.example:1"
    assert node.node_url("n") is None


# --- chunks on disk -------------------------------------------------------------------------------------


def test_chunks_wait_on_disk_and_come_back_as_they_were(tmp_path: Path) -> None:
    spool = ChunkSpool(tmp_path / "chunks")
    entries = [(b"k", Version(0, 3, b"id", (b"k",)))]
    put = put_chunk(entries, build="b", index="i", slice_number=0, run="r", number=0, attempt="a", sequence=0)
    removal = removal_chunk(
        [entries[0][1]],
        build="b",
        index="i",
        slice_number=0,
        slices=1,
        run="r",
        number=0,
        attempt="a",
        sequence=1,
        partition=0,
    )
    first, second = ChunkKey(0, "r", "a", 0, False), ChunkKey(0, "r", "a", 1, True)
    spool.keep(first, put)
    spool.keep(second, removal)
    assert list(spool.puts([first])) == [put]
    assert list(spool.removals([second])) == [removal]
    assert spool.puts([first])[0] == put
    spool.forget([first])
    assert list(spool.removals([second])) == [removal]
    spool.forget([second])
    assert (tmp_path / "chunks").stat().st_size == 0
    spool.close()
    assert not (tmp_path / "chunks").exists()


def test_a_full_disk_is_retryable_and_keeps_nothing(tmp_path: Path) -> None:
    spool = ChunkSpool(tmp_path / "absent" / "chunks")
    chunk = put_chunk([], build="b", index="i", slice_number=0, run="r", number=0, attempt="a", sequence=0)
    with pytest.raises(RetryableError, match="cannot be written"):
        spool.keep(ChunkKey(0, "r", "a", 0, False), chunk)


def test_freshness_samples_the_last_record_of_each_segment() -> None:
    versions = [Version(0, offset, b"d", ()) for offset in range(3)]
    one, same, none = segment(0, 0, 3, versions), segment(0, 2, 3, versions[2:]), segment(0, 3, 3, [])
    assert newest_times([one, same, none]) == [versions[2].time, versions[2].time]


def test_a_ring_that_leaves_leases_only_what_is_leased() -> None:
    shelf = Shelf()
    shelf.add(1, 2)
    assert shelf.ring.lease(1, "a", 100)
    shelf.ring.leave(True)
    assert shelf.ring.lease(1, "a", 200)
    assert shelf.ring.lease(1, "b", 200), "who has a token that was given to another client"
    assert not shelf.ring.lease(2, "a", 200), "of another snapshot"
    assert shelf.ring.in_use(199) == 1
    assert shelf.ring.in_use(200) == 0
    shelf.ring.leave(False)  # it counts again
    assert shelf.ring.lease(2, "a", 200)


def test_what_is_being_read_is_in_use() -> None:
    shelf = Shelf()
    shelf.add(1, 2, UNNUMBERED)
    assert shelf.ring.in_use(0) == 0
    readers = [reader for reader in (shelf.ring.acquire(1), shelf.ring.tip()) if reader is not None]
    assert shelf.ring.in_use(0) == len(readers) == 2
    for reader in readers:
        reader.release()
    assert shelf.ring.in_use(0) == 0


def test_a_reader_may_be_given_back_wherever_the_ring_is_at_work() -> None:
    """Python ends an abandoned read wherever it collects it: also in the midst of the ring, in one thread."""

    class GivesBack(MemorySnapshot):
        def close(self) -> None:
            for reader in abandoned:
                reader.release()
            super().close()

    abandoned: list[SnapshotReader] = []
    ring, state = SnapshotRing(1), MemoryState(Applied())
    read = MemorySnapshot(state)
    ring.add(read, 1, 0)
    reader = ring.acquire(1)
    assert reader is not None
    ring.add(GivesBack(state), 2, 0)
    abandoned.append(reader)
    ring.publish(3, 0)  # (drops the first, which is read)
    assert list(read.rows()) == []
    done = threading.Thread(target=ring.add, args=(MemorySnapshot(state), 3, 0), daemon=True)
    done.start()
    done.join(10)
    assert not done.is_alive()
    with pytest.raises(RetryableError):
        list(read.rows())
