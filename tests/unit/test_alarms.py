"""Every alarm of docs/operate.md is of a metric that some process has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reference import metrics

PAGE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
SUFFIXES = ("_total", "_bucket", "_sum", "_count", "_created")


def bare(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Names of all processes' metrics."""
    return {bare(one.name) for lines in metrics.processes().values() for one in lines}


def test_every_alarm_has_a_metric(known: set[str]) -> None:
    alarms = PAGE[PAGE.index("Worth an alarm") : PAGE.index("## What was skipped")]
    named = {bare(name) for name in re.findall(r"keytide_[a-z_]+", alarms)}
    assert len(named) > 10
    assert named - known == set()
