"""Verification against a naive model: random logs, random faults, compaction and retention in between.

The slices are written by hand from a model that knows neither the projector's code nor the digests; the
source is read by the very tasks that Spark runs. What is planted must be found, named and nothing else; what
live writes, compaction and retention explain must not be reported.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.digests.answering import digest, rows
from indexer.scan.local.tasks import UNHURRIED
from indexer.store.interface import StoredDocument
from indexer.store.resolve.resolve import step
from keytide.catalog.records import IndexRecord
from keytide.collation import encode_key, encode_part
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.entry import pack_value
from keytide.model.timestamp import TABLE_PARTITION, Timestamp
from keytide.wire import digests
from keytide.wire.digests import BackRow, DigestAsk, DuplicateKey, RowsAsk, Sums
from projector.core.projection import SourceBatch
from streaming.repair.repair import LiveComparison
from streaming.slices.pins import Pin, SliceKey
from streaming.verify import documents as comparison
from streaming.verify.core.comparing import CHANGES_TOO_FAST, NOTHING, judge
from streaming.verify.core.difference import Difference, DifferenceClass, is_clean
from streaming.verify.core.newest import decode
from streaming.verify.documents import VerificationContext, VerificationResult
from streaming.verify.slices import SliceClient
from streaming.verify.source import KafkaSource, SourceRanges, SourceReader
from streaming.verify.tasks import (
    Counted,
    DocumentVersions,
    VerifyWork,
    decode_counted,
    decode_found,
    find,
    gather,
    sum_up,
)
from streaming.verify.verification import Verification
from tests import share
from tests.source_records import source_batch
from tests.unit.test_verify_digests import Snapshot

PARTITIONS = 2
CITY, TAGS = "city-1", "tags-2"
STATEMENTS = {
    CITY: "CREATE INDEX city ON k (city) INCLUDE (n) WITH (slices=3)",
    TAGS: "CREATE INDEX tags ON k (UNNEST(tags)) WITH (slices=2)",
}


@dataclass(frozen=True)
class Record:
    """One record of the log; a document is (city, tags, n), None a deletion."""

    partition: int
    offset: int
    id: bytes
    document: tuple[str, tuple[int, ...], int] | None
    time: int = 1_000

    @property
    def value(self) -> bytes | None:
        if self.document is None:
            return None
        city, tags, n = self.document
        return json.dumps({"city": city, "tags": list(tags), "n": n}).encode()


def entries_of(
    index: str, document: tuple[str, tuple[int, ...], int] | None
) -> dict[int, dict[bytes, bytes]]:
    """The model: slice -> key -> value of a document's entries."""
    if document is None:
        return {}
    city, tags, n = document
    made: dict[int, dict[bytes, bytes]] = {}
    if index == CITY:
        number = xxhash.xxh3_64_intdigest(encode_part(city)) % 3
        made[number] = {encode_key([city]): pack_value(b"", b'{"n":%d}' % n)}
    else:
        for tag in set(tags):
            number = xxhash.xxh3_64_intdigest(encode_part(tag)) % 2
            made.setdefault(number, {})[encode_key([tag])] = b""
    return made


@dataclass
class Log:
    """The source, as far as it is still there."""

    records: list[Record]
    compacted: bool = False
    floors: dict[int, int] = field(default_factory=dict)

    def ends(self) -> dict[int, int]:
        found = dict.fromkeys(range(PARTITIONS), 0)
        for record in self.records:
            found[record.partition] = max(found[record.partition], record.offset + 1)
        return found

    def newest(self, until: dict[int, int]) -> dict[bytes, Record]:
        """The newest version of each document below a timestamp."""
        found: dict[bytes, Record] = {}
        for record in sorted(self.records, key=lambda one: one.offset):
            if record.offset < until[record.partition]:
                found[record.id] = record
        return found

    def compact(self, chosen: Sequence[bool]) -> None:
        """Remove some of the records that a newer one of their document replaces."""
        last = {record.id: record.offset for record in sorted(self.records, key=lambda one: one.offset)}
        kept = []
        for at, record in enumerate(self.records):
            if record.offset == last[record.id] or not chosen[at % len(chosen)]:
                kept.append(record)
        self.records, self.compacted = kept, True

    def expire(self, floors: dict[int, int]) -> None:
        """Remove what lies below the floors."""
        self.floors = floors
        self.records = [one for one in self.records if one.offset >= floors[one.partition]]


