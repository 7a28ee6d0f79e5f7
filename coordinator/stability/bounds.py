"""How far timestamps may go: written before they go there. Pure (docs/adr/0022).

Theory of operation. No timestamp may lie before one of an earlier term: sessions have seen that. A new
leader knows the last one from the tail of the control topic. But that is kept for hours only, and a tail is
short: when everything was stopped for longer, or a keyspace was silent while others were not, nothing of the
keyspace is left there, and projectors begin at their last commits, which lie before what they had
acknowledged.

So the dictionary has a *bound* per source partition, which no timestamp passes, set ahead of what is
acknowledged by `reserve` offsets (as a database reserves ids by the thousand) and set anew when half of that
is used up. A leader that finds no timestamp of a keyspace does not issue any before everything up to the
bound, or up to the end of the source where that comes first, is acknowledged: whatever was issued lies below
both. That is the *floor*. Without a bound (of a release that wrote none) it is the end of the source.

The dictionary also says, to the hour, until when timestamps were fresh: how late projectors of a compacted
topic are is judged by that (R26, R27), where else the last timestamp tells it.

Invariant here: *Monotonic*.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.catalog.dictionary import Dictionary
from coordinator.core.events import BoundWritten, Event, SourceSampled, Tick
from coordinator.core.instructions import ConfirmBound, Instruction, Note
from coordinator.core.source_status import SourceStatus
from coordinator.stability.issuer import TimestampIssuer
from coordinator.stability.projector_lag import UNTIL_JUDGED
from coordinator.stability.stream import StabilityStream
from keytide.model.timestamp import Timestamp

FRESH_EACH_MS = 3_600_000
"""How exactly the dictionary says until when timestamps were fresh: a day's worth of tombstones is the least
that people keep."""


class Bounds:
    """Keeps the bounds of all keyspaces.

    Args:
        stability: its streams are told what is written.
    """

    def __init__(self, dictionary: Dictionary, stability: TimestampIssuer) -> None:
        self._dictionary = dictionary
        self._stability = stability

    def recover(self) -> list[Instruction]:
        """At the start of a term, when the control topic was read: hold keyspaces of which it has nothing."""
        out: list[Instruction] = []
        for name, stream in sorted(self._stability.streams.items()):
            if stream.number >= 0 or not stream.emitting:
                continue
            stream.floor, stream.content = UNTIL_JUDGED, None
            text = (
                f"the control topic has no timestamp of {name} any more; the next one comes when projectors "
                "have read to where the last one may have been"
            )
            out.append(Note("warning", "timestamps-held", name, text))
        return out

    def handle(self, event: Event) -> list[Instruction]:
        """One event; what follows."""
        out: list[Instruction] = []
        match event:
            case SourceSampled(source, "", _) if source.exists:
                self._look(source)
            case BoundWritten(name, bound, _):
                stream, known = self._stability.streams.get(name), self._dictionary.catalog.keyspace(name)
                if stream is not None and known is not None and known.bound == bound:
                    stream.bound = Timestamp.of(bound)
            case Tick():
                for name, stream in sorted(self._stability.streams.items()):
                    out += self._renew(name, stream)
        return out

    def _look(self, source: SourceStatus) -> None:
        """What is on the source now: every timestamp of it lies below its end. (Looked at as long as that is
        waited for: records that nobody had read may be lost meanwhile.)"""
        stream = self._stability.streams.get(source.keyspace)
        if stream is None or stream.floor is None or source.topic_id != stream.progress.keyspace.topic_id:
            return
        bound = Timestamp.of(stream.progress.keyspace.bound)
        known = stream.floor if stream.floor is not UNTIL_JUDGED else bound if bound.places else None
        end = Timestamp.of(source.stable)
        stream.floor = end if known is None else end.merge_min(known)

    def _renew(self, name: str, stream: StabilityStream) -> list[Instruction]:
        """Set a keyspace's bound ahead, if half of it is used up."""
        known = self._dictionary.catalog.keyspace(name)
        if known is None or not stream.emitting:
            return []
        fresh_at = stream.progress.fresh_at()
        reserve = self._stability.limits.reserve
        places = {partition: state.place.offset for partition, state in stream.progress.partitions.items()}
        near = any(offset + reserve // 2 > known.bound.get(p, 0) for p, offset in places.items())
        told = known.fresh_at or fresh_at - FRESH_EACH_MS
        if not near and fresh_at - told < FRESH_EACH_MS:
            return []
        ahead = {p: max(known.bound.get(p, 0), offset + reserve) for p, offset in places.items()}
        bound = known.bound | ahead if near else known.bound
        self._dictionary.put(replace(known, bound=bound, fresh_at=max(known.fresh_at, fresh_at)))
        return [ConfirmBound(name, bound)]
