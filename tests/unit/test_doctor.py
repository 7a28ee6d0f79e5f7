"""What `keytide doctor` thinks of source topics, of a folder, of what its cluster says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin._metadata import (
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)

from deploy import doctor
from deploy.doctor import Finding, cluster_findings, last_word, source_topic
from keytide.cli.options import DEFAULT_DATA_DIR
from keytide.kafka.clients import AdminClient
from keytide.model.health import Reason, verdict

GOOD = {"cleanup.policy": "compact", "min.compaction.lag.ms": "60000", "delete.retention.ms": "86400000"}


def test_a_compacted_topic_that_keeps_enough_is_fine() -> None:
    assert source_topic("people", GOOD).ok


@pytest.mark.parametrize(
    ("setting", "value"), [("min.compaction.lag.ms", "0"), ("delete.retention.ms", "100")]
)
def test_a_compacted_topic_that_forgets_too_soon_is_named_with_the_setting(setting: str, value: str) -> None:
    finding = source_topic("people", {**GOOD, setting: value})
    assert not finding.ok
    assert finding.check == "topic people"
    assert setting in finding.advice


def test_a_topic_with_retention_is_said_to_lose_documents() -> None:
    finding = source_topic("people", {"cleanup.policy": "delete", "retention.ms": "604800000"})
    assert finding.ok
    assert "loses old documents" in finding.found
    forever = source_topic("people", {"cleanup.policy": "delete", "retention.ms": "-1"})
    assert "keeps everything" in forever.found


def test_the_doctor_says_of_a_cluster_what_its_verdict_says() -> None:
    made = verdict(
        [
            Reason("node", "node n1", "failing", "it has said nothing for 2.5 s", "start it again"),
            Reason("index", "index by_city", "ok", "3 versions could not be indexed", "list them"),
        ]
    )
    whole, node, index = cluster_findings("http://127.0.0.1:8091", made)
    assert not whole.ok
    assert "failing" in whole.found
    assert (node.check, node.ok, node.advice) == ("node n1", False, "start it again")
    assert index.ok
    assert "not well" in last_word([whole, node, index])


def test_what_is_wrong_beside_a_cluster_that_is_well_does_not_contradict_it() -> None:
    (whole,) = cluster_findings("http://127.0.0.1:8091", verdict([]))
    assert whole.ok
    assert last_word([whole]) == "all is well"
    word = last_word([whole, Finding("Java", False, "none", "install it")])
    assert "the cluster is well" in word
    assert "1 checks are not ok" in word


def findings(folder: Path) -> dict[str, Finding]:
    return {one.check: one for one in doctor.examine(None, folder)}


def test_a_folder_without_a_cluster_is_a_mistake_of_who_named_it(tmp_path: Path) -> None:
    (tmp_path / "idle").mkdir()
    (tmp_path / "idle" / "cluster.json").write_text("{}")
    local = findings(tmp_path / "typo")["local cluster"]
    assert (local.ok, "there is none" in local.found) == (False, True)
    assert "--data-dir" in local.advice
    (tmp_path / "idle" / "cluster.json").write_text('{"kafka": "127.0.0.1:1"}')
    local = findings(tmp_path / "idle")["local cluster"]
    assert not local.ok
    assert "keytide up --data-dir" in local.advice
    usual = doctor._local(DEFAULT_DATA_DIR, {}, None)
    assert usual.ok
    assert last_word([usual]) == "this machine is well; no cluster was looked at"


def kafka_of(brokers: int, isrs: int) -> ClusterMetadata:
    part = PartitionMetadata()
    part.replicas, part.isrs = [1, 2, 3], list(range(isrs))
    topic = TopicMetadata()
    topic.partitions = {0: part}
    found = ClusterMetadata()
    found.brokers = {number: BrokerMetadata() for number in range(brokers)}
    found.topics = {"t": topic}
    return found


def test_a_broker_that_is_away_is_told_of_and_what_lacks_it() -> None:
    whole = list(doctor.kafka_findings("k:1", kafka_of(3, 3), brokers=3))
    assert [one.ok for one in whole] == [True, True]
    lacking = list(doctor.kafka_findings("k:1", kafka_of(2, 2), brokers=3))
    assert [one.ok for one in lacking] == [False, False]
    assert lacking[0].found == "2 of 3 brokers at k:1"
    assert all(one.advice for one in lacking)
    assert [one.ok for one in doctor.kafka_findings("k:1", kafka_of(2, 3), brokers=0)] == [True, True]


def test_kafka_is_asked_until_the_command_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def list_topics(self, timeout: float) -> ClusterMetadata:
            asked.append(timeout)
            raise KafkaException("nothing came")

    asked: list[float] = []
    for seconds in (0.3, 60.0):
        monkeypatch.setattr(doctor, "give_up_s", lambda seconds=seconds: seconds)
        (found,) = doctor._asked(cast(AdminClient, Silent()), "k:1", [], 0)
        assert not found.ok
    assert asked == [0.3, 5.0]


@pytest.fixture
def stopped() -> Iterator[int]:
    """The process id of a child that is stopped."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "coordinator"])
    child.send_signal(signal.SIGSTOP)
    yield child.pid
    child.kill()
    child.wait()


def test_a_cluster_that_is_stopped_is_told_so_in_time(
    stopped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for a minute for an answer that could not come."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(doctor, "running_pid", lambda _: os.getpid())
        monkeypatch.setattr(doctor, "read_state", lambda _: {"coordinator": url, "kafka": "127.0.0.1:1"})
        monkeypatch.setattr(doctor, "give_up_s", lambda: 0.3)
        found = findings(tmp_path)
    assert "did not answer within 0.3 s" in found["coordinator"].found
    process = found[f"process {stopped}"]
    assert (process.ok, process.advice) == (False, f"let it go on: kill -CONT {stopped}")
    assert "coordinator" in process.found
