"""A peer's turn: a Kafka of its own, the topic in it, and how its rate is counted.

Theory of operation: every turn begins alike. A broker starts in a temporary folder with an empty topic; the
peer starts, and has its partitions; then it is stopped (SIGSTOP) while the topic is filled, always with the
same documents. The clock starts when it may go on, and stops when the last document of each source partition
can be found in it. So nobody's start counts, and nobody has read ahead: it is what `live` does with Keytide's
projector. Processes are children of this one (`deploy.process`): they end with it, however it ends.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from benchmarks.documents import CITIES, PARTITIONS, load
from benchmarks.harness import percentiles, progress_line
from benchmarks.patience import limit
from benchmarks.peers.spread import RATE
from benchmarks.throughput import TOPIC
from benchmarks.watching import Watch, calm
from deploy.kafka import EmbeddedKafka
from deploy.process import ChildDiedError, ChildProcess, NotReadyError
from keytide.errors import invariant
from keytide.kafka.clients import AdminClient

START_LIMIT_S: Final = 120.0
SLOWEST_PER_S: Final = 2_000
"""Who indexes fewer documents a second is given up."""
_POLL_S: Final = 0.01
ROWS: Final = 100
SCANS: Final = 3_000
WARM_UP: Final = 200


@dataclass(frozen=True, slots=True)
class Turn:
    """A Kafka with the topic, which is empty at first.

    Attributes:
        folder: temporary, for whatever the peer writes.
        documents: how many there will be.
    """

    kafka: EmbeddedKafka
    folder: Path
    documents: int

    @property
    def limit_s(self) -> float:
        """For what takes the longer the more documents there are."""
        return limit(START_LIMIT_S + self.documents / SLOWEST_PER_S)

    def fill(self) -> dict[int, int]:
        """Write all documents; the next offset of each partition."""
        load(self.kafka.bootstrap, TOPIC, range(self.documents))
        with _consumer(self.kafka.bootstrap) as consumer:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)[1]
                for partition in range(PARTITIONS)
            }

    def lasts(self, ends: Mapping[int, int]) -> list[tuple[str, str, int]]:
        """Id, city and age of the last document of each partition that has any."""
        with _consumer(self.kafka.bootstrap) as consumer:
            places = [TopicPartition(TOPIC, partition, end - 1) for partition, end in ends.items() if end]
            consumer.assign(places)
            found: list[tuple[str, str, int]] = []
            deadline = time.monotonic() + limit(START_LIMIT_S)
            while len(found) < len(places):
                invariant(time.monotonic() < deadline, "BenchmarkPeer", "the last documents cannot be read")
                for message in consumer.consume(len(places), 1.0):
                    if message.error() is None:
                        document = json.loads(message.value() or b"")
                        found.append(((message.key() or b"").decode(), document["city"], document["age"]))
            return found

    def measure(
        self,
        children: Sequence[ChildProcess],
        found: Callable[[Mapping[int, int]], Callable[[], bool]],
    ) -> dict[str, float]:
        """Fill the topic while the children stand still, then let them go on until all is found.

        Args:
            found: given the next offsets of all partitions, what is asked again and again whether all of it
                can be found.

        Raises:
            ChildDiedError: one of them ended first.
            NotReadyError: it takes longer than `limit_s`.
        """
        _signal(children, signal.SIGSTOP)
        try:
            all_found = found(self.fill())
            watch = Watch(lambda: {"kafka": self.kafka.pid, **{one.name: one.pid for one in children}})
            began = time.monotonic()
        finally:
            _signal(children, signal.SIGCONT)
        try:
            wait(children, all_found, self.limit_s, "has all documents")
            seconds = time.monotonic() - began
        finally:
            watch.stop()
        return rate(self.documents, seconds, watch)


def rate(documents: int, seconds: float, watch: Watch) -> dict[str, float]:
    """Figures of a stretch that was measured: documents per second, what it cost, peak memory but Kafka's."""
    memory = sum(mb for name, mb in watch.peak_mb.items() if name != "kafka")
    return {
        RATE: round(documents / seconds),
        "cpu_us_per_document": round(1e6 * sum(watch.seconds.values()) / documents, 1),
        "peak_memory_mb": memory,
    }


@contextmanager
def begin(documents: int) -> Iterator[Turn]:
    """A Kafka with an empty topic, in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="keytide-peer-"))
    try:
        with EmbeddedKafka(folder / "kafka") as kafka:
            _make_topic(kafka.bootstrap)
            yield Turn(kafka, folder, documents)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_topic(bootstrap: str) -> None:
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(timeout=30)


def wait(children: Sequence[ChildProcess], done: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait until something is so of children that run. Raises as `Turn.measure`."""
    began = time.monotonic()
    while not done():
        for child in children:
            if not child.running:
                raise ChildDiedError(f"{child.name} ended before it {what}:\n{child.tail()}")
        waited = time.monotonic() - began
        if waited > limit_s:
            raise NotReadyError(f"{limit_s:.0f} s were not enough until {children[0].name} {what}")
        progress_line(f"{children[0].name}: {waited:.0f} s")
        time.sleep(_POLL_S)
    progress_line("")


def ranges(ask: Callable[[str, int], Sequence[object]]) -> dict[str, float]:
    """Figures of pages of 100 rows from a random city on, one after the other over one connection.

    Args:
        ask: given the first city and the number of rows, gives the rows.
    """
    calm()
    chance = random.Random(7)
    samples: list[float] = []
    for number in range(WARM_UP + SCANS):
        low = f"city-{chance.randrange(CITIES - 100):05}"
        began = time.perf_counter()
        rows = ask(low, ROWS)
        took = (time.perf_counter() - began) * 1000
        if number >= WARM_UP:
            samples.append(took)
        elif number == 0:
            invariant(len(rows) == ROWS, "BenchmarkPeer", f"{len(rows)} rows from {low} on")
    return range_figures(percentiles(samples))


def range_figures(found: Mapping[str, float]) -> dict[str, float]:
    """Percentiles of ranges by the names that they have in a run."""
    return {f"range_{name}": value for name, value in found.items()}


def get(connection: http.client.HTTPConnection, path: str) -> bytes:
    """What a peer answers. Java's server closes a connection that nothing comes by for half a minute, and on
    a busy machine the topic is filled for longer: then another one is made, and the same is asked again."""
    connection.request("GET", path)
    try:
        response = connection.getresponse()
    except ConnectionResetError:
        connection.request("GET", path)
        response = connection.getresponse()
    answer = response.read()
    invariant(response.status == 200, "BenchmarkPeer", f"{path}: {answer[:300].decode(errors='replace')}")
    return answer


def _signal(children: Sequence[ChildProcess], number: signal.Signals) -> None:
    for child in children:
        if child.running:
            os.kill(child.pid, number)


@contextmanager
def _consumer(bootstrap: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()
