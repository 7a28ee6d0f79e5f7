"""Validation on read against a real PostgreSQL and a real topic, and through a whole cluster."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sql
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from deploy.kafka import EmbeddedKafka
from indexer.validation.core.primary import (
    AnsweredDocument,
    PrimaryAnswer,
    PrimaryMisconfiguredError,
    PrimaryUnreachableError,
)
from indexer.validation.sql import SqlPrimary
from indexer.validation.topic import NO_VERSION, RECORD_GONE, TOO_FAR, TWO_PARTITIONS, TopicPrimary
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import PrimarySettings, load_settings
from tests.integration.conftest import TopicFactory, Worlds
from tests.integration.postgres import PASSWORD, Postgres
from tests.integration.world import World

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NOW = Timestamp()
Answers = dict[str, tuple[Any, int | None]]


# --- PostgreSQL -------------------------------------------------------------------------------------------


class Base:
    """A server with what tests do to it."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.engine = sql.create_engine(server.url, pool_pre_ping=True)
        self._primaries: list[SqlPrimary] = []

    def run(self, *statements: str, **parameters: Any) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(sql.text(statement), parameters)

    def primary(self, url: str = "", **settings: Any) -> SqlPrimary:
        given = {"kind": "sql", "url": url or self.server.url, **settings}
        self._primaries.append(SqlPrimary("people", PrimarySettings.model_validate(given)))
        return self._primaries[-1]

    def close(self) -> None:
        for primary in self._primaries:
            primary.close()
        self.engine.dispose()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as running:
        yield running


@pytest.fixture
def base(server: Postgres) -> Iterator[Base]:
    made = Base(server)
    made.run("DROP SCHEMA IF EXISTS public, shop CASCADE", "CREATE SCHEMA public")
    yield made
    made.close()


def look_up(
    primary: SqlPrimary, ids: Iterable[str], fields: Iterable[str] = ("city",), timeout_s: float = 10.0
) -> Answers:
    asked = [AnsweredDocument(id_.encode(), 0, 7) for id_ in ids]
    answers = primary.documents(asked, list(fields), NOW, timeout_s)
    return {
        one.id.decode(): (None if a.document is None else json.loads(a.document), a.position)
        for one, a in zip(asked, answers, strict=True)
    }


@pytest.mark.parametrize("kind", ["text", "json", "jsonb", "bytea"])
def test_documents_come_as_they_are_stored(base: Base, kind: str) -> None:
    base.run("CREATE SCHEMA shop", f"CREATE TABLE shop.people (id text PRIMARY KEY, doc {kind})")
    document = {"city": "Zürich ☃", "n": 12345678901234567890123, "f": 5.0, "t": [None, True, {"a": "\\"}]}
    value: Any = json.dumps(document)
    with base.engine.begin() as connection:
        connection.execute(
            sql.text(f"INSERT INTO shop.people VALUES ('a', CAST(:doc AS {kind})), ('b', NULL)"),
            {"doc": value.encode() if kind == "bytea" else value},
        )
    primary = base.primary(table="shop.people", document_column="doc")
    assert look_up(primary, ["b", "a", "c", "nul\x00"]) == {
        "a": (document, None),
        **dict.fromkeys(["b", "c", "nul\x00"], (None, None)),
    }


def test_ids_of_a_fixed_length_are_found_without_their_padding(base: Base) -> None:
    base.run(
        "CREATE TABLE people (id char(6) PRIMARY KEY, doc text)",
        "INSERT INTO people SELECT i, json_build_object('city', n)::text "
        "FROM (VALUES ('u1', 1), ('u2', 2), ('123456', 3)) AS made (i, n)",
    )
    primary = base.primary(table="people", document_column="doc")
    assert look_up(primary, ["u1", "u2    ", "123456", "u3", "1234567"]) == {
        "u1": ({"city": 1}, None),
        "u2    ": ({"city": 2}, None),  # as change data capture writes it
        "123456": ({"city": 3}, None),
        "u3": (None, None),
        "1234567": (None, None),
    }


