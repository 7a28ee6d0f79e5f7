"""A real indexer node on the real Kafka and the real store. The test plays coordinator, projector and Spark
by hand; what the node holds is compared with the simulation's naive oracle."""

from __future__ import annotations

import os
import random
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from deploy.kafka import EmbeddedKafka
from deploy.process import ChildProcess
from indexer.scan.gather.peers import READ_PATH
from indexer.scan.peer.messages import ReadMessage, ReadReply
from keytide.catalog.records import (
    BuildRecord,
    BuildState,
    ClusterRecord,
    IndexRecord,
    IndexState,
    KeyspaceRecord,
    Record,
    RollbackRecord,
    TermRecord,
    encode_record,
    record_key,
)
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.kafka.admin import admin, create_topic, list_offsets
from keytide.kafka.topics import TopicReader, producer
from keytide.model.timestamp import Timestamp
from keytide.model.topics import Topics
from keytide.settings.settings import load_settings
from keytide.wire.messages import (
    Acknowledged,
    BatchEnd,
    BuildEnd,
    NodeHeartbeat,
    Published,
    SliceStatus,
    StabilityTimestamp,
    decode,
    encode,
)
from keytide.wire.messages import Message as WireMessage
from keytide.wire.parts import split
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
from tests.unit.scan_world import of_the_cluster
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

KEYSPACE, INDEX, BUILD, NODE = "src", "i-1", "b-1", "n1"
SLICES, PARTITIONS, IDS = 2, 2, 60
LIMIT_S = 120.0


