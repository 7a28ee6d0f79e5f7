"""Validation on read: verdicts, primaries in a database, threads around them, and whole pages."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import sys
import threading
import uuid
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from indexer.hosting.snapshots import SnapshotRing
from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, SliceStore, StoreDamagedError, StoredDocument
from indexer.validation.core.primary import (
    AnsweredDocument,
    PrimaryAnswer,
    PrimaryMisconfiguredError,
    PrimaryUnreachableError,
)
from indexer.validation.core.verdicts import (
    COLUMNS_DIFFER,
    NO_VERSION,
    NOT_THERE_YET,
    PRIMARY_BEHIND,
    STALE,
    VALID,
    Judge,
)
from indexer.validation.executor import PrimaryThreads
from indexer.validation.service import primary_of
from indexer.validation.sql import SqlPrimary
from keytide.errors import ConfigurationError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import PrimarySettings, load_settings
from projector.core.projection import KeyspacePlan, SourceBatch, project
from tests.memory_store.snapshot import MemorySnapshot, MemoryState
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, lmdb_store, segments, state
from tests.store_kit import key as kit_key
from tests.structure_kit import digests_of
from tests.unit.scan_world import definition_of

ROOT = Path(__file__).resolve().parents[2]
BY_CITY = "CREATE INDEX by_city ON users (city)"
Json = dict[str, Any]


def projected(statement: str, documents: dict[str, Any]) -> list[tuple[bytes, bytes, bytes]]:
    """(entry key, value, partition key) of documents, in key order."""
    ids: list[bytes | None] = [id_.encode() for id_ in documents]
    values: list[bytes | None] = [json.dumps(one).encode() for one in documents.values()]
    batch = SourceBatch(0, 0, 0, len(ids), range(len(ids)), ids, values, [0] * len(ids))
    result = project(batch, KeyspacePlan([("i", definition_of(statement))]))
    some = result.indexes["i"]
    held = some.values or [b""] * len(some.keys)
    return sorted(
        (key + result.ids[ordinal], value, partition_key)
        for ordinal, key, value, partition_key in zip(
            some.ordinals.tolist(), some.keys, held, some.partition_keys, strict=True
        )
    )


def found(document: Any, position: int | None = None, why: str = "") -> PrimaryAnswer:
    return PrimaryAnswer(None if document is None else json.dumps(document).encode(), position, why)


def judge_one(
    statement: str, indexed: Json, now: PrimaryAnswer, offset: int = 7, *, columns: bool = True
) -> list[str]:
    """Verdicts of all entries that document `a` has in the index, against what the primary says of it."""
    judge = Judge(definition_of(statement))
    entries = [(key, value) for key, value, _ in projected(statement, {"a": indexed})]
    assert entries
    assert judge.ids(entries) == [b"a"] * len(entries)
    asked = [AnsweredDocument(b"a", 0, offset)] * len(entries)
    return judge.verdicts(entries, asked, {b"a": now}, columns=columns)


# --- verdicts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (found({"city": "Boston", "x": 1}), VALID),
        (found({"city": "Boston"}, position=3), VALID),  # behind, and yet the same
        (found({"city": "Reno"}), STALE),
        (found({"city": "Reno"}, position=8), STALE),
        (found({"city": "Reno"}, position=7), PRIMARY_BEHIND),
        (found({}), STALE),
        (found(None), STALE),
        (found(None, position=8), STALE),
        (found(None, position=7), NOT_THERE_YET),
        (found({"city": "Boston"}, why="record-gone"), "record-gone"),
        (PrimaryAnswer(b"{"), STALE),
        (PrimaryAnswer(b"[]"), STALE),
        (PrimaryAnswer(b'{"city": 1e999}'), STALE),
        (PrimaryAnswer(b'{"city": "Boston", "city": "Reno"}'), STALE),
    ],
)
def test_a_verdict_follows_from_the_document_and_from_how_far_the_primary_is(
    now: PrimaryAnswer, verdict: str
) -> None:
    assert judge_one(BY_CITY, {"city": "Boston"}, now) == [verdict]
    with digests_of(0):
        assert judge_one(BY_CITY.replace("(", "USING hash ("), {"city": "Boston"}, now) == [verdict]


def test_without_a_version_only_a_primary_that_is_always_ahead_can_drop_a_row() -> None:
    moved = {"city": "Reno"}
    assert judge_one(BY_CITY, {"city": "Boston"}, found(moved, position=10**9), offset=-1) == [NO_VERSION]
    assert judge_one(BY_CITY, {"city": "Boston"}, found(moved), offset=-1) == [STALE]
    assert judge_one(BY_CITY, {"city": "Boston"}, found({"city": "Boston"}, 1), offset=-1) == [VALID]


def test_of_unnested_elements_only_those_that_are_gone_are_stale() -> None:
    statement = "CREATE INDEX by_tag ON users (UNNEST(tags))"
    verdicts = judge_one(statement, {"tags": ["a", "b", "c"]}, found({"tags": ["c", "a", "d"]}))
    assert verdicts == [VALID, STALE, VALID]


def test_a_document_that_left_a_partial_index_is_stale() -> None:
    statement = "CREATE INDEX grown ON users (city) WHERE age >= 18"
    was = {"city": "Boston", "age": 20}
    assert judge_one(statement, was, found({"city": "Boston", "age": 17})) == [STALE]
    assert judge_one(statement, was, found({"city": "Boston", "age": 18})) == [VALID]


def test_a_key_that_holds_is_never_dropped_for_its_columns() -> None:
    statement = "CREATE INDEX i ON users (city) INCLUDE (name, home)"
    was = {"city": "Boston", "name": "Bo", "home": {"a": 1, "b": [2.0]}}
    other = {**was, "name": "Bob"}
    assert judge_one(statement, was, found(other)) == [COLUMNS_DIFFER]
    assert judge_one(statement, was, found(other, position=7)) == [PRIMARY_BEHIND]
    assert judge_one(statement, was, found(other), columns=False) == [VALID]
    spelled = '{"home": {"b": [2], "a": 1.0}, "name": "\\u0042o", "city": "Boston"}'
    assert judge_one(statement, was, PrimaryAnswer(spelled.encode())) == [VALID]
    assert judge_one(statement, was, found({**was, "home": {"a": True, "b": [2]}})) == [COLUMNS_DIFFER]
    assert judge_one(statement, was, found({"city": "Boston"})) == [COLUMNS_DIFFER]


def test_descending_and_long_keys_and_numbers_however_spelled() -> None:
    statement = "CREATE INDEX i ON users (city DESC, age, LOWER(name) DESC)"
    was = {"city": "B" * 900, "age": 5, "name": "Ö" * 300}
    assert judge_one(statement, was, found({**was, "age": 5.0})) == [VALID]
    assert judge_one(statement, was, found({**was, "name": "ö" * 300})) == [VALID]
    assert judge_one(statement, was, found({**was, "age": 6})) == [STALE]


# --- a primary in a database ------------------------------------------------------------------------------


class Database:
    """A SQLite database."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'primary.db'}"
        self.engine = sql.create_engine(self.url)
        self.primaries: list[SqlPrimary] = []

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(sql.text(statement))

    def primary(self, **settings: Any) -> SqlPrimary:
        given = {"kind": "sql", "url": self.url, "table": "users", **settings}
        self.primaries.append(SqlPrimary("users", PrimarySettings.model_validate(given)))
        return self.primaries[-1]

    def close(self) -> None:
        for primary in self.primaries:
            primary.close()
        self.engine.dispose()