def test_numbers_that_json_has_not_are_null(base: Base) -> None:
    base.run(
        "CREATE TABLE people (id text PRIMARY KEY, n numeric, f double precision, many numeric[])",
        "INSERT INTO people VALUES ('a', 'NaN', 'NaN', '{1.5,NaN}'), ('b', 'Infinity', '-Infinity', NULL)",
    )
    primary = base.primary(table="people", columns={name: name for name in ("n", "f", "many")})
    assert look_up(primary, ["a", "b"], ["n", "f", "many"]) == {
        "a": ({"n": None, "f": None, "many": [1.5, None]}, None),
        "b": ({"n": None, "f": None, "many": None}, None),
    }


def test_documents_are_put_together_from_columns_of_many_types(base: Base) -> None:
    one = uuid.uuid4()
    base.run(
        "CREATE TABLE people (id uuid PRIMARY KEY, town text, price numeric(9,3), at timestamptz, "
        "tags text[], more jsonb, big bigint, ok boolean, half double precision)",
        f"INSERT INTO people VALUES ('{one}', 'Boston', 1.250, '2001-02-03 04:05:06Z', '{{a,b}}', "
        "'{\"x\": [1, null]}', 9007199254740993, true, 0.5)",
    )
    columns = {name: name for name in ("price", "at", "tags", "more", "big", "ok", "half")} | {"city": "town"}
    primary = base.primary(table="people", columns=columns)
    other = str(uuid.uuid4())
    answers = look_up(primary, [str(one), str(one).upper(), other, "x"], columns)
    document = answers[str(one)][0]
    assert document.pop("at").startswith("2001-02-03T")
    assert document == {
        "city": "Boston",
        "price": 1.25,
        "tags": ["a", "b"],
        "more": {"x": [1, None]},
        "big": 9007199254740993,
        "ok": True,
        "half": 0.5,
    }
    assert {answers[id_] for id_ in (str(one).upper(), other, "x")} == {(None, None)}


def test_thousands_of_ids_of_a_table_with_integers(base: Base) -> None:
    base.run(
        "CREATE TABLE people (id int PRIMARY KEY, city text)",
        "INSERT INTO people SELECT n, 'c' || n FROM generate_series(0, 19998, 2) n",
    )
    primary = base.primary(table="people", columns={"city": "city"}, batch_ids=3_000)
    began = time.monotonic()
    answers = look_up(primary, [*map(str, range(10_000)), "99999999999", "1e3"])
    assert time.monotonic() - began < 10
    assert answers["99999999999"] == answers["1e3"] == (None, None)
    assert all(
        answers[str(n)] == (({"city": f"c{n}"}, None) if n % 2 == 0 else (None, None)) for n in range(10_000)
    )


def test_the_position_is_asked_before_the_documents_in_a_transaction_that_cannot_write(base: Base) -> None:
    base.run(
        "CREATE TABLE people (id text PRIMARY KEY, city text)",
        "INSERT INTO people VALUES ('a', 'Boston')",
        "CREATE TABLE fed (part int, next bigint)",
        "INSERT INTO fed VALUES (0, 8)",
    )
    columns: dict[str, Any] = {"table": "people", "columns": {"city": "city"}}
    primary = base.primary(**columns, position_query="SELECT part, next FROM fed")
    assert look_up(primary, ["a", "b"]) == {"a": ({"city": "Boston"}, 8), "b": (None, 8)}
    writing = base.primary(**columns, position_query="UPDATE fed SET next = 9 RETURNING part, next")
    with pytest.raises(PrimaryMisconfiguredError, match="refuses"):
        look_up(writing, ["a"])
    assert look_up(primary, ["a"])["a"][1] == 8


def test_a_query_that_takes_too_long_is_given_up_by_the_server(base: Base) -> None:
    base.run("CREATE TABLE people (id text, city text)")
    slow = base.primary(
        table="people", columns={"city": "city"}, position_query="SELECT 0, 1 FROM pg_sleep(30)"
    )
    began = time.monotonic()
    with pytest.raises(PrimaryUnreachableError):
        look_up(slow, ["a"], timeout_s=0.5)
    assert time.monotonic() - began < 10
    with base.engine.connect() as connection:
        busy = sql.text(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)%' AND state = 'active' "
            "AND pid <> pg_backend_pid()"
        )
        assert connection.execute(busy).scalar() == 0


