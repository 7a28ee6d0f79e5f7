"""The indexes of the hosts' test bed: what the checker sees when one of some kind is damaged."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

import pytest

from keytide.client import Row
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.geometry import QueryShape, cells_of, envelope, geometry_of
from tests.hosts.checker import ClientHistory, Posting, Postings, SnapshotRead, TransferWrite, violations
from tests.hosts.indexes import ACCOUNTS, INDEXES, Asked, LedgerIndex, document_of

Entry = tuple[str, Row]
"""Whose account finds it, and the row."""
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


def _entries(index: LedgerIndex, postings: Postings) -> list[Entry]:
    """What an index makes of a transfer, the western one first."""
    version = next(iter(postings)).version
    document = json.loads(json.dumps(document_of(postings, version, line=True)))
    found: list[Entry] = []
    key: object
    for one in sorted(postings):
        match index.name:
            case "ledger_postings":
                key, names = [one.account, one.amount], ["version"]
            case "ledger_placed":
                key, names = document["place"], ["postings", "version"]
            case _:
                key, names = one.account, ["postings", "version"]
        found.append((one.account, Row([key], one.id, {name: document[name] for name in names})))
    return found


def _answer(index: LedgerIndex, asked: Asked, entries: Iterable[Entry]) -> tuple[Posting, ...]:
    rows = [row for account, row in entries if asked.has(account)]
    if index.name == "ledger_placed":  # a document comes once, whatever the number of its cells
        rows = list({json.dumps([row.key, row.id, row.include]): row for row in rows}.values())
    return tuple(posting for row in rows for posting in index.postings(row, asked))


def _seen(index: LedgerIndex, damage: Damage) -> Seen:
    held = {"a": _entries(index, NOW), "b": _entries(index, WESTERN)}
    damage(held, index)

    def kinds(asked: Asked) -> set[str]:
        answer = _answer(index, asked, chain(*held.values()))
        read = SnapshotRead("one", index.name, 0, 1.0, 1.1, 7, {0: 2, 1: 1}, answer, asked.accounts)
        return {one.kind for one in violations(ClientHistory((), WRITES, [read]))}

    return kinds(index.everything), kinds(index.west), kinds(index.east)


NONE, TORN, LOST, ODD = set[str](), {"torn"}, {"lost"}, {"unwritten"}
INDEX = pytest.mark.parametrize("index", INDEXES, ids=[one.name for one in INDEXES])


@INDEX
def test_what_is_right_is_right_in_every_kind_of_index(index: LedgerIndex) -> None:
    assert _seen(index, lambda *_: None) == (NONE, NONE, NONE)


def _eastern_entry_lost(held: Held, _: LedgerIndex) -> None:
    held["a"].pop()


def _old_western_entry_left(held: Held, index: LedgerIndex) -> None:
    held["a"].append(_entries(index, BEFORE)[0])


def _old_version(held: Held, index: LedgerIndex) -> None:
    held["a"] = _entries(index, BEFORE)


def _document_lost(held: Held, _: LedgerIndex) -> None:
    del held["b"]


def _western_entry_twice(held: Held, _: LedgerIndex) -> None:
    account, row = held["b"][0]
    held["b"].append((account, Row(row.key, row.id, dict(reversed(row.include.items())))))


def _columns_of_the_old_version(held: Held, index: LedgerIndex) -> None:
    ((_, old), _) = _entries(index, BEFORE)
    held["a"] = [(account, Row(row.key, row.id, old.include)) for account, row in held["a"]]


@INDEX
@pytest.mark.parametrize(
    ("damage", "of_entries", "of_places"),
    [
        (_eastern_entry_lost, ({"sum", "torn"}, NONE, LOST), (NONE, NONE, LOST)),
        (_old_western_entry_left, ({"sum", "torn"}, TORN, NONE), (TORN, TORN, NONE)),
        (_old_version, ({"stale"},) * 3, ({"stale"},) * 3),
        (_document_lost, (LOST, LOST, NONE), (LOST, LOST, NONE)),
        (_western_entry_twice, ({"sum", "twice"}, {"twice"}, NONE), ({"twice"}, {"twice"}, NONE)),
        (_columns_of_the_old_version, (ODD, ODD, ODD), (ODD, ODD, ODD)),
    ],
)
def test_damage_is_seen_in_every_kind_of_index(
    index: LedgerIndex, damage: Damage, of_entries: Seen, of_places: Seen
) -> None:
    """By a read of everything, of the west, of the east. A row of places is a whole document: of one cell
    that is lost only the half where it lies can tell."""
    expected = of_places if index.name == "ledger_placed" else of_entries
    assert _seen(index, damage) == expected


@INDEX
def test_what_is_asked_for_is_what_an_index_understands(index: LedgerIndex) -> None:
    assert isinstance(parse_statement(index.statement), CreateIndex)


def test_a_box_has_the_transfers_of_its_accounts_and_a_transfer_lies_in_several_slices() -> None:
    """By the real geometry and the real cells."""
    (placed,) = (one for one in INDEXES if one.name == "ledger_placed")
    splits = [int(one) for one in re.findall(r"\d{15,}", placed.clauses)]
    several = Counter[int]()
    for source, target in zip(ACCOUNTS, ACCOUNTS[7:] + ACCOUNTS[:7], strict=True):
        for line in (False, True):
            place = document_of(_transfer("a", 1, 1, source, target), 1, line)["place"]
            geometry = geometry_of(place, "geographic")
            for asked in (placed.everything, placed.west, placed.east):
                west, south, east, north = asked.request["intersects"]
                box = QueryShape("intersects", envelope(west, south, east, north, "geographic"))
                if asked.has(source) or asked.has(target):
                    assert box.test(geometry)
            several[len({bisect_right(splits, cell) for cell in cells_of(geometry)})] += 1
    assert set(several) == {1, 2, 3}
