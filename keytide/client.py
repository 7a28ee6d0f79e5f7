"""The Python client: scans over all pages, from one snapshot, with the session kept.

    from keytide import Client
    with Client("http://127.0.0.1:8093") as client:
        for row in client.scan("by_city", equals=["Boston"]):
            print(row.key, row.id)

A client remembers its session: it never sees an older snapshot than one it has seen. Any indexer node can be
asked. (After httpx: a small public surface, an injectable transport.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from keytide.errors import CallerError, KeytideError, RetryableError


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


_page_decoder = msgspec.json.Decoder(Page)
_count_decoder = msgspec.json.Decoder(Count)


class Client:
    """Reads indexes through one indexer node.

    Args:
        url: of any indexer node.
        token: API token, if the cluster has any.
        transport: for tests.
    """

    def __init__(self, url: str, *, token: str = "", transport: httpx.BaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, transport=transport, timeout=130)
        self.session: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def scan(
        self, index: str, *, page_size: int = 1_000, limit: int | None = None, **request: Any
    ) -> Iterator[Row]:
        """Rows in key order, over all pages of one snapshot.

        Args:
            index: its name.
            page_size: rows fetched at once.
            limit: rows at most; None for all.
            request: the members of CONTRACT §5: equals, low, high, inclusion, prefix, reverse, consistency,
            ...

        Raises:
            KeytideError: with the server's problem type; `RetryableError` where trying again may help.
        """
        left = limit
        page = self.page(index, limit=page_size if left is None else min(page_size, left), **request)
        while True:
            yield from page.rows if left is None else page.rows[:left]
            left = None if left is None else left - len(page.rows)
            if page.page is None or (left is not None and left <= 0):
                return
            page = self.page(index, page=page.page)

    def page(self, index: str, **request: Any) -> Page:
        """One answer of the scan endpoint, with its snapshot, timestamp and page token."""
        answer = _page_decoder.decode(self._post(f"/v1/indexes/{index}/scan", request))
        self.session = answer.session
        return answer

    def count(self, index: str, **request: Any) -> Count:
        """How many entries a selection has, at one snapshot."""
        answer = _count_decoder.decode(self._post(f"/v1/indexes/{index}/count", request))
        self.session = answer.session
        return answer

    def _post(self, path: str, request: Mapping[str, Any]) -> bytes:
        body = {name: value for name, value in request.items() if value is not None}
        if self.session is not None and "page" not in body and body.get("consistency") != "tip":
            body.setdefault("session", self.session)
        try:
            response = self._http.post(path, json=body)
        except httpx.TransportError as error:
            raise RetryableError(f"the node at {self._http.base_url} does not answer: {error}") from error
        if response.status_code == 200:
            return response.content
        raise problem_error(response)


def problem_error(response: httpx.Response) -> KeytideError:
    """The server's problem document as an error of the right family."""
    try:
        document = response.json()
    except ValueError:
        document = {"detail": response.text[:500]}
    known = {"type", "title", "status", "detail", "next_step"}
    family = RetryableError if response.status_code in (502, 503, 504) else CallerError
    return family(
        str(document.get("detail", response.reason_phrase)),
        problem_type=str(document.get("type", "error")),
        status=response.status_code,
        next_step=str(document.get("next_step", "")),
        **{name: value for name, value in document.items() if name not in known},
    )
