"""The driver of a build on a real broker, with Spark and without: what its queues hold is exactly the
projection of the source.

The test plays coordinator (it writes the metadata) and slice: `read_slices` rebuilds every slice from its
backfill queue by the rules (R21, R22) in plain Python, and `Source` says, from its own list of what was
written, what must be there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import xxhash
from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as Place

from deploy.kafka import EmbeddedKafka
from deploy.spark_home import spark_environment
from keytide.catalog.records import (
    BuildRecord,
    IndexRecord,
    KeyspaceRecord,
    Record,
    encode_record,
    record_key,
)
from keytide.collation import encode_key
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.timestamp import Timestamp
from keytide.model.topics import Topics
from keytide.wire.columns import heard_ids, heard_offsets, unpack
from keytide.wire.messages import BatchEnd, BuildProgress, PutChunk, RemovalChunk, decode
from keytide.wire.parts import Assembler
from streaming.drivers.journal import Journal, JournalRecord

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

BUILD = "b1"
INDEXES = {
    "by_a-1": "CREATE INDEX by_a ON {topic} (a) WITH (slices=3)",
    "by_tag-2": "CREATE INDEX by_tag ON {topic} (UNNEST(tags) DESC, n) INCLUDE (a) WITH (slices=2)",
}
LIMIT_S = 300.0
MOVED = b'{"a": 99, "n": 0, "tags": ["moved"]}'


class Version(NamedTuple):
    partition: int
    offset: int
    value: bytes | None
    time: int


@dataclass
class Source:
    """The source topic, and every committed record that was written to it."""

    bootstrap: str
    topic: str
    partitions: int = 3
    written: list[tuple[bytes, Version]] = field(default_factory=list)

    def write(self, records: list[tuple[int, bytes, bytes | None]], *, transaction: str = "") -> None:
        """Write records (partition, id, value); `transaction` is "", "commit" or "abort"."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "linger.ms": 5,
            "enable.idempotence": True,
        }
        if transaction:
            settings["transactional.id"] = f"{self.topic}-{transaction}"
        producer = Producer(settings)
        places: list[tuple[bytes, Version]] = []

        def delivered(error: object, message: Any) -> None:
            assert error is None
            place = message.partition(), message.offset(), message.value(), message.timestamp()[1]
            places.append((message.key(), Version(*place)))

        if transaction:
            producer.init_transactions()
            producer.begin_transaction()
        for partition, docid, value in records:
            producer.produce(self.topic, value, docid, partition=partition, on_delivery=delivered)
            producer.poll(0)
        if transaction == "commit":
            producer.commit_transaction()
        producer.flush()
        if transaction == "abort":
            producer.abort_transaction()
        else:
            self.written += places

    def ends(self) -> dict[int, int]:
        """High watermarks."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap)
        found = consumer.end_offsets([Place(self.topic, p) for p in range(self.partitions)])
        consumer.close()
        return {place.partition: end for place, end in found.items()}

    def newest(self, end: Timestamp) -> dict[bytes, Version]:
        """The newest version below `end` of every document: the last in its partition; between partitions
        the newest by (time, partition, offset)."""
        last: dict[tuple[bytes, int], Version] = {}
        for docid, version in self.written:
            known = last.get((docid, version.partition))
            if version.offset < end.offset(version.partition) and (
                known is None or known.offset < version.offset
            ):
                last[docid, version.partition] = version
        newest: dict[bytes, Version] = {}
        for (docid, _), version in sorted(last.items(), key=lambda item: (item[1].time, item[1].partition)):
            newest[docid] = version
        return newest

    def mixed(self, end: Timestamp) -> int:
        """How many documents have versions below `end` in more than one partition."""
        partitions: dict[bytes, set[int]] = defaultdict(set)
        for docid, version in self.written:
            if version.offset < end.offset(version.partition):
                partitions[docid].add(version.partition)
        return sum(len(found) > 1 for found in partitions.values())


class Entry(NamedTuple):
    slice: int
    key: bytes
    docid: bytes
    version: tuple[int, int]


def expected(index: str, newest: dict[bytes, Version]) -> set[Entry]:
    """What an index must hold, by the documents alone."""
    entries: set[Entry] = set()
    for docid, version in newest.items():
        try:
            document = json.loads(version.value or b"null")
        except ValueError:
            continue
        if not isinstance(document, dict):
            continue
        if index == "by_a-1" and "a" in document:
            keys, slices = [(encode_key([document["a"]]), encode_key([document["a"]]))], 3
        elif index == "by_tag-2":
            keys = [
                (encode_key([tag, document["n"]], (True, False)), encode_key([tag]))
                for tag in document["tags"]
            ]
            slices = 2
        else:
            continue
        for key, partition_key in keys:
            number = xxhash.xxh3_64_intdigest(partition_key) % slices
            entries.add(Entry(number, key, docid, (version.partition, version.offset)))
    return entries


@dataclass
class Slice:
    """A slice as its backfill queue makes it."""

    held: dict[bytes, dict[bytes, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    lines: dict[tuple[int, int], str] = field(default_factory=dict)
    batch: int = -1
    position: Timestamp = field(default_factory=Timestamp)
    runs: set[str] = field(default_factory=set)
    ends: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))

    def apply(self, end: BatchEnd, chunks: list[PutChunk | RemovalChunk]) -> None:
        self.ends[end.batch].add(msgspec.json.encode((end.start.offsets(), end.end.offsets())))
        if end.batch <= self.batch:
            return
        won = [c for c in chunks if c.batch == end.batch and c.run == end.run and c.attempt in end.winners]
        counts: dict[str, int] = defaultdict(int)
        for chunk in won:
            assert chunk.sequence == counts[chunk.attempt]
            counts[chunk.attempt] += 1
        assert counts == end.winners
        assert end.batch == self.batch + 1
        assert self.batch < 0 or end.start.offsets() == self.position.offsets()
        self.batch, self.position = end.batch, end.end
        self.runs.add(end.run)
        for chunk in won:
            if isinstance(chunk, RemovalChunk):
                self._remove(chunk)
        runs: dict[str, bytes] = {}
        for chunk in won:
            if isinstance(chunk, PutChunk):
                self._put(chunk, runs)

    def _remove(self, chunk: RemovalChunk) -> None:
        for skip in chunk.skips:
            self.lines[chunk.partition, skip.offset] = skip.reason
        if chunk.heard is None:
            return
        assert chunk.batch > 0, "the first micro-batch has nothing to remove"
        offsets = heard_offsets(chunk.heard, chunk.base).tolist()
        for docid, offset in zip(heard_ids(chunk.heard), offsets, strict=True):
            for key, version in list(self.held[docid].items()):
                if version[0] == chunk.partition and version[1] < offset:
                    del self.held[docid][key]

    def _put(self, chunk: PutChunk, runs: dict[str, bytes]) -> None:
        ids = unpack(np.frombuffer(chunk.id_lengths, np.uint8), chunk.ids)
        keys = unpack(np.frombuffer(chunk.key_lengths, "<u2"), chunk.keys)
        versions = zip(
            np.frombuffer(chunk.partitions, "<u4").tolist(),
            np.frombuffer(chunk.offsets, "<u8").tolist(),
            strict=True,
        )
        for docid, key, version in zip(ids, keys, versions, strict=True):
            assert runs.get(chunk.attempt, b"") < key + docid, "an attempt's entries are in order"
            runs[chunk.attempt] = key + docid
            self.held[docid][key] = version

    def entries(self, number: int) -> set[Entry]:
        return {
            Entry(number, key, docid, version)
            for docid, keys in self.held.items()
            for key, version in keys.items()
        }


@dataclass
class Build:
    """One build, played by the test."""

    kafka: EmbeddedKafka
    source: Source
    folder: Path
    settings: dict[str, str]
    fills: dict[str, list[int]] = field(default_factory=dict)
    record: BuildRecord = field(init=False)

    def __post_init__(self) -> None:
        self.topics = Topics(f"bf-{self.source.topic}")
        self._producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "enable.idempotence": True})
        self.slices: dict[str, int] = {}
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        new = [
            NewTopic(name, 1, 1) for name in (self.topics.metadata, self.topics.reports, self.topics.builds)
        ]
        info = admin.describe_topics(TopicCollection([self.source.topic]))[self.source.topic].result(30)
        self.keyspace = KeyspaceRecord(self.source.topic, str(info.topic_id), self.source.partitions, 1)
        self.put(self.keyspace)
        for index, statement in INDEXES.items():
            parsed = parse_statement(statement.format(topic=f'"{self.source.topic}"'))
            assert isinstance(parsed, CreateIndex)
            self.slices[index] = parsed.definition.slices
            new.append(NewTopic(self.topics.backfill(index, BUILD), parsed.definition.slices, 1))
            self.put(
                IndexRecord(index, parsed.definition, "READY" if self.fills else "BUILDING", 1, [], BUILD, 0)
            )
        for future in admin.create_topics(new).values():
            future.result(30)
        load = Timestamp.of(self.source.ends(), str(info.topic_id))
        names = list(self.fills or INDEXES)
        self.change(BuildRecord(BUILD, self.source.topic, names, "BACKFILL", load, 0, slices=self.fills))

    def put(self, record: Record) -> None:
        self._producer.produce(self.topics.metadata, encode_record(record), record_key(record))

    def change(self, record: BuildRecord) -> None:
        self.record = record
        self.put(record)
        self._producer.flush()

    @contextmanager
    def driver(self) -> Iterator[subprocess.Popen[bytes]]:
        environment = {
            **os.environ,
            "KEYTIDE_CLUSTER": self.topics.cluster,
            "KEYTIDE_KAFKA__BOOTSTRAP": self.kafka.bootstrap,
            "KEYTIDE_DATA_DIR": str(self.folder),
            **spark_environment(),
            "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
            "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
            **self.settings,
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "streaming.backfill", "--build", BUILD],
                env=environment,
                stderr=log,
                stdout=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def log(self) -> Path:
        return self.folder / "driver.log"

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end:\n{self.log.read_text()[-3000:]}") from None

    def wait_until(self, process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert process.poll() is None, f"the driver ended:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.02)

    def journal(self) -> Journal:
        kept = [value for _, _, value in self.records(self.topics.builds) if value]
        return msgspec.json.decode(kept[-1], type=JournalRecord).journal if kept else Journal()

    def batches_done(self) -> int:
        return self.journal().finished + 1

    def records(self, topic: str) -> Iterator[tuple[int, int, bytes]]:
        """(partition, offset, value) of everything in a topic."""
        consumer = KafkaConsumer(bootstrap_servers=self.kafka.bootstrap, auto_offset_reset="earliest")
        places = [Place(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for place, records in consumer.poll(timeout_ms=500).items():
                yield from ((place.partition, record.offset, record.value) for record in records)
        consumer.close()

    def reports(self) -> list[BuildProgress]:
        messages = [decode(value) for _, _, value in self.records(self.topics.reports)]
        return [message for message in messages if isinstance(message, BuildProgress)]

    def read_slices(self, index: str) -> list[Slice]:
        slices = [Slice() for _ in range(self.slices[index])]
        assemblers = [Assembler() for _ in slices]
        chunks: list[list[PutChunk | RemovalChunk]] = [[] for _ in slices]
        for partition, offset, value in self.records(self.topics.backfill(index, BUILD)):
            fed = assemblers[partition].feed(value, offset)
            if fed is None:
                continue
            message = fed[0]
            assert isinstance(message, PutChunk | RemovalChunk | BatchEnd)
            assert (message.build, message.index, message.slice) == (BUILD, index, partition)
            if isinstance(message, BatchEnd):
                slices[partition].apply(message, chunks[partition])
            else:
                chunks[partition].append(message)
        return slices


def changes(seed: int, count: int) -> list[tuple[int, bytes, bytes | None]]:
    """Inserts, updates that move entries, deletes, and documents that cannot be indexed."""
    chosen = random.Random(seed)
    records: list[tuple[int, bytes, bytes | None]] = []
    for number in range(count):
        docid = b"doc-%03d" % chosen.randrange(499)
        tags = chosen.sample(["x", "y", "z", 1, 2.5, None], chosen.randrange(1, 4))
        document = {"a": chosen.randrange(23), "n": number, "tags": tags, "pad": "p" * 50}
        value: bytes | None = json.dumps(document).encode()
        kind = chosen.random()
        if kind < 0.1:
            value = None
        elif kind < 0.13:
            value = b'{"a": 1, not json'
        elif kind < 0.16:
            value = json.dumps({"n": number, "tags": tags}).encode()
        records.append((sum(docid) % 3, docid, value))
    return records


@pytest.fixture(params=["spark", "local"])
def engine(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings that have it read the source."""
    return {"KEYTIDE_BUILD__LOCAL_DOCUMENTS": "0" if request.param == "spark" else "100000"}


