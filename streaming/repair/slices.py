"""The messages of a repair to slices, and what slices say of it: the mutation queues and the heartbeats.

Theory of operation. A repair writes into the same queues as the projectors, whatever they write meanwhile: it
is one more sender. A round is over for a slice when all its copies have dealt with all messages; what it has
done is safe when the slice reads on behind the end of the round after any crash (`queue_position` of its
heartbeat, R6). Heartbeats are read from the end of the reports topic on.

Of several copies those count that the dictionary names at each moment. One that has lost its data, or whose
node says nothing, is not waited for when another one of its slice is done: it hears the same from its queue
when it is back, or is filled from the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, Message

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.errors import RetryableError
from keytide.kafka.admin import admin, list_offsets
from keytide.kafka.topics import TopicReader, producer
from keytide.model.topics import Topics
from keytide.model.words import few
from keytide.settings.settings import Settings
from keytide.wire.heartbeats import follow
from keytide.wire.messages import (
    Corrections,
    HeartbeatChanges,
    NodeHeartbeat,
    RepairEnd,
    RepairWatch,
    SliceStatus,
    UnreadableMessageError,
    decode,
    encode,
)
from keytide.wire.parts import split

POLL_S: Final = 0.2
SILENT_S: Final = 10.0
"""A node that says nothing for so long is silent; they say something several times a second."""
TELL_S: Final = 2.0
"""Before it is told whom a repair waits for."""
NAMED: Final = 5
"""Copies that are named."""
SEND_LIMIT_S: Final = 60.0

SliceStatuses = Mapping[tuple[str, int], SliceStatus]
"""(node, slice) -> its newest status."""


def lacking(
    placement: Sequence[Sequence[str]],
    told: SliceStatuses,
    done: Callable[[SliceStatus], bool],
    silent: Container[str],
) -> list[tuple[str, int]]:
    """The copies that a repair waits for, as (node, slice).

    Args:
        placement: of each slice the nodes whose copies count.
        done: whether what a copy says is what is waited for.
        silent: nodes that say nothing.
    """
    found: list[tuple[str, int]] = []
    for number, nodes in enumerate(placement):
        late = [one for one in nodes if (one, number) not in told or not done(told[one, number])]
        for node in late:
            status = told.get((node, number))
            out = node in silent or (status is not None and status.state == "LOST")
            if not out or len(late) == len(nodes):
                found.append((node, number))
    return found


class SliceChannel:
    """To and from the slices of one index.

    Args:
        catalog: gives the dictionary as it is now.
        sender: names this run in messages that are sent in parts (R20).
    """

    def __init__(
        self, settings: Settings, index: IndexRecord, catalog: Callable[[], Catalog], sender: str
    ) -> None:
        self._index = index
        self._catalog = catalog
        self._topic = Topics(settings.cluster).mutations(index.id)
        self._limit = settings.topics.message_max_bytes * 9 // 10
        self._producer = producer(settings)
        self._sender = sender
        self._number = 0
        reports = Topics(settings.cluster).reports
        with admin(settings) as client:
            end = list_offsets(client, reports, [0])[0]
        self._reports = TopicReader(settings, reports, {0: end})
        self._nodes: dict[str, NodeHeartbeat] = {}
        self._told: dict[tuple[str, int], SliceStatus] = {}
        self._heard: dict[str, float] = {}

    def close(self) -> None:
        self._reports.close()

    def send(self, messages: list[RepairWatch | Corrections | RepairEnd]) -> dict[int, int]:
        """Send messages, and wait until the queues have them.

        Returns:
            Slice -> queue offset of the last message to it.

        Raises:
            RetryableError: Kafka does not take them.
        """
        reached: dict[int, int] = {}
        failed: list[str] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(str(error))
            else:
                number = message.partition() or 0
                reached[number] = max(reached.get(number, -1), message.offset() or 0)

        for message in messages:
            self._number += 1
            for part in split(encode(message), self._limit, self._sender, self._number):
                self._producer.produce(
                    self._topic, value=part, partition=message.slice, on_delivery=delivered
                )
                self._producer.poll(0)
        if self._producer.flush(SEND_LIMIT_S):
            failed.append(f"not taken within {SEND_LIMIT_S:.0f} s")
        if failed:
            raise RetryableError(f"the mutation queues of {self._index.name} take nothing: {failed[0]}")
        return reached

    def wait(
        self,
        what: str,
        done: Callable[[SliceStatus], bool],
        limit_s: float,
        stopped: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> SliceStatuses:
        """Wait until every copy of every slice that can (`lacking`) says something.

        Args:
            what: is waited for, in words.
            tell: called with whom it is waited for, when that takes a while.

        Returns:
            What the copies that have done it say.

        Raises:
            RetryableError: not within the limit, or the driver is to end.
        """
        began, last = time.monotonic(), ""
        self._told.clear()
        while True:
            now = time.monotonic()
            placement = (self._catalog().index(self._index.id) or self._index).placement
            silent = {
                node
                for nodes in placement
                for node in nodes
                if now - max(began, self._heard.get(node, began)) >= SILENT_S
            }
            missing = lacking(placement, self._told, done, silent)
            if not missing:
                return {place: status for place, status in self._told.items() if done(status)}
            if stopped():
                raise RetryableError("the driver was asked to end")
            names = few((f"slice {number} on {node}" for node, number in missing), NAMED)
            if now - began > limit_s:
                raise RetryableError(
                    f"{names} of {self._index.name}: not {what} within {limit_s:.0f} s",
                    next_step="see `keytide topology`: every slice must be LIVE",
                )
            if now - began >= TELL_S and names != last:
                tell(f"{names}: not {what} yet")
                last = names
            self._listen()

    def _listen(self) -> None:
        for record in self._reports.poll(POLL_S):
            try:
                message = decode(record.value() or b"")
            except UnreadableMessageError:
                continue
            if not isinstance(message, NodeHeartbeat | HeartbeatChanges):
                continue
            self._heard[message.node] = time.monotonic()
            known = self._nodes.get(message.node)
            whole = follow(known, message)
            if whole is None:
                if known is not None and message.started_at > known.started_at:
                    self._forget(message.node)  # it was said by a process that is gone (R53)
                continue
            self._nodes[message.node] = whole
            for status in whole.slices:
                if status.index == self._index.id:
                    self._told[message.node, status.slice] = status

    def _forget(self, node: str) -> None:
        del self._nodes[node]
        self._told = {place: status for place, status in self._told.items() if place[0] != node}
