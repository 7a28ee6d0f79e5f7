"""Stand-ins for projectors, indexer nodes and Spark drivers, for tests of the coordinator alone.

They speak by the real messages over the real broker, and do nothing else: the projector acknowledges what it
is told to, nodes acknowledge every timestamp for every slice that is placed on them.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from keytide.kafka.topics import CatalogReader, TopicReader, producer
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.model.topics import Topics
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings
from keytide.wire.messages import (
    Acknowledged,
    Activated,
    BuildProgress,
    Message,
    NodeHeartbeat,
    PartitionProgress,
    Progress,
    Published,
    SliceStatus,
    StabilityTimestamp,
    decode,
    encode,
)

HEARTBEAT_S = 0.1

DRIVER = """
import os, sys, time
with open(sys.argv[1], "a") as out:
    print(os.getpid(), *sys.argv[2:], file=out)
while True:
    time.sleep(1)
"""
"""A driver that writes its process id and arguments to a file, and runs until it is stopped."""


class FakeCluster:
    """One projector over one keyspace, and indexer nodes.

    Attributes:
        acked: next offset by source partition that the projector reports. After a rollback it begins again
            where that went back to, like every projector: else it would report what was lost as its own.
        stamps: (offset in control, message) of every timestamp heard, in order.
        published: every common number heard.
        silent: nodes that say nothing for now.
        states: slice number -> state in heartbeats, LIVE when not named.
        horizon: queue horizon of every slice.
    """

    def __init__(
        self, settings: Settings, keyspace: str, acked: dict[int, int], nodes: tuple[str, ...]
    ) -> None:
        self.keyspace = keyspace
        self.acked = dict(acked)
        self.stamps: list[tuple[int, StabilityTimestamp]] = []
        self.published: list[Published] = []
        self.silent: set[str] = set()
        self.states: dict[int, str] = {}
        self.horizon = -1
        self._nodes = nodes
        self._begun = 0
        self._held: dict[str, int] = {}
        self._topics = Topics(settings.cluster)
        self._catalog = CatalogReader(settings)
        self._catalog.start()
        self._producer = producer(settings)
        self._control = TopicReader(settings, self._topics.control, {0: 0})
        self._stopping = threading.Event()
        self.failures: list[BaseException] = []
        self._catalog.hand_over()
        self._control.hand_over()
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._control.close()
        self._catalog.close()

    def report(self, message: Message) -> None:
        """Send something to the coordinators."""
        with self._sending:
            self._producer.produce(self._topics.reports, encode(message))
            self._producer.poll(0)
            self._producer.hand_over()

    def driver(self, build: str, state: str, batches: int, reached: dict[int, int]) -> None:
        """Speak as the driver of a build."""
        timestamp = Timestamp.of(reached)
        message = BuildProgress(
            build,
            "run",
            state,
            batches,
            timestamp,
            Timestamp(),
            sum(reached.values()),
            {},
            "",
            now_ms(),
            now_ms(),
            protocol=SPOKEN,
        )
        self.report(message)
        with self._sending:
            self._producer.flush(10)
            self._producer.hand_over()

    def _run(self) -> None:
        try:
            beat = 0.0
            while not self._stopping.is_set():
                self._catalog.poll()
                for record in self._control.poll(0.01):
                    self._hear(record.offset() or 0, decode(record.value() or b""))
                if time.monotonic() - beat >= HEARTBEAT_S:
                    beat = time.monotonic()
                    self._beat()
        except BaseException as error:
            self.failures.append(error)
            raise

    def _hear(self, number: int, message: Message) -> None:
        if isinstance(message, Published):
            self.published.append(message)
        elif isinstance(message, StabilityTimestamp):
            self.stamps.append((number, message))
            for node in self._nodes:
                slices = self._slices(node)
                if slices and node not in self.silent and message.incarnation >= self._incarnation():
                    self._held[node] = number
                    self.report(Acknowledged(node, message.keyspace, message.incarnation, number, slices))

    def _incarnation(self) -> int:
        keyspace = self._catalog.catalog.keyspace(self.keyspace)
        return keyspace.incarnation if keyspace else 0

    def _slices(self, node: str) -> list[tuple[str, int]]:
        return [
            (index.id, number)
            for index in self._catalog.catalog.indexes()
            for number, placed in enumerate(index.placement)
            if node in placed
        ]

    def _beat(self) -> None:
        keyspace = self._catalog.catalog.keyspace(self.keyspace)
        if keyspace is not None:
            if keyspace.incarnation != self._begun:
                self._begun = keyspace.incarnation
                rollbacks = self._catalog.catalog.rollbacks(self.keyspace)
                back = rollbacks[-1].timestamp if rollbacks else Timestamp()
                self.acked = {partition: back.offset(partition) for partition in self.acked}
            self.send_progress(keyspace.version, keyspace.topic_id, keyspace.incarnation)
            for partition, offset in self.acked.items():
                self.report(Activated(self.keyspace, "p1", partition, keyspace.version, offset, 0))
        for node in self._nodes:
            if node not in self.silent:
                number = self._held.get(node, -1)
                slices = [
                    SliceStatus(
                        index,
                        one,
                        self.states.get(one, "LIVE"),
                        "",
                        Timestamp.of(self.acked),
                        number,
                        -1,
                        10,
                        100,
                        1,
                        0,
                        max(0, self.horizon),
                        0,
                        0,
                        incarnation=keyspace.incarnation if keyspace else 0,
                        queue_horizon=self.horizon,
                    )
                    for index, one in self._slices(node)
                ]
                self.report(
                    NodeHeartbeat(
                        node,
                        f"http://127.0.0.1/{node}",
                        1,
                        now_ms(),
                        slices,
                        1,
                        1 << 40,
                        0,
                        protocol=SPOKEN,
                    )
                )

    def send_progress(self, version: int, topic_id: str, incarnation: int = 0) -> None:
        """The projector's progress as it is now."""
        partitions = [
            PartitionProgress(partition, offset, 0, offset, now_ms(), version)
            for partition, offset in self.acked.items()
        ]
        documents = sum(self.acked.values())
        self.report(Progress(self.keyspace, "p1", topic_id, incarnation, partitions, documents, {}, SPOKEN))


def started_drivers(file: Path) -> list[tuple[int, str]]:
    """(process id, build) of each start of the fake driver."""
    if not file.exists():
        return []
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(int(line[0]), line[-1]) for line in lines]
