"""The Python client: pages, session, errors by family, and what is tried again."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import httpx
import pytest

import keytide
from keytide.client import LONGEST_PAUSE_S, Client, Row, problem_error
from keytide.errors import CallerError, HistoryChangedError, RetryableError


class Node:
    """What a client asked, and what it is answered."""

    def __init__(self, *answers: httpx.Response | Exception | dict[str, Any], **client: Any) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.timeouts: list[float] = []
        self.pauses: list[float] = []
        self.client = Client(
            "http://127.0.0.1",
            transport=httpx.MockTransport(self._answer),
            sleep=self.pauses.append,
            **client,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        self.paths.append(request.url.raw_path.decode())
        self.timeouts.append(request.extensions["timeout"]["read"])
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


def page(*ids: str, page: str | None = None, session: str = "s1") -> dict[str, Any]:
    rows = [{"key": [id_.upper()], "id": id_} for id_ in ids]
    return {"rows": rows, "snapshot": 7, "timestamp": {}, "session": session, "page": page}


def refusal(status: int, kind: str, **more: Any) -> httpx.Response:
    headers = {"Retry-After": more.pop("retry_after")} if "retry_after" in more else {}
    document = {"type": kind, "title": "T", "status": status, "detail": "why", "next_step": "how", **more}
    return httpx.Response(status, json=document, headers=headers)


def test_a_scan_goes_over_all_pages_and_keeps_the_session() -> None:
    node = Node(page("a", "b", page="p1"), page("c", page="p2", session="s2"), page(session="s3"), page("z"))
    rows = node.client.scan("by_city", page_size=2, equals=["x"], high=None)
    assert node.asked == []
    assert list(rows) == [Row(["A"], "a"), Row(["B"], "b"), Row(["C"], "c")]
    assert node.asked == [
        {"equals": ["x"], "limit": 2},
        {"page": "p1", "session": "s1"},
        {"page": "p2", "session": "s2"},
    ]
    assert node.client.session == "s3"
    node.client.page("by_city", session="own")
    assert node.asked[-1] == {"session": "own"}


@pytest.mark.parametrize(("limit", "pages"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_a_limit_over_pages(limit: int, pages: int) -> None:
    node = Node(page("a", "b", page="p1"), page("c", "d", page="p2"), page("e", "f"))
    assert [row.id for row in node.client.scan("i", page_size=2, limit=limit)] == list("abcdef")[:limit]
    assert len(node.asked) == pages
    assert node.asked[0]["limit"] == min(limit, 2)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_asks_nothing(limit: int) -> None:
    node = Node()
    assert list(node.client.scan("i", limit=limit)) == []
    assert node.asked == []


def test_rows_keep_numbers_missing_parts_and_included_columns() -> None:
    body = b"""{"rows": [{"key": [null, 123456789012345678901234567890, 2.0], "missing": [0], "id": "a",
        "include": {"n": 5, "f": 5.0}}], "snapshot": null, "timestamp": {"0": {"offset": 4, "epoch": 1}},
        "session": "s", "page": null, "staleness_ms": 3, "new_member": 1}"""
    answer = Node(httpx.Response(200, content=body)).client.page("i")
    (row,) = answer.rows
    assert repr(row.key) == "[None, 123456789012345678901234567890, 2.0]"
    assert (row.missing, row.id, repr(row.include)) == ([0], "a", "{'n': 5, 'f': 5.0}")
    assert (answer.snapshot, answer.staleness_ms, answer.timestamp["0"]["offset"]) == (None, 3, 4)


def test_count_and_quoted_names() -> None:
    node = Node({"count": 5, "snapshot": 7, "timestamp": {}, "session": "s9"})
    assert node.client.count("a/b c", equals=[10**40]).count == 5
    assert node.paths == ["/v1/indexes/a%2Fb%20c/count"]
    assert node.asked == [{"equals": [10**40]}]
    assert node.client.session == "s9"


@pytest.mark.parametrize(
    ("status", "family"),
    [(400, CallerError), (404, CallerError), (409, CallerError), (410, CallerError), (422, CallerError),
     (500, CallerError), (503, RetryableError), (504, RetryableError)],
)  # fmt: skip
def test_errors_have_the_family_and_type_that_the_node_gave(status: int, family: type[Exception]) -> None:
    node = Node(refusal(status, "some-type", build="b1"))
    with pytest.raises(family, match="why") as caught:
        node.client.page("i")
    error = caught.value
    assert (error.problem_type, error.status, error.next_step) == ("some-type", status, "how")  # type: ignore[attr-defined]
    assert error.extra == {"build": "b1"}  # type: ignore[attr-defined]
    assert len(node.asked) == 1


def test_a_rollback_is_told_until_the_caller_has_said_that_it_knows() -> None:
    refusals = [refusal(409, "history-changed"), refusal(409, "history-changed")]
    node = Node(page("a", page="p1"), *refusals, {**page(), "count": 3}, page("b"))
    rows = node.client.scan("i", page_size=1)
    assert next(rows).id == "a"
    with pytest.raises(HistoryChangedError, match="why") as caught:
        next(rows)
    assert (caught.value.status, caught.value.problem_type) == (409, "history-changed")
    with pytest.raises(HistoryChangedError):
        node.client.count("i")
    assert node.client.session == "s1"
    node.client.reset_session()
    assert node.client.count("i").count == 3
    assert "session" not in node.asked[-1]
    assert next(node.client.scan("i")).id == "b"
    assert node.asked[-1]["session"] == "s1"
    assert not isinstance(problem_error(refusal(409, "other")), HistoryChangedError)


@pytest.mark.parametrize("content", [b"<html>", b"", b"[1]", b'"text"'])
def test_errors_of_something_else_than_a_node(content: bytes) -> None:
    with pytest.raises(RetryableError) as caught:
        Node(httpx.Response(502, content=content)).client.page("i")
    assert caught.value.status == 502
    with pytest.raises(CallerError) as wrong:
        Node(httpx.Response(200, content=content)).client.page("i")
    assert wrong.value.problem_type == "not-a-node"


def test_what_passes_by_itself_is_tried_again() -> None:
    node = Node(
        httpx.ConnectError("refused"),
        refusal(503, "node-unavailable", retry_after="1"),
        httpx.RemoteProtocolError("closed"),
        refusal(503, "node-unavailable", retry_after="1000"),
        page("a"),
    )
    assert [row.id for row in node.client.page("i").rows] == ["a"]
    assert len(node.asked) == 5
    assert node.pauses == [0.05, 1.0, 0.2, LONGEST_PAUSE_S]


def test_tries_are_bounded() -> None:
    node = Node(*[httpx.ConnectError("refused")] * 3, retries=2)
    with pytest.raises(RetryableError, match="refused") as caught:
        node.client.page("i")
    assert caught.value.problem_type == "node-unavailable"
    assert (len(node.asked), len(node.pauses)) == (3, 2)
    node = Node(*[refusal(503, "index-not-ready", retry_after="1")] * 2, retries=1)
    with pytest.raises(RetryableError) as caught:
        node.client.count("i")
    assert caught.value.problem_type == "index-not-ready"
    assert len(node.asked) == 2


def test_a_time_out_is_not_tried_again_and_is_longer_than_the_request_s_own() -> None:
    node = Node(httpx.ReadTimeout("slow"), page())
    with pytest.raises(RetryableError) as caught:
        node.client.page("i", timeout_ms=60_000)
    assert caught.value.status == 504
    node.client.page("i")
    assert node.timeouts[0] > 60
    assert node.timeouts[1] < 60


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}, b"bytes", "\udcff"])
def test_what_is_not_json_is_not_sent(value: object) -> None:
    node = Node()
    with pytest.raises(CallerError, match="JSON"):
        node.client.page("i", equals=[value])
    with pytest.raises(CallerError, match="JSON"), node.client.tail("i", equals=[value]) as changes:
        next(iter(changes))
    assert node.asked == []


def test_an_index_without_a_name_is_not_asked_for() -> None:
    node = Node()
    with pytest.raises(CallerError, match="no name"):
        node.client.page("")
    assert node.asked == []


def test_the_package_gives_the_client_and_loads_http_only_then() -> None:
    assert keytide.Client is Client
    with pytest.raises(AttributeError):
        keytide.Nothing  # noqa: B018
    code = (
        "import sys, keytide.wire.messages, keytide.catalog.catalog; "
        "print({'httpx', 'aiohttp', 'urllib3'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
