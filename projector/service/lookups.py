"""What must be asked of Kafka before a partition may be read: its commit, its log and the log's past.

Theory of operation: partitions wait in three sets, to be *taken over* (the group gave them, or a rollback has
changed their history), to be *checked* (their leader has changed), to be *located* (a new index begins). They
are looked after between reads, one request for all of a topic; what has no answer stays in its set and is
asked again a moment later. Nothing of a partition is read meanwhile.

A leader that was replaced and does not know it yet would say that all is well. In one topic epochs never go
back, so the answer of a leader older than one that was heard of is no answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException

from keytide.catalog.catalog import Catalog
from keytide.kafka.admin import KafkaUnavailableError
from keytide.model.log_history import LogHistory
from keytide.model.timestamp import Place
from keytide.process.sync_points import reach
from projector.progress.commits import Beginning, Committed, beginning, check, first_place, take_over
from projector.progress.events import Event, Key, Refused
from projector.progress.tracker import Tracker
from projector.service.transport import Transport

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT_S = 5.0
JUDGE_TIMEOUT_S = 2.0
"""Others' partitions wait meanwhile: what has no answer so soon is asked again."""
_NEWEST = 1 << 31


class LookUps:
    """Asks, and tells the tracker.

    Args:
        transport: asks for the past of a topic.
        tracker: whose partitions they are.
        catalog: the catalog as it is now.
        committed: asks for the group's commits.
        handle: takes the events that come of it.
        clock: seconds, monotonic.
        again_s: before what was asked in vain is asked again.

    Attributes:
        lows: first offset in the log by partition, where it may lie past the position: reading begins there,
            the segment does not.
    """

    def __init__(
        self,
        transport: Transport,
        tracker: Tracker,
        *,
        catalog: Callable[[], Catalog],
        committed: Callable[[list[Key]], dict[Key, Committed]],
        handle: Callable[[Event], None],
        clock: Callable[[], float],
        again_s: float,
    ) -> None:
        self.lows: dict[Key, int] = {}
        self._again_s = again_s
        self._transport = transport
        self._tracker = tracker
        self._catalog, self._committed, self._handle, self._clock = catalog, committed, handle, clock
        self._to_take: set[Key] = set()
        self._to_check: set[Key] = set()
        self._to_locate: set[Key] = set()
        self._rolled_back: set[Key] = set()
        self._next_try = 0.0

    def take(self, keys: Iterable[Key], *, rolled_back: bool = False) -> None:
        """Partitions to be taken over; `rolled_back`: once more, because their history has changed."""
        self._to_take.update(keys)
        if rolled_back:
            self._rolled_back.update(keys)
        self._next_try = 0.0

    def check(self, key: Key) -> None:
        self._to_check.add(key)
        self._next_try = 0.0

    def locate(self, key: Key) -> None:
        self._to_locate.add(key)

    def drop(self, keys: Iterable[Key]) -> None:
        """No answer is wanted any more, but for the take-over."""
        for key in keys:
            self._to_check.discard(key)
            self._to_locate.discard(key)
            self.lows.pop(key, None)

    def forget(self, keys: Iterable[Key]) -> None:
        """The partitions are no longer ours."""
        self._to_take.difference_update(keys)
        self.drop(keys)

    def work(self) -> None:
        """Ask what is to be asked. Cheap when nothing is."""
        now = self._clock()
        if now < self._next_try or not (self._to_take or self._to_check or self._to_locate):
            return
        self._next_try = now + self._again_s
        for task in (self._check, self._take_over, self._locate):
            try:
                task()
            except (KafkaException, KafkaUnavailableError, OSError) as error:
                log.warning("where to read cannot be looked up now: %s", error)

    def _judge(self, topic: str, places: Mapping[int, Place]) -> tuple[LogHistory, dict[int, Place]]:
        """The history of some partitions of a topic, and which of the places are not on it, with where they
        part.

        Args:
            places: a place of offset 0 is always on the log.

        Raises:
            KafkaUnavailableError: no answer.
        """
        ask, deadline = self._transport, self._clock() + JUDGE_TIMEOUT_S
        epochs = {partition: place.epoch if place.offset else _NEWEST for partition, place in places.items()}
        history = ask.log_history(topic, JUDGE_TIMEOUT_S, down_to=epochs, partitions=places)
        return history, ask.partings(topic, history, places, deadline - self._clock())

    # --- taking over

    def _take_over(self) -> None:
        keys = sorted(self._to_take)
        if not keys:
            return
        commits, catalog = self._committed(keys), self._catalog()
        for topic, partitions in by_topic(keys).items():
            begins = {p: beginning(Key(topic, p), commits[Key(topic, p)], catalog) for p in partitions}
            places = {p: begin.place or Place(0) for p, begin in begins.items()}
            history, parted = self._judge(topic, places)
            for p, begin in begins.items():
                same_topic = begin.topic_id in ("", history.topic_id)
                if not (same_topic and history.stale(p, places[p].epoch)):
                    self._taken(Key(topic, p), begin, history, parted.get(p))
        if self._rolled_back and not self._rolled_back & self._to_take:
            self._rolled_back.clear()
            reach("projector-rolled-back")

    def _taken(self, key: Key, begin: Beginning, history: LogHistory, parting: Place | None) -> None:
        event = take_over(key, begin, history, parting, self._catalog())
        known = history.partitions.get(key.partition)
        if known is not None:  # (else it is gone, or not known yet to the broker that answered)
            self._to_take.discard(key)
            self.lows[key] = known.low
        if isinstance(event, Refused):
            state = self._tracker.partitions.get(key)
            if state is not None and state.reason == event.reason:
                return  # said already
            log.error("%s is not read: %s", key, event.reason)
        else:
            words = "%s taken over at %s, version %d, incarnation %d%s"
            cut = ""
            if begin.cut:
                cut = ", where a rollback has cut"
                self._rolled_back.add(key)  # also by one that did not have it when it was rolled back
            log.info(words, key, event.offset, event.version, event.incarnation, cut)
        self._handle(event)

    # --- checking

    def _check(self) -> None:
        states = {
            key: state
            for key in sorted(self._to_check)
            if (state := self._tracker.partitions.get(key)) is not None and state.phase == "CHECKING"
        }
        self._to_check.intersection_update(states)
        for topic, partitions in by_topic(states).items():
            some = {p: states[Key(topic, p)] for p in partitions}
            places = {p: state.place for p, state in some.items()}
            history, parted = self._judge(topic, places)
            for p, state in some.items():
                heard_of = max(state.position_epoch, state.doubted_epoch, state.checked_epoch)
                if not history.topic_id or history.stale(p, heard_of):
                    continue
                self._to_check.discard(state.key)
                event = check(
                    state.key, places[p], state.incarnation, history, parted.get(p), self._catalog()
                )
                if isinstance(event, Refused):
                    log.error("%s is not read any more: %s", state.key, event.reason)
                else:
                    self.lows[state.key] = history.partitions[p].low
                    words = "%s: %d is on the log of leader epoch %d"
                    log.info(words, event.key, state.position, event.leader_epoch)
                self._handle(event)

    # --- locating

    def _locate(self) -> None:
        for topic, partitions in by_topic(sorted(self._to_locate)).items():
            history = self._transport.log_history(topic, LOOKUP_TIMEOUT_S, partitions=partitions)
            for p in partitions:
                key = Key(topic, p)
                self._to_locate.discard(key)  # (the tracker asks again)
                state, known = self._tracker.partitions.get(key), history.partitions.get(p)
                if state is None or known is None:
                    continue
                self.lows[key] = known.low
                has_commit = state.committed >= 0
                self._handle(first_place(key, known, self._catalog(), has_commit=has_commit))


def by_topic(keys: Iterable[Key]) -> dict[str, list[int]]:
    """Topic -> partitions."""
    found: dict[str, list[int]] = {}
    for key in keys:
        found.setdefault(key.keyspace, []).append(key.partition)
    return found
