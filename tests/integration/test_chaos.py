"""`python -m tests.chaos` against a cluster that runs already, as an operator would use it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from deploy.process import free_ports
from keytide.cli.admin import Admin
from keytide.cli.data_folder import running_pid
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(900)]
LIMIT_S = 180
CHAOS_LIMIT_S = 420


def keytide(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", "from keytide.cli import app; app()", *arguments]
    done = subprocess.run(
        [*command, "--data-dir", str(folder), "--json"],
        capture_output=True,
        text=True,
        cwd=folder.parent,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, Any]]:
    port, node_port = free_ports(2)
    folder = tmp_path / "data"
    ports = ("--port", str(port), "--node-port", str(node_port))
    try:
        yield keytide(folder, "up", "--detach", "--nodes", "2", *ports) | {"folder": str(folder)}
    finally:
        if running_pid(folder) is not None:
            keytide(folder, "down")


def chaos(cluster: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    where = ("--coordinator", cluster["coordinator"], "--kafka", cluster["kafka"])
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *where, *arguments],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=CHAOS_LIMIT_S,
        check=False,
    )


def test_a_running_cluster_under_faults_and_nothing_is_left_behind(cluster: dict[str, Any]) -> None:
    refused = chaos(cluster, "--faults", "kill")
    assert (refused.returncode, "--data-dir" in refused.stderr) == (2, True)

    size = ("--minutes", "0.4", "--keyspaces", "1", "--rate", "100", "--ids", "300", "--seed", "7")
    faults = ("--faults", "kill,copies", "--data-dir", cluster["folder"])
    done = chaos(cluster, *size, *faults, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["differences"] == 0
    assert min(summary.get(what, 0) for what in ("written", "compared", "faults")) > 0

    with Admin(cluster["coordinator"]) as admin:
        assert admin.call("GET", "/v1/indexes") == []
    client = KafkaAdminClient(bootstrap_servers=cluster["kafka"])
    wait_for(
        lambda: not [topic for topic in client.list_topics() if topic.startswith("chaos")],
        "the run's topics are gone",
    )
    client.close()
