"""Where a document's freshness goes: how long each hop took, from the source to the answer of a scan.

Theory of operation: nothing is added to what is measured. Each message of Keytide's own topics has the time
at which its sender made it, so the topics are read afterwards, and each document is found in them by
`keytide.trace`, as `keytide trace` finds one. All clocks are this machine's; Kafka keeps milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from benchmarks.harness import Bench
from deploy.trace.stretches import Stretches
from keytide.errors import InvariantViolationError
from keytide.model.topics import Topics
from keytide.settings.settings import load_settings
from keytide.trace.logs import ControlLog, QueueLog, ReportLog
from keytide.wire.messages import Message

HOPS: Final = ("written", "projected", "reported", "stamped", "committed", "published", "answered")
"""Until Kafka has acknowledged the document, its segment is sent, its progress is reported (all queues have
acknowledged), a timestamp that covers it is sent, the last slice says that it holds the number that is
published, that number is published, the scan has answered."""

FoundT = TypeVar("FoundT")


class Probe(NamedTuple):
    """One document that was written and looked for. Times in milliseconds since the epoch."""

    partition: int
    offset: int
    began: float
    written: float
    answered: float

    @property
    def took(self) -> float:
        return self.answered - self.began


class _Logs(NamedTuple):
    """What the topics say; of the queues that of slice 0, for all slices are sent to at once."""

    queue: QueueLog
    reports: ReportLog
    control: ControlLog


def hops(bench: Bench, probes: Sequence[Probe], cluster: str = "keytide") -> dict[str, list[float]]:
    """Hop -> how long it took for each document, in milliseconds."""
    (index,) = bench.admin.call("GET", "/v1/indexes")
    logs = _read(bench, Topics(cluster), index["id"], index["keyspace"])
    found: dict[str, list[float]] = {name: [] for name in HOPS}
    for probe in probes:
        end = probe.offset + 1
        sent = _there(logs.queue.ends[probe.partition].first(end), end)
        reported = _there(logs.reports.reported(probe.partition, end), end)
        stamp = _there(logs.control.covering(probe.partition, end), end)
        published = _there(logs.control.published[index["id"]].first(stamp.number), end)
        rises = [copy.first(published.value) for copy in logs.reports.acknowledged.values()]
        committed = max(_there(rise, end).at for rise in rises)
        times = (
            *(probe.began, probe.written, sent.at, reported.at, stamp.at),
            *(committed, published.at, probe.answered),
        )
        for name, before, at in zip(HOPS, times, times[1:], strict=False):
            found[name].append(at - before)
    return found


def _there(found: FoundT | None, end: int) -> FoundT:
    if found is None:
        raise InvariantViolationError("BenchmarkHops", f"nothing reaches {end}")
    return found


def _read(bench: Bench, topics: Topics, index: str, keyspace: str) -> _Logs:
    logs = _Logs(QueueLog(), ReportLog(keyspace), ControlLog(keyspace, whole=True))
    with Stretches(load_settings(kafka={"bootstrap": bench.bootstrap}), timeout=30) as stretches:

        def messages(topic: str) -> Iterator[tuple[int, int, Message]]:
            return stretches.messages(topic, stretches.bounds(topic)[0])

        for _, at, message in messages(topics.mutations(index)):
            logs.queue.read(at, message)
        for _, at, message in messages(topics.reports):
            logs.reports.read(at, message)
        for offset, at, message in messages(topics.control):
            logs.control.read(offset, at, message)
    return logs
