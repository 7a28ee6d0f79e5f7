"""Both ends of a copy of the store in dictionaries. Rows have bytes of its own: entries as they are, long
ones among them; records and lines as on the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from indexer.store.copies import EXPORT_TABLES, Table
from indexer.store.formats.records import ledger_key, pack_line, pack_record, unpack_line, unpack_record
from indexer.store.interface import Applied, Counts, Row, StoreDamagedError
from keytide.errors import RetryableError, invariant
from tests.memory_store.snapshot import MemoryState


class MemoryExport:
    """`StoreExport` of one commit; `gone` says whether its store was closed."""

    def __init__(self, state: MemoryState, generation: str, gone: Callable[[], bool]) -> None:
        self.generation, self.applied, self.counts = generation, state.applied, state.counts()
        self._tables: dict[str, list[Row]] = {
            "forward": sorted(state.entries.items()),
            "long": [],
            "back": sorted((docid, pack_record(held)) for docid, held in state.back.items()),
            "skips": sorted((ledger_key(*place), pack_line(line)) for place, line in state.lines.items()),
        }
        self.rows_total = sum(map(len, self._tables.values()))
        self._closed, self._gone = False, gone

    def rows(self, table: str, after: bytes, most_bytes: int) -> list[Row]:
        if self._closed or self._gone():
            raise RetryableError("the export was closed", problem_type="snapshot-closed")
        found: list[Row] = []
        for key, value in self._tables[table]:
            if key > after and most_bytes > 0:
                found.append((key, value))
                most_bytes -= len(key) + len(value)
        return found

    def close(self) -> None:
        self._closed = True


class MemorySliceFilling:
    """`StoreFilling` in memory; it is its own disk, so whoever opens it anew has it as it is."""

    def __init__(self) -> None:
        self.generation, self.finished = "", False
        self._tables: dict[Table, list[Row]] = {table: [] for table in EXPORT_TABLES}
        self._table = EXPORT_TABLES[0]
        self._applied = Applied()

    @property
    def place(self) -> tuple[Table, bytes]:
        rows = self._tables[self._table]
        return self._table, rows[-1][0] if rows else b""

    @property
    def rows(self) -> int:
        return sum(map(len, self._tables.values()))

    def begin(self, generation: str) -> None:
        self.__init__()  # type: ignore[misc]
        self.generation = generation

    def put(self, table: Table, rows: Sequence[Row]) -> None:
        if not rows:
            return
        behind = EXPORT_TABLES.index(table) >= EXPORT_TABLES.index(self._table) and not self.finished
        keys = [key for key, _ in [*self._tables[table][-1:], *rows]]
        invariant(behind and keys == sorted(set(keys)), "Mirror", "rows came out of order")
        self._table = table
        self._tables[table] += rows

    def finish(self, applied: Applied, counts: Counts) -> None:
        self._applied = applied
        if self.state().counts() != counts:
            raise StoreDamagedError(f"filled with {self.state().counts()}, counted {counts}")
        self.finished = True

    def close(self) -> None:
        """What was put stays."""

    def state(self) -> MemoryState:
        """The commit that its rows are."""
        lines = [unpack_line(value) for _, value in self._tables["skips"]]
        return MemoryState(
            self._applied,
            dict(self._tables["forward"]),
            {docid: unpack_record(record) for docid, record in self._tables["back"]},
            {(line.partition, line.offset): line for line in lines},
        )
