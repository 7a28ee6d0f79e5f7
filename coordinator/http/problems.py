"""Errors as RFC 9457 problem details."""

from __future__ import annotations

import logging
import re
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from keytide.errors import CallerError, KeytideError, RetryableError
from keytide.serving import problems as http_problems

log = logging.getLogger(__name__)


_OF_NODES: Final = re.compile(r"/v1/(indexes/[^/]++/(scan|count|aggregate|tail|snapshots)|query)/?+")


def _elsewhere(path: str) -> str:
    if not _OF_NODES.fullmatch(path):
        return ""
    return "ask an indexer node, as they answer scans: `keytide node list` has their addresses"


def add_error_handlers(app: FastAPI) -> None:
    """Turn errors of all kinds into problem documents; our own bugs are logged with their story."""
    http_problems.add_plain_handler(app, "see /docs for what there is", _elsewhere)

    @app.exception_handler(KeytideError)
    async def known(_: Request, error: KeytideError) -> Response:
        if not isinstance(error, CallerError | RetryableError):
            log.error("an admin request met a bug", exc_info=error)
        return http_problems.of_error(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        places = [
            {"field": ".".join(str(part) for part in one["loc"] if part != "body"), "problem": one["msg"]}
            for one in error.errors()
        ]
        document = {
            "type": "invalid-request",
            "title": "Invalid request",
            "status": 422,
            "detail": "; ".join(f"{place['field'] or 'body'}: {place['problem']}" for place in places),
            "errors": places,
            "next_step": "see /docs for what a request may hold",
        }
        return http_problems.response(document, 422)
