"""Prometheus metrics that every process has, and serving them from one that has no HTTP server of its own."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from wsgiref.simple_server import WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, start_http_server

from keytide.errors import CallerError


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


def serve(port: int, host: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY) -> WSGIServer | None:
    """Serve `/metrics` on a thread of its own until the process ends.

    Args:
        port: 0 serves nothing.

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
    return server
