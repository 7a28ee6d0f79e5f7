"""Pacing: which slices the next stability timestamp waits for. Pure.

New content waits until every live slice of a READY index holds the last one, so that under load snapshots
grow larger rather than rarer in common. A slice that is slower than its stream would slow all of them down
for good, so there are two limits: each timestamp waits for `pacing_limit_ms` at most, and a slice that has
lacked a content for `lag_limit_ms` *lags*: nothing waits for it until it has caught up. It has when it holds
a content that was new `REJOIN_MS` ago; to hold the very newest at some moment is more than a slice of the
same speed as the others could do.

How far a slice is behind is told by *marks*: now and then a content's number is remembered with the time at
which it was issued. So a quiet stream makes nobody lag. A content that is issued again becomes a mark in any
case: when pacing never gives up, it stays the newest for as long as a slice stands at it.

All of this is asked at every event, of hundreds of copies in a large cluster. So which of them serve is known
until a node says something else, who was found to hold the content is not asked again, nor who was not late
by one mark before the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.instructions import Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.core.nodes import HeardNodes, Replica
from coordinator.stability.acknowledgements import AcknowledgedNumbers
from coordinator.stability.stream import StabilityStream
from keytide.catalog.records import IndexRecord

REJOIN_MS = 1_000
MARK_MS = 100
"""Between marks, at least."""


class Pacing:
    """Decides what waits for whom.

    Args:
        limits: settings.
        acknowledgements: what slices hold.
        nodes: which slices serve.
    """

    def __init__(self, limits: CoreLimits, acknowledgements: AcknowledgedNumbers, nodes: HeardNodes) -> None:
        self._limits = limits
        self._acknowledgements = acknowledgements
        self._nodes = nodes
        self._served: dict[str, _Serving] = {}

    def paced(self, stream: StabilityStream) -> bool:
        """Whether every slice that counts holds the present content."""
        number = stream.content_number
        if number is None:
            return stream.number < 0  # before the first delivery there is nothing to hold
        serving, newest = self._serving(stream), self._acknowledgements.newest
        if serving.holds != (number, self._acknowledgements.forgotten):
            serving.holds, serving.held = (number, self._acknowledgements.forgotten), 0
        for replica in serving.copies[serving.held :]:
            if newest(*replica) < number and replica not in stream.lagging:
                return False
            serving.held += 1
        return True

    def delivered(self, stream: StabilityStream, now: int) -> None:
        """The present content was issued, perhaps again: it may become a mark."""
        number, marks = stream.content_number, stream.marks
        if number is None or (marks and (number <= marks[-1][1] or now - marks[-1][0] < MARK_MS)):
            return
        marks.append((now, number))
        while len(marks) > 1 and now - marks[1][0] > self._limits.lag_limit_ms:
            marks.popleft()

    def tick(self, stream: StabilityStream, now: int) -> list[Instruction]:
        """See who lags and who has caught up."""
        if not stream.lagging and self.paced(stream):
            return []
        late = self._mark(stream, now - self._limits.lag_limit_ms)
        near = self._mark(stream, now - min(REJOIN_MS, self._limits.lag_limit_ms))
        serving, looked_at = self._serving(stream), (late, self._acknowledgements.forgotten)
        if not stream.lagging and serving.looked_at == looked_at:
            return []
        serving.looked_at = looked_at
        notes: list[Instruction] = []
        stream.lagging.intersection_update(serving.copies)  # who does not serve is not waited for anyway
        for replica in serving.copies:
            held = self._acknowledgements.newest(*replica)
            node, index, number = replica
            where = f"slice {number} of {index} on node {node}"
            if replica in stream.lagging:
                if held >= near:
                    stream.lagging.discard(replica)
                    serving.held = 0
                    text = f"{where} has caught up; timestamps wait for it again"
                    notes.append(Note("info", "slice-caught-up", index, text))
            elif held < late:
                stream.lagging.add(replica)
                text = f"{where} is {self._limits.lag_limit_ms} ms behind; timestamps do not wait for it"
                notes.append(Note("warning", "slice-lags", index, text))
        return notes

    def _mark(self, stream: StabilityStream, at: int) -> int:
        """The newest mark that is as old as that, -1 when there is none."""
        return max((number for issued, number in stream.marks if issued <= at), default=-1)

    def _serving(self, stream: StabilityStream) -> _Serving:
        """The live slices of READY indexes."""
        incarnation, name = stream.progress.keyspace.incarnation, stream.progress.keyspace.name
        known = self._served.get(name)
        now = self._nodes.version, incarnation
        if known is not None and known.ready is stream.ready and (known.version, known.incarnation) == now:
            return known
        serves = self._nodes.copy_serves
        copies = sorted(
            (node, record.id, slice_number)
            for record in stream.ready
            for slice_number, nodes in enumerate(record.placement)
            for node in nodes
            if serves(node, record.id, slice_number, incarnation)
        )
        found = self._served[name] = _Serving(self._nodes.version, stream.ready, incarnation, copies)
        return found


@dataclass(slots=True)
class _Serving:
    """The copies that count in pacing, in order, as long as `version`, `ready` and `incarnation` are these.

    Attributes:
        holds: the content that the first `held` of them hold, or lag; and what was forgotten by then.
        looked_at: by which mark all were last looked at, and what was forgotten by then.
    """

    version: int
    ready: list[IndexRecord]
    incarnation: int
    copies: list[Replica]
    holds: tuple[int, int] = (-1, -1)
    held: int = 0
    looked_at: tuple[int, int] = (-2, -1)
