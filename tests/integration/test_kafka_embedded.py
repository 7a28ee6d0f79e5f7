"""The embedded broker: it speaks to both clients, keeps its data through kill -9, and dies with its
parent."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaProducer

from deploy.kafka import MESSAGE_MAX_BYTES, EmbeddedKafka
from keytide.errors import CallerError
from keytide.kafka.identity import KafkaIdentity, WrongKafkaError
from keytide.settings.settings import load_settings
from tests.integration.conftest import TopicFactory
from tests.waiting import wait_for

pytestmark = pytest.mark.integration


def read_all(bootstrap: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """The first `count` records of partition 0, as (key, value)."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-all",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": MESSAGE_MAX_BYTES,
        }
    )
    try:
        consumer.subscribe([topic])
        records: list[tuple[bytes | None, bytes | None]] = []
        deadline = time.monotonic() + 30
        while len(records) < count:
            assert time.monotonic() < deadline, f"only {len(records)} of {count} records"
            for message in consumer.consume(count - len(records), 1.0):
                assert message.error() is None, message.error()
                key, value = message.key(), message.value()
                assert not isinstance(key, str)
                assert not isinstance(value, str)
                records.append((key, value))
        return records
    finally:
        consumer.close()


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(30)


def cluster_id(bootstrap: str) -> str | None:
    return AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).cluster_id


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Produce with confluent-kafka, and wait until all is acknowledged."""
    failed: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "message.max.bytes": MESSAGE_MAX_BYTES,
            "acks": "all",
        }
    )
    for value in values:
        producer.produce(
            topic, value, b"k", on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert failed == []


def test_kafka_python_writes_and_confluent_reads(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    name = topic()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all")
    try:
        for number in range(1000):
            producer.send(name, key=b"k%d" % number, value=b"v%d" % number)
        producer.flush(30)
    finally:
        producer.close()
    assert read_all(kafka.bootstrap, name, 1000) == [(b"k%d" % n, b"v%d" % n) for n in range(1000)]


def test_a_message_of_many_megabytes_goes_through(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    name = topic()
    large = os.urandom(20 * 1024 * 1024)
    produce(kafka.bootstrap, name, [large])
    assert read_all(kafka.bootstrap, name, 1)[0][1] == large


def test_topics_are_not_made_by_accident(kafka: EmbeddedKafka) -> None:
    # librdkafka waits this long for a topic that may be on its way
    patience = {"topic.metadata.propagation.max.ms": 200, "message.timeout.ms": 20_000}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, **patience})
    codes: list[int | None] = []
    producer.produce(
        "nobody-made-this", b"v", on_delivery=lambda error, _: codes.append(error.code() if error else None)
    )
    assert producer.flush(30) == 0
    assert codes == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).topics
    assert "nobody-made-this" not in topics


def test_it_listens_on_loopback_only(kafka: EmbeddedKafka) -> None:
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.Process(kafka.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def setting(bootstrap: str, topic: str, name: str) -> str:
    """A topic's setting, as the broker has it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    value = admin.describe_configs([resource])[resource].result(30)[name].value
    assert isinstance(value, str)
    return value


def test_records_do_not_expire_by_default(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    assert setting(kafka.bootstrap, topic(), "retention.ms") == "-1"


def test_a_topic_takes_its_own_settings(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    assert setting(kafka.bootstrap, topic(cleanup_policy="compact"), "cleanup.policy") == "compact"


@pytest.mark.fault
def test_data_and_port_survive_stop_kill_and_a_new_start(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "broker") as kafka:
        port, cluster = kafka.port, cluster_id(kafka.bootstrap)
        create(kafka.bootstrap, "kept")
        produce(kafka.bootstrap, "kept", [b"before the kill"])
        kafka.kill()
        assert not kafka.running
        assert kafka.returncode == -signal.SIGKILL
        kafka.start()
        produce(kafka.bootstrap, "kept", [b"before the restart"])
        kafka.restart()
        produce(kafka.bootstrap, "kept", [b"before the stop"])
    assert not kafka.running
    with EmbeddedKafka(tmp_path / "broker") as again:
        assert again.port == port
        assert cluster_id(again.bootstrap) == cluster
        values = [value for _, value in read_all(again.bootstrap, "kept", 3)]
    assert values == [b"before the kill", b"before the restart", b"before the stop"]


def test_a_temporary_broker_leaves_nothing_behind() -> None:
    with EmbeddedKafka() as kafka:
        folder, port = kafka.data_dir, kafka.port
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}).list_topics(timeout=1)


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CallerError, match=f"Port {port} on 127.0.0.1 is taken"):
            EmbeddedKafka(tmp_path / "broker", port).start()


@pytest.mark.fault
def test_it_dies_with_its_parent_on_kill_9(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.kafka", "--data-dir", str(tmp_path / "broker")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = parent.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+), process (\d+)", said)
        assert found is not None, said
        broker = psutil.Process(int(found[2]))
        assert broker.is_running()
        parent.kill()
    wait_for(lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE, "the broker is gone")


def test_ctrl_c_stops_it_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.kafka", "--data-dir", str(tmp_path / "broker")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert "127.0.0.1:" in parent.stdout.readline()
        parent.send_signal(signal.SIGINT)
        assert parent.wait(30) == 0
    assert "shut down" in (tmp_path / "broker" / "logs" / "kafka.log").read_text()


def test_another_kafka_at_the_same_address_is_seen_by_who_runs_and_by_who_starts(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "one") as kafka:
        port = kafka.port
        settings = load_settings(kafka={"bootstrap": kafka.bootstrap}, data_dir=tmp_path / "own")
        running = KafkaIdentity(settings)
        running.look()
        running.open()
    try:
        with EmbeddedKafka(tmp_path / "two", port):
            with pytest.raises(WrongKafkaError, match="what is here belongs to Kafka cluster"):
                KafkaIdentity(settings).look()
            with pytest.raises(WrongKafkaError):
                _checked(running, 60.0)
    finally:
        running.close()


def _checked(identity: KafkaIdentity, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        identity.check()
        time.sleep(0.05)
