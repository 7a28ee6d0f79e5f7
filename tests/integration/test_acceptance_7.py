"""Phase x change x option (acceptance 7): a build is held in each of its phases, documents are inserted,
updated, moved, changed in an included column only and deleted meanwhile, and every kind of index is exact.

One build fills all kinds of index at once. A phase is held at a named place (`keytide.process.sync_points`)
in the code of the process that it takes place in, or by an open transaction; it is let go when the changes
have been sent to the queues of the indexes, as far as projectors send already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from deploy.cluster import LocalCluster
from tests.arming import arm
from tests.integration.world import World
from tests.share import WHOLE_MATRIX
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

SETTINGS = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "1000",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "1000",
    "KEYTIDE_INDEXER__DELTA_AGE_S": "1",
}
FILL = 3_000
"""Documents before the build: three micro-batches."""
EACH = 40
"""Documents of each kind of change, over all micro-batches."""

Document = dict[str, Any]
Entry = tuple[list[Any], Document]
"""(key, included columns)."""
Change = Callable[[int, str], list[tuple[str, Document | None]]]
"""(number of a document, phase) -> what is written."""


@dataclass(frozen=True, slots=True)
class Option:
    """A kind of index, and in plain Python what it holds of a document.

    Attributes:
        statement: `{name}` is the topic's.
    """

    statement: str
    entries: Callable[[Document], Iterable[Entry]]


OPTIONS = {
    "plain": Option(
        "CREATE INDEX {name}_plain ON {name} (city, n DESC) WITH (slices=4, defer_build=true)",
        lambda document: [([document["city"], document["n"]], {})],
    ),
    "partial": Option(
        "CREATE INDEX {name}_partial ON {name} (n) PARTITION BY HASH(id) "
        "WITH (slices=2, defer_build=true) WHERE n < 500",
        lambda document: [([document["n"]], {})] if document["n"] < 500 else [],
    ),
    "unnest": Option(
        "CREATE INDEX {name}_unnest ON {name} (UNNEST(tags)) WITH (slices=3, defer_build=true)",
        lambda document: [([tag], {}) for tag in set(document["tags"])],
    ),
    "covered": Option(
        "CREATE INDEX {name}_covered ON {name} (city) INCLUDE (note, n) WITH (slices=4, defer_build=true)",
        lambda document: [([document["city"]], {"note": document["note"], "n": document["n"]})],
    ),
    "unique": Option(
        "CREATE UNIQUE INDEX {name}_unique ON {name} (code) WITH (slices=4, defer_build=true)",
        lambda document: [([document["code"]], {})],
    ),
}
RANGED = Option(
    "CREATE INDEX {name}_ranged ON {name} (n, city) PARTITION BY RANGE(n) WITH (slices=3, defer_build=true)",
    lambda document: [([document["n"], document["city"]], {})],
)
"""Its splits are sampled before a build begins: a phase, and a driver, more."""


def first(number: int) -> Document:
    """A document as it was before the build."""
    return {
        "city": f"city{number % 23}",
        "n": number * 7 % 1_000,
        "tags": [f"t{number % 9}", f"t{number % 7}"],
        "code": f"c{number}",
        "note": "as it was",
    }


def _insert(number: int, phase: str) -> list[tuple[str, Document | None]]:
    return [(f"new-{phase}-{number}", {**first(number), "code": f"new-{phase}-{number}"})]


def _update(number: int, _: str) -> list[tuple[str, Document | None]]:
    """The same slice of the plain index; into the partial one, or out of it; one element of the array."""
    document = first(number)
    return [(f"d{number}", {**document, "n": (document["n"] + 500) % 1_000, "tags": ["t0", "changed"]})]


def _move(number: int, phase: str) -> list[tuple[str, Document | None]]:
    """Another place in every index; on the way, another one."""
    moves = [f"between-{number}", f"moved-{phase}-{number}"]
    return [
        (f"d{number}", {**first(number), "city": to, "n": 999 - number % 1_000, "tags": [to], "code": to})
        for to in moves
    ]


def _included(number: int, phase: str) -> list[tuple[str, Document | None]]:
    return [(f"d{number}", {**first(number), "note": f"changed while {phase}"})]


def _delete(number: int, phase: str) -> list[tuple[str, Document | None]]:
    """Its code is free then: another document takes it."""
    heir = {**first(number), "city": "heirs", "note": phase}
    return [(f"d{number}", None), (f"heir-{phase}-{number}", heir)]


CHANGES: dict[str, Change] = {
    "insert": _insert,
    "update": _update,
    "move": _move,
    "included only": _included,
    "delete": _delete,
}


class Scene:
    """A topic with an index of every kind.

    Args:
        folder: where sync points leave their word.
    """

    def __init__(self, world: World, phase: str, folder: Path) -> None:
        self.world, self.phase, self.folder = world, phase, folder
        self.topic = phase.replace("-", "_")
        self.options = {**OPTIONS, "ranged": RANGED} if phase == "sampling" else OPTIONS
        self.build = ""
        self._producer = Producer(
            {"bootstrap.servers": world.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )

    def prepare(self) -> None:
        """Documents, and the indexes, not built."""
        self.world.make_topic(self.topic)
        self.write((f"d{number}", first(number)) for number in range(FILL))
        for option in self.options.values():
            self.world.sql(option.statement.format(name=self.topic))

    def begin(self) -> None:
        """Start the build. (Verified where that is the phase; the oracle looks at all of them.)"""
        names = [f"{self.topic}_{option}" for option in self.options]
        wanted = {"indexes": names, "verify": self.phase == "verifying" and "full"}
        self.build = str(self.world.admin.call("POST", "/v1/builds", wanted)["id"])

    def await_build(self, condition: Callable[[Document], bool], what: str) -> None:
        """Wait for something of the build; an error tells how it stands."""
        seen: Document = {}

        def there() -> bool:
            seen.update(self.world.build_state(self.build))
            assert seen["error"] is None, seen
            return condition(seen)

        try:
            wait_for(there, what)
        except AssertionError as error:
            raise AssertionError(f"{error}, but {seen}") from None

    def write(self, changes: Iterable[tuple[str, Document | None]]) -> None:
        """Write, and wait until all is acknowledged."""
        for id_, document in changes:
            value = None if document is None else json.dumps(document).encode()
            self._producer.produce(self.topic, value, id_.encode())
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def change(self, word: str, offset: int) -> None:
        """Changes of every kind, to documents all over the topic.

        Args:
            offset: of the first one; those of two calls must be at least so many apart as there are kinds.
        """
        changes: list[tuple[str, Document | None]] = []
        for at, change in enumerate(CHANGES.values(), offset):
            for number in range(at, FILL, FILL // EACH):
                changes += change(number, word)
        self.write(changes)

    def sent(self) -> None:
        """Wait until projectors have sent everything to the queues."""
        ends = self.world.ends(self.topic)

        def all_of_it() -> bool:
            known = self.world.admin.call("GET", "/v1/stability")["keyspaces"].get(self.topic, {})
            places = known.get("timestamp") or {}
            return all(places.get(str(p), {"offset": 0})["offset"] >= end for p, end in ends.items())

        wait_for(all_of_it, "the changes are in the queues")

    def check(self) -> None:
        """Every index is the projection of its source, included columns too."""
        at_least = {str(p): offset for p, offset in self.world.ends(self.topic).items()}
        source = self.world.source(self.topic)
        for name, option in self.options.items():
            with self.world.client() as client:
                index = f"{self.topic}_{name}"
                page = client.page(index, limit=1_000, at_least=at_least, timeout_ms=60_000)
                offsets = {int(p): place["offset"] for p, place in page.timestamp.items()}
                found = list(page.rows)
                while page.page is not None:
                    page = client.page(index, page=page.page)
                    found += page.rows
            expected = [
                (*entry, raw_id.decode())
                for raw_id, value in source.newest(offsets).items()
                if value is not None
                for entry in option.entries(json.loads(value))
            ]
            have = sorted(json.dumps([row.key, row.include, row.id], sort_keys=True) for row in found)
            want = sorted(json.dumps(list(row), sort_keys=True) for row in expected)
            missing, extra = sorted(set(want) - set(have))[:3], sorted(set(have) - set(want))[:3]
            assert have == want, f"{name} at {offsets}: missing {missing}, extra {extra}"
            assert want


@contextmanager
def held_at(scene: Scene, part: str, point: str, count: int) -> Iterator[None]:
    """While the block runs, the build stands at a named place in a process."""
    release = scene.folder / "go"
    cluster = scene.world.cluster
    arm(cluster, part, f"{point}:hold={release}:{count}")
    child = cluster.services[part]
    try:
        child.terminate()
        child.start()
        cluster.wait_ready(part)
        wait_for(cluster.nodes_live, "nodes live")
        scene.prepare()
        scene.begin()
        held = release.with_name("go.held")
        scene.await_build(lambda _: held.exists(), f"{point} is reached for the {count}. time")
        yield
    finally:
        release.touch()
        arm(cluster, part, "")


@contextmanager
def held_by_a_transaction(scene: Scene) -> Iterator[None]:
    """While the block runs, a transaction is open that began before the build: the end of the source that
    can be read lies below it."""
    scene.prepare()
    client = {
        "bootstrap.servers": scene.world.bootstrap,
        "transactional.id": scene.topic,
        "transaction.timeout.ms": 600_000,  # Kafka would end it after 60 s
    }
    writer = Producer(client)
    writer.init_transactions(30)
    writer.begin_transaction()
    document = {**first(0), "city": "in a transaction", "code": "in a transaction"}
    writer.produce(scene.topic, json.dumps(document).encode(), b"in-a-transaction", 1)
    assert writer.flush(30) == 0
    scene.begin()
    try:
        scene.await_build(
            lambda build: "transaction" in build["waiting_for"], "the build waits for the transaction"
        )
        yield
    finally:
        writer.commit_transaction(30)


Hold = Callable[[Scene], Any]
PHASES: dict[str, Hold] = {
    "waiting-for-transactions": held_by_a_transaction,
    "sampling": lambda scene: held_at(scene, "coordinator", "sample-taken", 1),
    "reading": lambda scene: held_at(scene, "coordinator", "driver-batch-begun", 2),
    "sorting": lambda scene: held_at(scene, "coordinator", "driver-chunks-sent", 2),
    "loading": lambda scene: held_at(scene, "node-1", "load-before-commit", 1),
    "catching-up": lambda scene: held_at(scene, "node-1", "switch-over", 1),
    "verifying": lambda scene: held_at(scene, "coordinator", "verify-pinned", 1),
}
"""How a phase is held."""
SAMPLE = ("reading", "catching-up")
UNHEARD = ("waiting-for-transactions", "sampling")
"""Projectors read no further than the transaction; indexes without splits have no queues yet."""
NAMES = {"catching-up": {"loading", "catching-up"}}
"""What a build says of its phase, where that is not certain: one slice is held, others may load."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    with (
        LocalCluster(folder, nodes=2, settings=SETTINGS, supervise=False) as cluster,
        World(cluster) as world,
    ):
        yield world


@pytest.mark.parametrize("phase", PHASES if WHOLE_MATRIX else SAMPLE)
def test_7_every_change_in_a_phase(world: World, phase: str, tmp_path: Path) -> None:
    scene = Scene(world, phase, tmp_path)
    with PHASES[phase](scene):
        scene.change(phase, 0)
        if phase not in UNHEARD:
            scene.sent()
        names = NAMES.get(phase, {phase})
        scene.await_build(lambda build: build["phase"] in names, f"the build says that it is {phase}")
    scene.change("afterwards", len(CHANGES))
    world.wait_ready(scene.build)
    scene.check()
