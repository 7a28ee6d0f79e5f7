"""The simulated Kafka: the source, the queues, control, and the projectors' group."""

from __future__ import annotations

from dataclasses import dataclass, field

from keytide.messages import Published, StabilityTimestamp
from tests.simulation.schedule import Schedule
from tests.simulation.wire import Version

PARTITIONS = 2
SLICES = 2
SNAPSHOTS_KEPT = 3
IDS = tuple(b"doc%d" % number for number in range(9))
HOT = 4
"""Most writes go to the first few ids; what goes wrong with the others is not soon written over."""
KEYS = (b"k0", b"k1", b"k2", b"k3", b"k4")
SliceName = tuple[str, int]


@dataclass(slots=True)
class Topics:
    """Everything that survives every crash.

    Attributes:
        history: by partition, by offset: all versions ever written.
        alive: offsets that the cleaner has left.
        mutations, backfill: (index, slice) -> records.
        control: records; the place in the list is the number.
        committed: by partition (offset, catalog version).
        owner: by partition (projector, generation).
        activations: (catalog version, partition) -> offset: the low-watermark (R13).
    """

    schedule: Schedule
    history: list[list[Version]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    alive: list[set[int]] = field(default_factory=lambda: [set() for _ in range(PARTITIONS)])
    mutations: dict[SliceName, list[bytes]] = field(default_factory=dict)
    backfill: dict[SliceName, list[bytes]] = field(default_factory=dict)
    control: list[StabilityTimestamp | Published] = field(default_factory=list)
    committed: list[tuple[int, int]] = field(default_factory=lambda: [(0, 1)] * PARTITIONS)
    owner: list[tuple[str, int]] = field(default_factory=lambda: [("", 0)] * PARTITIONS)
    activations: dict[tuple[int, int], int] = field(default_factory=dict)

    def ends(self) -> dict[int, int]:
        return {partition: len(versions) for partition, versions in enumerate(self.history)}

    def write(self) -> None:
        """A producer writes: an insert, update, move, delete, or something that cannot be indexed."""
        chance = self.schedule.random
        docid = chance.choice(IDS[:HOT] if chance.random() < 0.7 else IDS)
        partition = IDS.index(docid) % PARTITIONS
        offset = len(self.history[partition])
        kind = chance.random()
        keys: tuple[bytes, ...] = ()
        if kind > 0.2:
            keys = tuple(sorted(chance.sample(KEYS, chance.randint(1, 2))))
        value = b"%d" % (offset if chance.random() < 0.5 else 0)
        self.history[partition].append(Version(partition, offset, docid, keys, 0.2 < kind < 0.27, value))
        self.alive[partition].add(offset)

    def clean(self) -> None:
        """Compaction removes one superseded version; `min.compaction.lag.ms` keeps it below what every
        projector has committed (R27)."""
        partition = self.schedule.random.randrange(PARTITIONS)
        limit = self.committed[partition][0]
        versions = self.history[partition]
        newest = {versions[offset].id: offset for offset in sorted(self.alive[partition]) if offset < limit}
        superseded = [
            offset
            for offset in sorted(self.alive[partition])
            if offset < limit and offset < newest[versions[offset].id]
        ]
        if superseded:
            self.alive[partition].discard(self.schedule.random.choice(superseded))

    def read(self, partition: int, start: int, end: int) -> list[Version]:
        """What a consumer gets of [start, end) now."""
        return [self.history[partition][o] for o in range(start, end) if o in self.alive[partition]]

    def commit(self, partition: int, generation: int, offset: int, version: int) -> bool:
        """A group commit; False when another generation has taken over (fenced)."""
        if self.owner[partition][1] != generation:
            return False
        self.committed[partition] = (offset, version)
        self.activations.setdefault((version, partition), offset)
        return True
