"""How a snapshot of a slice is read, by whoever holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from indexer.store.interface import SkipLine, StoreDamagedError, StoredDocument, StoreSnapshot
from keytide.model.timestamp import Timestamp


class SnapshotReader:
    """One reader's hold on a snapshot (`indexer.view.ReadableSnapshot`).

    Args:
        damaged: told what the store says of damage.
        give_back: called once.
    """

    __slots__ = ("_give_back", "_released", "_snapshot", "_telling", "incarnation", "number", "timestamp")

    def __init__(
        self,
        snapshot: StoreSnapshot,
        number: int,
        damaged: Callable[[str], None],
        give_back: Callable[[], None],
    ) -> None:
        self._snapshot = snapshot
        self._telling, self._give_back = _Telling(damaged), give_back
        self._released = False
        self.number = number
        self.incarnation = snapshot.applied.incarnation
        self.timestamp: Timestamp = snapshot.applied.timestamp

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Blocks of (entry key, value) in entry key order.

        Raises:
            StoreDamagedError: the slice is damaged; its ring knows by then.
        """
        with self._telling:
            yield from self._snapshot.rows(low, high, reverse, limit, start_after)

    def rows_of(
        self,
        spans: Sequence[tuple[bytes, bytes | None]],
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """The same of several spans. Raises as `rows` does."""
        with self._telling:
            yield from self._snapshot.rows_of(spans, reverse, limit)

    def count(self, low: bytes, high: bytes | None) -> int:
        """How many entries lie in [low, high). Raises as `rows` does."""
        with self._telling:
            return self._snapshot.count(low, high)

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        """What the back index has, by document id, behind `after`. Raises as `rows`."""
        with self._telling:
            yield from self._snapshot.back_rows(after)

    @property
    def foreign(self) -> int:
        """Documents that were met in two source partitions, ever."""
        return self._snapshot.counts.foreign

    def documents(self, ids: Sequence[bytes]) -> list[StoredDocument | None]:
        """What the back index has of each document, None for one without entries here. Raises as `rows`
        does."""
        with self._telling:
            held = self._snapshot.backs(ids)
        found = map(held.get, ids)
        return [one if one is not None and one.keys else None for one in found]

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        """Lines of the skip ledger behind (partition, offset). Raises as `rows` does."""
        with self._telling:
            return self._snapshot.skips(limit, after)

    def release(self) -> None:
        """Give the snapshot back. Once is enough; more does nothing."""
        if not self._released:
            self._released = True
            self._give_back()


class _Telling:
    """Tells on what the store says of damage."""

    __slots__ = ("_damaged",)

    def __init__(self, damaged: Callable[[str], None]) -> None:
        self._damaged = damaged

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, StoreDamagedError):
            self._damaged(error.message)
