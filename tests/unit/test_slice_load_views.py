"""What is shown of slices that are hotter than the others: index, slices, health, metrics, `/load`,
commands."""

from __future__ import annotations

import asyncio
import queue
import random
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from msgspec.structs import replace
from typer.testing import CliRunner

from coordinator.core.events import WrittenTold
from coordinator.core.instructions import AskWritten
from coordinator.http import metrics
from coordinator.http.leader_access import LeaderAccess
from coordinator.http.list_routes import add_lists, in_half
from coordinator.http.problems import add_error_handlers
from coordinator.process.limits import limits_of
from coordinator.process.load_requests import LoadRequests
from coordinator.process.service import CoordinatorService
from coordinator.statements.auto_split import AutoSplitLimits
from coordinator.views import health, views
from indexer.hosting.node import ServingNode
from indexer.serve.index_lists import page
from indexer.slice.write_load import SHOW_MS, WriteLoad
from keytide.cli import app as cli
from keytide.cli import rendering as looks
from keytide.cli.output import out
from keytide.collation import encode_part
from keytide.definition.expression import Literal
from keytide.definition.statement import CreateIndex, SplitPartition, parse_statement
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.nodes import NodeClient
from keytide.process.worker import logged
from keytide.settings.settings import load_settings
from keytide.wire.index_lists import ListPage, WrittenSlice, WrittenValue, ask_decoder, encoder
from tests.browser.scene import Scene
from tests.posts import post_to
from tests.unit.copies_world import INDEX
from tests.unit.test_slice_loads import PATIENCE, LoadWorld, four
from tests.unit.test_write_load import brings

REASON = "500 entries/s are written to it, 10 to others of its index"
WRITTEN = WrittenSlice(2, True, 100.0, [WrittenValue(encode_part("Rome"), 80, 82)])


def hot(rate: int = 500) -> LoadWorld:
    """Slice 2 of by_city, on n1, gets nearly all."""
    world = four()
    world.writes = [10, 10, rate, 10]
    world.reads = [2, 2, 2, 2]
    world.go(PATIENCE)
    return world


def shown(world: LoadWorld) -> dict[str, Any]:
    index = world.index("by_city")
    document = views.index(world.leader, index, world.now)
    return {**document, "slice_states": views.slices(world.leader, index, world.now)}


def test_the_index_says_which_slices_are_hot_and_each_slice_what_it_gets() -> None:
    document = shown(hot())
    assert document["hot"] == [
        {"slice": 2, "measure": "writes", "value": 500.0, "others": 10.0, "reason": REASON}
    ]
    told = [(one["writes_per_s"], one["reads_per_s"], one["hot"]) for one in document["slice_states"]]
    assert told == [(10.0, 2.0, []), (10.0, 2.0, []), (500.0, 2.0, ["writes"]), (10.0, 2.0, [])]
    calm = shown(four())
    assert calm["hot"] == []
    assert [(one["writes_per_s"], one["hot"]) for one in calm["slice_states"]] == [(None, [])] * 4


def test_health_is_ok_and_has_a_note() -> None:
    world = hot()
    (said,) = [one for one in health.of(world.leader, world.now).reasons if one.kind == "slice"]
    assert (said.subject, said.status, said.reason) == ("slice 2 of by_city", "ok", f"it is hot: {REASON}")
    assert "`keytide index load by_city`" in said.next_step


def test_metrics() -> None:
    def lines(world: LoadWorld) -> list[str]:
        page = metrics.render(world.leader, world.now).decode()
        return [one for one in page.splitlines() if "per_second{" in one or "hot_slices{" in one]

    found = lines(hot())
    assert 'keytide_slice_writes_per_second{index="by_city",slice="2"} 500.0' in found
    assert 'keytide_slice_reads_per_second{index="by_city",slice="0"} 2.0' in found
    assert 'keytide_index_hot_slices{index="by_city"} 1.0' in found
    assert lines(four()) == ['keytide_index_hot_slices{index="by_city"} 0.0']


# --- asked of nodes -----------------------------------------------------------------------------------------


class Answers:
    """Nodes that tell what is written to their slices."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []

    async def post(self, url: str, body: bytes, *_: Any) -> tuple[int, bytes]:
        ask = ask_decoder.decode(body)
        assert ask.what == "load"
        self.asked.append((url.split("/")[2], ask.slices))
        told = [WRITTEN if one == 2 else WrittenSlice(one, known=False) for one in ask.slices]
        return 200, encoder.encode(ListPage(written=told))


class Service(Scene):
    def pulse(self) -> None:
        """Only the world's time passes."""


