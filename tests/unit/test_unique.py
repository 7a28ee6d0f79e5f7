"""Suspects and violations of one slice (R35): when they are told, and when they are not."""

from __future__ import annotations

import random

import pytest

from indexer.store.interface import UNNUMBERED, Applied
from indexer.unique import watch as unique_watch
from indexer.unique.shape import KeyShape
from indexer.unique.suspects import POINTS_KEPT, SettledNumbers, Suspects, UniqueLimits
from indexer.unique.watch import SWEEP_AGAIN_MS, TOLD_BYTES, TOLD_KEYS, UniqueWatch, _gap
from keytide.collation import LONGEST_TOLD, MISSING, Json, Value, encode_key, told_key
from keytide.model.entry import pack_keyed_value
from keytide.model.timestamp import Timestamp
from keytide.structure import StructureName, structure_of
from keytide.wire.messages import DuplicateDocument, StabilityTimestamp
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, segment

X, Y = encode_key(("x",)), encode_key(("y",))


def stamp(settled: int, term: int = 1, incarnation: int = 0) -> StabilityTimestamp:
    return StabilityTimestamp("ks", term, incarnation, Timestamp(), 0, 0, settled)


class Slice:
    """A slice of a UNIQUE index on one part. Documents d0, d2, ... lie in partition 0, the others in 1."""

    def __init__(self, limits: UniqueLimits = UniqueLimits(), using: StructureName = "btree") -> None:
        self.store = MemorySliceStore(Applied())
        self.structure = structure_of(using, 1)
        self.watch = UniqueWatch(KeyShape(self.structure), limits)
        self.ends = [0, 0]
        self.number = 0
        self.begin()

    def begin(self) -> None:
        self.watch.begin(self.store.snapshot())
        self.sweep()

    def sweep(self, now: int = 0) -> None:
        due = self.watch.due(now)
        while self.watch.look_after(now, self.store.snapshot() if due else None):
            due = False

    def write(
        self, *writes: tuple[int, bytes | None], settled: int = -1, numbered: bool = True, skip: int = 0
    ) -> None:
        """One commit of (document, its key) whose timestamp settles a number; `skip` offsets without a record
        lie before it."""
        before = list(self.ends)
        self.ends = [end + skip for end in self.ends]
        versions = []
        for document, key in writes:
            home = document % 2
            rows = self.rows(key) if key else ()
            versions.append(Version(b"d%d" % document, home, self.ends[home], 1_000, rows))
            self.ends[home] += 1
        self.number += 1
        self.watch.stamped(self.number, stamp(settled))
        applied = Applied(Timestamp.of(dict(enumerate(self.ends))), self.number if numbered else UNNUMBERED)
        mine = {home: [one for one in versions if one.partition == home] for home in (0, 1)}
        pieces = [segment(mine[home], before[home], self.ends[home]) for home in (0, 1) if mine[home]]
        self.store.apply(pieces, applied)
        self.watch.committed(pieces, self.store.snapshot(), applied)
        self.watch.show()

    def rows(self, key: bytes) -> tuple[tuple[bytes, bytes], ...]:
        value = pack_keyed_value(b"", None, key) if self.structure.key_in_value else b""
        return ((self.structure.stored([key])[0][0], value),)

    def told(self) -> dict[bytes, list[bytes]]:
        return {one.key: [document.id for document in one.documents] for one in self.watch.shown}

    def judged(self) -> int:
        return self.watch.judged

    def violations(self) -> int:
        return self.watch.violations


def test_two_documents_with_one_key_are_a_violation_once_that_is_settled() -> None:
    one = Slice()
    one.write((0, X))
    one.write((1, X))
    assert not one.told()
    one.write(settled=1)  # of before the second came
    assert not one.told()
    one.write(settled=2)
    assert one.told() == {X: [b"d0", b"d1"]}
    assert one.watch.violations == 1
    (violation,) = one.watch.shown
    assert violation.number == 2
    assert violation.documents[1] == DuplicateDocument(b"d1", 1, 0, 1_000)
    one.write((1, Y), settled=2)
    assert not one.told()
    assert one.watch.violations == 0


