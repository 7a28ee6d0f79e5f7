"""Reading other nodes' slices over HTTP: one kept-alive connection pool, MessagePack bodies."""

from __future__ import annotations

import aiohttp

from indexer.scan.local import read_local
from indexer.scan.reading import ReadReply, ReadRequest, encoder, reply_decoder
from indexer.view import NodeView
from keytide.clock import now_ms
from keytide.errors import RetryableError

READ_PATH = "/internal/v1/read"


class NodeUnavailableError(RetryableError):
    """A node that holds slices of the index does not answer."""

    problem_type = "node-unavailable"
    status = 503


class Peers:
    """Asks nodes, this one included, for entries of their slices.

    Args:
        view: this node.
        token: API token that other nodes accept, "" when the cluster has none.
    """

    def __init__(self, view: NodeView, token: str = "") -> None:
        self._view = view
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        """The node's answer.

        Raises:
            NodeUnavailableError: it is not known, does not answer in time, or answers with an error.
        """
        if node == self._view.node_id:
            return read_local(self._view, request, now_ms())
        url = self._view.node_url(node)
        if url is None:
            raise NodeUnavailableError(
                f"node {node} holds slices of the index and is not known to be running"
            )
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=256, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        try:
            async with self._session.post(
                url + READ_PATH, data=encoder.encode(request), timeout=aiohttp.ClientTimeout(total=timeout_s)
            ) as response:
                body = await response.read()
                if response.status == 200:
                    return reply_decoder.decode(body)
                raise NodeUnavailableError(
                    f"node {node} answered {response.status}: {body[:200].decode(errors='replace')}"
                )
        except TimeoutError as error:
            raise NodeUnavailableError(
                f"node {node} did not answer within {timeout_s:.1f} s",
                status=504,
                next_step="try again, or see `keytide node list`",
            ) from error
        except aiohttp.ClientError as error:
            raise NodeUnavailableError(
                f"node {node} cannot be reached: {error}", next_step="try again, or see `keytide node list`"
            ) from error
