"""Arrow streams two ways: by columns, from the pages of stores to the batches; and entry by entry, through
LMDB's cursors, Python's sort and the decoding of single keys. Over stores of several levels with removals the
answers are the same, and are the rows that were put."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.request.request import ScanRequest
from indexer.scan.shape import arrow_columns
from indexer.scan.stream import arrow, block, merge
from indexer.scan.stream.streams import Streams
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, Row
from indexer.store.lmdb import leaves
from keytide.collation import MISSING, encode_key
from keytide.errors import KeytideError
from keytide.model.byte_columns import ByteColumn, EntryColumns, Flags, Places
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import ScanSettings
from tests import share
from tests.store_kit import Version, lmdb_store, segments
from tests.unit.scan_world import Doc, FakeSnapshot, StoredSnapshot, World

KEYS = ("city", "city, age", "city DESC", "city DESC, age DESC", "city, age DESC", "city DESC, age")
texts = st.sampled_from(["", "a", "ab", "abcdefg", "abcdefgh", "abcdefghi", "é" * 7, "日本語" * 9]) | st.text(
    max_size=20
)
numbers = (
    st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.sampled_from([2**53 + 1, 0.5, -0.0, 1e300])
)
included = st.sampled_from([b'{"n":1}', b'{"n":null}', b"{}"])
nothing = st.sampled_from([None, MISSING])
of_kind: dict[str, st.SearchStrategy[Any]] = {
    "texts": texts,
    "numbers": numbers,
    "texts or nothing": texts | nothing,
    "numbers or nothing": numbers | nothing,
    "booleans": st.booleans() | nothing,
    "all": st.one_of(
        texts, numbers, nothing, st.booleans(), st.sampled_from(["\0", "a\0b", "z" * 600, 10**30, [1]])
    ),
}


@pytest.fixture(scope="module")
def folds() -> Iterator[FoldWorker]:
    worker = FoldWorker()
    yield worker
    worker.close()


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Doc], dict[str, Any], int]:
    keys = draw(st.sampled_from(KEYS))
    parts = [of_kind[draw(st.sampled_from(sorted(of_kind)))] for _ in keys.split(",")]
    include: bool = draw(st.booleans())
    ids: list[int] = draw(st.lists(st.integers(0, 999), unique=True, max_size=60))
    docs = [
        Doc(
            [draw(part) for part in parts],
            f"d{at:03}" + draw(st.sampled_from(["", "", "\0", "é"])),
            draw(included) if include else None,
        )
        for at in ids
    ]
    reverse: bool = draw(st.booleans())
    asked: dict[str, Any] = {"reverse": reverse}
    if draw(st.booleans()):
        asked["distinct"] = True
    elif draw(st.booleans()):
        asked["columns"] = draw(st.sampled_from([["key"], ["id"], ["key", "id", "include"]]))
    if draw(st.booleans()):
        asked |= {"limit": draw(st.integers(1, 70)), "offset": draw(st.integers(0, 20))}
    elif draw(st.booleans()):
        asked["order"] = "any"
    bounded: bool = draw(st.booleans())
    if docs and bounded:
        low = docs[0].key[0]
        if low is not MISSING:
            asked[draw(st.sampled_from(["low", "high", "equals"]))] = [low]
    structure = draw(st.sampled_from([1, 2, 5]))
    statement = f"CREATE INDEX i ON users ({keys})" + (" INCLUDE (n)" if include else "")
    return f"{statement} WITH (slices={structure})", docs, asked, draw(st.integers(0, 3))


@settings(max_examples=share.examples(50), deadline=None)
@given(case=cases())
def test_both_ways_give_the_same_rows(
    case: tuple[str, list[Doc], dict[str, Any], int], folds: FoldWorker
) -> None:
    statement, docs, asked, levels = case
    with ExitStack() as ended:
        folder = Path(ended.enter_context(tempfile.TemporaryDirectory()))
        world = World(statement, node_count=2)
        stores = 0

        def keep(number: int, incarnation: int, timestamp: Timestamp, entries: list[Row]) -> FakeSnapshot:
            """A store whose entries came in some rounds, with others that were replaced or removed."""
            nonlocal stores
            store = lmdb_store(folder / str(stores), folds)
            ended.callback(store.close)
            stores += 1
            docids = [key[key.rindex(b"d") :] for key, _ in entries]
            doomed = b"d-gone"
            other = encode_key(["elsewhere"] * (1 + ("," in statement)), ())
            first = [Version(one, 0, at, entries=((other, b""),)) for at, one in enumerate([doomed, *docids])]
            last = [
                Version(one, 0, 1_000 + at, entries=((key[: -len(one)], value),))
                for at, (one, (key, value)) in enumerate(zip(docids, entries, strict=True))
            ]
            rounds = [first, last[::2], [*last[1::2], Version(doomed, 0, 5_000)]]
            for at, versions in enumerate(rounds):
                store.apply(segments(versions), Applied(timestamp, number, queue_position=at))
                if at < levels and store.start_fold():
                    store.finish_fold(30)
            snapshot = store.snapshot()
            ended.callback(snapshot.close)
            return StoredSnapshot(number, incarnation, timestamp, entries, snapshot)

        world.keep = keep
        world.commit(1, {"i": docs})
        with mock.patch.object(leaves, "FEWEST_ROWS", 0):
            quick = read(world, asked)
        with entry_by_entry():
            assert read(world, asked) == quick
        if isinstance(quick, dict) and not asked.keys() & {"limit", "low", "high", "equals", "distinct"}:
            descending = world.index("i").definition.descending
            in_order = sorted(docs, key=lambda doc: doc.entry(descending)[0], reverse=asked["reverse"])
            if "id" in quick and asked.get("order") != "any":
                assert quick["id"] == [repr(doc.id) for doc in in_order]
            assert all(len(column) == len(docs) for column in quick.values())


def read(world: World, asked: dict[str, Any]) -> dict[str, list[Any]] | tuple[str, str]:
    """The columns of a stream, with their types; or its error. (As text: -0.0 is not 0.0.)"""

    async def never() -> None:
        await asyncio.Event().wait()

    async def all_of_it() -> dict[str, list[Any]] | tuple[str, str]:
        service = world.services(ScanSettings.model_validate({"stream_block_bytes": 1 << 16}))["n0"]
        try:
            stream = await Streams(service.shared).open(
                "i", msgspec.convert(asked, ScanRequest), arrow.MEDIA_TYPE, never
            )
        except KeytideError as error:
            return type(error).__name__, error.message
        body = stream.form.begin()
        try:
            while (rows := await stream.next()) is not None:
                body += rows
        except KeytideError as error:
            return type(error).__name__, error.message
        finally:
            await stream.close()
        table = pa.ipc.open_stream(body + stream.form.end()).read_all()
        table.validate(full=True)
        columns = {field.name: [*map(repr, table[field.name].to_pylist())] for field in table.schema}
        return columns | {"": [str(table.schema)] * table.num_rows}

    return asyncio.run(all_of_it())


@contextmanager
def entry_by_entry() -> Iterator[None]:
    """Without what is quick."""

    def ascending(column: ByteColumn, *, reverse: bool = False) -> bool:
        items = column.items()
        return items == sorted(set(items), reverse=reverse)

    def order_of(column: ByteColumn) -> tuple[Places, Flags | None]:
        items = column.items()
        order = sorted(range(len(items)), key=items.__getitem__)
        return np.array(order, np.int64), None if len(set(items)) == len(items) else np.zeros(0, np.bool_)

    def no_split(*_: object) -> None:
        return None

    def part(columns: Sequence[EntryColumns]) -> EntryColumns:
        return EntryColumns.of([entry for one in columns for entry in one.items()])

    with (
        mock.patch.object(leaves, "MOST_SPANS", -1),
        mock.patch.object(arrow_columns, "split_keys", no_split),
        mock.patch.object(block, "ascending", ascending),
        mock.patch.object(merge, "ascending", ascending),
        mock.patch.object(merge, "order_of", order_of),
        mock.patch.object(merge, "joined_entries", part),
        mock.patch.object(block, "joined_entries", part),
    ):
        yield
