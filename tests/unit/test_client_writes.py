"""Read your own writes: delivery reports of confluent-kafka and kafka-python, and of anything like them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from kafka.errors import KafkaTimeoutError
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata, RecordMetadata
from kafka.structs import TopicPartition

from keytide.client import MisuseError, UndeliveredError, Writes
from keytide.errors import CallerError
from tests.unit.client_kit import MOMENT, Face


def message(
    offset: int | None, topic: str = "users", partition: int = 0, epoch: int | None = None
) -> Message:
    given: dict[str, Any] = {
        name: value for name, value in (("offset", offset), ("leader_epoch", epoch)) if value is not None
    }
    return Message(topic, partition, **given)


def metadata(offset: int, topic: str = "users", partition: int = 0) -> RecordMetadata:
    return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, 0, None, 0, 0, 0)


def sent(partition: int = 0) -> tuple[FutureProduceResult, FutureRecordMetadata]:
    """kafka-python's future of a record that is on its way."""
    result = FutureProduceResult(TopicPartition("users", partition))
    return result, FutureRecordMetadata(result, 0, 0, None, 0, 0, 0)


def test_confluent_s_callbacks() -> None:
    writes = Writes()
    assert not writes
    assert writes.at_least() == {}
    for one in (message(41), message(7, partition=2, epoch=3), message(12), message(5, partition=2, epoch=3)):
        writes.on_delivery(None, one)
    assert writes.at_least() == {"0": 42, "2": {"offset": 8, "epoch": 3}}
    assert writes
    assert writes.topic == "users"
    assert "42" in repr(writes)


def test_kafka_python_s_metadata_and_futures() -> None:
    writes = Writes("users")
    assert writes.delivered(metadata(0)).at_least() == {"0": 1}
    first, future = sent(1)
    done, finished = sent(2)
    done.success((6, None, None))
    writes.delivered(future).delivered(finished)
    assert writes.waiting == 1
    with pytest.raises(MisuseError, match="1 records are not acknowledged yet") as caught:
        writes.at_least()
    assert "flush" in caught.value.next_step
    first.success((9, None, None))
    assert writes.at_least() == {"0": 1, "1": 10, "2": 7}
    assert writes.waiting == 0


def test_other_futures() -> None:
    async def main() -> None:
        writes = Writes()
        loop = asyncio.get_running_loop()
        good, cancelled = loop.create_future(), loop.create_future()
        good.set_result(message(3))
        writes.delivered(good).delivered(cancelled)
        await asyncio.sleep(0)
        assert writes.waiting == 1
        cancelled.cancel()
        await asyncio.sleep(0)
        assert (writes.waiting, writes.failed) == (0, 1)

    asyncio.run(main())
    future: Future[Any] = Future()
    future.set_result(metadata(4))
    assert Writes().delivered(future).at_least() == {"0": 5}


def test_records_that_were_not_written() -> None:
    writes = Writes("users")
    writes.delivered(metadata(0))
    writes.on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), message(None))
    result, future = sent()
    result.failure(KafkaTimeoutError("no broker"))
    writes.delivered(future)
    assert (writes.failed, writes.waiting) == (2, 0)
    with pytest.raises(
        UndeliveredError, match="2 records were not written, the first one because of: KafkaError"
    ):
        writes.at_least()
    writes.forget_failed()
    assert writes.at_least() == {"0": 1}
    failed = Message("users", 0, error=KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(UndeliveredError):
        writes.delivered(failed)
    writes.forget_failed()
    writes.on_delivery(None, failed)
    assert writes.failed == 1
    writes.forget_failed()
    assert writes.at_least() == {"0": 1}


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (metadata(1, topic="orders"), "topic 'orders'"),
        (metadata(-1), "no offset"),
        (message(None), "no offset"),
        (message(-1001), "no offset"),
        ("text", "no delivery report"),
        (None, "no delivery report"),
        (Message(), "no delivery report"),
    ],
)
def test_reports_that_say_nothing_of_use(report: Any, why: str) -> None:
    with pytest.raises(MisuseError, match=why) as caught:
        Writes("users").delivered(report)
    assert caught.value.next_step
    writes = Writes("users")
    writes.on_delivery(None, report)  # in the producer's thread: nothing is raised there
    with pytest.raises(MisuseError, match=why):
        writes.at_least()
    writes.clear()
    assert writes.at_least() == {}
    assert writes.topic == "users"


def test_reports_from_several_threads() -> None:
    writes = Writes()

    def report(partition: int) -> None:
        for offset in range(200):
            writes.on_delivery(None, metadata(offset, partition=partition % 2))

    threads = [threading.Thread(target=report, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert writes.at_least() == {"0": 200, "1": 200}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_scan_demands_them_of_the_right_index(kind: Any) -> None:
    indexes: Any = [
        {"name": "by_city", "keyspace": "users", "state": "READY"},
        {"name": "by_customer", "keyspace": "orders", "state": "READY"},
    ]
    count = {**MOMENT, "count": 1}
    node = Face(kind, indexes, count, count, indexes, count, indexes, count)
    writes = Writes().delivered(metadata(41))
    node.do(lambda client: client.count("by_city", at_least=writes))
    node.do(lambda client: client.count("by_city", at_least=writes))
    assert node.asked[1:] == [{"at_least": {"0": 42}}, {"at_least": {"0": 42}, "session": "s7"}]
    with pytest.raises(CallerError, match="'users', and index 'by_customer' is of 'orders'") as caught:
        node.do(lambda client: client.count("by_customer", at_least=writes))
    assert caught.value.problem_type == "wrong-topic"
    node.do(lambda client: client.count("by_city", at_least=Writes()))
    assert "at_least" not in node.asked[-1]
    node.do(lambda client: client.count("new", at_least=writes))  # not known: the node says what is wrong
    assert node.asked[-1]["at_least"] == {"0": 42}
    node.close()


def test_a_timestamp_of_an_answer_is_a_demand_too() -> None:
    node = Face("sync", {**MOMENT, "count": 1}, {**MOMENT, "count": 1})
    seen = node.client.count("i")
    node.client.count("i", at_least=seen.timestamp)
    assert node.asked[1]["at_least"] == {"0": {"offset": 4, "epoch": 1}}
    node.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_query_demands_them_of_the_right_keyspace(kind: Any) -> None:
    indexes: Any = [{"name": "by_customer", "keyspace": "orders", "state": "READY"}]
    answer = {**MOMENT, "columns": ["id"], "rows": [["a"]], "index": "by_customer", "page": None}
    node = Face(kind, answer, indexes, answer, indexes)
    writes = Writes().delivered(metadata(41))
    with pytest.raises(CallerError, match="'users', and index 'by_customer' is of 'orders'"):
        node.read(node.client.query("SELECT id FROM orders", at_least=writes))
    ours = Writes("orders").delivered(metadata(41, topic="orders"))
    assert node.read(node.client.query("SELECT id FROM orders", at_least=ours)) == [["a"]]
    node.close()
