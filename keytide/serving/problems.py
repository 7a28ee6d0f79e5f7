"""Problem documents (RFC 9457) as responses, for the applications of coordinator and nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response


def response(document: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None) -> Response:
    """A problem document as a response."""
    # Python's JSON, because details may quote what a reader sent, lone surrogates included.
    return Response(json.dumps(document, default=str), status, headers, "application/problem+json")


def plain(request: Request, error: HTTPException, next_step: str) -> dict[str, Any]:
    """The problem document of what the framework refuses: no such route, a method that it does not take, a
    body that is no text."""
    try:
        title = HTTPStatus(error.status_code).phrase
    except ValueError:
        title = "Error"
    own_words = error.detail != title
    return {
        "type": title.lower().replace(" ", "-"),
        "title": title,
        "status": error.status_code,
        "detail": error.detail if own_words else f"{request.method} {request.url.path}: {title}",
        "next_step": next_step,
    }
