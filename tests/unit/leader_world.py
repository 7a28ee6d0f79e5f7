"""A leader with a dictionary that is written, a clock, and everything that speaks to it, for unit tests."""

from __future__ import annotations

from typing import Any

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import (
    BoundWritten,
    BuildPrepared,
    ControlTail,
    DictionaryWritten,
    Event,
    Issued,
    Reported,
    RollbackWritten,
    SourceSampled,
    Tick,
    TopicSeen,
)
from coordinator.core.instructions import (
    Broadcast,
    ConfirmBound,
    ConfirmRollback,
    ConfirmTopic,
    Instruction,
    Note,
    SendEnds,
    StartDriver,
    Write,
)
from coordinator.core.limits import CoreLimits
from coordinator.core.source_status import SourceStatus
from coordinator.leader import Leader
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import (
    BuildRecord,
    IndexRecord,
    KeyspaceRecord,
    TermRecord,
    decode_record,
    encode_record,
)
from keytide.definition.statement import parse_statement
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import (
    Acknowledged,
    Activated,
    BuildProgress,
    NodeHeartbeat,
    PartitionProgress,
    Progress,
    Published,
    StabilityTimestamp,
)


def facts(
    high: tuple[int, ...] = (100, 50),
    stable: tuple[int, ...] | None = None,
    earliest: tuple[int, ...] = (0, 0),
    topic_id: str = "t1",
    at: int = 0,
    **other: Any,
) -> SourceStatus:
    def by_partition(offsets: tuple[int, ...]) -> dict[int, int]:
        return dict(enumerate(offsets))

    values: dict[str, Any] = {
        "compacted": False,
        "delete_retention_ms": 0,
        "min_compaction_lag_ms": 0,
        **other,
    }
    return SourceStatus(
        keyspace="people",
        topic_id=topic_id,
        earliest=by_partition(earliest),
        stable=by_partition(stable or high),
        high=by_partition(high),
        sampled_at=at,
        **values,
    )


