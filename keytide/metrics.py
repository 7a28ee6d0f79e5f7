"""Serving Prometheus metrics from a process that has no HTTP server of its own."""

from __future__ import annotations

from wsgiref.simple_server import WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server

from keytide.errors import CallerError


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
