"""Both clients' streams: Arrow and lines of JSON in any pieces, streams that break off, columns whose type
changes, memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.client import AsyncClient, MisuseError, TypeChangedError
from keytide.client.protocol.arrow import ArrowParts
from keytide.client.protocol.requests import ARROW, NDJSON
from keytide.errors import CallerError, RetryableError
from tests.unit.client_kit import (
    HEADERS,
    MOMENT,
    Answer,
    Chunks,
    Face,
    arrow_of,
    arrow_stream,
    pieces,
    stream,
)

MakeFace = Callable[..., Face]
HOLD = {**MOMENT, "at": "held", "slices": 3, "expires_in_s": 60}
ROWS = [{"key": [f"city{at % 7}", at], "id": f"u{at}"} for at in range(100)]
WHOLE = arrow_of(ROWS)
BROKEN = httpx.RemoteProtocolError("incomplete chunked read")


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


def gone() -> httpx.Response:
    return httpx.Response(204)


def failing(schema: pa.Schema, document: dict[str, Any]) -> bytes:
    """What a node sends in Arrow's form that cannot go on."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema)
    start = len(schema.serialize())
    empty = pa.RecordBatch.from_pylist([], schema)
    writer.write_batch(empty, custom_metadata={"keytide.error": json.dumps(document)})
    content: bytes = sink.getvalue().to_pybytes()[start:]
    return content


def type_changed(column: str) -> dict[str, Any]:
    return {"type": "type-changed", "status": 422, "detail": f"{column} is text", "column": column}


# --- Arrow, in pieces -------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.integers(1, 4))
def test_batches_come_out_of_any_pieces(size: int, batches: int) -> None:
    batch = pa.record_batch({"a": [1, None, 3], "b": ["x", "y", None]})
    whole = arrow_stream(*[batch] * batches)
    parts = ArrowParts()
    found = [one for piece in pieces(whole, size) for one in parts.feed(piece)]
    assert parts.complete
    assert pa.Table.from_batches(found) == pa.ipc.open_stream(whole).read_all()


@pytest.mark.parametrize("wide", [0, 1, 300])
def test_types_and_schemas_of_many_columns(wide: int) -> None:
    """The length of a message's body is read out of its header, whatever else is in there."""
    columns = {f"c{at}": pa.array([at, None], pa.int64()) for at in range(wide)}
    columns |= {"empty": pa.array([None, None]), "text": pa.array(["", "z" * 10_000])}
    batch = pa.record_batch(columns)
    parts = ArrowParts()
    assert parts.feed(arrow_stream(batch)) == [batch]


