"""The release before and today's code in one cluster: nodes of the one with the coordinator of the other,
both ways round, until everybody is upgraded (`tests/earlier/release.py` has its code)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from kafka import KafkaProducer
from msgspec.structs import replace

from deploy.cluster import LocalCluster
from deploy.kafka import EmbeddedKafka
from keytide.catalog.records import encode_record
from keytide.errors import CallerError, KeytideError
from keytide.kafka.topics import CatalogReader
from keytide.model.protocol import NEEDED, SPOKEN
from keytide.model.topics import Topics
from keytide.settings.settings import load_settings
from tests.earlier import release
from tests.integration.world import World, Writer
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

SETTINGS = {
    "KEYTIDE_BUILD__SPARK_MASTER": "local[1]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_COORDINATOR__NODE_TIMEOUT_MS": "1500",
}
SPREAD, COPIED = "by_city", "by_zip"
"""One slice on each node: they read from one another. Both slices on both, where there are copies."""
BY_ID = "PARTITION BY HASH(id) WITH (slices=2"
LAYOUT = f"ALTER INDEX {SPREAD} SET (slices=3)"


def _visit(chance: random.Random, _: int) -> tuple[str, Any]:
    zip_ = chance.randrange(1_000)
    return f"v{chance.randrange(400)}", {"city": f"city{zip_ % 40}", "zip": zip_}


def _by_city(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["city"]]


def _by_zip(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["zip"]]


class MixedCluster(LocalCluster):
    """A local cluster some of whose processes are of the release before.

    Args:
        root: where its code is.
        earlier: the names of those processes.
    """

    def __init__(self, data_dir: Path, root: Path, earlier: Collection[str], **other: Any) -> None:
        super().__init__(data_dir, settings=SETTINGS, supervise=False, **other)
        self._root = root
        self._earlier = earlier

    def _define(self, spark: Mapping[str, str]) -> None:
        super()._define(spark)
        for name in self._earlier:
            release.use(self._environment(name), self._root)

    def _environment(self, name: str) -> dict[str, str]:
        environment = self.services[name].env
        assert environment is not None
        return environment

    def upgrade(self, name: str) -> None:
        """Start a process again, with today's code."""
        release.leave(self._environment(name))
        self.restart(name)

    def put_back(self, name: str) -> None:
        """Start a process again, with the code of the release before."""
        release.use(self._environment(name), self._root)
        self.restart(name)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release.unpack(tmp_path_factory.mktemp("release"))


class Upgrade(World):
    """A cluster that is upgraded while it is written to, with two indexes."""

    cluster: MixedCluster
    topic: str

    def begin_with(self, topic: str, writer: ExitStack, copied: str) -> None:
        """A topic that is written to, and two READY indexes on it.

        Args:
            copied: options of the second one.
        """
        self.topic = topic
        self.make_topic(topic, 2)
        with Writer(self.bootstrap, topic, 1, _visit) as first:
            first.write(1_000)
        self.sql(f"CREATE INDEX {SPREAD} ON {topic} (city) WITH (slices=2, defer_build=true)")
        self.sql(f"CREATE INDEX {COPIED} ON {topic} (zip) WITH (slices=2, {copied}defer_build=true)")
        self.wait_ready(self.build(SPREAD, COPIED))
        writer.enter_context(Writer(self.bootstrap, topic, 2, _visit, per_second=100))

    def right(self) -> None:
        """Every node answers what the source says, up to all that is there now."""
        for node in range(2):
            at_least = {str(partition): end for partition, end in self.ends(self.topic).items()}
            for index, keys in ((SPREAD, _by_city), (COPIED, _by_zip)):
                rows = self.check(index, self.topic, keys, node=node, at_least=at_least, timeout_ms=60_000)
                assert rows > 100

    def nodes(self) -> dict[str, Any]:
        """What the coordinator says of each node, when it does."""
        try:
            return {one["id"]: one for one in self.admin.call("GET", "/v1/nodes")}
        except KeytideError:
            return {}

    def wait_spoken(self, **wanted: int) -> None:
        """Wait until the leader has heard what nodes speak."""
        named = {name.replace("_", "-"): version for name, version in wanted.items()}
        wait_for(
            lambda: {name: one.get("protocol") for name, one in self.nodes().items() if one["live"]} == named,
            f"the leader knows {named}",
            60,
        )

    def health(self) -> str:
        return str(self.admin.call("GET", "/v1/health"))

    def refused(self, statement: str = LAYOUT) -> str:
        """What is said against a statement."""
        with pytest.raises(CallerError) as error:
            self.sql(statement)
        assert error.value.problem_type == "upgrade-needed"
        return error.value.message

    def lay_out(self) -> str:
        """Begin another layout of an index; its build."""
        build = str(self.sql(LAYOUT)["build"])
        (new,) = self.admin.call("GET", f"/v1/indexes/{SPREAD}")["layouts"]
        assert (new["slices"], new["build"]) == (3, build)
        return build

    def use_later_version(self) -> None:
        """Write that a version is in use which today's code does not speak."""
        settings = load_settings(cluster=self.cluster.name, kafka={"bootstrap": self.bootstrap})
        with closing(CatalogReader(settings)) as reader:
            record = reader.start().cluster
        assert record is not None
        producer = KafkaProducer(bootstrap_servers=self.bootstrap)
        value = encode_record(replace(record, protocol=SPOKEN + 1))
        producer.send(Topics(self.cluster.name).metadata, key=b"cluster", value=value)
        producer.close()


