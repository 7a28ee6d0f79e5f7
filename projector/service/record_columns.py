"""Records of the source as columns, grouped by partition and leader epoch.

Theory of operation: librdkafka hands out one message object per record, that cannot be helped; every
attribute is then read by one `map` over a list of them, so that no object of ours exists per document.
Records come in runs of one partition (fetch responses are queued that way), so the grouping works on runs.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from confluent_kafka import Message

from projector.core.pipeline import Columns
from projector.progress.events import Key

_timestamp_of = itemgetter(1)


class RecordColumns(NamedTuple):
    """What one read brought.

    Attributes:
        records: per partition one or more columns, in offset order (several when the leader epoch changed).
        ends: position (next offset) of partitions whose end was met.
        lost: partitions whose position lies outside the log, and why: they must be looked at anew.
    """

    records: dict[Key, list[Columns]]
    ends: dict[Key, int]
    lost: dict[Key, str]

    def __bool__(self) -> bool:
        return bool(self.records or self.ends or self.lost)


def group(messages: list[Message], several_topics: bool, wanted: Container[Key]) -> dict[Key, list[Columns]]:
    """The records by partition, as columns; those of partitions that are not wanted are thrown away.

    Args:
        messages: records (no errors), at least one; those of a partition in offset order.
        several_topics: whether they may be of more than one topic.
    """
    numbers = np.fromiter(map(Message.partition, messages), np.int32, len(messages))
    cuts = set((np.flatnonzero(np.diff(numbers)) + 1).tolist())
    if several_topics:
        topics = list(map(Message.topic, messages))
        cuts.update(i for i in range(1, len(topics)) if topics[i] != topics[i - 1])
    runs: dict[Key, list[Message]] = {}
    for low, high in pairwise([0, *sorted(cuts), len(messages)]):
        key = Key(messages[low].topic() or "", int(numbers[low]))
        if key in wanted:
            run = messages[low:high]
            runs[key] = runs[key] + run if key in runs else run
    return {key: [_columns(part) for part in _by_epoch(run)] for key, run in runs.items()}


def _epoch_of(message: Message) -> int:
    epoch = message.leader_epoch()
    return -1 if epoch is None else epoch


def _by_epoch(run: list[Message]) -> list[list[Message]]:
    """The run cut where the leader epoch changes (R30). Epochs only grow, so the first and the last tell."""
    if _epoch_of(run[0]) == _epoch_of(run[-1]):
        return [run]
    cuts = [i for i in range(1, len(run)) if _epoch_of(run[i]) != _epoch_of(run[i - 1])]
    return [run[low:high] for low, high in pairwise([0, *cuts, len(run)])]


def _columns(run: list[Message]) -> Columns:
    return Columns(
        _epoch_of(run[0]),
        list(map(Message.offset, run)),  # type: ignore[arg-type]
        list(map(Message.key, run)),
        list(map(Message.value, run)),
        list(map(_timestamp_of, map(Message.timestamp, run))),
    )