@pytest.fixture
def source(kafka: EmbeddedKafka, topic: Callable[..., str]) -> Source:
    return Source(kafka.bootstrap, topic(3, "source"))


def compare(build: Build, *, batches: int) -> Timestamp:
    """Compare every slice of every index with the source; returns the backfill timestamp."""
    end = build.read_slices("by_a-1")[0].position
    newest = build.source.newest(end)
    for index in INDEXES:
        slices = build.read_slices(index)
        assert {s.batch for s in slices} == {slices[0].batch}
        assert slices[0].batch >= batches - 1
        assert {msgspec.json.encode(s.position.offsets()) for s in slices} == {
            msgspec.json.encode(end.offsets())
        }
        for s in slices:
            assert all(len(ranges) == 1 for ranges in s.ends.values()), (
                "a batch has the same range in all runs"
            )
        found = set().union(*(s.entries(number) for number, s in enumerate(slices)))
        assert found == expected(index, newest)
        bad = {
            (version.partition, version.offset): (
                xxhash.xxh3_64_intdigest(docid) % len(slices),
                "not-json",
            )
            for docid, version in build.source.written
            if version.value == b'{"a": 1, not json' and version.offset < end.offset(version.partition)
        }
        lines = {
            place: (number, reason) for number, s in enumerate(slices) for place, reason in s.lines.items()
        }
        assert lines == bad
    return end