@pytest.mark.parametrize("content", [b"<html><body>", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"ARROW1\0\0" * 3])
def test_what_is_no_arrow_stream(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ArrowParts().feed(content)
    assert "rrow" in str(caught.value)


def test_a_damaged_message_is_no_arrow_stream() -> None:
    damaged = bytearray(WHOLE)
    damaged[20:60] = b"\xee" * 40
    with pytest.raises(ValueError):  # noqa: PT011 - whatever Arrow says
        ArrowParts().feed(bytes(damaged))


# --- tables -----------------------------------------------------------------------------------------------


def test_a_table_of_one_held_snapshot(face: MakeFace) -> None:
    node = face(HOLD, stream(*pieces(WHOLE, 333)), gone())
    scan = node.client.scan("by_city", equals=["x"], limit=70, at_least={0: 4}, timeout_ms=900)
    table = node.do(lambda _: scan.to_arrow(types={"city": "text"}))
    assert table.column_names == ["city", "n", "id"]
    assert table.num_rows == 70
    assert (scan.snapshot, scan.session, scan.timestamp, scan.staleness_ms) == (
        7,
        "s7",
        MOMENT["timestamp"],
        3,
    )
    hold, scanned, _ = node.asked
    assert hold == {"at_least": {"0": 4}, "timeout_ms": 900}
    wanted = {"equals": ["x"], "limit": 70, "types": {"city": "text"}, "timeout_ms": 900}
    assert scanned == {**wanted, "at": "held", "session": "s7"}
    assert node.requests[1].headers["accept"] == ARROW
    assert node.requests[2].method == "DELETE"
    assert node.client.session == "s7"
    with pytest.raises(MisuseError):
        node.read(scan)


def test_the_tip_and_given_snapshots_are_not_held(face: MakeFace) -> None:
    node = face(stream(WHOLE), stream(WHOLE))
    node.do(lambda client: client.scan("i", consistency="tip").to_arrow(any_order=True))
    node.do(lambda client: client.scan("i", at="token").to_pandas())
    assert node.asked == [
        {"consistency": "tip", "order": "any"},
        {"at": "token", "session": "s7"},
    ]


def test_a_column_whose_type_changes_is_read_again_as_json(face: MakeFace) -> None:
    schema = pa.ipc.open_stream(WHOLE).schema
    marked = pa.schema([pa.field("city", pa.string(), metadata={"keytide.type": "json"})])
    texts = arrow_stream(pa.record_batch([['"a"', "5", '{"b": 1}', None]], schema=marked))
    refused = httpx.Response(422, json=type_changed("n"))
    begun = WHOLE[: len(schema.serialize())] + failing(schema, type_changed("city"))
    node = face(HOLD, stream(begun, BROKEN), refused, stream(texts), gone())
    frame = node.do(lambda client: client.scan("i").to_pandas())
    assert frame["city"].tolist() == ["a", 5, {"b": 1}, None]
    types = [asked.get("types") for asked in node.asked]
    assert types == [None, None, {"city": "json"}, {"city": "json", "n": "json"}, None]
    assert [asked.get("at") for asked in node.asked] == [None] + ["held"] * 4


def test_a_column_that_does_not_fit_its_given_type_is_an_error(face: MakeFace) -> None:
    refused = httpx.Response(422, json=type_changed("city"))
    node = face(HOLD, refused, gone())
    with pytest.raises(TypeChangedError, match="city is text"):
        node.do(lambda client: client.scan("i").to_arrow(types={"city": "bigint"}))
    assert node.requests[-1].method == "DELETE", "the snapshot is given back all the same"


def test_a_table_is_read_again_when_its_stream_breaks(face: MakeFace) -> None:
    node = face(HOLD, stream(WHOLE[:500], BROKEN), stream(WHOLE[:-8]), stream(WHOLE), gone())
    assert node.do(lambda client: client.scan("i").to_arrow()).num_rows == 100
    node = face(HOLD, stream(WHOLE[:500], BROKEN), stream(WHOLE[:-8]), gone(), retries=1)
    with pytest.raises(RetryableError, match="no end mark") as caught:
        node.do(lambda client: client.scan("i").to_arrow())
    assert caught.value.problem_type == "stream-broken"


def test_what_answers_without_a_moment_is_no_node(face: MakeFace) -> None:
    body = Chunks([WHOLE])
    node = face(httpx.Response(200, stream=body))
    with pytest.raises(CallerError, match="headers") as caught:
        node.do(lambda client: client.scan("i", consistency="tip").to_arrow())
    assert caught.value.problem_type == "not-a-node"
    assert body.closed


# --- batches and lines ------------------------------------------------------------------------------------


def test_batches_are_given_before_the_stream_is_over(face: MakeFace) -> None:
    batch = pa.ipc.open_stream(WHOLE).read_next_batch()
    whole = arrow_stream(batch, batch, batch)
    body = Chunks(pieces(whole, len(whole) // 3))
    node = face(httpx.Response(200, headers=HEADERS, stream=body))
    scan = node.client.scan("i")
    assert node.do(lambda _: scan.schema()).names == ["city", "n", "id"]
    batches = scan.batches()
    assert node.next(batches) == batch
    assert body.taken < 4
    assert scan.snapshot == 7
    node.wait(batches.close() if node.kind == "sync" else batches.aclose())
    assert body.closed, "who reads no further lets the node know"


def test_a_type_that_changes_in_mid_stream_is_told_after_the_batches_before(face: MakeFace) -> None:
    schema = pa.ipc.open_stream(WHOLE).schema
    node = face(stream(WHOLE[:-8] + failing(schema, type_changed("city")), BROKEN))
    batches = node.client.scan("i").batches()
    with pytest.raises(TypeChangedError) as caught:
        node.read(batches)
    assert caught.value.extra == {"column": "city"}


def test_a_broken_stream_of_batches_is_not_taken_for_a_short_one(face: MakeFace) -> None:
    for end in (BROKEN, httpx.ReadTimeout("slow"), b""):
        node = face(stream(WHOLE[:-8], end))
        batches = node.client.scan("i").batches()
        assert node.next(batches).num_rows == 100
        with pytest.raises(RetryableError):
            node.next(batches)


def test_lines_come_whole(face: MakeFace) -> None:
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
    node = face(stream(*pieces(lines, 77)))
    parts = node.read(node.client.scan("i", limit=100).ndjson())
    assert all(part.endswith(b"\n") for part in parts)
    assert b"".join(parts) == lines
    assert node.requests[0].headers["accept"] == NDJSON
    assert node.asked == [{"limit": 100}]


def test_lines_that_break_off(face: MakeFace) -> None:
    node = face(stream(b'{"id": "a"}\n{"id"', BROKEN))
    lines = node.client.scan("i").ndjson()
    assert node.next(lines) == b'{"id": "a"}\n'
    with pytest.raises(RetryableError) as caught:
        node.next(lines)
    assert caught.value.problem_type == "stream-broken"
    problem = {"type": "snapshot-gone", "status": 410, "detail": "slice 3 restarted"}
    last = b'{"error":' + json.dumps(problem).encode() + b"}\n"
    node = face(stream(b'{"id": "a"}\n', last, BROKEN))
    lines = node.client.scan("i").ndjson()
    assert node.next(lines) == b'{"id": "a"}\n'
    with pytest.raises(CallerError, match="slice 3 restarted"):
        node.next(lines)


def test_a_last_line_that_is_not_whole_is_not_left_out_quietly(face: MakeFace) -> None:
    node = face(stream(b'{"key":["A"],"id":"a"}\n{"key":["B"]'))
    lines = node.client.scan("i").ndjson()
    assert node.next(lines) == b'{"key":["A"],"id":"a"}\n'
    with pytest.raises(RetryableError, match="not whole"):
        node.next(lines)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_gives_nothing_in_any_form(face: MakeFace, limit: int) -> None:
    one = arrow_of(ROWS[:1])
    node = face(handler=lambda _: stream(one))
    assert node.read(node.client.scan("i", limit=limit).ndjson()) == []
    assert node.read(node.client.scan("i", limit=limit).batches()) == []
    scan = node.client.scan("i", limit=limit)
    assert node.do(lambda _: scan.schema()).names == ["city", "n", "id"]
    assert node.read(scan.batches()) == []


def test_an_empty_stream(face: MakeFace) -> None:
    empty = pa.ipc.open_stream(WHOLE).schema.empty_table()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, empty.schema):
        pass
    node = face(HOLD, stream(sink.getvalue().to_pybytes()), gone(), stream())
    assert node.do(lambda client: client.scan("i").to_arrow()).num_rows == 0
    assert node.read(node.client.scan("i").ndjson()) == []


class Silent(httpx.AsyncByteStream):
    """A body of which nothing comes after the first bytes."""

    def __init__(self, first: bytes) -> None:
        self._first = first
        self.waiting = asyncio.Event()
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first
        self.waiting.set()
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("read", ["batches", "ndjson", "tail"])
def test_a_task_that_is_cancelled_closes_its_stream(read: str) -> None:
    async def main() -> None:
        body = Silent({"batches": WHOLE[:100], "ndjson": b'{"id"', "tail": b": hello\n"}[read])
        answer = httpx.Response(200, headers=HEADERS, stream=body)
        async with AsyncClient("http://127.0.0.1", transport=httpx.MockTransport(lambda _: answer)) as client:
            made: Any = client.tail("i") if read == "tail" else getattr(client.scan("i"), read)()

            async def one() -> Any:
                return await anext(made)

            task = asyncio.ensure_future(one())
            await asyncio.wait_for(body.waiting.wait(), 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert body.closed

    asyncio.run(main())
