"""UNIQUE indexes in the coordinator: whether a build may end, and what operators are told. Pure.

Slices find and judge violations themselves (`indexer.unique.suspects`), by what timestamps settle
(`coordinator.unique.settlement`); heartbeats tell how many there are, some of them, and up to which snapshot
a slice has judged. That decides a build: from the first snapshot on that has everything the build was to
bring (R25), it waits until every slice has judged that snapshot, which takes about one look at the source
longer than for other indexes. One violation fails the index (`completion`), when the slices had time to count
theirs and to tell the first `KEPT_KEYS` of them: its slices go, and these stay, in its record. Of a READY
index each key is told once, as an event, and again only after the index was without violations for some
minutes or another leader took over: documents that are written all the time may go from the list and come
back with every write (`indexer.unique.suspects`). The list (`GET /v1/indexes/{name}/violations`) always has
them.

Copies of a slice find the same, each in its own time. So what any of them has judged is judged, keys that
several tell of are one key, and of their counts the largest counts.
"""

from __future__ import annotations

import json
from typing import Final

from msgspec.structs import replace

from coordinator.catalog.dictionary import Dictionary
from coordinator.core.instructions import Note
from keytide.catalog.records import IndexRecord
from keytide.catalog.violated import Violated
from keytide.collation import decode_key, to_json_value, told_key
from keytide.wire.messages import NodeHeartbeat, SliceStatus, UniqueViolation

EVENTS_PER_INDEX: Final = 100
"""Keys told as events of one index; further ones are only listed, so that nothing else is pushed out of the
events."""
FORGET_MS: Final = 600_000
"""After an index was without violations for so long, what was told of it is forgotten."""
DOCUMENTS_NAMED: Final = 3
KEPT_KEYS: Final = 100
KEPT_BYTES: Final = 64 << 10
"""Of keys and ids: records are read by every process of the cluster."""
COUNT_MS: Final = 10_000
"""A violation that is known fails its index after this long at the latest; a slice that has more of them than
it lists never has judged all."""
_KEY_SHOWN: Final = 200


class Uniqueness:
    """What the heartbeats of nodes say of UNIQUE indexes.

    Args:
        dictionary: the leader's.
    """

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self._nodes: dict[str, dict[tuple[str, int], SliceStatus]] = {}
        self._told: dict[str, set[bytes]] = {}
        self._none_since: dict[str, int] = {}
        """Index -> since when it is without violations; of those in `_told`."""
        self._from: dict[tuple[str, str], int] = {}
        """(build, index) -> the first common snapshot with all that the build was to bring."""
        self._seen: dict[tuple[str, str], tuple[int, dict[bytes, UniqueViolation]]] = {}
        """(build, index) -> since when it is known to be violated, and what slices have told of that."""

    def heard(self, message: NodeHeartbeat) -> list[Note]:
        """Take in a heartbeat; tells keys of READY indexes that were not told before."""
        mine = {(one.index, one.slice): one for one in message.slices if self._unique(one.index)}
        self._nodes[message.node] = mine
        out: list[Note] = []
        for (id_, _), status in sorted(mine.items()):
            index = self._dictionary.catalog.index(id_)
            if index is not None and index.state == "READY":
                out += self._tell(index, status.violated)
            elif index is not None and (known := self._seen.get((index.build or "", id_))):
                known[1].update({one.key: one for one in status.violated})
        for id_ in list(self._told):
            if self._violated(id_):
                self._none_since.pop(id_, None)
            elif message.sent_at - self._none_since.setdefault(id_, message.sent_at) >= FORGET_MS:
                del self._told[id_], self._none_since[id_]
        return out

    def verdict(self, index: IndexRecord, number: int, now: int) -> tuple[bool, Violated | None]:
        """Whether the build of an index must wait at a common snapshot that has all it was to bring, and for
        what the index must fail (None: it need not)."""
        if not index.definition.unique:
            return False, None
        place = index.build or "", index.id
        if place not in self._from:
            self._forget_builds()
        needed = self._from.setdefault(place, number)
        slices = [self._copies(index, one) for one in range(index.slices)]
        told = {one.key: one for copies in slices for status in copies for one in status.violated}
        waits = any(all(status.judged < needed for status in copies) for copies in slices)
        if not told:
            return waits, None
        since, known = self._seen.setdefault(place, (now, {}))
        known.update(told)
        count = sum(max(map(_proven, copies), default=0) for copies in slices)
        if (waits or len(known) < min(count, KEPT_KEYS)) and now - since < COUNT_MS:
            return True, None
        return False, Violated(max(count, len(known)), not waits, _kept(index, known))

    def _forget_builds(self) -> None:
        """Builds that are over."""
        builds = {record.id: record for record in self._dictionary.catalog.builds()}
        self._from = {
            (build, index): number
            for (build, index), number in self._from.items()
            if build in builds and builds[build].state == "CATCHUP"
        }
        self._seen = {place: seen for place, seen in self._seen.items() if place in self._from}

    def _unique(self, id_: str) -> bool:
        index = self._dictionary.catalog.index(id_)
        return index is not None and index.definition.unique

    def _copies(self, index: IndexRecord, number: int) -> list[SliceStatus]:
        """What the nodes that hold a slice last said of it, of each once it follows its queue."""
        found = [self._nodes.get(node, {}).get((index.id, number)) for node in index.placement[number]]
        return [status for status in found if status is not None and status.state == "LIVE"]

    def _violated(self, id_: str) -> bool:
        """Whether some copy of an index knows of violations."""
        index = self._dictionary.catalog.index(id_)
        slices = range(len(index.placement)) if index is not None else ()
        return index is not None and any(
            status.violations for number in slices for status in self._copies(index, number)
        )

    def _tell(self, index: IndexRecord, violated: list[UniqueViolation]) -> list[Note]:
        told = self._told.setdefault(index.id, set()) if violated else set()
        out: list[Note] = []
        for one in violated:
            if one.key in told or len(told) > EVENTS_PER_INDEX:
                continue
            told.add(one.key)
            if len(told) > EVENTS_PER_INDEX:
                text = f"more than {EVENTS_PER_INDEX} keys of index {index.name} are had by several documents"
                out.append(Note("warning", "unique-violated", index.name, f"{text}: see its violations"))
                continue
            text = f"UNIQUE index {index.name}: {in_words(index, one)}"
            out.append(Note("warning", "unique-violated", index.name, text))
        return out


