"""Hash indexes on the real parts: whole keys of any size, a copy while a node is killed, other slices,
verification, and UNIQUE."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from keytide.errors import KeytideError
from tests.integration.conftest import Worlds
from tests.integration.shared_cluster import SETTINGS
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

TOPIC = "pages"
IDS = 400


def _url(number: int) -> str:
    """Some are longer than a btree's key may be; every second one of a number is the same."""
    return f"https://www.example/{'long/' * (4_000 if number % 50 == 0 else number % 30)}{number % 200}"


def _page(chance: random.Random, number: int) -> tuple[str, Any]:
    which = number if number < IDS else chance.randrange(IDS)
    if number >= IDS and chance.random() < 0.1:
        return f"p{which}", None
    moved = chance.randrange(IDS) if chance.random() < 0.3 else which
    return f"p{which}", {
        "url": chance.choice([5, 5.0, None]) if chance.random() < 0.03 else _url(moved),
        "tags": chance.sample(["a", "b", "c", "d", 1, 2], chance.randrange(4)),
        "owner": f"owner{which}@site.example",
        "n": number,
    }


def _by_url(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["url"]]


def _by_tag(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    return [[tag] for tag in document["tags"]]


def _by_owner(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["owner"]]


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[World]:
    with worlds(SETTINGS, nodes=2, supervise=False) as world:
        world.make_topic(TOPIC, 3)
        with Writer(world.bootstrap, TOPIC, 3, _page) as writer:
            writer.write(3_000)
            defer = "defer_build=true, replicas=1, slices=2"
            world.sql(f"CREATE INDEX by_url ON {TOPIC} USING hash (url) INCLUDE (n) WITH ({defer})")
            tags = "(UNNEST(tags)) PARTITION BY HASH(id)"
            world.sql(f"CREATE INDEX by_tag ON {TOPIC} USING hash {tags} WITH ({defer})")
            world.sql(f"CREATE UNIQUE INDEX by_owner ON {TOPIC} USING hash (owner) WITH ({defer})")
            world.wait_ready(world.build("by_url", "by_tag", "by_owner"))
        yield world


def checked_at_end(world: World) -> None:
    """Compare all indexes with their source."""
    for index, keys in (("by_url", _by_url), ("by_tag", _by_tag), ("by_owner", _by_owner)):
        assert world.check_unordered_at_end(index, TOPIC, keys) > 0


def test_it_is_what_its_source_says(world: World) -> None:
    checked_at_end(world)
    shown = world.admin.call("GET", "/v1/indexes/by_url")
    assert (shown["structure"], shown["skipped"]) == ("hash", 0)


def test_whole_keys_are_found(world: World) -> None:
    held: dict[str, list[str]] = {}
    for key, id_ in world.scan_all("by_url")[0]:
        held.setdefault(str(key[0]), []).append(id_)
    urls = [url for url in held if url.startswith("https")]
    assert any(len(url) > 16_384 for url in urls)
    with world.client(1) as client:
        for url in random.Random(5).sample(urls, 20):
            assert Counter(row.id for row in client.scan("by_url", equals=[url])) == Counter(held[url])
            assert client.count("by_url", equals=[url]).count == len(held[url])
        assert list(client.scan("by_url", equals=["https://nowhere.example"])) == []
        some = sorted(urls, key=len)[:5]
        listed = ", ".join(f"'{url}'" for url in some)
        answer = client.query(f"SELECT id, n FROM {TOPIC} WHERE url IN ({listed}) ORDER BY id")
        assert [row[0] for row in answer] == sorted(id_ for url in some for id_ in held[url])
        plan = client.explain(f"SELECT id FROM {TOPIC} WHERE url = '{some[0]}'")
        assert (plan["index"], plan["structure"], len(plan["slices_asked"])) == ("by_url", "hash", 1)
        tags = client.query(f"SELECT UNNEST(tags), COUNT(*) FROM {TOPIC} GROUP BY UNNEST(tags)")
        assert sum(int(row[1]) for row in tags) == len(world.scan_all("by_tag")[0])


def test_what_takes_an_order_is_refused_with_what_to_do(world: World) -> None:
    with world.client() as client:
        for asked in ({"low": ["a"]}, {"prefix": "https"}, {"reverse": True}, {"distinct": True}):
            with pytest.raises(KeytideError) as refused:
                client.page("by_url", **asked)
            assert refused.value.problem_type == "index-not-ordered"
            assert f"ON {TOPIC} USING btree (url)" in refused.value.next_step
            assert str(refused.value.extra["create_index"]) in refused.value.next_step
        with pytest.raises(KeytideError) as refused:
            list(client.query(f"SELECT id FROM {TOPIC} WHERE url > 'https' ORDER BY url"))
        assert refused.value.problem_type == "no-index"
        assert "CREATE INDEX" in str(refused.value.extra["create_index"])


def test_a_killed_node_and_other_slices(world: World) -> None:
    with Writer(world.bootstrap, TOPIC, 7, _page, per_second=200) as writer:
        world.cluster.kill("node-2")
        for _ in range(5):
            world.check_unordered("by_url", TOPIC, _by_url)
            world.check_unordered("by_tag", TOPIC, _by_tag)
        world.cluster.restart("node-2")
        before = {name: world.admin.call("GET", f"/v1/indexes/{name}")["id"] for name in ("by_url", "by_tag")}
        for name in before:
            world.sql(f"ALTER INDEX {name} SET (slices=3)")

        def answered() -> bool:
            world.check_unordered("by_url", TOPIC, _by_url)
            return all(
                world.admin.call("GET", f"/v1/indexes/{name}")["id"] != old for name, old in before.items()
            )

        wait_for(answered, "the new layouts answer", 300)
        assert writer.written > 0
    checked_at_end(world)


def test_it_is_verified(world: World) -> None:
    for index in ("by_url", "by_tag", "by_owner"):
        world.check_verified(index)


def test_a_key_that_two_documents_have_is_told(world: World) -> None:
    assert world.admin.call("GET", "/v1/indexes/by_owner")["violations"] == 0
    with Writer(world.bootstrap, TOPIC, 1, _page) as writer:
        twice = {"url": "u", "tags": [], "owner": "both@site.example", "n": 0}
        writer.put("x1", twice)
        writer.put("x2", twice)
        writer.write(0)

    def told() -> list[Any]:
        listed: list[Any] = world.admin.call("GET", "/v1/indexes/by_owner/violations")["keys"]
        return listed

    wait_for(lambda: len(told()) == 1, "it is told")
    assert told()[0]["key"] == ["both@site.example"]
    assert {one["id"] for one in told()[0]["documents"]} == {"x1", "x2"}