def client_of(world: LoadWorld, given: Answers | None = None) -> tuple[TestClient, Answers]:
    scene, answers, app = Service(), given or Answers(), FastAPI()
    scene.leader = world.leader
    add_error_handlers(app)
    add_lists(app, LeaderAccess(cast(CoordinatorService, scene)), NodeClient(post=answers.post))
    return TestClient(app), answers


def test_the_node_of_a_hot_slice_is_asked_for_values_and_advice_is_given() -> None:
    client, answers = client_of(hot())
    document = client.get("/v1/indexes/by_city/load").json()
    assert answers.asked == [("n1", [2])]
    assert [one["writes_per_s"] for one in document["slices"]] == [10.0, 10.0, 500.0, 10.0]
    assert document["values"] == [{"slice": 2, "value": "Rome", "percent": 80.0, "percent_most": 82.0}]
    assert document["without_values"] == []
    (one,) = document["hot"]
    assert (one["slice"], one["measure"], one["reason"]) == (2, "writes", REASON)
    assert "spread over 4 slices by the document id" in one["text"]
    assert one["statement"] == "ALTER INDEX by_city PARTITION 2 SET (slices=4)"


def test_what_a_node_samples_reaches_the_advice() -> None:
    """From commits of a slice on a node to what a user reads, by the messages between them."""
    world = hot()
    definition = world.index("by_city").definition
    loads = {(INDEX, number): WriteLoad(number, definition) for number in (0, 2)}
    rng = random.Random(5)
    for commit in range(40):
        cities = ["Rome" if rng.random() < 0.7 else f"c{rng.randrange(9_999)}" for _ in range(500)]
        segment = brings(definition, [(city,) for city in cities], 500 * commit)
        loads[INDEX, 2].committed([segment], 500)
    loads[INDEX, 2].look(SHOW_MS)
    view = ServingNode("n1")
    view.show_slices((), loads=loads)

    async def post(_url: str, body: bytes, *_: Any) -> tuple[int, bytes]:
        return 200, encoder.encode(page(view, ask_decoder.decode(body)))

    answers = Answers()
    answers.post = post  # type: ignore[method-assign, assignment]
    client, _ = client_of(world, answers)
    document = client.get("/v1/indexes/by_city/load").json()
    first, *others = document["values"]
    assert first["value"] == "Rome"
    assert 55 < first["percent"] <= first["percent_most"] < 85
    assert all(one["percent"] < 10 for one in others)
    (one,) = document["hot"]
    assert one["statement"] == "ALTER INDEX by_city PARTITION 2 SET (slices=4)"


def test_a_slice_may_be_named() -> None:
    client, answers = client_of(hot())
    document = client.get("/v1/indexes/by_city/load", params={"slice": 1}).json()
    assert (answers.asked, document["without_values"]) == ([("n2", [1])], [1])
    assert document["hot"][0]["statement"] == "ALTER INDEX by_city SET (slices=8)"
    refused = client.get("/v1/indexes/by_city/load", params={"slice": 4})
    assert (refused.status_code, refused.json()["type"]) == (404, "no-such-slice")
    assert refused.json()["next_step"] == "its slices are 0 to 3"


def test_without_a_hot_slice_the_one_that_is_written_to_most_is_looked_at() -> None:
    client, answers = client_of(hot(25))
    document = client.get("/v1/indexes/by_city/load").json()
    assert (answers.asked, document["hot"]) == ([("n1", [2])], [])
    client, answers = client_of(four())
    assert client.get("/v1/indexes/by_city/load").json()["values"] == []
    assert answers.asked == []


# --- what people see ----------------------------------------------------------------------------------------


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 250)


@pytest.mark.usefixtures("wide")
def test_index_show_points_to_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    looks.show_index(shown(hot()))
    text = capsys.readouterr().out
    assert f"slice 2 is hot: {REASON}; `keytide index load by_city` says what helps" in text
    assert "writes_per_s" in text.replace(" ", "_")
    looks.show_index(shown(four()))
    text = capsys.readouterr().out
    assert "is hot" not in text
    assert "writes_per_s" not in text.replace(" ", "_")


