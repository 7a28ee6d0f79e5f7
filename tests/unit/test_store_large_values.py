"""What is copied to read a span: no large value that lies elsewhere, however many are beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, Row
from indexer.store.joint import first_rows
from indexer.store.lmdb.levels import View
from indexer.store.lmdb.snapshot import LmdbSnapshot
from keytide.model.timestamp import Timestamp
from tests.store_kit import Version, key, lmdb_store, segments

LARGE = 20_000
Spans = list[tuple[bytes, bytes | None]]
ONE: Spans = [(key("050"), key("053"))]
SOME: Spans = [*ONE, (key("060"), key("061")), (key("070"), key("071"))]
LONG = "y" * 600


class CountingCursor:
    """A cursor that adds up the bytes of the values that it gives."""

    def __init__(self, inner: Any, copied: list[int]) -> None:
        self._inner, self._copied = inner, copied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def value(self) -> bytes:
        value: bytes = self._inner.value()
        self._copied[0] += len(value)
        return value

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        return self._counted(self._inner.iternext(keys, values), values)

    def iterprev(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        return self._counted(self._inner.iterprev(keys, values), values)

    def _counted(self, rows: Iterator[Any], values: bool) -> Iterator[Any]:
        for row in rows:
            if values:
                self._copied[0] += len(row[1])
            yield row


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of values, so far."""
    total, cursor = [0], View.cursor
    monkeypatch.setattr(View, "cursor", lambda view, table: CountingCursor(cursor(view, table), total))
    return total


@pytest.fixture(params=["", LONG])
def long(request: pytest.FixtureRequest) -> str:
    """What the keys end with: such keys are in a table of their own."""
    end: str = request.param
    return end


@pytest.fixture
def snapshot(tmp_path: Path, folds: FoldWorker, long: str) -> Iterator[LmdbSnapshot]:
    """A base and a delta; all values but those of `SOME` are large."""
    store = lmdb_store(tmp_path / "slice", folds)
    for queue, numbers in enumerate((range(120), range(1, 120, 8)), 1):
        versions = [
            Version(
                b"d%05d" % one,
                0,
                queue * 1_000 + one,
                entries=((key(f"{one:03}{long}"), b"%d" % queue if inside(one) else bytes(LARGE)),),
            )
            for one in numbers
        ]
        store.apply(segments(versions), Applied(Timestamp(), queue, queue_position=queue))
        if queue == 1:
            assert store.start_fold()
            store.finish_fold(30)
    held = store.snapshot()
    assert isinstance(held, LmdbSnapshot)
    yield held
    held.close()
    store.close()


def inside(number: int) -> bool:
    return any(low <= key(f"{number:03}") < (high or b"\xff") for low, high in SOME)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("spans", [ONE, SOME])
def test_no_large_value_outside_of_the_spans_is_copied(
    snapshot: LmdbSnapshot, copied: list[int], spans: Spans, reverse: bool
) -> None:
    ordered = spans[::-1] if reverse else spans

    def by_columns() -> list[Row]:
        return [row for part in snapshot.entry_columns(ordered, reverse, 100) for row in part.items()]

    def by_rows(limit: int | None) -> Callable[[], list[Row]]:
        return lambda: [row for block in snapshot.rows_of(ordered, reverse, limit) for row in block]

    expected = 3 if spans is ONE else 5
    for read in (by_columns, by_rows(100), by_rows(None)):
        copied[0] = 0
        assert len(read()) == expected
        assert copied[0] < LARGE


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("long", [""], indirect=True)
def test_nor_by_cursors_that_stay_open(snapshot: LmdbSnapshot, copied: list[int], reverse: bool) -> None:
    levels = snapshot.levels()
    assert levels is not None
    for low, high in (*SOME, *SOME[::-1]):
        copied[0] = 0
        found = first_rows([levels], low, high, reverse, 100, b"\x00")
        assert found is not None
        assert found[0]
        assert copied[0] < LARGE


def test_a_read_without_a_limit_begins_with_few_rows_where_some_are_large(
    snapshot: LmdbSnapshot, copied: list[int]
) -> None:
    """Whoever tests them, or has room for some only, may end after the first block."""
    next(iter(snapshot.rows_of([(b"", None)])))
    assert copied[0] <= 20 * LARGE
