"""Acceptance 8, unique truth: values that move between documents are never reported, whatever is restarted;
real duplicates are listed with all their documents and offsets. And the lists of an index, page by page."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from kafka import KafkaProducer

from deploy.cluster import LocalCluster
from keytide.errors import RetryableError
from tests.integration.world import World
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "2000",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "5000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
}
TOPIC = "members"
PEOPLE = 400
PACE_S = 0.05
"""Between rounds of twenty moves, sixty records each."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=2, settings=SETTINGS) as cluster,
        World(cluster) as world,
    ):
        yield world


class Movers:
    """People who hand their handles on to each other all the time, in four partitions. At no moment do two
    of them have the same: each step begins when the one before is acknowledged."""

    def __init__(self, world: World, seed: int) -> None:
        self._producer = KafkaProducer(bootstrap_servers=world.bootstrap, acks="all", linger_ms=2)
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.handles: dict[str, str | None] = {f"u{n}": f"h{n}" for n in range(PEOPLE)}
        self.moves = 0
        self.error: BaseException | None = None

    def write(self, handles: dict[str, str | None]) -> dict[str, tuple[int, int]]:
        """Write documents; where they are."""
        sent = {id_: self._send(id_, handle) for id_, handle in handles.items()}
        self._producer.flush()
        return {id_: (future.get().partition, future.get().offset) for id_, future in sent.items()}

    def raw(self, id_: str, value: bytes) -> tuple[int, int]:
        found = self._producer.send(TOPIC, key=id_.encode(), value=value).get(30)
        return found.partition, found.offset

    def _send(self, id_: str, handle: str | None) -> Any:
        document = {"n": self._chance.randrange(1_000), "tags": [handle, "x" + id_]}
        if handle is not None or self._chance.random() < 0.5:
            document["handle"] = handle
        return self._producer.send(TOPIC, key=id_.encode(), value=json.dumps(document).encode())

    def _run(self) -> None:
        try:
            while not self._stop.wait(PACE_S):
                self._swap()
        except BaseException as error:
            self.error = error
            raise

    def _swap(self) -> None:
        """Twenty pairs: the first gives up its handle, the second takes it, the first takes the other's; or
        the second just keeps both and the first is deleted for a while."""
        people = self._chance.sample(sorted(self.handles), 40)
        pairs = list(zip(people[:20], people[20:], strict=True))
        self.write(dict.fromkeys(people[:20]))
        self.write({second: self.handles[first] for first, second in pairs})
        self.write({first: self.handles[second] for first, second in pairs})
        for first, second in pairs:
            self.handles[first], self.handles[second] = self.handles[second], self.handles[first]
        self.moves += len(pairs)

    def __enter__(self) -> Movers:
        self.write(dict.fromkeys(self.handles))  # others may have what these are to get
        self.write(self.handles)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._producer.close()
        if self.error is not None:
            raise self.error


