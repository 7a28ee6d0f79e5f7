"""Taking an index out of service: after DROP, a cancelled or a failed build. Pure.

Projectors emit for an index until they have activated a newer catalog version, and an emitting projector
needs the topics. So the record changes first (state, and as its `version` the one that ends emission), nodes
give their slices up at once, and the topics go when every source partition reports that version (R19, of
layouts R51: a projector that cannot send to one index stops for all of its keyspace), or when nobody has
owned it for a while. Then a dropped index's record goes too; that of a cancelled or failed one gets version 0
and can be built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from coordinator.catalog.dictionary import Dictionary
from coordinator.core.events import TopicsDeleted
from coordinator.core.instructions import DeleteTopics, Instruction, Note
from coordinator.stability.progress import KeyspaceProgress
from keytide.catalog.records import IndexRecord

RETIRED: frozenset[str] = frozenset({"DEFERRED", "FAILED", "DROPPING"})
SILENCE_LIMIT_MS = 15_000
"""A partition that no projector reports for this long has no owner (the projectors' session time-out, and
some)."""
WAIT_LIMIT_MS = 120_000
"""After this long the topics go in any case, with a warning: a projector that is stuck must not keep a name's
remains for ever."""


def retire(
    dictionary: Dictionary,
    index: IndexRecord,
    state: Literal["DEFERRED", "FAILED", "DROPPING"],
    reason: str = "",
) -> list[Instruction]:
    """Take an index out of service; the record says `state` from now on."""
    gone = replace(index, state=state, reason=reason, placement=[], slice_builds={}, copies={}, leaving={})
    if index.version == 0:  # nothing was ever emitted; topics may be there of a build that did not begin
        if state == "DROPPING" and index.build is None:
            dictionary.delete(f"index/{index.id}")
            return []
        dictionary.put(gone)
        return [DeleteTopics(_topics(dictionary, index), index.id)]
    dictionary.put(replace(gone, version=dictionary.bump(index.keyspace).version))
    return []


def fail_index(dictionary: Dictionary, index: IndexRecord, reason: str) -> list[Instruction]:
    """Take an index out of service that can never be right again."""
    text = f"index {index.name} has failed: {reason}"
    out = retire(dictionary, index, "FAILED", reason)
    return [*out, Note("error", "index-failed", index.name, text)]


def _topics(dictionary: Dictionary, index: IndexRecord) -> tuple[str, ...]:
    """Its mutation queue. (The backfill queues go with the build: only its driver writes there.)"""
    return (dictionary.topics.mutations(index.id),)


class Retirement:
    """Removes the topics of retired indexes when nobody needs them any more."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self._since: dict[str, int] = {}
        self._deleting: set[str] = set()

    def tick(self, progress: Mapping[str, KeyspaceProgress], now: int) -> list[Instruction]:
        """Order the removal of what is free now. `progress` by keyspace."""
        out: list[Instruction] = []
        for index in self._dictionary.catalog.indexes():
            if index.state not in RETIRED or index.version == 0 or index.id in self._deleting:
                continue
            since = self._since.setdefault(index.id, now)
            late = now - since > WAIT_LIMIT_MS
            if late or self._deactivated(index, progress.get(index.keyspace), since, now):
                self._deleting.add(index.id)
                out.append(DeleteTopics(_topics(self._dictionary, index), index.id))
                if late:
                    text = f"projectors do not let go of {index.name}; its topics go now"
                    out.append(Note("warning", "projector-stuck", index.name, text))
        return out

    def deleted(self, event: TopicsDeleted) -> list[Instruction]:
        """The topics are gone: the end of a DROP, or free to be built again."""
        self._deleting.discard(event.index)
        self._since.pop(event.index, None)
        index = self._dictionary.catalog.index(event.index)
        if index is None or index.state not in RETIRED:
            return []
        if index.state != "DROPPING":
            self._dictionary.put(replace(index, version=0))
            return []
        self._dictionary.delete(f"index/{index.id}")
        return [Note("info", "index-dropped", index.name, f"index {index.name} and all its topics are gone")]

    def recover(self) -> list[Instruction]:
        """Dropped indexes that were never emitted for: their removal may not have been carried out in the
        last term."""
        return [
            DeleteTopics(_topics(self._dictionary, index), index.id)
            for index in self._dictionary.catalog.indexes()
            if index.state == "DROPPING" and index.version == 0
        ]

    def _deactivated(
        self, index: IndexRecord, progress: KeyspaceProgress | None, since: int, now: int
    ) -> bool:
        if progress is None:
            return True
        waited = now - since > SILENCE_LIMIT_MS
        return all(
            progress.activated(partition) >= index.version
            or (waited and progress.silent(partition, now, SILENCE_LIMIT_MS))
            for partition in range(progress.keyspace.partitions)
        )
