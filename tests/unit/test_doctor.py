"""What `keytide doctor` thinks of source topics."""

from __future__ import annotations

import pytest

from deploy.doctor import Finding, cluster_findings, last_word, source_topic
from keytide.health import Reason, verdict

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