def test_a_table_that_changes_is_looked_at_again(base: Base) -> None:
    base.run("CREATE TABLE people (id text, city text)", "INSERT INTO people VALUES ('a', 'Boston')")
    primary = base.primary(table="people", columns={"city": "city"})
    assert look_up(primary, ["a"])["a"][0] == {"city": "Boston"}
    base.run("ALTER TABLE people RENAME COLUMN city TO town")
    with pytest.raises(PrimaryMisconfiguredError, match="refuses"):
        look_up(primary, ["a"])
    with pytest.raises(PrimaryMisconfiguredError, match=r"no column city \(id, town\)"):
        look_up(primary, ["a"])
    base.run("ALTER TABLE people RENAME COLUMN town TO city")
    assert look_up(primary, ["a"])["a"][0] == {"city": "Boston"}


def test_a_wrong_password_and_a_missing_right_are_told_without_the_password(
    base: Base, caplog: pytest.LogCaptureFixture
) -> None:
    base.run("CREATE TABLE people (id text, city text)")
    base.run(
        "CREATE ROLE reader LOGIN PASSWORD 'r3ad pa55'",
        "GRANT USAGE ON SCHEMA public TO reader",
    )
    url = sql.make_url(base.server.url)
    settings: dict[str, Any] = {"table": "people", "columns": {"city": "city"}}
    wrong = url.set(password="wr0ng pa55").render_as_string(hide_password=False)
    reader = url.set(username="reader", password="r3ad pa55").render_as_string(hide_password=False)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(PrimaryUnreachableError) as away:
        look_up(base.primary(wrong, **settings), ["a"])
    with pytest.raises(PrimaryMisconfiguredError) as refused:
        look_up(base.primary(reader, **settings), ["a"])
    told = json.dumps([away.value.problem(), refused.value.problem()]) + caplog.text
    assert "password authentication failed" in caplog.text
    assert "permission denied" in caplog.text
    for secret in ("wr0ng pa55", "r3ad pa55", PASSWORD):
        assert secret not in told


def test_a_server_that_stops_is_unreachable_until_it_is_back(base: Base) -> None:
    base.run("CREATE TABLE people (id text, city text)", "INSERT INTO people VALUES ('a', 'Boston')")
    primary = base.primary(table="people", columns={"city": "city"})
    there = {"a": ({"city": "Boston"}, None)}
    assert look_up(primary, ["a"]) == there
    base.server.stop()
    try:
        with pytest.raises(PrimaryUnreachableError, match="does not answer"):
            look_up(primary, ["a"])
    finally:
        base.server.start()
    assert look_up(primary, ["a"]) == there


# --- the topic --------------------------------------------------------------------------------------------


class Topic:
    """A topic that is a keyspace, and its primary."""

    def __init__(self, kafka: EmbeddedKafka, name: str, **settings: Any) -> None:
        self.name = name
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        loaded = load_settings(
            kafka={"bootstrap": kafka.bootstrap}, primary={name: {"kind": "topic", **settings}}
        )
        self.primary = TopicPrimary(name, loaded)

    def write(self, id_: str, document: Any, partition: int = 0) -> int:
        """The record's offset."""
        offsets: list[int] = []
        value = None if document is None else json.dumps(document).encode()
        self._producer.produce(
            self.name, value, id_, partition, on_delivery=lambda error, m: offsets.append(m.offset() or 0)
        )
        assert self._producer.flush(20) == 0
        return offsets[0]

    def ask(self, *asked: AnsweredDocument, **since: int) -> list[PrimaryAnswer]:
        """What is found; `p0=7` says that the snapshot has partition 0 up to offset 7."""
        timestamp = Timestamp.of({int(name[1:]): offset for name, offset in since.items()})
        return self.primary.documents(asked, (), timestamp, 15.0)


def as_json(found: PrimaryAnswer) -> tuple[Any, int | None, str]:
    return None if found.document is None else json.loads(found.document), found.position, found.why


