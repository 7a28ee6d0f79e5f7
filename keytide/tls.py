"""The certificates that clients over HTTP trust, read once in a process.

`httpx` reads the list of authorities for every client that is made: 25 ms of processor time (2 cores), more
than all else that a short-lived client does. Where to find other ones is said by `SSL_CERT_FILE` and
`SSL_CERT_DIR`, as everywhere with httpx.
"""

from __future__ import annotations

import ssl
from functools import cache

import httpx


@cache
def trusted() -> ssl.SSLContext:
    """What httpx would make by itself. Threads may share it."""
    return httpx.create_ssl_context()
