"""Slices that are read as one: the same answers as slice by slice, of the history that holds, from snapshots
that a ring may let go of at any time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from indexer.hosting.node import ServingNode
from indexer.hosting.snapshots import SnapshotRing
from indexer.scan.gather.gather import Gathered, gather
from indexer.scan.gather.scatter import Target
from indexer.scan.local import cursor as local_cursor
from indexer.scan.local import joint
from indexer.scan.local.effort import ReadBudget
from indexer.scan.local.joint import JointReads
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.health import PeerHealth
from indexer.scan.peer.messages import (
    JointPage,
    JointRead,
    ReadConsistency,
    ReadPaging,
    ReadRequest,
    ReadShape,
    ReadSpan,
)
from indexer.scan.plan.leases import LeaseRegistry
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, Row, StoreDamagedError
from indexer.store.joint import LOOKED_AT_BYTES
from indexer.store.lmdb.level_cursor import LmdbLevelCursor
from indexer.store.lmdb.levels import View
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.view import SliceTrouble
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import (
    BuildRecord,
    IndexRecord,
    KeyspaceRecord,
    Record,
    RollbackRecord,
    encode_record,
    record_key,
)
from keytide.collation import Span
from keytide.model.timestamp import Timestamp
from tests.store_kit import Version, key, lmdb_store, segments
from tests.unit.scan_world import definition_of

INDEX, SLICES = "i-1", (0, 1, 2)
KEPT = 2


@dataclass
class Node:
    """A node with three slices of a real store; slice `n` holds every third key."""

    view: ServingNode
    catalog: Catalog
    rings: dict[int, SnapshotRing]
    stores: dict[int, LmdbSliceStore]
    now: int = 0
    number: int = 0

    def record(self, *records: Record) -> None:
        for one in records:
            self.catalog.apply(record_key(one), encode_record(one), self.catalog.offset + 1)
        self.view.show_catalog(self.catalog.copy())

    def commit(self, *keys: int, timestamps: tuple[int, ...] = ()) -> int:
        """All slices commit the next number, in which these keys are new."""
        self.number += 1
        for number, store in self.stores.items():
            versions = [
                Version(b"d%04d" % one, 0, self.number * 10_000 + one, entries=((key(f"{one:04}"), b""),))
                for one in sorted(keys)
                if one % len(SLICES) == number
            ]
            offset = timestamps[number] if timestamps else self.number * 10_000 + 9_999
            applied = Applied(Timestamp.of({0: offset}), self.number, queue_position=self.number)
            store.apply(segments(versions), applied)
            self.rings[number].add(store.snapshot(), self.number, self.now)
            self.rings[number].publish(self.number, self.now)
        return self.number


@pytest.fixture
def node(tmp_path: Path, folds: FoldWorker) -> Iterator[Node]:
    stores = {number: lmdb_store(tmp_path / str(number), folds) for number in SLICES}
    rings = {number: SnapshotRing(KEPT) for number in SLICES}
    view = ServingNode("n0")
    view.show_slices(((INDEX, number), ring) for number, ring in rings.items())
    made = Node(view, Catalog(), rings, stores)
    definition = definition_of("CREATE INDEX i ON users (k) WITH (slices=3)")
    made.record(
        KeyspaceRecord("users", "t", 1, 1),
        IndexRecord(INDEX, definition, "READY", 1, [["n0"]] * 3, "b1", 0),
    )
    yield made
    for ring in rings.values():
        ring.close()
    for store in stores.values():
        store.close()


def reads_of(node: Node) -> JointReads:
    return JointReads(node.view, LeaseRegistry(node.view, 10), lambda: node.now)


def asked(number: int, **others: object) -> JointRead:
    plain = JointRead(INDEX, SLICES, False, number, 0, [(b"", None)], b"", False, 10, 0, False, "")
    return msgspec.structs.replace(plain, **others)


def keys_of(page: JointPage | None) -> list[int]:
    assert page is not None, "it was not read as one"
    return [int(entry_key[-4:]) for entry_key, _ in page.entries]


def rolled_back(to: int) -> tuple[Record, Record]:
    """What the dictionary says of a rollback to the first number."""
    rollback = RollbackRecord("users", 1, to, Timestamp.of({0: 19_999}), "t", "truncated", 0, {})
    return rollback, KeyspaceRecord("users", "t", 1, 1, 1)


def test_slices_are_read_as_one(node: Node) -> None:
    number = node.commit(*range(100))
    reads = reads_of(node)
    page = reads.first(asked(number))
    assert keys_of(page) == list(range(10))
    assert page is not None
    assert sorted(page.replies) == list(SLICES)
    assert {one.number for one in page.replies.values()} == {number}
    assert [one.timestamp for one in page.replies.values()] == [Timestamp.of({0: 19_999})] * 3
    assert sum(page.read.values()) >= 10
    assert not page.leased
    assert keys_of(reads.first(asked(number, reverse=True, count=3))) == [99, 98, 97]
    assert keys_of(reads.first(asked(number, slices=(1,), count=3))) == [1, 4, 7]
    assert keys_of(reads.first(asked(number, spans=[(key("0097"), None)]))) == [97, 98, 99]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [2, 4, 50])
@pytest.mark.parametrize("few", [joint.FEW_SPANS, 0])
def test_spans_are_read_as_one_as_they_are_one_by_one(
    node: Node, reverse: bool, limit: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page by page: what several keys and stretches have, which lies in several slices."""
    monkeypatch.setattr(joint, "FEW_SPANS", few)
    number = node.commit(*range(0, 100, 2))
    node.commit(*range(1, 100, 10))
    here = LocalReader(node.view, 10, now=lambda: node.now)
    bounds = [(3, 4), (11, 12), (20, 31), (98, 200)]
    spans = [Span(key(f"{low:04}"), key(f"{high:04}")) for low, high in bounds]
    target = Target(INDEX, number, 0, spans, dict.fromkeys(SLICES, "n0"), 1.0, until=1e9)
    whole = []
    for first_here in (here.first, lambda asked: None):
        nodes = mock.Mock(here="n0", health=PeerHealth(), first_here=first_here)
        nodes.read_here = mock.AsyncMock(side_effect=here.read)
        after, pages = b"", list[Gathered]()
        while not pages or pages[-1].more:
            pages.append(asyncio.run(gather(target, nodes, after, reverse, limit)))
            after = pages[-1].reached
        assert (nodes.read_here.call_count == 0) == (first_here == here.first)
        whole.append([(page.entries, page.more) for page in pages])
    assert whole[0] == whole[1]
    wanted = [one for low, high in bounds for one in range(low, min(high, 100)) if one % 2 == 0]
    assert [int(one[-4:]) for page, _ in whole[0] for one, _ in page] == sorted(wanted, reverse=reverse)
    here.close()


