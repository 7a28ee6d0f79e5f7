"""`keytide up` and `down`: data and addresses are kept, and nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from deploy.kafka import EmbeddedKafka
from deploy.process import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
LIMIT_S = 400


class Command:
    """The `keytide` command on one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self._cwd = folder

    def __call__(self, *arguments: str, status: int = 0) -> Any:
        """Run with --json; what it printed."""
        done = subprocess.run(
            self.argv(*arguments), capture_output=True, text=True, cwd=self._cwd, timeout=LIMIT_S, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)

    def argv(self, *arguments: str) -> list[str]:
        command = [sys.executable, "-c", "from keytide.cli import app; app()"]
        return [*command, *arguments, "--data-dir", str(self.folder), "--json"]

    def up(self, *arguments: str) -> dict[str, Any]:
        port, node_port = free_ports(2)
        state = self("up", "--detach", "--port", str(port), "--node-port", str(node_port), *arguments)
        assert isinstance(state, dict)
        return state

    def left(self) -> list[int]:
        """Processes that were started for the folder."""
        found = []
        for process in psutil.process_iter(["pid", "environ", "cmdline"]):
            environment = process.info["environ"] or {}
            if str(self.folder) in f"{environment.get('KEYTIDE_DATA_DIR', '')} {process.info['cmdline']}":
                found.append(process.info["pid"])
        return found


@pytest.fixture
def keytide(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    subprocess.run(command.argv("down"), capture_output=True, timeout=LIMIT_S, check=False)
    assert command.left() == []


def write(kafka: str, documents: dict[str, dict[str, Any] | None]) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka)
    for id, document in documents.items():
        value = None if document is None else json.dumps(document).encode()
        producer.send("people", key=id.encode(), value=value)
    producer.flush()
    producer.close()


def make_topic(kafka: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    admin.create_topics([NewTopic("people", 2, 1)])
    admin.close()


def test_data_and_addresses_are_kept_across_restarts(keytide: Command) -> None:
    first = keytide.up("--nodes", "2")
    make_topic(first["kafka"])
    write(first["kafka"], {f"u{at}": {"city": ["Bonn", "Kiel"][at % 2]} for at in range(100)})
    answer = keytide("sql", "CREATE INDEX by_city ON people (city) WITH (slices=4)")
    assert answer["build_state"] == "READY"
    assert keytide("scan", "by_city", "--equals", "Bonn", "--count")["count"] == 50
    assert os.listdir(keytide.folder.parent) == ["data"]  # nothing is strewn about where it was started

    assert all(check["ok"] for check in keytide("doctor"))
    pages = [urllib.request.urlopen(url, timeout=20).read().decode() for url in first["metrics"]]
    for name in ("coordinator_term", "slice_entries", "slice_entries", "projector_documents_total"):
        assert f"keytide_{name}" in pages.pop(0)

    # Written and not surely indexed before the stop.
    write(first["kafka"], {"u0": None, "u1": {"city": "Bonn"}, "new": {"city": "Bonn"}})
    assert keytide("up", status=1)["detail"].startswith("a cluster runs on")
    assert keytide("down") == {"stopped": first["pid"]}
    assert keytide.left() == []
    assert "no cluster runs" in keytide("down", status=1)["detail"]

    again = keytide("up", "--detach", "--port", "0", "--node-port", "0", "--nodes", "2")
    assert {**again, "pid": 0, "started_at": 0} == {**first, "pid": 0, "started_at": 0}
    rows = keytide("scan", "by_city", "--equals", "Bonn", "--limit", "1000")["rows"]
    expected = {"new", "u1", *(f"u{at}" for at in range(2, 100, 2))}
    assert {row["id"] for row in rows} == expected
    assert len(rows) == len(expected)


def test_a_kafka_that_runs_is_used_and_left_alone(keytide: Command, tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "broker") as broker:
        state = keytide.up("--kafka", broker.bootstrap, "--nodes", "1", "--cluster", "mine")
        assert state["kafka"] == broker.bootstrap
        assert not (keytide.folder / "kafka").exists()
        assert keytide("node", "list")[0]["live"]
        keytide("down")
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        assert "mine.metadata" in admin.list_topics()
        admin.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_nothing(keytide: Command, number: signal.Signals) -> None:
    command = keytide.argv("up", "--port", "0", "--node-port", "0")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "starting coordinator" in line:
                break
        os.kill(process.pid, number)
        process.stderr.read()
        assert process.wait(LIMIT_S) == 130
