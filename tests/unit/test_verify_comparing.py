"""Verdicts on single documents: what is proven, what is not, and what must be looked at again; and the order
of versions in two source partitions."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from keytide.catalog.records import IndexRecord, JobRecord
from keytide.collation import encode_key
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.entry import pack_value
from keytide.model.timestamp import TABLE_PARTITION, Timestamp
from keytide.wire.digests import BackRow
from streaming.repair.corrections import planned, wanted
from streaming.slices.pins import Pin
from streaming.verify import report
from streaming.verify.core.comparing import (
    NOTHING,
    UNDECIDED,
    Evidence,
    RememberedDeletion,
    SourceDocument,
    indexed_documents_of,
    judge,
    source_documents_of,
)
from streaming.verify.core.difference import (
    Difference,
    DifferenceClass,
    IndexedDocument,
    SliceEntry,
    VersionPlace,
)
from streaming.verify.core.newest import VERSIONS, Versions, decided, reduced
from streaming.verify.documents import IndexOutcome, VerificationResult

KEY, OTHER = encode_key(["a"]), encode_key(["b"])
ENTRY = SliceEntry(KEY, b"", 1)
COMPACTED = Evidence(compacted=True)


def held(offset: int, *, partition: int = 0, key: bytes = KEY, slice_: int = 1) -> list[IndexedDocument]:
    return [
        IndexedDocument(slice_, VersionPlace(partition, offset, 5), (key,), (SliceEntry(key, b"", slice_),))
    ]


def source(offset: int, *, later: bool = False, entry: bool = True, partition: int = 0) -> SourceDocument:
    return SourceDocument(VersionPlace(partition, offset, 5), {"i": (ENTRY,)} if entry else {}, later)


def kind_of(
    holdings: list[IndexedDocument], truth: SourceDocument, evidence: Evidence = Evidence()
) -> str | None:
    verdict = judge("i", b"d", holdings, truth, evidence)
    return verdict.kind.value if isinstance(verdict, Difference) else verdict


def test_what_is_right() -> None:
    assert kind_of(held(7), source(7)) is None
    assert kind_of([], NOTHING) is None
    assert kind_of([], source(7, entry=False)) is None
    assert kind_of(held(7), source(7, later=True), COMPACTED) is None


def test_what_is_wrong_on_a_source_that_keeps_everything() -> None:
    assert kind_of([], source(7)) == "MISSING"
    assert kind_of([], source(7, later=True)) == "MISSING"
    assert kind_of(held(7), NOTHING) == "EXTRA"
    assert kind_of(held(7), source(9, entry=False)) == "EXTRA"
    assert kind_of(held(7, key=OTHER), source(7)) == "WRONG_KEY"
    assert kind_of(held(7, slice_=2), source(7)) == "WRONG_KEY"
    assert kind_of(held(6), source(7)) == "WRONG_RECORD"
    assert kind_of(held(7, partition=1), source(7)) == "WRONG_RECORD"
    twice = [*held(7), *held(7, slice_=2)]
    assert kind_of(twice, source(7)) == "EXTRA"
    blind = [IndexedDocument(1, None, (), (ENTRY,))]
    assert kind_of(blind, source(7)) == "WRONG_RECORD"
    verdict = judge("i", b"d", blind, NOTHING, Evidence())
    assert isinstance(verdict, Difference)
    assert verdict.kind is DifferenceClass.EXTRA
    assert "does not know" in verdict.reason


def test_a_newer_record_past_the_snapshot_leaves_it_open_on_a_compacted_topic() -> None:
    """The index may be right by a record that the cleaner has taken since."""
    assert kind_of(held(9, key=OTHER), source(7, later=True), COMPACTED) == UNDECIDED
    assert kind_of([], source(7, later=True), COMPACTED) == UNDECIDED
    assert kind_of(held(7), SourceDocument(later=True), COMPACTED) == UNDECIDED
    # The very version is still there: proven.
    assert kind_of(held(7, key=OTHER), source(7, later=True), COMPACTED) == "WRONG_KEY"
    # Nothing newer: the cleaner keeps the newest.
    assert kind_of(held(9, key=OTHER), source(7), COMPACTED) == "WRONG_KEY"
    assert kind_of(held(9), NOTHING, COMPACTED) == "EXTRA"


STALE = held(3, partition=1, key=OTHER)
MOVED = SourceDocument(VersionPlace(0, 7, 5), {"i": (ENTRY,)}, False, (VersionPlace(1, 3, 5),))
"""Written to partition 1 first, and to partition 0 then; the index has the older one."""


@pytest.mark.parametrize(
    ("holdings", "truth", "evidence"),
    [
        pytest.param(held(7), NOTHING, Evidence(floors={0: 8}), id="expired"),
        pytest.param([], source(7), Evidence(floors={0: 8}), id="expired while it was read"),
        pytest.param(held(3, partition=TABLE_PARTITION), NOTHING, Evidence(), id="a row of the table"),
        pytest.param(held(7), NOTHING, Evidence(compacted=True, deletions_lost=True), id="deletion lost"),
        pytest.param([], source(7), Evidence(compacted=True, deletions_lost=True), id="deleted meanwhile"),
        pytest.param(STALE, MOVED, COMPACTED, id="two partitions, compacted"),
        pytest.param(STALE, MOVED, Evidence(floors={0: 1}), id="two partitions, one has lost its beginning"),
        pytest.param(STALE, MOVED, Evidence(floors={0: 0, 1: 2}), id="two partitions, the other one has"),
        pytest.param(STALE, source(7), Evidence(floors={1: 4}), id="two partitions, the record is gone"),
    ],
)
def test_what_the_source_cannot_prove(
    holdings: list[IndexedDocument], truth: SourceDocument, evidence: Evidence
) -> None:
    assert kind_of(holdings, truth, evidence) == "UNPROVABLE"


@pytest.mark.parametrize("floors", [{}, {0: 0, 1: 0, 2: 9}])
def test_from_a_log_that_has_everything_the_newer_of_two_partitions_is_told(floors: dict[int, int]) -> None:
    """As after a build that read the older write in a later micro-batch."""
    deleted = SourceDocument(MOVED.version, {}, False, MOVED.others)
    right = held(7)
    for holdings, truth, kind in (
        (STALE, MOVED, DifferenceClass.WRONG_KEY),
        (STALE, deleted, DifferenceClass.EXTRA),
        ([*right, *held(3, partition=1, key=OTHER, slice_=2)], MOVED, DifferenceClass.EXTRA),
        (held(3, partition=1), MOVED, DifferenceClass.WRONG_RECORD),
    ):
        verdict = judge("i", b"d", holdings, truth, Evidence(floors=floors))
        assert isinstance(verdict, Difference)
        assert verdict.kind is kind
        assert ("older was met last" in verdict.reason) is (kind is not DifferenceClass.WRONG_RECORD)
    assert kind_of(right, MOVED) is None


def test_a_stale_entry_is_a_fault_even_if_its_own_record_has_expired() -> None:
    assert kind_of(held(7, key=OTHER), source(9), Evidence(floors={0: 8})) == "WRONG_KEY"
    assert kind_of(held(3, partition=TABLE_PARTITION, key=OTHER), source(9)) == "WRONG_KEY"


def remembered(partition: int, time: int, *, slice_: int = 1) -> list[IndexedDocument]:
    """As the slice's rows say it: no keys, met in two partitions."""
    rows = [BackRow(b"d", partition, 20, time, (), True)]
    return [one for _, one in indexed_documents_of(slice_, [], rows)]


