"""A repair's rounds on real slices (in memory), with a source that goes on between any two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from indexer.hosting.core.slice_status import running
from indexer.slice.core import SliceCore
from indexer.slice.events import Apply, Correct, Decide, Done, Event, MutationData, Stamped
from indexer.slice.limits import SliceLimits
from indexer.store.interface import Applied, StoredDocument
from indexer.store.resolve.corrections import Moments, correct
from indexer.store.resolve.resolve import step
from keytide.catalog.records import IndexRecord
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import RepairSettings
from keytide.wire.corrections import Correction
from keytide.wire.messages import Corrections, RepairEnd, RepairWatch, SliceStatus, StabilityTimestamp, encode
from streaming.repair import corrections as composing
from streaming.repair.corrections import batches, count_actions, planned, wanted
from streaming.repair.repair import NotRepairedError, Repair, Repaired, summary
from streaming.repair.slices import SliceStatuses
from streaming.slices.pins import Pin
from streaming.verify.core.comparing import NOTHING, Evidence, SourceDocument, judge
from streaming.verify.core.difference import Difference, DifferenceClass, IndexedDocument, SliceEntry
from streaming.verify.core.difference import VersionPlace as Place
from streaming.verify.documents import IndexOutcome, VerificationResult
from tests.memory_store.store import MemorySliceStore
from tests.simulation.wire import Version, batch, segment

SLICES = 2
SETTINGS = RepairSettings(grace_s=5.0, documents=10, rounds=3, wait_s=1.0)
Message = RepairWatch | Corrections | RepairEnd


@dataclass
class Scene:
    """A source partition, two slices of an index `i`, and what happens when the repair says something.

    Attributes:
        events: called with every word that the repair tells, before it goes on.
        sent: messages of repairs.
    """

    records: list[Version] = field(default_factory=list)
    events: Callable[[str], None] = lambda _: None
    sent: list[Message] = field(default_factory=list)
    clock: float = 0.0
    pins: int = 0
    released: int = 0
    compacted: bool = False

    def __post_init__(self) -> None:
        limits = SliceLimits(documents=1_000, bytes=1 << 30, gap_ms=1 << 40)
        self.stores = [MemorySliceStore(Applied()) for _ in range(SLICES)]
        self.cores = [SliceCore("i", n, store.applied, limits) for n, store in enumerate(self.stores)]
        self.positions = [0] * SLICES
        self.number = 0
        self.acked = 0
        for core in self.cores:
            core.start()

    # --- the source, and slices that follow it ------------------------------------------------------------

    def write(self, docid: bytes, *keys: bytes, value: bytes = b"") -> None:
        """A record; it reaches the queues and the next snapshot at once."""
        offset = len(self.records)
        self.records.append(Version(0, offset, docid, keys, value=value))
        for number in range(SLICES):
            one = segment(0, offset, offset + 1, self.records[offset:], number, SLICES)
            self._into(number, encode(batch([one], slice_number=number)))
        self.stamp()

    def stamp(self) -> None:
        self.number += 1
        message = StabilityTimestamp("ks", 1, 0, Timestamp.of({0: len(self.records)}, "source-1"), 0, 0)
        for number in range(SLICES):
            self.feed(number, Stamped(self.number, message), Decide(0))

    def _into(self, number: int, data: bytes) -> None:
        position, self.positions[number] = self.positions[number], self.positions[number] + 1
        self.feed(number, MutationData(data, position), Decide(0))

    def feed(self, number: int, *events: Event) -> None:
        core, store = self.cores[number], self.stores[number]
        for event in events:
            todo = core.handle(event)
            while todo:
                match todo.pop(0):
                    case Apply(segments=segments, applied=applied):
                        store.apply(segments, applied)
                        todo += core.handle(Done(applied))
                    case Correct(corrections=corrections, spared=spared, applied=applied):
                        todo += core.handle(Done(applied, store.correct(corrections, spared, applied)))

    def rows(self) -> list[tuple[int, bytes]]:
        return [(n, key) for n, store in enumerate(self.stores) for key in sorted(store._state.entries)]

    def right(self) -> list[tuple[int, bytes]]:
        """The rows that there must be."""
        truth = self.truth(len(self.records))
        return sorted((e.slice, e.key + docid) for docid, one in truth.items() for e in one.entries["i"])

    # --- Looks --------------------------------------------------------------------------------------------

    def truth(self, until: int) -> dict[bytes, SourceDocument]:
        found: dict[bytes, SourceDocument] = {}
        for record in self.records[:until]:
            entries = tuple(sorted(SliceEntry(key, record.value, key[-1] % SLICES) for key in record.keys))
            later = any(other.id == record.id for other in self.records[until:])
            found[record.id] = SourceDocument(Place(0, record.offset, record.time), {"i": entries}, later)
        return found

    def compare_all(self) -> VerificationResult:
        pin = self.pin(Timestamp())
        truths, held, evidence = self.read_documents(pin, set())
        ids = sorted({*truths, *held})
        found = [
            judge("i", docid, held.get(docid, ()), truths.get(docid, NOTHING), evidence) for docid in ids
        ]
        differences = [one for one in found if isinstance(one, Difference)]
        return VerificationResult(pin, {"i": IndexOutcome("i")}, len(self.records), differences)

    def read_documents(
        self, pin: Pin, ids: set[bytes]
    ) -> tuple[Mapping[bytes, SourceDocument], Mapping[bytes, Sequence[IndexedDocument]], Evidence]:
        held: dict[bytes, list[IndexedDocument]] = {}
        for number, store in enumerate(self.stores):
            state = store._state
            docids = {key[-2:] for key in state.entries} | set(state.back)
            for docid in docids:
                entries = [
                    SliceEntry(k[:-2], v, number) for k, v in sorted(state.entries.items()) if k[-2:] == docid
                ]
                back = state.back.get(docid)
                version = None if back is None else Place(back.partition, back.offset, back.time)
                keys = () if back is None else tuple(sorted(back.keys))
                held.setdefault(docid, []).append(IndexedDocument(number, version, keys, tuple(entries)))
        return self.truth(pin.timestamp.offset(0)), held, Evidence(compacted=self.compacted)

    def ends(self) -> dict[int, int]:
        return {0: len(self.records)}

    def pin(self, at_least: Timestamp) -> Pin:
        self.pins += 1
        timestamp = self.stores[0].applied.timestamp
        assert timestamp.covers(at_least)
        return Pin(self.number, 0, timestamp, "h", {})

    def release(self, pin: Pin) -> None:
        self.released += 1

    # --- Channel ------------------------------------------------------------------------------------------

    def send(self, messages: list[Message]) -> dict[int, int]:
        reached = {}
        for message in messages:
            self.sent.append(message)
            reached[message.slice] = self.positions[message.slice]
            self._into(message.slice, encode(message))
        return reached

    def wait(
        self,
        what: str,
        done: Callable[[SliceStatus], bool],
        limit_s: float,
        stopped: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> SliceStatuses:
        self.events(what)
        self.stamp()
        for store in self.stores:
            if what == "durable":
                store.start_fold()
                store.finish_fold()
        told = {
            (node, n): running(self.cores[n], self.stores[n], "", 0)
            for n in range(SLICES)
            for node in ("n", "m")  # two copies say the same
        }
        if not all(done(status) for status in told.values()):
            raise RetryableError(f"not {what}")
        return told

    # --- the repair ---------------------------------------------------------------------------------------

    def repair(self, *, dry_run: bool = False, **settings: Any) -> Any:
        def nap(seconds: float) -> None:
            self.clock += seconds

        index = cast(IndexRecord, SimpleNamespace(id="i", slices=SLICES, name="by_key"))
        chosen = SETTINGS.model_copy(update=settings)
        self.runs = getattr(self, "runs", 0) + 1
        tell = self.events
        me: Any = self
        one = Repair(index, f"r{self.runs}", me, me, chosen, tell, lambda: False, lambda: self.clock, nap)
        done = Repaired()
        one.run(done, dry_run=dry_run)
        return done

    def store(self, number: int) -> tuple[dict[bytes, bytes], dict[bytes, Any]]:
        state = self.stores[number]._state
        return state.entries, state.back


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    for number in range(6):
        made.write(b"d%d" % number, b"k%d" % number, b"m%d" % number)
    return made


def lose(scene: Scene, docid: bytes) -> None:
    """A document is gone from all slices."""
    for entries, back in map(scene.store, range(SLICES)):
        back.pop(docid, None)
        for key in [key for key in entries if key.endswith(docid)]:
            del entries[key]


def test_nothing_is_sent_where_nothing_is_wrong(scene: Scene) -> None:
    done = scene.repair()
    assert (done.rounds, scene.sent, summary(done, dry_run=False)) == (0, [], "nothing was wrong")


def test_every_class_is_put_right_and_a_second_run_finds_nothing(scene: Scene) -> None:
    lose(scene, b"d0")  # MISSING
    (even, even_back), (odd, odd_back) = scene.store(0), scene.store(1)
    even[b"x0d1"] = b""  # EXTRA, which the back index does not know
    even_back[b"d2"] = even_back[b"d2"]._replace(keys=(b"z2",))  # WRONG_KEY
    even[b"z2d2"] = even.pop(b"k2d2")
    odd[b"k3d3"] = b"wrong"  # WRONG_INCLUDED
    odd_back[b"d5"] = odd_back[b"d5"]._replace(offset=1)  # WRONG_RECORD
    odd[b"y1zz"] = b""  # of a document that never was
    kinds = {one.kind for one in scene.compare_all().differences}
    assert kinds >= {
        DifferenceClass.MISSING,
        DifferenceClass.EXTRA,
        DifferenceClass.WRONG_KEY,
        DifferenceClass.WRONG_INCLUDED,
        DifferenceClass.WRONG_RECORD,
    }
    done = scene.repair()
    assert scene.rows() == scene.right()
    assert (done.rounds, done.last.differences) == (1, [])
    assert scene.repair().rounds == 0
    for store in scene.stores:
        store.check_mirror()
    assert "corrected in 1 rounds" in summary(done, dry_run=False)


def test_a_document_deleted_after_the_second_look_is_not_raised(scene: Scene) -> None:
    lose(scene, b"d0")
    lose(scene, b"d1")

    def happen(word: str) -> None:
        if "correcting 2" in word:
            scene.write(b"d0")
            scene.write(b"d1", b"q2")

    scene.events = happen
    done = scene.repair()
    assert scene.rows() == scene.right()
    assert done.spared > 0
    assert not any(key.endswith(b"d0") for _, key in scene.rows())


def test_what_was_put_right_between_the_looks_is_not_corrected(scene: Scene) -> None:
    lose(scene, b"d0")

    def happen(word: str) -> None:
        if "watch them" in word:
            scene.write(b"d0", b"k0")

    scene.events = happen
    done = scene.repair()
    assert done.planned == []
    assert scene.rows() == scene.right()


def test_the_second_look_waits_for_the_grace(scene: Scene) -> None:
    lose(scene, b"d0")
    scene.repair()
    assert scene.clock >= SETTINGS.grace_s


def test_a_dry_run_lists_and_writes_nothing(scene: Scene) -> None:
    lose(scene, b"d0")
    scene.store(0)[0][b"x0d1"] = b""
    before = scene.rows()
    done = scene.repair(dry_run=True)
    assert scene.rows() == before
    assert scene.sent == []
    assert count_actions(done.planned) == {"put": 1, "remove": 1}
    assert "would correct 2 documents" in summary(done, dry_run=True)
    assert scene.pins == scene.released + 1  # the one of the first look, which its owner gives back


def test_too_many_differences_are_refused(scene: Scene) -> None:
    lose(scene, b"d0")
    lose(scene, b"d1")
    with pytest.raises(NotRepairedError, match="more than 1 documents"):
        scene.repair(documents=1)
    assert scene.sent == []


@pytest.mark.parametrize("left", [IndexOutcome("i", not_examined=3), IndexOutcome("i", unlisted=3)])
def test_what_was_not_looked_at_is_not_called_right(scene: Scene, left: IndexOutcome) -> None:
    unproven = [Difference(DifferenceClass.UNPROVABLE, "i", b"d0")]
    whole = VerificationResult(scene.pin(Timestamp()), {"i": left}, 6, unproven)
    scene.compare_all = lambda: whole  # type: ignore[method-assign]
    with pytest.raises(NotRepairedError, match="more than 10 documents"):
        scene.repair()
    assert scene.sent == []


def test_what_never_comes_right_ends_after_the_last_round(scene: Scene) -> None:
    def happen(word: str) -> None:
        if "once more" in word:
            lose(scene, b"d0")

    lose(scene, b"d0")
    scene.events = happen
    with pytest.raises(NotRepairedError, match="after 3 rounds"):
        scene.repair()


def test_a_round_that_fails_has_slices_forget(scene: Scene) -> None:
    lose(scene, b"d0")

    def happen(word: str) -> None:
        if "looking again" in word:
            raise RetryableError("away")

    scene.events = happen
    with pytest.raises(RetryableError, match="away"):
        scene.repair()
    assert [type(one).__name__ for one in scene.sent[-SLICES:]] == ["RepairEnd"] * SLICES
    told = [core.repair(core.applied) for core in scene.cores]
    assert all(one is not None and not one.watching for one in told)
    scene.events = lambda _: None
    scene.repair()
    assert scene.rows() == scene.right()


def test_corrections_come_in_several_messages(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.repair.repair.MESSAGE_DOCUMENTS", 1)
    for docid in (b"d0", b"d1", b"d2"):
        lose(scene, docid)
    done = scene.repair()
    assert scene.rows() == scene.right()
    assert sum(isinstance(one, Corrections) for one in scene.sent) == len(done.planned) > 1


def test_a_document_that_changes_faster_than_a_compacted_source_is_read_is_left(scene: Scene) -> None:
    """Its older version may be gone: nobody knows what was right at the snapshot."""
    scene.compacted = True
    lose(scene, b"d0")
    before = scene.truth

    def truth(until: int) -> dict[bytes, SourceDocument]:
        found = before(until)
        found[b"d0"] = SourceDocument(later=True)
        return found

    def happen(word: str) -> None:
        if "round 1: 1 documents differ" in word:
            cast(Any, scene).truth = truth
        if "round 1: correcting 0" in word:
            cast(Any, scene).truth = before

    scene.events = happen
    done = scene.repair()
    assert scene.rows() == scene.right()
    assert done.rounds == 2


def test_only_faults_of_the_index_are_wanted() -> None:
    differences = [Difference(kind, "i", kind.value.encode()) for kind in DifferenceClass]
    assert wanted(differences) == {kind.value.encode() for kind in composing.CORRECTED}
    assert {DifferenceClass.UNPROVABLE, DifferenceClass.DUPLICATE_UNIQUE}.isdisjoint(composing.CORRECTED)


def test_slices_that_are_right_are_left_out() -> None:
    version = Place(0, 3, 7)
    truth = SourceDocument(version, {"i": (SliceEntry(b"a", b"", 0), SliceEntry(b"b", b"", 1))})
    held = [IndexedDocument(0, version, (b"a",), (SliceEntry(b"a", b"", 0),))]
    [one] = planned(b"d", "i", 3, held, truth)
    assert (one.slice, one.action, one.correction.values) == (1, "put", {b"b": b""})
    stale = [
        *held,
        IndexedDocument(1, version, (b"b",), (SliceEntry(b"b", b"", 1),)),
        IndexedDocument(2, version, (b"c",), ()),
    ]
    [one] = planned(b"d", "i", 3, stale, truth)
    assert (one.slice, one.action, one.correction.values) == (2, "record", {})


def test_a_deleted_document_of_two_partitions_goes_and_its_deletion_is_remembered() -> None:
    """Deleted in partition 0; an older write to partition 1 was met after that."""
    held = [IndexedDocument(1, Place(1, 3, 5), (b"a",), (SliceEntry(b"a", b"", 1),))]
    truth = SourceDocument(Place(0, 7, 9), {}, False, (Place(1, 3, 5),))
    verdict = judge("i", b"d", held, truth, Evidence())
    assert isinstance(verdict, Difference)
    assert wanted([verdict]) == {b"d"}
    [one] = planned(b"d", "i", 2, held, truth)
    assert (one.slice, one.action) == (1, "remove")
    at = Timestamp.of({0: 8, 1: 4})
    made = correct(
        one.correction, StoredDocument(1, 3, 5, (b"a",), False), False, Moments(at, at), lambda _: b""
    )
    assert made is not None
    assert (made.record, made.removed) == (StoredDocument(0, 7, 9, (), True), [b"a"])
    assert step(made.record, 1, 3, 5, [b"a"]) == (made.record, False), "it does not come back"


def test_corrections_are_cut_into_messages() -> None:
    found = [Correction(b"%d" % n, 0, 0, 0) for n in range(5)]
    assert [len(one) for one in batches(found, 2, 1_000)] == [2, 2, 1]
    assert [len(one) for one in batches(found, 9, 3)] == [3, 2]
    found[1].values[b"k"] = b"v" * 10
    found[3].strays.append(b"key")
    assert [len(one) for one in batches(found, 9, 3)] == [1, 1, 1, 1, 1]
    assert batches([], 2, 10) == []