def test_kills_and_restarts_change_nothing(
    kafka: EmbeddedKafka, source: Source, tmp_path: Path, engine: dict[str, str]
) -> None:
    """Micro-batches with updates, deletes, transactions and bad documents; kill -9 in the middle of one,
    SIGTERM in the middle of another, writes going on: the queues hold exactly the source's projection."""
    source.write(changes(1, 2_000))
    source.write(changes(2, 700), transaction="commit")
    source.write(changes(3, 300), transaction="abort")
    build = Build(
        kafka,
        source,
        tmp_path,
        engine
        | {
            "KEYTIDE_BUILD__BATCH_DOCUMENTS": "900",
            "KEYTIDE_BUILD__CHUNK_BYTES": "4000",
            "KEYTIDE_TOPICS__PART_BYTES": "3000",
            "KEYTIDE_TOPICS__SEGMENT_TARGET_BYTES": "5000",
        },
    )
    with build.driver() as process:
        build.wait_until(process, lambda: build.batches_done() > 0)
        process.send_signal(signal.SIGKILL)
        process.wait()
    source.write(changes(4, 1_000))
    source.write(changes(5, 200), transaction="abort")
    done = build.batches_done()
    with build.driver() as process:
        build.wait_until(process, lambda: build.batches_done() > done)
        process.send_signal(signal.SIGTERM)
        assert build.wait(process) == 143
    build.change(msgspec.structs.replace(build.record, low_watermark={0: 0, 2: source.ends()[2]}))
    with build.driver() as process:
        last = source.ends()[1]
        source.write(changes(6, 300))
        reached = Timestamp.of(source.ends())
        build.wait_until(
            process, lambda: any(r.timestamp.covers(reached) for r in build.reports() if r.state == "RUNNING")
        )
        assert process.poll() is None, "partition 1 is not activated"
        build.change(msgspec.structs.replace(build.record, low_watermark={0: 0, 1: last, 2: 0}))
        assert build.wait(process) == 0
    end = compare(build, batches=4)
    places = build.reports()[-1].timestamp.places
    assert all(place.epoch >= 0 for place in places.values()), "the log was looked at"
    assert end.covers(build.record.load_timestamp)
    slices = build.read_slices("by_a-1")
    assert len(set().union(*(s.runs for s in slices))) >= 2, "more than one driver worked on it"
    final = build.reports()[-1]
    assert final.engine == ("spark" if engine["KEYTIDE_BUILD__LOCAL_DOCUMENTS"] == "0" else "local")
    assert (final.state, final.batches, final.timestamp.offsets()) == (
        "PASSED",
        slices[0].batch + 1,
        end.offsets(),
    )
    assert final.error == ""
    assert final.earliest.offsets() == {0: 0, 1: 0, 2: 0}
    assert final.first_read_at > 0
    assert not (tmp_path / "builds" / BUILD / "scratch").exists()

    with build.driver() as process:  # its last report was lost: it says so again, without starting Spark
        assert build.wait(process) == 0
    assert build.reports()[-1].state == "PASSED"
    assert build.reports()[-1].batches == final.batches


