"""The indexes of the hosts' test bed: what the checker sees when one of some kind is damaged. Entries are
made, selected, and picked of several of a document by the product's structures (`keytide.structure`); which
of them are there is the test's."""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain

import pytest

from keytide.client import Row
from keytide.collation import Span, decode_key, encode_key, key_forms, merge_spans
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.geometry import QueryShape, cells_of, envelope, geometry_of
from keytide.model.entry import unpack_value
from keytide.structure import WantedKeys
from keytide.structure.spatial import firsts_of_several
from tests.hosts.checker import ClientHistory, Posting, Postings, SnapshotRead, TransferWrite, violations
from tests.hosts.indexes import ACCOUNTS, INDEXES, Asked, LedgerIndex, document_of
from tests.structure_kit import as_stored

Entry = tuple[bytes, bytes]
"""(entry key, value)."""
Held = dict[str, list[Entry]]
"""What an index holds, by document."""
Damage = Callable[[Held, LedgerIndex], object]
Seen = tuple[set[str], set[str], set[str]]
"""Kinds of violations of a read of everything, of the west, of the east."""


def _transfer(id_: str, version: int, amount: int, source: str, target: str) -> Postings:
    return frozenset((Posting(id_, source, -amount, version), Posting(id_, target, amount, version)))


BEFORE = _transfer("a", 1, 3, ACCOUNTS[0], ACCOUNTS[20])
NOW = _transfer("a", 2, 5, ACCOUNTS[1], ACCOUNTS[21])
WESTERN = _transfer("b", 1, 7, ACCOUNTS[2], ACCOUNTS[3])
WRITES = [
    TransferWrite("a", 1, BEFORE, 0.0, 0.1, 0, 0),
    TransferWrite("b", 1, WESTERN, 0.0, 0.1, 1, 0),
    TransferWrite("a", 2, NOW, 0.2, 0.3, 0, 1),
]


