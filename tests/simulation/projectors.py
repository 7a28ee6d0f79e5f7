"""A projector: the product's shell, turn by turn, on the simulated Kafka.

On a share of the seeds the real pipeline makes the messages, else `packing` makes the same ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.kafka.admin import KafkaUnavailableError
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Place
from keytide.settings.settings import Settings, load_settings
from keytide.wire.messages import Segment, SegmentBatch, encode
from keytide.wire.parts import split
from projector.core.pipeline import MessageLimits, Outgoing, Pipeline
from projector.core.projection import KeyspacePlan, SourceBatch
from projector.service.projector import Projector
from projector.service.waits import Waits
from tests.simulation.consumers import SimConsumer
from tests.simulation.kafka import CLUSTER, Reader
from tests.simulation.packing import segments_of
from tests.simulation.producers import TOPICS as TOPICS
from tests.simulation.producers import LaterPart, SimProducer
from tests.simulation.source import Layout, layout_of, projection_plan, spatial

if TYPE_CHECKING:
    from tests.simulation.world import World

_NEVER = 1 << 60
PART_BYTES = 150
SPATIAL_PART_BYTES = 600
"""Entries of geometries are larger, and a document has several: their messages too have a few parts only,
which come within the time that a slice waits for them."""
INTERVAL_MS = 100
WAITS = Waits(
    hold=0.15,
    seek_limit=0.6,
    first_backoff=0.02,
    longest_backoff=0.2,
    revoke=0.06,
    look_up_again=0.1,
    brokers_lost=0.5,
)
"""Scaled to a world whose storm is over after three seconds."""
"""Between commits, and between heartbeats."""
LIMITS = {
    "batch_documents": 64,
    "linger_ms": 0,
    "in_flight_batches": 4,
    "commit_interval_ms": INTERVAL_MS,
    "heartbeat_ms": INTERVAL_MS,
    "queue_unavailable_s": 1,
}


@cache
def settings() -> Settings:
    return load_settings(cluster=CLUSTER, projector=LIMITS)


@dataclass(slots=True)
class Life:
    """One start of a projector: what it has sent may land until `cut`, also after it died."""

    name: str
    sender: str
    cut: int = _NEVER


class SimProjector:
    """One projector process and its successors.

    Attributes:
        ahead: of the world's time, its clock, in ms.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.ahead = 0
        self._lives = 0
        self._begin()

    def _begin(self) -> None:
        self._lives += 1
        world = self.world
        world.mishaps.begin(self.name)
        self.life = Life(self.name, f"{self.name}.{self._lives}")
        kind = SimPipeline if world.plan.real_pipeline else QuickPipeline
        self.shell = SimShell(
            settings(),
            SimTransport(world, self.life),
            kind(world, self.life.sender),
            clock=lambda: (world.clock.now + self.ahead) / 1000,
            now_ms=lambda: world.mishaps.now(self.name),
            waits=WAITS,
        )
        self.shell.start(Flag())

    def crash(self) -> None:
        """Die with sends under way, or leave in order, and start again at once."""
        if self.world.storm and self.world.chance.below(4) == 0:
            self.shell.close()
        self.die()

    def die(self) -> None:
        """Be killed, and start again at once."""
        self.life.cut = self.world.clock.now + self.world.chance.below(60)
        self._begin()
        self.world.note("crash", self.life.sender)

    def turn(self) -> None:
        """The shell's own loop, once."""
        self.shell.turn()

    def tick(self) -> None:
        """A turn in which all is due that happens by time."""
        self.ahead += INTERVAL_MS
        self.shell.turn()


class SimShell(Projector):
    """The product's shell; it counts, and shows Prometheus nothing (a tenth of a turn)."""

    def _rewound(self, polls: int) -> None:
        assert isinstance(self._pipeline, SimPipeline)
        self._pipeline.world.seen["rewound"] += 1
        super()._rewound(polls)

    def _show(self, catalog: Catalog) -> None:
        pass


