"""The socket that an HTTP server listens on, opened before anything else begins, and its URL."""

from __future__ import annotations

import resource
import socket
from typing import Final

from keytide.errors import ConfigurationError

OTHER_HANDLES: Final = 4_096
"""File handles that a process may need beside its connections: stores, Kafka, logs."""


def listen(server: str, host: str, port: int, *, tls: bool, setting: str) -> tuple[socket.socket, str]:
    """A listening socket and its URL.

    Args:
        server: what to call it in the message, such as "the scan endpoint".
        port: 0 picks a free one.
        setting: the name of the port's setting.

    Raises:
        ConfigurationError: the address is taken, or is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise ConfigurationError(
            f"{server} cannot listen on {host}:{port}: {error.strerror}",
            next_step=f"stop what listens there, or set {setting} (0 picks a free one)",
        ) from error
    shown = f"[{host}]" if ":" in host else host
    return listener, f"{'https' if tls else 'http'}://{shown}:{listener.getsockname()[1]}"


def reserve(server: str, host: str, port: int, *, tls: bool, setting: str) -> tuple[socket.socket, str]:
    """A socket that keeps an address for `listen_beside`, and the URL there; nobody is answered on it.
    Arguments and errors as of `listen`: the address must be nobody else's."""
    alone, url = listen(server, host, port, tls=tls, setting=setting)
    with alone:
        address = alone.getsockname()
    reserved = socket.socket(alone.family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind(address)
    except OSError:  # connections of a process before this one are still ending
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(address)
    return reserved, url


def listen_beside(host: str, port: int) -> socket.socket:
    """A listening socket on an address that is kept by `reserve`, beside those of other processes: the system
    gives each connection to one of them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1_024, reuse_port=True)


def allow_handles(connections: int) -> None:
    """Let this process have as many file handles as so many connections take, as far as it may: what shells
    set for the processes that they start is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_HANDLES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
