"""The real broker for integration tests: one for the session, and topics of their own for each test; and one
cluster for the files that only need one that runs."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.kafka import EmbeddedKafka
from tests.integration.shared_cluster import SharedCluster
from tests.integration.world import World, running

VERIFIED = ("acceptance", "verify", "repair", "demo", "origin")
"""Modules with one of these in their names build with verification, as users do. Others leave it out: it
would read each of their sources once more."""

TopicFactory = Callable[..., str]
"""`topic(partitions=1, name="topic", **config)` makes a topic and returns its full name."""

Worlds = Callable[..., AbstractContextManager[World]]
"""`worlds(settings, nodes=2, supervise=True)` starts a cluster (`LocalCluster`)."""

SHARED = pytest.StashKey[SharedCluster]()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A running broker. A test that stops or kills the broker starts its own instead."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def worlds(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Starts clusters of their own, for files that kill or reconfigure parts, on the broker of all: another
    one would take six seconds of processor time. Files that strike at the broker have one of their own."""
    numbers = itertools.count(1)

    def start(settings: Mapping[str, str], **options: Any) -> AbstractContextManager[World]:
        name = f"own-{next(numbers)}"
        return running(tmp_path_factory.mktemp("cluster"), kafka.bootstrap, name, settings, **options)

    return start


@pytest.fixture(scope="session")
def _shared_cluster(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[SharedCluster]:
    made = pytestconfig.stash[SHARED] = SharedCluster(kafka.bootstrap, tmp_path_factory.mktemp("shared"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared_world(
    _shared_cluster: SharedCluster, _settings: None, request: pytest.FixtureRequest
) -> Iterator[World]:
    """A running cluster without indexes. Its parts are not killed, nor are their settings changed; topics
    have names that no other file uses."""
    with World(_shared_cluster.running(), verify=_verified(request)) as world:
        yield world
        world.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    shared = item.config.stash.get(SHARED, None)
    if shared is not None and "shared_world" not in getattr(nextitem, "fixturenames", ()):
        shared.stop()


def _verified(request: pytest.FixtureRequest) -> bool:
    return any(part in request.module.__name__ for part in VERIFIED)


@pytest.fixture(scope="module", autouse=True)
def _settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Settings for everything that a module starts. Two clusters share the machine with what is tested, so
    timestamps come 10 times a second, not 100 times, and segments are as much larger. Builds are verified or
    not, and drivers do not stand back: what a test waits for is the build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEYTIDE_COORDINATOR__INTERVAL_MS", "100")
        patch.setenv("KEYTIDE_PROJECTOR__LINGER_MS", "20")
        patch.setenv("KEYTIDE_BUILD__VERIFY", "true" if _verified(request) else "false")
        patch.setenv("KEYTIDE_BUILD__NICE", "0")
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_leaked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No process of a module has dropped a client of Kafka without closing it (`keytide.kafka.clients`): it
    would keep it, with its threads, until it ends."""
    began = time.time()
    yield
    dropped = [
        f"{path}: {line}"
        for path in _logs(tmp_path_factory.getbasetemp())
        if path.stat().st_mtime >= began
        for line in path.read_text(errors="replace").splitlines()
        if "was dropped without being closed" in line
    ]
    assert not dropped, "\n".join(dropped[:10])


def _logs(folder: Path) -> Iterator[Path]:
    """What processes under a folder have logged. (A broker that runs removes folders meanwhile, which a walk
    takes for empty.)"""
    for where, _, names in os.walk(folder):
        for name in names:
            if name == "driver.log" or (name.endswith(".log") and os.path.basename(where) == "logs"):
                yield Path(where, name)


@pytest.fixture(scope="session")
def _topic_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def topic(kafka: EmbeddedKafka, _topic_numbers: Iterator[int]) -> Iterator[TopicFactory]:
    """Makes topics with names that nobody used before; deletes them after the test."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    made: list[str] = []

    def make(partitions: int = 1, name: str = "topic", **config: str | int) -> str:
        full = f"{name}-{next(_topic_numbers)}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(full, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([new])[full].result(30)
        made.append(full)
        return full

    yield make
    if made:
        for deletion in admin.delete_topics(made).values():
            deletion.result(30)
