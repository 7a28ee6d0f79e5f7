"""Reading slices wherever they lie: this node's directly, other nodes' over HTTP, MessagePack bodies."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.health import PeerHealth
from indexer.scan.peer.messages import (
    HistoryAheadError,
    LeaseReply,
    LeaseRequest,
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
from keytide.http.node_protocol import TRY_AGAIN, NoAnswerError, NodeUnavailableError, RefusedError
from keytide.http.nodes import NodeClient

READ_PATH = "/internal/v1/read"
LEASE_PATH = "/internal/v1/lease"

PATIENCE_S: Final = 0.1
"""A node that is silent for less is not to blame: the request had no more time left."""

_PASSED_ON: Final = {one.problem_type: one for one in (HistoryAheadError, OutOfTimeError)}
"""Problem types of nodes whose class is known here."""

ReplyT = TypeVar("ReplyT", ReadReply, LeaseReply)


class Peers:
    """Asks nodes, this one included.

    Args:
        view: this node.
        local: its slices.
        nodes: asks other nodes.

    Attributes:
        here: id of this node.
        health: what was seen of the others.
        first_here, within_here, read_here: read this node's slices.
    """

    def __init__(self, view: NodeView, local: LocalReader, nodes: NodeClient) -> None:
        self.here = view.node_id
        self.health = PeerHealth(view.behind)
        self.first_here, self.within_here, self.read_here = local.first, local.within, local.read
        self._view = view
        self._local = local
        self._nodes = nodes

    async def close(self) -> None:
        """Close the connections to other nodes."""
        await self._nodes.close()

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
        secret = self._view.catalog().secret
        try:
            return decoder.decode(
                await self._nodes.ask(url + path, encoder.encode(request), secret, timeout_s)
            )
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
                next_step=TRY_AGAIN,
            ) from error
        except (NoAnswerError, *UNDECODABLE) as error:
            raise NodeUnavailableError(
                f"node {node} cannot be asked: {error}", node=node, next_step=TRY_AGAIN
            ) from error
        except RefusedError as refused:
            raise _passed_on(node, refused) from refused


def _passed_on(node: str, refused: RefusedError) -> RetryableError:
    """The error that a node answered with, under its own type if it is one that passes."""
    if not refused.type or refused.status not in (429, 503, 504):
        return NodeUnavailableError(
            f"node {node} {refused}", node=node, next_step=refused.next_step or TRY_AGAIN
        )
    return _PASSED_ON.get(refused.type, RetryableError)(
        f"node {node}: {refused.detail}",
        problem_type=refused.type,
        status=refused.status,
        next_step=refused.next_step,
    )