Held_ = dict[SliceKey, Snapshot]


def indexed(log: Log, until: dict[int, int]) -> Held_:
    """Slices that hold exactly what the log has below a timestamp."""
    held = {
        (index, number): Snapshot() for index, slices in ((CITY, 3), (TAGS, 2)) for number in range(slices)
    }
    for docid, record in log.newest(until).items():
        for index in (CITY, TAGS):
            for number, entries in entries_of(index, record.document).items():
                slice_ = held[index, number]
                for key, value in entries.items():
                    slice_.entries[key + docid] = value
                slice_.back[docid] = StoredDocument(
                    record.partition, record.offset, 1, tuple(sorted(entries)), False
                )
    return held


def records_of(indexes: Iterable[str]) -> tuple[IndexRecord, ...]:
    made = []
    for id_ in indexes:
        parsed = parse_statement(STATEMENTS[id_])
        assert isinstance(parsed, CreateIndex)
        made.append(
            IndexRecord(id_, parsed.definition, "READY", 1, [["n"]] * parsed.definition.slices, "b", 0)
        )
    return tuple(made)


class FakeSlices:
    """Slices by hand; a newer pin is of the log's end."""

    def __init__(
        self, held: Held_, until: dict[int, int], later: Held_, ends: dict[int, int], limit: int
    ) -> None:
        self._states = {1: (held, until), 2: (later, ends)}
        self._limit = limit
        self.definitions = {one.id: one.definition for one in records_of(STATEMENTS)}
        self.pins = 0
        self.taken: dict[int, int] = {}

    def tables_taken_at(self) -> dict[int, int]:
        return self.taken

    def pin(self, stopped: Any = None, at_least: Timestamp | None = None) -> Pin:
        number = 1 if at_least is None else 2
        held, until = self._states[number]
        entries: dict[str, int] = {}
        for (index, _), slice_ in held.items():
            entries[index] = entries.get(index, 0) + len(slice_.entries)
        self.pins += 1
        return Pin(number, 0, Timestamp.of(until), "h", dict.fromkeys(held, "n"), entries)

    def release(self, pin: Pin) -> None:
        self.pins -= 1

    def digests(
        self, pin: Pin, bits: int, floors: dict[int, int]
    ) -> Iterator[tuple[SliceKey, Sums, int, list[DuplicateKey]]]:
        for place, slice_ in self._states[pin.number][0].items():
            total, left_out = digests.no_sums(bits), 0
            for stage in ("forward", "back"):
                after, more = b"", True
                while more:
                    ask = DigestAsk(*place, 1, 0, stage, bits, floors, after, self._limit)
                    answer = digest(slice_, self.definitions[place[0]], ask, UNHURRIED)
                    total += np.frombuffer(answer.sums, "<u8").reshape(total.shape)
                    left_out += answer.left_out if stage == "forward" else 0
                    after, more = answer.reached, answer.more
            yield place, total, left_out, []

    def apart(self, *_: Any) -> Iterator[tuple[SliceKey, str, list[int]]]:
        """Each has one copy."""
        return iter(())

    def rows(
        self, pin: Pin, places: Iterable[SliceKey], bits: int, buckets: Sequence[int], ids: Sequence[bytes]
    ) -> Iterator[tuple[SliceKey, list[tuple[bytes, bytes, bytes]], list[BackRow]]]:
        for place in places:
            entries, back = [], []
            for stage in ("forward", "back"):
                after, more = b"", True
                while more:
                    ask = RowsAsk(
                        *(*place, 1, 0, stage, bits),
                        buckets=list(buckets),
                        ids=list(ids),
                        after=after,
                        limit=self._limit,
                        bytes_limit=64,
                    )
                    answer = rows(
                        self._states[pin.number][0][place], self.definitions[place[0]], ask, UNHURRIED
                    )
                    entries += answer.entries
                    back += answer.back
                    after, more = answer.reached, answer.more
            yield place, entries, back