class Bench:
    """One node, and everything around it played by hand.

    Attributes:
        history: the source, by partition.
        built: versions that micro-batches brought.
        sent: next offsets that the projector has not sent.
        incarnation: under which coordinator and projector work.
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
        self.incarnation = 0
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
            "KEYTIDE_INDEXER__CHECK_MIRROR_S": "0",
            **settings,
        }
        self.environment = environment
        self.log = folder / "node.log"
        self.node = ChildProcess("node", [sys.executable, "-m", "indexer"], log=self.log, env=environment)

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

    def place(self, state: IndexState, slice_builds: dict[int, str] | None = None) -> None:
        parsed = parse_statement(f"CREATE INDEX i ON {KEYSPACE} (k) WITH (slices={SLICES})")
        assert isinstance(parsed, CreateIndex)
        self.tell(
            ClusterRecord("c1", "00", 1),
            TermRecord(1, "test", 1),
            KeyspaceRecord(KEYSPACE, TOPIC_ID, PARTITIONS, 1, self.incarnation),
            IndexRecord(
                INDEX,
                parsed.definition,
                state,
                1,
                [[NODE]] * SLICES,
                BUILD,
                1,
                slice_builds=slice_builds or {},
            ),
        )

    def lose(self, offsets: list[int]) -> None:
        """The source loses what lies past `offsets`; projectors go on there, in the next incarnation."""
        self.incarnation += 1
        for partition, offset in enumerate(offsets):
            del self.history[partition][offset:]
        self.sent = list(offsets)

    def roll_back(self, number: int, offsets: list[int]) -> None:
        """The dictionary tells of the rollback to snapshot `number`, which is at `offsets`."""
        cut = Timestamp.of(dict(enumerate(offsets)), TOPIC_ID)
        self.tell(
            RollbackRecord(KEYSPACE, self.incarnation, number, cut, TOPIC_ID, "truncated", 1),
            KeyspaceRecord(KEYSPACE, TOPIC_ID, PARTITIONS, 1, self.incarnation),
        )
        self.flush()

    def rebuild(self, build: str, slice_number: int, state: BuildState) -> None:
        """One slice of the READY index is filled by a build of its own."""
        record = BuildRecord(
            build,
            KEYSPACE,
            [INDEX],
            state,
            Timestamp(),
            1,
            slices={INDEX: [slice_number]},
            incarnation=self.incarnation,
        )
        self.tell(record)
        self.place("READY", {slice_number: build})

    def queue_end(self, slice_number: int) -> int:
        """Next offset of a slice's mutation queue."""
        client = admin(self.settings)
        return list_offsets(client, self.topics.mutations(INDEX), [slice_number])[slice_number]

    def forget_queue(self, slice_number: int) -> None:
        """Delete all that a slice's mutation queue holds, as trimming or retention does."""
        place = TopicPartition(self.topics.mutations(INDEX), slice_number, self.queue_end(slice_number))
        client = admin(self.settings)
        client.delete_records([place])[place].result(LIMIT_S)

    def stamp(self) -> int:
        """Issue a stability timestamp at what was sent; its number."""
        timestamp = Timestamp.of(dict(enumerate(self.sent)), TOPIC_ID)
        now = int(time.time() * 1000)
        return self._control(StabilityTimestamp(KEYSPACE, 1, self.incarnation, timestamp, now, now))

    def publish(self, number: int) -> None:
        self._control(Published(KEYSPACE, 1, self.incarnation, {INDEX: number}))

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
                message = encode(batch(parts, INDEX, number, incarnation=self.incarnation))
                for part in split(message, limit, "p", self.chance.randrange(1 << 30)):
                    self._send(self.topics.mutations(INDEX), number, part)
        self.flush()

    # --- Spark --------------------------------------------------------------------------------------------

    def backfill(
        self,
        number: int,
        ends: list[int],
        starts: list[int],
        build: str = BUILD,
        slices: Sequence[int] = range(SLICES),
    ) -> None:
        """A micro-batch: one task per partition that wins, and a zombie of which only a part arrives."""
        topic = self.topics.backfill(INDEX, build)
        for slice_number in slices:
            winners: dict[str, int] = {}
            for attempt in ("zombie", "winner"):
                chunks = self._chunks(number, starts, ends, slice_number, attempt, build)
                if attempt == "zombie":
                    chunks = chunks[:1]
                else:
                    winners[attempt] = len(chunks)
                for chunk in chunks:
                    self._send(topic, slice_number, chunk)
            start, end = (Timestamp.of(dict(enumerate(one)), TOPIC_ID) for one in (starts, ends))
            message = encode(BatchEnd(build, INDEX, slice_number, "r1", number, start, end, winners))
            self._send(topic, slice_number, message)
        self.flush()

    def end_build(
        self,
        batches: int,
        build: str = BUILD,
        slices: Sequence[int] = range(SLICES),
        queue_position: int = 0,
    ) -> None:
        for slice_number in slices:
            message = encode(BuildEnd(build, INDEX, slice_number, 1, batches, queue_position))
            self._send(self.topics.backfill(INDEX, build), slice_number, message)
        self.flush()

    def _chunks(
        self, number: int, starts: list[int], ends: list[int], slice_number: int, attempt: str, build: str
    ) -> list[bytes]:
        chunks: list[bytes] = []
        entries: list[tuple[bytes, Version]] = []
        for partition, versions in enumerate(self.history):
            newest = {one.id: one for one in versions[starts[partition] : ends[partition]]}
            heard = sorted(newest.values(), key=lambda one: one.offset)
            self.built[partition] += heard
            removal = removal_chunk(
                heard,
                build=build,
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
                build=build,
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

    def read(self, number: int, incarnation: int | None = None) -> list[dict[bytes, bytes]]:
        """The entries of every slice at a snapshot number, over HTTP."""
        reply = self.ask(number, incarnation)
        assert not any(one.gone for one in reply.slices), reply
        return [dict(one.entries) for one in reply.slices]

    def ask(self, number: int, incarnation: int | None = None) -> ReadReply:
        """What the node answers when it is asked for everything at a snapshot number."""
        under = self.incarnation if incarnation is None else incarnation
        slices = list(range(SLICES))
        body = ReadMessage(INDEX, number, under, slices, [(b"", None)], [b""] * SLICES, False, 100_000)
        request = urllib.request.Request(
            self.url() + READ_PATH, msgspec.msgpack.encode(body), of_the_cluster("00"), method="POST"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return msgspec.msgpack.decode(answer.read(), type=ReadReply)

    def check(self, number: int, offsets: list[int], incarnation: int | None = None) -> None:
        """Every slice at a number equals the source at its timestamp."""
        at = dict(enumerate(offsets))
        for slice_number, rows in enumerate(self.read(number, incarnation)):
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
    first = bench.start()
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
    bench.wait_status(lambda one: one.state == "CATCHUP", "the build went on where it was")
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
        assert seconds < max(30.0, 3 * first), "a node serves again at once"
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
    [{"KEYTIDE_INDEXER__NODE_QUEUE_BYTES": "1", "KEYTIDE_INDEXER__CHECK_MIRROR_S": "1000"}],
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


# --- what is lost, and rolled back ----------------------------------------------------------------------

FOLDING = "KEYTIDE_INDEXER__DELTA_AGE_S"
FOLDS = {FOLDING: "1"}


@pytest.mark.parametrize("bench", [FOLDS], indirect=True)
def test_a_slice_that_was_away_for_too_long_says_so_and_is_rebuilt_alone(bench: Bench) -> None:
    bench.place("BUILDING")
    bench.start()
    build(bench)
    bench.agree()
    bench.place("READY")
    bench.write(200)
    bench.send(most=20)
    bench.agree()
    bench.wait_status(lambda one: one.queue_position > 0, "folds moved the bases")
    assert all(0 <= one.queue_horizon <= one.queue_position for one in bench.status.values())
    bench.node.kill()
    bench.status = {}
    bench.write(200)
    bench.send(most=20)
    bench.forget_queue(0)
    bench.start()

    def lost() -> bool:
        bench.listen()
        return len(bench.status) == SLICES and bench.status[0].state == "LOST"

    wait_for(lost, lambda: f"slice 0 is lost; {bench.status}\n{bench.node.tail(30)}")
    assert "longer than the queue is kept" in bench.status[0].reason
    assert bench.status[0].queue_horizon == -1
    number = bench.stamp()

    def other_serves() -> bool:
        bench.listen()
        return bench.acked.get(number) == {1}

    wait_for(other_serves, lambda: f"slice 1 goes on; {bench.status}\n{bench.node.tail(30)}")

    create_topic(admin(bench.settings), bench.topics.backfill(INDEX, "r-1"), SLICES)
    bench.rebuild("r-1", 0, "BACKFILL")
    position = bench.queue_end(0)
    ends = [len(versions) for versions in bench.history]
    bench.backfill(0, ends, [0] * PARTITIONS, "r-1", [0])
    bench.write(100)
    bench.send(most=30)
    bench.end_build(1, "r-1", [0], position)
    bench.agree()
    bench.rebuild("r-1", 0, "READY")
    number = bench.agree()
    wait_for(lambda: not any(one.gone for one in bench.ask(number).slices), lambda: f"{bench.ask(number)}")
    bench.check(number, bench.sent)
    bench.wait_status(lambda one: one.state == "LIVE" and one.queue_horizon >= 0, "all LIVE again")
    bench.node.kill()
    bench.start()
    bench.check(bench.agree(), bench.sent)


@pytest.mark.parametrize("bench", [{}, FOLDS], indirect=True, ids=["deltas", "folds"])
def test_slices_roll_back_with_their_keyspace_running_or_away(bench: Bench) -> None:
    bench.place("BUILDING")
    bench.start()
    build(bench)
    bench.agree()
    bench.place("READY")

    def lose_some(away: bool = False, told_late: bool = False) -> None:
        """Records past a snapshot are lost; others are written in their place."""
        bench.write(60)
        bench.send(most=7)
        kept, at = bench.agree(), list(bench.sent)
        bench.publish(kept)
        void = []
        for _ in range(3):
            bench.write(40)
            bench.send(most=7)
            void.append(bench.agree())
            if FOLDING in bench.environment:
                reached = {number: one.queue_position for number, one in bench.status.items()}
                bench.wait_status(
                    lambda one, before=reached: one.queue_position > before[one.slice],  # type: ignore[misc]
                    "a fold past the snapshot",
                )
        before = bench.incarnation
        if away:
            bench.node.kill()
            bench.status = {}
        bench.lose(at)
        if told_late:
            bench.write(50)
            bench.send(most=7)
            for _ in range(2):
                bench.status = {}
                bench.wait_status(lambda one: one.incarnation == before, "another heartbeat")
        bench.roll_back(kept, at)
        bench.write(90)
        bench.send(most=7, back=3)
        if away:
            bench.start()
        number = bench.agree()
        bench.check(number, bench.sent)
        bench.wait_status(lambda one: one.incarnation == bench.incarnation, "all know of the rollback")
        if not away:
            bench.check(kept, at, before)  # still held, and as it was
        for one in void:
            with pytest.raises(urllib.error.HTTPError, match="503"):
                bench.read(one, before)

    lose_some()
    lose_some(away=True)
    lose_some(told_late=True)
