"""Topics that nobody needs any more. Pure.

What a term orders to be removed may not have been carried out when it ended. So each term begins by looking
at all topics that are named like mutation and backfill queues. Those of indexes and builds that the
dictionary has known go when it has no more use for them. The others may belong to somebody else, such as a
cluster whose name begins with this one's (`a` and `a.mutations`): they are told, and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coordinator.builds.registry import FINAL
from coordinator.core.instructions import Note
from keytide.catalog.catalog import Catalog
from keytide.model.topics import Topics


class Unneeded(NamedTuple):
    """Topics named like queues that the dictionary has no use for, sorted.

    Attributes:
        own: of indexes and builds that it has known; they can go.
        foreign: of nothing that it has known, or whose removal is too long ago for Kafka to tell.
    """

    own: list[str]
    foreign: list[str]


def orphans(catalog: Catalog, cluster: str, topics: Iterable[str]) -> Unneeded:
    """What nobody needs among `topics` (all names in Kafka).

    A retired index whose emission has not ended keeps its queue: its removal is waited for in the ordinary
    way.
    """
    names = Topics(cluster)
    needed = {names.mutations(index.id) for index in catalog.indexes() if index.version > 0}
    for build in catalog.builds():
        if build.state not in FINAL and build.state != "QUEUED":
            needed |= {names.backfill(index, build.id) for index in build.indexes}
    known = catalog.ended | {key for key in catalog.records if key.startswith(("index/", "build/"))}
    queues, backfills = names.mutations(""), f"{cluster}.backfill."

    def is_own(topic: str) -> bool:
        if topic.startswith(queues):
            return f"index/{topic.removeprefix(queues)}" in known
        index, _, build = topic.removeprefix(backfills).rpartition(".")
        return f"index/{index}" in known and f"build/{build}" in known

    found = sorted(one for one in topics if one.startswith((queues, backfills)) and one not in needed)
    return Unneeded([one for one in found if is_own(one)], [one for one in found if not is_own(one)])


def foreign_note(cluster: str, topics: list[str]) -> Note:
    """What a term says of `topics` that it leaves alone."""
    text = (
        f"topics named like queues of {cluster}, which knows nothing of them, are left: {', '.join(topics)}"
    )
    return Note("warning", "foreign-topics", cluster, text)
