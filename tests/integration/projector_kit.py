"""A cluster of projectors only: metadata written by hand, projector processes, and an independent reader of
the queues.

The reader is what the tests believe: it unpacks the columns with `struct`, obeys the rules of a slice (R9 to
R11: skip what is known, cut what overlaps, drop what lies beyond) and keeps the newest version of every
document.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from deploy.kafka import EmbeddedKafka
from deploy.process import ChildProcess
from keytide.catalog.records import (
    BuildRecord,
    IndexRecord,
    KeyspaceRecord,
    Record,
    encode_record,
    record_key,
)
from keytide.collation import decode_key
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.kafka.admin import admin, create_topic, describe_topics, list_offsets
from keytide.kafka.topics import TopicReader
from keytide.model.timestamp import Timestamp
from keytide.model.topics import Topics
from keytide.settings.settings import load_settings
from keytide.wire.messages import Activated, HistoryLost, Progress, Segment, SegmentBatch, decode
from keytide.wire.parts import Assembler
from tests.integration.three_brokers import ThreeBrokers
from tests.waiting import wait_for

LIMIT_S = 180.0


@dataclass
class Slice:
    """What one queue partition says, read by the rules of a slice."""

    positions: dict[int, int] = field(default_factory=dict)
    """Source partition -> next offset; begins at the first segment heard."""
    starts: dict[int, int] = field(default_factory=dict)
    heard: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(partition, offset) -> document id."""
    newest: dict[bytes, tuple[tuple[int, int], list[list[Any]]]] = field(default_factory=dict)
    """Document id -> (partition, offset) and its keys in this slice."""
    skips: dict[tuple[int, int], str] = field(default_factory=dict)
    beyond: int = 0
    versions: Counter[int] = field(default_factory=Counter)
    senders: set[str] = field(default_factory=set)
    largest: int = 0
    incarnation: int = 0

    def apply(self, batch: SegmentBatch, parts: int) -> None:
        """Take a message in. With a later incarnation everything begins anew: the rollbacks of these tests
        leave nothing."""
        if batch.incarnation < self.incarnation:
            return
        if batch.incarnation > self.incarnation:
            self.incarnation = batch.incarnation
            for known in (self.positions, self.starts, self.heard, self.newest, self.skips):
                known.clear()
        self.versions[batch.version] += 1
        self.senders.add(batch.sender)
        for segment in batch.segments:
            self._apply(segment, parts)

    def _apply(self, segment: Segment, parts: int) -> None:
        p = segment.partition
        at = self.positions.setdefault(p, segment.start)
        self.starts.setdefault(p, segment.start)
        assert segment.start <= segment.end
        if segment.start > at:
            self.beyond += 1
            return
        for offset, id_, keys in unpack(segment, parts):
            assert segment.start <= offset < segment.end
            if offset >= at:
                self.heard[p, offset] = id_
                self.newest[id_] = ((p, offset), keys)
        for skip in segment.skips:
            if skip.offset >= at:
                self.skips[p, skip.offset] = skip.reason
        self.positions[p] = max(at, segment.end)


def unpack(segment: Segment, parts: int) -> Iterable[tuple[int, bytes, list[list[Any]]]]:
    """(offset, document id, keys) of a segment, by `struct` alone."""
    heard, puts = segment.heard, segment.puts
    if heard is None:
        assert puts is None
        return
    offsets = struct.unpack(f"<{heard.count}I", heard.offsets)
    lengths = struct.unpack(f"<{heard.count}B", heard.id_lengths)
    assert len(heard.hashes) == 8 * heard.count
    keys: dict[int, list[list[Any]]] = {}
    if puts is not None:
        at = 0
        ordinals = struct.unpack(f"<{puts.count}I", puts.ordinals)
        for ordinal, length in zip(ordinals, struct.unpack(f"<{puts.count}H", puts.key_lengths), strict=True):
            key, end = decode_key(puts.keys[at : at + length], parts)
            assert end == length
            keys.setdefault(ordinal, []).append(list(key))
            at += length
    at = 0
    for ordinal, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        yield segment.start + offset, heard.ids[at : at + length], keys.get(ordinal, [])
        at += length


