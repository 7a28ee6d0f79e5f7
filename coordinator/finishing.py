"""The end of a build: BACKFILL to CATCHUP to READY. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.buildbook import BuildBook
from coordinator.events import CommonSnapshot, DeleteTopics, Instruction, Note, SendBuildEnd, SourceSampled
from coordinator.source import unbuildable
from keytide.catalog import BuildRecord, IndexRecord
from keytide.errors import invariant
from keytide.messages import BuildEnd
from keytide.timestamp import Timestamp


class Finishing:
    """What happens to a build when its driver has passed both timestamps."""

    def __init__(self, book: BuildBook) -> None:
        self._book = book

    def source_ends(self, event: SourceSampled) -> list[Instruction]:
        """The source's end, taken after the final micro-batch was read (R25): the stable one, for nobody can
        read past it, and the log cleaner does not go there either."""
        record = self._book.find(event.build, "BACKFILL")
        if record is None:
            return []
        run = self._book.run(record.id)
        run.sampling = False
        if record.keyspace in self._book.halted:
            run.exited_at = event.now  # a driver that ended for nothing is started again
            return []
        if reason := unbuildable(record, event.facts):
            return self._book.fail(record, reason, event.now)
        final = Timestamp.of(event.facts.stable, event.facts.topic_id)
        record = self._book.move(record, "end", ended=True, final_timestamp=final)
        run.waiting_for = "a snapshot that every slice holds"
        text = f"build {record.id} has read everything; slices switch to their mutation queues"
        return [self.build_end(record), Note("info", "build-catchup", record.id, text)]

    def build_end(self, record: BuildRecord) -> SendBuildEnd:
        """The end of the build for each slice (R23); it may be sent again."""
        dictionary = self._book.dictionary
        return SendBuildEnd(
            tuple(
                (
                    dictionary.topics.backfill(index.id, record.id),
                    number,
                    BuildEnd(
                        record.id,
                        index.id,
                        number,
                        dictionary.catalog.term,
                        record.batches,
                        record.queue_positions.get(index.id, {}).get(number, 0),
                    ),
                )
                for index in self._book.indexes(record)
                if index.state == ("READY" if record.rebuild else "BUILDING")
                for number in record.slices_of(index)
            )
        )

    def common(self, event: CommonSnapshot) -> list[Instruction]:
        """Every slice of an index holds a snapshot: READY when it covers the load timestamp and R25's end."""
        index = self._book.dictionary.catalog.index(event.index)
        record = self._book.find(index.build or "", "CATCHUP") if index else None
        if index is None or record is None or index.state != "BUILDING":
            return []
        final = record.final_timestamp or Timestamp()
        invariant(
            record.ended and final.places, "BuildState", f"build {record.id} is in CATCHUP without its end"
        )
        if not event.timestamp.covers(record.load_timestamp) or not event.timestamp.covers(final):
            return []
        self._book.dictionary.put(replace(index, state="READY"))
        text = f"index {index.name} answers scans from snapshot {event.number} on"
        topic = self._book.dictionary.topics.backfill(index.id, record.id)
        out: list[Instruction] = [DeleteTopics((topic,)), Note("info", "index-ready", index.name, text)]
        return out + self.finish_if_ready(record, event.now)

    def finish_if_ready(self, record: BuildRecord, now: int) -> list[Instruction]:
        """End a build in CATCHUP when none of its indexes is on the way any more (one that got READY may
        have failed since)."""
        if any(index.state == "BUILDING" for index in self._book.indexes(record)):
            return []
        record = self._book.move(record, "ready", finished_at=now, documents_done=record.documents_total)
        seconds = (now - record.started_at) / 1000
        text = f"build {record.id} is over after {seconds:.1f} s: {record.documents_total:,} documents"
        return [*self._book.finish(record), Note("info", "build-ready", record.id, text)]

    def rebuilt(self, record: BuildRecord, now: int) -> list[Instruction]:
        """End a rebuild: its slices serve again."""
        indexes = self._book.indexes(record)
        topics = tuple(self._book.dictionary.topics.backfill(index.id, record.id) for index in indexes)
        record = self._book.move(record, "ready", finished_at=now, documents_done=record.documents_total)
        text = f"{words(record, indexes)} serve again, {(now - record.started_at) / 1000:.1f} s after build "
        text += f"{record.id} began"
        note = Note("info", "slices-rebuilt", record.id, text)
        return [DeleteTopics(topics), *self._book.finish(record), note]


def words(record: BuildRecord, indexes: list[IndexRecord]) -> str:
    """The slices of a rebuild, for people."""
    return " and ".join(
        f"slices {', '.join(map(str, record.slices_of(index)))} of {index.name}" for index in indexes
    )
