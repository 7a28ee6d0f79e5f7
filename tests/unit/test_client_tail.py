"""Both clients' tails: events, connections that break, what ends a tail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.client import MisuseError, SnapshotGoneError
from keytide.client.protocol.server_sent_events import EventParser
from keytide.errors import CallerError, HistoryChangedError, RetryableError
from tests.unit.client_kit import HEADERS, Answer, Chunks, Face, event, refusal, stream

MakeFace = Callable[..., Face]
BROKEN = httpx.RemoteProtocolError("closed")


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[MakeFace]:
    made: list[Face] = []
    kind: Literal["sync", "async"] = request.param

    def make(*answers: Answer, **more: Any) -> Face:
        made.append(Face(kind, *answers, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def moment(number: int, **more: Any) -> dict[str, Any]:
    return {"snapshot": number, "timestamp": {}, "session": f"s{number}", **more}


def test_events_and_their_rows(face: MakeFace) -> None:
    row = {"key": ["x", 1], "id": "a", "include": {"n": 1}}
    first = event("snapshot", moment(7, added=[row]), "t7")
    then = event("changes", moment(9, added=[], removed=[row]), "t9")
    node = face(stream(first + b": heart", b"beat\n\n" + then[:30], then[30:]))
    tail = node.client.tail("i", equals=["Boston", 3], prefix="x", initial=True, columns=["key"], spans=None)
    one, two = node.next(tail), node.next(tail)
    assert (one.snapshot, one.first, one.token, one.removed) == (7, True, "t7", [])
    assert (one.added[0].id, one.added[0].include) == ("a", {"n": 1})
    assert (two.snapshot, two.first, two.token, two.added) == (9, False, "t9", [])
    assert (tail.token, node.client.session) == ("t9", "s9")
    assert node.asked == [{"equals": '["Boston", 3]', "prefix": "x", "initial": "true", "columns": '["key"]'}]
    assert node.requests[0].headers["accept"] == "text/event-stream"


def test_a_heartbeat_has_a_place_to_go_on_from_once_it_is_whole() -> None:
    parser = EventParser()
    assert parser.feed(b": nothing new\nid: t9\n") == []
    assert parser.id is None
    assert parser.feed(b"\n") == []
    assert parser.id == "t9"


def test_a_tail_goes_on_where_it_was_at_any_node(face: MakeFace) -> None:
    node = face(
        stream(event("snapshot", moment(7), "t7"), event("changes", moment(8), "t8")[:-1], BROKEN),
        httpx.ConnectError("refused"),
        stream(event("changes", moment(8), "t8")),
        stream(event("changes", moment(9), "t9")),
        url=["http://a.example:1", "http://b.example:2"],
    )
    tail = node.client.tail("i")
    assert [node.next(tail).snapshot for _ in range(3)] == [7, 8, 9]
    assert [request.headers.get("last-event-id") for request in node.requests] == [None, "t7", "t7", "t8"]
    assert node.hosts == ["a", "a", "b", "b"]
    assert node.asked[1] == {"session": "s7"}


def test_a_tail_that_breaks_again_and_again_is_given_up_and_can_be_resumed(face: MakeFace) -> None:
    broken: list[Answer] = [stream(b": hello\n\n") for _ in range(3)]
    node = face(*broken, stream(event("changes", moment(8), "t8")), retries=2)
    tail = node.client.tail("i", resume="t7")
    with pytest.raises(RetryableError, match="again and again"):
        node.next(tail)
    assert node.pauses == [0.05, 0.1]
    assert {request.headers["last-event-id"] for request in node.requests} == {"t7"}
    assert node.next(node.client.tail("i", resume=tail.token)).snapshot == 8


def test_a_quiet_tail_outlives_any_number_of_connections(face: MakeFace) -> None:
    lasted: list[Answer] = [stream(b": hello\n\n", b": hello\n\n") for _ in range(9)]
    node = face(*lasted, stream(event("changes", moment(8), "t8")), retries=2)
    assert node.next(node.client.tail("i", resume="t7")).snapshot == 8
    assert node.pauses == [0.05] * 9


@pytest.mark.parametrize(
    ("name", "document", "family"),
    [
        ("history-changed", {"type": "history-changed", "status": 409, "detail": "why"}, HistoryChangedError),
        ("history-changed", {"detail": "why"}, HistoryChangedError),
        ("error", {"type": "snapshot-gone", "status": 410, "detail": "why"}, SnapshotGoneError),
        ("error", {"type": "node-unavailable", "status": 503, "detail": "why"}, RetryableError),
    ],
)
def test_what_ends_a_tail_is_told_after_the_events_before(
    face: MakeFace, name: str, document: dict[str, Any], family: type[Exception]
) -> None:
    body = Chunks(
        [event("snapshot", moment(7), "t7") + event(name, document, "") + event("changes", {}, "t")]
    )
    node = face(httpx.Response(200, headers=HEADERS, stream=body))
    tail = node.client.tail("i")
    assert node.next(tail).snapshot == 7
    for _ in range(2):
        with pytest.raises(family, match="why"):
            node.next(tail)
    assert body.closed
    assert len(node.requests) == 1


def test_a_refusal_is_raised(face: MakeFace) -> None:
    node = face(refusal(410, "snapshot-gone"))
    with pytest.raises(SnapshotGoneError):
        node.next(node.client.tail("i", resume="old"))


def test_a_closed_tail_lets_the_node_know(face: MakeFace) -> None:
    body = Chunks([event("snapshot", moment(7), "t7") + event("changes", moment(8), "t8")])
    node = face(httpx.Response(200, headers=HEADERS, stream=body))
    tail = node.client.tail("i")
    node.enter(tail)
    assert node.next(tail).snapshot == 7
    node.exit(tail)
    assert body.closed
    with pytest.raises(MisuseError, match="closed"):
        node.next(tail)
    assert tail.token == "t7"


@pytest.mark.parametrize("content", [b"data: {}\n\n", b"data: <html>\n\n", b"data: \xff\n\n"])
def test_events_of_something_else(face: MakeFace, content: bytes) -> None:
    node = face(stream(content))
    with pytest.raises(CallerError) as caught:
        node.next(node.client.tail("i"))
    assert caught.value.problem_type == "not-a-node"


def test_an_event_that_is_too_large_is_said(face: MakeFace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keytide.client.protocol.server_sent_events.MAX_EVENT_BYTES", 1_000)
    fine = event("changes", moment(8, pad="x" * 800), "t8")
    node = face(stream(fine, fine, fine, b"id: t9\ndata: {", b"x" * 600, b"y" * 600))
    tail = node.client.tail("i")
    for _ in range(3):
        node.next(tail)
    with pytest.raises(CallerError) as caught:
        node.next(tail)
    assert caught.value.problem_type == "event-too-large"


# --- the parser -------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=8)


@given(
    st.lists(st.tuples(texts.filter(bool), st.lists(texts, min_size=1, max_size=3), texts), max_size=4),
    st.integers(1, 30),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_events_come_out_of_any_pieces(
    events: list[tuple[str, list[str], str]], size: int, newline: str, data: st.DataObject
) -> None:
    text, expected = "", []
    for name, lines, token in events:
        body = [
            f"id:{token}" if token[:1] != " " else f"id: {token}",
            f"event: {name}",
            ": heartbeat",
            "retry: 5",
        ]
        body += [f"data: {line}" for line in lines]
        text += newline.join([*data.draw(st.permutations(body[:4])), *body[4:], "", ""])
        expected.append((name, "\n".join(lines), token))
    parser, content = EventParser(), text.encode()
    found = [
        (one.name, one.data, one.id)
        for at in range(0, len(content), size)
        for one in parser.feed(content[at : at + size])
    ]
    assert found == expected


def test_names_and_ids_that_are_left_out() -> None:
    (one, two) = EventParser().feed(b"id: 5\ndata: a\n\nevent: gone\n\ndata\n\n")
    assert (one.name, one.data, one.id) == ("message", "a", "5")
    assert (two.name, two.data, two.id) == ("message", "", "5")
    assert json.dumps(one.data)
