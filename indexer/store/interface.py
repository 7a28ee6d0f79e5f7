"""What a slice's store is to the rest of the indexer.

Theory of operation
===================
A store holds one slice: its entries, its back index (document id -> version and keys), its part of the skip
ledger and its state (`Applied`). It changes by whole commits only. There are two kinds:

* `apply` brings segments of the mutation queue. The commit is volatile: after a crash the store is as it was
  at its last fold, and the caller reads its queue again from `durable.queue_position` (R6, R8).
* `load` brings one micro-batch of the backfill queue and is durable when it returns.

A *fold* makes what was applied durable. It runs beside the caller: `start_fold` sets the changes so far
apart, `finish_fold` (called now and then) takes note of the end. At most one runs at a time.

Versions (R17, and the settled question on an id in two source partitions): the newest version of a document
decides. Within one source partition newer means a larger offset. Between partitions it means a larger (time,
partition), where a document's time is the largest that its partition has shown (so that the outcome does not
depend on the order in which partitions are read). Equal versions (same partition, same offset) unite their
keys. Once an id was met in two partitions its tombstones are remembered.
All methods but `export` are called from one thread. Snapshots and exports may be read and closed by any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from indexer.store.joint import LevelCursor
from indexer.store.joint import Row as Row
from keytide.errors import KeytideError
from keytide.model.byte_columns import EntryColumns
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.messages import Corrections, PutChunk, RemovalChunk, Segment

UNNUMBERED: Final = -1
"""In place of a snapshot number: a commit that no stable scan may read (R4)."""


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """The state of a slice, kept with its entries in every commit.

    Attributes:
        timestamp: everything below it is applied, nothing at or past it.
        number: snapshot number, `UNNUMBERED` for none.
        incarnation: counts rollbacks of the keyspace.
        queue_position: first offset of the mutation queue with anything unapplied (R6).
        build: the build that filled the slice.
        batch: last backfill micro-batch committed, -1 for none.
        backfill_position: first offset of the backfill queue with anything unapplied.
        building: whether the slice still reads its backfill queue.
        control: for the caller's own use.
        doubted: by source partition, how far what made room (R4) was applied that no timestamp vouches for:
            an election may have lost some of it (R30).
    """

    timestamp: Timestamp = Timestamp()
    number: int = UNNUMBERED
    incarnation: int = 0
    queue_position: int = 0
    build: str = ""
    batch: int = -1
    backfill_position: int = 0
    building: bool = False
    control: bytes = b""
    doubted: dict[int, Place] = {}


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """What a store holds, counted exactly.

    Attributes:
        entries: forward entries, long ones included.
        documents: documents with at least one entry.
        tombstones: remembered deletions of ids met in two source partitions.
        skips: lines of the skip ledger.
        foreign: documents found in two source partitions, ever.
    """

    entries: int = 0
    documents: int = 0
    tombstones: int = 0
    skips: int = 0
    foreign: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(
            self.entries + other.entries,
            self.documents + other.documents,
            self.tombstones + other.tombstones,
            self.skips + other.skips,
            self.foreign + other.foreign,
        )


class ApplyResult(NamedTuple):
    """What one commit did.

    Attributes:
        put: entries written.
        removed: entries taken away.
        ignored: versions older than what is held.
        looked_up: documents that passed the filter.
        counts: what the store holds now.
        appended: entries of `put` that were appended, from end to end of a slice that was empty.
    """

    put: int
    removed: int
    ignored: int
    looked_up: int
    counts: Counts
    appended: int = 0


class SkipLine(msgspec.Struct, frozen=True, array_like=True):
    """A line of the skip ledger."""

    partition: int
    offset: int
    id: bytes
    reason: str
    detail: str


class StoredDocument(NamedTuple):
    """What the back index knows of one document; `keys` is empty for a remembered tombstone."""

    partition: int
    offset: int
    time: int
    keys: tuple[bytes, ...]
    foreign: bool


class StoreDamagedError(KeytideError):
    """A file of a slice is not what was written, or holds a record that nothing could have written: a disk
    error, a tool, or a bug. The slice is taken out of service and rebuilt; nothing of it is served."""

    problem_type = "store-damaged"


class StoreSnapshot(Protocol):
    """One commit, readable until closed, whatever is written or folded meanwhile."""

    @property
    def applied(self) -> Applied: ...
    @property
    def counts(self) -> Counts: ...

    def rows(
        self,
        low: bytes = b"",
        high: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[Row]]:
        """Up to `limit` entries with low <= entry key < high (None: no bound) behind `start_after`, in entry
        key order or from the last to the first, in blocks, never empty. Raises: RetryableError:
        `snapshot-closed`, it was closed before the first block was asked for."""
        ...

    def rows_of(
        self, spans: Sequence[tuple[bytes, bytes | None]], reverse: bool = False, limit: int | None = None
    ) -> Iterator[list[Row]]:
        """The same of several spans (low, high), disjoint and in the direction of the read, in one go."""

    def entry_columns(
        self, spans: Sequence[tuple[bytes, bytes | None]], reverse: bool, limit: int
    ) -> Iterator[EntryColumns]:
        """The same by columns, for who reads much: the rows of a block are no objects."""

    def levels(self) -> list[LevelCursor] | None:
        """Its levels, oldest first, to be read until it is closed; None if some entries have no single table.
        Raises: RetryableError: `snapshot-closed`."""
        ...

    def count(self, low: bytes = b"", high: bytes | None = None) -> int:
        """How many entries `rows(low, high)` gives."""
        ...

    def shared(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of some canonical keys (all different, ascending) that more than one document has here."""
        ...

    def backs(self, docids: Sequence[bytes]) -> dict[bytes, StoredDocument]:
        """What the back index has under some document ids, of those that it has."""
        ...

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        """The back index behind a document id (b"": the whole), by document id."""
        ...

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        """Up to `limit` lines of the skip ledger behind (partition, offset), in that order."""
        ...

    def close(self) -> None:
        """Let go of the commit. Readers at work finish first. Closing twice does nothing."""
        ...


