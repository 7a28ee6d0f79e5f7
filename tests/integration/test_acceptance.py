"""What convinces an expert, on the real parts: Kafka, coordinator, projector, two nodes, LMDB, Spark. Named
by the numbers of the acceptance list; the longer ones have modules of their own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from kafka import KafkaProducer

from tests import share
from tests.integration.world import World, Writer
from tests.oracle import MISSING
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def world(shared_world: World) -> World:
    return shared_world


def _person(chance: random.Random, _: int) -> tuple[str, Any]:
    """499 ids, 23 values, some null, some missing, some deleted, some with other types."""
    id_ = f"p{chance.randrange(499)}"
    x = chance.random()
    if x < 0.12:
        return id_, None
    document: dict[str, Any] = {
        "n": chance.randrange(1_000),
        "tags": [f"t{chance.randrange(9)}" for _ in range(chance.randrange(4))],
    }
    if x < 0.22:
        document["city"] = None
    elif x < 0.27:
        document["city"] = chance.choice([7, 7.0, 2**53 + 1, True, ["a"], {"b": 1}])
    elif x > 0.35:
        document["city"] = f"city{chance.randrange(23)}"
    return id_, document


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    if "city" in document:
        yield [document["city"], document.get("n", MISSING)]


def _by_tag(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    for tag in sorted(set(document.get("tags", []))):
        yield [tag]


def _small(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    if "n" in document and document["n"] < 500:
        yield [document["n"]]


CITY = "CREATE INDEX {name}_city ON {name} (city, n DESC) WITH (slices=4, defer_build=true)"
TAG = "CREATE INDEX {name}_tag ON {name} (UNNEST(tags)) WITH (slices=3, defer_build=true)"
SMALL = (
    "CREATE INDEX {name}_small ON {name} (n) PARTITION BY HASH(id) "
    "WITH (slices=2, defer_build=true) WHERE n < 500"
)


def _create_three(world: World, name: str) -> list[str]:
    for statement in (CITY, TAG, SMALL):
        world.sql(statement.format(name=name))
    return [f"{name}_city", f"{name}_tag", f"{name}_small"]


def _check_three(world: World, name: str, at_end: bool) -> None:
    check = world.check_at_end if at_end else world.check
    assert check(f"{name}_city", name, _by_city, (False, True)) > 0
    assert check(f"{name}_tag", name, _by_tag) > 0
    assert check(f"{name}_small", name, _small) > 0


@pytest.mark.parametrize("seed", [1 + number for number in share.seeds(8)])
def test_1_and_6_a_build_in_mid_stream_is_exact_with_no_gap_and_no_double(world: World, seed: int) -> None:
    """The writer goes on all the while; the first snapshots after the switch are compared, and the last."""
    name = f"equal{seed}"
    world.make_topic(name)
    names = _create_three(world, name)
    with Writer(world.bootstrap, name, seed, _person, per_second=500) as writer:
        writer.write(8_000)
        build = world.wait_ready(world.build(*names))
        assert build["documents_done"] > 0
        before = writer.written
        for _ in range(4):
            _check_three(world, name, at_end=False)
        assert writer.written > before, "the writer stood still"
    _check_three(world, name, at_end=True)


def test_3_stale_backfill_never_wins(world: World) -> None:
    """Updates, deletes and re-inserts of everything while the backfill is held after it began to read."""
    name = "stale"
    world.make_topic(name)
    names = _create_three(world, name)
    writer = Writer(world.bootstrap, name, 3, _person)
    with writer:
        writer.write(12_000)
    build = world.build(*names, rate_limit=300)  # it is not over before it is held
    wait_for(lambda: world.build_state(build)["documents_done"] > 0, "the backfill has read something")
    with world.spark_held():
        again = Writer(world.bootstrap, name, 4, _person)
        with again:
            again.write(6_000)
        assert world.build_state(build)["state"] == "BACKFILL"
    world.throttle(build, None)
    world.wait_ready(build)
    _check_three(world, name, at_end=True)


HOSTILE: list[tuple[bytes | None, bytes, str | None]] = [
    (b"fine", b'{"v": 1}', None),
    (b"not-json", b"{", "not-json"),
    (b"empty", b"", "not-json"),
    (b"array", b"[1]", "not-an-object"),
    (b"number", b"5", "not-an-object"),
    (b"nan", b'{"v": NaN}', "not-json"),
    (b"infinity", b'{"v": -Infinity}', "not-json"),
    (b"surrogate", b'{"v": "\\ud800"}', "any"),
    (b"huge-int", b'{"v": ' + b"9" * 400 + b"}", None),
    (b"big-double", b'{"v": 1e308}', None),
    (b"too-big-double", b'{"v": 1e999}', "any"),
    (b"precise", b'{"v": 9007199254740993}', None),
    (b"float-form", b'{"v": 5.0}', None),
    (b"negative-zero", b'{"v": -0.0}', None),
    (b"nul", b'{"v": "a\\u0000b"}', None),
    (b"emoji", '{"v": "😀"}'.encode(), None),
    (b"long-key", b'{"v": "' + b"k" * 3_000 + b'"}', None),
    (b"long-key-2", b'{"v": "' + b"k" * 2_999 + b'j"}', None),
    (b"megabyte", b'{"v": "' + b"x" * 1_000_000 + b'"}', "key-too-large"),
    (b"megabyte-elsewhere", b'{"v": 7, "w": "' + b"x" * 1_000_000 + b'"}', None),
    (b"deep", b'{"v": ' + b"[" * 40 + b"]" * 40 + b"}", None),
    (b"too-deep", b'{"v": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "any"),
    (b"duplicate-names", b'{"v": 1, "v": 2}', None),
    (b"invalid-utf8", b'{"v": "\xff\xfe"}', "any"),
    (b"id\x00with-nul", b'{"v": 3}', None),
    (b"", b'{"v": 4}', "bad-id"),
    (None, b'{"v": 5}', "bad-id"),
    (b"i" * 251, b'{"v": 6}', "bad-id"),
    (b"\xff\xfe", b'{"v": 6}', "bad-id"),
    (b"i" * 250, b'{"v": 8}', None),
    (b"object", b'{"v": {"b": 1, "a": [null, true]}}', None),
    (b"no-v", b'{"w": 1}', None),
    (b"null-v", b'{"v": null}', None),
]


@pytest.mark.parametrize("live", [False, True], ids=["backfill", "live"])
def test_20_hostile_values_are_indexed_rightly_or_in_the_ledger(world: World, live: bool) -> None:
    name = "hostile_live" if live else "hostile_backfill"
    world.make_topic(name, 2, max_message_bytes="8000000")
    world.sql(f"CREATE INDEX {name}_v ON {name} (v) WITH (slices=3, defer_build=true)")
    if live:
        world.wait_ready(world.build(f"{name}_v"))
    producer = KafkaProducer(bootstrap_servers=world.bootstrap, acks="all", max_request_size=8_000_000)
    producer.send(
        name, key=b"not-json", value=b'{"v": "was here before"}'
    )  # a bad version deletes what was good
    for key, value, _ in HOSTILE:
        producer.send(name, key=key, value=value)
    producer.flush()
    producer.close()
    if not live:
        world.wait_ready(world.build(f"{name}_v"))
    at_least = {str(p): offset for p, offset in world.ends(name).items()}
    rows, _ = world.scan_all(f"{name}_v", at_least=at_least, timeout_ms=60_000)
    good = {
        key.decode(): json.loads(value)
        for key, value, reason in HOSTILE
        if reason is None and key is not None
    }
    expected = {id_: document["v"] for id_, document in good.items() if "v" in document}
    assert {id_: key[0] for key, id_ in rows} == expected
    floats = {id_: type(key[0]) for key, id_ in rows}
    assert (floats["float-form"], floats["precise"]) == (float, int), "numbers come back as they were written"
    bad = [reason for _, _, reason in HOSTILE if reason is not None]
    index = world.admin.call("GET", f"/v1/indexes/{name}_v")
    wait_for(
        lambda: world.admin.call("GET", f"/v1/indexes/{name}_v")["skipped"] == len(bad),
        f"{len(bad)} lines in the skip ledger, not {index['skipped']}",
        20,
    )
