"""A whole cluster with TLS, under an authority of its own: every part asks the others over it."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kafka import KafkaProducer

from deploy.cluster import LocalCluster
from deploy.process import ChildProcess, free_ports
from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.errors import KeytideError, RetryableError
from tests.integration.world import World
from tests.unit.certificates import Authority
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

SETTINGS = {
    "KEYTIDE_BUILD__LOCAL_DOCUMENTS": "0",  # by Spark
    "KEYTIDE_BUILD__SPARK_MASTER": "local[1]",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "512m",
    "KEYTIDE_VERIFY__LOCAL_DOCUMENTS": "100000",
}
DOCUMENTS = 200


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def files(authority: Authority) -> tuple[Path, Path]:
    pair = (authority.folder / "tls.crt", authority.folder / "tls.key")
    authority.sign(*pair)
    return pair


@pytest.fixture(scope="module")
def world(
    authority: Authority, files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEYTIDE_SECURITY__TLS_CERTIFICATE", str(files[0]))
        patch.setenv("KEYTIDE_SECURITY__TLS_KEY", str(files[1]))
        patch.setenv("KEYTIDE_SECURITY__TLS_AUTHORITY", str(authority.certificate))
        folder = tmp_path_factory.mktemp("cluster")
        with LocalCluster(folder, nodes=2, settings=SETTINGS) as cluster, World(cluster) as made:
            made.make_topic("flights")
            producer = KafkaProducer(bootstrap_servers=made.bootstrap)
            for number in range(DOCUMENTS):
                producer.send("flights", key=b"f%d" % number, value=json.dumps({"n": number}).encode())
            producer.flush()
            producer.close()
            yield made


def test_every_part_asks_the_others_over_tls(world: World) -> None:
    """A build that is verified: the coordinator, projectors, nodes, and a Spark driver that asks nodes."""
    assert all(
        url.startswith("https://") for url in (world.cluster.coordinator_url, *world.cluster.node_urls)
    )
    world.sql("CREATE INDEX by_n ON flights (n) WITH (slices = 4, defer_build = true)")
    world.wait_ready(world.build("by_n"))
    for node in range(2):
        with world.client(node) as client:
            assert [row.key[0] for row in client.scan("by_n")] == list(range(DOCUMENTS))
    skipped = world.admin.call("GET", "/v1/indexes/by_n/skipped")
    assert skipped is not None  # which the coordinator fetched from the nodes
    for command in (("status", "--json"), ("scan", "by_n", "--limit", "3", "--json"), ("doctor", "--json")):
        shown = _keytide(world, *command)
        assert "CERTIFICATE" not in shown.stdout + shown.stderr
        assert "Traceback" not in shown.stderr
        if command[0] != "doctor":  # which may find this machine's disk too full
            assert shown.returncode == 0, shown.stderr


def test_a_gateway_asks_nodes_over_tls(world: World, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "from keytide.cli import app; app()", "gateway", "--port", str(port)]
    gateway = ChildProcess(
        "gateway", [*command, "--kafka", world.bootstrap], log=tmp_path / "gateway.log", env=dict(os.environ)
    )
    url = f"https://127.0.0.1:{port}"
    with gateway, Client(url) as client:
        gateway.wait_until(lambda: gateway.said(f"ready {url}"), 60, "serves")
        wait_for(lambda: len(list(client.scan("by_n"))) == DOCUMENTS, "the gateway knows the index", 60)


def test_a_renewed_certificate_is_used_by_all_and_a_strangers_by_nobody(
    world: World, authority: Authority, files: tuple[Path, Path], tmp_path: Path
) -> None:
    urls = [world.cluster.coordinator_url, *world.cluster.node_urls]
    first = {url: _shown(url) for url in urls}
    authority.sign(*files)
    wait_for(lambda: all(_shown(url) != first[url] for url in urls), "it is shown", 60)
    with world.client() as client:
        assert len(list(client.scan("by_n"))) == DOCUMENTS
    Authority.made(tmp_path / "stranger").sign(*files)
    wait_for(lambda: _untrusted(urls), "nobody is trusted", 60)
    authority.sign(*files)
    wait_for(lambda: not _untrusted(urls[:1]), "it is good again", 60)
    with Admin(world.cluster.coordinator_url) as admin:
        wait_for(lambda: _live(admin) == 2, "the nodes live", 60)


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return ssl.get_server_certificate((parts.hostname or "", parts.port or 0), timeout=20)


def _untrusted(urls: list[str]) -> bool:
    for url in urls:
        with Admin(url) as admin:
            try:
                admin.call("GET", "/readyz")
                return False
            except KeytideError as error:
                if "CERTIFICATE_VERIFY_FAILED" not in error.message:
                    return False
    return True


def _live(admin: Admin) -> int:
    try:
        nodes: list[dict[str, Any]] = admin.call("GET", "/v1/nodes")
    except RetryableError:
        return 0
    return sum(bool(node["live"]) for node in nodes)


def _keytide(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from keytide.cli import app; app()", *arguments]
    folder = ["--data-dir", str(world.cluster.data_dir)]
    return subprocess.run([*command, *folder], capture_output=True, text=True, check=False, timeout=120)