BOTH = SourceDocument(VersionPlace(1, 7, 5), {"i": (ENTRY, SliceEntry(OTHER, b"", 2))})


@pytest.mark.parametrize(
    ("holdings", "truth", "evidence"),
    [
        pytest.param(remembered(0, 6), source(7, partition=1), COMPACTED, id="compacted"),
        pytest.param(remembered(1, 5), source(7), COMPACTED, id="of the same time, in a larger partition"),
        pytest.param(remembered(0, 6), source(7, partition=1), Evidence(floors={0: 21}), id="expired"),
        pytest.param(
            *(remembered(0, 6), source(7, partition=1)._replace(others=(VersionPlace(0, 20, 4),))),
            Evidence(floors={0: 9}),
            id="still there, but the record whose time it has is not",
        ),
        pytest.param(remembered(0, 6, slice_=2), source(7, partition=1), COMPACTED, id="in another slice"),
        pytest.param(
            [*held(7, partition=1), *remembered(0, 6, slice_=2)], BOTH, COMPACTED, id="one slice knew nothing"
        ),
    ],
)
def test_a_deletion_that_won_in_another_partition_is_no_fault_when_it_is_gone(
    holdings: list[IndexedDocument], truth: SourceDocument, evidence: Evidence
) -> None:
    """What is left of the document is older: a repair that believed it would bring the document back."""
    verdict = judge("i", b"d", holdings, truth, evidence)
    assert isinstance(verdict, Difference)
    assert (verdict.kind, wanted([verdict])) == (DifferenceClass.UNPROVABLE, set())
    assert "newer deletion" in verdict.reason


