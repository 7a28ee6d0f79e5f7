"""`/docs`: Swagger UI over a server's OpenAPI page, from files of this installation: many clusters have no
way to the internet. (FastAPI's own page has browsers fetch them from a public host, and is blank without
it.)"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse

PATH: Final = "/docs"
_PACKAGE: Final = "fastapi_offline"
"""Has Swagger UI's files; nothing of its code is used."""
_SCRIPT, _STYLE, _ICON = _FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")


def add_docs(app: FastAPI) -> None:
    """Add the page to an application that was made with `docs_url=None, redoc_url=None`."""

    @app.get(PATH, include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{root}{PATH}/{_SCRIPT}",
            swagger_css_url=f"{root}{PATH}/{_STYLE}",
            swagger_favicon_url=f"{root}{PATH}/{_ICON}",
        )

    @app.get(PATH + "/{name}", include_in_schema=False)
    async def file(name: str) -> FileResponse:
        if name not in _FILES:
            raise HTTPException(404)
        return FileResponse(Path(str(files(_PACKAGE) / "static" / name)))
