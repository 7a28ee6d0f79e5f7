"""What the coordination of a large cluster takes, from the real leader and the real messages, without Kafka:
1,000 source partitions, 200 indexes, 100 nodes (acceptance 36).

Time is simulated. In each keyspace every partition has news all the time, projectors and nodes speak as
often as they are set to, and every copy acknowledges each timestamp `ACK_MS` after it was issued, which is
as fast as a cluster that is not otherwise busy does it (`benchmarks.latency`). Heartbeats of nodes say what
has changed (R53); nodes have begun at different times, so that in each moment some say all. Messages are
counted as Kafka gets them, encoded and without its own framing. What the leader takes is its processor time
on this machine, to read what is reported and to handle it; its memory is the size of all objects that it
holds on to.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final

from benchmarks.harness import Result, machine_state, progress_line
from coordinator.builds.registry import BuildLimits
from coordinator.catalog.placement import place
from coordinator.core.events import (
    BoundWritten,
    ControlTail,
    DictionaryWritten,
    Event,
    Issued,
    QueuesTrimmed,
    Reported,
    SourceSampled,
    Tick,
    TopicSeen,
)
from coordinator.core.instructions import (
    Broadcast,
    ConfirmBound,
    ConfirmTopic,
    Instruction,
    TrimQueues,
    Write,
)
from coordinator.core.limits import CoreLimits
from coordinator.core.source_status import SourceStatus
from coordinator.leader import Leader
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import (
    IndexRecord,
    KeyspaceRecord,
    NodeRecord,
    Record,
    TermRecord,
    encode_record,
    record_key,
)
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.wire.heartbeats import WHOLE_EACH, HeartbeatWriter
from keytide.wire.messages import (
    Acknowledged,
    Message,
    NodeHeartbeat,
    PartitionProgress,
    Progress,
    SliceStatus,
    StabilityTimestamp,
    decode,
    encode,
)

ACK_MS: Final = 20
STEP_MS: Final = 5
"""Of simulated time: what was due within it is due at its end."""
PROJECTORS_EACH: Final = 5
"""Of a keyspace."""
REPORT_MS, BEAT_MS, SAMPLE_MS = 250, 500, 1_000
SECONDS: Final = 4
"""Of simulated time that are measured, once all has begun."""
TENFOLD: Final = 10
_CODE: Final = (type, FunctionType, BuiltinFunctionType, ModuleType)


class _Cluster:
    """A cluster of which only the leader is real."""

    def __init__(self, partitions: int, keyspaces: int, indexes: int, slices: int, nodes: int) -> None:
        self.now = 1_000_000
        self.sent: dict[str, Counter[str]] = defaultdict(Counter)
        self.leader_s = 0.0
        self.stamps = 0
        self._each = partitions // keyspaces
        self._keyspaces = [f"keyspace{number}" for number in range(keyspaces)]
        self._nodes = [f"node-{number}" for number in range(nodes)]
        catalog, load = Catalog(), dict.fromkeys(self._nodes, 0)
        for record in self._records(indexes, slices, load):
            catalog.put(record_key(record), record)
            self._count("metadata", encode_record(record), "start")
        self._held: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
        self._of_keyspace: dict[str, dict[str, list[tuple[str, int]]]] = defaultdict(dict)
        for index in catalog.indexes():
            for number, holders in enumerate(index.placement):
                for node in holders:
                    self._held[node].append((index.id, number, index.keyspace))
                    self._of_keyspace[index.keyspace].setdefault(node, []).append((index.id, number))
        self._writers = {node: HeartbeatWriter() for node in self._nodes}
        self._due: list[tuple[int, StabilityTimestamp, int]] = []
        self._number = self._offset = 0
        self._place = 1_000
        catalog.offset = self._metadata = len(catalog.records)
        self.leader = Leader(catalog, "large", 1, CoreLimits(), BuildLimits())
        self._handle(ControlTail((), (), self.now))
        for number, node in enumerate(self._nodes):
            for _ in range(number % WHOLE_EACH):
                self._writers[node].write(self._heartbeat(node), self.leader.term - 1, SPOKEN)

    def _records(self, indexes: int, slices: int, load: dict[str, int]) -> Iterator[Record]:
        yield TermRecord(1, "bench", 0)
        for node in self._nodes:
            yield NodeRecord(node, f"http://{node}:8093", 0)
        for name in self._keyspaces:
            yield KeyspaceRecord(
                name, f"id-{name}", self._each, 1, bound=dict.fromkeys(range(self._each), 1 << 40)
            )
        for number in range(indexes):
            keyspace = self._keyspaces[number % len(self._keyspaces)]
            options = f"WITH (slices={slices}, replicas=1)"
            statement = parse_statement(f"CREATE INDEX by_f{number} ON {keyspace} (f{number}) {options}")
            assert isinstance(statement, CreateIndex)
            placement = place(slices, 1, load, {node: f"node {node}" for node in load})
            yield IndexRecord(
                f"by_f{number}-{number}", statement.definition, "READY", 1, placement, f"b{number}", 0
            )

    # --- what goes on ---------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """So much simulated time passes."""
        for _ in range(int(seconds * 1_000 / STEP_MS)):
            self.now += STEP_MS
            self._place += 1
            self._report()
            self._acknowledge()
            self._handle(Tick(self.now))

    def forget(self) -> None:
        """What was counted so far does not count."""
        self.sent.clear()
        self.leader_s, self.stamps = 0.0, 0

    def _report(self) -> None:
        """What projectors and nodes say now. All of a kind do not speak at once."""
        for number, keyspace in enumerate(self._keyspaces):
            for projector in range(PROJECTORS_EACH):
                if self._is_due(number * PROJECTORS_EACH + projector, REPORT_MS):
                    self._say("reports", self._progress(keyspace, projector))
            if self._is_due(number, SAMPLE_MS):
                self._handle(SourceSampled(self._source(keyspace), "", self.now))
        for number, node in enumerate(self._nodes):
            if self._is_due(number, BEAT_MS):
                beat = self._heartbeat(node)
                self._say("reports", self._writers[node].write(beat, self.leader.term, SPOKEN))

    def _is_due(self, number: int, every_ms: int) -> bool:
        return (self.now // STEP_MS - number) % (every_ms // STEP_MS) == 0

    def _acknowledge(self) -> None:
        while self._due and self._due[0][0] <= self.now:
            _, stamp, number = self._due.pop(0)
            for node, slices in self._of_keyspace[stamp.keyspace].items():
                self._say("reports", Acknowledged(node, stamp.keyspace, 0, number, slices))

    def _progress(self, keyspace: str, projector: int) -> Progress:
        mine = range(projector, self._each, PROJECTORS_EACH)
        partitions = [PartitionProgress(p, self._place, 0, self._place, self.now, 1) for p in mine]
        return Progress(keyspace, f"projector-{projector}", f"id-{keyspace}", 0, partitions, self._place, {})

    def _source(self, keyspace: str) -> SourceStatus:
        ends = dict.fromkeys(range(self._each), self._place)
        return SourceStatus(
            keyspace=keyspace,
            topic_id=f"id-{keyspace}",
            earliest=dict.fromkeys(range(self._each), 0),
            stable=ends,
            high=ends,
            sampled_at=self.now,
            compacted=False,
            delete_retention_ms=0,
            min_compaction_lag_ms=0,
        )

    def _heartbeat(self, node: str) -> NodeHeartbeat:
        places = dict.fromkeys(range(self._each), self._place)
        at = {keyspace: Timestamp.of(places, f"id-{keyspace}") for _, _, keyspace in self._held[node]}
        statuses = [
            SliceStatus(
                index=index,
                slice=number,
                state="LIVE",
                reason="",
                timestamp=at[keyspace],
                number=self._number,
                batch=-1,
                entries=1_000_000,
                bytes=1 << 27,
                skipped=0,
                queue_documents=0,
                queue_position=self._place,
                gap_drops=0,
                foreign_partition_ids=0,
                queue_horizon=self._place - 100,
            )
            for index, number, keyspace in self._held[node]
        ]
        return NodeHeartbeat(
            node, f"http://{node}:8093", 1, self.now, statuses, 1 << 30, 1 << 40, self._metadata
        )

    # --- the leader -----------------------------------------------------------------------------------------

    def _say(self, topic: str, message: Message) -> None:
        data = encode(message)
        self._count(topic, data, type(message).__name__)
        began = time.process_time()
        report = decode(data)
        self.leader_s += time.process_time() - began
        self._handle(Reported(report, self.now))

    def _handle(self, event: Event) -> None:
        began = time.process_time()
        out = self.leader.handle(event)
        self.leader_s += time.process_time() - began
        for one in out:
            self._carry_out(one)

    def _carry_out(self, one: Instruction) -> None:
        match one:
            case Broadcast(message):
                self._count("control", encode(message), type(message).__name__)
                self._offset += 1
                if isinstance(message, StabilityTimestamp):
                    self._number, self.stamps = self._offset, self.stamps + 1
                    self._due.append((self.now + ACK_MS, message, self._offset))
                    self._handle(Issued(message, self._offset, self.now))
            case ConfirmTopic(keyspace=keyspace, ask=ask):
                self._handle(TopicSeen(keyspace, ask, f"id-{keyspace}", "", self.now))
            case ConfirmBound(keyspace, bound):
                self._handle(BoundWritten(keyspace, bound, self.now))
            case Write(records):
                for _, record in records:
                    self._count("metadata", encode_record(record) if record else b"", "change")
                self._metadata += len(records) + 1
                self._handle(DictionaryWritten(self._metadata - 1, self.now))
            case TrimQueues(limits):
                reached = {(limit.topic, limit.partition): limit.before for limit in limits}
                self._handle(QueuesTrimmed(reached, 0, (), self.now))
            case _:
                pass

    def _count(self, topic: str, value: bytes, kind: str) -> None:
        self.sent[topic].update({"messages": 1, "bytes": len(value), f"{kind} bytes": len(value)})


def scale(
    partitions: int = 1_000, keyspaces: int = 20, indexes: int = 200, slices: int = 8, nodes: int = 100
) -> Result:
    """Messages and bytes per second of each topic, the leader's time per timestamp, its memory."""
    result = Result("scale", machine=machine_state())
    result.sizes = {
        "partitions": partitions,
        "keyspaces": keyspaces,
        "indexes": indexes,
        "slices_each": slices,
        "replicas": 1,
        "nodes": nodes,
    }
    for factor in (1, TENFOLD):
        progress_line(f"times {factor}")
        # Ten times as many nodes and indexes; keyspaces are as large as before.
        cluster = _Cluster(partitions * factor, keyspaces * factor, indexes * factor, slices, nodes * factor)
        seconds = SECONDS / factor
        cluster.run(1.5)
        cluster.forget()
        cluster.run(seconds)
        name = "" if factor == 1 else "tenfold_"
        for topic in ("control", "reports", "metadata"):
            sent = cluster.sent[topic]
            result.figures[f"{name}{topic}_messages_per_s"] = round(sent["messages"] / seconds, 1)
            result.figures[f"{name}{topic}_bytes_per_s"] = round(sent["bytes"] / seconds)
            for kind in (
                "NodeHeartbeat bytes",
                "HeartbeatChanges bytes",
                "Acknowledged bytes",
                "Progress bytes",
            ):
                if sent[kind]:
                    key = f"{name}{topic}_{kind.split()[0].lower()}_bytes_per_s"
                    result.figures[key] = round(sent[kind] / seconds)
        result.figures[f"{name}timestamps_per_s"] = round(cluster.stamps / seconds, 1)
        per_stamp = cluster.leader_s / max(1, cluster.stamps)
        result.figures[f"{name}leader_ms_per_timestamp"] = round(1_000 * per_stamp, 3)
        result.figures[f"{name}leader_cores"] = round(cluster.leader_s / seconds, 3)
        result.figures[f"{name}leader_memory_mib"] = round(_size_of(cluster.leader) / (1 << 20), 1)
    return result


def _size_of(root: object) -> int:
    """Bytes of an object and of all that it refers to, but for code."""
    seen, todo, size = {id(root)}, [root], 0
    while todo:
        one = todo.pop()
        size += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, _CODE):
                seen.add(id(other))
                todo.append(other)
    return size