def test_of_spans_nothing_is_read_as_one_if_not_all_of_it_is_wanted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where digests of a hash index collide."""
    monkeypatch.setattr(joint, "key_test", lambda _, keys: lambda entry_key, value: entry_key[:-5] in keys)
    number = node.commit(*range(100))
    reads = reads_of(node)
    names = [key(f"{one:04}") for one in range(5, 15)]
    spans, wanted = [(one, one + b"\xff") for one in names], frozenset(names)
    assert keys_of(reads.first(asked(number, spans=spans, keys=wanted))) == [*range(5, 15)]
    assert reads.first(asked(number, spans=spans, keys=wanted - {key("0007")})) is None
    few = spans[: joint.FEW_SPANS]
    assert reads.first(asked(number, spans=few, keys=wanted)) is None, "slices read no more than a key has"


def test_few_keys_are_left_to_slices_on_later_pages_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts are the spans that are left, not those of the first page."""
    monkeypatch.setattr(joint, "key_test", lambda _, keys: lambda entry_key, value: entry_key[:-5] in keys)
    number = node.commit(*range(100))
    reads = reads_of(node)
    names = [key(f"{one:04}") for one in range(5, 15)]
    pages = {"spans": [(one, one + b"\xff") for one in names], "keys": frozenset(names)}
    for left in range(joint.FEW_SPANS + 3):
        page = reads.first(asked(number, **pages, after=names[-left - 1] + b"\xff"))
        assert (page is not None) == (left > joint.FEW_SPANS), left


