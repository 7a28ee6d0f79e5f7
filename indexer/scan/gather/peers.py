"""Reading slices wherever they lie: this node's directly, other nodes' over HTTP from one pool of kept-alive
connections, MessagePack bodies."""

from __future__ import annotations

from typing import Final, TypeVar

import aiohttp
import msgspec

from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import (
    HistoryAheadError,
    LeaseReply,
    LeaseRequest,
    NodeUnavailableError,
    OutOfTimeError,
    ReadMessage,
    ReadReply,
    ReadRequest,
    encoder,
    lease_reply_decoder,
    read_reply_decoder,
)
from indexer.view import NodeView
from keytide.errors import UNDECODABLE, RetryableError
from keytide.http.tls import trusted
from keytide.process.clock import wall_ms
from keytide.serving.cluster_credential import credential
from keytide.serving.gate import MESSAGE

READ_PATH = "/internal/v1/read"
LEASE_PATH = "/internal/v1/lease"

IDLE_S: Final = 4.0
"""How long an unused connection is kept: less than the 5 s after which uvicorn would close it."""

PATIENCE_S: Final = 0.1
"""A node that is silent for less is not to blame: the request had no more time left."""

CONNECTIONS: Final = 128
"""To one node at once; who comes later waits for one of them. There is no limit over all nodes: those that
wait for a node which stands still would keep everybody from the others."""

ReplyT = TypeVar("ReplyT", ReadReply, LeaseReply)


class Peers:
    """Asks nodes, this one included.

    Args:
        view: this node.
        local: its slices.
        authority: who signs the nodes' certificates (`security.tls_authority`).

    Attributes:
        here: id of this node.
        read_here: reads this node's slices.
    """

    def __init__(self, view: NodeView, local: LocalReader, authority: str = "") -> None:
        self.here = view.node_id
        self.read_here = local.read
        self._view = view
        self._local = local
        self._authority = authority
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        """Entries of another node's slices.

        Raises:
            NodeUnavailableError: it is not known, does not answer in time, or answers with something else.
            OutOfTimeError: there was no time to speak of.
            RetryableError: the error that it answered with.
        """
        return await self._ask(node, READ_PATH, ReadMessage.of(request), read_reply_decoder, timeout_s)

    async def lease(self, node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply:
        """Keep, or let go of, the snapshot of a node's slices. Raises as `read` does."""
        if node == self.here:
            return self._local.lease(request)
        return await self._ask(node, LEASE_PATH, request, lease_reply_decoder, timeout_s)

    async def _ask(
        self,
        node: str,
        path: str,
        request: ReadMessage | LeaseRequest,
        decoder: msgspec.msgpack.Decoder[ReplyT],
        timeout_s: float,
    ) -> ReplyT:
        url = self._view.node_url(node)
        if url is None:
            raise NodeUnavailableError(
                f"node {node} holds slices of the index and is not known to be running",
                node=node,
                next_step="see `keytide node list`",
            )
        limits = aiohttp.ClientTimeout(total=timeout_s)
        body = encoder.encode(request)
        try:
            try:
                status, answer = await self._post(url + path, body, limits)
            except aiohttp.ServerDisconnectedError:  # a kept connection to a node that has restarted
                status, answer = await self._post(url + path, body, limits)
            if status == 200:
                return decoder.decode(answer)
        except TimeoutError as error:
            if timeout_s < PATIENCE_S:
                raise OutOfTimeError(
                    f"the request's time ran out {timeout_s * 1000:.0f} ms after node {node} was asked",
                    next_step="try again, or allow more with timeout_ms",
                ) from error
            raise NodeUnavailableError(
                f"node {node} did not answer within {timeout_s:.1f} s",
                status=504,
                node=node,
                next_step="try again, or see `keytide node list`",
            ) from error
        except (aiohttp.ClientError, *UNDECODABLE) as error:
            raise NodeUnavailableError(
                f"node {node} cannot be asked: {error}",
                node=node,
                next_step="try again, or see `keytide node list`",
            ) from error
        raise _answered(node, status, answer)

    async def _post(self, url: str, body: bytes, limits: aiohttp.ClientTimeout) -> tuple[int, bytes]:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                limit_per_host=CONNECTIONS,
                keepalive_timeout=IDLE_S,
                ssl=trusted(self._authority) if url.startswith("https:") else True,
            )
            self._session = aiohttp.ClientSession(connector=connector)
        cluster = self._view.catalog().cluster
        headers = {"Content-Type": MESSAGE}
        if cluster is not None:
            headers["Authorization"] = credential(cluster.secret, wall_ms())
        async with self._session.post(url, data=body, headers=headers, timeout=limits) as response:
            return response.status, await response.read()


class _Problem(msgspec.Struct):
    """What is used of a problem document."""

    type: str
    detail: str = ""
    next_step: str = ""


def _answered(node: str, status: int, body: bytes) -> RetryableError:
    """The error that a node answered with, under its own type if it has one."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except UNDECODABLE:
        text = body[:200].decode(errors="replace")
        return NodeUnavailableError(f"node {node} answered {status}: {text}", node=node)
    if status not in (429, 503, 504):
        return NodeUnavailableError(
            f"node {node} answered {status} {problem.type}: {problem.detail}", node=node
        )
    families = {one.problem_type: one for one in (HistoryAheadError, OutOfTimeError)}
    return families.get(problem.type, RetryableError)(
        f"node {node}: {problem.detail}",
        problem_type=problem.type,
        status=status,
        next_step=problem.next_step,
    )
