"""The way of a scan: find the index, choose a snapshot (waiting for it if need be), gather, page.

A snapshot that a slice no longer holds (it restarted, or was slow) makes a first page try again with a newer
number; a page token's snapshot is never exchanged for another one.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass, replace
from typing import Any

from indexer.scan.choose import (
    HistoryChangedError,
    IndexNotReadyError,
    SnapshotGoneError,
    Stamp,
    TimestampNotReachedError,
    check_incarnation,
    check_partitions,
    unmet,
)
from indexer.scan.gather import Gathered, SnapshotMissingError, Target, count, gather
from indexer.scan.peers import Peers
from indexer.scan.reading import TIP, ReadReply, ReadRequest
from indexer.scan.request import CountRequest, Demands, ScanRequest
from indexer.scan.rows import RowMaker
from indexer.scan.selection import effective_limit, spans_of
from indexer.scan.tokens import PageToken, SessionToken, sign, verify
from indexer.view import NodeView
from keytide.catalog import Catalog, IndexRecord
from keytide.clock import now_ms
from keytide.collation import Span
from keytide.errors import CallerError, invariant
from keytide.settings import ScanSettings
from keytide.timestamp import Timestamp, smallest


class UnknownIndexError(CallerError):
    problem_type = "unknown-index"
    status = 404


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The snapshot that a request will read, and the story of the choice."""

    stamp: Stamp
    waited_ms: int
    waited_for: list[str]