@pytest.mark.parametrize(
    ("holdings", "truth", "evidence"),
    [
        pytest.param(remembered(0, 6), source(7, partition=1), Evidence(), id="the log has everything"),
        pytest.param(remembered(0, 6), source(7, partition=1), Evidence(floors={0: 20}), id="but not it"),
        pytest.param(remembered(0, 4), source(7, partition=1), COMPACTED, id="older"),
        pytest.param(remembered(0, 5), source(7, partition=1), COMPACTED, id="older by its partition"),
        pytest.param(remembered(1, 6), source(27, partition=1), COMPACTED, id="older by its offset"),
        pytest.param(remembered(TABLE_PARTITION, 6), source(7), COMPACTED, id="a row of the table"),
    ],
)
def test_a_deletion_that_has_not_won_hides_nothing(
    holdings: list[IndexedDocument], truth: SourceDocument, evidence: Evidence
) -> None:
    assert kind_of(holdings, truth, evidence) == "MISSING"


def test_a_remembered_deletion_is_nothing_else() -> None:
    """It changes no other verdict, and a repair sees nothing there."""
    (one,) = remembered(0, 6)
    assert one == RememberedDeletion(1, None, (), (), VersionPlace(0, 20, 6))
    assert kind_of([one], NOTHING, COMPACTED) is None
    assert kind_of([one], source(20, entry=False), COMPACTED) is None
    stale = [one, *held(3, partition=1, slice_=2)]
    assert kind_of(stale, source(7, partition=1, entry=False), COMPACTED) == "EXTRA"
    assert planned(b"d", "i", 2, [one], source(20, entry=False)) == []
    assert [p.action for p in planned(b"d", "i", 2, [one], source(21))] == ["put"]
    ((_, ghost),) = indexed_documents_of(1, [(b"d", KEY, b"")], [BackRow(b"d", 0, 20, 6, (), True)])
    assert kind_of([ghost], source(20)) == kind_of([IndexedDocument(1, None, (), (ENTRY,))], source(20))


# --- versions ---------------------------------------------------------------------------------------------


def versions(*rows: tuple[int, int, int, int, bytes]) -> Versions:
    """(hash, partition, offset, time, id); each has an entry whose key is its offset."""
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(VERSIONS) if at < 5]
    entries = [[{"index": 0, "slice": 0, "key": b"%d" % row[2], "value": b""}] for row in rows]
    columns.append(pa.array(entries, VERSIONS.field("entries").type))
    return pa.RecordBatch.from_arrays(columns, schema=VERSIONS)


