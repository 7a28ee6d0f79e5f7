"""The checker of the hosts' test bed: a right history is right, and each planted violation is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.hosts.checker import (
    ANY_NODE,
    NONE,
    ClientHistory,
    Posting,
    RefusedRead,
    SnapshotRead,
    Strike,
    TransferWrite,
    violations,
)


def _of(account: str, postings: frozenset[Posting]) -> frozenset[Posting]:
    return frozenset(one for one in postings if one.account == account)


def _postings(id_: str, version: int, amount: int = 5) -> frozenset[Posting]:
    return frozenset((Posting(id_, "a", -amount, version), Posting(id_, "b", amount, version)))


A1, A2, B1, C1 = _postings("a", 1), _postings("a", 2, 7), _postings("b", 1), _postings("c", 1, 9)
WRITES = [
    TransferWrite("a", 1, A1, 0.0, 0.1, partition=0, offset=0),
    TransferWrite("b", 1, B1, 0.2, 0.3, partition=1, offset=0),
    TransferWrite("a", 2, A2, 1.0, 1.1, partition=0, offset=4),
    TransferWrite("b", 2, NONE, 1.2, 1.3, partition=1, offset=1),
    TransferWrite("c", 1, C1, 1.4),
]
EARLY = SnapshotRead("one", "tree", 0, 0.5, 0.6, 10, {0: 1, 1: 1}, (*A1, *B1), at_least={0: 1})
LATER = SnapshotRead("one", "hash", 1, 1.5, 1.6, 20, {0: 5, 1: 1}, (*A2, *B1))
END = SnapshotRead("end", "tree", 2, 3.0, 3.1, 30, {0: 5, 1: 2}, tuple(A2), at_least={0: 5, 1: 2}, last=True)
END_OF_HASH = replace(END, index="hash")
HALF_READ = replace(
    LATER, session="half", snapshot=22, accounts=frozenset("a"), postings=(*_of("a", A2), *_of("a", B1))
)
"""Of one account of two."""


def _history() -> ClientHistory:
    return ClientHistory(("tree", "hash"), list(WRITES), [EARLY, LATER, END, END_OF_HASH, HALF_READ])


def _kinds(history: ClientHistory) -> set[str]:
    return {one.kind for one in violations(history)}


def test_what_is_promised_is_right() -> None:
    assert violations(_history()) == []


def test_what_was_not_acknowledged_may_have_happened_or_not() -> None:
    history = _history()
    history.reads[2:4] = [replace(one, postings=(*A2, *C1)) for one in (END, END_OF_HASH)]
    assert violations(history) == []
    history.writes[4] = replace(WRITES[4], ended=1.5, partition=2, offset=0)
    history.reads[2:4] = [END, END_OF_HASH]
    assert _kinds(history) == {"lost"}


Plant = Callable[[ClientHistory], None]


def _shows(at: int, *postings: frozenset[Posting], **more: object) -> Plant:
    """A read that shows something else."""

    def plant(history: ClientHistory) -> None:
        rows = tuple(posting for part in postings for posting in part)
        history.reads[at] = replace(history.reads[at], postings=rows, **more)  # type: ignore[arg-type]

    return plant


def _also(read: SnapshotRead) -> Plant:
    return lambda history: history.reads.append(read)


HALF = frozenset((Posting("b", "a", -5, 1),))
MIXED = frozenset((Posting("a", "a", -5, 1), Posting("a", "b", 5, 1), Posting("a", "a", -7, 2)))
UNEVEN = frozenset((Posting("a", "a", -7, 2), Posting("a", "b", 5, 1)))


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (_shows(0, A1, HALF), {"sum", "torn"}),
        (_shows(1, UNEVEN, B1), {"sum", "torn"}),
        (_shows(1, A1, A2, B1), {"torn"}),
        (_shows(1, MIXED, B1), {"sum", "torn"}),
        (_shows(0, A1, B1, B1), {"twice"}),
        (_shows(0, A1), {"lost"}),
        (_shows(2), {"snapshot", "lost"}),
        (_shows(0, A1, B1, _postings("d", 1)), {"unwritten"}),
        (_shows(0, A1, B1, C1), {"unwritten"}),
        (_shows(0, _postings("a", 1, 6), B1), {"unwritten"}),
        (_shows(1, A1, B1), {"stale"}),
        (_shows(2, A1), {"snapshot", "stale"}),
        (_shows(2, A2, B1), {"snapshot", "stale"}),
        (_shows(1, A2), {"lost"}),
        (_shows(0, A2, B1, ended=2.0), {"ahead"}),
        (_also(replace(EARLY, session="other", offsets={0: 1, 1: 0}, postings=tuple(A1))), {"snapshot"}),
        (_also(replace(LATER, session="other", postings=(*A1, *B1))), {"snapshot", "stale"}),
        (_also(replace(EARLY, begun=2.0, ended=2.1)), {"session"}),
        (_also(replace(EARLY, begun=2.0, ended=2.1, snapshot=21)), {"session"}),
        (_shows(0, A1, B1, at_least={1: 2}), {"session"}),
        (_also(replace(LATER, index="tree", session="other", postings=(*A2, *B1, *C1))), {"snapshot"}),
        (_also(replace(LATER, index="tree", session="other", offsets={0: 4, 1: 1})), {"snapshot", "ahead"}),
        (_also(replace(EARLY, index="hash", session="end", begun=3.5, ended=3.6)), {"session"}),
        (_also(replace(LATER, accounts=frozenset("a"), postings=tuple(_of("a", A2)))), {"lost", "snapshot"}),
        (_also(replace(END, accounts=frozenset("b"), postings=(*_of("b", A2), *_of("b", C1)))), {"snapshot"}),
        (_shows(4, A2, B1), {"unasked", "torn"}),
        (_shows(4, _of("a", A1), _of("a", B1)), {"stale"}),
        (_shows(4, _of("a", A2)), {"lost"}),
        (_shows(4, HALF, B1, A2, accounts=frozenset("abc")), {"twice"}),
        (_shows(4, HALF, A2, accounts=frozenset("abc")), {"torn"}),
        (lambda history: history.reads.pop(2), {"unfinished"}),
        (lambda history: history.reads.pop(3), {"unfinished"}),
        (_shows(2, A2, begun=1.2), {"unfinished"}),
        (_shows(3, _of("a", A2), accounts=frozenset("a")), {"unfinished"}),
        (lambda history: history.refused.append(RefusedRead(1, "tree", 1.0, 2.0, 503, "")), {"refused"}),
    ],
)
def test_every_violation_is_seen(plant: Plant, kinds: set[str]) -> None:
    history = _history()
    plant(history)
    assert _kinds(history) == kinds


@pytest.mark.parametrize(
    ("strike", "node", "status", "allowed"),
    [
        (Strike("cut", frozenset({1}), True, 0.5), 1, 503, True),
        (Strike("cut", frozenset({1}), True, 0.5, 1.0), 1, 503, True),
        (Strike("cut", frozenset({1}), True, 0.5, 0.9), 1, 503, False),
        (Strike("cut", frozenset({1}), True, 2.1), 1, 503, False),
        (Strike("cut", frozenset({0, 2}), True, 0.5), 1, 503, False),
        (Strike("two brokers", frozenset(), False, 0.5), 1, 503, True),
        (Strike("two brokers", frozenset(), False, 0.5), 1, 500, False),
        (Strike("cut", frozenset({0}), True, 0.5), 1, 410, True),
        (Strike("cut", frozenset({1}), True, 2.1), 1, 410, False),
        (Strike("cut", frozenset({1}), True, 2.1), ANY_NODE, 410, False),
        (Strike("cut", frozenset({1}), True, 2.1), ANY_NODE, 504, True),
        (Strike("cut", frozenset({1}), True, 2.1), ANY_NODE, 400, False),
        (Strike("cut", frozenset({1}), True, 0.5), ANY_NODE, 507, True),
        (Strike("kill", frozenset(), True, 0.5), ANY_NODE, 507, False),
        (Strike("two brokers", frozenset(), False, 0.5), ANY_NODE, 500, False),
    ],
)
def test_who_may_refuse_a_scan(strike: Strike, node: int, status: int, allowed: bool) -> None:
    history = _history()
    history.refused.append(RefusedRead(node, "tree", 1.0, 2.0, status, ""))
    history.strikes.append(strike)
    assert _kinds(history) == (set() if allowed else {"refused"})
