"""The projector process: one loop around the pure parts.

Theory of operation: everything happens on one thread, in turns. A turn reads what the source has (it waits
for a first record, never for more than a batch may linger), projects it, hands the messages to the producer,
lets callbacks run, and performs what the tracker says. Several polls are in flight at once, so reading does
not wait for acknowledgements until a bound is reached.

Latency: a record that comes alone goes out at once; the next batch waits until `linger_ms` after the last
one, so that a busy stream makes full batches. While anything is in flight, or is acknowledged and not told
yet, the thread waits for acknowledgements and leaves the source's client to fetch; else it waits for records.

Records of a new leader are not taken before the place that they follow is found to be on its log (R15): an
election may have lost what was read. They are thrown away and read again after that.

What can be tried again is kept in a set and tried in a later turn (takeovers, first places, activations);
what cannot raises, and the process ends: its partitions move to another, which begins at the last commit.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event as Flag

from confluent_kafka import KafkaException

from keytide.catalog.records import IndexRecord
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.broker_watch import BrokerWatch
from keytide.process.clock import now_ms
from keytide.process.sync_points import reach
from keytide.settings.settings import Settings
from projector.core.pipeline import MessageLimits, Outgoing, Pipeline, batches_of, reached_by
from projector.core.projection import SourceBatch
from projector.progress.events import Delivered, Key, Polled, Reached, SendFailed
from projector.service import reports as report
from projector.service.membership import Membership
from projector.service.record_columns import RecordColumns
from projector.service.sender import QueueSender
from projector.service.transport import KafkaTransport, Transport
from projector.service.waits import Waits

log = logging.getLogger(__name__)

CATALOG_INTERVAL_S = 0.02
BUSY, BUSY_LINGERS = 50, 3
"""A stream that brings this many documents in a batch is busy: it waits this many times as long for the next
to fill, since every batch costs a millisecond or two whatever is in it."""
BACKLOG_SHARE = 4
"""A projector whose last batch was this part of a full one is behind: nobody waits for a millisecond less."""


def projector(settings: Settings) -> Projector:
    """The projector of this process."""
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    limits = MessageLimits(settings.topics.segment_target_bytes, settings.topics.part_bytes)
    return Projector(settings, KafkaTransport(settings), Pipeline(name, limits))


class Projector:
    """One projector process.

    A process calls `run`; whoever has another clock and transport calls what that consists of: `start`, then
    `turn` again and again, then `close`.

    Args:
        settings: all of them.
        transport: the way to Kafka.
        pipeline: makes the messages, under this projector's name.
        clock: seconds, monotonic.
        now_ms: milliseconds since the epoch.
        waits: how long it waits for what.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        pipeline: Pipeline,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = now_ms,
        waits: Waits = Waits(),
    ) -> None:
        self._limits, self._waits = settings.projector, waits
        self._clock, self._now_ms = clock, now_ms
        self._catalog = transport.catalog()
        self._identity = transport.identity()
        self._pipeline = pipeline
        watch = partial(BrokerWatch, self._identity.confirmed, clock, now_ms, waits.brokers_lost)
        self._sender = QueueSender(settings, transport, self._delivered, watch, clock)
        self._reporter = report.ProjectorReporter(settings, transport, pipeline.sender, watch, clock, now_ms)
        self._brokers = watch()
        self._members = Membership(
            settings,
            transport,
            catalog=lambda: self._catalog.catalog,
            wait=self._sender.poll,
            clock=clock,
            rewound=self._rewound,
            waits=waits,
        )
        self._tracker = self._members.tracker
        self._poll = 0
        self._quiet: set[Key] = set()
        """Partitions that no segment was sent for since the last heartbeat."""
        self._emitting: dict[str, IndexRecord] = {}
        self._backoff, self._resume_at = 0.0, 0.0
        self._blocked_since: float | None = None
        self._held = False
        self._last_batch = 0.0
        self._last_documents = 0
        self._untold = False
        """Something was acknowledged since progress was told: reading does not wait then."""
        self._next_catalog = self._next_tick = self._next_beat = 0.0

    # --- life

    def run(self, stop: Flag, ready: Callable[[], None]) -> None:
        """Work until `stop` is set, then leave in order.

        Args:
            ready: called once, when the catalog is read.

        Raises:
            KafkaException: the consumer failed for good.
            WrongKafkaError: another Kafka answers than before.
        """
        if not self.start(stop):
            return
        ready()
        log.info("projector %s runs", self._pipeline.sender)
        try:
            while not stop.is_set():
                self.turn()
        finally:
            self.close()

    def start(self, stop: Flag) -> bool:
        """Read the catalog and join the group; False when `stop` was set before that was done."""
        while not stop.is_set():
            try:
                self._identity.look()
                self._catalog.start(timeout=5.0)
            except (KafkaUnavailableError, KafkaException) as error:
                log.warning("waiting for the metadata topic: %s", error)
                stop.wait(0.5)
                continue
            self._identity.open()
            self._learn()
            return True
        return False

    def close(self) -> None:
        """Leave the group in order."""
        log.info("projector %s leaves the group", self._pipeline.sender)
        keyspaces = sorted({key.keyspace for key in self._tracker.partitions})
        self._members.source.close()  # waits for what is in flight, commits, and gives the partitions back
        log.info("left; %d documents of %s", sum(self._pipeline.documents.values()), ", ".join(keyspaces))
        self._reporter.close(2.0)
        self._catalog.close()
        self._identity.close()

    def turn(self) -> None:
        """Do what is due by time, then read and send once, or wait for acknowledgements a moment."""
        self._identity.check()
        now = self._clock()
        self._sender.poll(0)
        self._reporter.poll()
        if self._members.source.seeking_for > self._waits.seek_limit:
            log.warning("joining the group anew")
            self._members.rejoin()
        if self._brokers.is_lost(self._members.source):
            log.error("the source's client has lost all brokers: joining the group with a new one")
            self._members.rejoin()
        if now >= self._next_catalog:
            self._next_catalog = now + CATALOG_INTERVAL_S
            if self._catalog.poll():
                self._learn()
        self._members.work()
        if now >= self._next_tick:
            self._next_tick = now + self._limits.commit_interval_ms / 1000
            self._members.tick()
        self._announce()
        if now >= self._next_beat:
            self._next_beat = now + self._limits.heartbeat_ms / 1000
            self._heartbeat()
        if self._blocked(now):
            self._wait_blocked(now)
        else:
            self._read(now)
        if self._reporter.progress(self._catalog.catalog, self._members, self._pipeline, force=False):
            self._untold = False

    def _learn(self) -> None:
        """Take in the catalog as it is now."""
        catalog = self._catalog.catalog
        emitting = {
            index.id: index
            for keyspace in catalog.keyspaces()
            for index in catalog.emitting(keyspace.name, keyspace.version)
        }
        for id_, old in self._emitting.items():
            new = emitting.get(id_)
            if new is None:
                log.info("index %s is no longer sent for", id_)
                self._sender.drop(id_)
            if new is None or (new.version, new.build) != (old.version, old.build):
                self._pipeline.resume(id_)
        self._emitting = emitting
        self._members.learn(catalog, self._pipeline.suspended)

    # --- reading and sending

    def _blocked(self, now: float) -> bool:
        return (
            now < self._resume_at
            or len(self._tracker.outstanding) >= self._limits.in_flight_batches
            or self._sender.full
        )

    def _wait_blocked(self, now: float) -> None:
        """Wait for acknowledgements; when that takes long, serve rebalances all the same, without taking
        records."""
        if self._blocked_since is None:
            self._blocked_since = now
        self._sender.poll(0.005)
        if now - self._blocked_since > self._waits.hold:
            if not self._held:
                self._held = True
                for state in self._tracker.running():
                    self._members.source.pause(state.key)
            # What it brings all the same is read again: `_release` seeks.
            self._members.source.read(100, 0.01, 0.0)

    def _release(self) -> None:
        self._blocked_since = None
        if self._held:
            self._held = False
            for state in self._tracker.running():
                self._members.read_from(state.key, state.position)

    def _read(self, now: float) -> None:
        if self._blocked_since is not None:
            self._release()
        waiting = bool(self._tracker.outstanding)
        due = self._reporter.due if self._untold else min(self._next_beat, now + 0.05)
        linger = self._limits.linger_ms / 1000
        busy = self._last_documents >= BUSY
        fill_until = self._last_batch + (BUSY_LINGERS * linger if busy else linger)
        behind = BACKLOG_SHARE * self._last_documents >= self._limits.batch_documents
        if now < fill_until and (waiting or self._untold) and not behind:
            # The source's client fills the batch by itself; to wait in it would leave answers unheard. (Where
            # the projector is behind, a batch is full sooner, which only the source's client can tell.)
            self._sender.poll(max(0.0, min(fill_until, due) - now))
            return
        timeout = 0.0 if waiting else max(0.0, due - now)
        harvest = self._members.source.read(self._limits.batch_documents, timeout, fill_until)
        if harvest:
            self._take_in(harvest)
        elif waiting:
            self._sender.poll(0.001)

    def _take_in(self, harvest: RecordColumns) -> None:
        for key, reason in harvest.lost.items():
            self._members.doubt(key, -1, reason)
        positions: dict[Key, int] = {}
        unlooked: dict[Key, int] = {}
        marked: dict[Key, int] = {}
        for key in harvest.records.keys() | harvest.ends.keys():
            state = self._tracker.partitions.get(key)
            if state is None or state.phase != "RUNNING":
                continue
            runs = harvest.records.get(key)
            last = runs[-1].offsets[-1] + 1 if runs else 0
            end = harvest.ends.get(key, 0)
            epochs = [run.epoch for run in runs or ()]
            if end > max(last, state.position):  # markers: nothing else shows of which log they are
                epochs.append(self._members.source.epoch_below(key, end))
            strange = state.strange(epochs)
            if strange is not None:
                self._members.doubt(key, strange, f"leader epoch {strange} came")
                continue
            if end > max(last, state.position):
                if state.unlooked(end, epochs[-1]):
                    unlooked[key], end = end, 0
                else:
                    marked[key] = epochs[-1]
            self._reporter.met_end(key, end if end >= last else None)
            if max(last, end) > state.position:
                positions[key] = max(last, end)
        if positions:
            self._last_batch = self._clock()
            self._last_documents = sum(len(run.offsets) for some in harvest.records.values() for run in some)
            self._emit(positions, harvest, marked)
        for key, end in unlooked.items():
            self._members.doubt(key, -1, f"nothing shows the leader epoch of what lies below {end}", end)

    def _emit(
        self,
        positions: dict[Key, int],
        harvest: RecordColumns | None = None,
        marked: Mapping[Key, int] | None = None,
    ) -> None:
        """Project and send everything of these partitions up to the positions, as one poll.

        Args:
            marked: leader epochs of markers below the positions, where they are known (-1: not).
        """
        if not positions:
            return
        catalog = self._catalog.catalog
        work: dict[str, dict[int, list[SourceBatch]]] = {}
        reached: dict[Key, Reached] = {}
        for key, end in sorted(positions.items()):
            state = self._tracker.partitions[key]
            columns = harvest.records.get(key, ()) if harvest else ()
            marker = marked.get(key, -1) if marked else -1
            batches = batches_of(key, state.position, end, state.position_epoch, columns, marker)
            work.setdefault(key.keyspace, {}).setdefault(state.version, []).extend(batches)
            reached[key] = reached_by(batches, state.position_tail, marker)
            self._quiet.discard(key)
        messages: list[Outgoing] = []
        for keyspace, by_version in work.items():
            messages += self._pipeline.emit(catalog, keyspace, by_version, self._now_ms())
        self._poll += 1
        self._members.handle(Polled(self._poll, len(messages), reached))
        reach("projector-projected")
        for message in messages:
            if self._poll not in self._tracker.outstanding:
                break  # a message before this one was refused at once
            self._sender.send(self._poll, message.index_id, message.slice, message.value)
            reach("projector-sent")

    def _delivered(self, poll: int, messages: int, error: str | None) -> None:
        if error is None:
            self._backoff = 0.0
            self._untold = True
            self._members.handle(Delivered(poll, messages))
            if poll not in self._tracker.outstanding:
                reach("projector-acknowledged")
        else:
            if poll in self._tracker.outstanding:
                log.error("poll %d could not be sent to %s", poll, error)
            self._members.handle(SendFailed(poll))

    def _rewound(self, polls: int) -> None:
        doubled = min(self._waits.longest_backoff, 2 * self._backoff)
        self._backoff = doubled or self._waits.first_backoff
        self._resume_at = self._clock() + self._backoff
        log.warning("%d polls are given up and will be sent again in %.1f s", polls, self._backoff)
        report.RESETS.inc()

    # --- telling

    def _announce(self) -> None:
        """A version was activated: an empty segment and the report (R13, R14)."""
        keys = self._members.take_announcements()
        states = [self._tracker.partitions[key] for key in keys]
        for state in states:
            log.info("%s: %s under version %d from %d", state.key, state.phase, state.version, state.acked)
            self._reporter.activated(state)
        self._emit({state.key: state.position for state in states if state.phase == "RUNNING"})

    def _heartbeat(self) -> None:
        """Empty segments where nothing was sent, progress, and what builds still wait to hear."""
        running = self._tracker.running()
        if not self._blocked(self._clock()):
            self._emit({state.key: state.position for state in running if state.key in self._quiet})
        self._quiet = {state.key for state in running}
        catalog = self._catalog.catalog
        for state in self._tracker.partitions.values():
            if state.phase in ("RUNNING", "IDLE") and report.awaited_by_a_build(catalog, state):
                self._reporter.activated(state)
            if state.lost:
                self._reporter.history_lost(state)
        for index, seconds in self._sender.stuck(self._reporter.alive_at).items():
            story = "a queue of index %s took nothing for %.0f s while others did: suspended, build it again"
            log.error(story, index, seconds)
            self._pipeline.suspend(index)
            self._sender.drop(index)
            self._learn()
        self._reporter.progress(catalog, self._members, self._pipeline, force=True)
        self._reporter.metrics(catalog, self._pipeline, self._tracker)
