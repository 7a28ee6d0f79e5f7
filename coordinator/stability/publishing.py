"""Which numbers the slices of an index have in common, and what is published of them. Pure.

A READY index's newest number that every copy which serves holds (R37) is `Published`, on change, and again
from time to time for readers that started since: the death of one copy takes away no number that readers may
have seen. A copy that lags is not waited for, and readers are told not to ask it; where no copy of a slice
serves, one that holds the number is enough. Slices whose data is lost, or that are being rebuilt, are left
out: scans that need them are refused anyway, and the others would be held to an old snapshot for as long. For
an index under build the same thing is told to the build, as `CommonSnapshot`; there every copy that can be
used must hold the number, of every slice (`coordinator.builds.copies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.core.events import CommonSnapshot
from coordinator.core.instructions import Broadcast, Instruction
from coordinator.core.nodes import HeardNodes
from coordinator.stability.acknowledgements import AcknowledgedNumbers, Copy, RequiredCopies
from coordinator.stability.stream import StabilityStream
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.errors import invariant
from keytide.wire.messages import Published

REBUILDING: frozenset[str] = frozenset({"BACKFILL", "PAUSED", "CATCHUP"})
"""States of a rebuild in which its slices hold nothing that could be common."""


def usable_copies(nodes: HeardNodes, record: IndexRecord) -> list[list[str]]:
    """Of each slice of an index under build the nodes that can fill it: they are live, and do not say that it
    is lost. All of its nodes where there are none such."""
    lost = {
        (status.slice, name)
        for name, node in nodes.by_id.items()
        for status in node.heartbeat.slices
        if status.index == record.id and status.state == "LOST"
    }
    live = set(nodes.live())
    return [
        [node for node in placed if node in live and (number, node) not in lost] or placed
        for number, placed in enumerate(record.placement)
    ]


class Publishing:
    """Finds and publishes common numbers.

    Args:
        term: the leader's term.

    Attributes:
        indexes: their records by id.
    """

    def __init__(self, acknowledgements: AcknowledgedNumbers, nodes: HeardNodes, term: int) -> None:
        self.indexes: dict[str, IndexRecord] = {}
        self._acknowledgements = acknowledgements
        self._nodes = nodes
        self._term = term
        self._rebuilt: dict[str, int] = {}
        self._out: dict[str, int] = {}
        self._known_required: dict[str, tuple[object, RequiredCopies, dict[str, list[int]]]] = {}
        """Index id -> what that was worked out from, who is required, and node -> slices whose copies do not
        serve while another one does."""

    def catalog_changed(self, catalog: Catalog) -> None:
        """Take over what the dictionary says of indexes."""
        self.indexes = {record.id: record for record in catalog.indexes()}
        for gone in [index for index in self._acknowledgements.indexes() if index not in self.indexes]:
            self._acknowledgements.forget(gone)
        self._rebuilt = {}
        for index in self.indexes.values():
            for number, build in index.slice_builds.items():
                record = catalog.build(build)
                if record is not None and record.state in REBUILDING:
                    self._rebuilt[index.id] = self._rebuilt.get(index.id, 0) | 1 << number
        self.slices_changed()

    def slices_changed(self) -> None:
        """Nodes say something else of which slices are lost, or which copies count."""
        out = dict(self._rebuilt)
        for id_, number in self._nodes.lost:
            out[id_] = out.get(id_, 0) | 1 << number
        ready = {index.id for index in self.indexes.values() if index.state == "READY"}
        self._out = {id_: mask for id_, mask in out.items() if id_ in ready}
        self._known_required.clear()

    def common(
        self, stream: StabilityStream, indexes: Iterable[str], number: int, now: int
    ) -> list[Instruction | CommonSnapshot]:
        """What follows for `indexes` when replicas have acknowledged `number`."""
        timestamp = stream.stamps.get(number)
        if timestamp is None or stream.halted:
            return []  # not delivered yet (then its delivery asks again), or of an earlier life
        complete: list[str] = []
        out: list[Instruction | CommonSnapshot] = []
        for index in indexes:
            record = self.indexes[index]
            if not self._acknowledgements.holds(index, number, self._required(stream, record)):
                continue
            if record.state == "READY":
                complete.append(index)
            else:
                out.append(CommonSnapshot(index, number, timestamp, now))
        return [*out, *self._publish(stream, dict.fromkeys(complete, number), now)]

    def newest(self, stream: StabilityStream, now: int) -> list[Broadcast]:
        """Publish the newest common numbers, after indexes have changed."""
        ready = {record.id for record in stream.ready}
        stream.published = {index: n for index, n in stream.published.items() if index in ready}
        common = {
            one.id: self._acknowledgements.newest_common(one.id, self._required(stream, one))
            for one in stream.ready
        }
        known = {index: number for index, number in common.items() if number in stream.stamps}
        return self._publish(stream, known, now)

    def _publish(self, stream: StabilityStream, numbers: Mapping[str, int], now: int) -> list[Broadcast]:
        """Publish what is newer than what is published."""
        if stream.halted:
            return []
        newer = {
            index: number for index, number in numbers.items() if number > stream.published.get(index, -1)
        }
        for index, number in newer.items():
            required = self._required(stream, self.indexes[index])
            lacking = self._acknowledgements.lacking(index, number, required)
            invariant(not lacking, "Published", f"slices {lacking} of {index} do not hold {number}")
            stream.published[index] = number
            self._acknowledgements.passed(index, number)
        return [self._message(stream, now)] if newer else []

    def _required(self, stream: StabilityStream, record: IndexRecord) -> RequiredCopies:
        """Who must hold a number of an index; worked out again when somebody begins or ceases to serve."""
        if record.state != "READY":
            return self._required_of_build(record)
        incarnation = stream.progress.keyspace.incarnation
        state = incarnation, frozenset(stream.lagging)
        known = self._known_required.get(record.id)
        if known is not None and known[0] == state:
            return known[1]
        out = self._out.get(record.id, 0)
        every: list[Copy] = []
        some: list[list[Copy]] = []
        behind: dict[str, list[int]] = {}
        for number, nodes in enumerate(record.placement):
            if out >> number & 1:
                continue
            serving = [
                (number, node)
                for node in nodes
                if self._nodes.counts(node, record.id, number, incarnation)
                and (node, record.id, number) not in stream.lagging
            ]
            every += serving
            if not serving:
                some.append([(number, node) for node in nodes])
            for node in nodes if serving else ():
                if (number, node) not in serving:
                    behind.setdefault(node, []).append(number)
        required = self._acknowledgements.required(record.id, every, some)
        self._known_required[record.id] = state, required, behind
        return required

    def _required_of_build(self, record: IndexRecord) -> RequiredCopies:
        """The same of an index under build; worked out again with every heartbeat."""
        state = tuple((node.heartbeat, node.live) for node in self._nodes.by_id.values())
        known = self._known_required.get(record.id)
        if known is not None and known[0] == state:
            return known[1]
        usable = usable_copies(self._nodes, record)
        every = [(number, node) for number, nodes in enumerate(usable) for node in nodes]
        required = self._acknowledgements.required(record.id, every, ())
        self._known_required[record.id] = state, required, {}
        return required

    def _message(self, stream: StabilityStream, now: int) -> Broadcast:
        stream.published_at = now
        keyspace = stream.progress.keyspace
        published = dict(stream.published)
        behind: dict[str, dict[str, list[int]]] = {}
        for index in published:
            if index not in self._known_required and index in self.indexes:
                self._required(stream, self.indexes[index])
            known = self._known_required.get(index)
            for node, slices in known[2].items() if known is not None else ():
                behind.setdefault(node, {})[index] = slices
        return Broadcast(Published(keyspace.name, self._term, keyspace.incarnation, published, behind))

    def repeat(self, streams: Iterable[StabilityStream], now: int, interval_ms: int) -> list[Broadcast]:
        """Publish again what was published that long ago."""
        return [
            self._message(stream, now)
            for stream in streams
            if stream.published and not stream.halted and now - stream.published_at >= interval_ms
        ]
