"""Prometheus metrics that every process has, and serving them from one that has no HTTP server of its own."""

from __future__ import annotations

import logging
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, cast
from wsgiref.simple_server import WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, start_http_server

from keytide.errors import CallerError

log = logging.getLogger(__name__)

PATIENCE_S: Final = 10.0
"""How long a connection may say nothing: each has a thread."""


def product_version() -> str:
    """The version of Keytide that is installed; "unknown" when it runs from a folder."""
    try:
        return version("keytide")
    except PackageNotFoundError:
        return "unknown"


def build_info(component: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Add `keytide_build_info`: what runs here. Once in a process and registry."""
    info = Gauge(
        "keytide_build_info",
        "What runs here: always 1",
        ["version", "python", "component"],
        registry=registry,
    )
    info.labels(product_version(), platform.python_version(), component).set(1)


def serve(
    port: int, host: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY, patience_s: float = PATIENCE_S
) -> WSGIServer | None:
    """Serve `/metrics` on a thread of its own until the process ends.

    Args:
        port: 0 serves nothing.
        patience_s: how long a connection may say nothing.

    Returns:
        The server, whose `server_port` and `shutdown` a test may want; None for port 0.

    Raises:
        CallerError: the port is taken.
    """
    if port == 0:
        return None
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise CallerError(
            f"metrics cannot be served on {host}:{port}: {error}", next_step="choose another port"
        ) from error
    handler = cast(type, server.RequestHandlerClass)
    server.RequestHandlerClass = type("PatientHandler", (handler,), {"timeout": patience_s})
    server.handle_error = _note_error  # type: ignore[assignment, method-assign]
    return server


def _note_error(_request: Any, client: Any) -> None:
    """A line for a request that failed: half of it came, or its client went away."""
    log.info("a request for metrics from %s failed: %s", client[0], sys.exception())