class ScanService:
    """Answers scans from any node of the cluster.

    Args:
        view: this node.
        peers: reads slices here and elsewhere.
        settings: limits and time-outs.
    """

    def __init__(self, view: NodeView, peers: Peers, settings: ScanSettings) -> None:
        self._view = view
        self._peers = peers
        self._settings = settings
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        view.on_published(lambda: loop.call_soon_threadsafe(self._wake))

    def _wake(self) -> None:
        """Let everyone who waits for a newer snapshot look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def scan(self, name: str, request: ScanRequest) -> dict[str, Any]:
        """The answer of `POST /v1/indexes/{name}/scan` as a JSON-ready dictionary.

        Raises:
            KeytideError: the typed errors of CONTRACT §5.
        """
        if request.page is not None:
            return await self._next_page(name, request)
        index, catalog = self._index(name)
        spans = spans_of(request, index.definition)
        limit = effective_limit(request.limit, self._settings.default_limit, self._settings.max_limit)
        deadline = self._deadline(request)
        session = self._session(request, catalog)
        while True:
            chosen = await self._choose(index, request, session, deadline)
            target = self._target(index, chosen.stamp, spans)
            try:
                gathered = await gather(target, self._ask(deadline), b"", request.reverse, limit)
                break
            except SnapshotMissingError as missing:
                await self._retry_after(missing, index, deadline)
        token = self._session_token(catalog, session, index.keyspace, chosen.stamp)
        page = (
            await self._page_token(catalog, target, gathered, request, limit, token)
            if gathered.more
            else None
        )
        rows = RowMaker(index.definition, request.columns).rows(gathered.entries)
        answer = self._answer(rows, _seen_stamp(chosen.stamp, gathered.timestamps), token, page)
        if request.explain:
            answer["explain"] = self._explain(target, chosen, gathered.read, gathered.numbers)
        return answer

    async def count(self, name: str, request: CountRequest) -> dict[str, Any]:
        """The answer of `POST /v1/indexes/{name}/count`."""
        index, catalog = self._index(name)
        spans = spans_of(request, index.definition)
        deadline = self._deadline(request)
        session = self._session(request, catalog)
        while True:
            chosen = await self._choose(index, request, session, deadline)
            target = self._target(index, chosen.stamp, spans)
            try:
                counted, numbers, timestamps = await count(target, self._ask(deadline))
                break
            except SnapshotMissingError as missing:
                await self._retry_after(missing, index, deadline)
        token = self._session_token(catalog, session, index.keyspace, chosen.stamp)
        answer = self._answer(None, _seen_stamp(chosen.stamp, timestamps), token, None)
        answer["count"] = counted
        if request.explain:
            answer["explain"] = self._explain(target, chosen, {}, numbers)
        return answer

    async def _next_page(self, name: str, request: ScanRequest) -> dict[str, Any]:
        index, catalog = self._index(name)
        token = verify(request.page or "", PageToken, _secret(catalog))
        if token.index != index.id:
            raise CallerError(
                f"the page token belongs to another index than {name}",
                status=422,
                problem_type="invalid-token",
            )
        keyspace = catalog.keyspace(index.keyspace)
        if keyspace is None or keyspace.incarnation != token.incarnation:
            raise HistoryChangedError(
                "the index was rolled back since this scan began", next_step="start the scan again"
            )
        spans = [Span(low, high) for low, high in token.spans]
        stamp = self._stamp(index, token.number) or Stamp(token.number, token.incarnation, Timestamp(), 0)
        target = self._target(index, stamp, spans)
        deadline = self._deadline(request)
        try:
            gathered = await gather(target, self._ask(deadline), token.after, token.reverse, token.limit)
        except SnapshotMissingError as missing:
            raise SnapshotGoneError(
                f"slice {missing.slice} no longer holds snapshot {token.number}",
                next_step=f"start the scan again; pages must follow within {self._settings.lease_s} s",
            ) from missing
        stamp = _seen_stamp(stamp, gathered.timestamps)
        columns = token.columns
        again = ScanRequest(reverse=token.reverse, columns=columns)  # type: ignore[arg-type]
        page = (
            await self._page_token(catalog, target, gathered, again, token.limit, token.session, token.lease)
            if gathered.more
            else None
        )
        rows = RowMaker(index.definition, columns).rows(gathered.entries)
        return self._answer(rows, stamp, token.session, page)

    def _index(self, name: str) -> tuple[IndexRecord, Catalog]:
        catalog = self._view.catalog()
        index = catalog.index_by_name(name)
        if index is None:
            known = ", ".join(record.name for record in catalog.indexes()) or "none"
            raise UnknownIndexError(
                f"there is no index {name} (indexes: {known})", next_step="see `keytide index list`"
            )
        if index.state != "READY":
            raise IndexNotReadyError(
                f"index {name} is {index.state}{': ' + index.reason if index.reason else ''}",
                next_step="wait for its build (`keytide build list`)"
                if index.state != "FAILED"
                else "drop it and create it again",
                build=index.build,
                state=index.state,
            )
        return index, catalog

    def _deadline(self, request: Demands) -> int:
        timeout = request.timeout_ms or self._settings.default_timeout_ms
        return now_ms() + min(timeout, self._settings.max_timeout_ms)

    def _session(self, request: Demands, catalog: Catalog) -> dict[str, tuple[int, int]]:
        return verify(request.session, SessionToken, _secret(catalog)).seen if request.session else {}

    def _stamp(self, index: IndexRecord, number: int | None) -> Stamp | None:
        if number is None:
            return None
        known = self._view.stamp(index.keyspace, number)
        return None if known is None else Stamp(number, known[0], known[1], known[2])

    async def _choose(
        self, index: IndexRecord, request: Demands, session: dict[str, tuple[int, int]], deadline: int
    ) -> _Chosen:
        """The newest published snapshot, once it satisfies the request."""
        keyspace = self._view.catalog().keyspace(index.keyspace)
        at_least = check_partitions(request.at_least, keyspace.partitions if keyspace else 0)
        seen = session.get(index.keyspace)
        began, waited_for = now_ms(), list[str]()
        if request.consistency == "tip":
            if at_least or request.max_staleness_ms is not None:
                raise CallerError(
                    "at_least and max_staleness_ms need consistency `stable`: a tip scan agrees on nothing",
                    status=422,
                )
            return _Chosen(Stamp(TIP, keyspace.incarnation if keyspace else 0, Timestamp(), 0), 0, [])
        while True:
            changed = self._changed
            stamp = self._stamp(index, self._view.published(index.id))
            if stamp is not None:
                check_incarnation(seen, stamp.incarnation)
            now = now_ms()
            lacking = unmet(stamp, request, seen, at_least, now)
            if lacking is None and stamp is not None:
                return _Chosen(stamp, now - began, waited_for)
            if not waited_for or waited_for[-1] != lacking:
                waited_for.append(str(lacking))
            if now >= deadline:
                if stamp is None:
                    raise IndexNotReadyError(
                        f"no snapshot of {index.name} is held by all its slices",
                        next_step="try again; see `keytide status`",
                    )
                raise TimestampNotReachedError(
                    f"waited {now - began} ms for {lacking}",
                    next_step="try again, or allow more with timeout_ms",
                )
            remaining = (deadline - now) / 1000
            try:
                await asyncio.wait_for(
                    changed.wait(), remaining if request.max_staleness_ms is None else min(remaining, 0.05)
                )
            except TimeoutError:
                continue

    def _target(self, index: IndexRecord, stamp: Stamp, spans: list[Span]) -> Target:
        """Where to read each slice: here if a replica is here, else at the first replica that is known."""
        if not spans:
            return Target(index.id, stamp.number, stamp.incarnation, [], {})
        me = self._view.node_id
        nodes: dict[int, str] = {}
        for number, replicas in enumerate(index.placement):
            known = [node for node in replicas if node == me or self._view.node_url(node) is not None]
            nodes[number] = me if me in replicas else random.choice(known) if known else replicas[0]
        return Target(index.id, stamp.number, stamp.incarnation, spans, nodes)

    def _ask(self, deadline: int) -> Any:
        async def ask(node: str, request: ReadRequest) -> ReadReply:
            remaining = max(0.001, (deadline - now_ms()) / 1000)
            return await self._peers.ask(node, request, remaining)

        return ask

    async def _retry_after(self, missing: SnapshotMissingError, index: IndexRecord, deadline: int) -> None:
        """Wait for news before a first page tries again with a newer number."""
        remaining = (deadline - now_ms()) / 1000
        if remaining <= 0:
            raise IndexNotReadyError(
                f"slice {missing.slice} of {index.name} is catching up: it does not hold the snapshot yet",
                next_step="try again; see `keytide status`",
            )
        try:
            await asyncio.wait_for(self._changed.wait(), min(remaining, 0.05))
        except TimeoutError:
            return

    async def _page_token(
        self,
        catalog: Catalog,
        target: Target,
        gathered: Gathered,
        request: ScanRequest,
        limit: int,
        session: str,
        lease: str = "",
    ) -> str | None:
        """The token of the next page; takes or renews the lease on every slice (a tip scan has no snapshot to
        keep)."""
        if target.number != TIP:
            lease = lease or uuid.uuid4().hex
            await self._renew(target, lease)
        token = PageToken(
            target.index,
            target.number,
            target.incarnation,
            [(span.low, span.high) for span in target.spans],
            gathered.entries[-1][0],
            request.reverse,
            limit,
            list(request.columns) if request.columns is not None else None,
            lease,
            session,
        )
        return sign(token, _secret(catalog))

    async def _renew(self, target: Target, lease: str) -> None:
        """Take or renew a page token's lease on every slice that its snapshot names."""
        by_node: dict[str, list[int]] = {}
        for number, node in target.nodes.items():
            by_node.setdefault(node, []).append(number)
        timeout_s = self._settings.default_timeout_ms / 1000
        for node, slices in sorted(by_node.items()):
            request_ = ReadRequest(
                target.index,
                target.number,
                target.incarnation,
                slices,
                [],
                [b""] * len(slices),
                False,
                0,
                lease,
                self._settings.lease_s * 1000,
            )
            await self._peers.ask(node, request_, timeout_s)

    def _session_token(
        self, catalog: Catalog, session: dict[str, tuple[int, int]], keyspace: str, stamp: Stamp
    ) -> str:
        if stamp.number == TIP:
            return sign(SessionToken(session), _secret(catalog))
        return sign(SessionToken({**session, keyspace: (stamp.number, stamp.incarnation)}), _secret(catalog))

    def _answer(
        self, rows: list[dict[str, Any]] | None, stamp: Stamp, session: str, page: str | None
    ) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        if rows is not None:
            answer["rows"] = rows
        answer["snapshot"] = stamp.number if stamp.number != TIP else None
        answer["timestamp"] = {
            str(partition): {"offset": place.offset, "epoch": place.epoch}
            for partition, place in sorted(stamp.timestamp.places.items())
        }
        answer["session"] = session
        if rows is not None:
            answer["page"] = page
        answer["staleness_ms"] = max(0, now_ms() - stamp.fresh_at) if stamp.fresh_at else None
        return answer

    def _explain(
        self, target: Target, chosen: _Chosen, read: dict[int, int], numbers: dict[int, int]
    ) -> dict[str, Any]:
        """How the snapshot was chosen, which slices were asked, what each read (CONTRACT §5)."""
        return {
            "snapshot": chosen.stamp.number,
            "waited_ms": chosen.waited_ms,
            "waited_for": chosen.waited_for,
            "slices": [
                {
                    "slice": number,
                    "node": node,
                    "snapshot": numbers.get(number),
                    "rows_read": read.get(number, 0),
                }
                for number, node in sorted(target.nodes.items())
            ],
        }


def _seen_stamp(stamp: Stamp, timestamps: dict[int, Timestamp]) -> Stamp:
    """The stamp with the timestamp that the slices read: the same for all of them unless it is a tip scan."""
    if not timestamps:
        return stamp
    if stamp.number != TIP:
        first, *others = timestamps.values()
        invariant(
            all(other.offsets() == first.offsets() for other in others),
            "Untorn",
            lambda: f"{stamp.number}: {timestamps}",
        )
    return replace(stamp, timestamp=smallest(timestamps.values()))


def _secret(catalog: Catalog) -> bytes:
    cluster = catalog.cluster
    if cluster is None:
        raise IndexNotReadyError(
            "this node has not read the cluster's metadata yet", next_step="try again in a moment"
        )
    return bytes.fromhex(cluster.secret)