@pytest.mark.parametrize("in_order", [False, True])
def test_of_spans_and_of_slices_in_order_no_more_is_read_than_of_one(node: Node, in_order: bool) -> None:
    """What one has given is no room for the next, also if that is the last that is wanted."""
    large, number = b"x" * 100_000, 1
    for slice_number, store in node.stores.items():
        versions = [
            Version(b"d%04d" % one, 0, one, entries=((key(f"{one:04}"), large),))
            for one in range(60 * slice_number, 60 * slice_number + 60)
        ]
        store.apply(segments(versions), Applied(Timestamp.of({0: 999}), number, queue_position=number))
        node.rings[slice_number].add(store.snapshot(), number, node.now)
        node.rings[slice_number].publish(number, node.now)
    each = [(key(f"{at:04}"), key(f"{at + 60:04}")) for at in (0, 60, 120)]
    spans = [(b"", None)] if in_order else each
    fits = reads_of(node).first(asked(number, spans=spans, in_order=in_order, count=80))
    assert keys_of(fits) == list(range(80))
    assert reads_of(node).first(asked(number, spans=spans, in_order=in_order, count=100)) is None


def test_spans_with_large_rows_are_left_to_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of them is copied than may be: a page may want one of a thousand."""
    large, number = b"x" * 100_000, 1
    for slice_number, store in node.stores.items():
        versions = [
            Version(b"d%04d" % one, 0, one, entries=((key(f"{one:04}"), large),))
            for one in range(slice_number, 300, 3)
        ]
        store.apply(segments(versions), Applied(Timestamp.of({0: 999}), number, queue_position=number))
        node.rings[slice_number].add(store.snapshot(), number, node.now)
        node.rings[slice_number].publish(number, node.now)
    spans = [(key(f"{one:04}"), key(f"{one + 10:04}")) for one in range(0, 300, 10)]
    looked_at: list[int] = []
    within = LmdbLevelCursor.within

    def counted(self: LmdbLevelCursor, *given: Any) -> Any:
        found = within(self, *given)
        looked_at.append(len(found[0]))
        return found

    monkeypatch.setattr(LmdbLevelCursor, "within", counted)
    assert reads_of(node).first(asked(number, spans=spans[:8])) is not None
    looked_at.clear()
    assert reads_of(node).first(asked(number, spans=spans)) is None
    assert sum(looked_at) * 100_000 < 1.2 * LOOKED_AT_BYTES


def test_many_spans_in_many_slices_are_left_to_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than others can be kept waiting for."""
    number = node.commit(*range(100))
    spans = [(key(f"{one:04}"), key(f"{one + 1:04}")) for one in range(0, 20, 2)]
    monkeypatch.setattr(joint, "MOST_SEEKS", 30)
    assert keys_of(reads_of(node).first(asked(number, spans=spans))) == list(range(0, 20, 2))
    monkeypatch.setattr(joint, "MOST_SEEKS", 29)
    assert reads_of(node).first(asked(number, spans=spans)) is None


@pytest.mark.parametrize("after", [b"", key("0050")])
def test_of_no_slice_nothing_is_read_as_one(node: Node, after: bytes) -> None:
    """As where the slices that a request names have none of its keys."""
    number = node.commit(*range(100))
    spans = [(key("0005"), key("0006")), (key("0007"), None)]
    assert reads_of(node).first(asked(number, slices=(), spans=spans, after=after)) is None