class FakeSource:
    def __init__(self, log: Log) -> None:
        self._log = log

    def earliest(self) -> dict[int, int]:
        return {partition: self._log.floors.get(partition, 0) for partition in range(PARTITIONS)}

    def ends(self) -> dict[int, int]:
        return self._log.ends()

    def deletions_kept_ms(self) -> int | None:
        return 86_400_000 if self._log.compacted else None

    def check(self, timestamp: Timestamp, incarnation: int) -> None:
        pass


class FakeReader:
    """Runs the tasks over the log, in small batches."""

    def __init__(self, log: Log, partitions: int, portion: int) -> None:
        self.partitions = partitions
        self._log, self._portion, self._read = log, portion, 0

    def documents(self) -> int:
        return self._read

    def _batches(self, reading: SourceRanges, partition: int) -> Iterator[SourceBatch]:
        start, end = reading.ranges[partition]
        mine = [r for r in self._log.records if r.partition == partition and start <= r.offset < end]
        mine.sort(key=lambda record: record.offset)
        for at in range(0, len(mine), 7):
            some = mine[at : at + 7]
            self._read += len(some)
            yield source_batch(partition, [(one.offset, one.time, one.id, one.value) for one in some])

    def sums(self, reading: SourceRanges, work: VerifyWork) -> Iterator[tuple[int, Counted]]:
        work = VerifyWork(**{**vars(work), "spill_bytes": self._portion})
        shuffled: dict[int, list[pa.RecordBatch]] = {}
        for partition in reading.ranges:
            for row in gather(work, self._batches(reading, partition)):
                shuffled.setdefault(row.column("route")[0].as_py(), []).append(row)
        for some in shuffled.values():
            some.sort(key=lambda row: row.column("place")[0].as_py())
            for row in sum_up(work, some):
                yield row.column("place")[0].as_py(), decode_counted(row.column("body")[0].as_py())

    def find(self, reading: SourceRanges, work: VerifyWork) -> list[DocumentVersions]:
        return [
            decode_found(row.column("body")[0].as_py())
            for partition in reading.ranges
            for row in find(work, self._batches(reading, partition))
        ]


def by(reader: FakeReader) -> Callable[[int], SourceReader]:
    return lambda _: cast(SourceReader, reader)


def context_of(
    log: Log, slices: FakeSlices, indexes: Iterable[str], limit: int = 10_000
) -> VerificationContext:
    return VerificationContext(
        keyspace="k",
        indexes=records_of(sorted(indexes)),
        slices=cast(SliceClient, slices),
        source=cast(KafkaSource, FakeSource(log)),
        limit=limit,
        origins=bool(slices.taken),
        stopped=threading.Event().is_set,
    )


def verified(log: Log, slices: FakeSlices, reader: FakeReader, limit: int = 10_000) -> VerificationResult:
    outcome = Verification(
        context_of(log, slices, STATEMENTS, limit), lambda _: cast(SourceReader, reader)
    ).run()
    assert slices.pins == 0
    return outcome


documents = st.one_of(
    st.none(),
    st.tuples(
        st.sampled_from(["a", "b", "c", "dd"]),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
        st.integers(0, 3),
    ),
)


@st.composite
def logs(draw: st.DrawFn, ids: int = 30, least: int = 1) -> tuple[Log, dict[int, int]]:
    """A log, and a timestamp somewhere in it. A document stays in its partition."""
    writes = st.lists(st.tuples(st.integers(0, ids), documents), min_size=least, max_size=80)
    records: list[Record] = []
    next_offset = dict.fromkeys(range(PARTITIONS), 0)
    for number, document in draw(writes):
        partition = number % PARTITIONS
        offset = next_offset[partition]
        next_offset[partition] = offset + draw(st.integers(1, 2))  # markers take offsets, too
        records.append(Record(partition, offset, b"d%d" % number, document))
    log = Log(records)
    until = {p: draw(st.integers(0, end)) for p, end in log.ends().items()}
    return log, until


readers = st.tuples(st.integers(1, 4), st.sampled_from([1, 2_000, 1 << 20]))