def test_a_value_that_moves_is_never_told() -> None:
    """d0 gives x up before d1 takes it; the timestamp covers the second write first."""
    one = Slice()
    one.write((0, X))
    one.write((1, X))
    one.write(settled=1)
    one.write((0, None), settled=3)  # the ends that settle number 2 lie behind this write
    assert not one.told()
    one.write(settled=4)
    assert not one.told()


def test_values_that_are_swapped_again_and_again_are_never_told() -> None:
    """Every timestamp shows both documents with x, in other versions each time, between which each was
    without it."""
    one = Slice()
    one.write((0, X))
    for number in range(2, 30):
        one.write((1, X), (0, Y), (0, X), (1, Y), (1, X), settled=number - 1)
        assert not one.told()
    one.write(settled=29)
    assert one.told() == {X: [b"d0", b"d1"]}  # now they stay


def test_documents_that_are_written_all_the_time_and_keep_the_key_are_told() -> None:
    one = Slice()
    one.write((0, X), (1, X))
    for number in range(2, 6):
        one.write((0, X), (1, X), (1, X), settled=number - 1)
        assert one.told() == {X: [b"d0", b"d1"]}
        (violation,) = one.watch.shown
        assert violation.number == 1
        assert violation.documents[0].offset == one.ends[0] - 1


def test_what_the_cleaner_took_away_is_not_believed_to_have_kept_the_key() -> None:
    one = Slice()
    one.write((0, X), (1, X))
    for _ in range(3):
        one.write((1, X), (0, X), settled=one.number, skip=1)
        assert not one.told()
    one.write((1, X), (0, X), settled=one.number)
    assert one.told()


def test_of_three_documents_two_that_hold_it_are_enough() -> None:
    one = Slice()
    one.write((0, X), (2, X))
    one.write((1, X), settled=1)
    assert one.told() == {X: [b"d0", b"d1", b"d2"]}
    one.write((0, Y), settled=1)  # d1 has come since
    assert not one.told()
    one.write(settled=2)
    assert one.told() == {X: [b"d1", b"d2"]}


def test_what_an_unnumbered_commit_shows_counts_from_the_next_number() -> None:
    one = Slice()
    one.write((0, X))
    one.write((1, X), settled=2, numbered=False)
    one.write(settled=2)  # number 3
    assert not one.told()
    one.write(settled=3)
    assert one.told()
    assert one.watch.shown[0].number == 3


@pytest.mark.parametrize("key", [encode_key((None,)), encode_key((MISSING,))])
def test_null_and_missing_are_equal_to_none(key: bytes) -> None:
    one = Slice()
    one.write((0, key), (1, key))
    one.write(settled=1)
    one.begin()
    one.write(settled=2)
    one.write(settled=3)
    assert not one.told()
    assert one.watch.judged == 3


def test_after_a_restart_all_is_found_again_and_judged_only_then() -> None:
    one = Slice()
    one.write((0, X), (1, X))
    one.write(settled=1)
    assert one.told()
    assert one.watch.judged == 1
    one.watch.begin(one.store.snapshot())
    assert one.watch.judged == UNNUMBERED
    assert not one.watch.shown
    one.write(settled=2)
    assert one.watch.judged == UNNUMBERED  # the sweep is not over
    one.sweep()
    one.write(settled=3)  # number 4: the first that shows it whole
    assert (one.told(), one.watch.judged) == ({}, UNNUMBERED)
    one.write(settled=4)
    assert one.told() == {X: [b"d0", b"d1"]}
    assert one.watch.judged == 4


