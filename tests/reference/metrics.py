"""Every metric of every process, from their registries."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry

from coordinator.http import metrics
from indexer.hosting.metrics import NodeMetrics
from indexer.scan_processes.metrics import ProcessTotals
from indexer.serve.api import create_app
from keytide.process.metrics import build_info
from keytide.settings.settings import load_settings
from projector.service import reports as report
from tests.browser.scene import busy_day
from tests.reference.writing import document, table
from tests.unit.scan_world import World

INTRODUCTION = """What each process tells Prometheus at `/metrics` (a projector at
`projector.metrics_port`). Histograms have `_bucket`, `_sum` and `_count`. Those of Python's client for its
own process are left out. What is worth an alarm: [operate](../operate.md)."""


class Line(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


@cache
def processes() -> dict[str, list[Line]]:
    """The metrics of each kind of process."""
    scene = busy_day()
    registry = CollectorRegistry()
    NodeMetrics(registry)
    build_info("node", registry)
    create_app(World().views["n0"], load_settings(), registry)
    scan = CollectorRegistry()
    scan.register(ProcessTotals(CollectorRegistry(), tuple))
    assert report.SUSPENDED in REGISTRY._collector_to_names
    coordinator = metrics.collected(scene.leader, scene.leader.stability.streams["flights"].issued_at)
    return {
        "Coordinator": _of(coordinator),
        "Projector": _of(REGISTRY),
        "Indexer node": sorted([*_of(registry), *_of(scan)]),
    }


def _of(registry: CollectorRegistry) -> list[Line]:
    """Sorted by name. Labels are those that the collector or the family says, or that samples show."""
    labels = {
        getattr(collector, "_name", ""): tuple(getattr(collector, "_labelnames", ()))
        for collector in registry._collector_to_names
    }
    found: list[Line] = []
    for family in registry.collect():
        if family.name.startswith("keytide_") and not family.name.endswith("_created"):
            shown = dict.fromkeys(one for sample in family.samples for one in sample.labels if one != "le")
            said = labels.get(family.name) or getattr(family, "_labelnames", ()) or shown
            ending = "_total" if family.type == "counter" else ""
            found.append(Line(family.name + ending, family.type, tuple(said), family.documentation))
    return sorted(found)


def page() -> str:
    """docs/reference/metrics.md."""
    lines: list[str] = []
    for process, found in processes().items():
        rows = [
            (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.text)
            for one in found
        ]
        lines += [f"## {process}", "", *table(("name", "kind", "labels", "what it is"), rows)]
    return document("Metrics", INTRODUCTION, lines)
