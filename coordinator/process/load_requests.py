"""Nodes are asked what is written to slices, for the leader (`coordinator.statements.auto_split`).

A thread of its own: a node that stands still holds up nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from coordinator.core.events import WrittenTold
from coordinator.core.instructions import AskWritten
from keytide.errors import UNDECODABLE
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.node_protocol import NoAnswerError, RefusedError
from keytide.process.clock import now_ms
from keytide.process.worker import QueueWorker
from keytide.settings.settings import Settings
from keytide.wire.index_lists import LISTS_PATH, ListAsk, WrittenSlice, encoder, page_decoder

log = logging.getLogger(__name__)
LIMIT_S: Final = 5.0
"""How long nothing may come back: the leader asks again at its next look."""


class LoadRequests(QueueWorker[AskWritten]):
    """Asks one node after the other. There is always an answer.

    Args:
        post: takes the answers, from this thread.
        failed: told of an error that ends the coordinator.
        nodes: how they are asked (tests have one of their own); it is closed in the end.
    """

    def __init__(
        self,
        settings: Settings,
        post: Callable[[WrittenTold], None],
        failed: Callable[[BaseException], None],
        nodes: BlockingNodeClient | None = None,
    ) -> None:
        super().__init__("load-requests", failed)
        self._nodes = nodes or BlockingNodeClient(settings.security.tls_authority, limit_s=LIMIT_S)
        self._post = post

    def _end(self) -> None:
        self._nodes.close()

    def _carry_out(self, job: AskWritten) -> None:
        self._post(WrittenTold(job.index, job.slice, self._written(job), now_ms()))

    def _written(self, job: AskWritten) -> WrittenSlice | None:
        ask = encoder.encode(ListAsk("load", job.index, [job.slice], 0))
        try:
            page = page_decoder.decode(self._nodes.ask(job.url + LISTS_PATH, ask, job.secret))
        except (NoAnswerError, RefusedError, *UNDECODABLE) as error:
            log.warning("%s does not say what is written to slice %d: %s", job.url, job.slice, error)
            return None
        return next((one for one in page.written if one.slice == job.slice), None)