class Rig:
    """One cluster name on a shared broker."""

    def __init__(self, kafka: EmbeddedKafka | ThreeBrokers, cluster: str, logs: Path) -> None:
        self.kafka = kafka
        self.settings = load_settings(
            cluster=cluster, data_dir=logs / "data", kafka={"bootstrap": kafka.bootstrap}
        )
        self.topics = Topics(cluster)
        self.admin = admin(self.settings)
        self.logs = logs
        self.children: list[ChildProcess] = []
        self.producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )
        self.reports: list[Progress | Activated | HistoryLost] = []
        create_topic(self.admin, self.topics.metadata, 1, config={"cleanup.policy": "compact"})
        create_topic(self.admin, self.topics.reports, 1)
        self._reports = TopicReader(self.settings, self.topics.reports, {0: 0})

    # --- the coordinator's part

    def put(self, *records: Record) -> None:
        """Write metadata, in order."""
        for record in records:
            self.producer.produce(self.topics.metadata, encode_record(record), key=record_key(record))
        self.producer.flush()

    def topic(self, name: str, partitions: int) -> str:
        create_topic(self.admin, name, partitions)
        return name

    def index(self, id_: str, statement: str, *, state: str = "BUILDING", version: int = 1) -> IndexRecord:
        parsed = parse_statement(statement)
        assert isinstance(parsed, CreateIndex)
        definition = parsed.definition
        return IndexRecord(id_, definition, state, version, [], f"build-{id_}", 0)  # type: ignore[arg-type]

    def create_queue(self, index: IndexRecord, **config: str) -> None:
        settings = {"max.message.bytes": str(32 * 1024 * 1024), "retention.ms": "-1"} | config
        create_topic(self.admin, self.topics.mutations(index.id), index.slices, config=settings)

    def build(self, *indexes: IndexRecord, version: int = 1, everything: bool = False) -> None:
        """What the coordinator does at BUILD.

        Args:
            everything: as though all partitions had come after the build began: they are read from offset 0.
        """
        topic = indexes[0].keyspace
        info = describe_topics(self.admin, [topic])[topic]
        ends = list_offsets(self.admin, topic, range(info.partitions), read_committed=False)
        load = Timestamp.of({} if everything else ends, info.id)
        for index in indexes:
            self.create_queue(index)
            self.put(BuildRecord(index.build or "", topic, [index.id], "BACKFILL", load, 0), index)
        self.put(KeyspaceRecord(topic, info.id, info.partitions, version))

    def keyspace(self, topic: str, version: int) -> None:
        info = describe_topics(self.admin, [topic])[topic]
        self.put(KeyspaceRecord(topic, info.id, info.partitions, version))

    # --- projectors

    def start(self, **settings: str) -> ChildProcess:
        """Start a projector process, and wait until it runs."""
        number = len(self.children)
        environment = dict(os.environ) | {
            "KEYTIDE_CONFIG": "/nonexistent",
            "KEYTIDE_CLUSTER": self.settings.cluster,
            "KEYTIDE_DATA_DIR": str(self.settings.data_dir),
            "KEYTIDE_KAFKA__BOOTSTRAP": self.kafka.bootstrap,
            "KEYTIDE_PROJECTOR__COMMIT_INTERVAL_MS": "200",
            "KEYTIDE_PROJECTOR__SESSION_TIMEOUT_MS": "6000",
            **{f"KEYTIDE_PROJECTOR__{name.upper()}": value for name, value in settings.items()},
        }
        log = self.logs / f"projector-{number}.log"
        child = ChildProcess(
            f"projector {number}", [sys.executable, "-m", "projector"], log=log, env=environment
        )
        self.children.append(child.start())
        child.wait_until(lambda: "ready" in log.read_text(), LIMIT_S, "ready")
        return child

    def log(self, number: int = 0) -> str:
        return (self.logs / f"projector-{number}.log").read_text()

    def kill(self, child: ChildProcess) -> None:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)

    def close(self) -> None:
        for child in self.children:
            child.terminate(20)
        self._reports.close()

    # --- the source

    def write(self, topic: str, partition: int, id_: str | bytes | None, value: Any) -> None:
        """One record; bytes and None go as they are, anything else as JSON."""
        data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        while True:
            try:
                self.producer.produce(topic, data, id_, partition)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.producer.poll(0)

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """The end of each partition for a read_committed reader."""
        self.producer.flush()
        return list_offsets(self.admin, topic, range(partitions))

    def source(self, topic: str, partitions: int) -> dict[tuple[int, int], tuple[bytes | None, bytes | None]]:
        """Every committed record by (partition, offset), by a plain consumer."""
        reader = TopicReader(self.settings, topic, dict.fromkeys(range(partitions), 0))
        ends = self.ends(topic, partitions)
        found = {}
        deadline = time.monotonic() + LIMIT_S
        while any(reader.positions.get(p, 0) < end for p, end in ends.items()):
            assert time.monotonic() < deadline
            for m in reader.poll(0.5):
                found[m.partition() or 0, m.offset() or 0] = (m.key(), m.value())
        reader.close()
        return found

    # --- what came out

    def progress(self) -> dict[tuple[str, int], Any]:
        """(keyspace, partition) -> the newest line of progress with the largest `acked`."""
        for message in self._reports.poll(0.05):
            report = decode(message.value() or b"")
            assert isinstance(report, Progress | Activated | HistoryLost)
            self.reports.append(report)
        newest: dict[tuple[str, int], Any] = {}
        for report in self.reports:
            if isinstance(report, Progress):
                for line in report.partitions:
                    key = report.keyspace, line.partition
                    if key not in newest or line.acked >= newest[key].acked:
                        newest[key] = line
        return newest

    def activations(self, version: int) -> dict[int, int]:
        """Partition -> smallest offset reported as activated for the version."""
        self.progress()
        found: dict[int, int] = {}
        for report in self.reports:
            if isinstance(report, Activated) and report.version == version:
                found[report.partition] = min(found.get(report.partition, report.offset), report.offset)
        return found

    def outcomes(self, index: str) -> dict[str, int]:
        """Reason -> count, as the newest report says."""
        self.progress()
        for report in reversed(self.reports):
            if isinstance(report, Progress) and index in report.skipped:
                return report.skipped[index]
        return {}

    def wait_acked(self, topic: str, ends: Mapping[int, int]) -> None:
        """Wait until progress covers these ends."""

        def covered() -> bool:
            progress = self.progress()
            return all((topic, p) in progress and progress[topic, p].acked >= end for p, end in ends.items())

        wait_for(covered, f"progress of {topic} at {ends}")

    def slices(self, index: IndexRecord) -> list[Slice]:
        """All that is in the queues of an index now."""
        topic = self.topics.mutations(index.id)
        ends = list_offsets(self.admin, topic, range(index.slices))
        consumer = Consumer(
            {"bootstrap.servers": self.kafka.bootstrap, "group.id": "oracle", "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition(topic, p, 0) for p in ends])
        found = [Slice() for _ in ends]
        assemblers = [Assembler() for _ in ends]
        waiting = {p for p, end in ends.items() if end > 0}
        deadline = time.monotonic() + LIMIT_S
        while waiting:
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, 0.5):
                p, error = message.partition() or 0, message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    continue
                if (message.offset() or 0) + 1 >= ends[p]:
                    waiting.discard(p)
                value = message.value() or b""
                found[p].largest = max(found[p].largest, len(value))
                whole = assemblers[p].feed(value, message.offset() or 0)
                if whole is not None:
                    assert isinstance(whole[0], SegmentBatch)
                    assert (whole[0].index, whole[0].slice) == (index.id, p)
                    found[p].apply(whole[0], len(index.definition.keys))
        consumer.close()
        return found
