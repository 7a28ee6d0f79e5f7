"""Sizes and limits of a slice's store, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:  # the fold worker, which reads this module, stays small
    from keytide.settings.settings import IndexerSettings

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
READERS: Final = 1_024
"""Read transactions that a process may have on one environment: snapshots kept, leased and being read."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes and limits of one slice's store.

    Attributes:
        base_map_bytes: address space of the base. Sparse: neither memory nor disk. It cannot grow while
            snapshots are open, so it is large from the start; at open it is at least four times what is used.
        delta_map_bytes: address space of one delta; well above `delta_hard_bytes`.
        fold_entries: changes to entries in a delta before it is folded; or `fold_share` of the base's
            entries, if that is more. A fold rewrites about one page of a large base per entry, until it has
            touched them all: the larger the delta, the less each entry costs. Measured: commits into a delta
            of 1,500,000 are a third slower than into one of 150,000.
        fold_share: keeps the cost of folding an entry the same, however large the base.
        fold_bytes: the limit in bytes of the delta's file (old snapshots keep its pages from being reused).
        fold_age_ms: a delta with anything in it is folded at this age, so that a restart replays little.
        fold_retry_ms: wait after a fold that failed (disk full) before the next try.
        delta_hard_bytes: no commit begins on a delta larger than this while the frozen one is being folded:
            it raises, and the caller keeps its segments (bounded by R4).
        load_run_documents: entries of a micro-batch resolved and sorted at once, about 600 bytes of
            memory each.
        undo_s: how far back in time the base can step, fold by fold (R33). 0: not at all.
        undo_bytes: disk for that; the oldest steps go first.
        reserve_bytes: disk left free by commits; folds, which give a delta's room back, may use three
            quarters of it. A full disk is then an error, never a signal on a memory map.
        stall_s: how long a process that examines the base may stand still before it is ended.
        max_readers: read transactions on one environment at once, of all processes that read it.
        fsync: whether base commits reach the disk. Only tests turn it off.
        check_mirror_s: check entries against the back index after a commit, unless one of the last so many
            seconds was (0: after every commit; None: never). For tests: it reads everything.
        filter_bits: bits of the smallest filter, a power of two. It has room for `fold_entries` documents,
            because a fold is when it is looked at.
    """

    base_map_bytes: int = 256 * GIB
    delta_map_bytes: int = 8 * GIB
    fold_entries: int = 400_000
    fold_share: float = 0.2
    fold_bytes: int = GIB
    fold_age_ms: int = 30_000
    fold_retry_ms: int = 5_000
    delta_hard_bytes: int = 2 * GIB
    load_run_documents: int = 100_000
    undo_s: int = 3_600
    undo_bytes: int = GIB
    reserve_bytes: int = 256 * MIB
    stall_s: float = 60.0
    max_readers: int = READERS
    fsync: bool = True
    check_mirror_s: float | None = None
    filter_bits: int = 1 << 22

    @classmethod
    def of(cls, settings: IndexerSettings) -> Self:
        """Those of a node's slices."""
        return cls(
            base_map_bytes=settings.base_map_bytes,
            delta_map_bytes=settings.delta_map_bytes,
            fold_entries=settings.delta_entries,
            fold_age_ms=settings.delta_age_s * 1_000,
            undo_s=settings.undo_s,
            undo_bytes=settings.undo_bytes,
            check_mirror_s=settings.check_mirror_s,
            stall_s=settings.stall_s,
            max_readers=READERS * (1 + settings.scan_processes),
        )
