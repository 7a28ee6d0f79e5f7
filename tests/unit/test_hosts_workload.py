"""The clients of the hosts' test bed: an answer that comes in several pages is one read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keytide.client import Client, Page, Row, SnapshotGoneError
from tests.hosts.checker import Posting
from tests.hosts.indexes import ACCOUNTS, INDEXES
from tests.hosts.workload import Workload

INDEX = INDEXES[0]


def _page(snapshot: int, account: str, token: str | None) -> Page:
    rows = [Row([[account, 5]], "a", {"version": 1})]
    return Page(rows=rows, snapshot=snapshot, timestamp={"0": {"offset": 3}}, session="", page=token)


class Answers:
    """A client to whom a node gives these answers."""

    def __init__(self, *answers: Page | Exception) -> None:
        self.left = list(answers)
        self.asked: list[Any] = []

    def page(self, _: str, **request: Any) -> Page:
        self.asked.append(request.get("page"))
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _read(*answers: Page | Exception) -> tuple[Workload, Answers]:
    workload = Workload(cast("Any", SimpleNamespace(cluster=SimpleNamespace(node_urls=[]))), 1)
    client = Answers(*answers)
    workload._read(cast("Client", client), "one", 0, INDEX, INDEX.everything)
    return workload, client


def test_all_pages_are_one_read() -> None:
    workload, client = _read(_page(7, ACCOUNTS[0], "more"), _page(7, ACCOUNTS[1], None))
    (read,) = workload.history.reads
    assert client.asked == [None, "more"]
    assert (read.index, read.snapshot, read.offsets) == (INDEX.name, 7, {0: 3})
    assert read.postings == tuple(Posting("a", account, 5, 1) for account in ACCOUNTS[:2])


def test_a_page_that_is_gone_is_a_read_that_was_refused() -> None:
    workload, client = _read(_page(7, ACCOUNTS[0], "more"), SnapshotGoneError("gone"))
    assert (workload.history.reads, client.left) == ([], [])
    (refused,) = workload.history.refused
    assert (refused.node, refused.index, refused.status) == (0, INDEX.name, 410)


def test_a_read_has_to_show_what_was_written_in_each_index() -> None:
    workload, _ = _read(_page(7, ACCOUNTS[0], None))
    (read,) = workload.history.reads
    workload.history.reads += [replace(read, index=one.name, at_least={0: 1}) for one in INDEXES[1:]]
    assert not workload.demanded()
    workload.history.reads.append(replace(read, at_least={0: 1}))
    assert workload.demanded()


def test_a_page_of_another_snapshot_ends_the_client() -> None:
    with pytest.raises(AssertionError, match="follows"):
        _read(_page(7, ACCOUNTS[0], "more"), _page(8, ACCOUNTS[1], None))