@settings(deadline=None, max_examples=share.examples(60))
@given(logs(), st.lists(st.booleans(), min_size=1, max_size=9), st.booleans(), readers, st.integers(1, 9))
def test_nothing_is_reported_of_a_right_index(
    given_: tuple[Log, dict[int, int]],
    cleaned: list[bool],
    compacts: bool,
    shape: tuple[int, int],
    limit: int,
) -> None:
    log, until = given_
    held, later, ends = indexed(log, until), indexed(log, log.ends()), log.ends()
    if compacts:
        log.compact(cleaned)
    slices = FakeSlices(held, until, later, ends, limit)
    outcome = verified(log, slices, FakeReader(log, *shape))
    assert outcome.differences == []
    assert outcome.counts == {}


@settings(deadline=None, max_examples=share.examples(60))
@given(logs(), st.tuples(st.integers(0, 20), st.integers(0, 20)), readers)
def test_what_retention_took_is_counted_and_nothing_else(
    given_: tuple[Log, dict[int, int]], floors: tuple[int, int], shape: tuple[int, int]
) -> None:
    log, until = given_
    held, later, ends = indexed(log, until), indexed(log, log.ends()), log.ends()
    floor = dict(enumerate(floors))
    gone = {docid for docid, one in log.newest(until).items() if one.offset < floor[one.partition]}
    unproven = sum(
        sum(held[place].entries.keys() >= {key + docid} for key in one.keys)
        for place in held
        for docid, one in held[place].back.items()
        if docid in gone
    )
    log.expire(floor)
    outcome = verified(log, FakeSlices(held, until, later, ends, 5), FakeReader(log, *shape))
    assert outcome.differences == []
    assert outcome.counts == ({"UNPROVABLE": unproven} if unproven else {})


def test_one_record_that_retention_took() -> None:
    log = Log([Record(0, offset, b"d%d" % offset, ("a", (), 1)) for offset in range(2)])
    ends = log.ends()
    held = indexed(log, ends)
    log.expire({0: 1, 1: 0})
    outcome = verified(log, FakeSlices(held, ends, held, ends, 5), FakeReader(log, 1, 1 << 20))
    assert outcome.differences == []
    assert outcome.counts == {"UNPROVABLE": 1}


