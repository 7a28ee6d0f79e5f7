"""What `keytide doctor` thinks of source topics."""

from __future__ import annotations

import pytest

from deploy.doctor import history, source_topic, state

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


INDEX = {"name": "by_city", "state": "READY", "lag_documents": 0, "skipped": 0, "reason": ""}


def test_a_rollback_that_is_over_is_told_and_one_at_work_is_waited_for() -> None:
    assert history("people", {"rollbacks": 0, "last_rollback": None, "examining": None}).ok
    last = {"text": "people is rolled back to snapshot 7"}
    over = history("people", {"rollbacks": 1, "last_rollback": last, "examining": None})
    assert over.ok
    assert "to snapshot 7" in over.found
    doubted = history("people", {"rollbacks": 1, "last_rollback": last, "examining": ["a projector says so"]})
    assert not doubted.ok
    assert doubted.advice


def test_failed_indexes_are_built_again_and_slices_in_trouble_are_named() -> None:
    assert state(INDEX, [{"slice": 0, "node": "n1", "state": "LIVE", "reason": ""}]).ok
    failed = state({**INDEX, "state": "FAILED", "reason": "a tombstone may be gone"}, ())
    assert not failed.ok
    assert "a tombstone may be gone" in failed.found
    assert "keytide index build by_city" in failed.advice
    lost = {"slice": 3, "node": "n1", "state": "LOST", "reason": "page 7 is damaged", "rebuild": None}
    finding = state(INDEX, [lost])
    assert not finding.ok
    assert "Slice 3 on node n1 is LOST: page 7 is damaged" in finding.found
    assert "begins by itself" in finding.advice
    assert "wait for build b9" in state(INDEX, [{**lost, "rebuild": "b9"}]).advice
    stopped = state(INDEX, [{**lost, "state": "STOPPED"}])
    assert not stopped.ok
    assert "30 s" in stopped.advice
