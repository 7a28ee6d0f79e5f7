"""The seam between a node's ingest thread and its scan endpoint: what a scan may see of the node.

The ingest thread owns the slices and changes them; the endpoint, in the asyncio thread, only ever sees
snapshots through a `NodeView`. All methods may be called from the asyncio thread and return at once; nothing
here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from indexer.store.interface import SkipLine as SkipLine
from indexer.store.interface import StoreDamagedError as StoreDamagedError
from indexer.store.interface import StoredDocument as StoredDocument
from indexer.store.interface import StoreExport as StoreExport
from indexer.store.joint import LOOKED_AT_BYTES as LOOKED_AT_BYTES
from indexer.store.joint import LargeRowsError as LargeRowsError
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.errors import RetryableError
from keytide.model.byte_columns import EntryColumns
from keytide.model.timestamp import Timestamp
from keytide.wire.index_lists import WrittenSlice
from keytide.wire.messages import UniqueViolation


class DoubtfulReadError(RetryableError):
    """What a read found contradicts itself: entries out of order, bytes that are no key. The disk may be to
    blame, or a bug, or the request; so it says nothing of the slice until the store was compared with its own
    checksums and counts (`NodeView.report_doubt`)."""

    problem_type = "store-doubted"
    status = 503


class SliceTrouble(NamedTuple):
    """Why a slice is not in order: the state that its node tells of it, and the reason."""

    state: str
    reason: str


class ReadableSnapshot(Protocol):
    """One slice at one commit. The holder calls `release` exactly once; the others may be called from any
    thread until then."""

    @property
    def number(self) -> int:
        """The snapshot number, -1 for an unnumbered state (tip)."""
        ...

    @property
    def incarnation(self) -> int:
        """The keyspace's incarnation under which it was committed."""
        ...

    @property
    def timestamp(self) -> Timestamp:
        """Everything below it is in, nothing past it."""
        ...

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Blocks of (entry key, value) in entry key order: those with low <= entry key < high, behind
        `start_after` in the direction of the read, at most `limit`.

        Raises:
            StoreDamagedError: what is stored cannot have been written; nothing of the slice is to be used.
        """
        ...

    def rows_of(
        self,
        spans: Sequence[tuple[bytes, bytes | None]],
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """The same of several spans [low, high), disjoint and in the direction of the read. Blocks may be
        empty. Raises as `rows`."""
        ...

    def entry_columns(
        self, spans: Sequence[tuple[bytes, bytes | None]], reverse: bool, limit: int
    ) -> Iterator[EntryColumns]:
        """The same by columns, for who reads much. Raises as `rows`."""
        ...

    def count(self, low: bytes, high: bytes | None) -> int:
        """How many entries lie in [low, high). Raises as `rows`."""
        ...

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        """What the back index has, by document id, behind `after`. Raises as `rows`."""
        ...

    @property
    def foreign(self) -> int:
        """Documents that were met in two source partitions, ever."""
        ...

    def documents(self, ids: Sequence[bytes]) -> list[StoredDocument | None]:
        """What the back index has of each document; None for one without entries here. Raises as `rows`."""
        ...

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        """Up to `limit` lines of the skip ledger behind (partition, offset), in that order. Raises as
        `rows`."""
        ...

    def release(self) -> None:
        """Give the snapshot back."""
        ...


class JointSnapshot(Protocol):
    """Some slices at one number, read as one by one thread, as often as it wants; there is nothing to give
    back."""

    @property
    def incarnations(self) -> Sequence[int]:
        """Of each slice, the keyspace's incarnation under which it was committed."""
        ...

    @property
    def timestamps(self) -> Sequence[Timestamp]:
        """Of each slice."""
        ...

    def first(
        self, low: bytes, high: bytes | None, reverse: bool, count: int
    ) -> tuple[list[tuple[bytes, bytes]], list[int]] | None:
        """The first `count` entries with low <= entry key < high of all slices, in the direction of the read,
        and how many were read of each slice. None when a slice does not hold the number any more, or when
        they are to be read slice by slice, which takes long, or finds out what is wrong.

        Raises:
            LargeRowsError: they are larger than `LOOKED_AT_BYTES`, about, and are to be read slice by slice.
            StoreDamagedError: as `ReadableSnapshot.rows`, of one of the slices.
        """
        ...

    def within(
        self, lows: Sequence[bytes], highs: Sequence[bytes], most: int, behind: int
    ) -> tuple[list[tuple[bytes, bytes]], list[int]] | None:
        """The entries of some spans (disjoint and ascending), slice by slice, and how many were looked at in
        each slice: more than `most` when not all were, which are many. Of those whose keys are the same
        behind so many bytes, a document's, one at least. None and errors as in `first`."""
        ...