@settings(deadline=None, max_examples=share.examples(80))
@given(
    logs(),
    st.tuples(st.integers(0, 10), st.integers(0, 10)),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.sets(st.integers(0, 30)),
    readers,
)
def test_records_that_a_table_stands_for_are_not_compared(
    given_: tuple[Log, dict[int, int]],
    tenths: tuple[int, int],
    floors: tuple[int, int],
    heard: set[int],
    shape: tuple[int, int],
) -> None:
    """The log still holds some records from before the table that the index began with. The index has rows in
    their place, or the records themselves, which projectors read later than the table was taken."""
    log, until = given_
    taken = {partition: end * tenths[partition] // 10 for partition, end in until.items()}
    held, later, ends = indexed(log, until), indexed(log, log.ends()), log.ends()
    for slice_ in (*held.values(), *later.values()):
        for row, (docid, one) in enumerate(sorted(slice_.back.items())):
            if one.offset < taken[one.partition] and int(docid[1:]) not in heard:
                slice_.back[docid] = one._replace(partition=TABLE_PARTITION, offset=row, time=0)
    log.expire(dict(enumerate(floors)))
    starts = {partition: max(floor, taken[partition]) for partition, floor in enumerate(floors)}
    unproven = sum(
        len(one.keys)
        for slice_ in held.values()
        for one in slice_.back.values()
        if one.partition == TABLE_PARTITION or one.offset < starts[one.partition]
    )
    slices = FakeSlices(held, until, later, ends, 5)
    slices.taken = taken
    outcome = verified(log, slices, FakeReader(log, *shape))
    assert outcome.differences == []
    assert outcome.counts == ({"UNPROVABLE": unproven} if unproven else {})
    assert outcome.documents <= sum(max(0, end - starts[partition]) for partition, end in ends.items())

    looks = LiveComparison(
        context_of(log, slices, [CITY]), lambda _: cast(SourceReader, FakeReader(log, *shape))
    )
    ids = {b"d%d" % number for number in range(31)}
    truths, there, evidence = looks.read_documents(slices.pin(), ids)
    found = [judge(CITY, one, there.get(one, ()), truths.get(one, NOTHING), evidence) for one in ids]
    assert {one.kind for one in found if isinstance(one, Difference)} <= {DifferenceClass.UNPROVABLE}


@settings(deadline=None, max_examples=share.examples(150))
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), documents), min_size=1, max_size=40),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.booleans(),
    readers,
)
def test_documents_that_move_between_partitions_are_not_taken_for_faults_once_their_deletions_are_gone(
    writes: list[tuple[int, int, Any]], kept: list[bool], expires: bool, shape: tuple[int, int]
) -> None:
    """An index that met all writes in their order; then each partition loses what it may."""
    held = indexed(Log([]), dict.fromkeys(range(PARTITIONS), 0))
    log, next_offset = Log([]), dict.fromkeys(range(PARTITIONS), 0)
    for time, (number, partition, document) in enumerate(writes):
        offset, docid = next_offset[partition], b"d%d" % number
        next_offset[partition] = offset + 1
        log.records.append(Record(partition, offset, docid, document, time))
        for (index, slice_number), slice_ in held.items():
            entries = entries_of(index, document).get(slice_number, {})
            before = slice_.back.pop(docid, None)
            after, _ = step(before, partition, offset, time, sorted(entries))
            for key in before.keys if before is not None else ():
                del slice_.entries[key + docid]
            if after is not None:
                slice_.back[docid] = after
                slice_.entries.update((key + docid, value) for key, value in entries.items())
    until = log.ends()
    if expires:
        log.expire({partition: end * len(kept) // 10 for partition, end in until.items()})
    else:
        last = {(one.partition, one.id): one.offset for one in log.records}
        log.compacted = True
        records, log.records = log.records, []
        left: set[tuple[int, bytes]] = set()
        for at, one in enumerate(records):
            place = (one.partition, one.id)
            newest = last[place] == one.offset
            # A deletion goes when nothing older of its partition is left.
            if kept[at % len(kept)] or (newest and (one.document is not None or place in left)):
                log.records.append(one)
                left.add(place)
    log.records += [Record(p, end, b"end", None, len(writes)) for p, end in until.items()]
    outcome = verified(log, FakeSlices(held, until, held, log.ends(), 5), FakeReader(log, *shape))
    assert set(outcome.counts) <= {"UNPROVABLE"}, outcome.differences


FAULTS = ("missing", "ghost", "extra", "wrong key", "included", "wrong slice", "version", "unknown to back")


@settings(deadline=None, max_examples=share.examples(80))
@given(
    logs(),
    st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 1_000)), min_size=1, max_size=6),
    readers,
    st.integers(1, 9),
    st.lists(st.booleans(), max_size=9),
)
def test_every_planted_fault_is_found_and_rightly_named(
    given_: tuple[Log, dict[int, int]],
    faults: list[tuple[str, int]],
    shape: tuple[int, int],
    limit: int,
    cleaned: list[bool],
) -> None:
    log, until = given_
    if cleaned:  # what the index holds at the end is in the source, whatever the cleaner takes
        until = log.ends()
    held = indexed(log, until)
    if cleaned:
        log.compact(cleaned)
    expected: dict[tuple[str, bytes], DifferenceClass] = {}
    for fault, chance in faults:
        planted = _plant(held, fault, chance, expected)
        if planted is not None:
            expected[planted[0], planted[1]] = planted[2]
    slices = FakeSlices(held, until, held, until, limit)
    outcome = verified(log, slices, FakeReader(log, *shape))
    found: dict[tuple[str, bytes], DifferenceClass] = {}
    for one in outcome.differences:
        assert (one.index, one.id) not in found
        found[one.index, one.id] = one.kind
    assert found == expected
    assert sum(outcome.counts.values()) == len(expected)