def test_one_slice_is_rebuilt_alone(
    kafka: EmbeddedKafka, source: Source, tmp_path: Path, engine: dict[str, str]
) -> None:
    """The queues of the build's slices hold what the source projects to for them, those of the others are
    empty, also of an index that has none; then the keyspace is rolled back and the driver ends by itself."""
    source.write(changes(1, 2_000))
    build = Build(
        kafka, source, tmp_path, engine | {"KEYTIDE_BUILD__BATCH_DOCUMENTS": "900"}, {"by_a-1": [1]}
    )
    with build.driver() as process:
        build.wait_until(process, lambda: build.batches_done() > 2)
        assert process.poll() is None, "nothing is activated"
        build.put(msgspec.structs.replace(build.keyspace, incarnation=1))
        build.change(build.record)
        assert build.wait(process) == 143
    build.change(
        msgspec.structs.replace(
            build.record, incarnation=1, low_watermark=build.record.load_timestamp.offsets()
        )
    )
    with build.driver() as process:
        assert build.wait(process) == 0
    slices = build.read_slices("by_a-1")
    assert slices[1].batch > 1
    wanted = expected("by_a-1", source.newest(slices[1].position))
    assert slices[1].entries(1) == {entry for entry in wanted if entry.slice == 1}
    assert len(slices[1].entries(1)) > 50
    assert not list(build.records(build.topics.backfill("by_tag-2", BUILD)))
    assert {p for p, _, _ in build.records(build.topics.backfill("by_a-1", BUILD))} == {1}