@pytest.fixture
def upgrade(
    kafka: EmbeddedKafka, root: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Upgrade]:
    """A cluster whose processes of these names begin with the release before."""
    name = f"upgrade-{'-'.join(request.param)}"
    with (
        MixedCluster(tmp_path, root, request.param, kafka=kafka.bootstrap, name=name) as cluster,
        Upgrade(cluster) as made,
    ):
        yield made


@pytest.mark.parametrize("upgrade", [("node-1", "node-2")], indirect=True, ids=["nodes"])
def test_nodes_are_upgraded_one_after_the_other_under_todays_coordinator(upgrade: Upgrade) -> None:
    cluster = upgrade.cluster
    assert "protocol" not in httpx.get(f"{cluster.node_urls[0]}/readyz").json(), "it is of the release before"
    with ExitStack() as writer:
        upgrade.begin_with("visits-nodes", writer, "replicas=1, ")
        upgrade.right()
        upgrade.wait_spoken(node_1=1, node_2=1)
        assert "node node-1 speaks 1, node node-2 speaks 1" in upgrade.refused()
        with pytest.raises(CallerError, match="a drain needs version 2 of the protocol"):
            upgrade.admin.call("POST", "/v1/nodes/node-1/drain")
        assert f"not everybody speaks version {NEEDED} of the protocol" in upgrade.health()
        with upgrade.client(1) as client:
            client.page(SPREAD, limit=1)
            session = client.session

        cluster.upgrade("node-1")
        assert httpx.get(f"{cluster.node_urls[0]}/readyz").json()["protocol"] == SPOKEN
        upgrade.wait_spoken(node_1=SPOKEN, node_2=1)
        upgrade.right()
        said = upgrade.refused()
        assert "node node-2 speaks 1" in said
        assert "node-1" not in said

        cluster.upgrade("node-2")
        upgrade.wait_spoken(node_1=SPOKEN, node_2=SPOKEN)
        upgrade.right()
        with upgrade.client(0) as client:
            client.session = session
            assert client.page(SPREAD, limit=1).rows
        assert "of the protocol" not in upgrade.health()
        assert len(upgrade.admin.call("GET", "/v1/builds")) == 1, "nothing was built anew"
        upgrade.wait_ready(upgrade.lay_out())
        wait_for(lambda: upgrade.admin.call("GET", f"/v1/indexes/{SPREAD}")["slices"] == 3, "it took over")
        upgrade.right()

        cluster.put_back("node-2")
        wait_for(lambda: "node-too-old" in str(upgrade.admin.call("GET", "/v1/events")), "it is told", 60)
        wait_for(lambda: not upgrade.nodes()["node-2"]["live"], "it is passed over", 60)
        assert "it speaks version 1 of the protocol, and version 2 is in use" in upgrade.health()

        upgrade.use_later_version()
        for name in ("node-1", "projector-1"):
            process = cluster.services[name]
            assert process.wait(30), f"{name} ends, and not as if nothing were wrong"
            assert process.said(f"the cluster uses version {SPOKEN + 1} of the protocol"), process.tail()


@pytest.mark.parametrize("upgrade", [("coordinator", "projector-1")], indirect=True, ids=["coordinator"])
def test_the_coordinator_and_the_projector_are_upgraded_under_todays_nodes(upgrade: Upgrade) -> None:
    cluster = upgrade.cluster
    assert all("protocol" not in one for one in upgrade.nodes().values()), "it is of the release before"
    with ExitStack() as writer:
        upgrade.begin_with("visits-coordinator", writer, "")  # (it makes no copies yet)
        upgrade.right()
        with pytest.raises(CallerError):
            upgrade.sql(LAYOUT)

        cluster.upgrade("coordinator")
        upgrade.wait_spoken(node_1=SPOKEN, node_2=SPOKEN)
        upgrade.right()
        assert "projector" in upgrade.refused()
        cluster.put_back("coordinator")  # nothing is in use yet that it does not know
        upgrade.right()

        cluster.upgrade("coordinator")
        cluster.upgrade("projector-1")
        upgrade.right()
        assert "of the protocol" not in upgrade.health()
        assert len(upgrade.admin.call("GET", "/v1/builds")) == 1, "nothing was built anew"
        upgrade.sql(f"CREATE INDEX by_id_before ON {upgrade.topic} (city) {BY_ID}, defer_build=true)")
        assert upgrade.admin.call("GET", "/v1/indexes/by_id_before")["hears"] == "all", (
            "there is a way back yet"
        )
        answer = upgrade.admin.call("POST", "/v1/cluster/upgrade")
        assert answer["protocol"] == {"used": SPOKEN, "spoken": SPOKEN}
        build = upgrade.sql(f"CREATE INDEX by_id ON {upgrade.topic} (city) {BY_ID})")
        upgrade.wait_ready(str(build["build"]))
        assert upgrade.admin.call("GET", "/v1/indexes/by_id")["hears"] == "by-id"
        upgrade.right()
        at_least = {str(partition): end for partition, end in upgrade.ends(upgrade.topic).items()}
        assert upgrade.check("by_id", upgrade.topic, _by_city, at_least=at_least, timeout_ms=60_000)
        upgrade.lay_out()
        upgrade.right()
