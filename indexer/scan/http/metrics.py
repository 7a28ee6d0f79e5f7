"""Metrics of the scan endpoint (docs/reference/metrics.md)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from indexer.scan.gather.answer import WrittenAnswer

_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ScanMetrics:
    """Counters of one node."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "keytide_scan_seconds",
            "Time of a scan request",
            ["index", "consistency"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._rows = Counter("keytide_scan_rows", "Rows given to readers", registry=registry)
        self._errors = Counter(
            "keytide_scan_errors", "Requests that ended in an error", ["type"], registry=registry
        )
        self._children: dict[tuple[str, str], Histogram] = {}

    def answered(self, answer: WrittenAnswer, seconds: float) -> None:
        """Count an answer."""
        labels = (answer.index, answer.consistency)
        child = self._children.get(labels)
        if child is None:  # only names of indexes that exist come here, so there are few
            child = self._children[labels] = self._seconds.labels(*labels)
        child.observe(seconds)
        self._rows.inc(answer.rows)

    def failed(self, problem_type: str) -> None:
        """Count an error."""
        self._errors.labels(problem_type).inc()
