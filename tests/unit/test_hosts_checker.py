"""The checker of the hosts' test bed: a right history is right, and each planted violation is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.hosts.checker import (
    NONE,
    ClientHistory,
    Posting,
    RefusedRead,
    SnapshotRead,
    Strike,
    TransferWrite,
    violations,
)


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
EARLY = SnapshotRead("one", 0, 0.5, 0.6, 10, {0: 1, 1: 1}, (*A1, *B1), at_least={0: 1})
LATER = SnapshotRead("one", 1, 1.5, 1.6, 20, {0: 5, 1: 1}, (*A2, *B1))
END = SnapshotRead("end", 2, 3.0, 3.1, 30, {0: 5, 1: 2}, tuple(A2), at_least={0: 5, 1: 2}, last=True)


def _history() -> ClientHistory:
    return ClientHistory(list(WRITES), [EARLY, LATER, END])


def _kinds(history: ClientHistory) -> set[str]:
    return {one.kind for one in violations(history)}


def test_what_is_promised_is_right() -> None:
    assert violations(_history()) == []


def test_what_was_not_acknowledged_may_have_happened_or_not() -> None:
    history = _history()
    history.reads[2] = replace(END, postings=(*A2, *C1))
    assert violations(history) == []
    history.writes[4] = replace(WRITES[4], ended=1.5, partition=2, offset=0)
    history.reads[2] = END
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
        (_shows(2), {"lost"}),
        (_shows(0, A1, B1, _postings("d", 1)), {"unwritten"}),
        (_shows(0, A1, B1, C1), {"unwritten"}),
        (_shows(0, _postings("a", 1, 6), B1), {"unwritten"}),
        (_shows(1, A1, B1), {"stale"}),
        (_shows(2, A1), {"stale"}),
        (_shows(2, A2, B1), {"stale"}),
        (_shows(1, A2), {"lost"}),
        (_shows(0, A2, B1, ended=2.0), {"ahead"}),
        (_also(replace(EARLY, session="other", offsets={0: 1, 1: 0}, postings=tuple(A1))), {"snapshot"}),
        (_also(replace(LATER, session="other", postings=(*A1, *B1))), {"snapshot", "stale"}),
        (_also(replace(EARLY, begun=2.0, ended=2.1)), {"session"}),
        (_also(replace(EARLY, begun=2.0, ended=2.1, snapshot=21)), {"session"}),
        (_shows(0, A1, B1, at_least={1: 2}), {"session"}),
        (lambda history: history.reads.pop(), {"unfinished"}),
        (_shows(2, A2, begun=1.2), {"unfinished"}),
        (lambda history: history.refused.append(RefusedRead(1, 1.0, 2.0, "503")), {"refused"}),
    ],
)
def test_every_violation_is_seen(plant: Plant, kinds: set[str]) -> None:
    history = _history()
    plant(history)
    assert _kinds(history) == kinds


@pytest.mark.parametrize(
    ("strike", "allowed"),
    [
        (Strike("cut", frozenset({1}), True, 0.5), True),
        (Strike("cut", frozenset({1}), True, 0.5, 1.0), True),
        (Strike("cut", frozenset({1}), True, 0.5, 0.9), False),
        (Strike("cut", frozenset({1}), True, 2.1), False),
        (Strike("cut", frozenset({0, 2}), True, 0.5), False),
        (Strike("two brokers", frozenset(), False, 0.5), True),
    ],
)
def test_who_may_refuse_a_scan(strike: Strike, allowed: bool) -> None:
    history = _history()
    history.refused.append(RefusedRead(1, 1.0, 2.0, "503"))
    history.strikes.append(strike)
    assert (_kinds(history) == set()) == allowed
