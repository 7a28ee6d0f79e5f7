"""Asking one of several nodes until one answers, without any I/O (after h11 and httpx's `auth_flow`). Pure.

Theory of operation
===================
What a client does is written once, as generators (`Flow`): they yield what is to be done (`HttpCall`, `Read`,
`Close`, `RetryPause`, `Clock`, `Disconnect`), are sent what came of it (a `HttpReply`, bytes, a `NoReply`,
seconds), and return their result. `keytide.client.transports` carries that out, in two ways of waiting, and
knows nothing else.

Reading changes nothing, so what fails for a while is tried again: a node that cannot be reached, and what a
node answers with `Retry-After`. The next node is asked at once; a pause is made when all of them were asked.
Which is asked first, and which is passed over for a while, is said by `keytide.client.protocol.addresses`.
One that lets a request time out is not asked again for the same request, since all the time that the caller
gave has been spent on it; nor is one that says that others answer what is asked.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec

from keytide.client.protocol.addresses import LOOK_S, NodeAddresses
from keytide.client.protocol.answers import problem
from keytide.errors import KeytideError, RetryableError

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
"""Between tries; doubled from the first to the longest, also if a node asks for a longer one."""
ANSWER_S: Final = 10.0
"""How much longer than the request's own time-out an answer may take."""
DEFAULT_TIMEOUT_MS: Final = 20_000
"""For requests that name no time-out: well beyond what nodes wait by default."""
ELSEWHERE: Final = 421
"""HTTP status: others answer this, here nobody ever does."""


class HttpCall(msgspec.Struct, frozen=True):
    """A request to send.

    Attributes:
        path: with its query string.
        seconds: how long nothing may come back.
        stream: leave a good answer's body in `HttpReply.body` to be read bit by bit.
        node: the address of the node, "" until one is chosen.
    """

    method: str
    path: str
    content: bytes = b""
    headers: Mapping[str, str] = {}
    seconds: float = DEFAULT_TIMEOUT_MS / 1000 + ANSWER_S
    stream: bool = False
    node: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """Take the next bytes of an open answer: they come as bytes, none when the answer is complete."""

    body: Any


@dataclass(frozen=True, slots=True)
class Close:
    """Be done with an open answer."""

    body: Any


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Be done with all connections: nothing is asked any more."""


@dataclass(frozen=True, slots=True)
class RetryPause:
    """Time to let pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Clock:
    """Tell the time, in seconds from any beginning."""


class HttpReply(msgspec.Struct, frozen=True):
    """What a node answered.

    Attributes:
        url: the node's.
        headers: by their names in lower case.
        content: the body, b"" of a stream.
        body: the open answer of a stream, to be closed by who reads it.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    content: bytes = b""
    reason: str = ""
    body: Any = None


@dataclass(frozen=True, slots=True)
class NoReply:
    """No answer.

    Attributes:
        why: in the words of who tried.
        slow: whether it was a time-out.
        busy: the request was not even sent: all of the client's connections are in use.
    """

    why: str
    slow: bool = False
    busy: bool = False


Step = HttpCall | Read | Close | Disconnect | RetryPause | Clock
Outcome = HttpReply | NoReply | bytes | float | None
ResultT = TypeVar("ResultT")
Flow = Generator[Step, Outcome, ResultT]


class Sessions(Protocol):
    """What the client has seen (`keytide.client.session`)."""

    @property
    def token(self) -> str | None: ...

    def sending(self) -> tuple[str | None, int]: ...

    def seen(self, sent: str | None, resets: int, token: str) -> None: ...


def ask(nodes: NodeAddresses, call: HttpCall, retries: int, turn: int | None = None) -> Flow[HttpReply]:
    """Ask until a node gives a good answer.

    Args:
        retries: how often all of the nodes are asked again.
        turn: of the result that this is a part of; None for one of its own.

    Raises:
        KeytideError: what the last node answered, or that none did.
    """
    if turn is None:
        turn = nodes.turn()
    if nodes.resting:
        yield from _look(nodes)
    out: set[int] = set()
    rounds = 0
    elsewhere: KeytideError | None = None
    while True:
        wait = 0.0
        error: KeytideError | None = None
        for at in nodes.order(turn):
            if at in out:
                continue
            url = nodes.urls[at]
            reply = yield msgspec.structs.replace(call, node=url)
            if isinstance(reply, HttpReply):
                if reply.status in (200, 204):
                    nodes.answered(at)
                    return reply
                said = problem(reply.status, reply.content, reply.reason)
                if reply.status == ELSEWHERE:
                    out.add(at)
                    elsewhere = said
                    yield from _rest(nodes, at, long=True)
                    continue
                error = said
                again = reply.headers.get("retry-after")
                if again is None:
                    raise error
                wait = max(wait, _seconds(again))
            elif isinstance(reply, NoReply):
                error = _silence(url, reply)
                if reply.busy:
                    raise error
                if reply.slow:
                    out.add(at)
                yield from _rest(nodes, at)
        if error is None or len(out) == len(nodes.urls) or rounds >= retries:
            raise error or elsewhere or _silence(", ".join(nodes.urls), NoReply("time-out", slow=True))
        pause = min(FIRST_PAUSE_S * 2.0**rounds, LONGEST_PAUSE_S)
        rounds += 1
        yield RetryPause(min(max(pause, wait), LONGEST_PAUSE_S))


def _rest(nodes: NodeAddresses, at: int, *, long: bool = False) -> Flow[None]:
    """Pass a node over for a while."""
    now = yield Clock()
    if isinstance(now, float):
        nodes.rest(at, now, long=long)


def _look(nodes: NodeAddresses) -> Flow[None]:
    """See whether a node that has rested is ready."""
    now = yield Clock()
    at = nodes.due(now) if isinstance(now, float) else None
    if at is None or not isinstance(now, float):
        return
    nodes.rest(at, now)  # nobody else looks meanwhile
    reply = yield HttpCall("GET", "/readyz", seconds=LOOK_S, node=nodes.urls[at])
    if isinstance(reply, HttpReply) and reply.status < 500:
        nodes.answered(at)


def _silence(url: str, failure: NoReply) -> RetryableError:
    """The error for a node that gave no answer."""
    if failure.busy:
        return RetryableError(
            "all connections of this client are in use",
            problem_type="client-busy",
            next_step="wait for fewer answers at a time, or close results that are not read to their end",
        )
    if failure.slow:
        return RetryableError(
            f"the node at {url} did not answer in time ({failure.why})",
            problem_type="node-unavailable",
            status=504,
            next_step="see `keytide node list`",
        )
    return RetryableError(
        f"the node at {url} does not answer: {failure.why}",
        problem_type="node-unavailable",
        next_step="see `keytide node list`",
    )


def _seconds(retry_after: str) -> float:
    """`Retry-After` in seconds; 0 for the form with a date, which nodes do not use."""
    return float(retry_after) if retry_after.isdecimal() else 0.0
