"""The vocabulary that every part of Keytide shares: one word per thing, one thing per word.

What lives here: vector timestamps, index definitions and their SQL, the order-preserving key encoding, every
wire message, topic names, settings, the three families of errors; the clients that users import and the
`keytide` command.

Who may import it: every package. What it may import: none of the services. Only `keytide.cli` reaches
`deploy`, from inside the commands that start a cluster. The vocabulary proper (collation, timestamp,
messages, definition, types, errors, entry) is pure: no clock, no randomness, no threads, no Kafka, no LMDB.

Not to be touched lightly: the key encoding (`collation`, `entry`) is on the disks of running clusters, and
the messages (`messages`) are in their queues. A change to either needs a new tag or version, and a reader for
the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keytide.client import AsyncClient, Client, Writes

__all__ = ["AsyncClient", "Client", "Writes"]


def __getattr__(name: str) -> Any:
    """`from keytide import Client`, without making every service that imports the vocabulary load httpx."""
    if name in __all__:
        from keytide import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
