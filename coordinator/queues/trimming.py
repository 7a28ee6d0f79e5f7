"""What mutation queues need no more. Pure (R34; docs/adr/0014).

Theory of operation. Mutation queues have no limit of time or size of their own: Kafka would delete by age
what a slow slice still needs. Every node says of each slice from which queue offset on it may ever need
anything, steps back of its base included (`queue_horizon`). What lies below the smallest of them, over all
copies of a slice that count, is deleted now and then. Nothing is deleted

* while a copy has not said it: not heard in this term, or it cannot say;
* at or past the place where a rebuild is to go on;
* at or past the place that a copy which is being filled may need (R39), until the write that counts the copy:
  from then on its own word does.

A copy that is LOST needs nothing: what brings it back begins with a place of its own. One that leaves is
asked, for it may be counted again (R43); one that was taken out is not.

A leader that was replaced may not know it yet, and deleting is not fenced. It does not know of copies that
its successor has begun: when their source has gone on since, its word lets go of what they still need. So a
heartbeat of a node that has read more of the dictionary than this leader knows to be written says nothing
here (R49).

A node that has been silent for longer than the queue's retention counts no longer; then what is older than
the retention goes, and when the node comes back its slices say that they are LOST, and are rebuilt.

What a node said of an index that has been built again since means nothing for the new queue. So nothing is
deleted until an index has been READY for `queue_settling_ms`, and then only words count that are younger than
that.

With each order Kafka is asked how large the queues are (`coordinator.core.queue_sizes`): a copy that holds
back too much of its queue is given up for it (`coordinator.copies.held_back`).

The order names what every copy that counts has durably read; who deletes holds it against that
(`coordinator.queues.trim_guard`). Where nothing goes there is no order: what holds each queue (`holders`) is
worked out when somebody asks, as an order is.

Silence counts only while the leader itself was awake: who was stopped for a day, or had the clock set, has
heard nobody for a day.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.builds.builds import Builds
from coordinator.core.events import QueuesTrimmed
from coordinator.core.instructions import Instruction, Note, QueueCopy, QueueLimit, TrimQueues
from coordinator.core.limits import CoreLimits
from coordinator.core.queue_sizes import QueueSizes
from coordinator.queues.holders import QueueHolder, holder_of
from coordinator.stability.issuer import TimestampIssuer
from keytide.catalog.records import IndexRecord

ASLEEP_MS = 10_000
"""A leader whose ticks are further apart was asleep, or its clock was set."""
TOLD_MS = 600_000
"""Between lines about it in the events."""


class Trimmer:
    """Orders deletions.

    Args:
        builds: whose dictionary and rebuilds count.
        stability: with what nodes say.
        limits: settings.
        sizes: told what Kafka says of queues.

    Attributes:
        removed: records that were deleted in this term.
    """

    def __init__(
        self, builds: Builds, stability: TimestampIssuer, limits: CoreLimits, sizes: QueueSizes
    ) -> None:
        self._sizes = sizes
        self.removed = 0
        self._registry = builds.registry
        self._stability = stability
        self._limits = limits
        self._awake_since = 0
        self._ticked_at = 0
        self._trimmed_at = 0
        self._ready_since: dict[tuple[str, int], int] = {}
        self._reached: dict[tuple[str, int], int] = {}
        self._told_at = 0
        self._untold = 0
        self._under_way = self._measures = False

    def tick(self, now: int) -> list[Instruction]:
        """Order what is due."""
        if not 0 <= now - self._ticked_at <= ASLEEP_MS:
            self._awake_since = now
        self._ticked_at = now
        if self._under_way or now - self._trimmed_at < self._limits.trim_interval_ms:
            return []
        self._trimmed_at = now
        ready = {
            (index.id, index.version): index
            for index in self._registry.dictionary.catalog.indexes()
            if index.state == "READY"
        }
        made_anew = {
            self._registry.dictionary.topics.mutations(id_) for id_, _ in ready.keys() - self._ready_since
        }
        self._reached = {key: low for key, low in self._reached.items() if key[0] not in made_anew}
        self._ready_since = {key: self._ready_since.get(key, now) for key in ready}
        limits: list[QueueLimit] = []
        for index in ready.values():
            if not self._passed_over(index, now):
                limits += self._limits_of(index, now)
        topics = self._registry.dictionary.topics
        # (Beside queues, what there is always, and what builds fill: they want to know of those disks.)
        asked = [topics.control, *(topics.mutations(id_) for id_, _ in ready), *self._filled()]
        measured = asked if self._limits.queue_sizes else []
        if not limits and not measured:
            return []
        self._under_way = True
        self._measures = bool(measured)
        return [TrimQueues(tuple(limits), tuple(measured))]

    def _filled(self) -> list[str]:
        """The backfill queues of builds that fill them."""
        dictionary = self._registry.dictionary
        return [
            dictionary.topics.backfill(index, build.id)
            for build in dictionary.catalog.builds()
            if build.state in ("BACKFILL", "PAUSED")
            for index in build.indexes
        ]

    def holders(self, index: IndexRecord, now: int) -> list[QueueHolder]:
        """What holds the queue of each slice of an index, as an order would see it now."""
        if why := self._passed_over(index, now):
            return [QueueHolder(why)] * len(index.placement)
        return [holder_of(copies, silent) for copies, silent in self._counting(index, now)]

    def _passed_over(self, index: IndexRecord, now: int) -> str:
        """Why nothing goes of any queue of an index, "" when something may."""
        if index.state != "READY":
            return f"the index is {index.state}"
        if index.keyspace in self._registry.halted:
            return "the history of its keyspace is being examined"
        if now < self._settled_at(index, now):
            settling = self._limits.queue_settling_ms / 1000
            return f"the index has been READY for less than {settling:g} s of this leader's term"
        return ""

    def _settled_at(self, index: IndexRecord, now: int) -> int:
        """From when on words of nodes are about the present queue of a READY index."""
        return self._ready_since.get((index.id, index.version), now) + self._limits.queue_settling_ms

    def _limits_of(self, index: IndexRecord, now: int) -> list[QueueLimit]:
        topic = self._registry.dictionary.topics.mutations(index.id)
        found: list[QueueLimit] = []
        for number, (copies, silent) in enumerate(self._counting(index, now)):
            before = min((copy.horizon for copy in copies), default=-1)
            older_than = now - self._limits.queue_retention_ms if silent else 0
            if (copies and before < 0) or not (copies or silent):
                continue
            if silent or before > self._reached.get((topic, number), 0):
                found.append(QueueLimit(topic, number, before, older_than, tuple(copies)))
        return found

    def _counting(self, index: IndexRecord, now: int) -> Iterator[tuple[list[QueueCopy], list[str]]]:
        """Of each slice what counts for its queue, and nodes with a copy that are silent for too long."""
        filled = [one for one in self._registry.dictionary.catalog.copies() if one.index == index.id]
        rebuilds = self._registry.rebuilds(index.id)
        for number in range(len(index.placement)):
            copies = [
                QueueCopy(f"rebuild {record.id}", place, place, "" if place >= 0 else "it has not begun")
                for record in rebuilds
                if number in record.slices.get(index.id, ())
                for place in (record.queue_positions.get(index.id, {}).get(number, -1),)
            ]
            copies += [
                QueueCopy(f"copy {record.id}", record.need, record.need)
                for record in filled
                if record.slice == number
            ]
            silent: list[str] = []
            for node, copy in index.copies_kept(number).items():
                if self._silent(node, now):
                    silent.append(node)
                elif (said := self._said(node, index, number, copy, now)) is not None:
                    copies.append(said)
            yield copies, silent

    def _said(self, node: str, index: IndexRecord, number: int, copy: str, now: int) -> QueueCopy | None:
        """What a copy of a slice may need and has durably read (nothing, as far as is known, when it has not
        said so), as far as its word counts here; None of one that is LOST."""
        known = self._stability.nodes.by_id.get(node)
        status = known.slice(index.id, number) if known else None
        why = ""
        if known is None or known.heard_at < self._settled_at(index, now):
            why = "it has not been heard in this term, or not since the index became READY"
        elif known.heartbeat.catalog_offset > self._registry.dictionary.written:
            why = "it has read more of the dictionary than this leader has written: another one leads"
        elif status is None:
            why = "it says nothing of the slice"
        elif status.copy != copy:
            why = "it speaks of another copy of the slice"
        elif status.state == "LOST":
            return None
        elif status.incarnation != self._registry.incarnation(index.keyspace):
            why = "it has not rolled back yet"
        elif status.queue_horizon < 0:
            serves = status.state == "LIVE"
            why = "its base can step back into its build" if serves else f"it is {status.state}"
        horizon = status.queue_horizon if status and not why else -1
        return QueueCopy(f"node {node}", horizon, status.queue_position if status else 0, why)

    def _silent(self, node: str, now: int) -> bool:
        """Whether a node has been silent for longer than queues are kept."""
        known = self._stability.nodes.by_id.get(node)
        heard = known.heard_at if known else 0
        return now - max(heard, self._awake_since) > self._limits.queue_retention_ms

    def trimmed(self, event: QueuesTrimmed) -> list[Instruction]:
        """What became of it."""
        self._under_way = False
        if self._measures:
            self._sizes.told(event.sizes, event.disks)
        self._reached.update(event.reached)
        self.removed += event.removed
        self._untold += event.removed
        notes: list[Instruction] = []
        if event.expired:
            queues = ", ".join(f"slice {number} of {topic}" for topic, number in event.expired)
            text = (
                f"records that a node had not read yet were deleted, for it has been silent for longer than "
                f"topics.queue_retention_s: {queues}; these slices are rebuilt when it comes back"
            )
            notes.append(Note("warning", "queue-expired", event.expired[0][0], text))
        if self._untold and event.now - self._told_at >= TOLD_MS:
            text = f"{self._untold:,} records that no slice needs any more were deleted from mutation queues"
            notes.append(Note("info", "queues-trimmed", "mutations", text))
            self._told_at, self._untold = event.now, 0
        return notes