@pytest.fixture
def database(tmp_path: Path) -> Iterable[Database]:
    made = Database(tmp_path)
    yield made
    made.close()


def sql_settings(**settings: Any) -> PrimarySettings:
    given = {"kind": "sql", "url": "sqlite://", "table": "users", "columns": {"city": "city"}, **settings}
    return PrimarySettings.model_validate(given)


def look_up(
    primary: SqlPrimary, ids: Iterable[str], fields: Collection[str] = ("city",), offset: int = 7
) -> dict[str, tuple[Any, int | None]]:
    """Id -> (document, position)."""
    asked = [AnsweredDocument(id_.encode(), 1, offset) for id_ in ids]
    answers = primary.documents(asked, fields, Timestamp(), 10.0)
    return {
        one.id.decode(): (None if a.document is None else json.loads(a.document), a.position)
        for one, a in zip(asked, answers, strict=True)
    }


def test_a_document_column(database: Database) -> None:
    database.run(
        "CREATE TABLE users (id TEXT, doc JSON)",
        """INSERT INTO users VALUES ('a', '{"n": 12345678901234567890123, "f": 5.0}'), ('b', NULL)""",
        "INSERT INTO users VALUES ('A', '{}')",
    )
    answers = look_up(database.primary(document_column="doc"), ["b", "a", "c", "nul\x00", "é"])
    assert answers == {
        "a": ({"n": 12345678901234567890123, "f": 5.0}, None),
        **dict.fromkeys(["b", "c", "nul\x00", "é"], (None, None)),
    }


