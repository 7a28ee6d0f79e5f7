"""What `keytide doctor` thinks of source topics."""

from __future__ import annotations

import pytest

from deploy.doctor import source_topic

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
