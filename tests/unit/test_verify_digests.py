"""What a slice sums up for verification: whatever the cuts, and every fault shows in the bucket it is in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from indexer.digests.answering import digest, rows
from indexer.scan.local.tasks import UNHURRIED, NoPace
from indexer.store.interface import SkipLine, StoredDocument
from indexer.view import ReadableSnapshot
from keytide.collation import Value, encode_key
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.entry import pack_value
from keytide.model.timestamp import Timestamp
from keytide.wire import digests
from keytide.wire.columns import hashes_of
from keytide.wire.digests import DigestAnswer, DigestAsk, DuplicateKey, RowsAsk, Sums
from streaming.verify.core.comparing import SourceDocument
from streaming.verify.core.difference import SliceEntry
from tests.spans_by_rows import SpansByRows
from tests.structure_kit import as_stored, digests_of

BITS = 4
PLAIN = "CREATE INDEX i ON k (city) WITH (slices=1)"
HASHED = "CREATE UNIQUE INDEX i ON ks USING hash (city)"


class Snapshot(SpansByRows):
    """A slice written by hand, faults and all."""

    number, incarnation, timestamp = 7, 0, Timestamp()

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.back: dict[bytes, StoredDocument] = {}
        self.read = 0
        """Rows of entries that were given."""

    def put(
        self, docid: bytes, keys: Sequence[bytes], value: bytes = b"", at: tuple[int, int] = (0, 5)
    ) -> None:
        for key in keys:
            self.entries[key + docid] = value
        self.back[docid] = StoredDocument(at[0], at[1], 1_000, tuple(keys), False)

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        found = sorted(
            item
            for item in self.entries.items()
            if item[0] > (start_after or b"") and low <= item[0] and (high is None or item[0] < high)
        )
        for at in range(0, len(found), 3):
            self.read += len(found[at : at + 3])
            yield found[at : at + 3]

    def count(self, low: bytes, high: bytes | None) -> int:
        return len(self.entries)

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        yield from sorted(item for item in self.back.items() if item[0] > after)

    foreign = 0

    def documents(self, ids: Sequence[bytes]) -> list[StoredDocument | None]:
        return [self.back.get(docid) for docid in ids]

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        return []

    def release(self) -> None:
        pass


def definition(unique: bool = False, statement: str = PLAIN) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return replace(parsed.definition, unique=unique)


def summed(
    snapshot: ReadableSnapshot,
    limit: int,
    floors: dict[int, int] | None = None,
    unique: bool = False,
    statement: str = PLAIN,
) -> tuple[Sums, list[DigestAnswer]]:
    """A whole slice, in calls of `limit` rows."""
    total, answers = digests.no_sums(BITS), []
    for stage in ("forward", "back"):
        after, more = b"", True
        while more:
            ask = DigestAsk("i", 0, 7, 0, stage, BITS, floors or {}, after, limit)
            answer = digest(snapshot, definition(unique, statement), ask, UNHURRIED)
            total += np.frombuffer(answer.sums, "<u8").reshape(total.shape)
            answers.append(answer)
            after, more = answer.reached, answer.more
    return total, answers


def key(*parts: Value) -> bytes:
    return encode_key(parts)


def filled(count: int = 40) -> Snapshot:
    snapshot = Snapshot()
    for number in range(count):
        value = pack_value(b"", b'{"n":%d}' % number) if number % 3 else b""
        snapshot.put(b"d%d" % number, [key(f"c{number % 7}-{number}")], value, (number % 2, number))
    return snapshot


def bucket(docid: bytes) -> int:
    return int(digests.buckets_of(hashes_of([docid], 1), BITS)[0])


def test_sums_do_not_depend_on_where_calls_are_cut() -> None:
    snapshot = filled()
    whole, _ = summed(snapshot, 1_000)
    for limit in (1, 3, 4, 10):
        again, answers = summed(snapshot, limit)
        assert (again == whole).all()
        assert len(answers) > 2
    assert int(whole[digests.ENTRIES].sum()) == 40
    assert (whole[digests.FORWARD] == whole[digests.BACK]).all()
    assert not len(digests.differing(whole, whole))


def test_every_fault_shows_in_its_bucket_and_nowhere_else() -> None:
    right, _ = summed(filled(), 1_000)

    def damage(kind: str) -> tuple[Sums, bytes]:
        snapshot, docid = filled(), b"d10"
        held = snapshot.back[docid]
        (old,) = held.keys
        if kind == "missing":
            del snapshot.entries[old + docid], snapshot.back[docid]
        elif kind == "extra":
            docid = b"nobody"
            snapshot.put(docid, [key("x")])
        elif kind == "ghost":
            docid = b"nobody"
            snapshot.entries[key("x") + docid] = b""
        elif kind == "wrong key":
            del snapshot.entries[old + docid]
            snapshot.put(docid, [key("zz")], b"", (held.partition, held.offset))
        elif kind == "included":
            snapshot.entries[old + docid] = pack_value(b"", b'{"n":999}')
        elif kind == "no longer included":
            snapshot.entries[old + docid] = b""
        elif kind == "version":
            snapshot.back[docid] = held._replace(offset=held.offset + 1)
        elif kind == "partition":
            snapshot.back[docid] = held._replace(partition=held.partition + 1)
        elif kind == "not in the back index":
            del snapshot.back[docid]
        elif kind == "key only in the back index":
            snapshot.back[docid] = held._replace(keys=(old, key("zz")))
        return summed(snapshot, 1_000)[0], docid

    kinds = ["missing", "extra", "ghost", "wrong key", "included", "no longer included", "version"]
    for kind in [*kinds, "partition", "not in the back index", "key only in the back index"]:
        found, docid = damage(kind)
        assert digests.differing(found, right).tolist() == [bucket(docid)], kind


def test_what_lies_below_the_source_is_left_out_and_counted() -> None:
    snapshot = filled()
    total, answers = summed(snapshot, 7, {0: 20, 1: 0})
    assert int(total[digests.ENTRIES].sum()) == 30
    assert sum(answer.left_out for answer in answers) == 20  # entries, and documents of the back index
    above = Snapshot()
    for docid, held in snapshot.back.items():
        if held.partition or held.offset >= 20:
            above.put(docid, held.keys, snapshot.entries[held.keys[0] + docid], (held.partition, held.offset))
    alone, _ = summed(above, 1_000)
    assert (alone[: digests.RECORDS + 1] == total[: digests.RECORDS + 1]).all()
    assert not len(digests.differing(total, alone))


def test_duplicates_are_found_across_blocks_and_calls_and_null_equals_nothing() -> None:
    snapshot = Snapshot()
    for number in range(9):
        snapshot.put(b"a%d" % number, [key("same")])
        snapshot.put(b"b%d" % number, [key(None)])
        snapshot.put(b"c%d" % number, [key(f"own{number}")])
    for limit in (1, 2, 5, 100):
        _, answers = summed(snapshot, limit, unique=True)
        found = [one for answer in answers for one in answer.duplicates]
        pairs = [(b"a%d" % number, b"a%d" % (number + 1)) for number in range(8)]
        assert found == [DuplicateKey(key("same"), pair) for pair in pairs]
    assert not any(answer.duplicates for answer in summed(snapshot, 5)[1])


@pytest.mark.parametrize("bits", [0, 2, 8])
def test_duplicates_of_a_hash_index_are_of_one_key_and_not_of_one_digest(bits: int) -> None:
    snapshot = Snapshot()
    made = definition(statement=HASHED)
    with digests_of(bits):
        for number in range(12):
            for docid, part in ((f"a{number}", "same"), (f"b{number}", None), (f"c{number}", number // 2)):
                ((stored, value),) = as_stored(made, [(key(part), b"", None)])
                snapshot.put(docid.encode(), [stored], value)
        for limit in (1, 2, 5, 100):
            _, answers = summed(snapshot, limit, unique=True, statement=HASHED)
            found = [one for answer in answers for one in answer.duplicates]
            assert {one.key for one in found} == {key("same"), *(key(number) for number in range(6))}
            same = [one.ids for one in found if one.key == key("same")]
            assert same == list(itertools.pairwise(sorted(b"a%d" % number for number in range(12))))
            assert sum(one.key == key(3) for one in found) == 1


@pytest.mark.parametrize("statement", [PLAIN, HASHED])
@pytest.mark.parametrize("hot", [None, "same"])
def test_many_entries_of_one_key_are_read_once_however_many_the_calls(
    hot: str | None, statement: str
) -> None:
    snapshot, made = Snapshot(), definition(statement=statement)
    for number in range(300):
        ((stored, value),) = as_stored(made, [(key(hot if number % 10 else number), b"", None)])
        snapshot.put(b"d%03d" % number, [stored], value)
    _, answers = summed(snapshot, 6, unique=True, statement=statement)
    forward = sum(answer.rows for answer in answers) // 2
    assert forward == 300
    assert snapshot.read <= forward + len(answers), "a call reads one row that is not its own at most"
    found = [one for answer in answers for one in answer.duplicates]
    assert len(found) == (0 if hot is None else 269)


@pytest.mark.parametrize(("part", "statement"), [("a", PLAIN), ("a", HASHED), ("a" * 40_000, HASHED)])
def test_a_driver_finds_what_a_slice_tells_of_in_the_source(part: str, statement: str) -> None:
    snapshot, made = Snapshot(), definition(True, statement)
    ((stored, value),) = as_stored(made, [(key(part), b"", None)])
    ((other, another),) = as_stored(made, [(key("other"), b"", None)])
    for docid in (b"a", b"b"):
        snapshot.put(docid, [stored], value)
    _, answers = summed(snapshot, 9, unique=True, statement=statement)
    (duplicate,) = (one for answer in answers for one in answer.duplicates)
    entries = (SliceEntry(stored, value, 0), SliceEntry(other, another, 0))
    source = SourceDocument(entries={"i": entries})
    assert source.having("i", duplicate.key, made.structure) == list(entries[:1])
    assert source.having("j", duplicate.key, made.structure) == []
    if statement == HASHED:
        assert len(duplicate.key) < 1_000


class Looks(NoPace):
    """Counts how often it is looked at."""

    looks = 0

    def look(self) -> None:
        self.looks += 1


def test_what_is_read_again_for_collisions_is_paced() -> None:
    snapshot, made = Snapshot(), definition(True, HASHED)
    with digests_of(0):
        for number in range(90):
            ((stored, value),) = as_stored(made, [(key("x" if number in (0, 89) else None), b"", None)])
            snapshot.put(b"d%02d" % number, [stored], value)
        after = sorted(snapshot.entries)[59]
        ask = DigestAsk("i", 0, 7, 0, "forward", BITS, {}, after, 100)
        effort = Looks()
        answer = digest(snapshot, made, ask, effort)
    assert answer.duplicates == [DuplicateKey(key("x"), (b"d00", b"d89"))]
    assert effort.looks == 90 // 3


def test_all_duplicates_are_told_however_many_lie_together() -> None:
    snapshot = Snapshot()
    for number in range(3_000):
        snapshot.put(b"a%04d" % number, [key("same")])
    _, answers = summed(snapshot, 1_000_000, unique=True)
    found = [one.ids for answer in answers for one in answer.duplicates]
    assert found == [(b"a%04d" % n, b"a%04d" % (n + 1)) for n in range(2_999)]
    assert len(answers) > 2  # a call ends when it has enough to tell


def test_rows_of_chosen_documents_come_whatever_the_cuts() -> None:
    snapshot = filled(200)
    wanted = {bucket(b"d3"), bucket(b"d4")}
    chosen = {docid for docid in snapshot.back if bucket(docid) in wanted} | {b"d77"}
    for limit in (1, 6, 1_000):
        entries, back = [], []
        for stage in ("forward", "back"):
            after, more = b"", True
            while more:
                ask = RowsAsk(
                    "i",
                    0,
                    7,
                    0,
                    stage,
                    BITS,
                    sorted(wanted),
                    [b"d77"],
                    after,
                    limit,
                    1 << 20,
                )
                answer = rows(snapshot, definition(), ask, UNHURRIED)
                entries += answer.entries
                back += answer.back
                after, more = answer.reached, answer.more
        assert {docid for docid, _, _ in entries} == chosen == {one.id for one in back}
        assert all(snapshot.entries[k + docid] == value for docid, k, value in entries)