class SimTransport:
    """`projector.service.transport.Transport`."""

    def __init__(self, world: World, life: Life) -> None:
        self._world, self._life = world, life

    def consumer(self, group: str, **options: Any) -> SimConsumer:
        return SimConsumer(self._world, self._life, options["on_commit"])

    def producer(self, **options: Any) -> SimProducer:
        return SimProducer(self._world, self._life)

    def catalog(self) -> SimCatalog:
        return SimCatalog(self._world)

    def identity(self) -> SimIdentity:
        return SimIdentity()

    def log_history(
        self,
        topic: str,
        timeout: float,
        *,
        down_to: Mapping[int, int] | None = None,
        partitions: Iterable[int] | None = None,
    ) -> LogHistory:
        world = self._world
        if world.fault("late-answers", 0.1):
            raise KafkaUnavailableError("nobody answers")
        source = world.kafka.source
        if source.lost and world.fault("late-answers", 0.1):  # leaders that do not know yet of the next ones
            world.seen["old leader"] += 1
            return source.history_before()
        return source.history()

    def partings(
        self, topic: str, history: LogHistory, places: Mapping[int, Place], timeout: float
    ) -> dict[int, Place]:
        found = history.diverging(places)
        for partition, parting in list(found.items()):
            place, known = places[partition], history.partitions[partition]
            end = place.offset - place.tail
            if end > parting.offset or place.offset > known.high:
                continue
            bare = not self._world.kafka.source.logs[partition].read(end, place.offset)
            if bare and known.parting(Place(end, place.epoch)) is None:
                del found[partition]
        return found


class SimCatalog:
    """`projector.service.transport.CatalogFollower`: reads some of what there is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reader = Reader(world.kafka)
        self.catalog = self._reader.catalog

    def start(self, timeout: float = 0.0) -> Catalog:
        self._reader.read()
        return self.catalog

    def poll(self, timeout: float = 0.0) -> Collection[object]:
        world = self._world
        return [self] if self._reader.read(world.chance.below(6) if world.storm else 1 << 30) else []

    def close(self) -> None:
        pass


class SimIdentity:
    """`projector.service.transport.IdentityCheck`: it is always the same Kafka."""

    def look(self) -> None:
        pass

    def open(self) -> None:
        pass

    def check(self) -> None:
        pass

    def confirmed(self, since: int) -> bool:
        return True

    def close(self) -> None:
        pass


class SimPipeline(Pipeline):
    """The product's pipeline, with small limits."""

    def __init__(self, world: World, sender: str) -> None:
        super().__init__(sender, MessageLimits(part_bytes(), part_bytes()))
        self.world = world

    def suspend(self, index: str) -> None:
        super().suspend(index)
        self.world.seen["suspended"] += 1


def part_bytes() -> int:
    """How large a part of a message is."""
    return SPATIAL_PART_BYTES if spatial() else PART_BYTES


class QuickPipeline(SimPipeline):
    """Makes the same segments by `packing`; a message goes in parts now and then, whatever its size."""

    def _plan(self, indexes: Collection[IndexRecord]) -> KeyspacePlan:
        return projection_plan(self.world.kafka.source.layout)

    def _segments(
        self, plan: KeyspacePlan, indexes: list[IndexRecord], batches: list[SourceBatch]
    ) -> dict[str, list[list[Segment]]]:
        ways = {index.id: (layout_of(index), index.hears_by_id) for index in indexes}
        made = {way: self._by_slice(batches, *way) for way in set(ways.values())}
        return {id_: made[way] for id_, way in ways.items()}

    def _by_slice(self, batches: list[SourceBatch], layout: Layout, by_id: bool) -> list[list[Segment]]:
        made = [segments_of(batch, layout, by_id) for batch in batches]
        return [list(some) for some in zip(*made, strict=True)]

    def _encode(self, message: SegmentBatch) -> list[Outgoing]:
        data = encode(message)
        if not self.world.fault("parts", 0.4):
            return [Outgoing(message.index, message.slice, data)]
        self._parts += 1
        pieces = split(data, part_bytes(), self.sender, self._parts)
        self.world.seen["parts"] += len(pieces) > 1
        return [
            Outgoing(message.index, message.slice, LaterPart(piece) if at else piece)
            for at, piece in enumerate(pieces)
        ]
