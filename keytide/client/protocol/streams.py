"""Scans as streams, in Arrow's form or as lines of JSON, as flows. Pure.

Theory of operation
===================
A node that cannot go on breaks its stream off, so a stream that is not complete is an error and never a
short result. Arrow has one type per column. Where a node has to infer it and a later value does not fit, the
stream ends with `type-changed`, which names the column: a table is then read again with that column as JSON,
from the same held snapshot. Batches that were given to the caller cannot be taken back: there the error is
raised, with `types` as what to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from keytide.client.protocol.answers import MisuseError, TypeChangedError, not_a_node, problem_of
from keytide.client.protocol.arrow import ArrowParts
from keytide.client.protocol.calls import Close, Flow, HttpReply, NoReply, Read, ask
from keytide.client.protocol.flows import Core
from keytide.client.protocol.options import ColumnType
from keytide.client.protocol.requests import ARROW, NDJSON, path, post
from keytide.client.protocol.states import Head, ScanState
from keytide.errors import KeytideError, RetryableError

if TYPE_CHECKING:
    import pyarrow as pa

STREAM_S: Final = 60.0
"""How long a stream may stand still: nodes read a block of every slice between two pieces of an answer."""
_ERROR_LINE: Final = b'{"error":'
"""How the last line begins of a stream of lines that a node could not finish. No row begins so."""
BROKEN: Final = "stream-broken"
MOMENT: Final = ("consistency", "at_least", "session", "max_staleness_ms", "timeout_ms")
"""What a held snapshot is asked for with, and what reads from it need not say again."""


def open_stream(core: Core, state: ScanState, form: str, more: Mapping[str, Any]) -> Flow[HttpReply]:
    """Begin a stream of a scan's rows; its moment is in its headers."""
    request = {**state.request, "limit": None if state.left is None else max(state.left, 1), **more}
    body, resets = yield from core.body(state.index, request)
    call = post(path(state.index, "scan"), body, accept=form, patience_s=STREAM_S)
    reply = yield from ask(core.nodes, call, core.retries)
    try:
        state.head = Head.of_headers(reply.headers)
    except ValueError as error:
        yield Close(reply.body)
        raise not_a_node(reply.url, str(error)) from error
    core.sessions.seen(body.get("session"), resets, state.head.session)
    return reply


def next_chunk(state: ScanState) -> Flow[bytes]:
    """The next bytes of an open stream; b"" when it is complete.

    Raises:
        RetryableError: it was broken off.
    """
    reply = state.reply
    if reply is None:
        return b""
    chunk = yield Read(reply.body)
    if isinstance(chunk, bytes) and chunk:
        return chunk
    state.reply = None
    if isinstance(chunk, NoReply):
        raise _broken(reply, chunk.why)
    return b""


def next_lines(core: Core, state: ScanState) -> Flow[bytes | None]:
    """Some whole lines of JSON, a row each; None at the end.

    Raises:
        RetryableError: it was broken off.
    """
    state.last = state.last or _wants_nothing(state)
    while not state.last:
        if state.head is None:
            state.reply = yield from open_stream(core, state, NDJSON, {})
        reply = state.reply
        chunk = yield from next_chunk(state)
        if not chunk:
            state.last = True
            if state.lines and reply is not None:
                raise _broken(reply, "its last line is not whole")
            break
        state.lines += chunk
        whole = state.lines.rfind(b"\n") + 1
        if whole:
            found = bytes(state.lines[:whole])
            del state.lines[:whole]
            last = found.rfind(b"\n", 0, -1) + 1
            if found.startswith(_ERROR_LINE, last):
                yield from stop(state)
                document = json.loads(found[last:])["error"]
                raise problem_of(document, document.get("status", 503))
            return found
    state.over = True
    return None