@pytest.mark.parametrize("nulls", ["null", "missing"])
def test_documents_put_together_from_columns(database: Database, nulls: str) -> None:
    database.run(
        "CREATE TABLE users (uid INTEGER, town TEXT, price NUMERIC(9, 2), born DATE, ok BOOLEAN, more JSON)",
        """INSERT INTO users VALUES (7, 'Boston', 1.25, '2001-02-03', 1, '{"a": [1, null]}')""",
        "INSERT INTO users (uid) VALUES (-3)",
    )
    columns = {"city": "town", "price": "price", "born": "born", "ok": "ok", "more": "more"}
    primary = database.primary(id_column="uid", columns=columns, nulls=nulls)
    answers = look_up(primary, ["7", "-3", "07", "x", "7.0", "9" * 30], columns)
    whole = {"city": "Boston", "price": 1.25, "born": "2001-02-03", "ok": True, "more": {"a": [1, None]}}
    assert answers["7"] == (whole, None)
    assert answers["-3"] == (dict.fromkeys(columns) if nulls == "null" else {}, None)
    assert {answers[other] for other in ("07", "x", "7.0", "9" * 30)} == {(None, None)}
    assert look_up(primary, ["7"], ["price"])["7"] == ({"price": 1.25}, None), "only what is needed"


def test_ids_that_are_uuids(database: Database) -> None:
    one, other = uuid.uuid4(), uuid.uuid4()
    table = sql.Table(
        "users", sql.MetaData(), sql.Column("id", sql.Uuid(native_uuid=False)), sql.Column("city", sql.Text)
    )
    table.create(database.engine)
    with database.engine.begin() as connection:
        connection.execute(table.insert(), [{"id": one, "city": "Boston"}])
    # SQLite tells CHAR(32), so this is what such a column looks like without a type of its own.
    answers = look_up(database.primary(columns={"city": "city"}), [one.hex, other.hex])
    assert answers == {one.hex: ({"city": "Boston"}, None), other.hex: (None, None)}


def test_thousands_of_ids_go_in_batches(database: Database) -> None:
    database.run("CREATE TABLE users (id TEXT PRIMARY KEY, city TEXT)")
    with database.engine.begin() as connection:
        rows = [{"id": f"u{at}", "city": f"c{at}"} for at in range(0, 5_000, 2)]
        connection.execute(sql.text("INSERT INTO users VALUES (:id, :city)"), rows)
    primary = database.primary(columns={"city": "city"}, batch_ids=700)
    sizes: list[int] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if " IN (" in statement:
            sizes.append(len(parameters))

    sql.event.listen(primary._engine, "before_cursor_execute", note)
    answers = look_up(primary, [f"u{at}" for at in range(5_000)])
    assert sizes == [700] * 7 + [100]
    assert answers == {
        f"u{at}": (({"city": f"c{at}"}, None) if at % 2 == 0 else (None, None)) for at in range(5_000)
    }


def test_how_far_a_database_is_told_by_the_row_or_by_a_query(database: Database) -> None:
    database.run(
        "CREATE TABLE users (id TEXT, city TEXT, part INTEGER, off INTEGER)",
        "INSERT INTO users VALUES ('a', 'x', 1, 41), ('b', 'x', 0, 99), ('c', 'x', NULL, NULL)",
        "CREATE TABLE fed (part INTEGER, next INTEGER)",
    )
    ids = ["a", "b", "c", "d"]
    by_row = database.primary(columns={"city": "city"}, offset_column="off", partition_column="part")
    assert [position for _, position in look_up(by_row, ids).values()] == [42, 0, 0, 0]
    by_offset = database.primary(columns={"city": "city"}, offset_column="off")
    assert [position for _, position in look_up(by_offset, ids).values()] == [42, 100, 0, 0]
    query = "SELECT part, next FROM fed"
    both = database.primary(
        columns={"city": "city"}, offset_column="off", partition_column="part", position_query=query
    )
    assert [position for _, position in look_up(both, ids).values()] == [42, 0, 0, 0]
    database.run("INSERT INTO fed VALUES (0, 500), (1, 30)")
    assert [position for _, position in look_up(both, ids).values()] == [42, 30, 30, 30]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": "people", "columns": {"city": "city"}}, "no table people"),
        ({"columns": {"city": "town"}}, r"no column town \(id, city\)"),
        ({"document_column": "doc"}, "no column doc"),
        ({"id_column": "key", "columns": {"city": "city"}}, "no column key"),
        ({"columns": {"name": "city"}}, "no column is named for city"),
        ({"columns": {"city": "city"}, "position_query": "SELECT 1"}, "position_query"),
        ({"columns": {"city": "city"}, "position_query": "SELEKT"}, "OperationalError|refuses"),
    ],
)
def test_settings_that_cannot_be_are_told_in_words(
    database: Database, settings: dict[str, Any], said: str
) -> None:
    database.run("CREATE TABLE users (id TEXT, city TEXT)")
    with pytest.raises((PrimaryMisconfiguredError, PrimaryUnreachableError), match=said) as error:
        look_up(database.primary(**settings), ["a"])
    assert error.value.next_step


