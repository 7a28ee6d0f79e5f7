"""A real indexer node on the real Kafka and the real store. The test plays coordinator, projector and Spark
by hand; what the node holds is compared with the simulation's naive oracle."""

from __future__ import annotations

import os
import random
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message

from deploy.kafka import EmbeddedKafka
from deploy.process import Child
from indexer.scan.peers import READ_PATH
from indexer.scan.reading import ReadReply, ReadRequest
from keytide.catalog import (
    ClusterRecord,
    IndexRecord,
    IndexState,
    KeyspaceRecord,
    Record,
    TermRecord,
    encode_record,
    record_key,
)
from keytide.definition import CreateIndex, parse_statement
from keytide.kafka import TopicReader, producer
from keytide.kafka_admin import admin, create_topic
from keytide.messages import (
    Acknowledged,
    BatchEnd,
    BuildEnd,
    NodeHeartbeat,
    Published,
    SliceStatus,
    StabilityTimestamp,
    decode,
    encode,
    split,
)
from keytide.messages import (
    Message as WireMessage,
)
from keytide.settings import load_settings
from keytide.timestamp import Timestamp
from keytide.topics import Topics
from tests.simulation.oracle import entries_at, skips_at
from tests.simulation.wire import (
    TOPIC_ID,
    Version,
    batch,
    put_chunk,
    removal_chunk,
    segment,
    slice_of_key,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

KEYSPACE, INDEX, BUILD, NODE = "src", "i-1", "b-1", "n1"
SLICES, PARTITIONS, IDS = 2, 2, 60
LIMIT_S = 30.0


def wait_for(condition: Callable[[], object], what: Callable[[], str], limit: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit} s: {what()}"
        time.sleep(0.005)


class Bench:
    """One node, and everything around it played by hand.

    Attributes:
        history: the source, by partition.
        built: versions that micro-batches brought.
        sent: next offsets that the projector has not sent.
        acked: number -> slices that hold it.
        status: newest of each slice, from heartbeats.
    """

    def __init__(self, kafka: EmbeddedKafka, folder: Path, cluster: str, **settings: str) -> None:
        self.settings = load_settings(cluster=cluster, kafka={"bootstrap": kafka.bootstrap})
        self.topics = Topics(cluster)
        self.chance = random.Random(7)
        self.history: list[list[Version]] = [[] for _ in range(PARTITIONS)]
        self.built: list[list[Version]] = [[] for _ in range(PARTITIONS)]
        self.sent = [0] * PARTITIONS
        self.acked: dict[int, set[int]] = {}
        self.status: dict[int, SliceStatus] = {}
        self.folder = folder
        client = admin(self.settings)
        create_topic(client, self.topics.metadata, 1, config={"cleanup.policy": "compact"})
        for name, count in (
            (self.topics.control, 1),
            (self.topics.reports, 1),
            (self.topics.mutations(INDEX), SLICES),
            (self.topics.backfill(INDEX, BUILD), SLICES),
        ):
            create_topic(client, name, count)
        self._producer = producer(self.settings)
        self._reports = TopicReader(self.settings, self.topics.reports, {0: OFFSET_BEGINNING})
        environment = {
            **os.environ,
            "KEYTIDE_CLUSTER": cluster,
            "KEYTIDE_KAFKA__BOOTSTRAP": kafka.bootstrap,
            "KEYTIDE_DATA_DIR": str(folder / "data"),
            "KEYTIDE_INDEXER__NODE_ID": NODE,
            "KEYTIDE_INDEXER__PORT": "0",
            "KEYTIDE_INDEXER__CHECK_MIRROR": "true",
            **settings,
        }
        self.log = folder / "node.log"
        self.node = Child("node", [sys.executable, "-m", "indexer"], log=self.log, env=environment)

    # --- the node -----------------------------------------------------------------------------------------

    def start(self) -> float:
        """Start the node; seconds until it says that it is ready."""
        before = self._readies()
        began = time.monotonic()
        self.node.start()
        self.node.wait_until(lambda: self._readies() > before, LIMIT_S, "the node is ready")
        return time.monotonic() - began

    def url(self) -> str:
        return str(re.findall(r"^ready (\S+)$", self.log.read_text(), re.MULTILINE)[-1])

    def _readies(self) -> int:
        return len(re.findall(r"^ready ", self.log.read_text(), re.MULTILINE)) if self.log.exists() else 0

    def close(self) -> None:
        self.node.kill()
        self._reports.close()

    # --- the coordinator ----------------------------------------------------------------------------------

    def tell(self, *records: Record) -> None:
        for record in records:
            self._send(self.topics.metadata, 0, encode_record(record), record_key(record).encode())

    def place(self, state: IndexState) -> None:
        parsed = parse_statement(f"CREATE INDEX i ON {KEYSPACE} (k) WITH (slices={SLICES})")
        assert isinstance(parsed, CreateIndex)
        self.tell(
            ClusterRecord("c1", "00", 1),
            TermRecord(1, "test", 1),
            KeyspaceRecord(KEYSPACE, TOPIC_ID, PARTITIONS, 1),
            IndexRecord(INDEX, parsed.definition, state, 1, [[NODE]] * SLICES, BUILD, 1),
        )

    def stamp(self) -> int:
        """Issue a stability timestamp at what was sent; its number."""
        timestamp = Timestamp.of(dict(enumerate(self.sent)), TOPIC_ID)
        now = int(time.time() * 1000)
        return self._control(StabilityTimestamp(KEYSPACE, 1, 0, timestamp, now, now))

    def publish(self, number: int) -> None:
        self._control(Published(KEYSPACE, 1, 0, {INDEX: number}))

    def listen(self) -> None:
        for record in self._reports.poll(0.02):
            message = decode(record.value() or b"")
            if isinstance(message, Acknowledged):
                self.acked.setdefault(message.number, set()).update(one for _, one in message.slices)
            elif isinstance(message, NodeHeartbeat):
                self.status = {one.slice: one for one in message.slices}

    def wait_held(self, number: int) -> None:
        """Wait until all slices acknowledged `number`."""

        def held() -> bool:
            self.listen()
            return len(self.acked.get(number, ())) == SLICES

        wait_for(held, lambda: f"{number} held; {self.status}\n{self.node.tail(30)}")

    def agree(self) -> int:
        """Issue timestamps, again and again as a leader does (R7), until all slices hold one; its number."""
        issued = [self.stamp()]
        again_at = time.monotonic() + 0.2

        def held() -> bool:
            nonlocal again_at
            self.listen()
            if time.monotonic() > again_at:
                issued.append(self.stamp())
                again_at = time.monotonic() + 0.2
            return any(len(self.acked.get(number, ())) == SLICES for number in issued)

        wait_for(held, lambda: f"a number held; {self.status}\n{self.node.tail(30)}")
        return max(number for number in issued if len(self.acked.get(number, ())) == SLICES)

    def wait_status(self, condition: Callable[[SliceStatus], bool], what: str) -> None:
        def seen() -> bool:
            self.listen()
            return len(self.status) == SLICES and all(condition(one) for one in self.status.values())

        wait_for(seen, lambda: f"{what}; {self.status}\n{self.node.tail(30)}")

    # --- the source and its projector -----------------------------------------------------------------------

    def write(self, count: int) -> None:
        for _ in range(count):
            number = self.chance.randrange(IDS)
            partition = number % PARTITIONS
            keys: tuple[bytes, ...] = ()
            if self.chance.random() > 0.15:
                keys = tuple(sorted(b"k%02d" % one for one in self.chance.sample(range(40), 2)))
            offset = len(self.history[partition])
            bad = self.chance.random() < 0.03
            value = b"v%d" % offset
            self.history[partition].append(Version(partition, offset, b"doc%d" % number, keys, bad, value))

    def send(self, most: int = 50, limit: int = 1 << 20, back: int = 0) -> None:
        """Segments of what was written since, `back` offsets earlier than need be."""
        while any(self.sent[p] < len(self.history[p]) for p in range(PARTITIONS)):
            ranges = []
            for partition, versions in enumerate(self.history):
                start = max(0, self.sent[partition] - back)
                end = min(len(versions), self.sent[partition] + most)
                ranges.append((partition, start, end))
                self.sent[partition] = end
            for number in range(SLICES):
                parts = [
                    segment(p, start, end, self.history[p][start:end], number, SLICES)
                    for p, start, end in ranges
                ]
                message = encode(batch(parts, INDEX, number))
                for part in split(message, limit, "p", self.chance.randrange(1 << 30)):
                    self._send(self.topics.mutations(INDEX), number, part)
        self.flush()

    # --- Spark --------------------------------------------------------------------------------------------

    def backfill(self, number: int, ends: list[int], starts: list[int]) -> None:
        """A micro-batch: one task per partition that wins, and a zombie of which only a part arrives."""
        topic = self.topics.backfill(INDEX, BUILD)
        for slice_number in range(SLICES):
            winners: dict[str, int] = {}
            for attempt in ("zombie", "winner"):
                chunks = self._chunks(number, starts, ends, slice_number, attempt)
                if attempt == "zombie":
                    chunks = chunks[:1]
                else:
                    winners[attempt] = len(chunks)
                for chunk in chunks:
                    self._send(topic, slice_number, chunk)
            start, end = (Timestamp.of(dict(enumerate(one)), TOPIC_ID) for one in (starts, ends))
            message = encode(BatchEnd(BUILD, INDEX, slice_number, "r1", number, start, end, winners))
            self._send(topic, slice_number, message)
        self.flush()

    def end_build(self, batches: int) -> None:
        for slice_number in range(SLICES):
            message = encode(BuildEnd(BUILD, INDEX, slice_number, 1, batches))
            self._send(self.topics.backfill(INDEX, BUILD), slice_number, message)
        self.flush()

    def _chunks(
        self, number: int, starts: list[int], ends: list[int], slice_number: int, attempt: str
    ) -> list[bytes]:
        chunks: list[bytes] = []
        entries: list[tuple[bytes, Version]] = []
        for partition, versions in enumerate(self.history):
            newest = {one.id: one for one in versions[starts[partition] : ends[partition]]}
            heard = sorted(newest.values(), key=lambda one: one.offset)
            self.built[partition] += heard
            removal = removal_chunk(
                heard,
                build=BUILD,
                index=INDEX,
                slice_number=slice_number,
                slices=SLICES,
                run="r1",
                number=number,
                attempt=attempt,
                sequence=len(chunks),
                partition=partition,
                heard=number > 0,
            )
            chunks.append(encode(removal))
            entries += [
                (key, one)
                for one in heard
                for key in one.keys
                if not one.bad and slice_of_key(key, SLICES) == slice_number
            ]
        entries.sort(key=lambda row: row[0] + row[1].id)
        for first in range(0, len(entries), 10):
            puts = put_chunk(
                entries[first : first + 10],
                build=BUILD,
                index=INDEX,
                slice_number=slice_number,
                run="r1",
                number=number,
                attempt=attempt,
                sequence=len(chunks),
            )
            chunks.append(encode(puts))
        return chunks

    # --- what is asked ------------------------------------------------------------------------------------

    def read(self, number: int) -> list[dict[bytes, bytes]]:
        """The entries of every slice at a snapshot number, over HTTP."""
        body = ReadRequest(
            INDEX, number, 0, list(range(SLICES)), [(b"", None)], [b""] * SLICES, False, 100_000
        )
        request = urllib.request.Request(self.url() + READ_PATH, msgspec.msgpack.encode(body), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            reply = msgspec.msgpack.decode(answer.read(), type=ReadReply)
        assert not any(one.gone for one in reply.slices), reply
        return [dict(one.entries) for one in reply.slices]

    def check(self, number: int, offsets: list[int]) -> None:
        """Every slice at a number equals the source at its timestamp."""
        at = dict(enumerate(offsets))
        for slice_number, rows in enumerate(self.read(number)):
            assert rows == entries_at(self.history, at, slice_number, SLICES), f"slice {slice_number}"

    # --- Kafka --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        assert self._producer.flush(LIMIT_S) == 0

    def _send(self, topic: str, partition: int, data: bytes, key: bytes | None = None) -> None:
        self._producer.produce(topic, data, key, partition)

    def _control(self, message: WireMessage) -> int:
        numbers: list[int] = []

        def delivered(error: KafkaError | None, record: Message) -> None:
            assert error is None, error
            numbers.append(record.offset() or 0)

        self._producer.produce(self.topics.control, encode(message), partition=0, on_delivery=delivered)
        self.flush()
        return numbers[0]


@pytest.fixture
def bench(kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    name = re.sub(r"[^a-z0-9_]", "-", request.node.name)
    made = Bench(kafka, tmp_path, f"ix-{name}", **getattr(request, "param", {}))
    yield made
    made.close()


def build(bench: Bench) -> list[int]:
    """A build of two micro-batches while the mutation queue fills; returns the backfill timestamp."""
    bench.write(400)
    ends = [len(versions) for versions in bench.history]
    half = [end // 2 for end in ends]
    bench.sent = [end // 3 for end in ends]  # the low watermark lies inside of the backfill
    bench.backfill(0, half, [0] * PARTITIONS)
    bench.write(200)
    bench.send()
    bench.backfill(1, ends, half)
    bench.end_build(2)
    return ends


def test_a_slice_is_built_switches_and_follows(bench: Bench) -> None:
    bench.place("BUILDING")
    bench.start()
    ends = build(bench)
    bench.wait_status(lambda one: one.state == "CATCHUP" and one.batch == 1, "the build is over")
    number = bench.agree()
    bench.place("READY")
    bench.publish(number)
    bench.check(number, bench.sent)
    for _ in range(5):
        bench.write(100)
        bench.send(most=17, limit=700, back=5)
        number = bench.stamp()
        bench.wait_held(number)
        bench.check(number, bench.sent)
    bench.wait_status(lambda one: one.state == "LIVE" and one.number == number, "all LIVE")
    at = dict(enumerate(bench.sent))
    for slice_number, status in bench.status.items():
        bad = skips_at(bench.history, at, slice_number, SLICES)
        live = {(partition, offset) for partition, offset in bad if offset >= ends[partition]}
        built = skips_at(bench.built, at, slice_number, SLICES)
        assert status.skipped == len(built | live)
        assert status.gap_drops == 0


@pytest.mark.parametrize("bench", [{"KEYTIDE_INDEXER__DELTA_AGE_S": "1"}], indirect=True)
def test_kill_9_during_build_and_live(bench: Bench) -> None:
    bench.place("BUILDING")
    bench.start()
    bench.write(300)
    ends = [len(versions) for versions in bench.history]
    half = [end // 2 for end in ends]
    bench.backfill(0, half, [0] * PARTITIONS)
    bench.wait_status(lambda one: one.batch == 0, "the first micro-batch is committed")
    bench.node.kill()
    bench.sent = list(half)
    bench.write(100)
    bench.send()
    bench.backfill(1, ends, half)
    bench.end_build(2)
    bench.start()
    bench.wait_status(lambda one: one.state == "CATCHUP", "the build went on from its checkpoint")
    bench.check(bench.agree(), bench.sent)
    bench.place("READY")
    for round_ in range(4):
        bench.write(150)
        bench.send(most=20)
        bench.agree()
        if round_ == 1:
            bench.wait_status(lambda one: one.queue_position > 0, "a fold moved the base")
        bench.write(150)
        bench.send(most=20)  # heard, and not yet stamped
        bench.node.kill()
        bench.status = {}
        seconds = bench.start()
        assert seconds < 10.0, "a node serves again at once"
        bench.check(bench.agree(), bench.sent)


def test_a_gap_is_waited_for_and_filled(bench: Bench) -> None:
    bench.place("BUILDING")
    bench.start()
    bench.end_build(0)
    bench.agree()
    bench.write(100)
    bench.send(most=10)
    missing = list(bench.sent)
    bench.write(40)
    bench.sent = [len(versions) for versions in bench.history]
    bench.write(40)
    bench.send(most=10)
    number = bench.stamp()
    bench.wait_status(lambda one: one.gap_drops > 0, "segments beyond the gap are dropped")
    assert number not in bench.acked
    bench.sent = missing
    bench.send(most=10)  # the projector sends everything again from its last commit
    bench.wait_held(number)
    bench.check(number, bench.sent)


@pytest.mark.parametrize(
    "bench",
    [{"KEYTIDE_INDEXER__NODE_QUEUE_BYTES": "1", "KEYTIDE_INDEXER__CHECK_MIRROR": "false"}],
    indirect=True,
)
def test_a_backlog_without_timestamps_stays_in_kafka(bench: Bench) -> None:
    """The slices hold a mebibyte each: more than that is read only as timestamps make room (R4)."""
    bench.place("BUILDING")
    bench.start()
    bench.end_build(0)
    bench.wait_status(lambda one: one.state == "CATCHUP", "the build is over")
    bench.agree()
    bench.write(120_000)
    bench.send(most=2_000)
    total = sum(len(versions) for versions in bench.history)
    bench.wait_status(lambda one: one.queue_documents >= 10_000, "the slices are full")
    full = None
    while full != (full := [one.queue_documents for one in bench.status.values()]):
        bench.status = {}
        bench.wait_status(lambda one: True, "another heartbeat")
    assert max(full) < total, "reading pauses"
    bench.check(bench.agree(), bench.sent)
    bench.wait_status(lambda one: one.queue_documents == 0, "everything is applied")


def test_a_dropped_index_leaves_nothing(bench: Bench) -> None:
    bench.place("BUILDING")
    bench.start()
    build(bench)
    bench.agree()
    slices = bench.folder / "data" / "nodes" / NODE / "slices"
    assert (slices / INDEX).exists()
    bench.place("DROPPING")

    def gone() -> bool:
        bench.listen()
        return not bench.status and not (slices / INDEX).exists()

    wait_for(gone, lambda: f"{bench.status}, {list(slices.rglob('*'))}")
    assert bench.node.running
    assert bench.node.terminate() == 0
