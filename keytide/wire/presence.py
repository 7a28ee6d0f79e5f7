"""At which offsets of a segment the source has documents, for slices that do not hear of all (R16).

Theory of operation: a slice sees what an election has lost by where there are documents (R30), and needs no
more of those that it does not hear of. The offsets are told as runs [first, end), or as bits, whichever takes
fewer bytes: of a full batch without holes a run says all; with a hole behind each document (transactions of
one record, a compacted topic) bits take 32 times less; where documents are far apart, runs do. Bounds of runs
are told as differences, which compress well.

The first byte says which: `r`, then u32[2k], the differences of ascending bounds; or `b`, then one bit for
each offset, the least significant first. Offsets count from the segment's start. No bytes: no documents.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Offsets: TypeAlias = npt.NDArray[Any]
_RUNS: Final = b"r"
_BITS: Final = b"b"


def presence(offsets: Offsets) -> bytes:
    """What says at which offsets there are documents.

    Args:
        offsets: [n], ascending, less the segment's start.
    """
    if not len(offsets):
        return b""
    wide = offsets.astype(np.int64)
    breaks = np.flatnonzero(np.diff(wide) != 1)
    bounds = np.empty(2 * len(breaks) + 2, np.int64)
    bounds[0], bounds[-1] = wide[0], wide[-1] + 1
    bounds[1:-1:2], bounds[2:-1:2] = wide[breaks] + 1, wide[breaks + 1]
    if (int(wide[-1]) + 8) // 8 < 4 * len(bounds):
        there = np.zeros(int(wide[-1]) + 1, np.bool_)
        there[wide] = True
        return _packed(there)
    return _RUNS + np.diff(bounds, prepend=0).astype("<u4").tobytes()


def is_present(told: bytes, low: int, high: int) -> bool:
    """Whether there is a document at offsets [low, high)."""
    low = max(low, 0)
    if low >= high or not told:
        return False
    if told[:1] == _BITS:
        return bool(_bits(told)[low:high].any())
    bounds = _bounds(told)
    ended = int(np.searchsorted(bounds, low, side="right"))  # an odd number: within a run
    return ended % 2 == 1 or (ended < len(bounds) and int(bounds[ended]) < high)


def part_of(told: bytes, low: int, high: int) -> bytes:
    """What of it lies in [low, high), counted from `low`."""
    if not told:
        return b""
    if told[:1] == _BITS:
        return _packed(_bits(told)[low:high])
    bounds = _bounds(told).clip(low, high).reshape(-1, 2) - low
    kept = bounds[bounds[:, 0] < bounds[:, 1]].reshape(-1)
    return _RUNS + np.diff(kept, prepend=0).astype("<u4").tobytes() if len(kept) else b""


def _bounds(told: bytes) -> npt.NDArray[np.int64]:
    return np.cumsum(np.frombuffer(told, "<u4", offset=1), dtype=np.int64)


def _bits(told: bytes) -> npt.NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(told, np.uint8, offset=1), bitorder="little")


def _packed(there: npt.NDArray[Any]) -> bytes:
    return _BITS + np.packbits(there, bitorder="little").tobytes() if there.any() else b""
