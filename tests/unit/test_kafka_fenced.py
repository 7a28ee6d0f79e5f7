"""A Kafka whose only broker stood still says for a moment that it has none: no process ends of that."""

from __future__ import annotations

import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, libversion

from keytide.kafka.broker_watch import BrokerWatch
from keytide.kafka.clients import Producer
from keytide.kafka.lasting_producer import LastingProducer
from keytide.kafka.topics import producer
from keytide.settings.settings import load_settings
from tests.waiting import wait_for

ASKING = """
import sys
from keytide.kafka.admin import KafkaUnavailableError, admin, describe_topics
from keytide.kafka.identity import cluster_id
from keytide.settings.settings import load_settings
from tests.waiting import wait_for

with admin(load_settings(kafka={"bootstrap": sys.argv[1]})) as client:
    print(cluster_id(client, None, 10), flush=True)
    sys.stdin.readline()
    for ask in (lambda: cluster_id(client, None, 2), lambda: cluster_id(client, "metadata", 2),
                lambda: describe_topics(client, ["metadata"], 2)):
        try:
            print(ask())
        except KafkaUnavailableError:
            print("unavailable")
"""
API_VERSIONS, METADATA = 18, 3


class Broker(socketserver.ThreadingTCPServer):
    """Answers requests for versions and metadata, as the only broker, or as one that is fenced."""

    daemon_threads = True
    allow_reuse_address = True
    fenced = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def metadata(self, asked: list[str]) -> bytes:
        """Version 4 of the answer: brokers, the cluster's id, its controller, topics."""
        here = b"\x00\x09127.0.0.1" + struct.pack(">i", self.port)
        brokers = struct.pack(">i", 0) if self.fenced else struct.pack(">ii", 1, 1) + here + b"\xff\xff"
        unknown = [struct.pack(">hh", 3, len(one)) + one.encode() + b"\0" + bytes(4) for one in asked]
        controller = -1 if self.fenced else 1
        return (
            bytes(4)  # throttled for 0 ms
            + brokers
            + b"\x00\x02K1"
            + struct.pack(">ii", controller, len(unknown))
            + b"".join(unknown)
        )


class Answers(socketserver.BaseRequestHandler):
    request: socket.socket
    server: Broker

    def handle(self) -> None:
        while head := self.request.recv(4, socket.MSG_WAITALL):
            body = self.request.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
            kind, version, number = struct.unpack_from(">hhi", body)
            if kind == API_VERSIONS:
                kinds = [(API_VERSIONS, 0, 3), (METADATA, 4, 4)]
                if version >= 3:
                    told = b"".join(struct.pack(">hhhx", *one) for one in kinds)
                    answer = struct.pack(">hB", 0, len(kinds) + 1) + told + bytes(5)
                else:
                    told = b"".join(struct.pack(">hhh", *one) for one in kinds)
                    answer = struct.pack(">hi", 0, len(kinds)) + told + bytes(4)
            else:
                answer = self.server.metadata(_topics(body))
            self.request.sendall(struct.pack(">ii", len(answer) + 4, number) + answer)


def _topics(request: bytes) -> list[str]:
    """The topics that a request for metadata (version 4) names."""
    at = 8 + 2 + max(0, struct.unpack_from(">h", request, 8)[0])
    count, at, found = struct.unpack_from(">i", request, at)[0], at + 4, []
    for _ in range(count):
        (size,) = struct.unpack_from(">h", request, at)
        found.append(request[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return found


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_kafka_without_a_broker_is_unavailable_and_ends_no_process(broker: Broker) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKING, f"127.0.0.1:{broker.port}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as asking:
        try:
            assert asking.stdout is not None
            assert asking.stdin is not None
            assert asking.stdout.readline() == "K1\n"
            broker.fenced = True
            said, _ = asking.communicate("go on\n", timeout=300)
        finally:
            asking.kill()
    assert asking.returncode == 0
    whole, of_a_topic, described, nothing = said.split("\n")
    assert (whole, described, nothing) == ("unavailable", "unavailable", "")
    # By now librdkafka may have dropped its last connection: one in ten times, on a busy machine.
    assert of_a_topic in ("K1", "unavailable")
    assert asking.returncode == 0


class Writing:
    """Something that writes to a topic, and whose producer asks for its brokers again and again."""

    def __init__(self, broker: Broker) -> None:
        self.made: list[Producer] = []
        self._settings = load_settings(kafka={"bootstrap": f"127.0.0.1:{broker.port}", "log_level": 0})
        self._lasting = LastingProducer(
            self._make, "t", BrokerWatch(lambda _: not broker.fenced, limit_s=1.0)
        )
        self.write()
        assert self.made[0].list_topics(timeout=60).brokers

    def _make(self) -> Producer:
        quick = {"statistics_interval_ms": 50, "topic_metadata_refresh_interval_ms": 100}
        self.made.append(producer(self._settings, enable_idempotence=False, **quick))
        return self.made[-1]

    def write(self) -> None:
        with suppress(KafkaException):  # (the topic is unknown)
            self._lasting.produce("t", b"x")

    def has_broker(self, wanted: bool) -> bool:
        self._lasting.poll(0.05)
        return self.made[-1].has_broker is wanted

    def goes_on(self) -> bool:
        self.write()
        return self.has_broker(True)

    def has_in_time(self, wanted: bool) -> bool:
        """As `has_broker`, within some seconds."""
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            if self.has_broker(wanted):
                return True
        return False


@pytest.mark.slow
def test_a_producer_that_was_told_of_no_broker_is_without_for_good_and_another_one_goes_on(
    broker: Broker,
) -> None:
    """librdkafka's issue 5301, which strikes now and then."""
    for _ in range(20):
        writing = Writing(broker)
        broker.fenced = True
        lost = writing.has_in_time(False)
        broker.fenced = False
        wait_for(writing.goes_on, "a broker again", 60)
        if len(writing.made) > 1:
            assert lost
            break
    else:
        assert libversion()[0] > "2.16.0", "it is mended"