def test_nothing_to_read(kafka: EmbeddedKafka, source: Source, tmp_path: Path) -> None:
    """Every slice gets the end of an empty micro-batch, so that the build can end; Spark is not needed."""
    source.write(changes(1, 50))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    ends = source.ends()
    cut = [TopicPartition(source.topic, partition, end) for partition, end in ends.items()]
    for future in admin.delete_records(cut).values():
        future.result(30)
    build = Build(kafka, source, tmp_path, {"KEYTIDE_SPARK_JARS": "none", "JAVA_HOME": str(tmp_path)})
    build.change(msgspec.structs.replace(build.record, low_watermark=ends))
    for attempt in (1, 2):
        with build.driver() as process:
            assert build.wait(process) == 0
        source.write(changes(attempt, 20))  # never part of the backfill
    for index in INDEXES:
        for s in build.read_slices(index):
            assert (s.batch, s.position.offsets(), s.entries(0)) == (0, ends, set())
    assert [r.state for r in build.reports()][-1] == "PASSED"
    assert build.reports()[-1].batches == 1


def test_mixed_partitions_and_lost_offsets(
    kafka: EmbeddedKafka, source: Source, tmp_path: Path, engine: dict[str, str]
) -> None:
    """A document in two partitions: the newest of both counts. Then records are deleted before they are read:
    the driver fails for good and says why."""
    first = changes(1, 600)
    source.write(first)
    source.write([((p + 1) % 3, docid, MOVED) for p, docid, _ in first[:40]])
    source.write(changes(2, 3_000))
    build = Build(kafka, source, tmp_path, engine)
    # 150 documents a second: micro-batches of 1,500, and a pause after each to make it ten seconds.
    build.change(msgspec.structs.replace(build.record, rate_limit=150))
    with build.driver() as process:
        build.wait_until(process, lambda: any(r.batches for r in build.reports()))
    slices = build.read_slices("by_a-1")
    end = slices[0].position
    assert source.mixed(end) > 20
    found = set().union(*(s.entries(number) for number, s in enumerate(slices)))
    assert found == expected("by_a-1", source.newest(end))
    assert not end.covers(build.record.load_timestamp)

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    cut = [TopicPartition(source.topic, partition, at) for partition, at in source.ends().items()]
    for future in admin.delete_records(cut).values():
        future.result(30)
    with build.driver() as process:
        assert build.wait(process) == 3
    last = build.reports()[-1]
    assert last.state == "FAILED"
    assert last.error.startswith("offsets-lost")


@pytest.mark.parametrize(
    ("settings", "documents"),
    [
        ({"KEYTIDE_BUILD__LOCAL_DOCUMENTS": "3100"}, 25_500),  # a partition counts as a thousand
        ({"KEYTIDE_BUILD__LOCAL_DOCUMENTS": "5000", "KEYTIDE_BUILD__LOCAL_BYTES": "20000"}, 3_000),
    ],
    ids=["documents", "entries"],
)
def test_spark_reads_on_where_a_small_source_has_grown(
    kafka: EmbeddedKafka, source: Source, tmp_path: Path, settings: dict[str, str], documents: int
) -> None:
    source.write(changes(1, 60))
    build = Build(kafka, source, tmp_path, settings)
    source.write(changes(2, documents))
    build.change(msgspec.structs.replace(build.record, low_watermark=build.record.load_timestamp.offsets()))
    with build.driver() as process:
        assert build.wait(process) == 0
    assert "Spark reads on" in build.log.read_text()
    reports = build.reports()
    assert reports[-1].engine == "spark"
    compare(build, batches=1)