def _plant(
    held: Held_, fault: str, chance: int, taken: dict[tuple[str, bytes], DifferenceClass]
) -> tuple[str, bytes, DifferenceClass] | None:
    """Plant one fault in a document of CITY that has none yet; what is to be found."""
    if fault in ("ghost", "extra"):
        docid, slice_ = b"nobody%d" % chance, held[CITY, chance % 3]
        if (CITY, docid) in taken:
            return None
        slice_.entries[encode_key(["x"]) + docid] = pack_value(b"", b'{"n":0}')
        if fault == "extra":
            slice_.back[docid] = StoredDocument(0, 0, 1, (encode_key(["x"]),), False)
        return CITY, docid, DifferenceClass.EXTRA
    places = [(place, docid) for place in held for docid in sorted(held[place].back) if place[0] == CITY]
    places = [
        (place, docid) for place, docid in places if (CITY, docid) not in taken and b"nobody" not in docid
    ]
    if not places:
        return None
    place, docid = places[chance % len(places)]
    slice_ = held[place]
    record = slice_.back[docid]
    (key,) = record.keys
    value = slice_.entries[key + docid]
    match fault:
        case "missing":
            del slice_.entries[key + docid], slice_.back[docid]
            return CITY, docid, DifferenceClass.MISSING
        case "wrong key":
            del slice_.entries[key + docid]
            slice_.entries[encode_key(["wrong"]) + docid] = value
            slice_.back[docid] = record._replace(keys=(encode_key(["wrong"]),))
            return CITY, docid, DifferenceClass.WRONG_KEY
        case "included":
            slice_.entries[key + docid] = pack_value(b"", b'{"n":77}')
            return CITY, docid, DifferenceClass.WRONG_INCLUDED
        case "wrong slice":
            other = held[CITY, (place[1] + 1) % 3]
            del slice_.entries[key + docid], slice_.back[docid]
            other.entries[key + docid], other.back[docid] = value, record
            return CITY, docid, DifferenceClass.WRONG_KEY
        case "version":
            slice_.back[docid] = record._replace(offset=record.offset + 1)
            return CITY, docid, DifferenceClass.WRONG_RECORD
        case _:
            del slice_.back[docid]
            return CITY, docid, DifferenceClass.WRONG_RECORD


@settings(deadline=None, max_examples=20)
@given(logs(), st.integers(1, 5))
def test_an_index_that_is_wrong_everywhere_is_listed_up_to_the_limit(
    given_: tuple[Log, dict[int, int]], limit: int
) -> None:
    log, until = given_
    held = indexed(log, until)
    wrong = 0
    for place, slice_ in held.items():
        if place[0] == CITY:
            wrong += len(slice_.back)
            slice_.entries.clear()
            slice_.back.clear()
    outcome = verified(log, FakeSlices(held, until, held, until, 100), FakeReader(log, 1, 1 << 20), limit)
    listed = outcome.differences
    assert len(listed) == min(wrong, limit)
    assert {one.kind for one in listed} <= {DifferenceClass.MISSING}
    index = outcome.indexes[CITY]
    assert index.counts.get("MISSING", 0) == len(listed) + index.unlisted
    assert (index.not_examined + index.unlisted > 0) == (wrong > limit)


LAST = max(range(600), key=lambda n: xxhash.xxh3_64_intdigest(b"d%d" % n))


