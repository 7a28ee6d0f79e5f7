"""The nodes that a client may ask. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from keytide.errors import CallerError

_EXAMPLE: Final = "give one like http://127.0.0.1:8093 (`keytide node list` shows them)"


class NodeAddresses:
    """The nodes' addresses, and which of them is asked first (`first`). For several threads.

    Raises:
        CallerError: no address, or something that is none.
    """

    def __init__(self, urls: str | Sequence[str]) -> None:
        listed = [urls] if isinstance(urls, str) else list(urls)
        if not listed:
            raise CallerError("a client needs the URL of an indexer node", next_step=_EXAMPLE)
        for url in listed:
            try:
                parts = urlsplit(url)
                good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            except ValueError:
                good = False
            if not good:
                raise CallerError(f"{url!r} is not the address of an indexer node", next_step=_EXAMPLE)
        self.urls: Final = [url.rstrip("/") for url in listed]
        self.first = 0
