"""Following the changes of an index, as flows. Pure.

Theory of operation
===================
A node tells the changes from snapshot to snapshot as server-sent events, each with a token to go on from.
When the connection breaks, the tail is resumed behind the newest event that its caller was given, at any node
that answers: no change is left out, none comes twice. Two things end a tail for good: the snapshot to go on
from is no longer held (`SnapshotGoneError`; begin anew with `initial=True`), and the source has lost records
that were told (`HistoryChangedError`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from keytide.client.protocol.answers import Event, MisuseError, not_a_node, problem_of
from keytide.client.protocol.calls import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Close,
    Flow,
    NoReply,
    Read,
    RetryPause,
    ask,
)
from keytide.client.protocol.flows import Core
from keytide.client.protocol.requests import follow, path
from keytide.client.protocol.server_sent_events import EventParser, ServerEvent
from keytide.client.protocol.states import TailState
from keytide.errors import CallerError, RetryableError

HEARTBEAT_LIMIT_S: Final = 60.0
"""A tail from which nothing was heard for so long, not even a heartbeat, is resumed elsewhere."""

_ENDS: Final = {"history-changed": 409, "snapshot-gone": 410, "error": 503}
"""Events that say why there are no more, and what status that is unless they say."""

_events = msgspec.json.Decoder(Event)
_problems = msgspec.json.Decoder(dict[str, Any])


def next_event(core: Core, state: TailState) -> Flow[Event]:
    """The next event, however long that takes.

    Raises:
        SnapshotGoneError, HistoryChangedError: there is no way to go on.
        RetryableError: no node answers.
    """
    while not state.ready:
        if state.over:
            raise state.end or MisuseError(
                "the tail is closed", next_step="begin another one, with `resume=tail.token`"
            )
        if state.reply is None:
            query, state.resets = yield from core.body(state.index, state.request)
            state.sent = query.get("session")
            call = follow(path(state.index, "tail"), query, state.token, HEARTBEAT_LIMIT_S)
            state.turn = core.nodes.turn() if state.turn is None else state.turn
            state.reply = yield from ask(core.nodes, call, core.retries, state.turn)
            state.parser, state.heard = EventParser(), 0
        reply = state.reply
        chunk = yield Read(reply.body)
        if isinstance(chunk, bytes) and chunk:
            state.heard += 1
        else:
            state.reply = None
            yield from _again(core, state, chunk.why if isinstance(chunk, NoReply) else "it ended")
            continue
        try:
            _take(state, state.parser.feed(chunk))
        except CallerError:
            yield from stop(state)
            raise
        except (ValueError, msgspec.MsgspecError) as error:
            yield from stop(state)
            raise not_a_node(reply.url, str(error)) from error
        if not state.ready:
            state.token = state.parser.id or state.token  # of a heartbeat: nothing has changed up to there
        if state.end is not None:
            yield from stop(state)
    event = state.ready.popleft()
    state.token, state.failures = event.token, 0
    if event.session:
        core.sessions.seen(state.sent, state.resets, event.session)
        state.sent = event.session
    return event


def stop(state: TailState) -> Flow[None]:
    """End the connection."""
    if state.reply is not None:
        body, state.reply = state.reply.body, None
        yield Close(body)


def _take(state: TailState, events: Iterable[ServerEvent]) -> None:
    """What events of a node mean. An error is raised once the events before it were given."""
    for event in events:
        if event.name in _ENDS:
            document = _problems.decode(event.data)
            state.end = problem_of(
                {"type": event.name, **document}, int(document.get("status", _ENDS[event.name]))
            )
            state.over = True
            return
        made = _events.decode(event.data)
        state.ready.append(msgspec.structs.replace(made, first=event.name == "snapshot", token=event.id))


def _again(core: Core, state: TailState, why: str) -> Flow[None]:
    """The connection broke: wait a moment, unless that happens all the time. (One that has lasted from one
    heartbeat to the next is as good as an event: a tail of what hardly changes sees many connections.)"""
    state.failures = 1 if state.heard > 1 else state.failures + 1
    if state.failures > core.retries:
        raise RetryableError(
            f"the tail of {state.index} breaks again and again: {why}",
            problem_type="stream-broken",
            next_step="go on with `resume=tail.token` once the nodes are back",
        )
    yield RetryPause(min(FIRST_PAUSE_S * 2.0 ** (state.failures - 1), LONGEST_PAUSE_S))