class NodeView(Protocol):
    """What the scan endpoint knows of its node."""

    @property
    def node_id(self) -> str: ...

    def catalog(self) -> Catalog:
        """The system dictionary as last read; not to be changed. A change shows by another object or another
        `offset`."""
        ...

    def history(self, index: str) -> History:
        """The rollbacks of the keyspace of an index (id), as the dictionary tells them."""
        ...

    def published(self, index: str) -> int | None:
        """Newest common snapshot number of a READY index (id), from the leader's `Published`."""
        ...

    def behind(self, index: str, slice_number: int) -> frozenset[str]:
        """The nodes whose copies of a slice were not waited for when the newest number was published: they
        are silent, or lag. Never all of a slice's."""
        ...

    def stamp(self, keyspace: str, number: int) -> tuple[int, Timestamp, int] | None:
        """(incarnation, timestamp, fresh_at) of a recent number, from the leader's `StabilityTimestamp`."""
        ...

    def acquire(self, index: str, slice_number: int, number: int) -> ReadableSnapshot | None:
        """The slice's snapshot of that number; None when it is not held (any more)."""
        ...

    def joint(self, index: str, slices: Sequence[int], number: int) -> JointSnapshot | None:
        """Several slices' snapshots of that number, to be read as one; None when one is not held (any more),
        or is to be read alone."""
        ...

    def tip(self, index: str, slice_number: int) -> ReadableSnapshot | None:
        """The slice's newest committed state; None when the slice is not on this node or not open."""
        ...

    def built(self, index: str, slice_number: int, build: str) -> ReadableSnapshot | None:
        """What a slice under build has made durable: its `number` is the micro-batch up to which it has
        loaded, and nothing behind that is in it. None while it loads, and when it is not of this build (any
        more), or not here."""
        ...

    def newest(self, index: str, slice_number: int) -> int:
        """Newest snapshot number that the slice holds, -1 when none."""
        ...

    def lease(self, index: str, slice_number: int, number: int, holder: str, until: int) -> bool:
        """Keep a snapshot until a time (ms) for `holder`, in place of an earlier time; False when it is not
        held or cannot be kept."""
        ...

    def violations(self, index: str, slice_number: int) -> Sequence[UniqueViolation] | None:
        """The violations that a slice of a UNIQUE index lists, by key; none for other indexes. None when the
        slice is not on this node or not open."""
        ...

    def written(self, index: str, slice_number: int) -> WrittenSlice | None:
        """What is written to a slice, by a sample. None when the slice is not on this node or not open."""
        ...

    def trouble(self, index: str, slice_number: int) -> SliceTrouble | None:
        """Why a slice that is placed here is not in order; None when it is, or not here."""
        ...

    def export(self, index: str, slice_number: int) -> StoreExport | None:
        """What a slice has made durable, for a copy on another node; None when the slice is not on this node
        or not open. Whoever asked closes it.

        Raises:
            RetryableError: its store is just being closed, or has too many readers.
        """
        ...

    def report_damage(self, index: str, slice_number: int, reason: str) -> None:
        """The store itself has found that it is not what was written (`StoreDamagedError`): the slice is to
        be taken out of service."""
        ...

    def report_doubt(self, index: str, slice_number: int, reason: str) -> None:
        """A read contradicts itself (`DoubtfulReadError`): the slice is to be examined, and serves on."""
        ...

    def node_url(self, node: str) -> str | None:
        """Where another node serves, None when unknown."""
        ...

    def on_published(self, callback: Callable[[], None]) -> None:
        """Call back (from any thread) after a published number or the catalog has changed."""
        ...
