"""Requests: from keyword arguments to paths, bodies and query strings. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from keytide.client.protocol.answers import MisuseError
from keytide.client.protocol.calls import ANSWER_S, DEFAULT_TIMEOUT_MS, HttpCall
from keytide.errors import CallerError

ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
MAX_TOKENS: Final = 16
"""Of the client's own session: with more, a request that names another one sends them along, so that its
answer takes their place. Without that every such answer would add one, for ever."""
_JSON: Final = {"Content-Type": "application/json"}
_encode: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def path(index: str, action: str) -> str:
    """Of an index's own routes."""
    return f"/v1/indexes/{in_path(index)}/{action}"


@lru_cache(maxsize=256)
def in_path(name: str) -> str:
    """A name as a part of a path, whatever characters it has that mean something there.

    Raises:
        CallerError: it is empty, so that the path would be of something else.
    """
    if not name:
        raise CallerError("an empty text is no name", next_step="see `keytide index list` and the like")
    return quote(name, safe="", errors="surrogateescape")


def members(request: Mapping[str, Any], session: str | None) -> dict[str, Any]:
    """What is sent of a request: what was given, with the session unless it names one, and the client's own
    objects in the words of the wire.

    Raises:
        CallerError: what a producer wrote cannot be demanded (`Writes.at_least`).
    """
    given = {name: value for name, value in request.items() if value is not None}
    demand = given.get("at_least")
    if demand is not None and not isinstance(demand, Mapping) and hasattr(demand, "at_least"):
        demand = demand.at_least()
        given["at_least"] = demand
    if not demand:
        given.pop("at_least", None)
    held = given.get("at")
    if held is not None and not isinstance(held, str):
        given["at"] = held.at
    if session is not None:
        named = given.setdefault("session", session)
        if named != session and session.count(",") >= MAX_TOKENS:
            given["session"] = f"{named},{session}"
    return given


def post(
    where: str, body: Mapping[str, Any], *, accept: str | None = None, patience_s: float = 0.0
) -> HttpCall:
    """A request with a JSON body; as a stream of the form `accept` if that is given.

    Args:
        patience_s: how long nothing may come back, at least.

    Raises:
        CallerError: a value that JSON cannot hold.
    """
    headers = {**_JSON, "Accept": accept} if accept else _JSON
    seconds = max(_patience(body), patience_s)
    return HttpCall("POST", where, _json(body), headers, seconds, stream=accept is not None)


def get(where: str, query: Mapping[str, Any]) -> HttpCall:
    """A request with a query string: text as it is, everything else as JSON."""
    return HttpCall("GET", _with_query(where, query), seconds=_patience(query))


def follow(where: str, query: Mapping[str, Any], last: str | None, patience_s: float) -> HttpCall:
    """A request for server-sent events, going on behind the event whose id is `last`."""
    headers = {"Accept": EVENTS, **({"Last-Event-ID": last} if last else {})}
    return HttpCall("GET", _with_query(where, query), b"", headers, patience_s, stream=True)


def _with_query(where: str, query: Mapping[str, Any]) -> str:
    pairs = [(name, _word(value)) for name, value in query.items()]
    return f"{where}?{urlencode(pairs)}" if pairs else where


def delete(where: str, query: Mapping[str, Any]) -> HttpCall:
    return HttpCall("DELETE", _with_query(where, query))


def written_to(request: Mapping[str, Any]) -> str | None:
    """The topic of what a producer wrote, if the request demands that."""
    demand = request.get("at_least")
    if demand is None or isinstance(demand, Mapping):
        return None
    topic: str | None = getattr(demand, "topic", None)
    return topic


def check_topic(index: str, keyspaces: Mapping[str, str], topic: str) -> None:
    """Raise `MisuseError` if an index is known, and known not to be of a topic's keyspace."""
    keyspace = keyspaces.get(index)
    if keyspace is not None and keyspace != topic:
        raise MisuseError(
            f"the writes went to topic {topic!r}, and index {index!r} is of {keyspace!r}",
            problem_type="wrong-topic",
            next_step="collect the writes of each topic in a `Writes` of its own",
        )


def _json(value: Any) -> bytes:
    try:
        return _encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CallerError(
            f"the request cannot be written as JSON: {error}",
            problem_type="invalid-request",
            next_step="use null, booleans, finite numbers, strings that are UTF-8, lists and dictionaries",
        ) from error


def _word(value: Any) -> bytes:
    """Text as it is, everything else as JSON; of both what cannot be sent is refused."""
    written = _json(value)
    return value.encode() if isinstance(value, str) else written


def _patience(request: Mapping[str, Any]) -> float:
    """Seconds without a word from the node until a request is given up."""
    timeout_ms = request.get("timeout_ms", DEFAULT_TIMEOUT_MS)
    return timeout_ms / 1000 + ANSWER_S if isinstance(timeout_ms, int) else ANSWER_S
