"""The indexes that clients read: one of each kind, all on the same transfers (`checker`), and what each row
of them says of whose account. Pure.

A document names its accounts and has a place: the line or the two points between those of its accounts. Half
of the accounts lie in the west, the others in the east, on two faces of the globe, and what lies between is
on a third one. So a transfer has up to eight cells, in up to three slices, and each half of the accounts can
be asked for by itself: by a range, by keys, by a box. In an index of places one of its cells alone gives the
row, and which one follows from the box: so boxes of any size are asked for, too (`_some_box`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from keytide.client import Row
from tests.hosts.checker import Posting

TOPIC: Final = "ledger"
ACCOUNTS: Final = tuple(f"account{number:02}" for number in range(40))
_HALF: Final = len(ACCOUNTS) // 2
WEST, EAST = frozenset(ACCOUNTS[:_HALF]), frozenset(ACCOUNTS[_HALF:])
_FIRST_IN_THE_EAST: Final = ACCOUNTS[_HALF]
_FACE: Final = 1 << 61
"""Cells of one of the globe's six faces: what lies between is on 0, the east on 1, the west on 4."""
NOWHERE: Final = "nowhere"
"""Stands for the account of a place that no account has: nobody has written that."""
Position = tuple[int, int]
PLACES: Final[Mapping[str, Position]] = {
    account: ((-68 if account in WEST else 52) + 4 * (at % 5), -24 + 16 * (at % _HALF // 5))
    for at, account in enumerate(ACCOUNTS)
}
_ACCOUNT_AT: Final = {place: account for account, place in PLACES.items()}
_COLUMNS, _ROWS = ({place[at] for place in PLACES.values()} for at in (0, 1))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a read asks for.

    Attributes:
        accounts: whose postings it has, all of them; None for everybody's.
        request: members of the scan.
        crossed: lines that have no account there may have a row all the same.
    """

    accounts: frozenset[str] | None
    request: Mapping[str, Any]
    crossed: bool = False

    def has(self, account: str) -> bool:
        return self.accounts is None or account in self.accounts


@dataclass(frozen=True, slots=True)
class LedgerIndex:
    """One index.

    Attributes:
        clauses: of CREATE INDEX, behind the topic.
        everything, west, east: how it is asked for the postings of all accounts, and of half of them.
        postings: what a row of an answer to one of these says, which may be what nobody has written.
        part: chooses how it is asked for the postings of other accounts; None where halves are enough.
    """

    name: str
    clauses: str
    everything: Asked
    west: Asked
    east: Asked
    postings: Callable[[Row, Asked], Iterable[Posting]]
    part: Callable[[random.Random], Asked] | None = None

    @property
    def statement(self) -> str:
        return f"CREATE INDEX {self.name} ON {TOPIC} {self.clauses}"


def document_of(postings: Iterable[Posting], version: int, line: bool) -> dict[str, Any]:
    """What is written of a transfer.

    Args:
        line: its place is the line between its accounts' places, else both of them.
    """
    ordered = sorted(postings)
    return {
        "version": version,
        "postings": [[one.account, one.amount] for one in ordered],
        "accounts": [one.account for one in ordered],
        "place": {
            "type": "LineString" if line else "MultiPoint",
            "coordinates": [PLACES[one.account] for one in ordered],
        },
    }


def _of_posting(row: Row, _: Asked) -> Iterable[Posting]:
    account, amount = row.key[0]
    yield Posting(row.id, account, amount, row.include["version"])


def _of_account(row: Row, _: Asked) -> Iterable[Posting]:
    """An entry says whose account, and brings all postings along: of these it is the one of that account."""
    yield _posting(row, row.key[0])


def _of_place(row: Row, asked: Asked) -> Iterable[Posting]:
    """A row is a whole transfer; one of a box has at least the postings of the accounts there, or crosses it,
    or does not belong there."""
    place = row.key[0]
    accounts = [_ACCOUNT_AT.get(tuple(position), NOWHERE) for position in place["coordinates"]]
    found = [account for account in accounts if account == NOWHERE or asked.has(account)]
    if not found and not (asked.crossed and place["type"] == "LineString"):
        found = [NOWHERE]
    for account in found:
        yield _posting(row, account)


def _posting(row: Row, account: str) -> Posting:
    amount = dict(row.include["postings"]).get(account, 0)
    return Posting(row.id, account, amount, row.include["version"])


def _keys(accounts: Iterable[str]) -> dict[str, Any]:
    return {"spans": [{"equals": [account]} for account in sorted(accounts)]}


def _some_box(chance: random.Random) -> Asked:
    """All that is west or east of some meridian, or a box around an account: others are in it or not, and
    none is near its edges. A line stays on its side of a meridian; through a smaller box it may go."""
    west, south, east, north = -80.0, -40.0, 80.0, 40.0
    x, y = chance.choice([*PLACES.values()])
    what = chance.choice(("west", "east", "around", "around"))
    if what == "west":
        east = _beside(_COLUMNS, 0.5, x, 80, chance)
    elif what == "east":
        west = _beside(_COLUMNS, 0.5, -80, x, chance)
    else:
        by = chance.choice((1, 3, 12))
        west, east = (_beside(_COLUMNS, 0.5, *ends, chance) for ends in ((x - by, x), (x, x + by)))
        south, north = (_beside(_ROWS, 3, *ends, chance) for ends in ((y - 3 - by, y), (y, y + 3 + by)))
    inside = (account for account, (x, y) in PLACES.items() if west < x < east and south < y < north)
    return Asked(frozenset(inside), {"intersects": [west, south, east, north]}, what == "around")


def _beside(lines: Iterable[int], by: float, low: float, high: float, chance: random.Random) -> float:
    """Something between two bounds that is none of some numbers, nor near one."""
    while True:
        found = chance.uniform(low, high)
        if all(abs(found - line) > by for line in lines):
            return found


_UNNESTED: Final = "INCLUDE (postings, version)"
INDEXES: Final = (
    LedgerIndex(
        "ledger_postings",
        "(UNNEST(postings)) INCLUDE (version) WITH (slices=3, defer_build=true)",
        Asked(None, {}),
        Asked(WEST, {"high": [[_FIRST_IN_THE_EAST]], "inclusion": "low"}),
        Asked(EAST, {"low": [[_FIRST_IN_THE_EAST]]}),
        _of_posting,
    ),
    LedgerIndex(
        "ledger_hashed",
        f"USING hash (UNNEST(accounts)) {_UNNESTED} WITH (slices=2, defer_build=true)",
        Asked(None, _keys(ACCOUNTS)),
        Asked(WEST, _keys(WEST)),
        Asked(EAST, _keys(EAST)),
        _of_account,
    ),
    LedgerIndex(
        "ledger_placed",
        f"USING spatial (place) {_UNNESTED} PARTITION BY RANGE(cell) SPLIT AT ({_FACE}, {4 * _FACE}) "
        "WITH (defer_build=true)",
        Asked(None, {"intersects": [-80, -40, 80, 40]}),
        Asked(WEST, {"intersects": [-80, -40, -48, 40]}),
        Asked(EAST, {"intersects": [48, -40, 80, 40]}),
        _of_place,
        _some_box,
    ),
    LedgerIndex(
        "ledger_spread",
        f"(UNNEST(accounts)) {_UNNESTED} PARTITION BY RANGE(UNNEST(accounts)) "
        f"SPLIT AT ('{_FIRST_IN_THE_EAST}') SUBPARTITION BY HASH(id) SLICES (1, 2) WITH (defer_build=true)",
        Asked(None, {}),
        Asked(WEST, {"high": [_FIRST_IN_THE_EAST], "inclusion": "low"}),
        Asked(EAST, {"low": [_FIRST_IN_THE_EAST]}),
        _of_account,
    ),
)
"""A btree, a hash, a spatial and a subpartitioned one."""
