"""Errors as RFC 9457 problem details. An invariant that does not hold is answered, and then ends the node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from indexer.scan.plan.waiting import ReaderGoneError
from keytide.errors import InvariantViolationError, KeytideError, RetryableError
from keytide.serving import problems as http_problems

log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 1
READER_GONE: Final = 499
"""What other servers, too, note for a client that went away."""


CountError = Callable[[str], None]
"""Counts an error by its problem type."""
OnBug = Callable[[InvariantViolationError], None]
"""Told of an invariant that does not hold: the node is to end."""


_OF_COORDINATOR: Final = frozenset(
    (
        "statements",
        "nodes",
        "builds",
        "jobs",
        "stability",
        "health",
        "events",
        "topology",
        "cluster",
        "rebalance",
    )
)
_OF_AN_INDEX: Final = frozenset(("load", "map", "skipped", "violations", "repair", "verify"))


def _elsewhere(path: str) -> str:
    _, version, what, *rest = [*path.split("/"), "", ""]
    index = what == "indexes" and (len([one for one in rest if one]) < 2 or rest[1] in _OF_AN_INDEX)
    if version != "v1" or not (index or what in _OF_COORDINATOR):
        return ""
    return "ask the coordinator (port 8091, unless it was told otherwise): `keytide up` says where it is"


def problem_response(error: Exception, failed: CountError, on_bug: OnBug) -> Response:
    """The response for an error; what is our bug is logged with its story and answered with 500."""
    if isinstance(error, ReaderGoneError | ClientDisconnect):
        return Response(status_code=READER_GONE)  # nobody reads it
    if isinstance(error, KeytideError) and not isinstance(error, InvariantViolationError):
        document, status = error.problem(), error.status
    else:
        log.critical("a request failed by a bug: %s", error, exc_info=error)
        status = 500
        document = {
            "type": InvariantViolationError.problem_type
            if isinstance(error, InvariantViolationError)
            else "internal-error",
            "title": "Internal error",
            "status": status,
            "detail": "the node met a bug of its own; its log has the story",
        }
    failed(document["type"])
    if isinstance(error, InvariantViolationError):
        on_bug(error)
    # An index under build (the error names its state) is not ready in a second: no use in trying again.
    soon = status in (429, 503) and isinstance(error, RetryableError) and "state" not in error.extra
    after_s = error.extra.get("retry_after_s", RETRY_AFTER_S) if isinstance(error, KeytideError) else 0
    return http_problems.response(document, status, {"Retry-After": str(after_s)} if soon else {})


def add_problem_handlers(app: FastAPI, failed: CountError, on_bug: OnBug) -> None:
    """Make `app` answer every error in this form."""
    http_problems.add_plain_handler(app, "see /docs for what this node answers", _elsewhere, failed)

    @app.exception_handler(KeytideError)
    async def known(_: Request, error: KeytideError) -> Response:
        return problem_response(error, failed, on_bug)

    @app.exception_handler(Exception)
    async def unknown(_: Request, error: Exception) -> Response:
        return problem_response(error, failed, on_bug)