def test_the_newest_of_a_partition_by_offset_with_its_largest_time() -> None:
    found = reduced(
        versions((1, 0, 3, 90, b"a"), (1, 0, 5, 10, b"a"), (2, 0, 4, 1, b"b"), (1, 0, 1, 5, b"a"))
    )
    places = list(zip(found.column("id").to_pylist(), found.column("offset").to_pylist(), strict=True))
    assert sorted(places) == [(b"a", 5), (b"b", 4)]
    assert (
        dict(zip(found.column("offset").to_pylist(), found.column("time").to_pylist(), strict=True))[5] == 90
    )
    assert sorted(found.column("entries").flatten().field("key").to_pylist()) == [b"4", b"5"]


def test_between_partitions_by_time_then_partition() -> None:
    both = reduced(versions((1, 0, 9, 50, b"a"), (1, 1, 2, 60, b"a"), (2, 0, 3, 7, b"b"), (2, 1, 4, 7, b"b")))
    newest, foreign = decided(both)
    assert newest.column("offset").to_pylist() == [2, 4]
    assert len(foreign) == 2
    truths = source_documents_of(both, versions((1, 1, 8, 70, b"a")), ["i"])
    assert truths[b"a"].version == VersionPlace(1, 2, 60)
    assert truths[b"a"].others == (VersionPlace(0, 9, 50),)
    assert (truths[b"a"].later, truths[b"b"].later) == (True, False)
    assert truths[b"b"].entries["i"][0].key == b"4"


def test_two_ids_with_one_hash_are_two_documents() -> None:
    found = reduced(versions((1, 0, 3, 1, b"a"), (1, 0, 4, 1, b"z"), (1, 0, 5, 1, b"a"), (1, 0, 6, 1, b"z")))
    newest, foreign = decided(found)
    assert sorted(newest.column("id").to_pylist()) == [b"a", b"z"]
    assert sorted(newest.column("offset").to_pylist()) == [5, 6]
    assert len(foreign) == 0


# --- report -----------------------------------------------------------------------------------------------


def test_the_report_shows_keys_and_columns_as_people_read_them(tmp_path: Path) -> None:
    parsed = parse_statement("CREATE INDEX i ON k (city, age DESC) INCLUDE (name) WITH (slices=2)")
    assert isinstance(parsed, CreateIndex)
    index = IndexRecord("i-1", parsed.definition, "READY", 1, [["n"], ["n"]], "b1", 0)
    key = encode_key(["Oslo", None], (False, True))
    good = SliceEntry(key, pack_value(b"", b'{"name":"Eva"}'), 1)
    bad = SliceEntry(b"\xff\xff", b"", 0)
    one = Difference(
        DifferenceClass.WRONG_KEY,
        "i-1",
        b"d1",
        (good,),
        (bad,),
        VersionPlace(0, 7, 5),
        {0: VersionPlace(0, 6, 4)},
    )
    outcome = VerificationResult(
        Pin(9, 0, Timestamp.of({0: 8}), "h", {}), {"i-1": IndexOutcome("i-1", 4, 2)}, 8, [one]
    )
    outcome.indexes["i-1"].counts = {"WRONG_KEY": 1}
    job = JobRecord("j1", "verify", "k", ["i-1"], "RUNNING", 0)
    found = report.summary(job, [index], outcome, 1_000, 3_500)
    report.write(tmp_path, found, outcome.differences, [index])
    summary = json.loads((tmp_path / report.REPORT_NAME).read_text())
    assert (summary["clean"], summary["complete"], summary["seconds"]) == (False, True, 2.5)
    assert summary["indexes"][0]["counts"] == {"WRONG_KEY": 1}
    (line,) = (tmp_path / report.DIFFERENCES_NAME).read_text().splitlines()
    shown = json.loads(line)
    assert shown["expected"] == [{"key": ["Oslo", None], "slice": 1, "include": {"name": "Eva"}}]
    assert shown["found"] == [{"key": [], "slice": 0, "bytes": ["ffff", ""]}]
    assert (shown["version"]["offset"], shown["held"]["0"]["offset"]) == (7, 6)
