"""A build is verified by sums: from what its tasks project, over what they send and slices store, to the
verdict. With real tasks, stores, messages between driver and nodes; Kafka and HTTP are made here. Every fault
on the way is planted once."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from indexer.digests import answering as node_side
from indexer.hosting.node import ServingNode
from indexer.hosting.snapshots import SnapshotRing
from indexer.store.fold.worker import FoldWorker
from indexer.store.lmdb.store import LmdbSliceStore
from keytide.catalog import records as catalog_records
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import (
    ClusterRecord,
    IndexRecord,
    KeyspaceRecord,
    NodeRecord,
    encode_record,
    record_key,
)
from keytide.definition.index import IndexDefinition
from keytide.errors import RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.model.timestamp import Timestamp
from keytide.wire import digests
from keytide.wire.entry_sums import EQUAL, EntrySums
from keytide.wire.messages import BuildProgress, PutChunk, RemovalChunk
from streaming.backfill.batches import BuildPlan, run_through
from streaming.backfill.course import BuildCourse
from streaming.core import micro_batches as core
from streaming.core.comparing import UNKNOWN, CopySums, SliceCopy, verdict
from streaming.core.sizing import SizedBatch
from streaming.drivers.failures import StoppedError
from streaming.drivers.journal import Journal
from streaming.drivers.outage import Outage
from streaming.slices import built
from streaming.slices.built import FIRST_POLL_S, POLL_S, BuiltSlices
from streaming.slices.pins import PinLostError
from tests.posts import post_to
from tests.store_kit import lmdb_store
from tests.unit import test_streaming_stages as stages
from tests.unit.kept_journal import KeptJournal
from tests.unit.test_streaming_stages import BY_A, BY_TAG, Record, Sent, definition, micro_batch, work

BY_HASH = definition("CREATE INDEX by_hash ON s USING hash (a) INCLUDE (n) WITH (slices=3)")
BY_PLACE = definition("CREATE INDEX by_place ON s USING spatial (place) WITH (slices=2)")
INDEXES = {"by_a-1": BY_A, "by_tag-2": BY_TAG, "by_hash-3": BY_HASH, "by_place-4": BY_PLACE}
BUILD = "b8"
Chunk = PutChunk | RemovalChunk
Fault = Callable[[int, list[Chunk]], list[Chunk]]
"""What arrives in place of what was sent to a target."""

sent = stages.sent


def _as_sent(_: int, chunks: list[Chunk]) -> list[Chunk]:
    return chunks


class Building:
    """A build of some indexes on nodes, whose slices are real stores."""

    def __init__(self, folder: Path, indexes: dict[str, IndexDefinition], nodes: Sequence[str]) -> None:
        self.indexes = indexes
        self.targets = core.targets_of({name: range(one.slices) for name, one in indexes.items()})
        self.journal = Journal()
        self.catalog = Catalog()
        self.folds = FoldWorker()
        self.stores: dict[SliceCopy, LmdbSliceStore] = {}
        self.rings: dict[SliceCopy, SnapshotRing] = {}
        self.views = {name: ServingNode(name) for name in nodes}
        self.down: set[str] = set()
        self.older: set[str] = set()
        self.asked: list[str] = []
        records: list[catalog_records.Record] = [
            ClusterRecord("c", "5e" * 32, 0),
            KeyspaceRecord("s", "t", 3, 1),
        ]
        records += [NodeRecord(name, f"http://{name}", 0) for name in nodes]
        for name, one in indexes.items():
            records.append(IndexRecord(name, one, "BUILDING", 1, [list(nodes)] * one.slices, BUILD, 0))
        for record in records:
            self.catalog.apply(record_key(record), encode_record(record), self.catalog.offset)
        for number, node in itertools.product(range(len(self.targets)), nodes):
            copy = SliceCopy(number, node)
            self.stores[copy] = lmdb_store(folder / f"{number}-{node}", self.folds)
            self.rings[copy] = SnapshotRing(2)
        for name, view in self.views.items():
            view.show_catalog(self.catalog)
            rings = {self.targets[one.target]: ring for one, ring in self.rings.items() if one.node == name}
            view.show_slices([((index, number), ring) for (index, number), ring in rings.items()])

    def batch(
        self, records: list[Record], fault: Fault = _as_sent, spill_bytes: int = 1 << 30, times: int = 1
    ) -> None:
        """Run the next micro-batch, and have slices load what arrives of it.

        Args:
            times: so often its tasks run; the last counts.
        """
        number = self.journal.summed
        changes: dict[str, object] = {
            "batch": number,
            "heard": number > 0,
            "summed": True,
            "spill_bytes": spill_bytes,
        }
        for _ in range(times):
            Sent.messages = []
            outcome = micro_batch(work(self.indexes, **changes), records)
        assert outcome.foreign == b""
        for copy, store in self.stores.items():
            won = outcome.winners[copy.target]
            mine = [one for target, one in Sent.messages if target == copy.target]
            chunks = [one for one in mine if isinstance(one, PutChunk | RemovalChunk) and one.attempt in won]
            chunks = fault(copy.target, chunks)
            puts = [one for one in chunks if isinstance(one, PutChunk)]
            removals = [one for one in chunks if isinstance(one, RemovalChunk)]
            ends = Timestamp.of(dict.fromkeys(range(3), 10_000 * (number + 1)))
            applied = replace(store.applied, timestamp=ends, build=BUILD, batch=number, building=True)
            store.load(puts, removals, applied)
            self.rings[copy].show_built(store.snapshot())
        self.journal.add_sums(number, outcome.sums)
        self.journal.newest = SizedBatch(number, {}, {}, done=True)

    def slices(self, now: Callable[[], float] = itertools.count().__next__) -> BuiltSlices:
        def handle(request: httpx.Request) -> httpx.Response:
            node = request.url.host
            self.asked.append(node)
            if node in self.down:
                raise httpx.ConnectError("down")
            if node in self.older:
                return httpx.Response(422, json={"type": "invalid-request", "title": "no such message"})
            ask = digests.ask_decoder.decode(request.content)
            try:
                found = node_side.answer(self.views[node], ask, 1_000)
            except RetryableError as error:
                return httpx.Response(error.status, json=error.problem())
            return httpx.Response(200, content=digests.encode(found))

        nodes = BlockingNodeClient("", post_to(handle))
        return BuiltSlices(lambda: self.catalog, list(self.indexes), nodes, BUILD, now)

    def verdict(self, follow: Callable[[], None] = lambda: None, **others: Callable[[], float]) -> str:
        slices = self.slices(**others)
        projected = self.journal.projected(len(self.targets))
        if projected is None:
            return UNKNOWN
        try:
            held = slices.sums(self.targets, projected, self.journal.finished, follow)
        finally:
            slices.close()
        return verdict(self.targets, projected, held)

    def close(self) -> None:
        for copy, store in self.stores.items():
            self.rings[copy].close()
            store.close()
        self.folds.close()


@pytest.fixture
def building(tmp_path: Path, sent: None) -> Iterator[Callable[..., Building]]:
    made: list[Building] = []

    def begin(*names: str, nodes: Sequence[str] = ("n0",)) -> Building:
        indexes = {name: INDEXES[name] for name in names or INDEXES}
        made.append(Building(tmp_path / f"{len(made)}", indexes, nodes))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def documents(first: int, count: int, seed: int = 1) -> list[Record]:
    """New documents, each once; some that an index leaves out, or skips."""
    chance = random.Random(seed)
    records = []
    for number in range(first, first + count):
        tags = ",".join(str(chance.randrange(9)) for _ in range(chance.randrange(4)))
        place = f'{{"type":"Point","coordinates":[{chance.randrange(170)},{chance.randrange(80)}]}}'
        a = chance.choice([f"{number}", "2.5", '"x"', "null", '"%s"' % ("y" * 600)])
        value = b'{"a":%b,"n":%d,"tags":[%b],"place":%b}' % (
            a.encode(),
            number,
            tags.encode(),
            place.encode(),
        )
        if chance.random() < 0.1:
            value = b"{not json"
        records.append(Record(number % 3, number, 1_000, b"d%05d" % number, value))
    return records


# --- what is as it was projected --------------------------------------------------------------------------


@pytest.mark.parametrize("spill_bytes", [1, 1 << 30])
def test_a_build_of_documents_that_come_once_is_verified(
    building: Callable[..., Building], monkeypatch: pytest.MonkeyPatch, spill_bytes: int
) -> None:
    """Of every kind of index, whatever the cuts of tasks and of questions; tasks that ran twice count
    once."""
    monkeypatch.setattr(built, "ROWS_PER_CALL", 7)
    made = building()
    made.batch(documents(0, 270), spill_bytes=spill_bytes, times=2)
    assert made.verdict() == EQUAL
    assert sum(one.entries for one in made.journal.sums) > 600
    filled = {made.targets[number].index_id for number, one in enumerate(made.journal.sums) if one.entries}
    assert filled == set(INDEXES)


def test_updates_and_deletions_within_a_micro_batch_are_no_difference(
    building: Callable[..., Building],
) -> None:
    made = building("by_a-1")
    made.batch(stages.random_records(4, 400))
    assert made.verdict() == EQUAL


def _as_it_came(_: int, chunks: list[Chunk]) -> list[Chunk]:
    return chunks


def _nothing_removed(_: int, chunks: list[Chunk]) -> list[Chunk]:
    return [one for one in chunks if isinstance(one, PutChunk)]


@pytest.mark.parametrize("fault", [_as_it_came, _nothing_removed])
@pytest.mark.parametrize("later", [b'{"a":5}', None])
def test_what_a_later_micro_batch_may_have_had_removed_is_read_again(
    building: Callable[..., Building], later: bytes | None, fault: Callable[[int, list[Chunk]], list[Chunk]]
) -> None:
    """A slice that keeps what it was to remove stores just what was projected of it once."""
    made = building("by_a-1")
    made.batch(documents(0, 60))
    record = next(one for one in documents(0, 60) if one.value is not None and b'"a"' in one.value)
    made.batch([record._replace(offset=record.offset + 1_000, value=later)], fault=fault)
    assert made.verdict() == UNKNOWN


def test_what_a_later_part_of_a_share_replaces_is_read_again(building: Callable[..., Building]) -> None:
    made = building("by_a-1")
    made.batch(stages.random_records(4, 400), spill_bytes=1)
    assert made.verdict() == UNKNOWN


def test_an_empty_build_is_verified(building: Callable[..., Building]) -> None:
    made = building("by_a-1")
    made.batch([])
    assert made.verdict() == EQUAL


def test_every_copy_is_compared(building: Callable[..., Building]) -> None:
    made = building("by_a-1", nodes=("n0", "n1"))
    made.batch(documents(0, 90))
    assert made.verdict() == EQUAL
    assert set(made.asked) == {"n0", "n1"}


# --- planted faults ---------------------------------------------------------------------------------------


def _first_entry_left_out(_: int, chunks: list[Chunk]) -> list[Chunk]:
    """Chunks whose first holds one entry less."""
    at, chunk = next((at, one) for at, one in enumerate(chunks) if isinstance(one, PutChunk))
    lengths = chunk.id_lengths[0], int.from_bytes(chunk.key_lengths[:2], "little")
    values = chunk.value_lengths
    less = replace(
        chunk,
        count=chunk.count - 1,
        partitions=chunk.partitions[4:],
        offsets=chunk.offsets[8:],
        times=chunk.times[8:],
        id_lengths=chunk.id_lengths[1:],
        ids=chunk.ids[lengths[0] :],
        key_lengths=chunk.key_lengths[2:],
        keys=chunk.keys[lengths[1] :],
        value_lengths=values[4:],
        values=chunk.values[int.from_bytes(values[:4], "little") :],
    )
    return [*chunks[:at], less, *chunks[at + 1 :]]


def _changed(name: str, change: Callable[[bytes], bytes]) -> Fault:
    def fault(_: int, chunks: list[Chunk]) -> list[Chunk]:
        at, chunk = next(
            (at, one) for at, one in enumerate(chunks) if isinstance(one, PutChunk) and getattr(one, name)
        )
        return [*chunks[:at], replace(chunk, **{name: change(getattr(chunk, name))}), *chunks[at + 1 :]]

    return fault


def _last_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _first_byte(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def _once_more_under_another_id(_: int, chunks: list[Chunk]) -> list[Chunk]:
    """(The same entry once more is no fault: a slice stores it once.)"""
    puts = [one for one in chunks if isinstance(one, PutChunk)]
    return [*chunks, replace(puts[0], ids=_last_byte(puts[0].ids), offsets=_first_byte(puts[0].offsets))]


FAULTS: dict[str, Fault] = {
    "an entry is lost": _first_entry_left_out,
    "a chunk is lost": lambda _, chunks: chunks[:-1],
    "an entry too many": _once_more_under_another_id,
    "a value is another": _changed("values", _last_byte),
    "a key is another": _changed("keys", _last_byte),
    "a document id is another": _changed("ids", _last_byte),
    "a version is another": _changed("offsets", _first_byte),
    "a source partition is another": _changed("partitions", _first_byte),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_happens_between_projection_and_store_is_seen(
    building: Callable[..., Building], name: str
) -> None:
    made = building("by_tag-2", nodes=("n0", "n1"))
    struck = 1

    def fault(target: int, chunks: list[Chunk]) -> list[Chunk]:
        return FAULTS[name](target, chunks) if target == struck else chunks

    made.batch(documents(0, 90), fault)
    found = made.verdict()
    assert found.startswith("slice 1 of by_tag-2 on node n0 stores "), found
    assert "slice 1 of by_tag-2 on node n1" in found
    assert "slice 0" not in found
    assert "slice 2" not in found


def test_entries_in_another_slice_are_seen(building: Callable[..., Building]) -> None:
    made = building("by_a-1")
    kept: list[Chunk] = []

    def fault(target: int, chunks: list[Chunk]) -> list[Chunk]:
        if target == 0:
            kept.extend(chunks)
            return []
        return [*chunks, *kept] if target == 1 else chunks

    made.batch(documents(0, 90), fault)
    found = made.verdict()
    assert "slice 0 of by_a-1" in found
    assert "slice 1 of by_a-1" in found
    assert "slice 2" not in found


def test_a_store_that_lost_a_row_of_either_tree_is_seen(building: Callable[..., Building]) -> None:
    """Sums are over what can be read of the store, not over what it was handed."""
    for tree in ("forward", "back"):
        made = building("by_a-1")
        made.batch(documents(0, 90))
        store = made.stores[SliceCopy(0, "n0")]
        level = store._base.level
        with level.environment.begin(write=True) as transaction:
            table = getattr(level.tables, tree)
            with transaction.cursor(table) as cursor:
                assert cursor.first()
                cursor.delete()
        level.changed()
        made.rings[SliceCopy(0, "n0")].show_built(store.snapshot())
        told = {"forward": "3 entries, and 4 were", "back": "other entries than were"}[tree]
        assert made.verdict() == f"slice 0 of by_a-1 on node n0 stores {told} projected"


def test_one_damaged_copy_of_two_is_seen(building: Callable[..., Building]) -> None:
    made = building("by_a-1", nodes=("n0", "n1"))
    calls = itertools.count()

    def fault(target: int, chunks: list[Chunk]) -> list[Chunk]:
        return _first_entry_left_out(target, chunks) if target == 0 and next(calls) == 0 else chunks

    made.batch(documents(0, 90), fault)
    found = made.verdict()
    assert "slice 0 of by_a-1 on node n0" in found
    assert "n1" not in found


# --- what is not known ------------------------------------------------------------------------------------


def test_slices_are_waited_for_until_they_have_loaded_all(building: Callable[..., Building]) -> None:
    made = building("by_a-1")
    made.batch(documents(0, 90))
    copy = SliceCopy(2, "n0")
    made.rings[copy].show_built(None)

    def follow() -> None:
        if len(made.asked) > 12:
            made.rings[copy].show_built(made.stores[copy].snapshot())

    assert made.verdict(follow) == EQUAL
    assert len(made.asked) > 12


def test_one_that_comes_further_is_waited_for_however_long(building: Callable[..., Building]) -> None:
    made = building("by_a-1")
    for number in range(6):
        made.batch(documents(1_000 * number, 20, number))
    copy, loaded = SliceCopy(2, "n0"), itertools.count()

    def follow() -> None:
        shown = made.stores[copy].snapshot()
        shown.applied = replace(shown.applied, batch=min(next(loaded), 5))
        made.rings[copy].show_built(shown)

    seconds = itertools.count(step=60)
    projected = made.journal.sums
    with closing(made.slices(now=seconds.__next__)) as slices:
        held = slices.sums(made.targets, projected, 5, follow)
    assert verdict(made.targets, projected, held) == EQUAL
    assert next(seconds) > 2 * built.LOAD_LIMIT_S


@pytest.mark.parametrize("how", ["away", "of a release before", "stands still"])
def test_what_cannot_be_compared_is_not_verified(building: Callable[..., Building], how: str) -> None:
    made = building("by_a-1", nodes=("n0", "n1"))
    made.batch(documents(0, 90))
    if how == "away":
        made.down.add("n1")
    elif how == "of a release before":
        made.older.add("n1")
    else:
        made.rings[SliceCopy(3, "n1")].show_built(None)
    step = 0 if how == "of a release before" else 10  # (it will never say more, and is not waited for)
    found = made.verdict(now=itertools.count(step=step).__next__)
    assert "was not compared" in found
    assert "n0" not in found


def test_another_build_or_micro_batch_says_nothing(building: Callable[..., Building]) -> None:
    made = building("by_a-1")
    made.batch(documents(0, 90))
    ring = made.rings[SliceCopy(0, "n0")]
    assert ring.built("b9") is None
    held = ring.built(BUILD)
    assert held is not None
    assert held.number == 0
    ring.show_built(None)
    assert sum(map(len, held.rows(b"", None))) > 0  # whoever reads it ends first
    held.release()
    assert ring.built(BUILD) is None
    assert ring.tip() is None  # and no scan ever sees it


def test_it_ends_with_the_build(building: Callable[..., Building]) -> None:
    made = building("by_a-1")
    made.batch(documents(0, 90))

    def follow() -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        made.verdict(follow)


def test_a_verdict_names_some_and_counts_the_others() -> None:
    targets = [core.SliceTarget("i", number) for number in range(6)]
    projected = [EntrySums(number, number, number) for number in range(6)]
    held = [CopySums(SliceCopy(number, "n"), EntrySums(9), "") for number in range(5)]
    found = verdict(targets, projected, held)
    assert found.startswith("slice 0 of i on node n stores 9 entries, and 0 were projected; slice 1 ")
    assert found.endswith("; and 3 more")
    assert verdict(targets, projected, []) == "6 slices have no copy"
    equal = [CopySums(SliceCopy(number, "n"), one) for number, one in enumerate(projected)]
    assert verdict(targets, projected, equal) == EQUAL
    assert verdict(targets, projected, equal[1:]) == "1 slices have no copy"


# --- the driver -------------------------------------------------------------------------------------------


class Shell:
    """The process of a driver that has read everything."""

    def __init__(self, held: Callable[[Sequence[EntrySums]], list[CopySums]]) -> None:
        self._held = held
        self.asked: list[int] = []
        self.told: list[BuildProgress] = []
        self.status = KeptJournal().status()

    async def held_sums(self, projected: Sequence[EntrySums], batch: int) -> list[CopySums]:
        self.asked.append(batch)
        self.told.append(self.status.report(BUILD, "r", 0))
        return self._held(projected)

    async def send_ends(self, *_: object) -> None:
        """Slices hear of an empty micro-batch."""

    def tell(self) -> None:
        self.told.append(self.status.report(BUILD, "r", 0))


def passed(shell: Any, batches: int, *, summed: bool = True) -> BuildProgress:
    """What a driver says last, that has done so many micro-batches of one entry."""
    status = shell.status
    for number in range(batches):
        piece = SizedBatch(number, {0: number}, {0: number + 1})
        status.settle_batch(Timestamp.of(piece.end), piece)
        sums = [EntrySums(1, number, number)] if summed else None
        outcome = core.SettledBatch([{}], [1], 1, b"", {}, {}, sums)
        status.finish_batch(number, Timestamp.of(piece.end), [core.SliceTarget("i", 0)], outcome)
    plan = BuildPlan(BUILD, "r", "s", "t", (), {"i": [0]}, summed)
    course = BuildCourse(plan, 1, status, shell, shell, Outage(1.0))
    run_through(course._pass())
    last: BuildProgress = shell.told[-1]
    assert last.state == "PASSED"
    return last


def test_a_driver_says_what_sums_show_with_its_last_word() -> None:
    equal = Shell(lambda projected: [CopySums(SliceCopy(0, "n0"), projected[0])])
    assert passed(equal, 1).compared == EQUAL
    assert equal.asked == [0]
    assert [(one.phase, one.compared) for one in equal.told[:1]] == [("verifying", "")]
    other = Shell(lambda _: [CopySums(SliceCopy(0, "n0"), EntrySums(1, 0, 4))])
    assert passed(other, 1).compared == "slice 0 of i on node n0 stores other entries than were projected"
    nothing = Shell(lambda projected: [CopySums(SliceCopy(0, "n0"), projected[0])])
    assert passed(nothing, 0).compared == EQUAL
    assert nothing.asked == [0]
    several = Shell(lambda projected: [CopySums(SliceCopy(0, "n0"), projected[0])])
    assert passed(several, 2).compared == UNKNOWN
    assert several.asked == []


def test_what_an_earlier_driver_did_without_sums_is_not_compared() -> None:
    shell = Shell(lambda projected: [CopySums(SliceCopy(0, "n0"), projected[0])])
    shell.status.journal.summed = 5  # (as if others were left out before)
    assert passed(shell, 2).compared == UNKNOWN
    assert shell.asked == []


def test_a_build_that_is_not_verified_by_sums_compares_nothing() -> None:
    shell = Shell(lambda _: [])
    assert passed(shell, 2, summed=False).compared == ""
    assert shell.asked == []


def test_a_copy_that_has_not_loaded_yet_is_asked_again_soon_and_then_less_often(
    building: Callable[..., Building], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = building("by_a-1")
    build.batch(documents(0, 20))
    slices = build.slices()
    ask, refused = slices.read, Counter[int]()
    waits: list[float] = []

    def late(node: str, question: Any, kind: Any) -> Any:
        refused[question.slice] += 1
        if refused[question.slice] <= 6:
            raise PinLostError("it has loaded nothing yet")
        return ask(node, question, kind)

    class Ending(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return super().wait(timeout)

    monkeypatch.setattr(slices, "read", late)
    monkeypatch.setattr(slices, "_ending", Ending())
    projected = build.journal.projected(len(build.targets))
    assert projected is not None
    held = slices.sums(build.targets, projected, build.journal.finished, lambda: None)
    slices.close()
    assert verdict(build.targets, projected, held) == EQUAL
    assert waits[0] <= FIRST_POLL_S
    assert max(waits) <= POLL_S
