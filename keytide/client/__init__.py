"""The Python client: scans over all pages, from one snapshot, with the session kept.

    from keytide import Client
    with Client("http://127.0.0.1:8093") as client:
        for row in client.scan("by_city", equals=["Boston"]):
            print(row.key, row.id)

A client remembers its session: it never sees an older snapshot than one it has seen. When the source has lost
records and what the session saw was rolled back, every request raises `HistoryChangedError`, until the caller
has said by `reset_session` that it knows. Any indexer node can be asked. One client is for one thread at a
time. (After httpx: a small public surface, an injectable transport.)

Reading changes nothing, so what fails for a while is tried again: a node that is not there, and what a node
answers with `Retry-After`. Everything else is raised at once, as the family and the problem type that the
node gave it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import msgspec

from keytide.errors import CallerError, HistoryChangedError, KeytideError, RetryableError

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
"""Between tries; doubled from the first to the longest, also if a node asks for a longer one."""
ANSWER_S: Final = 10.0
"""How much longer than the request's own time-out an answer may take."""
DEFAULT_TIMEOUT_MS: Final = 20_000
"""For requests that name no time-out: well beyond what nodes wait by default."""


class Row(msgspec.Struct, frozen=True):
    """One entry.

    Attributes:
        key: the key parts; a missing part is None and its position is in `missing`.
        id: the document id.
        include: the included columns.
    """

    key: list[Any] = []
    id: str = ""
    include: dict[str, Any] = {}
    missing: list[int] = []


class Page(msgspec.Struct, frozen=True):
    """One answer of the scan endpoint (CONTRACT §5)."""

    rows: list[Row]
    snapshot: int | None
    timestamp: dict[str, dict[str, int]]
    session: str
    page: str | None
    staleness_ms: int | None = None
    explain: dict[str, Any] | None = None


class Count(msgspec.Struct, frozen=True):
    """The answer of a count."""

    count: int
    snapshot: int | None
    timestamp: dict[str, dict[str, int]]
    session: str
    staleness_ms: int | None = None
    explain: dict[str, Any] | None = None


_page_decoder = msgspec.json.Decoder(Page)
_count_decoder = msgspec.json.Decoder(Count)


class Client:
    """Reads indexes through one indexer node.

    Args:
        url: of any indexer node.
        token: API token, if the cluster has any.
        retries: how often a request is tried again, where that is safe and may help.
        transport: for tests.
        sleep: for tests.

    Attributes:
        session: token of the newest answer; give it to another client to make that one see no less.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        retries: int = 4,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, transport=transport)
        self._retries = retries
        self._sleep = sleep
        self.session: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def reset_session(self) -> None:
        """Begin a session that has seen nothing: after a `HistoryChangedError`, once what was concluded from
        earlier answers is read again."""
        self.session = None

    def scan(
        self, index: str, *, page_size: int = 1_000, limit: int | None = None, **request: Any
    ) -> Iterator[Row]:
        """Rows in key order, over all pages of one snapshot. Nothing is asked before the first row is taken.

        Args:
            index: its name.
            page_size: rows fetched at once.
            limit: rows at most; None for all.
            request: the members of CONTRACT §5: equals, low, high, inclusion, prefix, reverse, consistency,
            ...

        Raises:
            HistoryChangedError: a rollback took back what the session or an earlier page saw (see
                `reset_session`), or the offset that `at_least` names with its epoch.
            KeytideError: with the server's problem type; `RetryableError` where trying again may help.
        """
        if limit is not None and limit <= 0:
            return
        left = limit
        page = self.page(index, limit=page_size if left is None else min(page_size, left), **request)
        while True:
            yield from page.rows if left is None else page.rows[:left]
            left = None if left is None else left - len(page.rows)
            if page.page is None or (left is not None and left <= 0):
                return
            page = self.page(index, page=page.page)

    def page(self, index: str, **request: Any) -> Page:
        """One answer of the scan endpoint, with its snapshot, timestamp and page token. Raises as `scan`."""
        answer: Page = self._ask(index, "scan", request, _page_decoder)
        self.session = answer.session
        return answer

    def count(self, index: str, **request: Any) -> Count:
        """How many entries a selection has, at one snapshot. Raises as `scan`."""
        answer: Count = self._ask(index, "count", request, _count_decoder)
        self.session = answer.session
        return answer

    def _ask(
        self, index: str, action: str, request: Mapping[str, Any], decoder: msgspec.json.Decoder[Any]
    ) -> Any:
        body = {name: value for name, value in request.items() if value is not None}
        if self.session is not None:
            body.setdefault("session", self.session)
        try:
            content = json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CallerError(
                f"the request cannot be written as JSON: {error}",
                problem_type="invalid-request",
                next_step="use null, booleans, finite numbers, strings, lists and dictionaries",
            ) from error
        timeout_ms = body.get("timeout_ms", DEFAULT_TIMEOUT_MS)
        seconds = timeout_ms / 1000 + ANSWER_S if isinstance(timeout_ms, int) else ANSWER_S
        answer = self._post(f"/v1/indexes/{quote(index, safe='')}/{action}", content, seconds)
        try:
            return decoder.decode(answer)
        except msgspec.MsgspecError as error:
            raise CallerError(
                f"{self._http.base_url} does not answer like an indexer node: {error}",
                problem_type="not-a-node",
                next_step="give the URL of an indexer node (`keytide node list`)",
            ) from error

    def _post(self, path: str, content: bytes, seconds: float) -> bytes:
        """The body of a good answer, after as many tries as are allowed."""
        timeout = httpx.Timeout(seconds, connect=ANSWER_S)
        headers = {"Content-Type": "application/json"}
        tries = 0
        while True:
            tries += 1
            pause = min(FIRST_PAUSE_S * 2 ** (tries - 1), LONGEST_PAUSE_S)
            try:
                response = self._http.post(path, content=content, headers=headers, timeout=timeout)
            except httpx.TimeoutException as error:
                raise RetryableError(
                    f"the node at {self._http.base_url} did not answer in time ({type(error).__name__})",
                    problem_type="node-unavailable",
                    status=504,
                    next_step="see `keytide node list`",
                ) from error
            except httpx.TransportError as error:
                if tries > self._retries:
                    raise RetryableError(
                        f"the node at {self._http.base_url} does not answer: {error}",
                        problem_type="node-unavailable",
                        next_step="see `keytide node list`",
                    ) from error
            else:
                if response.status_code == 200:
                    return response.content
                wait = response.headers.get("retry-after")
                if wait is None or tries > self._retries:
                    raise problem_error(response)
                pause = min(max(pause, _seconds(wait)), LONGEST_PAUSE_S)
            self._sleep(pause)


def problem_error(response: httpx.Response) -> KeytideError:
    """The server's problem document as an error of the right family."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {"detail": response.text[:500] or response.reason_phrase}
    known = {"type", "title", "status", "detail", "next_step"}
    family: type[KeytideError] = RetryableError if response.status_code in (502, 503, 504) else CallerError
    if response.status_code == 409 and document.get("type") == HistoryChangedError.problem_type:
        family = HistoryChangedError
    return family(
        str(document.get("detail", response.reason_phrase)),
        problem_type=str(document.get("type", "error")),
        status=response.status_code,
        next_step=str(document.get("next_step", "")),
        **{name: value for name, value in document.items() if name not in known and name.isidentifier()},
    )


def _seconds(retry_after: str) -> float:
    """`Retry-After` in seconds; 0 for the form with a date, which nodes do not use."""
    return float(retry_after) if retry_after.isdecimal() else 0.0
