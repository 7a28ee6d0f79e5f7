"""A node's metrics with what its scan processes have counted, those that have ended included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from indexer.scan_processes.core.messages import Alive, Sample

_Sums = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""(name, labels) -> value."""


class ProcessTotals:
    """`prometheus_client.registry.Collector`.

    Args:
        registry: the node's metrics; scan processes count some of them as it does.
        living: what each scan process that runs has told last, and whether it answers.
    """

    def __init__(self, registry: Collector, living: Callable[[], Iterable[tuple[Alive, bool]]]) -> None:
        self._registry, self._living = registry, living
        self._gone: _Sums = {}
        self._pinned = self._missed = self._passed_on = self._ended = 0

    def ended(self, told: Alive) -> None:
        """A scan process has ended, and had told this last."""
        _add(self._gone, told.samples)
        self._pinned += told.pinned
        self._missed += told.missed
        self._passed_on += told.passed_on
        self._ended += 1

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        living = list(self._living())
        sums = dict(self._gone)
        for told, _ in living:
            _add(sums, told.samples)
        for family in self._registry.collect():
            yield _with(family, sums)
        snapshots = CounterMetricFamily(
            "keytide_scan_process_snapshots",
            "Snapshots of slices that scan processes could read, or not, for the next commit had come",
            labels=["outcome"],
        )
        snapshots.add_metric(["pinned"], self._pinned + sum(told.pinned for told, _ in living))
        snapshots.add_metric(["missed"], self._missed + sum(told.missed for told, _ in living))
        yield snapshots
        yield CounterMetricFamily(
            "keytide_scan_process_passed_on",
            "Requests that scan processes left the node to answer",
            value=self._passed_on + sum(told.passed_on for told, _ in living),
        )
        yield CounterMetricFamily(
            "keytide_scan_process_ends", "Scan processes that have ended, or were ended", value=self._ended
        )
        yield GaugeMetricFamily(
            "keytide_scan_processes_serving",
            "Scan processes that answer",
            value=sum(answers for _, answers in living),
        )


def _add(sums: _Sums, samples: Iterable[Sample]) -> None:
    for name, labels, value in samples:
        key = (name, tuple(sorted(labels.items())))
        sums[key] = sums.get(key, 0.0) + value


def _with(family: Metric, sums: _Sums) -> Metric:
    """A family of metrics, with what others have counted of it."""
    names = {family.name + suffix for suffix in ("", "_total", "_bucket", "_count", "_sum")}
    more = {key: value for key, value in sums.items() if key[0] in names}
    if not more:
        return family
    summed = Metric(family.name, family.documentation, family.type, family.unit)
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        summed.samples.append(sample._replace(value=sample.value + more.pop(key, 0.0)))
    for (name, labels), value in more.items():
        summed.add_sample(name, dict(labels), value)
    return summed