def test_lists_are_limited_and_what_lies_beyond_is_counted() -> None:
    one = Slice(UniqueLimits(keys=5, documents=3))
    keys = [encode_key((number,)) for number in range(12)]
    for document in range(0, 48, 12):
        one.write(*((document + n, key) for n, key in enumerate(keys)))
    one.write(settled=4)
    assert len(one.told()) == 5
    assert all(len(violation.documents) == 3 and violation.more for violation in one.watch.shown)
    assert one.judged() == UNNUMBERED
    one.sweep(SWEEP_AGAIN_MS)
    one.write(settled=5)
    assert one.violations() == 12
    for document in range(0, 36, 12):  # of each but the last two only one document is left
        one.write(*((document + n, None) for n in range(10)), settled=one.number)
    assert len(one.told()) <= 2
    one.sweep(2 * SWEEP_AGAIN_MS)
    one.write(settled=one.number)
    one.write(settled=one.number)
    assert one.told().keys() == set(keys[10:])
    assert one.violations() == 2
    assert one.judged() == one.number - 1


def test_heartbeats_tell_all_violations_in_turn() -> None:
    one = Slice()
    keys = [encode_key((number,)) for number in range(3 * TOLD_KEYS - 1)]
    for document in (0, 100):
        one.write(*((document + n, key) for n, key in enumerate(keys)))
    assert one.watch.some() == []
    one.write(settled=2)
    told = [violation.key for _ in range(3) for violation in one.watch.some()]
    assert set(told) == set(keys)
    assert len(told) == 3 * TOLD_KEYS


def test_what_timestamps_settle_is_taken_from_valid_leaders_only() -> None:
    numbers = SettledNumbers(term=2)
    numbers.stamped(10, stamp(5, term=1))
    assert numbers.by(10, 0) == -1
    numbers.stamped(11, stamp(5, term=2))
    numbers.stamped(13, stamp(9, term=2))
    numbers.stamped(12, stamp(99, term=2))  # a replay
    numbers.stamped(14, stamp(99, term=1))
    numbers.stamped(15, stamp(-1, term=3))  # a new leader settles anew
    numbers.stamped(16, stamp(15, term=3))
    assert [numbers.by(number, 0) for number in (10, 11, 12, 13, 14, 15, 99)] == [-1, 5, 5, 9, 9, -1, 15]
    assert numbers.by(99, 1) == -1
    numbers.stamped(20, stamp(17, term=3, incarnation=1))
    assert (numbers.by(99, 0), numbers.by(99, 1)) == (-1, 17)
    numbers.stamped(21, stamp(18, term=3, incarnation=0))
    assert numbers.by(99, 1) == 17
    for number in range(2 * POINTS_KEPT):
        numbers.stamped(100 + number, stamp(50 + number, term=3, incarnation=1))
    assert numbers.by(99, 1) == -1
    assert numbers.by(1 << 40, 1) == 50 + 2 * POINTS_KEPT - 1


def test_a_new_leader_may_issue_what_lies_before_and_settles_nothing_by_it() -> None:
    """The last leader's timestamp 4 covers the ends that settle 2. This slice has skipped it, and commits one
    of the next leader's, which lies before these ends: x has moved, and the slice has heard half of that."""
    one = Slice()
    one.write((0, X))
    one.write((1, X))
    one.watch.stamped(4, stamp(2, term=1))
    one.number = 4
    one.watch.stamped(5, stamp(-1, term=2))
    one.write()  # number 5
    assert not one.told()
    one.write(settled=4)  # the new leader has looked itself
    assert not one.told()
    one.watch.stamped(7, stamp(5, term=2))
    one.write()
    assert one.told() == {X: [b"d0", b"d1"]}


def test_keys_that_come_while_the_list_is_full_and_swept_are_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unique_watch, "SWEEP_ROWS", 1)
    one = Slice(UniqueLimits(keys=1, documents=3))
    one.write((0, X), (1, X))
    one.write((2, Y), (3, Y), settled=1)  # there is no room for y
    one.write((2, None))
    assert one.watch.due(SWEEP_AGAIN_MS)
    one.watch.look_after(SWEEP_AGAIN_MS, one.store.snapshot())  # a sweep begins, which sees no y twice
    one.write((2, Y))
    one.sweep(SWEEP_AGAIN_MS)
    one.write((1, None))  # now there is room
    for _ in range(3):
        one.sweep(3 * SWEEP_AGAIN_MS)
        one.write(settled=one.number)
    assert one.told() == {Y: [b"d2", b"d3"]}