def _changed_and_cleaned(count: int) -> tuple[Log, FakeSlices]:
    """A right index of documents that all were changed after the snapshot; the cleaner has come since. But
    one is missing, which was not changed, and its bucket comes last."""
    records = [Record(n % 2, n // 2, b"d%d" % n, ("a", (), n)) for n in range(count)]
    log = Log(records)
    until = log.ends()
    held = indexed(log, until)
    changed = [Record(n % 2, (count + n) // 2, b"d%d" % n, ("b", (), n)) for n in range(count) if n != LAST]
    log.records = [*records, *changed]
    later, missing = indexed(log, log.ends()), b"d%d" % LAST
    for state in (held, later):
        for (index, _), slice_ in state.items():
            if index == CITY and missing in slice_.back:
                (key,) = slice_.back.pop(missing).keys
                del slice_.entries[key + missing]
    log.compact([True])
    return log, FakeSlices(held, until, later, log.ends(), 500)


def test_what_cannot_be_decided_at_once_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "GROUP_DOCUMENTS", 1)
    log, slices = _changed_and_cleaned(600)
    outcome = verified(log, slices, FakeReader(log, 1, 1 << 20), 100)
    assert [(one.kind, one.id) for one in outcome.differences] == [(DifferenceClass.MISSING, b"d%d" % LAST)]
    assert outcome.counts == {"MISSING": 1}


def test_what_was_not_examined_is_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "GROUP_DOCUMENTS", 1)
    log, slices = _changed_and_cleaned(600)
    monkeypatch.setattr(slices, "pin", lambda *_: FakeSlices.pin(slices))  # nothing is ever decided
    outcome = verified(log, slices, FakeReader(log, 1, 1 << 20), 100)
    left = outcome.indexes[CITY].not_examined
    assert left > 0
    assert outcome.counts == {"NOT_EXAMINED": left, "UNPROVABLE": outcome.indexes[CITY].counts["UNPROVABLE"]}
    assert not is_clean(outcome.counts)


def test_few_entries_of_many_documents_are_looked_at_in_groups_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "GROUP_VERSIONS", 200)
    log = Log([Record(n % 2, n // 2, b"d%d" % n, ("a", () if n % 20 else (1,), n)) for n in range(600)])
    until = log.ends()
    held = indexed(log, until)
    for (index, _), slice_ in held.items():
        if index == TAGS:
            slice_.entries.clear()
            slice_.back.clear()
    reader, sizes = FakeReader(log, 1, 1 << 20), []

    def found(reading: SourceRanges, work: VerifyWork) -> list[DocumentVersions]:
        versions = FakeReader.find(reader, reading, work)
        sizes.append(sum(len(decode(one.before)) for one in versions))
        return versions

    monkeypatch.setattr(reader, "find", found)
    outcome = verified(log, FakeSlices(held, until, held, until, 500), reader)
    assert outcome.counts == {"MISSING": 30}
    assert max(sizes) <= 200


class Sharing(FakeSlices):
    """Slices in which d0 and d1 have one key; they never get to a newer snapshot."""

    def pin(self, stopped: Any = None, at_least: Timestamp | None = None) -> Pin:
        return super().pin(stopped)

    def digests(
        self, pin: Pin, bits: int, floors: dict[int, int]
    ) -> Iterator[tuple[SliceKey, Sums, int, list[DuplicateKey]]]:
        key = encode_key(["a"])
        for place, total, left_out, _ in super().digests(pin, bits, floors):
            mine = place[0] == CITY and key + b"d0" in self._states[1][0][place].entries
            yield place, total, left_out, [DuplicateKey(key, (b"d0", b"d1"))] if mine else []


@pytest.mark.parametrize("compacted", [False, True])
def test_a_shared_key_of_documents_that_are_always_written_is_not_forgotten(compacted: bool) -> None:
    log = Log([Record(n, 0, b"d%d" % n, ("a", (), n)) for n in (0, 1)], compacted)
    until = log.ends()
    held = indexed(log, until)
    outcome = verified(log, Sharing(held, until, held, until, 9), FakeReader(log, 1, 1 << 20))
    (one,) = outcome.differences
    assert (one.kind, one.id, one.others) == (DifferenceClass.DUPLICATE_UNIQUE, b"d0", (b"d1",))
    log.records += [Record(n, 1, b"d%d" % n, ("a", (), n)) for n in (0, 1)]
    outcome = verified(log, Sharing(held, until, held, until, 9), FakeReader(log, 1, 1 << 20))
    (one,) = outcome.differences
    assert (one.kind, one.id, one.others) == (DifferenceClass.UNPROVABLE, b"d0", (b"d1",))
    assert CHANGES_TOO_FAST in one.reason
    assert outcome.counts == {"UNPROVABLE": 1}


class TwoCopies(FakeSlices):
    """Of each slice there is another copy, on a node "m", some of which have lost or got something."""

    def __init__(self, held: Held_, until: dict[int, int], other: Held_) -> None:
        super().__init__(held, until, held, until, 9)
        self._other = FakeSlices(other, until, other, until, 9)

    def apart(self, *arguments: Any) -> Iterator[tuple[SliceKey, str, list[int]]]:
        pin, bits, floors, sums = arguments
        for place, mine, _, _ in self._other.digests(pin, bits, floors):
            if differs := np.flatnonzero((mine != sums[place]).any(axis=0)).tolist():
                yield place, "m", differs

    def rows(
        self, pin: Pin, places: Iterable[SliceKey], bits: int, buckets: Sequence[int], ids: Sequence[bytes]
    ) -> Iterator[tuple[SliceKey, list[tuple[bytes, bytes, bytes]], list[BackRow]]]:
        places = list(places)
        if {pin.nodes[place] for place in places} == {"m"}:
            return self._other.rows(pin, places, bits, buckets, ids)
        return super().rows(pin, places, bits, buckets, ids)


def test_documents_of_which_copies_hold_something_else_are_named() -> None:
    log = Log([Record(n % 2, n // 2, b"d%d" % n, ("a", (), n)) for n in range(200)])
    until = log.ends()
    held, other = indexed(log, until), indexed(log, until)
    place = next(place for place, slice_ in other.items() if place[0] == CITY and b"d7" in slice_.back)
    (key,) = other[place].back.pop(b"d7").keys
    del other[place].entries[key + b"d7"]
    outcome = verified(log, TwoCopies(held, until, other), FakeReader(log, 1, 1 << 20))
    (one,) = outcome.differences
    assert (one.kind, one.index, one.id) == (DifferenceClass.COPIES_DIFFER, CITY, b"d7")
    assert (len(one.expected), one.found) == (1, ())
    assert f"slice {place[1]} on node m" in one.reason
    assert not is_clean(outcome.counts)
    outcome = verified(log, TwoCopies(held, until, other), FakeReader(log, 1, 1 << 20), 0)
    assert outcome.counts == {"NOT_EXAMINED": 1}
    assert verified(log, TwoCopies(held, until, held), FakeReader(log, 1, 1 << 20)).counts == {}


class Racing(FakeReader):
    """Reads a log that is written and cleaned while it is read."""

    def __init__(self, log: Log, history: Log, changes: list[tuple[int, Any, bool]], every: int) -> None:
        super().__init__(log, 2, 2_000)
        self._history, self._changes, self._every, self._count = history, changes, every, 0

    def _batches(self, reading: SourceRanges, partition: int) -> Iterator[SourceBatch]:
        start, end = reading.ranges[partition]
        offset = start
        while offset < end:  # a record is what it is when it is reached, if it is still there
            self._race()
            mine = sorted(
                (
                    one
                    for one in self._log.records
                    if one.partition == partition and offset <= one.offset < end
                ),
                key=lambda one: one.offset,
            )
            if not mine:
                return
            offset = mine[0].offset + 1
            yield source_batch(partition, [(mine[0].offset, 1_000, mine[0].id, mine[0].value)])

    def _race(self) -> None:
        self._count += 1
        if not self._changes or self._count % self._every:
            return
        number, document, cleans = self._changes.pop()
        partition = number % PARTITIONS
        record = Record(partition, self._history.ends()[partition], b"d%d" % number, document)
        self._history.records.append(record)
        self._log.records = [*self._log.records, record]
        if cleans:
            self._log.compact([True])


class RacingSlices(FakeSlices):
    """Slices that hold whatever was ever written, up to the moment at which they are pinned."""

    def __init__(self, history: Log) -> None:
        super().__init__({}, {}, {}, {}, 50)
        self._history = history

    def pin(self, stopped: Any = None, at_least: Timestamp | None = None) -> Pin:
        until = self._history.ends()
        number = len(self._states) + 1
        self._states[number] = (indexed(self._history, until), until)
        self.pins += 1
        entries = {CITY: 10, TAGS: 10}
        return Pin(number, 0, Timestamp.of(until), "h", dict.fromkeys(self._states[number][0], "n"), entries)


@settings(deadline=None, max_examples=share.examples(150))
@given(
    logs(ids=7, least=20),
    st.lists(st.tuples(st.integers(0, 7), documents, st.booleans()), min_size=20, max_size=80),
    st.integers(1, 5),
)
def test_the_cleaner_racing_with_the_read_makes_no_fault(
    given_: tuple[Log, dict[int, int]], changes: list[tuple[int, Any, bool]], every: int
) -> None:
    log, _ = given_
    history = Log(list(log.records))
    log.compacted = True
    outcome = verified(log, RacingSlices(history), Racing(log, history, changes, every))
    assert {one.kind for one in outcome.differences} <= {DifferenceClass.UNPROVABLE}, outcome.differences
    assert set(outcome.counts) <= {"UNPROVABLE"}