def next_batch(core: Core, state: ScanState, more: Mapping[str, Any]) -> Flow[pa.RecordBatch | None]:
    """The next record batch; None at the end.

    Raises:
        TypeChangedError: a value does not fit a column of the batches before.
    """
    if _wants_nothing(state):
        yield from stop(state)
        state.ready.clear()
        state.last = True
    while not state.ready:
        if state.last:
            state.over = True
            return None
        yield from fill(core, state, more)
    return state.ready.popleft()


def fill(core: Core, state: ScanState, more: Mapping[str, Any]) -> Flow[None]:
    """Read until there is something new: the schema, batches, or the end."""
    if state.reply is None:
        state.reply = yield from open_stream(core, state, ARROW, more)
    reply = state.reply
    try:
        chunk = yield from next_chunk(state)
        batches = state.parts.feed(chunk)
    except ValueError as error:
        state.reply = None
        yield Close(reply.body)
        raise not_a_node(reply.url, str(error)) from error
    state.ready.extend(batches)
    if state.parts.problem is not None:
        yield from stop(state)
        raise problem_of(state.parts.problem, state.parts.problem.get("status", 503))
    if not chunk:
        state.last = True
        if not state.parts.complete:
            raise _broken(reply, "the stream has no end mark")


def schema(core: Core, state: ScanState, more: Mapping[str, Any]) -> Flow[pa.Schema]:
    """The schema of the batches, reading as far as that needs."""
    while state.parts.schema is None:
        if state.last:
            raise MisuseError("an empty stream has no schema")
        yield from fill(core, state, more)
    return state.parts.schema


def table(core: Core, state: ScanState, more: Mapping[str, Any]) -> Flow[pa.Table]:
    """All rows as a table, from one snapshot."""
    held: str | None = None
    request = state.request
    if request.get("at") is None and request.get("consistency") != "tip":
        moment: dict[str, Any] = {name: request[name] for name in MOMENT if name in request}
        held = (yield from core.hold(state.index, moment)).at
        state.request = {name: value for name, value in request.items() if name not in MOMENT} | {"at": held}
        if request.get("timeout_ms") is not None:
            state.request["timeout_ms"] = request["timeout_ms"]
    try:
        made = yield from _whole(core, state, more)
    except KeytideError:
        if held is not None:
            yield from core.give_back(state.index, held)
        raise
    if held is not None:
        yield from core.give_back(state.index, held)
    state.last = state.over = True
    return made


def _whole(core: Core, state: ScanState, more: Mapping[str, Any]) -> Flow[pa.Table]:
    """The same, from the snapshot that the request names."""
    import pyarrow as pa

    types: dict[str, Any] = dict(more.get("types") or {})
    broken = 0
    while True:
        state.parts, state.last = ArrowParts(), False
        state.ready.clear()
        batches: list[pa.RecordBatch] = []
        try:
            options = {**more, "types": types or None}
            while not state.last:
                yield from fill(core, state, options)
                batches += state.ready
                state.ready.clear()
            found = pa.Table.from_batches(batches, (yield from schema(core, state, options)))
            return found if state.left is None else found.slice(0, max(state.left, 0))
        except TypeChangedError as error:
            column = error.extra.get("column")
            if not isinstance(column, str) or column in types:
                raise
            types[column] = "json"
        except RetryableError as error:
            broken += 1
            if error.problem_type != BROKEN or broken > core.retries:
                raise


def stop(state: ScanState) -> Flow[None]:
    """End a stream that is not read to its end."""
    if state.reply is not None:
        body, state.reply, state.last = state.reply.body, None, True
        yield Close(body)


def _wants_nothing(state: ScanState) -> bool:
    """Whether the caller's limit is 0, which nodes have no word for."""
    return state.left is not None and state.left <= 0


def form(types: Mapping[str, ColumnType] | None, any_order: bool) -> dict[str, Any]:
    """What an Arrow stream may be told besides."""
    return {"types": types, "order": "any" if any_order else None}


def _broken(reply: HttpReply, why: str) -> RetryableError:
    return RetryableError(
        f"the node at {reply.url} broke its answer off: {why}",
        problem_type=BROKEN,
        next_step="read it again; the node's log may say more",
    )
