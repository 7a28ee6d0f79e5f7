"""Both Python clients on a real cluster: everything they offer, and reading what real producers wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest.mock import ANY

import confluent_kafka
import psutil
import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from keytide import AsyncClient, Client, Writes
from keytide.cli import app
from keytide.client import SnapshotGoneError
from keytide.errors import CallerError
from keytide.process.clock import now_ms
from tests.chaos.processes import stopped
from tests.integration.world import World

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

CITIES = ["Aachen", "Bonn", "Boston", "Zürich"]
PEOPLE = 400
Wait = Callable[[Any], Any]


def person(number: int, city: str | None = None) -> bytes:
    document = {"city": city or CITIES[number % 4], "n": number, "name": f"name{number}"}
    return json.dumps(document).encode()


@pytest.fixture(scope="module")
def world(shared_world: World) -> World:
    statement = "CREATE INDEX {0} ON {1} INCLUDE (name) WITH (slices=4, defer_build=true)"
    shared_world.begin_empty("readers", "by_city", statement.format("by_city", "readers (city, n)"), 3)
    shared_world.begin_empty("orders", "by_order", statement.format("by_order", "orders (city)"), 1)
    producer = KafkaProducer(bootstrap_servers=shared_world.bootstrap)
    for number in range(PEOPLE):
        producer.send("readers", key=f"p{number:03}".encode(), value=person(number))
    producer.close()
    shared_world.wait_shown("readers", "by_city")
    return shared_world


class Face:
    """One of the two clients, and how to wait for what its calls bring."""

    def __init__(self, kind: str, urls: list[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self.client: Any = Client(urls) if kind == "sync" else AsyncClient(urls)
        self.sync = kind == "sync"

    def wait(self, made: Any) -> Any:
        return made if self.sync else self._loop.run_until_complete(made)

    def next(self, result: Any) -> Any:
        return next(result) if self.sync else self.wait(anext(result))

    def enter(self, manager: Any) -> Any:
        return manager.__enter__() if self.sync else self.wait(manager.__aenter__())

    def exit(self, manager: Any) -> None:
        nothing = (None, None, None)
        manager.__exit__(*nothing) if self.sync else self.wait(manager.__aexit__(*nothing))

    def close(self) -> None:
        self.wait(self.client.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest, world: World) -> Iterator[Face]:
    made = Face(request.param, world.cluster.node_urls)
    yield made
    made.close()


def by_confluent(world: World, documents: Mapping[str, bytes | None]) -> Writes:
    """Write with confluent-kafka; the delivery reports."""
    writes = Writes("readers")
    # kafka-python's partitioner is Java's; a document must stay in its partition whoever writes it.
    config: dict[str, Any] = {
        "bootstrap.servers": world.bootstrap,
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
    }
    producer = confluent_kafka.Producer(config)
    for id_, document in documents.items():
        producer.produce("readers", document, id_.encode(), on_delivery=writes.on_delivery)
    assert producer.flush(30) == 0
    return writes


def by_kafka_python(world: World, documents: Mapping[str, bytes | None]) -> Writes:
    """Write with kafka-python; futures, some of them as the metadata that they bring."""
    writes = Writes()
    producer = KafkaProducer(bootstrap_servers=world.bootstrap, acks="all", linger_ms=20)
    for number, (id_, document) in enumerate(documents.items()):
        future = producer.send("readers", key=id_.encode(), value=document)
        writes.delivered(future if number % 2 else future.get(30))
    producer.flush(30)
    producer.close()
    return writes


@pytest.mark.parametrize("write", [by_confluent, by_kafka_python])
def test_writes_are_read_at_once(
    world: World, face: Face, write: Callable[[World, Mapping[str, bytes | None]], Writes]
) -> None:
    for turn in range(5):
        city = f"{write.__name__}-{face.sync}-{turn}"
        ids = [f"w{number}" for number in range(20)]
        writes = write(world, {id_: person(number, city) for number, id_ in enumerate(ids)})
        assert writes.topic == "readers"
        rows = face.wait(face.client.scan("by_city", equals=[city], at_least=writes).to_list())
        assert [row.id for row in rows] == ids
        assert [row.include for row in rows] == [{"name": f"name{number}"} for number in range(20)]
        with pytest.raises(CallerError) as caught:
            face.wait(face.client.count("by_order", at_least=writes))
        assert caught.value.problem_type == "wrong-topic"
    gone = write(world, dict.fromkeys(ids))
    assert face.wait(face.client.count("by_city", equals=[city], at_least=gone)).count == 0


def test_one_moment_in_every_form(world: World, face: Face) -> None:
    wait, client = face.wait, face.client
    assert {one.name: one.keyspace for one in wait(client.indexes())} == {
        "by_city": "readers",
        "by_order": "orders",
    }
    held = client.snapshot("by_city", lease_s=30)
    at = face.enter(held)
    token = at.at
    expected = sorted((CITIES[number % 4], number, f"p{number:03}") for number in range(PEOPLE))
    moved = {f"p{number:03}": person(number, "Elsewhere") for number in range(0, PEOPLE, 2)}
    writes = by_confluent(world, moved)
    try:
        assert wait(client.count("by_city", equals=["Elsewhere"], at_least=writes)).count == PEOPLE // 2
        scan = at.scan(page_size=70)
        assert [(*row.key, row.id) for row in wait(scan.to_list())] == expected
        assert scan.snapshot == at.snapshot
        table = wait(at.scan().to_arrow())
        columns = [table.column(name).to_pylist() for name in ("city", "n", "id")]
        assert list(zip(*columns, strict=True)) == expected
        frame = wait(at.scan(equals=["Bonn"]).to_pandas())
        assert frame["n"].sum() == sum(range(1, PEOPLE, 4))
        assert sum(wait(at.count(slices=[one])).count for one in range(at.slices)) == PEOPLE
        groups = wait(at.aggregate(["count", "sum(n)"], group_by=["city"])).groups
        assert {group.key[0]: group.values["sum(n)"] for group in groups} == {
            city: sum(range(first, PEOPLE, 4)) for first, city in enumerate(CITIES)
        }
        query = at.query("SELECT id, n FROM readers WHERE city = 'Boston' AND n < 50", page_size=5)
        assert wait(query.to_list()) == [[f"p{number:03}", number] for number in range(2, 50, 4)]
        assert (query.columns, query.index, query.snapshot) == (["id", "n"], "by_city", at.snapshot)
    finally:
        face.exit(held)
    with pytest.raises(SnapshotGoneError):
        wait(client.count("by_city", at=token))
    plan = wait(client.explain("SELECT id FROM readers WHERE city = 'Boston'"))
    assert plan["index"] == "by_city"
    with pytest.raises(CallerError) as caught:
        wait(client.query("SELECT id FROM readers WHERE name = 'x'").to_list())
    assert caught.value.problem_type == "no-index"
    assert "CREATE INDEX" in caught.value.next_step
    back = by_confluent(world, {id_: person(int(id_[1:])) for id_ in moved})
    assert wait(client.count("by_city", at_least=back)).count == PEOPLE


def test_a_tail_hears_of_moves(world: World, face: Face) -> None:
    face.wait(face.client.count("by_city", at_least=by_confluent(world, {"t1": None, "t2": None})))
    tail = face.client.tail("by_city", equals=["Tailed"], initial=True)
    first = face.next(tail)
    assert (first.first, first.added) == (True, [])
    known: set[str] = set()
    by_confluent(world, {"t1": person(1, "Tailed"), "t2": person(2, "Tailed")})
    while known != {"t1", "t2"}:
        event = face.next(tail)
        known |= {row.id for row in event.added}
    token = tail.token
    face.wait(tail.close())
    by_kafka_python(world, {"t1": person(1, "Left"), "t2": None})
    again = face.client.tail("by_city", equals=["Tailed"], resume=token)
    while known:
        event = face.next(again)
        assert not event.added
        known -= {row.id for row in event.removed}
    face.wait(again.close())


def test_streams_bit_by_bit(world: World, face: Face) -> None:
    batches = face.client.scan("by_city", columns=["id"]).batches(any_order=True)
    lines = face.client.scan("by_city", limit=PEOPLE).ndjson()
    ids: set[str] = set()
    rows: list[Any] = []
    for part, take in ((batches, ids.update), (lines, rows.extend)):
        end = StopIteration if face.sync else StopAsyncIteration
        while True:
            try:
                one = face.next(part)
            except end:
                break
            take(one.column("id").to_pylist() if part is batches else map(json.loads, one.splitlines()))
    assert {f"p{number:03}" for number in range(PEOPLE)} <= ids
    assert rows == sorted(rows, key=lambda row: (row["key"], row["id"]))
    assert len(rows) == PEOPLE


def traced(world: World, *words: str, status: int = 0) -> dict[str, Any]:
    """What `keytide trace` tells of a document, as JSON."""
    where = ("--kafka", world.bootstrap, "--cluster", world.cluster.name, "--url", world.admin.url)
    result = CliRunner().invoke(app, ["trace", *words, *where, "--json"])
    assert result.exit_code == status, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_document_is_traced_hop_by_hop(world: World) -> None:
    began = now_ms()
    writes = by_confluent(world, {"x1": person(1, "Traced")})
    with world.client() as client:
        client.count("by_city", at_least=writes)
        (row,) = client.scan("by_city", equals=["Traced"]).to_list()
    told = traced(world, "readers", "x1")
    record, (index,) = told["record"], told["indexes"]
    assert writes.at_least()[str(record["partition"])] in (
        record["offset"] + 1,
        {"offset": record["offset"] + 1, "epoch": ANY},
    )
    assert (index["index"], index["state"], index["shown"]) == ("by_city", "READY", True)
    hops = {one["hop"]: one for one in index["hops"]}
    assert {one["state"] for one in hops.values()} == {"done"}
    times = [record["time"], *(one["at"] for one in hops.values())]
    assert times == sorted(times)
    assert began <= times[0]
    assert times[-1] <= now_ms()
    assert sum(one["took_ms"] for one in hops.values()) == times[-1] - times[0]
    assert [one["keys"] for one in index["slices"] if one["change"] == "keys"] == [1]
    assert [one["change"] for one in index["slices"]].count("removal") == 3
    assert index["entries"] == [{"key": [*row.key], "shown": True, "why": ""}]
    assert traced(world, "by_city", "nobody", status=1)["type"] == "document-not-found"


def test_a_trace_says_what_is_waited_for_and_what_was_skipped(world: World) -> None:
    projector = psutil.Process(world.cluster.services["projector-1"].pid)
    with stopped([projector]):
        writes = by_confluent(world, {"x2": b"no JSON"})
        (index,) = traced(world, "by_city", "x2")["indexes"]
    assert {one["state"] for one in index["hops"]} == {"waiting"}
    assert "1 records behind" in index["hops"][0]["waiting_for"]
    assert (index["shown"], index["outcome"]["reason"]) == (False, "not-json")
    with world.client() as client:
        client.count("by_city", at_least=writes)
        (index,) = traced(world, "by_city", "x2")["indexes"]
        assert {one["state"] for one in index["hops"]} == {"done"}
        assert [one["skip"].partition(":")[0] for one in index["slices"] if one["skip"]] == ["not-json"]
        client.count("by_city", at_least=by_confluent(world, {"x2": None}))
    (index,) = traced(world, "by_city", "x2")["indexes"]
    assert (index["outcome"]["kind"], index["shown"], index["entries"]) == ("deleted", True, [])
