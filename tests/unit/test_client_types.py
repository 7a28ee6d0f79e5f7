"""Both clients as their users' tools see them: type checkers (mypy holds this file), `help` and `inspect`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Iterator
from typing import Any, assert_type

import pandas as pd
import pyarrow as pa
import pytest

from keytide.client import (
    Aggregate,
    AsyncClient,
    AsyncHeldSnapshot,
    AsyncQuery,
    AsyncScan,
    AsyncTail,
    Client,
    Count,
    Event,
    HeldSnapshot,
    IndexName,
    Page,
    Query,
    Row,
    Scan,
    Tail,
)

PAIRS = [
    (Client, AsyncClient),
    (Scan, AsyncScan),
    (Query, AsyncQuery),
    (HeldSnapshot, AsyncHeldSnapshot),
    (Tail, AsyncTail),
]
GIVES_AT_ONCE = ("scan", "query", "snapshot", "tail", "reset_session")
GENERATES = ("batches", "ndjson")


def what_waits_is_typed(client: Client) -> None:
    with client as same:
        assert_type(same, Client)
    assert_type(client.scan("i", equals=["a"], page_size=3), Scan)
    assert_type(client.query("SELECT"), Query)
    assert_type(client.tail("i", initial=True), Tail)
    assert_type(client.page("i", limit=3), Page)
    assert_type(client.count("i"), Count)
    assert_type(client.aggregate("i", ["count"], group_by=["city"]), Aggregate)
    assert_type(client.explain("SELECT"), dict[str, Any])
    assert_type(client.indexes(), list[IndexName])
    assert_type(client.session, str | None)
    for row in client.scan("i"):
        assert_type(row, Row)
    for values in client.query("SELECT"):
        assert_type(values, list[Any])
    for event in client.tail("i"):
        assert_type(event, Event)
    assert_type(client.scan("i").to_list(), list[Row])
    assert_type(client.query("SELECT").to_list(), list[list[Any]])
    assert_type(client.scan("i").batches(), Iterator[pa.RecordBatch])
    assert_type(client.scan("i").ndjson(), Iterator[bytes])
    assert_type(client.query("SELECT").to_pandas(), pd.DataFrame)
    assert_type(client.close(), None)
    with client.snapshot("i", lease_s=3) as at:
        assert_type(at, HeldSnapshot)
        assert_type(at.scan(), Scan)
        assert_type(at.count(), Count)
        client.count("i", at=at)
    client.count("i", prefix=3)  # type: ignore[arg-type]
    client.count("i", no_such_member=3)  # type: ignore[call-arg]
    client.count(3)  # type: ignore[arg-type]


async def what_is_awaited_is_typed(client: AsyncClient) -> None:
    async with client as same:
        assert_type(same, AsyncClient)
    assert_type(client.scan("i"), AsyncScan)
    assert_type(client.query("SELECT"), AsyncQuery)
    assert_type(client.tail("i"), AsyncTail)
    assert_type(await client.page("i", limit=3), Page)
    assert_type(await client.count("i"), Count)
    assert_type(await client.aggregate("i", ["count"]), Aggregate)
    assert_type(await client.indexes(), list[IndexName])
    async for row in client.scan("i"):
        assert_type(row, Row)
    async for event in client.tail("i"):
        assert_type(event, Event)
    assert_type(await client.scan("i").to_list(), list[Row])
    assert_type(client.scan("i").ndjson(), AsyncGenerator[bytes, None])
    assert_type(await client.query("SELECT").to_pandas(), pd.DataFrame)
    async with client.snapshot("i") as at:
        assert_type(at, AsyncHeldSnapshot)
        assert_type(at.scan(), AsyncScan)
        assert_type(await at.count(), Count)
        await client.count("i", at=at)
    await client.count("i", no_such_member=3)  # type: ignore[call-arg]


def methods(kind: type) -> dict[str, Any]:
    return {
        name: one for name, one in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")
    }


@pytest.mark.parametrize(("sync", "awaited"), PAIRS)
def test_both_have_the_same_methods_with_the_same_words_and_arguments(sync: type, awaited: type) -> None:
    assert methods(sync).keys() == methods(awaited).keys()
    for name, one in methods(sync).items():
        other = methods(awaited)[name]
        assert one.__doc__
        assert one.__doc__ == other.__doc__
        assert inspect.signature(one).parameters == inspect.signature(other).parameters
        assert inspect.iscoroutinefunction(other) == (name not in (*GIVES_AT_ONCE, *GENERATES))
        assert inspect.isasyncgenfunction(other) == (name in GENERATES)
        assert inspect.isgeneratorfunction(one) == (name in GENERATES)
        assert not inspect.iscoroutinefunction(one)


def test_what_a_method_gives_is_said_where_it_is_asked_for() -> None:
    words = "(self, index: 'str', **request: 'Unpack[CountOptions]') -> 'Count'"
    assert str(inspect.signature(methods(Client)["count"])) == words
    results = {
        kind: inspect.signature(methods(kind)["batches"]).return_annotation for kind in (Scan, AsyncScan)
    }
    assert results == {Scan: "Iterator[pa.RecordBatch]", AsyncScan: "AsyncGenerator[pa.RecordBatch]"}