@pytest.mark.parametrize(
    "url",
    [
        "no url",
        "nobase://u:pa55word@h/x",
        "mysql+mysqldb://u:pa55word@h/x",
        "postgresql+psycopg://u:pa55word@h:port/x",
    ],
)
def test_an_url_is_never_shown(url: str) -> None:
    settings = sql_settings(url=url)
    with pytest.raises(PrimaryMisconfiguredError) as error:
        SqlPrimary("users", settings)
    assert "pa55word" not in json.dumps(error.value.problem())
    assert "pa55word" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_a_database_that_is_not_there_is_unreachable_and_its_password_stays_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = "postgresql+psycopg://u:pa55word@127.0.0.1:1/x?application_name=pa55word"
    settings = sql_settings(url=url)
    primary = SqlPrimary("users", settings)
    with caplog.at_level(logging.DEBUG), pytest.raises(PrimaryUnreachableError) as error:
        look_up(primary, ["a"])
    primary.close()
    assert "pa55word" not in json.dumps(error.value.problem()) + caplog.text
    assert "the primary of users" in caplog.text


def test_a_request_whose_time_is_over_asks_nothing_more(database: Database) -> None:
    database.run("CREATE TABLE users (id TEXT, city TEXT)")
    primary = database.primary(columns={"city": "city"})
    with pytest.raises(PrimaryUnreachableError):
        primary.documents([AnsweredDocument(b"a")], ["city"], Timestamp(), 0.0)


def test_without_the_optional_parts_a_database_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(primary={"users": sql_settings(), "events": {"kind": "topic"}})
    assert isinstance(primary_of("users", settings), SqlPrimary)
    monkeypatch.delitem(sys.modules, "indexer.validation.sql")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(PrimaryMisconfiguredError, match="sqlalchemy is not installed") as error:
        primary_of("users", settings)
    assert "keytide[sql]" in error.value.next_step
    primary_of("events", settings).close()


# --- versions in a store ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lmdb", "memory"])
def test_a_snapshot_tells_the_versions_of_its_own_moment(kind: str, tmp_path: Path) -> None:
    """Of documents with entries here, from the base and from deltas; in a thread as tasks read them."""
    worker = FoldWorker()
    store: SliceStore = (
        lmdb_store(tmp_path / "slice", worker) if kind == "lmdb" else MemorySliceStore(Applied())
    )
    ring = SnapshotRing(8)
    one = (kit_key("a"), b"")
    try:
        ids = [b"d%d" % at for at in range(300)]
        store.apply(
            segments([Version(id_, at % 3, at, entries=(one,)) for at, id_ in enumerate(ids)]),
            state(1, p0=300, p1=300, p2=300),
        )
        ring.add(store.snapshot(), 1, 0)
        assert store.start_fold()
        assert store.finish_fold(30.0) is not None
        changed = [Version(b"d0", 0, 300, entries=(one, (kit_key("b"), b""))), Version(b"d3", 0, 301)]
        store.apply(segments(changed), state(2, p0=302, p1=300, p2=300))
        store.apply(segments([Version(b"d1", 0, 303)]), state(3, p0=304, p1=300, p2=300))  # two partitions
        ring.add(store.snapshot(), 3, 0)
        told = {}
        for number in (1, 3):
            reading = ring.acquire(number)
            assert reading is not None
            with ThreadPoolExecutor(1) as threads:
                read = threads.submit(reading.documents, [*ids, b"nobody"]).result(30)
            told[number] = [None if one is None else (one.partition, one.offset) for one in read]
            reading.release()
        before: list[tuple[int, int] | None] = [(at % 3, at) for at in range(300)]
        assert told[1] == [*before, None]
        now = before.copy()
        now[0], now[3] = (0, 300), None
        assert told[3][0] == (0, 300)
        assert [told[3][at] for at in range(300) if at != 1] == [now[at] for at in range(300) if at != 1]
        held = store.snapshot()
        back = held.backs([b"d1"]).get(b"d1")
        held.close()
        assert told[3][1] == (None if back is None or not back.keys else (back.partition, back.offset))
    finally:
        ring.close()
        store.close()
        worker.close()


