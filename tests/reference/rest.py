"""Every route of the coordinator and of the nodes, from their OpenAPI documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from coordinator.http.api import create_app as coordinator_app
from coordinator.process.service import CoordinatorService
from indexer.serve.api import create_app as node_app
from keytide.settings.settings import load_settings
from tests.browser.scene import busy_day
from tests.reference.writing import document, kind, table
from tests.unit.scan_world import World

INTRODUCTION = """Every server shows its routes at `/docs`, where they can be tried. Bodies are JSON; every
error is a problem document of RFC 9457 ([errors](errors.md)). Where a cluster has tokens, a request bears
one: `Authorization: Bearer ...` ([secure](../secure.md))."""
OTHERS = """The web page, the documents themselves, metrics; and below `/internal/v1` what parts of a cluster
ask each other, which no token opens ([secure](../secure.md#between-the-parts-of-a-cluster))."""
METHODS = ("get", "post", "put", "patch", "delete")


def servers() -> dict[str, FastAPI]:
    """Both kinds of servers."""
    return {
        "Coordinator, port 8091": coordinator_app(
            cast(CoordinatorService, busy_day()), "http://127.0.0.1:8091"
        ),
        "Nodes and gateways": node_app(World().views["n0"], load_settings(), CollectorRegistry()),
    }


def documents() -> dict[str, dict[str, Any]]:
    """Their OpenAPI documents."""
    return {name: server.openapi() for name, server in servers().items()}


def routes() -> set[tuple[str, str]]:
    """(method, path) of all that they serve, also of what no document shows: pages, metrics, routes between
    nodes."""
    return {
        (method, route.path)
        for server in servers().values()
        for route in server.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }


def page() -> str:
    """docs/reference/rest.md."""
    lines: list[str] = []
    for server, openapi in documents().items():
        lines += [f"## {server}", ""]
        for path, methods in sorted(openapi["paths"].items()):
            for method in METHODS:
                if method in methods:
                    lines += _route(method, path, methods[method])
        lines += [f"### Bodies: {server.partition(',')[0].lower()}", ""]
        for name, schema in sorted(openapi.get("components", {}).get("schemas", {}).items()):
            lines += _body(name, schema)
    lines += ["## Shown by no document", "", OTHERS, ""]
    shown = {path for openapi in documents().values() for path in openapi["paths"]}
    others = sorted((path, method) for method, path in routes() if path not in shown and method != "HEAD")
    lines += table(("route",), [(f"`{method} {path}`",) for path, method in others])
    return document("REST", INTRODUCTION, lines)


def _route(method: str, path: str, route: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {method.upper()} {path}", "")
    for text in filter(None, (route.get("summary"), route.get("description"))):
        yield from (text, "")
    rows = [
        (f"`{one['name']}`", one["in"], kind(one.get("schema", {})), one.get("description", ""))
        for one in route.get("parameters", [])
    ]
    if rows:
        yield from table(("parameter", "in", "type", "what it is"), rows)
    for media, content in route.get("requestBody", {}).get("content", {}).items():
        yield from (f"Body, `{media}`: {kind(content.get('schema', {})) or 'any'}.", "")
    yield from table(("status", "answer"), [_answer(*one) for one in sorted(route["responses"].items())])


def _answer(status: str, answer: dict[str, Any]) -> tuple[str, str]:
    media = ", ".join(f"`{one}`" for one in answer.get("content", {}) if one != "application/problem+json")
    said = "" if answer["description"] == "Successful Response" else answer["description"]
    return status, ": ".join(part for part in (media, said) if part)


def _body(name: str, schema: dict[str, Any]) -> Iterator[str]:
    members = schema.get("properties")
    if not members:
        return
    yield from (f"#### {name}", "", schema.get("description", ""), "")
    required = set(schema.get("required", ()))
    rows = [
        (f"`{member}`" + (" (required)" if member in required else ""), kind(of), of.get("description", ""))
        for member, of in members.items()
    ]
    yield from table(("member", "type", "what it is"), rows)
