"""What is written to a slice: totals, the values that come most often, and a list of values."""

from __future__ import annotations

import random

import pytest

from indexer.slice.write_load import LISTED, SAMPLE_EVERY, SAMPLED, SHOW_MS, TOLD, WINDOW_MS, WriteLoad
from keytide.collation import encode_key, encode_part
from keytide.collation.layout import Value
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.wire.index_lists import WrittenSlice
from keytide.wire.messages import Segment
from tests.store_kit import Version, segment
from tests.structure_kit import as_stored


def definition(keys: str, rest: str = "", using: str = "") -> IndexDefinition:
    statement = parse_statement(f"CREATE INDEX i ON people {using}({keys}) {rest}")
    assert isinstance(statement, CreateIndex)
    return statement.definition


def brings(of: IndexDefinition, keys: list[tuple[Value, ...]], start: int = 0) -> Segment:
    """A segment with a document for each key; ids are d0, d1, ..."""
    versions = [
        Version(
            b"d%d" % (start + at),
            0,
            start + at,
            0,
            tuple(as_stored(of, [(encode_key(key, of.descending), b"", None)])),
        )
        for at, key in enumerate(keys)
    ]
    return segment(versions, start, start + len(keys))


def shown(load: WriteLoad, now: int = SHOW_MS) -> WrittenSlice:
    load.look(now)
    return load.shown


@pytest.mark.parametrize(
    ("keys", "rest", "part"),
    [
        ("city", "", 0),
        ("city", "USING hash", 0),
        ("age, city", "PARTITION BY HASH(city) USING hash", 1),
        ("city DESC, age", "", 0),
        ("age, city", "PARTITION BY HASH(city)", 1),
        ("age, city DESC", "PARTITION BY RANGE(city)", 1),
    ],
)
def test_the_value_that_has_most_of_the_load_is_found(keys: str, rest: str, part: int) -> None:
    using = "USING hash " if "USING" in rest else ""
    of, random_ = definition(keys, rest.removesuffix("USING hash"), using), random.Random(1)
    load = WriteLoad(3, of)
    for commit in range(100):
        cities = ["Rome" if random_.random() < 0.7 else f"c{random_.randrange(10_000)}" for _ in range(200)]
        rows: list[tuple[Value, ...]] = [(city, 7) if part == 0 else (7, city) for city in cities]
        load.committed([brings(of, [row[: len(of.keys)] for row in rows], commit * 200)], 200)
    found = shown(load)
    assert (found.slice, found.known, load.entries) == (3, True, 20_000)
    first, *others = found.heavy
    assert first.value == encode_part("Rome")
    assert 0.55 < first.least / found.total <= first.most / found.total < 0.85
    assert all(one.least / found.total < 0.1 for one in others)
    assert len(found.heavy) <= TOLD
    assert 0.5 < found.listed.count(encode_part("Rome")) / len(found.listed) < 0.9


def test_of_an_index_by_document_id_documents_are_told() -> None:
    of = definition("city", "PARTITION BY HASH(id)")
    load = WriteLoad(0, of)
    for start in range(0, 20_000, 200):
        load.committed([brings(of, [("Rome",)] * 200, start)], 200)
    assert {one.value for one in shown(load).heavy} <= {encode_part(f"d{number}") for number in range(20_000)}


def test_where_entries_do_not_say_the_value_only_totals_are_told() -> None:
    of = definition("city", "PARTITION BY HASH(age)")
    load = WriteLoad(0, of)
    load.committed([brings(of, [("Rome",)] * 200)], 200)
    assert (shown(load), load.entries) == (WrittenSlice(0, known=False), 200)


def test_few_entries_of_a_commit_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    of, load = definition("city"), WriteLoad(0, definition("city"))
    looked: list[bytes] = []
    cut_out = load._cut_out

    def look(key: bytes) -> bytes | None:
        looked.append(key)
        return cut_out(key)

    monkeypatch.setattr(load, "_cut_out", look)
    load.committed([brings(of, [(f"c{n}",) for n in range(3_000)])], 3_000)
    assert len(looked) == SAMPLED
    looked.clear()
    for number in range(SAMPLE_EVERY - 1):  # too few for a sample
        load.committed([brings(of, [("x",)], number)], 1)
    assert not looked
    load.committed([brings(of, [("x",)], 5_000), brings(of, [("y",), ("z",)], 5_001)], 3)
    assert len(looked) == 3
    assert shown(load).total == pytest.approx(3_000 + SAMPLE_EVERY + 2)


def test_nothing_is_looked_at_of_a_commit_without_entries() -> None:
    load = WriteLoad(0, definition("city"))
    load.committed([], 0)
    load.committed([segment([Version(b"d", 0, 9)], 0, 10)], 2)
    assert (load.entries, shown(load).total) == (2, 0)


def test_the_list_is_bounded_and_stands_for_a_whole_window() -> None:
    of = definition("age")
    load = WriteLoad(0, of)
    for commit in range(2_000):
        load.committed([brings(of, [(commit,)] * 100, commit * 100)], 100)
    found = shown(load)
    assert LISTED // 2 <= len(found.listed) <= LISTED
    assert list(found.listed) == sorted(found.listed)  # as they came
    middle = found.listed[len(found.listed) // 2]
    assert encode_part(800) < middle < encode_part(1_200)


def test_a_window_goes_and_what_was_heavy_is_forgotten_by_and_by() -> None:
    of = definition("city")
    load = WriteLoad(0, of)
    load.look(WINDOW_MS)
    load.committed([brings(of, [("Rome",)] * 8_000)], 8_000)
    before = shown(load, WINDOW_MS + SHOW_MS)
    after = shown(load, 2 * WINDOW_MS)
    assert (before.total, after.total) == (8_000, 4_000)
    assert (after.before, after.listed) == (before.listed, ())
    load.committed([brings(of, [("Oslo",)] * 80_000)], 80_000)
    assert shown(load, 2 * WINDOW_MS + SHOW_MS).heavy[0].value == encode_part("Oslo")


def test_a_key_that_cannot_be_read_counts_for_the_whole_only() -> None:
    load = WriteLoad(0, definition("city"))
    versions = [Version(b"d%d" % at, 0, at, 0, ((b"\xff", b""),)) for at in range(2_000)]
    load.committed([segment(versions, 0, 2_000)], 2_000)
    assert (shown(load).total, shown(load).heavy) == (2_000, [])


def test_a_value_that_is_too_long_to_be_a_split_counts_for_the_whole_only() -> None:
    of = definition("city")
    load = WriteLoad(0, of)
    load.committed([brings(of, [("x" * 300,)] * 2_000)], 2_000)
    assert (shown(load).total, shown(load).heavy, shown(load).listed) == (2_000, [], ())
