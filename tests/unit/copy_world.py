"""A leader with an index that has several copies of each slice, and what its nodes say of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import Reported, SourceSampled
from coordinator.core.instructions import Instruction
from keytide.catalog.copies import CopyRecord
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import NodeHeartbeat, SliceStatus
from tests.unit.leader_world import World, facts

INDEX = "by_city-7"
NODES = ("n1", "n2", "n3")


class CopyWorld(World):
    """Index by_city-7 of two slices on three nodes: slice 0 on n1 and n2, slice 1 on n3 and n1.

    Attributes:
        silent: nodes that say nothing.
        says: (node, slice) -> what its status has that others have not.
    """

    def __init__(self, replicas: int = 1, limits: BuildLimits | None = None, options: str = "") -> None:
        super().__init__(limits)
        self.silent: set[str] = set()
        self.says: dict[tuple[str, int], dict[str, Any]] = {}
        self.sql(f"CREATE INDEX by_city ON people (city) WITH (slices=2, replicas={replicas}{options})")
        self.node(*NODES)
        self.tick()

    def status(self, node: str, number: int) -> SliceStatus:
        """What a node says of a slice: LIVE at the newest snapshot, unless `says` has something else."""
        live = SliceStatus(
            index=INDEX,
            slice=number,
            state="LIVE",
            reason="",
            timestamp=Timestamp.of({0: 130, 1: 60}),
            number=self.number or -1,
            batch=-1,
            entries=100 + number,
            bytes=1 << 20,
            skipped=2,
            queue_documents=0,
            queue_position=70,
            gap_drops=0,
            foreign_partition_ids=0,
            incarnation=self.known().incarnation,
            queue_horizon=60,
        )
        return replace(live, **self.says.get((node, number), {}))

    def beat(self) -> list[Instruction]:
        """A heartbeat of every node that is not silent."""
        index, out = self.leader.dictionary.catalog.index(INDEX), list[Instruction]()
        placement = index.placement if index is not None else []
        filling = {(one.node, one.slice) for one in self.leader.dictionary.catalog.copies()}
        for node in NODES:
            if node in self.silent:
                continue
            mine = [n for n, nodes in enumerate(placement) if node in nodes or (node, n) in filling]
            slices = [self.status(node, number) for number in mine]
            zone, roles = self.zones.get(node, ""), self.roles.get(node, ())
            speaks = self.speaks.get(node, SPOKEN)
            beat = NodeHeartbeat(
                node, f"http://{node}", 1, self.now, slices, 0, 1 << 40, 0, zone, roles, speaks
            )
            out += self.handle(Reported(beat, self.now))
        return out

    def live(self, ms: int, step: int = 500) -> list[Instruction]:
        """Time passes; nodes say the same all the while."""
        out: list[Instruction] = []
        for _ in range(0, ms, step):
            out += [*self.beat(), *self.tick(step)]
        return out

    def catch_up(self) -> CopyWorld:
        """Its build has read everything; the source ended at 130, 60."""
        self.prepared("b8")
        self.activate(1, 120, 40)
        self.driver("b8", "PASSED", 2, (125, 60))
        self.handle(SourceSampled(facts((130, 60)), "b8", self.now))
        return self

    def ready(self) -> CopyWorld:
        """READY, and all copies LIVE."""
        self.catch_up()
        self.beat()
        self.common(130, 60, nodes=NODES)
        assert self.index("by_city").state == "READY"
        self.beat()
        return self

    def fill(self, id_: str, number: int, node: str, **other: Any) -> CopyRecord:
        """A copy is being filled."""
        index = self.leader.dictionary.catalog.index(INDEX)
        assert index is not None
        source = index.placement[number][0]
        record = CopyRecord(id_, INDEX, number, node, source, 60, 0, self.now, **other)
        self.leader.dictionary.put(record)
        self.tick()
        return record