def test_a_snapshot_is_looked_up_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    number, looked_up = node.commit(*range(100)), 0
    joint_of = node.view.joint

    def counted(*names: object) -> object:
        nonlocal looked_up
        looked_up += 1
        return joint_of(*names)  # type: ignore[arg-type]

    monkeypatch.setattr(node.view, "joint", counted)
    reads = reads_of(node)
    for _ in range(5):
        assert keys_of(reads.first(asked(number))) == list(range(10))
    assert looked_up == 1
    following = node.commit(500)
    assert keys_of(reads.first(asked(following, spans=[(key("0098"), None)]))) == [98, 99, 500]
    assert keys_of(reads.first(asked(number, spans=[(key("0098"), None)]))) == [98, 99]
    assert looked_up == 2
    monkeypatch.setattr(joint, "REMEMBERED", 1)
    assert reads.first(asked(following, slices=(0,))) is not None
    assert len(reads._known) == 1


def test_nothing_is_held_between_two_reads(node: Node) -> None:
    number = node.commit(*range(30))
    reads = reads_of(node)
    assert reads.first(asked(number)) is not None
    assert all(ring.in_use(node.now) == 0 for ring in node.rings.values())
    for _ in range(KEPT + 1):
        node.commit()
    assert all(number not in ring.numbers() for ring in node.rings.values())
    assert reads.first(asked(number)) is None, "the rings have let go of it"
    assert not [known for known in reads._known if known[2] == number]
    node.rings[1].close()
    node.stores[1].close()  # (would refuse if what was read once were still open)
    assert reads.first(asked(node.number)) is None


def test_what_was_rolled_back_is_not_read(node: Node) -> None:
    to, number = node.commit(*range(30)), node.commit(50)
    reads = reads_of(node)
    assert reads.first(asked(number)) is not None
    node.record(*rolled_back(to))
    assert reads.first(asked(number)) is None, "the dictionary says so, though the slices hold it still"
    assert keys_of(reads.first(asked(to))) == list(range(10))
    for ring in node.rings.values():
        ring.roll_back(History.of(node.catalog, "users"))
    assert reads.first(asked(number)) is None
    assert keys_of(reads.first(asked(to))) == list(range(10))
    assert reads.first(asked(to, incarnation=1)) is None


def test_slices_step_back_before_the_dictionary_is_read(node: Node) -> None:
    to, number = node.commit(*range(30)), node.commit(50)
    reads = reads_of(node)
    assert reads.first(asked(number)) is not None
    ahead = node.catalog.copy()
    for record in rolled_back(to):
        ahead.apply(record_key(record), encode_record(record), 99)
    node.rings[2].roll_back(History.of(ahead, "users"))
    assert reads.first(asked(number)) is None


def test_damage_ends_it(node: Node) -> None:
    number = node.commit(*range(30))
    reads = reads_of(node)
    assert reads.first(asked(number)) is not None
    node.rings[0].report_damage("a page is torn")
    assert reads.first(asked(number)) is None
    assert reads.first(asked(number, slices=(1, 2))) is not None


def test_slices_that_differ_or_are_rebuilt_are_read_one_by_one(node: Node) -> None:
    number = node.commit(*range(30), timestamps=(20_000, 20_000, 20_001))
    reads = reads_of(node)
    assert reads.first(asked(number)) is None
    number = node.commit(1)
    assert reads.first(asked(number)) is not None
    record = node.catalog.index(INDEX)
    assert record is not None
    build = BuildRecord("b2", "users", [INDEX], "QUEUED", Timestamp(), 1)
    node.record(build, msgspec.structs.replace(record, slice_builds={1: "b2"}))
    assert reads.first(asked(number)) is None
    assert reads.first(asked(number, slices=(0, 2))) is not None
    node.record(msgspec.structs.replace(build, state="READY"))
    assert reads.first(asked(number)) is not None
    assert reads.first(asked(number, index="i-2")) is None
    assert reads.first(asked(number, slices=(0, 7))) is None


def test_slices_in_the_order_of_their_entries_are_read_as_far_as_needed(node: Node) -> None:
    number = node.commit(0, 3, 6, 9, 10, 13, 16, 19, 20, 23, 26, 29)
    page = reads_of(node).first(asked(number, in_order=True, count=6))
    assert page is not None
    assert keys_of(page) == [0, 3, 6, 9, 10, 13]
    assert sorted(page.replies) == [0, 1]