def _handle(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    if "handle" in document:
        yield [document["handle"]]


def _tag(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield from ([tag] for tag in document["tags"])


def _listed(world: World, index: str, what: str, **query: Any) -> dict[str, Any]:
    """A list of the index, as soon as its nodes answer: the tests before kill them."""
    found: list[dict[str, Any]] = []

    def asked() -> bool:
        try:
            found.append(world.admin.call("GET", f"/v1/indexes/{index}/{what}", **query))
        except RetryableError as error:  # a node that was killed is away, or reads what it has
            if error.problem_type not in ("node-unavailable", "index-not-ready"):
                raise
            return False
        return True

    wait_for(asked, f"the nodes list {what}")
    return found[-1]


def _told(world: World) -> list[str]:
    return [
        event["text"]
        for event in world.admin.call("GET", "/v1/events", limit=1_000)
        if event["kind"] == "unique-violated"
    ]


def _kill_node(world: World, number: int) -> None:
    """kill -9, and a new start."""
    world.cluster.kill(f"node-{number}")
    world.cluster.restart(f"node-{number}")


def _by_handle(world: World) -> None:
    """The index that the test of values that move has left, or a new one where that did not run."""
    if any(index["name"] == "by_handle" for index in world.admin.call("GET", "/v1/indexes")):
        return
    world.make_topic(TOPIC)
    world.sql(f"CREATE UNIQUE INDEX by_handle ON {TOPIC} (handle) WITH (slices=3)")
    (build,) = world.admin.call("GET", "/v1/builds")
    world.wait_ready(build["id"])


def test_8_values_that_move_are_no_violations(world: World) -> None:
    world.make_topic(TOPIC)
    with Movers(world, 8) as movers:
        wait_for(lambda: movers.moves > 500, "handles have moved")
        world.sql(f"CREATE UNIQUE INDEX by_handle ON {TOPIC} (handle) WITH (slices=3, defer_build=true)")
        world.sql(
            f"CREATE UNIQUE INDEX by_tag ON {TOPIC} (UNNEST(tags)) PARTITION BY HASH(UNNEST(tags)) "
            "WITH (slices=2, defer_build=true)"
        )
        build = world.build("by_handle", "by_tag")
        wait_for(lambda: world.build_state(build)["documents_done"] > 0, "the build reads")
        _kill_node(world, 1)
        world.wait_ready(build)
        seen = movers.moves
        for number in (1, 2):
            for index in ("by_handle", "by_tag"):
                assert _listed(world, index, "violations")["keys"] == []
            _kill_node(world, number)
            wait_for(lambda: movers.moves > seen + 200 * number, "handles have moved on")  # noqa: B023
        for index in ("by_handle", "by_tag"):
            shown = _listed(world, index, "violations")
            assert (shown["keys"], shown["violations"], shown["unique"]) == ([], 0, True)
    assert world.check_at_end("by_handle", TOPIC, _handle) == PEOPLE
    assert world.check_at_end("by_tag", TOPIC, _tag) == 2 * PEOPLE
    assert _told(world) == []


def test_8_real_duplicates_are_listed_with_their_documents_and_offsets(world: World) -> None:
    _by_handle(world)
    with Movers(world, 9) as movers:
        places = movers.write({"v1": "same", "v2": "same", "v3": "same", "w1": "other", "w2": "other"})
        places["w2"] = movers.write({"w2": "other"})["w2"]
        wait_for(lambda: len(_listed(world, "by_handle", "violations")["keys"]) == 2, "both keys are listed")
        listed = {
            key["key"][0]: {one["id"]: (one["partition"], one["offset"]) for one in key["documents"]}
            for key in _listed(world, "by_handle", "violations")["keys"]
        }
        assert listed == {
            "same": {id_: places[id_] for id_ in ("v1", "v2", "v3")},
            "other": {id_: places[id_] for id_ in ("w1", "w2")},
        }
        first = world.admin.call("GET", "/v1/indexes/by_handle/violations", limit=1)
        second = world.admin.call("GET", "/v1/indexes/by_handle/violations", limit=1, page=first["page"])
        assert [one["keys"][0]["key"] for one in (first, second)] == [["other"], ["same"]]
        assert second["page"] is None
        wait_for(
            lambda: world.admin.call("GET", "/v1/indexes/by_handle")["violations"] == 2,
            "heartbeats count them",
        )
        assert world.admin.call("GET", "/v1/indexes/by_handle")["state"] == "READY"
        wait_for(lambda: len([text for text in _told(world) if "by_handle" in text]) == 2, "events tell")

        world.sql(f"CREATE UNIQUE INDEX again ON {TOPIC} (handle) WITH (slices=2, defer_build=true)")
        world.sql(f"CREATE INDEX beside ON {TOPIC} (handle) WITH (slices=2, defer_build=true)")
        build = world.build("again", "beside")
        wait_for(lambda: world.build_state(build)["state"] == "READY", "the other one is READY", 240)
        error = world.build_state(build)["error"]
        assert "index again is UNIQUE and 2 of its keys are had by several documents" in error
        assert f"w1 (partition {places['w1'][0]}, offset {places['w1'][1]})" in error
        states = [world.admin.call("GET", f"/v1/indexes/{name}")["state"] for name in ("again", "beside")]
        assert states == ["FAILED", "READY"]
        failed = _listed(world, "again", "violations")
        assert {
            key["key"][0]: {one["id"]: (one["partition"], one["offset"]) for one in key["documents"]}
            for key in failed["keys"]
        } == listed
        assert (failed["violations"], failed["exact"]) == (2, True)
        world.sql("DROP INDEX beside")

        _kill_node(world, 1)
        _kill_node(world, 2)
        movers.write({"v1": None, "v3": None, "w1": None})
        wait_for(
            lambda: _listed(world, "by_handle", "violations")["keys"] == [], "nothing is listed any more"
        )
        wait_for(
            lambda: world.admin.call("GET", "/v1/indexes/by_handle")["violations"] == 0, "nothing is counted"
        )
        assert len([text for text in _told(world) if "by_handle" in text]) == 2


def test_the_skip_ledger_page_by_page(world: World) -> None:
    _by_handle(world)
    movers = Movers(world, 10)
    bad = [movers.raw(f"bad{n}", b"{not json" if n % 2 else b"[]") for n in range(7)]

    def pages() -> list[dict[str, Any]]:
        found = [_listed(world, "by_handle", "skipped", limit=3)]
        while found[-1]["page"]:
            found.append(_listed(world, "by_handle", "skipped", limit=3, page=found[-1]["page"]))
        return found

    wait_for(lambda: sum(len(page["lines"]) for page in pages()) == 7, "all lines are there")
    found = pages()
    lines = [line for page in found for line in page["lines"]]
    assert [(line["partition"], line["offset"]) for line in lines] == sorted(bad)
    assert {line["id"]: line["reason"] for line in lines} == {
        f"bad{n}": "not-json" if n % 2 else "not-an-object" for n in range(7)
    }
    assert found[0]["reasons"] == {"not-an-object": 4, "not-json": 3}
    assert found[0]["reasons_complete"]
    assert [page["reasons"] for page in found[1:]] == [None] * (len(found) - 1)
    wait_for(lambda: pages()[0]["skipped"] == 7, "heartbeats count them")
