"""Both clients: pages, nodes that do not answer, sessions of requests at the same time, results that are read
once, held snapshots, SQL."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import httpx
import pytest

from keytide.client import AsyncClient, Client, MisuseError, SnapshotGoneError
from keytide.client.session import Session
from keytide.errors import CallerError, HistoryChangedError, KeytideError, RetryableError
from tests.unit.client_kit import MOMENT, Answer, Face, page, refusal

MakeFace = Callable[..., Face]
HOLD = {**MOMENT, "at": "held", "slices": 3, "expires_in_s": 60, "session": "s8"}


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[MakeFace]:
    """Makes a client of one face; the test runs for both."""
    made: list[Face] = []
    kind: Literal["sync", "async"] = request.param

    def make(*answers: Answer, **more: Any) -> Face:
        made.append(Face(kind, *answers, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


# --- results ----------------------------------------------------------------------------------------------


def test_a_scan_goes_over_all_pages(face: MakeFace) -> None:
    node = face(page("a", "b", page="p1"), page("c", page="p2", session="s2"), page(session="s3"))
    scan = node.client.scan("by_city", page_size=2, equals=["x"], high=None, timeout_ms=700)
    assert node.asked == []
    assert [row.id for row in node.read(scan)] == ["a", "b", "c"]
    assert node.asked == [
        {"equals": ["x"], "limit": 2, "timeout_ms": 700},
        {"page": "p1", "session": "s1", "timeout_ms": 700},
        {"page": "p2", "session": "s2", "timeout_ms": 700},
    ]
    assert (scan.snapshot, scan.timestamp, scan.session, scan.staleness_ms) == (7, {}, "s3", None)


def test_a_result_is_read_once_and_in_one_way(face: MakeFace) -> None:
    node = face(page("a", "b"))
    scan = node.client.scan("i")
    with pytest.raises(MisuseError, match="nothing of it was read"):
        _ = scan.snapshot
    assert node.next(scan).id == "a"
    with pytest.raises(MisuseError, match="being read as rows"):
        node.do(lambda _: scan.to_arrow())
    assert [row.id for row in node.read(scan)] == ["b"], "a loop that was left is gone on with"
    with pytest.raises(MisuseError, match="read to its end") as caught:
        node.read(scan)
    assert caught.value.next_step
    with pytest.raises(MisuseError):
        node.do(lambda _: scan.to_pandas())


def test_requests_with_sessions_of_their_own_do_not_pile_tokens_up(face: MakeFace) -> None:
    answers = [page("a", session=f"s{at}") for at in range(100)]
    node = face(*answers)
    for _ in range(100):
        node.do(lambda client: client.page("i", session="mine"))
    assert node.asked[0] == {"session": "mine"}
    assert all(one["session"].split(",")[0] == "mine" for one in node.asked)
    assert len(node.client.session.split(",")) < 20


def test_an_error_in_a_later_page_does_not_end_the_scan_quietly(face: MakeFace) -> None:
    node = face(page("a", page="p1"), refusal(410, "snapshot-gone"), page("b"))
    scan = node.client.scan("i", page_size=1)
    assert node.next(scan).id == "a"
    with pytest.raises(SnapshotGoneError, match="why"):
        node.next(scan)
    assert node.next(scan).id == "b", "the same page again"


def test_a_query_goes_over_all_pages(face: MakeFace) -> None:
    first = {**MOMENT, "columns": ["city", "n"], "rows": [["x", 1]], "index": "by_city", "page": "p1"}
    second = {**MOMENT, "columns": ["city", "n"], "rows": [["y", 2], ["z", None]], "index": "by_city"}
    node = face(first, second)
    query = node.client.query("SELECT city, n FROM users", page_size=2, max_staleness_ms=500, timeout_ms=9)
    assert node.read(query) == [["x", 1], ["y", 2], ["z", None]]
    assert (query.columns, query.index, query.snapshot) == (["city", "n"], "by_city", 7)
    assert node.asked == [
        {"sql": "SELECT city, n FROM users", "limit": 2, "max_staleness_ms": 500, "timeout_ms": 9},
        {"page": "p1", "session": "s7", "timeout_ms": 9},
    ]
    assert set(node.paths) == {"/v1/query"}
    with pytest.raises(MisuseError):
        node.read(query)


def test_a_query_as_a_frame_keeps_what_it_has(face: MakeFace) -> None:
    rows = [[1, "a", [1]], [2, None, {"b": 1}], [None, "c", "text"]]
    node = face({**MOMENT, "columns": ["n", "s", "mixed"], "rows": rows})
    frame = node.do(lambda client: client.query("SELECT ...").to_pandas())
    assert frame["mixed"].tolist() == [[1], {"b": 1}, "text"]
    assert frame["s"].tolist()[0] == "a"
    assert frame["n"].sum() == 3
    node = face({**MOMENT, "columns": ["n", "n"], "rows": [[1, 2]]})
    with pytest.raises(MisuseError, match="same name"):
        node.do(lambda client: client.query("SELECT n, n ...").to_arrow())


def test_a_frame_makes_no_numbers_of_truths_and_no_doubles_of_large_integers(face: MakeFace) -> None:
    exact = 2**53 + 1
    rows = [[0.5, exact, 1], [True, None, None], [None, 2, 3]]
    node = face({**MOMENT, "columns": ["mixed", "big", "small"], "rows": rows, "page": None})
    frame = node.do(lambda client: client.query("SELECT mixed, big, small FROM users").to_pandas())
    assert list(frame["mixed"]) == [0.5, True, None]
    assert frame["mixed"][1] is True
    assert frame["big"][0] == exact
    assert [bool(one) for one in frame["big"].isna()] == [False, True, False]
    assert str(frame["small"].dtype) == "float64", "as pandas has it"


def test_explain_takes_statements_with_and_without_the_word(face: MakeFace) -> None:
    node = face({"index": "i"}, {"index": "i"})
    assert node.do(lambda client: client.explain("SELECT 1")) == {"index": "i"}
    node.do(lambda client: client.explain("explain SELECT 1", timeout_ms=9))
    assert node.asked == [{"sql": "EXPLAIN SELECT 1"}, {"sql": "explain SELECT 1", "timeout_ms": 9}]


def test_aggregates(face: MakeFace) -> None:
    groups = [{"key": ["x"], "values": {"total": 10**30}, "ignored": {"total": 2}}]
    node = face({**MOMENT, "groups": groups})
    functions = ["count", {"function": "sum", "of": "n", "as": "total"}]
    answer = node.do(lambda client: client.aggregate("i", functions, group_by=["city"], limit=3))
    assert (answer.groups[0].values, answer.groups[0].ignored) == ({"total": 10**30}, {"total": 2})
    assert node.asked == [{"functions": functions, "group_by": ["city"], "limit": 3}]
    assert node.client.session == "s7"


# --- held snapshots ---------------------------------------------------------------------------------------


def test_reads_of_a_held_snapshot_name_it(face: MakeFace) -> None:
    query = {**MOMENT, "columns": [], "rows": []}
    answers = [page("a"), page("a"), page("b"), {**MOMENT, "count": 1}, {**MOMENT, "groups": []}, query]
    node = face(HOLD, *answers, httpx.Response(204))
    held = node.client.snapshot("i", lease_s=5, at_least={0: 4})
    assert node.asked == []
    at = node.enter(held)
    assert (at.at, at.snapshot, at.slices, at.timestamp, at.session) == (
        "held", 7, 3, MOMENT["timestamp"], "s8",
    )  # fmt: skip
    node.read(at.scan(equals=["x"]))
    node.read(node.client.scan("i", at=at))
    node.do(lambda _: at.page(limit=1))
    node.do(lambda _: at.count())
    node.do(lambda _: at.aggregate(["count"]))
    node.read(at.query("SELECT id FROM users"))
    node.exit(held)
    assert node.asked[0] == {"lease_s": 5, "at_least": {"0": 4}}
    assert [asked["at"] for asked in node.asked[1:]] == ["held"] * 7
    assert node.requests[-1].method == "DELETE"
    assert node.paths[-1] == "/v1/indexes/i/snapshots?at=held"
    with pytest.raises(MisuseError, match="given back"):
        at.scan()
    with pytest.raises(MisuseError, match="given back"):
        _ = at.snapshot
    with pytest.raises(MisuseError, match="held once"):
        node.enter(held)


def test_a_snapshot_that_cannot_be_given_back_is_left_to_its_lease(face: MakeFace) -> None:
    node = face(HOLD, refusal(503, "node-unavailable", retry_after="1"))
    held = node.client.snapshot("i")
    with pytest.raises(MisuseError, match="not held yet"):
        _ = held.at
    node.enter(held)
    node.exit(held)
    assert node.pauses == []


# --- nodes that do not answer -----------------------------------------------------------------------------

NODES = ["http://a.example:1", "http://b.example:2/", "http://c.example:3"]


def test_the_next_node_is_asked_at_once_and_the_turns_go_on(face: MakeFace) -> None:
    node = face(
        httpx.ConnectError("refused"), refusal(503, "starting", retry_after="1"), page(), page(), url=NODES
    )
    node.do(lambda client: client.page("i"))
    node.do(lambda client: client.page("i"))
    assert node.hosts == ["a", "b", "c", "b"], "the second page has its own turn"
    assert node.pauses == []


def test_pauses_come_when_all_nodes_were_asked(face: MakeFace) -> None:
    broken: list[Answer] = [httpx.RemoteProtocolError("closed")] * 9
    node = face(*broken, url=NODES, retries=2)
    with pytest.raises(RetryableError, match=r"c\.example:3 does not answer: closed"):
        node.do(lambda client: client.page("i"))
    assert node.hosts == list("abc") * 3
    assert node.pauses == [0.05, 0.1]


def test_a_node_that_is_silent_is_not_asked_again(face: MakeFace) -> None:
    answers: list[Answer] = [httpx.ReadTimeout("slow"), *[httpx.ConnectError("x")] * 3]
    node = face(*answers, url=NODES[:2], retries=2)
    with pytest.raises(RetryableError):
        node.do(lambda client: client.page("i"))
    assert node.hosts == ["a", "b", "b", "b"]
    node = face(httpx.ReadTimeout("slow"), httpx.ConnectTimeout("slow"), url=NODES[:2])
    with pytest.raises(RetryableError) as caught:
        node.do(lambda client: client.page("i"))
    assert (caught.value.status, node.hosts, node.pauses) == (504, ["a", "b"], [])


def test_what_a_node_refuses_for_good_is_not_asked_elsewhere(face: MakeFace) -> None:
    for status, kind in ((404, "unknown-index"), (500, "invariant-violated"), (504, "timestamp-not-reached")):
        node = face(refusal(status, kind), url=NODES)
        with pytest.raises(KeytideError) as caught:
            node.do(lambda client: client.count("i"))
        assert (caught.value.problem_type, node.hosts) == (kind, ["a"])


def test_a_busy_client_does_not_blame_the_node(face: MakeFace) -> None:
    node = face(httpx.PoolTimeout("no connection"), url=NODES)
    with pytest.raises(RetryableError) as caught:
        node.do(lambda client: client.page("i"))
    assert (caught.value.problem_type, node.hosts) == ("client-busy", ["a"])


@pytest.mark.parametrize(
    "url", ["", [], "nonsense", "http:", "ftp://a", "http://a.example:x", "http:" + "//[", "//a"]
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_that_is_none(kind: Any, url: Any) -> None:
    with pytest.raises(CallerError, match="node") as caught:
        kind(url)
    assert caught.value.next_step


def test_a_closed_client_says_so(face: MakeFace) -> None:
    node = face()
    node.wait(node.client.close())
    with pytest.raises(MisuseError, match="closed"):
        node.do(lambda client: client.indexes())
    assert "secret" not in repr(face(token="secret").client)


def test_a_token_is_sent(face: MakeFace) -> None:
    node = face([], token="secret")
    assert node.do(lambda client: client.indexes()) == []
    assert node.requests[0].headers["authorization"] == "Bearer secret"


# --- sessions ---------------------------------------------------------------------------------------------


def test_answers_of_requests_at_the_same_time_are_all_kept_until_the_next_one_covers_them() -> None:
    session = Session()
    session.seen(*session.sending(), "s1")
    first, second, third = session.sending(), session.sending(), session.sending()
    session.seen(*second, "s2")
    session.seen(*first, "s3")
    session.seen(*third, "s3")
    assert session.token == "s2,s3"
    after = session.sending()
    session.seen(*after, "s4")
    assert session.token == "s4"


def test_an_answer_to_a_request_from_before_a_reset_is_not_remembered() -> None:
    session = Session()
    before = session.sending()
    session.reset()
    session.seen(*before, "old")
    assert session.token is None
    session.reset("given")
    assert session.token == "given"


def test_tasks_at_the_same_time_share_a_session() -> None:
    asked: list[str | None] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(body.get("session"))
        await asyncio.sleep(0)  # all are asked before the first is answered
        return httpx.Response(200, json={**MOMENT, "count": 1, "session": f"of-{body['timeout_ms']}"})

    async def main() -> None:
        async with AsyncClient("http://127.0.0.1", transport=httpx.MockTransport(answer)) as client:
            await asyncio.gather(*(client.count("i", timeout_ms=n) for n in (1, 2, 3)))
            await client.count("i", timeout_ms=4)
            assert client.session == "of-4"

    asyncio.run(main())
    assert asked[:3] == [None] * 3
    assert sorted((asked[3] or "").split(",")) == ["of-1", "of-2", "of-3"]


def test_threads_share_a_client() -> None:
    """None of them goes back behind what it has seen itself."""
    lock = threading.Lock()
    newest = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal newest
        seen = max(int(one) for one in json.loads(request.content).get("session", "0").split(","))
        with lock:
            newest += 1
            return httpx.Response(200, json={**MOMENT, "count": 0, "session": str(max(seen, newest))})

    failed: list[BaseException] = []
    with Client("http://127.0.0.1", transport=httpx.MockTransport(answer)) as client:

        def work() -> None:
            try:
                last = 0
                for _ in range(50):
                    last, before = int(client.count("i").session), last
                    assert last > before
            except BaseException as error:  # noqa: BLE001 - told in the test's thread
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed
        client.count("i")
        assert client.session == str(newest)


def test_a_rollback_is_told_by_both(face: MakeFace) -> None:
    node = face(page("a"), refusal(409, "history-changed"), {**MOMENT, "count": 3})
    node.do(lambda client: client.page("i"))
    with pytest.raises(HistoryChangedError):
        node.do(lambda client: client.count("i"))
    node.client.reset_session()
    assert node.do(lambda client: client.count("i")).count == 3
    assert "session" not in node.asked[-1]
    node.client.session = "given"
    assert node.client.session == "given"