def test_no_slices_have_no_entries(node: Node) -> None:
    page = reads_of(node).first(asked(node.commit(*range(30)), slices=()))
    assert page is None or not page.entries


def test_slices_out_of_their_order_are_left_to_others(node: Node) -> None:
    """No entry of a slice lies behind those of the next one, where their order is that of their entries."""
    number = node.commit(*range(30))
    reads = reads_of(node)
    assert reads.first(asked(number, in_order=True, count=8)) is not None
    assert reads.first(asked(number, in_order=True, count=12)) is None
    assert reads.first(asked(number, in_order=True, slices=(2, 1), reverse=True, count=12)) is None


def test_many_slices_in_order_of_rows_that_were_removed_are_left_to_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is bounded; so are all."""
    reads, looked_at = reads_of(node), []

    def nothing(_: JointRead, slices: tuple[int, ...], __: int) -> object:
        looked_at.append(slices)
        return [], {slices[0]: 1_000}, {}

    monkeypatch.setattr(reads, "_read", nothing)
    assert reads.first(asked(1, in_order=True, slices=tuple(range(64)))) is None
    assert len(looked_at) * 1_000 <= joint.IN_VAIN + 1_000


def test_it_tells_how_far_slices_are(node: Node) -> None:
    number = node.commit(*range(30))
    reads = reads_of(node)
    assert reads.first(asked(number)) is not None
    further = node.commit(31)
    page = reads.first(asked(number))
    assert page is not None
    assert {one.newest for one in page.replies.values()} == {further}


def test_a_copy_that_has_caught_up_is_known_to_have(node: Node) -> None:
    """As it is where slices are read one by one: else it is done without for longer and longer."""
    number = node.commit(*range(30))
    reads, health = reads_of(node), PeerHealth()
    nodes = mock.Mock(here="n0", health=health, first_here=reads.first)
    others = {0: ["n1"], 2: ["n1"]}
    here = dict.fromkeys(SLICES, "n0")
    target = Target(INDEX, number, 0, [Span(b"", None)], here, 1.0, until=1.0, others=others)
    health.lacks("n0", (INDEX, 0), number, 1.0)
    health.lacks("n0", (INDEX, 2), number + 1, 1.0)
    found = asyncio.run(gather(target, nodes, b"", False, 5))
    assert found.more
    assert health.behind((INDEX, 0), 1.0) == set()
    assert health.behind((INDEX, 2), 1.0) == {"n0"}


def test_less_is_read_where_rows_were_in_one_slice_the_last_time(node: Node) -> None:
    """And as ever where they are not, whatever was thought of them."""
    number = node.commit(*range(0, 3_000, 3), *range(3_000, 4_000))
    reads, alone = reads_of(node), list(range(0, 300, 3))
    spread = {"spans": [(key("3000"), None)], "count": 100}
    looked = list[int]()
    for _ in range(2):
        page = reads.first(asked(number, count=100))
        assert keys_of(page) == alone
        assert page is not None
        looked.append(sum(page.read.values()))
    assert looked[1] == 100 + 2 * 4 < looked[0]
    for _ in range(2):
        assert keys_of(reads.first(asked(number, **spread))) == list(range(3_000, 3_100))
        assert keys_of(reads.first(asked(number, count=100))) == alone


def test_a_read_is_counted_once(node: Node) -> None:
    number = node.commit(*range(30))
    reads = reads_of(node)
    for read in (1, 2):
        assert reads.first(asked(number)) is not None
        assert [ring.reads for ring in node.rings.values()] == [read] * 3


def test_damage_that_it_alone_meets_takes_the_slice_out_of_service(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = node.commit(*range(30))
    reads = reads_of(node)
    assert reads.first(asked(number)) is not None
    begin, folder = LmdbLevelCursor.begin, tmp_path / "1"

    def torn(cursor: LmdbLevelCursor, *span: Any) -> list[Row]:
        if cursor._folder.is_relative_to(folder):
            raise StoreDamagedError("a page is torn")
        return begin(cursor, *span)

    monkeypatch.setattr(LmdbLevelCursor, "begin", torn)
    assert reads.first(asked(number)) is None
    assert [ring.damage for ring in node.rings.values()] == ["", "a page is torn", ""]
    assert node.view.trouble(INDEX, 1) == SliceTrouble("LOST", "a page is torn")
    assert node.view.trouble(INDEX, 0) is None


def test_of_a_snapshot_that_was_let_go_of_little_is_left(node: Node, tmp_path: Path) -> None:
    """What is remembered of it keeps no level in memory, with its filter."""
    reads = reads_of(node)
    assert reads.first(asked(node.commit(*range(30)))) is not None
    for ring in node.rings.values():
        ring.close()
    for store in node.stores.values():
        store.close()
    gc.collect()
    assert reads._known
    kept = [one for one in gc.get_objects() if isinstance(one, View)]
    assert not [one for one in kept if one.folder.is_relative_to(tmp_path)]


@pytest.mark.parametrize("held", [True, False])
def test_a_page_that_others_may_follow_keeps_its_snapshot(node: Node, held: bool) -> None:
    number = node.commit(*range(30))
    reads = reads_of(node)
    page = reads.first(asked(number, lease_ms=1_000, count=10 if held else 31))
    assert page is not None
    assert page.leased is held
    for _ in range(KEPT + 1):
        node.commit()
    assert (reads.first(asked(number)) is not None) is held


def test_both_ways_say_the_same_of_what_a_slice_is_at(node: Node) -> None:
    """The reply of a slice is what reading it alone tells, but for its entries."""
    number = node.commit(*range(30))
    reader = LocalReader(node.view, 10)
    try:
        request = ReadRequest(
            ReadSpan(INDEX, list(SLICES), [(b"", None)], [b""] * 3, False),
            ReadPaging(10),
            ReadConsistency(number, 0),
            ReadShape(),
        )
        alone = {one.slice: one for one in asyncio.run(reader.read(request)).slices}
        page = reader.first(asked(number))
        assert page is not None
        for slice_number, reply in page.replies.items():
            assert msgspec.structs.replace(alone[slice_number], entries=[]) == reply
        merged = sorted(entry for one in alone.values() for entry in one.entries)[:10]
        assert page.entries == merged
    finally:
        reader.close()


def test_a_page_behind_very_many_removed_rows_is_read_in_a_thread(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the thread looks at the clock on its way."""
    node.commit(*range(9_000))
    for store in node.stores.values():
        assert store.start_fold()
        store.finish_fold(60)
    node.number += 1
    for slice_number, store in node.stores.items():
        gone = [one for one in range(8_900) if one % len(SLICES) == slice_number]
        versions = [Version(b"d%04d" % one, 0, 20_000 + one) for one in gone]
        applied = Applied(Timestamp.of({0: 39_999}), node.number, queue_position=node.number)
        store.apply(segments(versions), applied)
        node.rings[slice_number].add(store.snapshot(), node.number, node.now)
        node.rings[slice_number].publish(node.number, node.now)
    monkeypatch.setattr(local_cursor, "INLINE_BLOCKS", 2)
    reader, turns, looks = LocalReader(node.view, 10), 0, 0
    begun, look = reader.threads.turn, ReadBudget.look

    def turn(*arguments: Any, **options: Any) -> Any:
        nonlocal turns
        turns += 1
        return begun(*arguments, **options)

    def looked(self: ReadBudget) -> None:
        nonlocal looks
        looks += 1
        look(self)

    monkeypatch.setattr(reader.threads, "turn", turn)
    monkeypatch.setattr(ReadBudget, "look", looked)
    try:
        request = ReadRequest(
            ReadSpan(INDEX, list(SLICES), [(b"", None)], [b""] * 3, False),
            ReadPaging(10),
            ReadConsistency(node.number, 0),
            ReadShape(),
        )
        replies = asyncio.run(reader.read(request)).slices
        found = [int(entry_key[-4:]) for one in replies for entry_key, _ in one.entries]
        assert sorted(found) == list(range(8_900, 8_930))
        assert turns == 1
        assert looks > 2
    finally:
        reader.close()
