"""Which process a data folder's cluster is, and what a start that fails says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from deploy.cluster import LocalCluster
from deploy.process import free_ports
from deploy.up import UpOptions, detach, down, remembered
from keytide.cli import app
from keytide.cli.data_folder import read_state, running_pid
from keytide.definition.index import MAX_REPLICAS
from keytide.errors import CallerError, ConfigurationError
from keytide.settings.settings import load_settings


def note(folder: Path, pid: object, started_at: object) -> None:
    (folder / "cluster.json").write_text(json.dumps({"pid": pid, "started_at": started_at}))


def test_the_process_that_left_the_note_is_found(tmp_path: Path) -> None:
    assert running_pid(tmp_path) is None
    note(tmp_path, os.getpid(), time.time())
    assert running_pid(tmp_path) == os.getpid()


def test_another_process_with_the_same_id_is_not_taken_for_it(tmp_path: Path) -> None:
    """Or `keytide down` would end a stranger."""
    note(tmp_path, os.getpid(), psutil.Process().create_time() - 60)
    assert running_pid(tmp_path) is None
    with pytest.raises(CallerError, match="no cluster runs"):
        down(tmp_path)


def test_a_process_that_has_ended_is_not_found(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    psutil.wait_procs([psutil.Process(ended.pid)], timeout=20)
    note(tmp_path, ended.pid, time.time())
    assert running_pid(tmp_path) is None
    ended.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "1"}', '{"pid": 1}', '{"pid": true}'])
def test_a_note_that_says_nothing_is_no_cluster(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    assert running_pid(tmp_path) is None


def test_copies_of_new_indexes_are_remembered_and_need_as_many_nodes(tmp_path: Path) -> None:
    assert remembered(UpOptions(tmp_path)).replicas is None  # as settings say
    asked = remembered(UpOptions(tmp_path, nodes=3, replicas=2))
    assert (asked.nodes, asked.replicas) == (3, 2)
    cluster = LocalCluster(tmp_path, kafka="127.0.0.1:1", nodes=3, replicas=asked.replicas)
    cluster._choose_ports()
    cluster._define({})
    environment = cluster.services["coordinator"].env or {}
    assert environment["KEYTIDE_COORDINATOR__DEFAULT_REPLICAS"] == "2"
    cluster._write_state()
    assert remembered(UpOptions(tmp_path)).replicas == 2
    assert remembered(UpOptions(tmp_path, replicas=0)).replicas == 0
    for options in (UpOptions(tmp_path, replicas=3), UpOptions(tmp_path / "new", replicas=2)):
        with pytest.raises(CallerError, match="copies of each slice need as many nodes") as caught:
            remembered(options)
        assert "--nodes" in caught.value.next_step


def several(folder: Path) -> LocalCluster:
    """A cluster that left its note, with three of everything; nothing of it runs."""
    cluster = LocalCluster(folder, nodes=3, brokers=3, coordinators=3)
    for broker in reversed(cluster.brokers):
        broker.log_dir.mkdir(parents=True)
    cluster._choose_ports()
    cluster._define({})
    cluster._write_state()
    return cluster


def test_several_of_everything_are_remembered(tmp_path: Path) -> None:
    cluster = several(tmp_path)
    again = remembered(UpOptions(tmp_path))
    assert (again.nodes, again.brokers, again.coordinators, again.kafka) == (3, 3, 3, None)
    assert remembered(UpOptions(tmp_path, brokers=3, coordinators=5)).coordinators == 5
    assert read_state(tmp_path)["coordinators"] == cluster.coordinator_urls
    assert len({*cluster.coordinator_urls}) == 3
    for name in cluster.coordinators:
        environment = cluster.services[name].env or {}
        assert environment["KEYTIDE_COORDINATOR__PORT"] == str(cluster.ports[name])
        assert environment["KEYTIDE_DATA_DIR"] == str(tmp_path / "coordinator"), "checkpoints are shared"
        assert environment["KEYTIDE_TOPICS__REPLICATION_FACTOR"] == "3"


@pytest.mark.parametrize("given", [1, 2, 4])
def test_brokers_stay_as_many_as_they_are(tmp_path: Path, given: int) -> None:
    several(tmp_path)
    with pytest.raises(CallerError, match="has 3 brokers") as caught:
        remembered(UpOptions(tmp_path, brokers=given))
    assert "leave --brokers out" in caught.value.next_step


def test_one_broker_stays_one(tmp_path: Path) -> None:
    (tmp_path / "kafka" / "data").mkdir(parents=True)
    assert remembered(UpOptions(tmp_path)).brokers == 1
    with pytest.raises(CallerError, match="has 1 broker,"):
        remembered(UpOptions(tmp_path, brokers=3))


def test_brokers_of_a_kafka_that_runs_already_are_not_ours(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="has its own brokers"):
        remembered(UpOptions(tmp_path, kafka="k:9092", brokers=3))


def test_as_many_copies_can_be_the_default_as_a_statement_can_ask_for() -> None:
    assert load_settings(coordinator={"default_replicas": MAX_REPLICAS}).coordinator.default_replicas == 3
    with pytest.raises(ConfigurationError):
        load_settings(coordinator={"default_replicas": MAX_REPLICAS + 1})


@pytest.mark.slow
def test_a_kafka_that_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    kafka = f"127.0.0.1:{free_ports()[0]}"
    with pytest.raises(CallerError, match=f"no Kafka answers at {kafka}") as caught:
        detach(UpOptions(tmp_path, kafka, 1, 1, "keytide", 0, 0))
    assert "_TRANSPORT" in caught.value.message
    assert "Traceback" not in caught.value.message
    assert not list(tmp_path.glob("logs/*"))


def test_a_second_cluster_on_one_folder_is_refused(tmp_path: Path) -> None:
    note(tmp_path, os.getpid(), time.time())
    result = CliRunner().invoke(app, ["up", "--data-dir", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert f"as process {os.getpid()}" in json.loads(result.stdout)["detail"]