def test_newer_records_count_and_the_others_are_proved_at_their_place(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    one = Topic(kafka, topic(2))
    at = {id_: one.write(id_, {"city": id_}) for id_ in ("a", "b", "c", "d")}
    other = one.write("e", {"city": "e"}, 1)
    new = [one.write("a", {"city": "new"}), one.write("a", {"city": "newer"}), one.write("b", None)]
    asked = [AnsweredDocument(id_.encode(), 0, offset) for id_, offset in at.items()]
    answers = one.ask(
        *asked,
        AnsweredDocument(b"e", 1, other),
        AnsweredDocument(b"d2", 0, at["d"]),
        AnsweredDocument(b"f"),
        p0=4,
        p1=1,
    )
    assert list(map(as_json, answers)) == [
        ({"city": "newer"}, new[1] + 1, ""),
        (None, new[2] + 1, ""),
        ({"city": "c"}, at["c"] + 1, ""),
        ({"city": "d"}, at["d"] + 1, ""),
        ({"city": "e"}, 1, ""),
        (None, 4, ""),  # another document is at that place
        (None, None, NO_VERSION),
    ]
    one.primary.close()


def test_places_far_apart_are_read_in_runs(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    one = Topic(kafka, topic(3))
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 20})
    for number in range(6_000):
        producer.produce(one.name, json.dumps({"n": number}), f"d{number}", number % 3)
        producer.poll(0)
    assert producer.flush(30) == 0
    wanted = [*range(0, 6_000, 997), 5, 6, 7, 5_999]
    asked = [AnsweredDocument(b"d%d" % n, n % 3, n // 3) for n in wanted]
    began = time.monotonic()
    answers = one.ask(*asked, p0=2_000, p1=2_000, p2=2_000)
    assert time.monotonic() - began < 10
    assert [as_json(answer) for answer in answers] == [({"n": n}, n // 3 + 1, "") for n in wanted]
    one.primary.close()


def test_a_log_whose_end_is_too_far_tells_nothing(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    one = Topic(kafka, topic(), look_ahead=10)
    place = one.write("a", {"city": "a"})
    for number in range(10):
        one.write(f"b{number}", {})
    assert as_json(one.ask(AnsweredDocument(b"a", 0, place), p0=1)[0]) == ({"city": "a"}, 1, "")
    assert one.ask(AnsweredDocument(b"a", 0, place), p0=0)[0].why == TOO_FAR
    one.primary.close()


def test_an_id_in_two_partitions_and_records_that_are_gone(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    name = topic(2)
    one = Topic(kafka, name)
    place = one.write("a", {"city": "a"})
    one.write("a", {"city": "b"}, 1)
    assert one.ask(AnsweredDocument(b"a", 0, place), p0=1)[0].why == TWO_PARTITIONS
    one.write("b", {})
    _delete_below(kafka, name, 2)
    assert one.ask(AnsweredDocument(b"a", 0, place), p0=2, p1=1)[0].why == RECORD_GONE, "the record itself"
    assert one.ask(AnsweredDocument(b"a", 0, place), p0=1, p1=1)[0].why == RECORD_GONE, (
        "what came after the snapshot"
    )
    one.primary.close()


def _delete_below(kafka: EmbeddedKafka, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(20)


def test_a_topic_or_a_broker_that_is_not_there_is_unreachable(kafka: EmbeddedKafka) -> None:
    with pytest.raises(PrimaryUnreachableError):
        Topic(kafka, "nobody-made-this").ask(AnsweredDocument(b"a", 0, 0))
    settings = load_settings(kafka={"bootstrap": "127.0.0.1:1"}, primary={"t": {"kind": "topic"}})
    with pytest.raises(PrimaryUnreachableError):
        TopicPrimary("t", settings).documents([AnsweredDocument(b"a", 0, 0)], (), NOW, 0.5)


# --- through a cluster ------------------------------------------------------------------------------------

PEOPLE = "people"
EVENTS = "events"
COUNT = 300


@pytest.fixture(scope="module")
def world(server: Postgres, worlds: Worlds) -> Iterator[World]:
    """Two nodes: the documents of one keyspace lie in the database, those of the other in its topic."""
    primaries = {
        PEOPLE: {"kind": "sql", "url": server.url, "table": "members", "columns": {"city": "town"}},
        EVENTS: {"kind": "topic"},
    }
    settings = {
        "KEYTIDE_PRIMARY": json.dumps(primaries),
        "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
        "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    }
    with worlds(settings, nodes=2) as world:
        yield world


def produce(world: World, topic: str, documents: Mapping[str, Any]) -> dict[str, int]:
    """Write documents (None deletes); what a scan must include to see them."""
    producer = Producer(
        {"bootstrap.servers": world.bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random"}
    )
    for id_, document in documents.items():
        producer.produce(topic, None if document is None else json.dumps(document), id_)
    assert producer.flush(30) == 0
    return {str(partition): offset for partition, offset in world.ends(topic).items()}


def validated(
    world: World, index: str, node: int = 0, **demands: Any
) -> tuple[dict[str, str], dict[str, Any]]:
    """(id -> key and verdict, what is said of the page)."""
    with world.client(node) as client:
        page = client.page(index, validate=True, limit=COUNT, timeout_ms=60_000, **demands)
    assert page.validation is not None
    return {row.id: f"{row.key[0]} {row.reason or 'valid'}" for row in page.rows}, page.validation


def build(world: World, index: str, statement: str) -> None:
    world.sql(f"CREATE INDEX {index} ON {statement} WITH (slices=4, defer_build=true)")
    world.wait_ready(world.build(index))


def test_rows_follow_the_database_before_the_index_hears_of_it(world: World, base: Base) -> None:
    world.make_topic(PEOPLE)
    build(world, "people_city", f"{PEOPLE} (city)")
    people = {f"p{at:03}": {"city": f"c{at % 9}"} for at in range(COUNT)}
    base.run("CREATE TABLE members (id text PRIMARY KEY, town text)")
    with base.engine.begin() as connection:
        rows = [{"id": id_, "town": one["city"]} for id_, one in people.items()]
        connection.execute(sql.text("INSERT INTO members VALUES (:id, :town)"), rows)
    ends = produce(world, PEOPLE, people)
    all_valid = {id_: f"{one['city']} valid" for id_, one in people.items()}
    for node in (0, 1):
        rows_told, told = validated(world, "people_city", node, at_least=ends)
        assert rows_told == all_valid
        assert (told["valid"], told["stale"], told["unknown"]) == (COUNT, 0, {})

    base.run("UPDATE members SET town = 'new' WHERE id = 'p001'", "DELETE FROM members WHERE id = 'p002'")
    expected = {id_: told for id_, told in all_valid.items() if id_ not in ("p001", "p002")}
    rows_told, told = validated(world, "people_city", 1)
    assert rows_told == expected
    assert told["stale"] == 2
    with world.client() as client:
        assert len(list(client.scan("people_city"))) == COUNT, "the index hears of it by its topic only"

    ends = produce(world, PEOPLE, {"p001": {"city": "new"}, "p002": None})
    rows_told, told = validated(world, "people_city", at_least=ends)
    assert rows_told == {**expected, "p001": "new valid"}
    assert told["stale"] == 0

    base.server.stop()
    try:
        rows_told, told = validated(world, "people_city")
        assert set(rows_told.values()) == {
            f"{one['city']} primary-unreachable" for id_, one in people.items() if id_ != "p001"
        } | {"new primary-unreachable"}
        assert PASSWORD not in json.dumps(told)
    finally:
        base.server.start()
    assert validated(world, "people_city")[0] == {**expected, "p001": "new valid"}


@pytest.mark.spark
def test_rows_follow_the_topic_while_the_projector_stands_still(world: World) -> None:
    world.make_topic(EVENTS)
    events = {f"e{at:03}": {"at": at} for at in range(COUNT)}
    ends = produce(world, EVENTS, events)
    build(world, "events_at", "events (at)")
    all_valid = {id_: f"{one['at']} valid" for id_, one in events.items()}
    rows, told = validated(world, "events_at", at_least=ends)
    assert rows == all_valid
    assert told["stale"] == 0
    projector = world.cluster.services["projector-1"].pid
    os.kill(projector, signal.SIGSTOP)
    try:
        ends = produce(world, EVENTS, {"e001": {"at": -1}, "e002": None, "e003": {"at": 3, "more": 1}})
        rows, told = validated(world, "events_at", 1)
        assert rows == {id_: told for id_, told in all_valid.items() if id_ not in ("e001", "e002")}
        assert told["stale"] == 2
    finally:
        os.kill(projector, signal.SIGCONT)
    rows, told = validated(world, "events_at", at_least=ends)
    assert rows == {id_: told for id_, told in all_valid.items() if id_ != "e002"} | {"e001": "-1 valid"}
    assert told["stale"] == 0
