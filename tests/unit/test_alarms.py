"""Every metric that docs/operate.md names is one that some process has, and its labels are as told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coordinator import metrics
from indexer.api import create_app
from indexer.metrics import NodeMetrics
from keytide.metrics import build_info
from keytide.settings import load_settings
from projector import report
from tests.browser.scene import busy_day
from tests.unit.scan_world import World

PAGE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
SUFFIXES = ("_total", "_bucket", "_sum", "_count", "_created")


def bare(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def families(page: bytes) -> set[str]:
    return {bare(family.name) for family in text_string_to_metric_families(page.decode())}


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Names of all processes' metrics."""
    scene = busy_day()
    registry = CollectorRegistry()
    NodeMetrics(registry)
    build_info("node", registry)
    create_app(World().views["n0"], load_settings(), registry)
    assert report.SUSPENDED in REGISTRY._collector_to_names
    coordinator = metrics.render(scene.leader, scene.leader.core.streams["flights"].issued_at)
    return families(coordinator) | families(generate_latest(registry)) | families(generate_latest(REGISTRY))


def test_every_alarm_has_a_metric(known: set[str]) -> None:
    alarms = PAGE[PAGE.index("Worth an alarm") : PAGE.index("## What was skipped")]
    named = {bare(name) for name in re.findall(r"keytide_[a-z_]+", alarms)}
    assert len(named) > 10
    assert named - known == set()


def test_every_metric_of_the_table_is_there(known: set[str]) -> None:
    table = PAGE[PAGE.index("| where | names |") : PAGE.index("Worth an alarm")]
    named = {f"keytide_{bare(name)}" for name in re.findall(r"`([a-z_]+)(?:\{[^`]*)?`", table)}
    assert len(named) > 25
    assert named - known == set()
