"""Corrections of a repair, one document each, and their columns in messages. Pure.

A repair concerns few documents of an index (`repair.documents`), so here they are objects; on the wire they
are columns like everything else (`keytide.wire.messages.Corrections`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from keytide.model.timestamp import Timestamp
from keytide.wire.columns import hashes_of, lengths_of, pack_puts, puts_columns, unpack
from keytide.wire.messages import Corrections, Puts, RepairWatch


@dataclass(slots=True)
class Correction:
    """What a slice must hold of one document.

    Attributes:
        partition, offset: of the newest version; `TABLE_PARTITION` where the source has none.
        time: the largest that the document's partition has shown, milliseconds.
        foreign: it was met in two source partitions.
        values: canonical key -> entry value; empty: the slice has no entry of it.
        strays: canonical keys of entries that were found and must not be there.
    """

    id: bytes
    partition: int
    offset: int
    time: int
    foreign: bool = False
    values: dict[bytes, bytes] = field(default_factory=dict)
    strays: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Round:
    """A round of a repair, for one slice.

    Attributes:
        number: counts the rounds of a job, from 0.
        incarnation: of the keyspace when the round began.
    """

    index: str
    slice: int
    job: str
    number: int
    incarnation: int


def pack_watch(to: Round, ids: Sequence[bytes]) -> RepairWatch:
    """The first word of a round about some documents."""
    hashes = hashes_of(ids, len(ids)).astype("<u8", copy=False).tobytes()
    return RepairWatch(to.index, to.slice, to.job, to.number, to.incarnation, len(ids), hashes)


def pack_corrections(
    to: Round, sequence: int, timestamp: Timestamp, corrections: Sequence[Correction]
) -> Corrections:
    """Some documents of a round, as of `timestamp`.

    Args:
        sequence: counts the messages of the round to this slice, from 0.
    """
    ids = [one.id for one in corrections]
    return Corrections(
        index=to.index,
        slice=to.slice,
        job=to.job,
        round=to.number,
        sequence=sequence,
        incarnation=to.incarnation,
        timestamp=timestamp,
        count=len(ids),
        id_lengths=lengths_of(ids).astype(np.uint8).tobytes(),
        ids=b"".join(ids),
        partitions=np.array([one.partition for one in corrections], "<u4").tobytes(),
        offsets=np.array([one.offset for one in corrections], "<u8").tobytes(),
        times=np.array([one.time for one in corrections], "<i8").tobytes(),
        foreign=bytes(one.foreign for one in corrections),
        puts=_pack((n, key, value) for n, one in enumerate(corrections) for key, value in one.values.items()),
        strays=_pack((n, key, b"") for n, one in enumerate(corrections) for key in one.strays),
    )


def read_corrections(message: Corrections) -> list[Correction]:
    """The documents of a message, in order."""
    columns = zip(
        correction_ids(message),
        np.frombuffer(message.partitions, "<u4").tolist(),
        np.frombuffer(message.offsets, "<u8").tolist(),
        np.frombuffer(message.times, "<i8").tolist(),
        np.frombuffer(message.foreign, np.uint8).astype(np.bool_).tolist(),
        strict=True,
    )
    found = [Correction(*row) for row in columns]
    for ordinal, key, value in _entries(message.puts):
        found[ordinal].values[key] = value
    for ordinal, key, _ in _entries(message.strays):
        found[ordinal].strays.append(key)
    return found


def correction_ids(message: Corrections) -> list[bytes]:
    """The document ids of a message, in order."""
    return unpack(np.frombuffer(message.id_lengths, np.uint8), message.ids)


def _pack(rows: Iterable[tuple[int, bytes, bytes]]) -> Puts | None:
    entries = list(rows)
    return pack_puts(
        np.array([ordinal for ordinal, _, _ in entries], np.uint32),
        [key for _, key, _ in entries],
        [value for _, _, value in entries],
    )


def _entries(puts: Puts | None) -> Iterator[tuple[int, bytes, bytes]]:
    if puts is None:
        return iter(())
    view = puts_columns(puts)
    return zip(view.ordinals.tolist(), view.keys, view.values or [b""] * puts.count, strict=True)
