"""Rollback: when the source has lost acknowledged records, everything goes back to the newest stability
timestamp before the loss. Pure (R28, R30 to R32; docs/adr/0010).

Theory of operation. Three things raise the suspicion that the history of a keyspace is not the one that its
timestamps were made of:

* a projector says so (`HistoryLost`): a place that it had read up to is not on the log any more. What lies
  past the newest timestamp was sent already, so this always ends in a rollback;
* the topic has another id: it was deleted and made anew. The same; it is asked for with every timestamp that
  has news (`coordinator.stability.topic_confirmation`), so none was issued of what was read of the new one;
* the end of a partition lies below a timestamp that is older than the look at that end. This may be a broker
  that does not know better for a moment, so the examination decides;
* a projector reports under a later leader epoch than that of what was acknowledged before it. Nearly always
  that is an election which lost nothing. But who had read the lost records may be gone, and who reads on may
  have begun below them: then nobody else notices. (Or it reports more, under an older epoch: it reads a log
  that is there no more.) The examination decides.

From then on the keyspace is halted: no timestamp, nothing published, no build begins or is judged. The slow
work, to find the newest timestamp of which every place is on the log, is done beside the control loop
(`ExamineHistory`) and tried again until there is an answer. Then one `Write` has it all: the rollback, the
keyspace's new incarnation, and the builds that begin again. Before it nothing has changed, and whoever leads
next begins from the suspicion; after it the dictionary says everything. When it is committed
(`RollbackWritten`) timestamps of the new incarnation are issued, the first one with the content that was gone
back to.

A topic that is gone and not made anew yet changes nothing: there is no history to go on with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.catalog.dictionary import Dictionary
from coordinator.core.events import (
    Event,
    HistoryExamined,
    Reported,
    RollbackWritten,
    SourceSampled,
    Tick,
    TopicSeen,
)
from coordinator.core.instructions import ConfirmRollback, ExamineHistory, Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.core.source_status import SourceStatus
from coordinator.rollback.unreached import begin_unreached
from coordinator.stability.issuer import TimestampIssuer
from coordinator.stability.projector_lag import LatenessWatch
from coordinator.stability.stream import StabilityStream
from keytide.catalog.records import KeyspaceRecord, RollbackRecord
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.messages import HistoryLost, Progress


@dataclass(slots=True)
class _Case:
    """A suspicion.

    Attributes:
        words: who said what, for people.
        certain: it ends in a rollback, whatever the examination says of the timestamps.
        stood: partition -> the least place beyond the timestamps that a projector had read up to.
        epochs: partition -> the leader epoch that is looked at.
        acknowledged: partition -> what projectors had acknowledged under the epoch before.
        asked: an examination is under way.
        ask_at: not before this.
        waiting: why there is no answer yet; told once for each reason.
    """

    words: dict[str, None] = field(default_factory=dict)
    certain: bool = False
    stood: dict[int, Place] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    asked: bool = False
    ask_at: int = 0
    waiting: str = ""


class Rollbacks:
    """Notices lost history, has it examined, decides.

    Args:
        dictionary: the leader's.
        stability: told what to halt.
        builds: those under way begin again.
        lateness: begins anew with another history.
        limits: settings.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        stability: TimestampIssuer,
        builds: Builds,
        lateness: LatenessWatch,
        limits: CoreLimits,
    ) -> None:
        self._dictionary = dictionary
        self._stability = stability
        self._builds = builds
        self._lateness = lateness
        self._limits = limits
        self._cases: dict[str, _Case] = {}
        self._witnesses: dict[str, tuple[int, Timestamp]] = {}
        self._looked_at: dict[tuple[str, int], int] = {}
        self._missing: set[str] = set()
        self._rolled_back_at: dict[str, int] = {}
        self._unwritten: dict[str, int] = {}

    def examining(self, keyspace: str) -> str:
        """Why a keyspace's history is being examined, "" when it is not."""
        case = self._cases.get(keyspace)
        return "; ".join(case.words) if case else ""

    def handle(self, event: Event) -> list[Instruction]:
        """One event; what follows."""
        match event:
            case Reported(HistoryLost() as message, now):
                return self._lost(message, now)
            case Reported(Progress() as message, now):
                return self._reported(message, now)
            case SourceSampled(source, "", now):
                return self._sampled(source, now)
            case TopicSeen():
                return self._seen(event)
            case HistoryExamined():
                return self._examined(event)
            case RollbackWritten(keyspace, incarnation, _):
                return self._written(keyspace, incarnation)
            case Tick(now):
                return self._ask(now)
            case _:
                return []

    # --- noticing -------------------------------------------------------------------------------------------

    def _affected(self, keyspace: str) -> tuple[KeyspaceRecord, StabilityStream] | None:
        """The keyspace, if any of its indexes has a history that can be lost."""
        record, stream = self._dictionary.catalog.keyspace(keyspace), self._stability.streams.get(keyspace)
        return (record, stream) if record and stream and stream.emitting else None

    def _lost(self, message: HistoryLost, now: int) -> list[Instruction]:
        """A projector's word. One of an older incarnation is answered by the rollback that has been since."""
        affected = self._affected(message.keyspace)
        if affected is None or message.incarnation != affected[0].incarnation:
            return []
        words = f"projector {message.projector}, partition {message.partition}: {message.reason}"
        stood = {message.partition: Place(message.offset, message.epoch)}
        return self._suspect(message.keyspace, words, now, certain=True, stood=stood)

    def _reported(self, message: Progress, now: int) -> list[Instruction]:
        """Whether what was acknowledged and what is reported now may be of two logs."""
        affected = self._affected(message.keyspace)
        if affected is None or message.incarnation != affected[0].incarnation:
            return []
        out: list[Instruction] = []
        for line in message.partitions:
            state = affected[1].progress.partitions.get(line.partition)
            known = state.place if state else Place(0)
            looked_at = self._looked_at.get((message.keyspace, line.partition), known.epoch)
            if known.offset and 0 <= known.epoch < line.epoch and looked_at < line.epoch:
                # (Builds read ahead of projectors: what they have read may be lost, and nothing else.)
                reach = self._builds.reach(message.keyspace).offset(line.partition)
                place, epoch = Place(max(known.offset, reach), known.epoch), line.epoch
            elif 0 <= line.epoch < known.epoch and line.acked > known.offset:
                place, epoch = Place(line.acked, line.epoch, line.tail), known.epoch
            else:
                continue
            case = self._cases.get(message.keyspace)
            if case and case.epochs.get(line.partition, -1) >= epoch:
                continue
            words = f"partition {line.partition} has leader epoch {epoch}, and was read under {place.epoch}"
            out += self._suspect(message.keyspace, words, now, stood={line.partition: place})
            case = self._cases[message.keyspace]
            case.epochs[line.partition] = epoch
            case.acknowledged.setdefault(line.partition, known.offset)
        return out

    def _sampled(self, source: SourceStatus, now: int) -> list[Instruction]:
        """A look at the source."""
        affected = self._affected(source.keyspace)
        if affected is None:
            self._witnesses.pop(source.keyspace, None)
            return []
        keyspace, stream = affected
        if not source.exists:
            return self._gone(source.keyspace)
        self._missing.discard(source.keyspace)
        if _another(keyspace, source.topic_id):
            return self._made_anew(source.keyspace, now)
        # An end may only be held against a timestamp that is older than the look at it.
        seen_at, content = self._witnesses.get(source.keyspace, (0, Timestamp()))
        self._witnesses[source.keyspace] = (now, stream.content or Timestamp())
        short = {
            partition: place.offset
            for partition, place in content.places.items()
            if place.offset > source.stable.get(partition, place.offset)
        }
        if not short or source.sampled_at < seen_at:
            return []
        places = ", ".join(
            f"partition {partition} ends at {source.stable[partition]}, timestamps were at {offset}"
            for partition, offset in sorted(short.items())
        )
        return self._suspect(source.keyspace, places, now)

    def _seen(self, event: TopicSeen) -> list[Instruction]:
        """Which topic has a keyspace's name. An answer to a question of before the last rollback says nothing
        any more."""
        affected = self._affected(event.keyspace)
        if affected is None or affected[1].asked is None or affected[1].ask != event.ask:
            return []
        anew = event.topic_id and _another(affected[0], event.topic_id)
        return self._made_anew(event.keyspace, event.now) if anew else []

    def _made_anew(self, keyspace: str, now: int) -> list[Instruction]:
        return self._suspect(keyspace, "the topic was deleted and made anew", now, certain=True)

    def _gone(self, keyspace: str) -> list[Instruction]:
        if keyspace in self._missing:
            return []
        self._missing.add(keyspace)
        text = (
            f"topic {keyspace} does not exist any more; its indexes stay as they are. When it is made anew, "
            "they begin again from nothing; else drop them"
        )
        return [Note("error", "topic-gone", keyspace, text)]

    def _suspect(
        self,
        keyspace: str,
        words: str,
        now: int,
        *,
        certain: bool = False,
        stood: Mapping[int, Place] | None = None,
    ) -> list[Instruction]:
        case = self._cases.get(keyspace)
        if case is None:
            pause_ms = self._limits.examine_pause_ms
            pause = self._rolled_back_at.get(keyspace, -pause_ms) + pause_ms
            case = self._cases[keyspace] = _Case(ask_at=max(now, pause))
            self._stability.halt(keyspace)
            self._builds.registry.halted.add(keyspace)
        case.certain = case.certain or certain
        for partition, place in (stood or {}).items():
            case.stood[partition] = min(place, case.stood.get(partition, place))
        if words in case.words:
            return []
        case.words[words] = None
        text = f"the history of {keyspace} is examined, its timestamps wait: {words}"
        return [Note("warning", "history-doubted", keyspace, text), *self._ask(now)]

    # --- examining ------------------------------------------------------------------------------------------

    def _ask(self, now: int) -> list[Instruction]:
        out: list[Instruction] = []
        for name, case in sorted(self._cases.items()):
            affected = self._affected(name)
            if affected is None:  # its last index was dropped meanwhile
                self._close(name)
            elif not case.asked and now >= case.ask_at:
                case.asked = True
                keyspace, stream = affected
                stamps = tuple(sorted(stream.stamps.items(), reverse=True))
                out.append(ExamineHistory(name, keyspace.topic_id, stream.history, stamps, dict(case.stood)))
        return out

    def _close(self, keyspace: str) -> None:
        """Nothing is doubted any more."""
        self._cases.pop(keyspace, None)
        self._witnesses.pop(keyspace, None)
        if keyspace not in self._unwritten:
            self._builds.registry.halted.discard(keyspace)
            self._stability.resume(keyspace)

    def _examined(self, event: HistoryExamined) -> list[Instruction]:
        case, affected = self._cases.get(event.keyspace), self._affected(event.keyspace)
        if case is None or affected is None:
            return []
        case.asked, case.ask_at = False, event.now + self._limits.examine_retry_ms
        keyspace, _ = affected
        waiting = event.error or ("" if event.topic_id else "the topic does not exist")
        if waiting:
            if waiting == case.waiting:
                return []
            case.waiting = waiting
            text = f"the history of {event.keyspace} cannot be examined yet: {waiting}"
            return [Note("warning", "history-unknown", event.keyspace, text)]
        if keyspace.topic_id and keyspace.topic_id != event.topic_id:
            return self._roll_back(event, case, keyspace, "recreated")
        unread = all(
            place.offset >= case.acknowledged.get(partition, place.offset + 1)
            for partition, place in event.lost.items()
        )
        if case.certain or not unread:
            return self._roll_back(event, case, keyspace, "truncated")
        self._looked_at.update({(event.keyspace, p): epoch for p, epoch in case.epochs.items()})
        self._close(event.keyspace)
        text = f"the history of {event.keyspace} is whole: {'; '.join(case.words)} was a false alarm"
        reason = "the source lost records that only the build may have read"
        out = self._builds.rolled_back(event.keyspace, reason, event.now) if event.lost else []
        return [*out, Note("info", "history-whole", event.keyspace, text)]

    # --- deciding -------------------------------------------------------------------------------------------

    def _roll_back(
        self,
        event: HistoryExamined,
        case: _Case,
        keyspace: KeyspaceRecord,
        cause: Literal["truncated", "recreated"],
    ) -> list[Instruction]:
        anew = cause == "recreated"
        record = RollbackRecord(
            keyspace=keyspace.name,
            incarnation=keyspace.incarnation + 1,
            number=-1 if anew else event.number,
            timestamp=Timestamp() if anew else event.timestamp,
            topic_id=event.topic_id,
            cause=cause,
            at=event.now,
            lost={} if anew else event.lost,
            detail="; ".join(case.words),
        )
        partitions = event.partitions if anew else max(keyspace.partitions, event.partitions)
        self._dictionary.put(record)
        self._dictionary.put(
            replace(
                keyspace,
                incarnation=record.incarnation,
                topic_id=record.topic_id,
                partitions=partitions,
                bound={} if anew else keyspace.bound,
            )
        )
        reason = "the source was made anew" if anew else "the source lost records, and was rolled back"
        out = self._builds.rolled_back(keyspace.name, reason, event.now)
        out += begin_unreached(self._builds, record, event.now)
        self._lateness.forget(keyspace.name)
        self._looked_at = {key: epoch for key, epoch in self._looked_at.items() if key[0] != keyspace.name}
        self._rolled_back_at[keyspace.name] = event.now
        self._unwritten[keyspace.name] = record.incarnation
        self._close(keyspace.name)
        return [
            *out,
            ConfirmRollback(keyspace.name, record.incarnation),
            Note("error", "rolled-back", keyspace.name, in_words(record)),
        ]

    def _written(self, keyspace: str, incarnation: int) -> list[Instruction]:
        """From now on timestamps of the new incarnation may be issued."""
        if self._unwritten.get(keyspace) == incarnation:
            del self._unwritten[keyspace]
            if keyspace not in self._cases:
                self._close(keyspace)
        return []


def _another(keyspace: KeyspaceRecord, topic_id: str) -> bool:
    """Whether a topic is not the one that the keyspace is known to be."""
    return bool(keyspace.topic_id) and keyspace.topic_id != topic_id


def in_words(record: RollbackRecord) -> str:
    """A rollback as people are told of it."""
    name = f"{record.keyspace} is rolled back (incarnation {record.incarnation})"
    if record.cause == "recreated":
        return f"{name}: its topic was made anew; its indexes begin again from nothing"
    where = f"to snapshot {record.number}" if record.number >= 0 else "to its beginning"
    lost = ", ".join(
        f"partition {partition} from offset {place.offset}"
        for partition, place in sorted(record.lost.items())
    )
    return f"{name} {where}: the topic lost records{f' ({lost})' if lost else ''}; {record.detail}"