@pytest.mark.usefixtures("wide")
def test_index_load_shows_values_and_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = client_of(hot())

    class Admin:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Admin:
            return self

        def __exit__(self, *_: object) -> None: ...
        def call(self, method: str, path: str, **query: Any) -> Any:
            return client.request(method, path, params=query).json()

    monkeypatch.setattr("keytide.cli.admin.Admin", Admin)
    result = CliRunner().invoke(cli, ["index", "load", "by_city"])
    assert result.exit_code == 0, result.output
    assert '"Rome"' in result.stdout
    assert "80.0 to 82.0" in result.stdout
    assert f"slice 2 is hot: {REASON}" in result.stdout
    assert "ALTER INDEX by_city PARTITION 2 SET (slices=4)" in result.stdout
    result = CliRunner().invoke(cli, ["index", "load", "by_city", "--slice", "1"])
    assert "slice 1: its entries do not say by which value they came there" in result.stdout


@pytest.mark.parametrize(
    ("statement", "number", "at"),
    [
        ("PARTITION BY RANGE(city) SPLIT AT ('c', 'f', 'p')", 2, (Literal("i"),)),
        ("PARTITION BY RANGE(city) SPLIT AT ('c', 'f', 'p')", 1, ()),  # its node does not know
        ("PARTITION BY RANGE(city) SPLIT AT ('c', 'f', 'p')", 4, ()),  # there is none
        ("WITH (slices=4)", 2, ()),
    ],
)
def test_a_slice_is_parted_where_its_node_says_that_half_lies(
    statement: str, number: int, at: tuple[Literal, ...]
) -> None:
    """The statement that is left without a value is refused by name (test_partitions)."""

    class Halves(Answers):
        async def post(self, url: str, body: bytes, *_: Any) -> tuple[int, bytes]:
            values = tuple(map(encode_part, [*"ffggghhhhiikkkkooo"]))
            (asked,) = ask_decoder.decode(body).slices
            known = WrittenSlice(asked, True, 18.0, [], values, ())
            told = known if asked == 2 else WrittenSlice(asked, known=False)
            return 200, encoder.encode(ListPage(written=[told]))

    world = hot()
    parsed = parse_statement(f"CREATE INDEX by_city ON people (city) {statement}")
    assert isinstance(parsed, CreateIndex)
    world.leader.dictionary.put(replace(world.index("by_city"), definition=parsed.definition))
    scene = Service()
    scene.leader = world.leader
    access = LeaderAccess(cast(CoordinatorService, scene))
    asked = SplitPartition("by_city", number)
    found = asyncio.run(in_half(access, NodeClient(post=Halves().post), asked))
    assert found == SplitPartition("by_city", number, at)


def test_what_is_written_to_a_slice_is_asked_of_its_node_for_the_leader() -> None:
    def node(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"]
        if request.url.host == "n9":
            raise httpx.ConnectError("nobody is there")
        if request.url.host == "n8":
            return httpx.Response(404)
        (asked,) = ask_decoder.decode(request.content).slices
        return httpx.Response(200, content=encoder.encode(ListPage(written=[replace(WRITTEN, slice=asked)])))

    told: queue.SimpleQueue[WrittenTold] = queue.SimpleQueue()
    worker = LoadRequests(load_settings(), told.put, logged, BlockingNodeClient("", post_to(node)))
    worker.open()
    try:
        for host in ("n9", "n8", "n1"):
            worker.put(AskWritten("by_city-1", 2, f"http://{host}", "ab" * 16))
        answers = [told.get(timeout=20) for _ in range(3)]
    finally:
        worker.close()
    assert [(one.index, one.slice, one.written) for one in answers] == [
        ("by_city-1", 2, None),
        ("by_city-1", 2, None),
        ("by_city-1", 2, WRITTEN),
    ]


def test_settings_are_obeyed() -> None:
    settings = load_settings(coordinator={"hot_after_s": 40, "hot_rate": 7, "large_entries": 9})
    limits = limits_of(settings)[2]
    assert (limits.look_ms, limits.rate, limits.entries) == (10_000, 7, 9)
    settings = load_settings(
        coordinator={
            "hot_after_s": 40,
            "auto_split_after_s": 5,
            "auto_split_pause_s": 6,
            "auto_split_slices": 7,
        }
    )
    assert limits_of(settings)[3] == AutoSplitLimits(10_000, 5_000, 6_000, 7)