def test_heartbeats_tell_few_long_keys_at_once() -> None:
    one = Slice()
    keys = [encode_key((str(number) * 5_000,)) for number in range(5)]
    for document in (0, 100):
        one.write(*((document + n, key) for n, key in enumerate(keys)))
    one.write(settled=2)
    told = [one.watch.some() for _ in range(5)]
    assert all(len(some) == 1 for some in told)
    assert {some[0].key for some in told} == set(keys)


def test_keys_of_any_size_are_told_in_short_and_apart() -> None:
    one = Slice(using="hash")
    ones: list[Json] = [1]
    words: list[Value] = [ones * 60_000, [*ones * 59_999, 2], {"a": "q" * 60_000}]
    words += ["q" * 60_000, "q" * 60_000 + "r", "s"]
    keys = [encode_key([word]) for word in words]
    one.write(*((number, key) for number, key in enumerate(keys)))
    one.write(*((10 + number, key) for number, key in enumerate(keys)))
    one.write(settled=2)
    expected = {told_key(key, 1): sorted([b"d%d" % n, b"d%d" % (10 + n)]) for n, key in enumerate(keys)}
    assert one.told() == expected
    told = one.watch.some()
    assert {violation.key for violation in told} == expected.keys()
    assert sum(len(violation.key) for violation in told) <= TOLD_BYTES
    listed = one.watch._suspects
    assert sum(map(len, listed._keys)) <= TOLD_BYTES, "nor is more kept"
    one.write((0, encode_key(["new"])), settled=one.number)
    one.write((11, keys[1]), settled=one.number)  # the same again: it has had it all the time
    gone = told_key(keys[0], 1)
    assert one.told() == {key: ids for key, ids in expected.items() if key != gone}
    one.begin()
    for _ in range(2):
        one.write(settled=one.number)
    assert one.told() == {key: ids for key, ids in expected.items() if key != gone}, "and by a sweep"


def test_no_key_that_is_told_is_longer_than_its_limit() -> None:
    one = Slice(using="hash")
    for document in (0, 1):
        one.write((document, encode_key(["x" * (LONGEST_TOLD + 1)])))
    one.write(settled=2)
    (violation,) = one.watch.some()
    assert len(violation.key) < 1_000


def test_nothing_is_left_of_what_has_gone() -> None:
    chance = random.Random(1)
    suspects = Suspects(UniqueLimits())
    keys = [b"k%d" % number for number in range(20)]
    for number in range(2_000):
        ids = chance.sample([b"a", b"b", b"c", b"d"], chance.randint(0, 4))
        documents = [DuplicateDocument(docid, 0, chance.randint(0, 9), 0) for docid in ids]
        suspects.put(chance.choice(keys), documents, {}, {})
        suspects.numbered(number, number - 2)
    for key in keys:
        suspects.put(key, [], {}, {})
    assert (len(suspects), list(suspects.documents), suspects.violations) == (0, [], 0)
    assert suspects.listing() == []
    suspects.numbered(3_000, 2_999)


@pytest.mark.parametrize(
    ("offsets", "start", "end", "gap"),
    [
        ([], 5, 5, None),
        ([], 5, 8, 8),
        ([5, 6, 7], 5, 8, None),
        ([6, 7], 5, 8, 6),
        ([5, 7], 5, 8, 7),
        ([5, 6], 5, 8, 8),
        ([5, 8, 9, 12, 13], 5, 14, 12),
        ([5, 8, 9, 12, 13], 4, 15, 15),
    ],
)
def test_where_offsets_are_missing(offsets: list[int], start: int, end: int, gap: int | None) -> None:
    piece = segment([Version(b"d%d" % offset, 0, offset) for offset in offsets], start, end)
    assert _gap(piece) == gap
