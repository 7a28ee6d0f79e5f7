"""Which version of a document is the newest, over columns. Pure.

Theory of operation
===================
In one source partition the order of versions is that of offsets. Nearly always that is all there is: a
Kafka producer sends one key to one partition. But producers with different partitioners can send it to two,
and then versions (the last of each partition) are ordered by (record timestamp, partition, offset). No task
sees both, so they are found by hash: every share hands on the hashes of its documents, cut into ranges; the
task that has a range looks for hashes that two shares have (`repeated`). If there are any, the driver
collects the versions of just those documents, judges by id (`losers_of`), and runs the micro-batch again
without the losers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]
OffsetColumn = npt.NDArray[np.int64]

_HASHES_END = 1 << 64


class Version(NamedTuple):
    """A version of a document, in the order of versions."""

    time: int
    partition: int
    offset: int


def newest_versions(hashes: Hashes, ids: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each version is the last of its document. bool[n].

    Args:
        hashes: of the ids; documents with one hash are told apart by their ids.
        ids: of one source partition, in offset order.
    """
    newest = np.ones(len(hashes), np.bool_)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(again):
        return newest
    older, newer = order[again], order[again + 1]
    if pc.all(pc.equal(ids.take(pa.array(older)), ids.take(pa.array(newer)))).as_py():
        newest[older] = False
        return newest
    last: dict[bytes, int] = {}  # two ids with one hash: once in a lifetime
    for ordinal in np.union1d(older, newer).tolist():
        name = ids[ordinal].as_py()
        if name in last:
            newest[last[name]] = False
        last[name] = ordinal
    return newest


def hash_ranges(hashes: Hashes, ranges: int) -> list[Hashes]:
    """The hashes in order, cut into `ranges` equal ranges of the 64-bit numbers."""
    bounds = np.array([number * _HASHES_END // ranges for number in range(1, ranges)], np.uint64)
    ordered = np.sort(hashes)
    return np.split(ordered, np.searchsorted(ordered, bounds))


def repeated(parts: Sequence[Hashes]) -> Hashes:
    """The hashes that come more than once, in one part or several, each once."""
    ordered = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def contained(values: npt.NDArray[Any], ordered: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each value is in `ordered` (ascending). bool[n]."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: npt.NDArray[np.bool_] = ordered[places] == values
    return found


def losers_of(versions: Iterable[tuple[bytes, Version]]) -> dict[int, OffsetColumn]:
    """Offsets, by partition and ascending, of versions that are the last in their partition, while another
    partition has a newer one of their document."""
    last: dict[tuple[bytes, int], Version] = {}
    for docid, version in versions:
        place = docid, version.partition
        known = last.get(place)
        if known is None or known.offset < version.offset:
            last[place] = version
    newest: dict[bytes, Version] = {}
    lost: dict[int, list[int]] = {}
    for (docid, _), version in last.items():
        known = newest.get(docid)
        if known is None:
            newest[docid] = version
            continue
        newest[docid], loser = max(known, version), min(known, version)
        lost.setdefault(loser.partition, []).append(loser.offset)
    return {partition: np.array(sorted(offsets), np.int64) for partition, offsets in sorted(lost.items())}