def test_a_damaged_back_index_takes_its_slice_out_of_service() -> None:
    class Damaged(MemorySnapshot):
        def backs(self, docids: Sequence[bytes]) -> dict[bytes, StoredDocument]:
            raise StoreDamagedError("a back index row is no record")

    ring = SnapshotRing(2)
    ring.add(Damaged(MemoryState(Applied())), 1, 0)
    reading = ring.acquire(1)
    assert reading is not None
    with pytest.raises(StoreDamagedError):
        reading.documents([b"a"])
    reading.release()
    assert ring.damage == "a back index row is no record"
    assert ring.acquire(1) is None


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "sql"},
        {"kind": "sql", "url": "u", "table": "t"},
        {"kind": "sql", "url": "u", "table": "t", "document_column": "d", "columns": {"a": "b"}},
        {"kind": "sql", "url": "u", "table": "t", "document_column": "d", "partition_column": "p"},
        {"kind": "topic", "url": "u"},
        {"kind": "topic", "offset_column": "o"},
        {"kind": "oracle"},
        {"kind": "topic", "connections": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused_without_showing_them(settings: Json) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_settings(primary={"users": {**settings, "table": settings.get("table", "pa55word")}})
    assert "pa55word" not in str(error.value)


def test_the_page_on_validation_has_every_setting_with_its_default() -> None:
    page = (ROOT / "docs/validate.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`|none) \|", page, re.MULTILINE))
    defaults = {
        name: ""
        if field.is_required()
        else json.dumps(field.get_default(call_default_factory=True), default=str)
        for name, field in PrimarySettings.model_fields.items()
    }
    assert rows == defaults


# --- threads ----------------------------------------------------------------------------------------------


class Gate:
    """A primary whose calls wait until they are let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = 0
        self.most = 0
        self.closed = False
        self._lock = threading.Lock()

    def documents(
        self, asked: Sequence[AnsweredDocument], fields: Collection[str], since: Timestamp, timeout_s: float
    ) -> list[PrimaryAnswer]:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.open.wait(20)
        with self._lock:
            self.inside -= 1
        return [PrimaryAnswer()] * len(asked)

    def close(self) -> None:
        self.closed = True


def test_calls_are_limited_and_one_that_hangs_keeps_its_place() -> None:
    async def run() -> None:
        gate = Gate()
        threads = PrimaryThreads("users", lambda: gate, 2)

        async def call(timeout_s: float) -> int:
            return len(
                await threads.run(
                    lambda p: p.documents([AnsweredDocument(b"a")], (), Timestamp(), 1), timeout_s
                )
            )

        hanging = [asyncio.ensure_future(call(0.05)) for _ in range(2)]
        for one in hanging:
            with pytest.raises(PrimaryUnreachableError, match="did not answer within"):
                await one
        with pytest.raises(PrimaryUnreachableError):  # both places are taken by threads that nobody waits for
            await call(0.05)
        assert gate.inside == 2
        waiting = [asyncio.ensure_future(call(10)) for _ in range(6)]
        gate.open.set()
        assert await asyncio.gather(*waiting) == [1] * 6
        assert gate.most == 2
        threads.close()
        assert gate.closed

    asyncio.run(run())


def test_what_a_call_raises_comes_to_who_waits_and_frees_its_place() -> None:
    def fail(_: object) -> int:
        raise PrimaryMisconfiguredError("so it is")

    async def run() -> None:
        threads = PrimaryThreads("users", Gate, 1)
        for _ in range(3):
            with pytest.raises(PrimaryMisconfiguredError, match="so it is"):
                await threads.run(fail, 5)

    asyncio.run(run())


def test_what_a_call_raises_that_nobody_waits_for_any_more_is_not_logged() -> None:
    """The event loop would log it whole, with what the database's driver says."""
    gate = Gate()
    told: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        threads = PrimaryThreads("users", lambda: gate, 1)

        started = threading.Event()

        def fails(_: object) -> None:
            started.set()
            gate.open.wait(20)
            raise PrimaryUnreachableError("gone")

        reader = asyncio.ensure_future(threads.run(fails, 10.0))
        assert await asyncio.to_thread(started.wait, 10)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        gate.open.set()
        assert await threads.run(lambda _: 7, 10.0) == 7, "its place is free again"
        gc.collect()

    asyncio.run(main())
    assert told == []