class World:
    """A leader, the dictionary as it is written, and a clock."""

    def __init__(self, limits: BuildLimits | None = None, catalog: Catalog | None = None) -> None:
        self.limits = limits or BuildLimits()
        self.written: dict[str, bytes] = {}
        self.now = 1_000_000
        self.number = 0
        self.broadcasts: list[StabilityTimestamp | Published] = []
        self.places: dict[int, StabilityTimestamp] = {}
        self.notes: list[Note] = []
        self.zones: dict[str, str] = {}
        self.roles: dict[str, tuple[str, ...]] = {}
        self.speaks: dict[str, int] = {}
        """Node or projector -> the version of the protocol that it speaks, for those with an earlier one."""
        self.topic_id = ""
        """Which topic has the keyspace's name; "" for the one that it has in the dictionary."""
        catalog = catalog or Catalog()
        catalog.put("term", TermRecord(1, "test", 0))
        catalog.offset = self.offset = max(catalog.offset, 7)
        self.leader = Leader(catalog, "kt", 1, CoreLimits(), self.limits)

    def take(self, instructions: list[Instruction]) -> list[Instruction]:
        """Write what is to be written, deliver timestamps; what else there is to do."""
        rest: list[Instruction] = []
        for one in instructions:
            if isinstance(one, Write):
                assert not rest or not any(isinstance(r, StartDriver | SendEnds) for r in rest)
                for key, record in one.records:
                    if record is None:
                        del self.written[key]
                    else:
                        self.written[key] = encode_record(record)
                end = self.offset + len(one.records)
                self.offset = end + 1  # the marker
                rest += self.take(self.leader.handle(DictionaryWritten(end, self.now)))
            elif isinstance(one, Broadcast):
                if isinstance(one.message, StabilityTimestamp):
                    self.number += 1
                    self.places[self.number] = one.message
                    rest += self.take(self.leader.handle(Issued(one.message, self.number, self.now)))
                self.broadcasts.append(one.message)
            elif isinstance(one, ConfirmTopic):
                seen = TopicSeen(one.keyspace, one.ask, self.topic_id or self.known().topic_id, "", self.now)
                rest += self.take(self.leader.handle(seen))
            elif isinstance(one, ConfirmRollback):
                done = RollbackWritten(one.keyspace, one.incarnation, self.now)
                rest += self.take(self.leader.handle(done))
            elif isinstance(one, ConfirmBound):
                rest += self.take(self.leader.handle(BoundWritten(one.keyspace, one.bound, self.now)))
            elif isinstance(one, Note):
                self.notes.append(one)
                rest.append(one)
            else:
                rest.append(one)
        return rest

    def handle(self, event: Event) -> list[Instruction]:
        """What an event leads to, notes left out."""
        return [one for one in self.take(self.leader.handle(event)) if not isinstance(one, Note)]

    def tick(self, ms: int = 20) -> list[Instruction]:
        self.now += ms
        return self.handle(Tick(self.now))

    def node(self, *names: str) -> None:
        for name in names:
            zone, roles = self.zones.get(name, ""), self.roles.get(name, ())
            speaks = self.speaks.get(name, SPOKEN)
            beat = NodeHeartbeat(name, f"http://{name}", 1, self.now, [], 0, 0, 0, zone, roles, speaks)
            self.handle(Reported(beat, self.now))

    def sql(self, text: str, source: SourceStatus | None = None) -> list[Instruction]:
        answer = self.leader.commands.execute(parse_statement(text), source or facts(), self.now)
        return [one for one in self.take(answer.instructions) if not isinstance(one, Note)]

    def index(self, name: str) -> IndexRecord:
        """The index as it is written."""
        for key, value in self.written.items():
            record = decode_record(key, value)
            if isinstance(record, IndexRecord) and record.name == name:
                return record
        raise KeyError(name)

    def build(self, id_: str) -> BuildRecord:
        """The build as it is written."""
        record = decode_record(f"build/{id_}", self.written[f"build/{id_}"])
        assert isinstance(record, BuildRecord)
        return record

    def keyspace(self) -> KeyspaceRecord:
        record = decode_record("keyspace/people", self.written["keyspace/people"])
        assert isinstance(record, KeyspaceRecord)
        return record

    def prepared(self, build: str, source: SourceStatus | None = None) -> list[Instruction]:
        return self.handle(BuildPrepared(build, source or facts(at=self.now), self.now))

    def activate(self, version: int, *offsets: int) -> None:
        for partition, offset in enumerate(offsets):
            message = Activated("people", "p1", partition, version, offset, 0)
            self.handle(Reported(message, self.now))

    def driver(
        self, build: str, state: str, batches: int = 0, reached: tuple[int, ...] = (), **other: Any
    ) -> list[Instruction]:
        message = BuildProgress(
            build=build,
            run="r1",
            state=state,
            batches=batches,
            timestamp=other.pop("timestamp", Timestamp.of(dict(enumerate(reached)))),
            earliest=Timestamp(),
            documents=other.pop("documents", 0),
            chunk_entries={},
            error=other.pop("error", ""),
            sent_at=self.now,
            **{"protocol": SPOKEN, **other},
        )
        return self.handle(Reported(message, self.now))

    def progress(self, version: int, *acked: int) -> list[Instruction]:
        partitions = [
            PartitionProgress(p, offset, 0, offset, self.now, version) for p, offset in enumerate(acked)
        ]
        known = self.known()
        speaks = self.speaks.get("p1", SPOKEN)
        message = Progress(
            "people", "p1", known.topic_id, known.incarnation, partitions, 0, {}, protocol=speaks
        )
        return self.handle(Reported(message, self.now))

    def known(self) -> KeyspaceRecord:
        """The keyspace as the leader means it to be."""
        keyspace = self.leader.dictionary.catalog.keyspace("people")
        assert keyspace is not None
        return keyspace

    def common(self, *acked: int, nodes: tuple[str, ...] = ("n1", "n2")) -> list[Instruction]:
        """A timestamp at `acked`, and its acknowledgement by all slices on these nodes."""
        self.progress(self.known().version, *acked)
        done = self.tick(300)
        stream = self.leader.stability.streams["people"]
        assert stream.content is not None
        assert stream.content.offsets() == dict(enumerate(acked))
        for node in nodes:
            slices = [
                (index.id, slice_number)
                for index in self.leader.dictionary.catalog.indexes()
                for slice_number, placed in enumerate(index.placement)
                if node in placed
            ]
            message = Acknowledged(node, "people", self.known().incarnation, stream.number, slices)
            done += self.handle(Reported(message, self.now))
        return done

    def restart(
        self,
        tail: tuple[tuple[int, StabilityTimestamp], ...] = (),
        common: tuple[Published, ...] = (),
    ) -> tuple[World, list[Instruction]]:
        """Another leader that knows only what was written, and the tail of the control topic."""
        catalog = Catalog()
        for offset, (key, value) in enumerate(self.written.items()):
            catalog.apply(key, value, offset)
        catalog.offset = 1_000
        other = World(self.limits, catalog)
        other.written, other.now = dict(self.written), self.now
        other.number, other.places, other.broadcasts = self.number, dict(self.places), list(self.broadcasts)
        return other, [
            one
            for one in other.take(other.leader.handle(ControlTail(tail, common, self.now)))
            if not isinstance(one, Note)
        ]


CREATE = "CREATE INDEX by_city ON people (city) WITH (slices=3)"
MUTATIONS, BACKFILL = "kt.mutations.by_city-7", "kt.backfill.by_city-7.b8"


def started(world: World) -> World:
    """Index by_city-7 in build b8, in BACKFILL."""
    world.sql(CREATE)
    world.node("n1", "n2")
    world.tick()
    world.prepared("b8")
    return world


def backfilled(world: World) -> World:
    """The same in CATCHUP; the source ended at 130, 60."""
    started(world)
    world.activate(1, 120, 40)
    world.driver("b8", "PASSED", 2, (125, 60))
    world.handle(SourceSampled(facts((130, 60)), "b8", world.now))
    return world
