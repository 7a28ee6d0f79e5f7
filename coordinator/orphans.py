"""Topics that nobody needs any more. Pure.

What a term orders to be removed may not have been carried out when it ended. So each term begins by looking
at all topics of
mutation and backfill queues: those that the dictionary does not account for go.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.buildbook import FINAL
from keytide.catalog import Catalog
from keytide.topics import Topics


def orphans(catalog: Catalog, cluster: str, topics: Iterable[str]) -> list[str]:
    """Queue topics among `topics` (all names in Kafka) that no index or build has a use for, sorted.

    A retired index whose emission has not ended keeps its queue: its removal is waited for in the ordinary
    way.
    """
    names = Topics(cluster)
    needed = {names.mutations(index.id) for index in catalog.indexes() if index.version > 0}
    for build in catalog.builds():
        if build.state not in FINAL and build.state != "QUEUED":
            needed |= {names.backfill(index, build.id) for index in build.indexes}
    prefixes = (names.mutations(""), f"{cluster}.backfill.")
    return sorted(topic for topic in topics if topic.startswith(prefixes) and topic not in needed)
