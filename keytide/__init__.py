"""The ground that every part of Keytide stands on, and what users import: one word per thing, one thing per
word.

What lives here: on the ground floor, `errors`, `model`, `collation`, `structure`, `geometry`, `definition`,
`catalog`, `wire`, `trace` (pure: no clock, no randomness, no threads, no Kafka, no LMDB), `settings`, and the
adapters `kafka`, `http`, `serving`, `process`. The upper floor, which the ground never imports: `query`
(SELECT to a plan), `client` and `cli`. `import keytide` brings the clients and nothing of a server.

Who may import it: every package, `router`, `projector`, `indexer`, `coordinator`, `streaming`, `deploy`. What
it may import: none of the services. The command's groups that start a cluster come from `deploy` by entry
points.

Not to be touched lightly: the key encoding (`collation`, `model.entry`) is on the disks of running clusters,
and the messages (`wire.messages`) are in their queues. A change to either needs a new tag or version, and a
reader for the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keytide.client import AsyncClient, Client, Writes

__all__ = ["AsyncClient", "Client", "Writes"]


def __getattr__(name: str) -> Any:
    """`from keytide import Client`, without making every service that imports the vocabulary load HTTP."""
    if name in __all__:
        from keytide import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