class StoreExport(Protocol):
    """What a store has made durable, as rows of its tables, for a copy on another node. One commit:
    nothing that is folded, loaded or stepped back meanwhile shows. May be used on any thread.

    Attributes:
        generation: names this commit of this store. Never used for another one: neither after a step back nor
            by a store that is made anew in the same folder.
        applied: the state of that commit.
        counts: what it holds.
        rows_total: rows of all tables.
    """

    @property
    def generation(self) -> str: ...
    @property
    def applied(self) -> Applied: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def rows_total(self) -> int: ...

    def rows(self, table: str, after: bytes, most_bytes: int) -> list[Row]:
        """Rows of a table (`indexer.store.copies.EXPORT_TABLES`) behind a key (b"": from its beginning), in
        key order, as the store writes them: at least one, and no more than about `most_bytes` of keys and
        values (a row may count for more, as many small ones take longer). None when there are no more.

        Raises:
            StoreDamagedError: what is stored cannot be read.
            RetryableError: `snapshot-closed`, it was closed, or its store was.
        """
        ...

    def close(self) -> None:
        """Let go of the commit. Closing twice does nothing."""
        ...


class SliceStore(Protocol):
    """The store of one slice."""

    @property
    def applied(self) -> Applied:
        """The state after the last commit."""
        ...

    @property
    def durable(self) -> Applied:
        """The state that a crash goes back to."""
        ...

    @property
    def counts(self) -> Counts: ...

    @property
    def folding(self) -> bool:
        """Whether a fold was started whose end `finish_fold` has not told."""
        ...

    def apply(self, segments: Sequence[Segment], applied: Applied) -> ApplyResult:
        """Bring segments and the state after them, in one volatile commit.

        Args:
            segments: already cut to what must be applied; those of one source partition in offset order. The
                same segment may come again: nothing changes.
            applied: the state of the slice with them.

        Raises:
            RetryableError: `disk-full`, or `fold-behind` when the fold does not keep up. Nothing has changed.
        """
        ...

    def correct(self, corrections: Corrections, spared: frozenset[int], applied: Applied) -> int:
        """Bring corrections of a repair (`indexer.store.resolve.corrections`), in one volatile commit; how
        many documents have changed.

        Args:
            corrections: as of a timestamp that the present state covers. The same may come again.
            spared: ordinals of the documents of which something newer was heard.
            applied: the state of the slice with them.

        Raises:
            RetryableError: as for `apply`. Nothing has changed.
        """
        ...

    def load(
        self, puts: Collection[PutChunk], removals: Sequence[RemovalChunk], applied: Applied
    ) -> ApplyResult:
        """Bring one backfill micro-batch, durable on return: removals (documents heard with a version newer
        than what is held) before puts. With neither, makes `applied` durable.

        Args:
            puts: winners' chunks (R22); sorted chunks are fastest. May be lazy, and gone through twice.
            removals: winners' removal chunks.
            applied: the state of the slice with them.

        Raises:
            RetryableError: `disk-full`. Nothing has changed.
            InvariantViolationError: something was applied and not folded yet.
        """
        ...

    def snapshot(self) -> StoreSnapshot:
        """The last commit. Close it when done."""
        ...

    def export(self) -> StoreExport:
        """What is durable now. May be called on any thread, whatever the store's does. Close it when done.

        Raises:
            RetryableError: `snapshot-closed`, the store was closed; `too-many-snapshots`.
        """
        ...

    def fold_due(self, now: int) -> bool:
        """Whether the caller should start a fold: by size, or by age. `now` is milliseconds."""
        ...

    def start_fold(self) -> bool:
        """Begin to make what was applied so far durable. False when one is at work or nothing is new."""
        ...

    def finish_fold(self, wait_s: float = 0.0) -> Applied | None:
        """The new durable state if the fold has ended (once), else None; `wait_s` for its end at most.

        Raises:
            RetryableError: the fold failed (`disk-full`, `fold-worker-died`, `fold-worker-stalled`); nothing
                is lost, and `start_fold` begins it again.
        """
        ...

    @property
    def horizon(self) -> Applied:
        """The oldest state that `step_back` can go to; its queue position is the first that the slice may
        ever need again (R33)."""
        ...

    @property
    def undo_steps(self) -> int:
        """How many folds the durable state can step back."""
        ...

    @property
    def undo_given_up(self) -> bool:
        """Whether the last fold has left no way back, for the disk was nearly full."""
        ...

    def step_back(self, holds: Callable[[Applied], bool]) -> bool:
        """Go back to the newest state for which `holds` is true: the present one (nothing happens), else the
        durable one (what was not folded is dropped), else one fold after the other back. Durable on return;
        a kill in the middle leaves a state that can be stepped back from again. Snapshots that were taken
        stay readable.

        Args:
            holds: judges a state by its timestamp and incarnation.

        Returns:
            False when no state is left that holds (nothing has changed then but that what was not folded may
            be gone): the slice must be rebuilt.

        Raises:
            RetryableError: `disk-full`, or `fold-behind` while a fold is at work; some steps may be done
                already. Calling it again goes on.
        """
        ...

    def verify(self) -> None:
        """Compare the durable part with the checksums that its last commit wrote. May be called on any
        thread while the store is open; it reads everything.

        Raises:
            StoreDamagedError: it is not what was written; the slice must not be served and must be rebuilt.
        """
        ...

    def check_mirror(self) -> None:
        """Check that forward entries are exactly the inverse of the back index, and the counts. Reads
        everything.

        Raises:
            InvariantViolationError: they are not.
        """
        ...

    def disk_bytes(self) -> int:
        """Bytes on disk."""
        ...

    def close(self) -> None:
        """Close it; what was not folded is lost, no fold is at work any more. Snapshots stay readable."""
        ...

    def destroy(self) -> None:
        """Close it and delete everything (DROP); no fold brings it back. Snapshots stay readable."""
        ...
