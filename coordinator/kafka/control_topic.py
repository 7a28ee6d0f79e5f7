"""What leaders have said in the control topic."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import closing

from coordinator.core.events import ControlTail
from keytide.errors import KeytideError
from keytide.kafka.admin import KafkaUnavailableError, admin, list_offsets
from keytide.kafka.topics import TopicReader
from keytide.model.topics import Topics
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings
from keytide.wire.messages import Published, StabilityTimestamp, decode

log = logging.getLogger(__name__)

TAIL_MESSAGES = 4_000
"""Messages of the control topic that a new term looks at: with one timestamp every 10 ms more than 20 s."""

Said = tuple[int, StabilityTimestamp | Published]
"""Where it stands in the topic, and what."""


def entitled(messages: Iterable[Said]) -> list[Said]:
    """Those that their leader was entitled to, in order: what a lower term wrote behind a higher one does not
    count."""
    term = 0
    result: list[Said] = []
    for number, message in messages:
        if message.term >= term:
            term = message.term
            result.append((number, message))
    return result


def control_range(settings: Settings, timeout: float) -> tuple[int, int]:
    """Where the topic begins and ends now.

    Raises:
        KafkaUnavailableError: no answer in time.
    """
    topic = Topics(settings.cluster).control
    with admin(settings) as client:
        begin = list_offsets(client, topic, [0], earliest=True, timeout=timeout)[0]
        return begin, list_offsets(client, topic, [0], timeout=timeout)[0]


def read_control(settings: Settings, start: int, end: int) -> list[Said]:
    """What stands from `start` on, at least up to `end`.

    Raises:
        KafkaUnavailableError: not read within the request time-out.
    """
    topic, timeout = Topics(settings.cluster).control, float(settings.coordinator.request_timeout_s)
    result: list[Said] = []
    with closing(TopicReader(settings, topic, {0: start})) as reader:
        deadline = time.monotonic() + timeout
        while reader.positions.get(0, -1) < end:
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(
                    f"{topic} was not read from {start} to {end} within {timeout:.0f} s"
                )
            for message in reader.poll(0.1):
                offset = message.offset() or 0
                try:
                    decoded = decode(message.value() or b"")
                except KeytideError as error:
                    log.error("%s offset %s: %s", topic, offset, error)
                    continue
                if isinstance(decoded, StabilityTimestamp | Published):
                    result.append((offset, decoded))
    return result


def read_control_tail(settings: Settings) -> ControlTail:
    """The newest timestamps and common snapshots.

    Raises:
        KafkaUnavailableError: not read within the request time-out.
    """
    begin, end = control_range(settings, float(settings.coordinator.request_timeout_s))
    begin = max(begin, end - TAIL_MESSAGES)
    said = entitled(read_control(settings, begin, end)) if begin < end else []
    return ControlTail(
        tuple((number, one) for number, one in said if isinstance(one, StabilityTimestamp)),
        tuple(one for _, one in said if isinstance(one, Published)),
        now_ms(),
    )
