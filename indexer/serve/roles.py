"""A node that is not for scans of clients (`indexer.roles`): it tells them which nodes are, and answers
whoever else asks as all nodes do."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from indexer.scan.http.problems import CountError
from indexer.view import NodeView
from keytide.errors import CallerError
from keytide.serving import problems as http_problems

NAMED: Final = 5
"""Addresses in the next step; `nodes` has all."""


class ScansElsewhereError(CallerError):
    """A client's read, at a node that has not the role `scan`; `nodes` has the addresses of those that do."""

    problem_type = "scans-elsewhere"
    status = 421


class ReadersElsewhere:
    """Refuses what clients ask of an indexer node.

    Args:
        app: everything else.
        view: the node.
        failed: counts what is refused.
    """

    def __init__(self, app: ASGIApp, view: NodeView, failed: CountError) -> None:
        self._app = app
        self._view = view
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        error = elsewhere(self._view)
        self._failed(error.problem_type)
        # Clients of releases that do not know this error go on to their next node because of the header.
        response = http_problems.response(error.problem(), error.status, {"Retry-After": "1"})
        await response(scope, receive, send)


def elsewhere(view: NodeView) -> ScansElsewhereError:
    """What a client is told."""
    urls = [one.url for one in view.catalog().nodes() if one.url and one.has("scan")]
    more = f" (and {len(urls) - NAMED} more)" if len(urls) > NAMED else ""
    named = f"ask a node that does: {', '.join(urls[:NAMED])}{more}"
    start = "start a node with the role scan, or a gateway (`keytide gateway`)"
    return ScansElsewhereError(
        f"node {view.node_id} does not answer scans of clients: it has not the role scan (setting "
        "indexer.roles)",
        next_step=named if urls else start,
        nodes=urls,
    )
