"""What nodes say of copies, as far as decisions on them may rest on it. Pure (R37, R41, R43).

Theory of operation. A copy is taken out because another one has what it had. So the other one's word must be
younger than the last record that changed which copies of the slice count: a heartbeat says up to where its
node has read the dictionary, and one that has not read that record may be from before. For a slice that this
leader has not changed, that is the last record of the terms before.

The word is that the copy serves and holds a published number. Which number that is this leader knows for
certain only when it has issued one itself: whatever earlier leaders have published, as far as it holds, is
older than that.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.builds.registry import BuildRegistry
from coordinator.core.nodes import WHOLE
from coordinator.stability.issuer import TimestampIssuer
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import IndexRecord
from keytide.wire.messages import SliceStatus

Slice = tuple[str, int]
"""(index id, number)."""


class CopyReports:
    """Looks at heartbeats and acknowledgements.

    Args:
        registry: whose dictionary counts.
        stability: with what nodes say.
    """

    def __init__(self, registry: BuildRegistry, stability: TimestampIssuer) -> None:
        self._registry = registry
        self._dictionary = registry.dictionary
        self._stability = stability
        self._nodes = stability.nodes
        self._began = self._dictionary.written
        self._since: dict[Slice, int] = {}
        self._ordered: dict[Slice, int] = {}

    def changed(self, index: str, number: int) -> None:
        """Which copies of a slice count is changed by the next write."""
        self._ordered[index, number] = self._dictionary.ordered + 1

    def written(self, end: int) -> None:
        """The dictionary has taken note of a write. (Where Kafka did not say how far it reaches, the next one
        will.)"""
        committed = [key for key, write in self._ordered.items() if write <= self._dictionary.committed]
        for key in committed if end >= 0 else ():
            del self._ordered[key]
            self._since[key] = end

    def closed(self, index_id: str, number: int) -> str:
        """What has to be waited for before the copies of a slice may be changed, in words; "" when they
        may."""
        index = self._dictionary.catalog.index(index_id)
        if index is None or index.state != "READY":
            return f"index {index.name if index else index_id} to be READY"
        if index.keyspace in self._registry.halted:
            return f"the history of {index.keyspace} to be examined"
        if number in self._registry.half_rebuilt(index):
            return f"slice {number} of {index.name} to be rebuilt"
        return ""

    def open(self, index_id: str, number: int) -> IndexRecord | None:
        """The index of a slice whose copies may be changed now."""
        return None if self.closed(index_id, number) else self._dictionary.catalog.index(index_id)

    def said(self, node: str, index: str, number: int, copy: str) -> SliceStatus | None:
        """The newest word of a node on its copy of a slice; None when it has said nothing of that one."""
        known = self._nodes.by_id.get(node)
        status = known.slice(index, number) if known else None
        return status if status is not None and status.copy == copy else None

    def counted(self, index: IndexRecord, number: int, node: str) -> SliceStatus | None:
        """The same of a copy that counts."""
        return self.said(node, index.id, number, index.copy_of(number, node))

    def filled(self, record: CopyRecord) -> SliceStatus | None:
        """The same of one that is being filled."""
        return self.said(record.node, record.index, record.slice, record.id)

    def filling(self, index: IndexRecord, number: int) -> list[CopyRecord]:
        """The copies of a slice that are being filled."""
        return self._registry.dictionary.catalog.copies_of_slices().get((index.id, number), [])

    def spare(self, record: CopyRecord, index: IndexRecord) -> bool:
        """Whether nothing is lost with a copy that is being filled: it has not all rows, or one that counts
        serves."""
        status = self.filled(record)
        if status is not None and status.state not in WHOLE:
            return True
        return any(self.serves(index, record.slice, node) for node in index.placement[record.slice])

    def serves(self, index: IndexRecord, number: int, node: str) -> bool:
        """Whether a copy counts and serves."""
        incarnation = self._registry.incarnation(index.keyspace)
        return self._nodes.copy_serves(node, index.id, number, incarnation)

    def holds(self, index: IndexRecord, number: int, node: str) -> bool:
        """Whether a copy that counts holds a published number, by a word that is young enough (R43)."""
        newest = self._newest(index)
        if newest is None or not self.serves(index, number, node):
            return False
        held = self._stability.acknowledgements.newest(node, index.id, number)
        return self.has_read(node, index.id, number) and held >= newest

    def holder(self, index: IndexRecord, number: int, nodes: Iterable[str]) -> str | None:
        """One of some nodes whose copy holds what is published; None when there is none."""
        return next((node for node in nodes if self.holds(index, number, node)), None)

    def has_read(self, node: str, index: str, number: int) -> bool:
        """Whether a node has read the last record that changed which copies of a slice count, or leave."""
        key, known = (index, number), self._nodes.by_id.get(node)
        if known is None or key in self._ordered:
            return False
        return known.heartbeat.catalog_offset >= self._since.get(key, self._began)

    def known(self, index: str, number: int) -> bool:
        """Whether everybody who is expected back has read it."""
        names = {one.id for one in self._dictionary.catalog.nodes()} | self._nodes.by_id.keys()
        return all(self.has_read(one, index, number) for one in names if not self._nodes.gone(one))

    def shows(self, index: IndexRecord, other: IndexRecord) -> bool:
        """Whether what is published of an index is as new as anything that may be of another one."""
        published = self._stability.streams[index.keyspace].published.get(index.id, -1)
        newest = self._newest(other)
        return published >= 0 and newest is not None and (other.state != "READY" or published >= newest)

    def caught_up(self, record: CopyRecord, index: IndexRecord) -> bool:
        """Whether a copy that is being filled may count (R41): it serves, and holds the newest published
        number; where nobody waits for a copy that counts (R37), any number at or past that. If another one
        leaves in its favour, its word is young enough for that (R43)."""
        status, newest = self.filled(record), self._newest(index)
        node = self._nodes.by_id.get(record.node)
        if status is None or newest is None or node is None or not node.live:
            return False
        if record.replaces and not self.has_read(record.node, index.id, record.slice):
            return False
        incarnation = self._registry.incarnation(index.keyspace)
        if status.state != "LIVE" or status.number < 0 or status.incarnation != incarnation:
            return False
        held = self._stability.acknowledgements
        stream = self._stability.streams[index.keyspace]
        if any(
            self._nodes.counts(one, index.id, record.slice, incarnation)
            and not self.lags(index, record.slice, one)
            for one in index.placement[record.slice]
        ):
            published = stream.published.get(index.id, -1)
            return published == newest and held.holds_number(record.node, index.id, record.slice, newest)
        return held.newest(record.node, index.id, record.slice) >= newest

    def lags(self, index: IndexRecord, number: int, node: str) -> bool:
        """Whether timestamps do not wait for a copy."""
        return (node, index.id, number) in self._stability.streams[index.keyspace].lagging

    def _newest(self, index: IndexRecord) -> int | None:
        """No number past this one is published; None when this leader cannot tell yet."""
        stream = self._stability.streams.get(index.keyspace)
        if stream is None or stream.first < 0:
            return None
        return max(stream.first, stream.published.get(index.id, -1))
