"""Problem documents (RFC 9457) as responses, for the applications of coordinator and nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from keytide.errors import KeytideError


def response(document: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None) -> Response:
    """A problem document as a response; who is not let in is told what would open."""
    told = {**(headers or {}), **({"WWW-Authenticate": "Bearer"} if status == 401 else {})}
    # Python's JSON, because details may quote what a reader sent, lone surrogates included.
    return Response(json.dumps(document, default=str), status, told, "application/problem+json")


def of_error(error: KeytideError) -> Response:
    """The response for an error; what is away for a while says when to come again."""
    return response(error.problem(), error.status, {"Retry-After": "1"} if error.status == 503 else {})


def add_plain_handler(
    app: FastAPI,
    next_step: str,
    elsewhere: Callable[[str], str] = lambda _: "",
    failed: Callable[[str], None] = lambda _: None,
) -> None:
    """Have `app` answer what the framework refuses with problem documents, whose types `failed` is told.

    Args:
        next_step: what to do about it.
        elsewhere: which other server has a path that there is not here, in words; "" for none.
    """

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        other = elsewhere(request.url.path) if error.status_code == HTTPStatus.NOT_FOUND else ""
        document = plain(request, error, other or next_step)
        failed(document["type"])
        return response(document, error.status_code, error.headers)


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