@cache
def _definition(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


def _entries(
    index: LedgerIndex, postings: Postings, columns: Postings | None = None, line: bool = True
) -> list[Entry]:
    """What an index stores of a transfer, the western account's first; with the columns of another one."""
    document, included = (
        json.loads(json.dumps(document_of(one, next(iter(one)).version, line)))
        for one in (postings, columns or postings)
    )
    names = ["postings", "version"]
    match index.name:
        case "ledger_postings":
            keys, names = document["postings"], ["version"]
        case "ledger_placed":
            keys = [document["place"]]
        case _:
            keys = document["accounts"]
    include = json.dumps({name: included[name] for name in names}).encode()
    made = [(encode_key([key]), key_forms([key]), include) for key in keys]
    id_ = next(iter(postings)).id.encode()
    return [(stored + id_, value) for stored, value in as_stored(_definition(index.statement), made)]


Selection = tuple[list[Span], set[bytes], QueryShape | None]
"""Spans, canonical keys (none for any), what places must be like."""


def _selection(index: LedgerIndex, asked: Asked) -> Selection:
    request, region = asked.request, None
    wanted = [WantedKeys(**one) for one in request.get("spans", [request])] if index.part is None else []
    if "intersects" in request:
        west, south, east, north = request["intersects"]
        region = QueryShape("intersects", envelope(west, south, east, north, "geographic"))
        wanted = [WantedKeys(region=region)]
    selected = [_definition(index.statement).structure.selected(one) for one in wanted]
    spans = merge_spans(chain.from_iterable(one.spans for one in selected))
    return spans, {key for one in selected for key in one.keys}, region


def _given(index: LedgerIndex, selection: Selection, entries: Iterable[Entry]) -> list[tuple[Entry, Row]]:
    """The entries that give rows of an answer, and these."""
    structure = _definition(index.statement).structure
    spans, keys, region = selection
    read = [
        (key, value)
        for key, value in entries
        if any(key in span for span in spans)
        and (not keys or structure.canonical(key[: structure.id_start(key)], value) in keys)
    ]
    if structure.several:
        read = firsts_of_several([(one.low, one.high) for one in spans])(read)
    found = []
    for entry in read:
        full, value = structure.in_full(*entry)
        key, length = decode_key(full, structure.parts)
        if region is None or region.test(geometry_of(key[0], "geographic")):
            row = Row(list(key), full[length:].decode(), json.loads(unpack_value(value)[1] or b"{}"))
            found.append((entry, row))
    return found


def _rows(index: LedgerIndex, asked: Asked, entries: Iterable[Entry]) -> list[Row]:
    return [row for _, row in _given(index, _selection(index, asked), entries)]


def _kinds(index: LedgerIndex, asked: Asked, rows: Iterable[Row]) -> set[str]:
    """Of the violations of a read that has these rows."""
    answer = tuple(posting for row in rows for posting in index.postings(row, asked))
    read = SnapshotRead("one", index.name, 0, 1.0, 1.1, 7, {0: 2, 1: 1}, answer, asked.accounts)
    return {one.kind for one in violations(ClientHistory((), WRITES, [read]))}


def _seen(index: LedgerIndex, damage: Damage) -> Seen:
    held = {"a": _entries(index, NOW), "b": _entries(index, WESTERN)}
    damage(held, index)
    everything, west, east = (
        _kinds(index, asked, _rows(index, asked, chain(*held.values())))
        for asked in (index.everything, index.west, index.east)
    )
    return everything, west, east


NONE, TORN, LOST, ODD = set[str](), {"torn"}, {"lost"}, {"unwritten"}
INDEX = pytest.mark.parametrize("index", INDEXES, ids=[one.name for one in INDEXES])


@INDEX
def test_what_is_right_is_right_in_every_kind_of_index(index: LedgerIndex) -> None:
    assert _seen(index, lambda *_: None) == (NONE, NONE, NONE)


def _of(half: str, index: LedgerIndex, entries: list[Entry]) -> list[Entry]:
    """Those of an account, or of the cells of one of the globe's faces."""
    if index.name != "ledger_placed":
        return [entries[0 if half == "west" else -1]]
    return [entry for entry in entries if entry[0][0] >> 5 == (4 if half == "west" else 1)]


def _eastern_entry_lost(held: Held, index: LedgerIndex) -> None:
    held["a"].remove(_of("east", index, held["a"])[0])


def _old_western_entries_left(held: Held, index: LedgerIndex) -> None:
    held["a"] += _of("west", index, _entries(index, BEFORE))


def _old_version(held: Held, index: LedgerIndex) -> None:
    held["a"] = _entries(index, BEFORE)


def _document_lost(held: Held, _: LedgerIndex) -> None:
    del held["b"]


def _western_entry_twice(held: Held, _: LedgerIndex) -> None:
    held["b"].append(held["b"][0])


def _columns_of_the_old_version(held: Held, index: LedgerIndex) -> None:
    held["a"] = _entries(index, NOW, columns=BEFORE)


@INDEX
@pytest.mark.parametrize(
    ("damage", "of_entries", "of_places"),
    [
        (_eastern_entry_lost, ({"sum", "torn"}, NONE, LOST), (NONE, NONE, LOST)),
        (_old_western_entries_left, ({"sum", "torn"}, TORN, NONE), (NONE, TORN, NONE)),
        (_old_version, ({"stale"},) * 3, ({"stale"},) * 3),
        (_document_lost, (LOST, LOST, NONE), (LOST, LOST, NONE)),
        (_western_entry_twice, ({"sum", "twice"}, {"twice"}, NONE), ({"twice"}, {"twice"}, NONE)),
        (_columns_of_the_old_version, (ODD, ODD, ODD), (ODD, ODD, ODD)),
    ],
)
def test_damage_is_seen_in_every_kind_of_index(
    index: LedgerIndex, damage: Damage, of_entries: Seen, of_places: Seen
) -> None:
    """By a read of everything, of the west, of the east. A row of places is a whole document, given by the
    first of its cells that are read: that of the line lies between the halves, so what is wrong with a cell
    of a half only that half tells."""
    expected = of_places if index.name == "ledger_placed" else of_entries
    assert _seen(index, damage) == expected


@INDEX
def test_what_is_asked_for_is_what_an_index_understands(index: LedgerIndex) -> None:
    assert isinstance(parse_statement(index.statement), CreateIndex)


@INDEX
def test_a_row_of_the_other_half_is_seen(index: LedgerIndex) -> None:
    others = _rows(index, index.west, _entries(index, WESTERN))
    right = _rows(index, index.east, _entries(index, NOW))
    assert _kinds(index, index.east, right) == NONE
    known = "unwritten" if index.name == "ledger_placed" else "torn"
    assert (len(others) > 0, _kinds(index, index.east, [*right, *others])) == (True, {"unasked", known})


(PLACED,) = (one for one in INDEXES if one.name == "ledger_placed")
HALVES = (PLACED.everything, PLACED.west, PLACED.east)
TRANSFERS = [
    _transfer("a", 1, 1, source, target)
    for by in (1, 7, 23)
    for source, target in zip(ACCOUNTS, ACCOUNTS[by:] + ACCOUNTS[:by], strict=True)
]


def _boxes(count: int) -> list[Asked]:
    assert PLACED.part is not None
    chance = random.Random(1)
    return [PLACED.part(chance) for _ in range(count)]


def _deciding(line: bool, asked: list[Asked]) -> float:
    """The share of entries that give the row of some of these answers."""
    selections = [_selection(PLACED, one) for one in asked]
    of = [_entries(PLACED, transfer, line=line) for transfer in TRANSFERS[::3]]
    found = {
        (number, entry)
        for number, entries in enumerate(of)
        for selection in selections
        for entry, _ in _given(PLACED, selection, entries)
    }
    return len(found) / sum(map(len, of))


def test_boxes_of_any_size_have_more_cells_give_a_row() -> None:
    """Nearly all of points, and twice as many of lines: of the others a verification tells."""
    boxes = _boxes(100)
    points, lines = (_deciding(line, [*HALVES, *boxes]) for line in (False, True))
    assert points > 0.9 > 0.8 > _deciding(False, [*HALVES])
    assert lines > 0.4 > 0.3 > _deciding(True, [*HALVES])


def test_only_a_line_may_cross_a_box() -> None:
    smaller = next(one for one in _boxes(20) if one.crossed)
    for line in (False, True):
        key = [json.loads(json.dumps(document_of(WESTERN, 1, line)["place"]))]
        row = Row(key, "b", {"postings": [], "version": 1})
        asked = Asked(frozenset(ACCOUNTS[30:]), {}, smaller.crossed)
        assert [one.account for one in PLACED.postings(row, asked)] == ([] if line else ["nowhere"])


def test_a_box_has_the_transfers_of_its_accounts_and_a_transfer_lies_in_several_slices() -> None:
    """By the real geometry and the real cells."""
    splits = [int(one) for one in re.findall(r"\d{15,}", PLACED.clauses)]
    several = Counter[int]()
    boxes = [(one, _selection(PLACED, one)[2]) for one in (*HALVES, *_boxes(50))]
    for transfer in TRANSFERS:
        for line in (False, True):
            geometry = geometry_of(document_of(transfer, 1, line)["place"], "geographic")
            for asked, box in boxes:
                assert box is not None
                there = any(asked.has(one.account) for one in transfer)
                assert box.test(geometry) == there or (asked.crossed and line and not there)
            several[len({bisect_right(splits, cell) for cell in cells_of(geometry)})] += 1
    assert set(several) == {1, 2, 3}