def key_values(index: IndexRecord, key: bytes) -> list[object]:
    """The parts of a canonical key, as rows show them."""
    values, _ = decode_key(key, len(index.definition.keys), index.definition.descending)
    return [to_json_value(value) for value in values]


def in_words(index: IndexRecord, one: UniqueViolation) -> str:
    """Which key which documents have."""
    key = json.dumps(key_values(index, one.key), ensure_ascii=False)
    key = key if len(key) <= _KEY_SHOWN else key[:_KEY_SHOWN] + "..."
    named = [
        f"{document.id.decode(errors='replace')} (partition {document.partition}, offset {document.offset})"
        for document in one.documents[:DOCUMENTS_NAMED]
    ]
    others = len(one.documents) - len(named)
    if others or one.more:
        named.append(f"{others} more" if not one.more else "more")
    return (
        f"key {key} is had by {', '.join(named[:-1])} and {named[-1]}, since snapshot {one.number} at least"
    )


def counted(violated: Violated) -> str:
    """How many keys, in words."""
    return f"{violated.count:,}" if violated.exact else f"at least {violated.count:,}"


def failure(index: IndexRecord, violated: Violated) -> str:
    """Why an index has failed, and what to do."""
    have = "is" if violated.count == 1 else "are"
    words = (
        f"index {index.name} is UNIQUE and {counted(violated)} of its keys {have} had by several documents: "
        f"{in_words(index, violated.keys[0])}"
    )
    return (
        f"{words}; see them with `keytide index violations {index.name}`; of the documents of each key "
        f"change or delete all but one, in the source; then `keytide index build {index.name}`"
    )


def _proven(status: SliceStatus) -> int:
    """Violations of a slice, those that it only guesses at left out."""
    return status.violations if status.listed < 0 else status.listed


def _kept(index: IndexRecord, known: dict[bytes, UniqueViolation]) -> list[UniqueViolation]:
    """The first of them, no more than a record may have, whatever nodes tell."""
    kept, size, structure = list[UniqueViolation](), 0, index.definition.structure
    by_told = {told_key(key, structure.parts, structure.descending): one for key, one in known.items()}
    for key, full in sorted(by_told.items())[:KEPT_KEYS]:
        one = replace(full, key=key)
        size += len(one.key) + sum(len(document.id) for document in one.documents)
        if kept and size > KEPT_BYTES:
            break
        kept.append(one)
    return kept
