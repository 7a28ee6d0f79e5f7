"""Nodes that say what they have of an index with several copies, and the leader that decides on them.

The nodes do what they are told: a copy that the dictionary names for a node is filled, falls behind, is lost
or stands still as a test says. What they have they tell every half second, with up to where they have read
the dictionary; what they hold of each number they acknowledge at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import ControlTail, Reported, SourceSampled
from coordinator.core.instructions import Instruction
from coordinator.core.limits import CoreLimits
from coordinator.core.slice_loads import LoadLimits
from coordinator.leader import Leader
from coordinator.statements.auto_split import AutoSplitLimits
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord
from keytide.catalog.records import (
    IndexRecord,
    KeyspaceRecord,
    Record,
    decode_record,
    encode_record,
    record_key,
)
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import Acknowledged, NodeHeartbeat, Published, SliceStatus
from tests.unit.leader_world import World, facts

INDEX = "by_city-1"
STEP_MS, BEAT_MS = 100, 500
SOURCE = (50, 60)
LIMITS = CoreLimits(trim_interval_ms=1_000)


@dataclass
class Copy:
    """What a node has of a slice.

    Attributes:
        follows: it acknowledges what is issued.
    """

    id: str = ""
    state: str = "LIVE"
    horizon: int = 10
    position: int = 20
    number: int = -1
    incarnation: int = 0
    bytes: int = 0
    writes: int = -1
    reads: int = 0
    follows: bool = True
    leases: int = 0
    entries: int = 0
    timestamp: Timestamp = field(default_factory=Timestamp)


@dataclass
class Node:
    """A node.

    Attributes:
        up: it says something.
        read: up to where it has read the dictionary; None: always to its end.
    """

    name: str
    copies: dict[int, Copy] = field(default_factory=dict)
    up: bool = True
    started_at: int = 1
    read: int | None = None
    disk_free: int = 1 << 40


def catalog_of(placement: list[list[str]], replicas: int) -> Catalog:
    """One index, READY, whose copies a build has filled."""
    statement = parse_statement(f"CREATE INDEX by_city ON people (city) WITH (slices={len(placement)})")
    assert isinstance(statement, CreateIndex)
    records: list[Record] = [
        KeyspaceRecord("people", "t1", len(SOURCE), 1, bound=dict.fromkeys(range(len(SOURCE)), 1 << 40)),
        IndexRecord(
            id=INDEX,
            definition=replace(statement.definition, replicas=replicas),
            state="READY",
            version=1,
            placement=placement,
            build="b0",
            created_at=0,
        ),
    ]
    catalog = Catalog()
    for record in records:
        catalog.put(record_key(record), record)
    return catalog


class CopiesWorld(World):
    """A leader, and nodes n1, n2, ... of which the first ones hold an index.

    Args:
        placement: nodes of each slice.
        replicas: what the index asks for.
        count: how many nodes there are.
        limits: of the leader.

    Attributes:
        busy: the source is written to.
        load_limits: when a slice is hot.
        auto_split_limits: when it is parted by itself.
    """

    load_limits = LoadLimits()
    auto_split_limits = AutoSplitLimits()

    def __init__(
        self,
        placement: list[list[str]],
        replicas: int = 1,
        count: int = 3,
        limits: CoreLimits = LIMITS,
        build_limits: BuildLimits | None = None,
    ) -> None:
        catalog = catalog_of(placement, replicas)
        super().__init__(build_limits, catalog)
        self.stability_limits = limits
        self.busy = False
        self.read = SOURCE[0]
        self.nodes = {name: Node(name) for name in (f"n{number + 1}" for number in range(count))}
        for number, names in enumerate(placement):
            for name in names:
                self.nodes[name].copies[number] = Copy()
        self.written = {
            key: encode_record(record) for key, record in catalog.records.items() if key != "term"
        }
        self.begin(catalog)

    def begin(self, catalog: Catalog, term: int = 1, heard: bool = True) -> None:
        """A leader that knows the dictionary and the last timestamp only. `heard`: projectors report at
        once."""
        self.leader = Leader(
            catalog,
            "kt",
            term,
            self.stability_limits,
            self.limits,
            self.load_limits,
            self.auto_split_limits,
        )
        last = max(self.places, default=-1)
        common = [one for one in self.broadcasts if isinstance(one, Published)][-1:]
        tail = ControlTail(((last, self.places[last]),) if last >= 0 else (), tuple(common), self.now)
        self.beat_at = self.acknowledged = 0
        self.take(self.leader.handle(tail))
        if heard:
            self.progress(1, self.read, SOURCE[1])
        self.handle(SourceSampled(facts(SOURCE), "", self.now))

    def succeed(self, heard: bool = True) -> None:
        """The leader is replaced. (Reports that nobody has read yet are lost on it.)"""
        catalog = Catalog()
        for offset, (key, value) in enumerate(self.written.items()):
            catalog.apply(key, value, offset)
        self.offset += 2  # its claim, and the marker
        catalog.offset = self.offset
        self.begin(catalog, self.leader.term + 1, heard)

    # --- time -----------------------------------------------------------------------------------------------

    def go(self, ms: int) -> list[Instruction]:
        """Time passes; what the leader orders meanwhile."""
        out: list[Instruction] = []
        for _ in range(0, ms, STEP_MS):
            if self.busy:
                self.read += 1
                out += self.progress(1, self.read, SOURCE[1])
            out += self.tick(STEP_MS)
            if self.now - self.beat_at >= BEAT_MS:
                self.beat_at = self.now
                out += self.beat()
            out += self.acknowledge()
        return out

    def until(self, what: Callable[[], bool], ms: int = 10_000) -> None:
        """Time passes until something is so."""
        for _ in range(0, ms, STEP_MS):
            if what():
                return
            self.go(STEP_MS)
        assert what()

    def beat(self, *names: str) -> list[Instruction]:
        """Heartbeats of nodes that are up, or of these."""
        out: list[Instruction] = []
        for node in [self.nodes[name] for name in names or self.nodes]:
            if not node.up:
                continue
            statuses = [self.status(number, copy) for number, copy in sorted(node.copies.items())]
            read = self.offset if node.read is None else node.read
            beat = NodeHeartbeat(
                node=node.name,
                url=f"http://{node.name}",
                started_at=node.started_at,
                sent_at=self.now,
                slices=statuses,
                memory=0,
                disk_free=node.disk_free,
                catalog_offset=read,
                zone=self.zones.get(node.name, ""),
                roles=self.roles.get(node.name, ()),
                protocol=self.speaks.get(node.name, SPOKEN),
            )
            out += self.handle(Reported(beat, self.now))
        return out

    def status(self, number: int, copy: Copy) -> SliceStatus:
        """What a node says of a copy."""
        return SliceStatus(
            index=INDEX,
            slice=number,
            state=copy.state,
            reason="its folder is gone" if copy.state == "LOST" else "",
            timestamp=copy.timestamp,
            number=copy.number if copy.state == "LIVE" else -1,
            batch=-1,
            entries=copy.entries,
            bytes=copy.bytes,
            skipped=0,
            queue_documents=0,
            queue_position=copy.position,
            gap_drops=0,
            foreign_partition_ids=0,
            incarnation=copy.incarnation,
            queue_horizon=copy.horizon,
            copy=copy.id,
            leases=copy.leases,
            writes=copy.writes,
            reads=copy.reads,
        )

    def acknowledge(self) -> list[Instruction]:
        """Every copy that follows acknowledges every number that was issued since."""
        out: list[Instruction] = []
        for number in range(self.acknowledged + 1, self.number + 1):
            self.acknowledged = number
            for node in self.nodes.values():
                mine = [
                    slice_number
                    for slice_number, copy in node.copies.items()
                    if copy.follows and copy.state == "LIVE" and node.up
                ]
                for slice_number in mine:
                    node.copies[slice_number].number = number
                out += self.holds(node.name, number, *mine)
        return out

    def holds(self, name: str, number: int, *slices: int) -> list[Instruction]:
        """Copies on a node acknowledge a number."""
        keys = [(INDEX, slice_number) for slice_number in slices]
        message = Acknowledged(name, "people", self.known().incarnation, number, keys)
        return self.handle(Reported(message, self.now)) if keys else []

    # --- what becomes of copies -----------------------------------------------------------------------------

    def lose(self, name: str, number: int = 0) -> None:
        """A node says that its copy, the one that the dictionary names, is LOST."""
        self.nodes[name].copies[number].state = "LOST"

    def fill(self, record: CopyRecord, state: str = "LIVE") -> Copy:
        """A node has filled the copy that a record names, or fills it."""
        copy = Copy(record.id, state, horizon=record.need, position=record.need)
        self.nodes[record.node].copies[record.slice] = copy
        return copy

    # --- what is written ------------------------------------------------------------------------------------

    def records(self) -> list[CopyRecord]:
        """Copies that are being filled, as it is written."""
        found = [decode_record(key, value) for key, value in self.written.items()]
        return [one for one in found if isinstance(one, CopyRecord)]

    def record(self) -> CopyRecord:
        """The only one."""
        (record,) = self.records()
        return record

    def placement(self, number: int = 0) -> list[str]:
        """Nodes whose copies of a slice count."""
        return self.index("by_city").placement[number]

    def told(self, kind: str) -> list[str]:
        """Texts of all events of a kind."""
        return [note.text for note in self.notes if note.kind == kind]

    @property
    def published(self) -> int:
        """The newest published number, -1 before the first."""
        told = [one for one in self.broadcasts if isinstance(one, Published)]
        return told[-1].numbers.get(INDEX, -1) if told else -1
