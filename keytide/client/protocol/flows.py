"""What a client does, as flows (see `keytide.client.protocol.calls`): written once for both clients. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from keytide.client.protocol.addresses import NodeAddresses
from keytide.client.protocol.answers import (
    Aggregate,
    AnswerBase,
    Count,
    Hold,
    IndexName,
    Page,
    QueryPage,
    decode,
)
from keytide.client.protocol.calls import Flow, Sessions, ask
from keytide.client.protocol.requests import check_topic, delete, get, members, path, post, written_to
from keytide.client.protocol.states import Head, QueryState, ResultState, ScanState, taken
from keytide.errors import KeytideError

AnswerT = TypeVar("AnswerT", bound=AnswerBase)


@dataclass(slots=True)
class Core:
    """What both clients share.

    Attributes:
        keyspaces: index -> keyspace, as far as that was asked for.
    """

    nodes: NodeAddresses
    retries: int
    sessions: Sessions
    keyspaces: dict[str, str] = field(default_factory=dict)

    # --- single answers -------------------------------------------------------

    def page(self, index: str, request: Mapping[str, Any], turn: int | None = None) -> Flow[Page]:
        """One answer of a scan; `turn` is that of the result that it is a part of (see `ask`)."""
        return self._answer(Page, index, "scan", request, turn)

    def count(self, index: str, request: Mapping[str, Any]) -> Flow[Count]:
        return self._answer(Count, index, "count", request)

    def aggregate(self, index: str, request: Mapping[str, Any]) -> Flow[Aggregate]:
        return self._answer(Aggregate, index, "aggregate", request)

    def query_page(self, request: Mapping[str, Any], turn: int) -> Flow[QueryPage]:
        """One answer of a query; `turn` as in `page`.

        Raises:
            MisuseError: it demands writes to another topic than its keyspace's, which only the answer names.
        """
        answer = yield from self._answer(QueryPage, None, "query", request, turn)
        if answer.index is not None:
            yield from self._check_topic(answer.index, written_to(request))
        return answer

    def hold(self, index: str, request: Mapping[str, Any]) -> Flow[Hold]:
        """Have the nodes hold a snapshot."""
        body, resets = yield from self.body(index, request)
        reply = yield from ask(self.nodes, post(path(index, "snapshots"), body), self.retries)
        held = decode(Hold, reply.content, reply.url)
        self.sessions.seen(body.get("session"), resets, held.session)
        return held

    def give_back(self, index: str, at: str) -> Flow[None]:
        """Give a held snapshot back. Where that does not go through, its lease ends it."""
        try:
            yield from ask(self.nodes, delete(path(index, "snapshots"), {"at": at}), 0)
        except KeytideError:
            return

    def explain(self, sql: str, request: Mapping[str, Any]) -> Flow[dict[str, Any]]:
        """The plan of a SELECT."""
        words = sql.split(None, 1)
        text = sql if words and words[0].upper() == "EXPLAIN" else f"EXPLAIN {sql}"
        body, _ = yield from self.body(None, {"sql": text, **request})
        reply = yield from ask(self.nodes, post("/v1/query", body), self.retries)
        plan: dict[str, Any] = decode(dict, reply.content, reply.url)
        return plan

    def indexes(self) -> Flow[list[IndexName]]:
        reply = yield from ask(self.nodes, get("/v1/indexes", {}), self.retries)
        found = decode(list[IndexName], reply.content, reply.url)
        self.keyspaces = {one.name: one.keyspace for one in found}
        return found

    def _answer(
        self,
        kind: type[AnswerT],
        index: str | None,
        action: str,
        request: Mapping[str, Any],
        turn: int | None = None,
    ) -> Flow[AnswerT]:
        body, resets = yield from self.body(index, request)
        where = f"/v1/{action}" if index is None else path(index, action)
        reply = yield from ask(self.nodes, post(where, body), self.retries, turn)
        answer = decode(kind, reply.content, reply.url)
        self.sessions.seen(body.get("session"), resets, answer.session)
        return answer

    def body(self, index: str | None, request: Mapping[str, Any]) -> Flow[tuple[dict[str, Any], int]]:
        """What is sent of a request, and the count of resets for `Sessions.seen`.

        Raises:
            CallerError: the request cannot be sent, or demands writes to another topic than the index's.
        """
        if index is not None:
            yield from self._check_topic(index, written_to(request))
        session, resets = self.sessions.sending()
        return members(request, session), resets

    def _check_topic(self, index: str, topic: str | None) -> Flow[None]:
        """Raise `MisuseError` if writes to a topic are demanded of an index of another keyspace.

        Args:
            topic: None for none.
        """
        if topic is None:
            return
        if self.keyspaces.get(index) != topic:  # not known, or another index has the name by now
            yield from self.indexes()
        check_topic(index, self.keyspaces, topic)

    # --- page by page ---------------------------------------------------------

    def _turn(self, state: ResultState) -> int:
        """Of a result, whose pages are asked of the same node while that answers."""
        if state.turn is None:
            state.turn = self.nodes.turn()
        return state.turn

    def next_rows(self, state: ScanState) -> Flow[list[Any] | None]:
        """The next page's rows; None when there is none."""
        while not state.last and (state.left is None or state.left > 0):
            turn = self._turn(state)
            if state.page is None:
                limit = state.page_size if state.left is None else min(state.page_size, state.left)
                request = {**state.request, "limit": limit}
            else:
                request = {**_patience(state.request), "page": state.page}
            answer = yield from self.page(state.index, request, turn)
            state.head, state.page, state.last = Head.of(answer), answer.page, answer.page is None
            rows = taken(answer.rows, state)
            if rows:
                return rows
        state.over = True
        return None

    def next_query_rows(self, state: QueryState) -> Flow[list[list[Any]] | None]:
        """The next page's rows of a SELECT; None when there is none."""
        yield from self.first_of_query(state)
        rows, state.first_rows = state.first_rows, None
        while not rows and not state.last:
            turn = self._turn(state)
            request = {**_patience(state.request), "page": state.page}
            answer = yield from self.query_page(request, turn)
            state.head, state.page, state.last = Head.of(answer), answer.page, answer.page is None
            rows = answer.rows
        state.over = not rows
        return rows or None

    def first_of_query(self, state: QueryState) -> Flow[None]:
        """Ask a SELECT, if that was not done yet."""
        if state.head is None:
            turn = self._turn(state)
            answer = yield from self.query_page(state.request, turn)
            state.head, state.page, state.last = Head.of(answer), answer.page, answer.page is None
            state.columns, state.served_by, state.first_rows = answer.columns, answer.index, answer.rows


def _patience(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a further page takes from the first one's request."""
    timeout_ms = request.get("timeout_ms")
    return {} if timeout_ms is None else {"timeout_ms": timeout_ms}
